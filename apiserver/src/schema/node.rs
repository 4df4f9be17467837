//! The compiled form of one schema: a tree in which every question that a
//! request asks (is this field known, what is its default, what must hold) is
//! answered without looking at JSON again.
//!
//! Building a node never fails; what makes a schema unacceptable is found by
//! `structural` and `rules`, so that all faults are reported at once.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::format::Format;
use super::rules::Rule;

/// A set of JSON types, in the order in which messages list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const ANY: Types = Types(0);
    pub(crate) const INTEGER: Types = Types(1);
    pub(crate) const STRING: Types = Types(2);
    pub(crate) const NUMBER: Types = Types(4);
    pub(crate) const BOOLEAN: Types = Types(8);
    pub(crate) const ARRAY: Types = Types(16);
    pub(crate) const OBJECT: Types = Types(32);

    const NAMED: [(Types, &'static str); 6] = [
        (Types::INTEGER, "integer"),
        (Types::STRING, "string"),
        (Types::NUMBER, "number"),
        (Types::BOOLEAN, "boolean"),
        (Types::ARRAY, "array"),
        (Types::OBJECT, "object"),
    ];

    fn parse(name: &str) -> Types {
        Self::NAMED.iter().find(|(_, known)| *known == name).map_or(Types::ANY, |(kind, _)| *kind)
    }

    pub(crate) fn contains(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_any(self) -> bool {
        self == Types::ANY
    }

    /// `integer`, or `integer,string`.
    pub(crate) fn names(self) -> String {
        let names: Vec<&str> =
            Self::NAMED.iter().filter(|(kind, _)| self.contains(*kind)).map(|(_, name)| *name).collect();
        names.join(",")
    }
}

/// How the items of a list relate to each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ListType {
    /// Like atomic, unless the patch hints say otherwise.
    #[default]
    Unsaid,
    Atomic,
    Set,
    /// Items are objects told apart by these fields.
    Map(Vec<String>),
}

/// What a schema says of fields it does not name.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Unsaid,
    Anything,
    Forbidden,
    Each(Box<Node>),
}

/// Limits on numbers, strings and sizes.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) pattern: Option<(String, Option<Regex>)>,
}

/// How strategic merge patch treats a list or object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PatchHints {
    pub(crate) merge: bool,
    pub(crate) retain_keys: bool,
    pub(crate) merge_key: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) types: Types,
    pub(crate) nullable: bool,
    pub(crate) int_or_string: bool,
    pub(crate) preserve_unknown: bool,
    /// Whether this node or one above it preserves unknown fields.
    pub(crate) open: bool,
    pub(crate) embedded: bool,
    pub(crate) list: ListType,
    pub(crate) atomic_map: bool,
    pub(crate) patch: PatchHints,
    pub(crate) properties: BTreeMap<String, Node>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) required: Vec<String>,
    pub(crate) default: Option<Value>,
    pub(crate) choices: Vec<Value>,
    pub(crate) format: Option<Format>,
    pub(crate) bounds: Option<Box<Bounds>>,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Box<Node>>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) below: Below,
}

/// What this node or anything under it has, so that walks skip what they can.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Below {
    pub(crate) defaults: bool,
    pub(crate) rules: bool,
    /// Lists of type set or map.
    pub(crate) unique: bool,
    pub(crate) embedded: bool,
}

impl Node {
    pub(crate) fn compile(schema: &Value) -> Node {
        Node::compile_in(schema, false)
    }

    /// The schema that accepts and keeps everything.
    pub(crate) fn anything() -> Node {
        Node { preserve_unknown: true, open: true, ..Node::default() }
    }

    fn compile_in(schema: &Value, open: bool) -> Node {
        schema.as_object().map_or_else(Node::anything, |schema| Node::from_map(schema, open))
    }

    fn from_map(schema: &Map<String, Value>, open: bool) -> Node {
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        let open = open || flag("x-kubernetes-preserve-unknown-fields");
        let compile = |schema: &Value| Node::compile_in(schema, open);
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let branches = |name: &str| -> Vec<Node> {
            schema.get(name).and_then(Value::as_array).into_iter().flatten().map(compile).collect()
        };
        let int_or_string = flag("x-kubernetes-int-or-string");
        let types = if int_or_string {
            Types(Types::INTEGER.0 | Types::STRING.0)
        } else {
            text("type").map_or(Types::ANY, Types::parse)
        };
        let mut node = Node {
            types,
            nullable: flag("nullable"),
            int_or_string,
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            open,
            embedded: flag("x-kubernetes-embedded-resource"),
            list: list_type(schema),
            atomic_map: text("x-kubernetes-map-type") == Some("atomic"),
            patch: patch_hints(schema),
            properties: schema
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .map(|(name, property)| (name.clone(), compile(property)))
                .collect(),
            additional: match schema.get("additionalProperties") {
                None | Some(Value::Null) => Additional::Unsaid,
                Some(Value::Bool(true)) => Additional::Anything,
                Some(Value::Bool(false)) => Additional::Forbidden,
                Some(each) => Additional::Each(Box::new(compile(each))),
            },
            items: schema.get("items").filter(|items| items.is_object()).map(|i| Box::new(compile(i))),
            required: strings(schema.get("required")),
            default: schema.get("default").filter(|default| !default.is_null()).cloned(),
            choices: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            format: text("format").and_then(|name| Format::for_type(name, types)),
            bounds: bounds(schema),
            all_of: branches("allOf"),
            any_of: branches("anyOf"),
            one_of: branches("oneOf"),
            not: schema.get("not").map(|not| Box::new(compile(not))),
            rules: Rule::compile_all(schema),
            below: Below::default(),
        };
        node.below = node.look_below();
        node
    }

    fn look_below(&self) -> Below {
        let mut below = Below {
            defaults: self.default.is_some(),
            rules: !self.rules.is_empty() || self.all_of.iter().any(|branch| branch.below.rules),
            unique: matches!(self.list, ListType::Set | ListType::Map(_)),
            embedded: self.embedded,
        };
        let each = match &self.additional {
            Additional::Each(each) => Some(&**each),
            Additional::Unsaid | Additional::Anything | Additional::Forbidden => None,
        };
        for child in self.properties.values().chain(each).chain(self.items.as_deref()) {
            below.defaults |= child.below.defaults;
            below.rules |= child.below.rules;
            below.unique |= child.below.unique;
            below.embedded |= child.below.embedded;
        }
        below
    }

    pub(crate) fn has_format(&self) -> bool {
        self.format.is_some()
    }

    pub(crate) fn allows_objects(&self) -> bool {
        self.types.is_any() || self.types.contains(Types::OBJECT)
    }

    pub(crate) fn allows_lists(&self) -> bool {
        self.types.is_any() || self.types.contains(Types::ARRAY)
    }

    /// The schema of a field, declared or not.
    pub(crate) fn child(&self, name: &str) -> Option<&Node> {
        self.properties.get(name).or(match &self.additional {
            Additional::Each(each) => Some(each),
            Additional::Unsaid | Additional::Anything | Additional::Forbidden => None,
        })
    }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(|v| v.as_str().map(Into::into)).collect()
}

fn list_type(schema: &Map<String, Value>) -> ListType {
    match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(strings(schema.get("x-kubernetes-list-map-keys"))),
        Some(_) => ListType::Atomic,
        None => ListType::Unsaid,
    }
}

fn patch_hints(schema: &Map<String, Value>) -> PatchHints {
    let text = |name: &str| schema.get(name).and_then(Value::as_str);
    let strategy = text("x-kubernetes-patch-strategy").unwrap_or("");
    PatchHints {
        merge: strategy.split(',').any(|word| word == "merge"),
        retain_keys: strategy.split(',').any(|word| word == "retainKeys"),
        merge_key: text("x-kubernetes-patch-merge-key").map(Into::into),
    }
}

fn bounds(schema: &Map<String, Value>) -> Option<Box<Bounds>> {
    const NAMES: [&str; 10] = [
        "maximum",
        "minimum",
        "multipleOf",
        "maxLength",
        "minLength",
        "maxItems",
        "minItems",
        "maxProperties",
        "minProperties",
        "pattern",
    ];
    if !NAMES.iter().any(|name| schema.contains_key(*name)) {
        return None;
    }
    let number = |name: &str| schema.get(name).and_then(Value::as_f64);
    let count = |name: &str| schema.get(name).and_then(Value::as_u64);
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
    let pattern = schema.get("pattern").and_then(Value::as_str).filter(|pattern| !pattern.is_empty());
    Some(Box::new(Bounds {
        maximum: number("maximum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        minimum: number("minimum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        multiple_of: number("multipleOf"),
        max_length: count("maxLength"),
        min_length: count("minLength"),
        max_items: count("maxItems"),
        min_items: count("minItems"),
        max_properties: count("maxProperties"),
        min_properties: count("minProperties"),
        pattern: pattern.map(|pattern| (pattern.to_owned(), Regex::new(pattern).ok())),
    }))
}
