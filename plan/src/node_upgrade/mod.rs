//! Decides how the data engine of every node is replaced while its volumes serve (seed 004).
//!
//! ```text
//! facts ──▶ preflight ──▶ run: which node is next          (DataEngineUpgradeManager)
//!   └─────────┴─ place ─▶ node: the next step of one node  (NodeDataEngineUpgrade)
//!                           ├▶ forth: to the new image
//!                           └▶ back: how it was before
//! ```
//!
//! Both planners remember nothing: what they decide is written into the status of their object before it is
//! done, and whoever comes next reads it there. The invariant: a copy of a volume is told to leave, and an instance
//! manager is deleted, only while another copy of every volume concerned is in service on a node that is not upgraded.

mod admit;
mod attempts;
mod back;
mod facts;
mod forecast;
mod forth;
mod halt;
mod node;
mod obstacle;
mod place;
mod preflight;
mod rebuilt;
mod run;
mod versions;
mod wait;
mod words;

#[cfg(test)]
mod tests;

pub use admit::{Refusal, Stand, attach, create, is_rival, resume, target};
pub use attempts::Child;
pub use facts::{Copy, Image, Manager, MoveFailure, Moved, Node, Nodes, Policy, Replica, Volume};
pub use forecast::{Forecast, Pace, Stage, Target, forecast};
pub use halt::{ABORTED, USUAL_NAME, in_service, still_default};
pub use node::{Action, Decision, Observed, Taken, decide};
pub use obstacle::Obstacle;
pub use preflight::{nodes_of_run, preflight};
pub use rebuilt::Copied;
pub use run::{Decision as RunDecision, Observed as Run, Order, asks_for_volumes, decide as decide_run};
pub use versions::Interface;
pub use wait::Wait;
pub use words::message;
