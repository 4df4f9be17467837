//! Schemas of built-in kinds, made from the Kubernetes types.
//!
//! Two forms: definitions with references, for OpenAPI documents, and the
//! structural form with everything inlined, for validation and merging.
//! Neither is kept: whoever asks holds it as long as needed.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::lists::annotate;

const REFERENCE: &str = "#/components/schemas/";

/// Collects the definitions that one or more types refer to.
pub(crate) struct Definitions {
    generator: SchemaGenerator,
}

impl Definitions {
    pub(crate) fn new() -> Definitions {
        let mut settings = SchemaSettings::openapi3();
        settings.transforms.clear();
        Definitions { generator: settings.into_generator() }
    }

    /// Adds a type and everything it refers to; gives the name of its definition.
    pub(crate) fn add<T: JsonSchema>(&mut self) -> String {
        self.generator.subschema_for::<T>();
        T::schema_name().into_owned()
    }

    /// All definitions by name, annotated with how lists merge.
    pub(crate) fn take(mut self) -> Map<String, Value> {
        let mut definitions = self.generator.take_definitions(true);
        for (name, definition) in &mut definitions {
            if let Value::Object(definition) = definition {
                annotate(short(name), definition);
            }
        }
        definitions
    }
}

/// The structural schema of a built-in kind, without descriptions.
pub(super) fn structural<T: JsonSchema>() -> Value {
    let mut definitions = Definitions::new();
    let name = definitions.add::<T>();
    let definitions = definitions.take();
    let mut root = inline(&definitions, &definitions[&name], &mut vec![&name]);
    // The server itself looks after these three, for every kind alike.
    for (field, schema) in [
        ("apiVersion", json!({"type": "string"})),
        ("kind", json!({"type": "string"})),
        ("metadata", json!({"type": "object"})),
    ] {
        root["properties"][field] = schema;
    }
    root
}

/// A copy of `schema` with every reference replaced by what it refers to.
/// A type that contains itself is cut off: what is below is kept unexamined.
/// So are schemas in CRDs, which have their own judge.
fn inline<'a>(definitions: &'a Map<String, Value>, schema: &Value, within: &mut Vec<&'a str>) -> Value {
    let Value::Object(schema) = schema else { return schema.clone() };
    let mut result = Map::new();
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let name = target.strip_prefix(REFERENCE).unwrap_or(target);
        let Some((name, definition)) = definitions.get_key_value(name) else { return unexamined() };
        if within.contains(&name.as_str()) || short(name) == "JSONSchemaProps" {
            return json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
        within.push(name);
        let inlined = inline(definitions, definition, within);
        within.pop();
        if let Value::Object(inlined) = inlined {
            result = inlined;
        }
    }
    for (key, value) in schema {
        match key.as_str() {
            // Built-in kinds are read into structs: an absent field is an empty one.
            "$ref" | "description" | "required" => {}
            // Bytes are judged when an object is decoded, for which empty is fine.
            "format" if value == "byte" => {}
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                let properties =
                    properties.map(|(name, value)| (name.clone(), inline(definitions, value, within)));
                result.insert(key.clone(), properties.collect::<Map<_, _>>().into());
            }
            "items" | "additionalProperties" if value.is_object() => {
                result.insert(key.clone(), inline(definitions, value, within));
            }
            _ => {
                result.insert(key.clone(), value.clone());
            }
        }
    }
    require_item_keys(&mut result);
    allow_what_is_undescribed(&mut result);
    Value::Object(result)
}

/// Items of a list that merges by key must have the key.
fn require_item_keys(schema: &mut Map<String, Value>) {
    let Some(keys) = schema.get("x-kubernetes-list-map-keys").cloned() else { return };
    let Some(Value::Object(items)) = schema.get_mut("items") else { return };
    let with_default = |key: &Value| {
        let property = items.get("properties").and_then(|properties| properties.get(key.as_str()?));
        property.is_some_and(|property| property.get("default").is_some())
    };
    let required: Vec<Value> =
        keys.as_array().into_iter().flatten().filter(|key| !with_default(key)).cloned().collect();
    items.insert("required".into(), required.into());
}

/// An object of which nothing is said may hold anything; a schema without a type too.
fn allow_what_is_undescribed(schema: &mut Map<String, Value>) {
    let has = |key: &str| schema.contains_key(key);
    let described = has("properties") || has("additionalProperties") || has("x-kubernetes-int-or-string");
    let object = schema.get("type").is_none_or(|kind| kind == "object");
    if object && !described {
        schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
}

fn unexamined() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// `Pod` of `io.k8s.api.core.v1.Pod`.
pub(crate) fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
