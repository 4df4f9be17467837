//! How a value is owned: whole, field by field, or item by item.
//!
//! The schema decides; where it says nothing, objects are owned by field and
//! lists whole.

use serde_json::{Map, Value};

use super::element::Element;
use crate::schema::{Additional, ListType, Node, common_field};

/// What is known of a value's type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Type<'a> {
    /// A whole object, with the metadata every object has.
    Object(&'a Node),
    Known(&'a Node),
    /// Anything, owned by field as deep as objects go.
    Deduced,
    /// Anything, owned whole.
    Whole,
    /// A field that the schema does not have.
    Undeclared,
}

/// How one value is owned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'v, 'a> {
    /// Whole: scalars, atomic lists and maps, and null.
    Leaf,
    Map(&'v Map<String, Value>),
    List(&'v [Value], Keys<'a>),
}

/// What tells the items of a list apart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// The item itself.
    Value,
    Fields(&'a [String]),
}

impl<'a> Type<'a> {
    /// The type of a child of an object.
    pub(crate) fn field(self, name: &str) -> Type<'a> {
        let node = match self {
            Type::Object(node) | Type::Known(node) => node,
            Type::Deduced | Type::Whole | Type::Undeclared => return self,
        };
        if let Some(common) = common_field(name).filter(|_| self.has_metadata()) {
            return Type::Known(common);
        }
        if let Some(property) = node.properties.get(name) {
            return Type::Known(property);
        }
        match &node.additional {
            Additional::Each(each) => Type::Known(each),
            Additional::Anything => Type::Deduced,
            Additional::Forbidden => Type::Undeclared,
            Additional::Unsaid if node.open || node.properties.is_empty() => Type::Deduced,
            Additional::Unsaid => Type::Undeclared,
        }
    }

    fn has_metadata(self) -> bool {
        match self {
            Type::Object(_) => true,
            Type::Known(node) => node.embedded,
            Type::Deduced | Type::Whole | Type::Undeclared => false,
        }
    }

    /// Whether the schema names this field, as opposed to allowing any key.
    pub(crate) fn declares(self, name: &str) -> bool {
        match self {
            Type::Object(node) | Type::Known(node) => {
                node.properties.contains_key(name) || (self.has_metadata() && common_field(name).is_some())
            }
            Type::Deduced | Type::Whole | Type::Undeclared => false,
        }
    }

    pub(crate) fn item(self) -> Type<'a> {
        match self {
            Type::Known(node) => node.items.as_deref().map_or(Type::Whole, Type::Known),
            Type::Object(_) | Type::Deduced | Type::Whole | Type::Undeclared => Type::Whole,
        }
    }

    /// How a value of this type is owned.
    pub(crate) fn shape<'v>(self, value: &'v Value) -> Shape<'v, 'a> {
        match (value, self) {
            (Value::Object(map), Type::Deduced | Type::Object(_)) => Shape::Map(map),
            (Value::Object(map), Type::Known(node)) if node.allows_objects() && !node.atomic_map => {
                Shape::Map(map)
            }
            (Value::Array(items), Type::Known(node)) if node.allows_lists() => match node.keys() {
                Some(keys) => Shape::List(items, keys),
                None => Shape::Leaf,
            },
            _ => Shape::Leaf,
        }
    }

    /// Whether values of this type are owned whole although they have parts.
    pub(crate) fn is_atomic(self) -> bool {
        match self {
            Type::Known(node) if node.allows_objects() => node.atomic_map,
            Type::Known(node) if node.allows_lists() => node.keys().is_none(),
            Type::Object(_) | Type::Known(_) | Type::Deduced | Type::Undeclared => false,
            Type::Whole => true,
        }
    }
}

impl Node {
    fn keys(&self) -> Option<Keys<'_>> {
        match (&self.list, &self.patch) {
            (ListType::Map(keys), _) => Some(Keys::Fields(keys)),
            (ListType::Set, _) => Some(Keys::Value),
            (ListType::Unsaid, hints) if hints.merge => Some(match &hints.merge_key {
                Some(key) => Keys::Fields(std::slice::from_ref(key)),
                None => Keys::Value,
            }),
            (ListType::Unsaid | ListType::Atomic, _) => None,
        }
    }
}

impl Keys<'_> {
    /// What names an item, or why it cannot be named.
    pub(crate) fn element(self, item: &Value, item_type: Type<'_>) -> Result<Element, String> {
        match (self, item) {
            (Keys::Value, Value::Object(_)) => {
                Err("associative list without keys has an element that's a map type".into())
            }
            (Keys::Value, Value::Array(_)) => {
                Err("not supported: associative list with lists as elements".into())
            }
            (Keys::Value, Value::Null) => {
                Err("associative list without keys has an element that's an explicit null".into())
            }
            (Keys::Value, scalar) => Ok(Element::Value(scalar.clone())),
            (Keys::Fields(_), Value::Null) => {
                Err("associative list with keys may not have a null element".into())
            }
            (Keys::Fields(names), Value::Object(map)) => key_of(map, names, item_type),
            (Keys::Fields(_), _) => Err("associative list with keys may not have non-map elements".into()),
        }
    }
}

fn key_of(map: &Map<String, Value>, names: &[String], item_type: Type<'_>) -> Result<Element, String> {
    let default = |name: &str| match item_type {
        Type::Known(node) => node.properties.get(name)?.default.as_ref(),
        Type::Object(_) | Type::Deduced | Type::Whole | Type::Undeclared => None,
    };
    let value = |name: &String| map.get(name).or_else(|| default(name));
    let mut keys: Vec<(String, Value)> =
        names.iter().filter_map(|name| Some((name.clone(), value(name)?.clone()))).collect();
    if keys.is_empty() {
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] \
             (and doesn't have default values for any key fields)",
            quoted.join(" ")
        ));
    }
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Element::Key(keys))
}
