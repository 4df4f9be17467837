//! Writes watch events in the form the client asked for, one line each.

use bytes::{BufMut, BytesMut};

use super::call::Call;
use super::negotiate::Form;
use super::respond::to_bytes;
use crate::present::{bookmark, partial_metadata};
use crate::served::Here;
use crate::store::Version;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Added,
    Modified,
    Deleted,
}

impl Shown {
    fn head(self) -> &'static [u8] {
        match self {
            Shown::Added => br#"{"type":"ADDED","object":"#,
            Shown::Modified => br#"{"type":"MODIFIED","object":"#,
            Shown::Deleted => br#"{"type":"DELETED","object":"#,
        }
    }
}

/// Remembers what the client has been told of the table's columns.
#[derive(Debug)]
pub(crate) struct Writer {
    form: Form,
    columns_sent: bool,
}

impl Writer {
    pub(crate) fn new(call: &Call) -> Writer {
        Writer { form: call.accept.form, columns_sent: false }
    }

    /// Appends the event of an object.
    pub(crate) fn write(&mut self, call: &Call, shown: Shown, object: &Here, to: &mut BytesMut) {
        to.put_slice(shown.head());
        match self.form {
            Form::Whole => to.put_slice(&call.served.bytes(object)),
            Form::Metadata => to.put_slice(&to_bytes(&partial_metadata(&call.served.object(object)))),
            Form::Table => {
                let object = call.served.object(object);
                to.put_slice(&to_bytes(&call.table().event(&object, !self.columns_sent)));
                self.columns_sent = true;
            }
        }
        to.put_slice(b"}\n");
    }

    pub(crate) fn bookmark(
        &mut self,
        call: &Call,
        version: Version,
        end_of_initial: bool,
        to: &mut BytesMut,
    ) {
        let (kind, name) = (call.served.kind(), &call.served.version().name);
        let object = bookmark(kind, name, &version.to_string(), end_of_initial);
        let object = match self.form {
            Form::Whole => object,
            Form::Metadata => partial_metadata(&object),
            Form::Table => {
                let mut table = call.table().event(&object, false);
                table["rows"] = serde_json::json!([]);
                table
            }
        };
        to.put_slice(br#"{"type":"BOOKMARK","object":"#);
        to.put_slice(&to_bytes(&object));
        to.put_slice(b"}\n");
    }
}
