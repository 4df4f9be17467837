//! What the operator does with a database: look, plan, apply, go back, make final.
//!
//! The one invariant: `plan` and `apply` run the same code up to the switch.

mod change;
mod database;
mod error;
mod event;
mod give_up;
mod in_cloud;
mod look;
mod plan;
mod prepare;
mod services;
mod settings;

pub use change::Changed;
pub use database::{Database, Tool};
pub use error::{Refusal, RunError};
pub use event::{Event, Tell};
pub use give_up::{GivenUp, Handle, Stopper};
pub use in_cloud::InCloud;
pub use look::{Checked, LastRun, Status, Waiting};
pub use plan::{Needs, Plan, Planned};
pub use settings::{Accept, Settings, SettingsError, USUAL_PATHS};

#[cfg(test)]
mod tests;
