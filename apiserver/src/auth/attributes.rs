//! What a request wants to do, as authorization looks at it.

use std::fmt;

use crate::error::{ApiError, Reason, Subject};

/// The verbs of Kubernetes authorization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }

    pub(crate) fn is_read(self) -> bool {
        match self {
            Verb::Get | Verb::List | Verb::Watch => true,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => false,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request on a resource, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    /// The node that a list or watch is narrowed to by `spec.nodeName=`.
    pub(crate) only_node: Option<&'a str>,
}

impl Attributes<'_> {
    /// The refusal, worded as Kubernetes words it.
    pub(crate) fn forbidden(&self, user: &str) -> ApiError {
        let qualified = if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        };
        let object = self.name.map(|name| format!(" {name:?}")).unwrap_or_default();
        let resource = match self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.resource),
            None => self.resource.to_owned(),
        };
        let scope = match self.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{qualified}{object} is forbidden: User {user:?} cannot {} resource {resource:?} in API group {:?} {scope}",
            self.verb, self.group,
        );
        ApiError::new(Reason::Forbidden, message).about(Subject {
            group: self.group.to_owned(),
            kind: self.resource.to_owned(),
            name: self.name.unwrap_or_default().to_owned(),
            uid: String::new(),
        })
    }
}
