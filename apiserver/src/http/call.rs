//! A request on a resource, taken apart and allowed.

use std::sync::Arc;

use serde_json::Value;

use super::negotiate::{Accept, Encoding, Form};
use super::query::Query;
use crate::auth::{Identity, ObjectCheck, Verb};
use crate::error::ApiError;
use crate::served::Served;
use crate::server::Shared;
use crate::store::{Key, Stored};

/// Everything a handler needs to know of a request, besides its body.
pub(crate) struct Call {
    pub(crate) server: Arc<Shared>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) served: Arc<Served>,
    pub(crate) verb: Verb,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    pub(crate) query: Query,
    pub(crate) accept: Accept,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) pretty: bool,
    /// What the object must satisfy for this user to touch it.
    pub(crate) check: Option<ObjectCheck>,
}

impl Call {
    /// The name in the path; empty for collections.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn key(&self) -> Key {
        self.key_of(self.name())
    }

    pub(crate) fn key_of(&self, name: &str) -> Key {
        Key::new(self.served.stored_under().clone(), self.namespace.as_deref(), name)
    }

    /// The stored object, or 404.
    pub(crate) fn stored(&self) -> Result<Arc<Stored>, ApiError> {
        self.server.store.get(&self.key()).ok_or_else(|| self.served.not_found(self.name()))
    }

    /// 403 if this user may not touch this very object.
    pub(crate) fn check(&self, object: &Value) -> Result<(), ApiError> {
        match &self.check {
            Some(check) if !check.passes(object) => Err(self.forbidden()),
            _ => Ok(()),
        }
    }

    fn forbidden(&self) -> ApiError {
        let resource = self.served.resource();
        crate::auth::Attributes {
            verb: self.verb.as_str(),
            group: &resource.group,
            resource: &resource.plural,
            subresource: self.subresource.as_deref(),
            namespace: self.namespace.as_deref(),
            name: self.name.as_deref(),
            only_node: None,
        }
        .forbidden(self.identity.user())
    }

    /// Who is noted in managedFields: the given manager, or the program that asks.
    pub(crate) fn manager(&self, given: Option<&str>) -> String {
        let program = self.user_agent.split('/').next().unwrap_or_default();
        let name = given.unwrap_or(program);
        let printable: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
        if printable.is_empty() { "unknown".to_owned() } else { printable }
    }
}

impl Call {
    /// A deletion by the server itself.
    pub(crate) fn internal(server: Arc<Shared>, served: Arc<Served>, key: &Key) -> Call {
        Call {
            server,
            identity: Arc::new(Identity::admin("system:garbage-collector")),
            served,
            verb: Verb::Delete,
            namespace: key.namespace.as_deref().map(str::to_owned),
            name: Some(key.name.to_string()),
            subresource: None,
            query: Query::default(),
            accept: Accept { form: Form::Whole, encoding: Encoding::Json },
            content_type: String::new(),
            user_agent: String::new(),
            pretty: false,
            check: None,
        }
    }

    /// The same request, on one object.
    pub(crate) fn on(&self, namespace: Option<String>, name: &str) -> Call {
        Call {
            server: self.server.clone(),
            identity: self.identity.clone(),
            served: self.served.clone(),
            verb: self.verb,
            namespace,
            name: Some(name.to_owned()),
            subresource: None,
            query: Query::default(),
            accept: self.accept,
            content_type: self.content_type.clone(),
            user_agent: self.user_agent.clone(),
            pretty: self.pretty,
            check: self.check.clone(),
        }
    }
}
