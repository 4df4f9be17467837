//! The built-in kinds, one row each.
//!
//! Invariant: a row costs nothing but itself; schemas are made when asked for.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission, apps::v1 as apps, coordination::v1 as coordination,
        core::v1 as core, events::v1 as events, storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
};
use schemars::JsonSchema;
use serde_json::Value;

use super::{
    columns::columns,
    schema::{Definitions, structural},
};
use crate::kind::{Kind, KindVersion, ResourceId, SchemaSource, Scope, Subresource};

struct Row {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    scope: Scope,
    status: bool,
    subresources: &'static [Subresource],
    selectable: &'static [&'static str],
    schema: fn() -> Value,
    define: Definer,
}

/// Adds a kind's type to a set of definitions; gives the name of its definition.
pub(crate) type Definer = fn(&mut Definitions) -> String;

impl Row {
    const fn of<T: JsonSchema>(group: &'static str, kind: &'static str, plural: &'static str) -> Row {
        Row {
            group,
            kind,
            plural,
            short_names: &[],
            categories: &[],
            scope: Scope::Cluster,
            status: false,
            subresources: &[],
            selectable: &[],
            schema: structural::<T>,
            define: Definitions::add::<T>,
        }
    }

    const fn namespaced(mut self) -> Row {
        self.scope = Scope::Namespaced;
        self
    }

    const fn short(mut self, names: &'static [&'static str]) -> Row {
        self.short_names = names;
        self
    }

    const fn all(mut self) -> Row {
        self.categories = &["all"];
        self
    }

    const fn api_extensions(mut self) -> Row {
        self.categories = &["api-extensions"];
        self
    }

    const fn status(mut self) -> Row {
        self.status = true;
        self
    }

    const fn with(mut self, subresources: &'static [Subresource]) -> Row {
        self.subresources = subresources;
        self
    }

    const fn selectable(mut self, fields: &'static [&'static str]) -> Row {
        self.selectable = fields;
        self
    }
}

const POD_SUBRESOURCES: &[Subresource] = &[
    Subresource { name: "binding", group: "", version: "", kind: "Binding", verbs: &["create"] },
    Subresource { name: "log", group: "", version: "", kind: "Pod", verbs: &["get"] },
];

const NAMESPACE_SUBRESOURCES: &[Subresource] =
    &[Subresource { name: "finalize", group: "", version: "", kind: "Namespace", verbs: &["update"] }];

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];

const CORE_EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const EVENT_FIELDS: &[&str] = &[
    "reason",
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reportingController",
    "type",
];

const APPS: &str = "apps";
const EVENTS: &str = "events.k8s.io";
const COORDINATION: &str = "coordination.k8s.io";
const EXTENSIONS: &str = "apiextensions.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const STORAGE: &str = "storage.k8s.io";

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row::of::<core::ConfigMap>("", "ConfigMap", "configmaps").namespaced().short(&["cm"]),
    Row::of::<core::Event>("", "Event", "events").namespaced().short(&["ev"]).selectable(CORE_EVENT_FIELDS),
    Row::of::<core::Namespace>("", "Namespace", "namespaces").short(&["ns"]).status().with(NAMESPACE_SUBRESOURCES).selectable(&["status.phase"]),
    Row::of::<core::Node>("", "Node", "nodes").short(&["no"]).status().selectable(&["spec.unschedulable"]),
    Row::of::<core::PersistentVolumeClaim>("", "PersistentVolumeClaim", "persistentvolumeclaims").namespaced().short(&["pvc"]).status(),
    Row::of::<core::PersistentVolume>("", "PersistentVolume", "persistentvolumes").short(&["pv"]).status(),
    Row::of::<core::Pod>("", "Pod", "pods").namespaced().short(&["po"]).all().status().with(POD_SUBRESOURCES).selectable(POD_FIELDS),
    Row::of::<core::Secret>("", "Secret", "secrets").namespaced().selectable(&["type"]),
    Row::of::<core::ServiceAccount>("", "ServiceAccount", "serviceaccounts").namespaced().short(&["sa"]),
    Row::of::<apps::ControllerRevision>(APPS, "ControllerRevision", "controllerrevisions").namespaced(),
    Row::of::<apps::DaemonSet>(APPS, "DaemonSet", "daemonsets").namespaced().short(&["ds"]).all().status(),
    Row::of::<events::Event>(EVENTS, "Event", "events").namespaced().short(&["ev"]).selectable(EVENT_FIELDS),
    Row::of::<storage::CSIDriver>(STORAGE, "CSIDriver", "csidrivers"),
    Row::of::<storage::CSINode>(STORAGE, "CSINode", "csinodes"),
    Row::of::<storage::StorageClass>(STORAGE, "StorageClass", "storageclasses").short(&["sc"]),
    Row::of::<admission::ValidatingWebhookConfiguration>(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations").api_extensions(),
    Row::of::<extensions::CustomResourceDefinition>(EXTENSIONS, "CustomResourceDefinition", "customresourcedefinitions").short(&["crd", "crds"]).api_extensions().status(),
    Row::of::<coordination::Lease>(COORDINATION, "Lease", "leases").namespaced(),
];

/// Every built-in kind, in the order discovery lists them.
pub fn builtin_kinds() -> Vec<Kind> {
    ROWS.iter().map(kind).collect()
}

/// How OpenAPI documents get the definition of a built-in kind.
pub(crate) fn definer(resource: &ResourceId) -> Option<Definer> {
    let own = |row: &&Row| row.group == &*resource.group && row.plural == &*resource.plural;
    ROWS.iter().find(own).map(|row| row.define)
}

fn kind(row: &Row) -> Kind {
    let resource = ResourceId { group: Arc::from(row.group), plural: Arc::from(row.plural) };
    let view_of = (row.group == EVENTS)
        .then(|| ResourceId { group: Arc::from(""), plural: Arc::clone(&resource.plural) });
    let version = KindVersion {
        name: "v1".into(),
        served: true,
        storage: true,
        deprecation_warning: None,
        schema: SchemaSource::BuiltIn(row.schema),
        status_subresource: row.status,
        scale_subresource: None,
        subresources: row.subresources,
        columns: columns(row.kind),
        selectable_fields: owned(row.selectable),
    };
    Kind {
        resource,
        kind: row.kind.into(),
        list_kind: format!("{}List", row.kind),
        singular: row.kind.to_lowercase(),
        short_names: owned(row.short_names),
        categories: owned(row.categories),
        scope: row.scope,
        built_in: true,
        conversion: None,
        view_of,
        terminating: false,
        versions: vec![version],
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
