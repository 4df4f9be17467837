//! A setting: one value that holds for the whole cluster.
//!
//! The invariant: the rules of the schema are written from the same table that
//! [`crate::settings::check`] reads, so that both refuse the same values. `value`
//! stands at the top of the object, as upstream has it.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;
use kube::core::{ApiResource, CustomResourceExt, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::settings;

/// One value that holds for the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    #[serde(flatten)]
    types: Types,
    pub metadata: ObjectMeta,
    /// The value, whatever it means: a number, a word, or JSON with one value per data engine.
    #[serde(default)]
    pub value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SettingStatus>,
}

/// What was seen of a setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SettingStatus {
    /// Whether the value is in effect.
    pub applied: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Types {
    api_version: Cow<'static, str>,
    kind: Cow<'static, str>,
}

impl Default for Types {
    fn default() -> Types {
        Types { api_version: Setting::api_version(&()), kind: Setting::kind(&()) }
    }
}

impl Setting {
    /// A setting of this name and value in Longhorn's namespace.
    pub fn new(name: &str, value: &str) -> Setting {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some(super::NAMESPACE.into()),
            ..ObjectMeta::default()
        };
        Setting { metadata, value: value.into(), ..Setting::default() }
    }
}

impl Resource for Setting {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'static, str> {
        "Setting".into()
    }

    fn group(_: &()) -> Cow<'static, str> {
        super::GROUP.into()
    }

    fn version(_: &()) -> Cow<'static, str> {
        "v1beta2".into()
    }

    fn plural(_: &()) -> Cow<'static, str> {
        "settings".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl CustomResourceExt for Setting {
    fn crd() -> CustomResourceDefinition {
        let definition = json!({
            "metadata": { "name": Setting::crd_name() },
            "spec": {
                "group": super::GROUP,
                "names": { "kind": "Setting", "plural": "settings", "shortNames": ["lhs"], "singular": "setting" },
                "scope": "Namespaced",
                "versions": [{
                    "name": "v1beta2",
                    "served": true,
                    "storage": true,
                    "subresources": { "status": {} },
                    "additionalPrinterColumns": [
                        { "name": "Value", "type": "string", "jsonPath": ".value", "description": "The value of the setting" },
                        { "name": "Applied", "type": "boolean", "jsonPath": ".status.applied", "description": "The setting is applied" },
                        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
                    ],
                    "schema": { "openAPIV3Schema": {
                        "type": "object",
                        "description": "One value that holds for the whole cluster.",
                        "required": ["value"],
                        "x-kubernetes-validations": settings::rules(),
                        "properties": {
                            "value": {
                                "type": "string",
                                "maxLength": settings::MAX_LENGTH,
                                "description": "The value: a number, a word, or JSON with one value per data engine.",
                            },
                            "status": {
                                "type": "object",
                                "description": "What was seen of a setting.",
                                "required": ["applied"],
                                "properties": {
                                    "applied": { "type": "boolean", "description": "Whether the value is in effect." },
                                },
                            },
                        },
                    }},
                }],
            },
        });
        serde_json::from_value(definition).expect("the definition of Setting is well formed")
    }

    fn crd_name() -> &'static str {
        "settings.longhorn.io"
    }

    fn api_resource() -> ApiResource {
        ApiResource::erase::<Self>(&())
    }

    fn shortnames() -> &'static [&'static str] {
        &["lhs"]
    }
}
