//! Selectors: which objects a list, a watch or a webhook speaks of.
//!
//! Syntax and error texts are those of the real server, because users see them.

mod fields;
mod labels;

pub use fields::FieldSelector;
pub use labels::LabelSelector;
