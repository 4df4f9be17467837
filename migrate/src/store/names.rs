//! Names of rows and spaces inside keys of the tool's own making, on every server alike.
//!
//! The one invariant: what was written is read back the same, whatever bytes ids and topics hold.

use std::borrow::Cow;

use super::Space;
use crate::record::RowKey;

/// A part of a name without the signs that names are put together with.
pub(super) fn escape(part: &str) -> Cow<'_, str> {
    if is_plain(part) {
        return Cow::Borrowed(part);
    }
    Cow::Owned(part.replace('%', "%25").replace('/', "%2F"))
}

/// Whether nothing in it has to be escaped. Looks at all bytes, many at a time.
fn is_plain(part: &str) -> bool {
    !part.bytes().fold(false, |found, byte| found | (byte == b'/') | (byte == b'%'))
}

fn unescape(part: &str) -> Cow<'_, str> {
    if !part.contains('%') {
        return Cow::Borrowed(part);
    }
    Cow::Owned(part.replace("%2F", "/").replace("%25", "%"))
}

/// `ID`, or `TOPIC/ID` where there is a topic.
pub(super) fn append_row(name: &mut String, key: &RowKey) {
    if !key.topic.is_empty() {
        name.push_str(&escape(&key.topic));
        name.push('/');
    }
    name.push_str(&escape(&key.id));
}

/// As [`append_row`]; nearly always the id itself.
pub(super) fn row(key: &RowKey) -> Cow<'_, str> {
    if key.topic.is_empty() {
        return escape(&key.id);
    }
    let mut name = String::with_capacity(key.topic.len() + 1 + key.id.len());
    append_row(&mut name, key);
    Cow::Owned(name)
}

/// Topic and id of a row.
pub(super) fn split_row(name: &str) -> (Cow<'_, str>, Cow<'_, str>) {
    match name.split_once('/') {
        Some((topic, id)) => (unescape(topic), unescape(id)),
        None => (Cow::Borrowed(""), unescape(name)),
    }
}

/// A table as [`escape`] wrote it.
pub(super) fn table(name: &str) -> Cow<'_, str> {
    unescape(name)
}

/// What the spaces of the tool's own making are called; the live rows of others have no name.
pub(super) fn space(space: Space) -> Option<String> {
    match space {
        Space::Plain => None,
        Space::Generation(generation) => Some(format!("g/{generation}")),
        Space::Journal(run) => Some(format!("journal/{run}")),
        Space::Undo(run) => Some(format!("undo/{run}")),
        Space::Seal(run) => Some(format!("seal/{run}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_read_back_as_they_were_named(topic in "[a/%2F{}5]{0,6}", id in "[a/%2F{}5]{0,6}") {
            let mut name = String::new();
            let key = RowKey::new(&topic, &id);
            append_row(&mut name, &key);
            prop_assert!(*row(&key) == *name);
            let (read_topic, read_id) = split_row(&name);
            prop_assert_eq!((read_topic.as_ref(), read_id.as_ref()), (topic.as_str(), id.as_str()));
        }
    }
}
