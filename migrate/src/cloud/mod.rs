//! Upgrades a whole cloud at once: stops its services, updates code and configuration, migrates
//! the databases, and starts the services again.
//!
//! What is done on the nodes are the operator's own commands, named in one file. Every step is in a
//! journal before it begins, so a run that was killed goes on, or goes back, when it is started again.
//!
//! The one invariant: a cloud whose upgrade failed is undone in the reverse of the order in which it was
//! done, and no service is started on something that could not be undone.

mod decide;
mod drive;
mod file;
mod hook;
mod journal;
mod mend;
mod script;
mod stage;

pub use decide::{Next, Stuck, next};
pub use drive::{Event, OurDatabase, Outcome, RunError, Runner, shared};
pub use file::{Upgrade, UpgradeFileError};
pub use hook::HookError;
pub use journal::{Direction, Entry, Journal, JournalError, Progress, TaskState};
pub use mend::{Mended, OtherUpgrade, changes, same_database};
pub use script::Script;
pub use stage::{Commands, Kind, Stage, Task, Way, Work, stages};

#[cfg(test)]
mod tests;
