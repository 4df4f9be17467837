//! Decides which volume moves to the default engine image next, and which way.
//!
//! ```text
//! facts ──▶ judge ──▶ fleet ──▶ one change at a time      (the controller)
//!                       └─────▶ forecast: waves           (`midflight plan engine-upgrade`)
//! ```
//!
//! The invariant: never more volumes of a node, or of the cluster, are on their way than the
//! limits allow, counted from the moment a change is issued.

mod admit;
mod attempt;
mod facts;
mod fleet;
mod forecast;
mod judge;
mod reason;

#[cfg(test)]
mod tests;

pub use admit::{Refusal, Short, admit, may_be_named};
pub use attempt::{Change, Refused, Why, back_off};
pub use facts::{Policy, Replicas, TakeOver, Version, Volume, World};
pub use fleet::Fleet;
pub use forecast::{Forecast, LeftOut, Move, Pace, UnderWay, Wave, forecast};
pub use judge::{Standing, judge};
pub use reason::{Hold, Incompatible, Reason, Span};
