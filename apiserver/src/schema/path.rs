//! Where in an object a walk stands, kept on the stack and written out only
//! when there is something to say about it.

use std::fmt::Write;

/// A step from the parent, and the way to it.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    /// A declared field.
    Field(&'a Path<'a>, &'a str),
    /// A key of a map (`additionalProperties`).
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    pub(crate) fn key(&'a self, name: &'a str) -> Path<'a> {
        Path::Key(self, name)
    }

    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Path::Root)
    }

    /// `spec.labels.app`: how schema validation names fields.
    pub(crate) fn dotted(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, false);
        out
    }

    /// `spec.labels[app]`, `<nil>` for the root: how all other checks name fields.
    pub(crate) fn bracketed(&self) -> String {
        if self.is_root() {
            return "<nil>".into();
        }
        let mut out = String::new();
        self.write(&mut out, true);
        out
    }

    fn write(&self, out: &mut String, bracket_keys: bool) {
        match self {
            Path::Root => {}
            Path::Key(parent, name) if bracket_keys => {
                parent.write(out, bracket_keys);
                let _ = write!(out, "[{name}]");
            }
            Path::Field(parent, name) | Path::Key(parent, name) => {
                parent.write(out, bracket_keys);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Index(parent, index) => {
                parent.write(out, bracket_keys);
                let _ = write!(out, "[{index}]");
            }
        }
    }
}
