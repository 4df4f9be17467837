//! Which objects a list or watch speaks of.
//!
//! The invariant: an object is parsed only if a selector needs its content.

use serde::Deserialize;
use serde_json::Value;

use super::query::ListOptions;
use crate::error::ApiError;
use crate::select::{FieldSelector, LabelSelector};
use crate::served::{Here, Served};
use crate::store::Key;

/// Namespace, name and selectors of a request.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) namespace: Option<String>,
    name: Option<String>,
    labels: LabelSelector,
    /// Empty if name and namespace are all it asks for.
    fields: FieldSelector,
}

/// As much of an object as a label selector looks at.
#[derive(Deserialize)]
struct Labelled {
    metadata: Labels,
}

#[derive(Deserialize)]
struct Labels {
    labels: Option<Value>,
}

impl Filter {
    pub(crate) fn parse(
        served: &Served,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Filter, ApiError> {
        let labels: LabelSelector = options.label_selector.parse()?;
        let fields = FieldSelector::parse(&options.field_selector, served.kind(), served.version())?;
        let name = fields.required("metadata.name").map(str::to_owned);
        let in_namespace = fields.required("metadata.namespace").map(str::to_owned);
        let namespace = namespace.map(str::to_owned).or(in_namespace);
        // A selector of nothing but the name is judged by the key alone.
        let only_name = name.as_ref().is_some_and(|name| fields == FieldSelector::name(name));
        let fields = if only_name { FieldSelector::default() } else { fields };
        Ok(Filter { namespace, name, labels, fields })
    }

    /// Whether every object of the namespace is meant.
    pub(crate) fn takes_all(&self) -> bool {
        self.name.is_none() && self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn places(&self, key: &Key) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| key.namespace.as_deref() == Some(wanted))
            && self.names(&key.name)
    }

    pub(crate) fn names(&self, name: &str) -> bool {
        self.name.as_ref().is_none_or(|wanted| wanted == name)
    }

    /// Judges the content of an object that is in the right place.
    pub(crate) fn selects(&self, served: &Served, here: &Here) -> bool {
        if !self.fields.is_empty() {
            let object = served.object(here);
            return self.fields.matches(&object) && self.labels.matches(object["metadata"].get("labels"));
        }
        if self.labels.is_empty() {
            return true;
        }
        let seen: Labelled = serde_json::from_slice(here.raw()).expect("the store holds objects");
        self.labels.matches(seen.metadata.labels.as_ref())
    }
}
