//! Walks over the text of a value and holds it against a field, without
//! building the value.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Field, Fields, Kind, Many, Models, Problem};
use crate::record::Table;

/// What a walk may look at, and what it found.
pub(super) struct Shape<'a> {
    models: &'a Models,
    /// Ids of the tables that are referred to; a table that is not here is not looked at.
    ids: Option<&'a BTreeMap<&'a Table, HashSet<&'a str>>>,
    found: RefCell<Vec<(String, Problem)>>,
}

impl<'a> Shape<'a> {
    /// For values that stand alone: references are not followed.
    pub(super) fn new(models: &'a Models) -> Shape<'a> {
        Shape { models, ids: None, found: RefCell::default() }
    }

    pub(super) fn with_ids(models: &'a Models, ids: &'a BTreeMap<&'a Table, HashSet<&'a str>>) -> Shape<'a> {
        Shape { models, ids: Some(ids), found: RefCell::default() }
    }

    /// Holds one value against one field.
    pub(super) fn check(&self, field: &'a Field, value: &Value) -> Result<(), Problem> {
        let path = Path { outer: None, name: "" };
        let walk = Values { shape: self, field, path: &path, is: None };
        walk.deserialize(value).map_err(|error| Problem::NotJson(error.to_string()))?;
        match self.found.borrow_mut().drain(..).next() {
            Some((_, problem)) => Err(problem),
            None => Ok(()),
        }
    }

    /// Everything that is wrong with an object, each with the path of its field.
    pub(super) fn object(&self, fields: &'a Fields, id: &str, text: &[u8]) -> Vec<(String, Problem)> {
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let walked = Object { shape: self, fields, path: None, id: Some(id) }
            .deserialize(&mut deserializer)
            .and_then(|()| deserializer.end());
        if let Err(error) = walked {
            self.found.borrow_mut().push((String::new(), Problem::NotJson(error.to_string())));
        }
        self.found.take()
    }

    fn wrong(&self, path: Option<&Path<'_>>, problem: Problem) {
        let path = path.map(ToString::to_string).unwrap_or_default();
        self.found.borrow_mut().push((path, problem));
    }
}

/// Where the walk is: a list that lives on the stack.
struct Path<'p> {
    outer: Option<&'p Path<'p>>,
    name: &'p str,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(outer) = self.outer {
            write!(f, "{outer}.")?;
        }
        f.write_str(self.name)
    }
}

/// Expects the object of a model.
struct Object<'a, 'p> {
    shape: &'p Shape<'a>,
    fields: &'a Fields,
    path: Option<&'p Path<'p>>,
    /// The id under which the row is found, where the object is a row.
    id: Option<&'p str>,
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut seen = 0_u128;
        while let Some(name) = map.next_key_seed(Name(self.fields))? {
            let at = match name {
                Ok(at) => at,
                Err(unknown) => {
                    let path = Path { outer: self.path, name: &unknown };
                    self.shape.wrong(Some(&path), Problem::UnknownField);
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let (name, field) = &self.fields.0[at];
            let path = Path { outer: self.path, name };
            if map.next_value_seed(Values {
                shape: self.shape,
                field,
                path: &path,
                is: self.id.filter(|_| name == "id"),
            })? {
                seen |= 1 << at;
            }
        }
        for (at, (name, field)) in self.fields.0.iter().enumerate() {
            if field.required && seen & (1 << at) == 0 {
                self.shape.wrong(Some(&Path { outer: self.path, name }), Problem::Missing);
            }
        }
        Ok(())
    }
}

/// Finds the position of a field by its name, or gives the name back.
struct Name<'a>(&'a Fields);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Result<usize, String>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Result<usize, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.position(name).ok_or_else(|| name.to_owned()))
    }
}

/// Expects what a field holds: one value, a list or a map. Says whether
/// something was there: null stands for a field that was left out.
struct Values<'a, 'p> {
    shape: &'p Shape<'a>,
    field: &'a Field,
    path: &'p Path<'p>,
    /// The one text it may be, where that is known.
    is: Option<&'p str>,
}

impl<'de> DeserializeSeed<'de> for Values<'_, '_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        match self.field.many {
            Many::One => deserializer.deserialize_any(One(self)),
            Many::List { .. } | Many::Map { .. } => deserializer.deserialize_any(Several(self)),
        }
    }
}

impl Values<'_, '_> {
    fn found<E>(&self, found: &'static str, expected: &'static str) -> Result<bool, E> {
        self.shape.wrong(Some(self.path), Problem::WrongType { expected, found });
        Ok(true)
    }

    fn count<E>(&self, count: u64, max: Option<u64>) -> Result<bool, E> {
        if let Some(max) = max.filter(|max| count > *max) {
            self.shape.wrong(Some(self.path), Problem::TooMany { count, max });
        }
        Ok(true)
    }
}

struct Several<'a, 'p>(Values<'a, 'p>);

impl Several<'_, '_> {
    fn expected(&self) -> &'static str {
        if matches!(self.0.field.many, Many::Map { .. }) { "a map" } else { "a list" }
    }
}

impl<'de> Visitor<'de> for Several<'_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<bool, S::Error> {
        let Values { shape, field, path, .. } = self.0;
        let Many::List { max } = field.many else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return self.0.found("a list", "a map");
        };
        let mut count = 0;
        while items.next_element_seed(Item(Values { shape, field, path, is: None }))?.is_some() {
            count += 1;
        }
        self.0.count(count, max)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<bool, M::Error> {
        let Values { shape, field, path, .. } = self.0;
        let Many::Map { max } = field.many else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return self.0.found("an object", "a list");
        };
        let mut count = 0;
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(Item(Values { shape, field, path, is: None }))?;
            count += 1;
        }
        self.0.count(count, max)
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<bool, E> {
        self.0.found("a boolean", self.expected())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
        self.0.found("a number", self.expected())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
        self.0.found("a number", self.expected())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
        self.0.found("a number", self.expected())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<bool, E> {
        self.0.found("a string", self.expected())
    }
}

/// One of several values.
struct Item<'a, 'p>(Values<'a, 'p>);

impl<'de> DeserializeSeed<'de> for Item<'_, '_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(One(self.0))
    }
}

struct One<'a, 'p>(Values<'a, 'p>);

impl One<'_, '_> {
    fn expected(&self) -> &'static str {
        match self.0.field.kind {
            Kind::Any => "anything",
            Kind::String | Kind::OneOf(_) => "a string",
            Kind::Integer => "a whole number",
            Kind::Number => "a number",
            Kind::Bool => "a boolean",
            Kind::Ip => "an IP address",
            Kind::Cidr => "a network such as 10.0.0.0/24",
            Kind::Mac => "a MAC address",
            Kind::Reference(_) => "the id of an object",
            Kind::Embedded(_) => "an object",
        }
    }

    fn is<E>(&self, fits: bool, found: &'static str) -> Result<bool, E> {
        if fits { Ok(true) } else { self.0.found(found, self.expected()) }
    }
}

impl<'de> Visitor<'de> for One<'_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<bool, E> {
        self.is(matches!(self.0.field.kind, Kind::Any | Kind::Bool), "a boolean")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
        self.is(matches!(self.0.field.kind, Kind::Any | Kind::Integer | Kind::Number), "a number")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
        self.visit_u64(0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
        self.is(matches!(self.0.field.kind, Kind::Any | Kind::Number), "a fraction")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        if self.0.is.is_some_and(|is| is != text) {
            self.0.shape.wrong(Some(self.0.path), Problem::OtherId { found: text.to_owned() });
        }
        match &self.0.field.kind {
            Kind::Any | Kind::String => Ok(true),
            Kind::Ip => self.is(text.parse::<IpAddr>().is_ok(), "another string"),
            Kind::Cidr => self.is(is_cidr(text), "another string"),
            Kind::Mac => self.is(is_mac(text), "another string"),
            Kind::OneOf(values) => {
                if !values.iter().any(|value| value == text) {
                    let problem = Problem::NotOneOf { found: text.to_owned(), values: values.join(", ") };
                    self.0.shape.wrong(Some(self.0.path), problem);
                }
                Ok(true)
            }
            Kind::Reference(table) => {
                let there =
                    self.0.shape.ids.is_none_or(|ids| ids.get(table).is_some_and(|ids| ids.contains(text)));
                if !there {
                    let problem = Problem::Dangling { table: table.clone(), id: text.to_owned() };
                    self.0.shape.wrong(Some(self.0.path), problem);
                }
                Ok(true)
            }
            Kind::Integer | Kind::Number | Kind::Bool | Kind::Embedded(_) => self.is(false, "a string"),
        }
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<bool, S::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        self.is(self.0.field.kind == Kind::Any, "a list")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<bool, M::Error> {
        let Values { shape, field, path, .. } = self.0;
        if let Kind::Embedded(name) = &field.kind {
            let fields = &shape.models.embedded[name];
            Object { shape, fields, path: Some(path), id: None }.visit_map(map)?;
            return Ok(true);
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.is(field.kind == Kind::Any, "an object")
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    prefix.parse::<u8>().is_ok_and(|prefix| prefix <= most)
}

fn is_mac(text: &str) -> bool {
    text.len() == 17
        && text.bytes().enumerate().all(|(at, byte)| {
            if at % 3 == 2 { byte == b':' || byte == b'-' } else { byte.is_ascii_hexdigit() }
        })
}
