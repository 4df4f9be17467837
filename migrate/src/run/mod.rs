//! What the operator does with a database: look, plan, apply, go back, make final.
//!
//! The one invariant: `plan` and `apply` run the same code up to the switch.

mod settings;

pub use settings::{LayoutName, Settings};
