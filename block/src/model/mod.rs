//! The switch-over and membership protocol, looked at in every order in which
//! things can happen, for small volumes and few misfortunes.
//!
//! `state` is the whole data plane: the production cores, a network, disks, the
//! record, a client; `replicas` is its part that stores. `step` is what can happen next; each step is one input to one
//! core. `properties` is what must hold, `wrong` breaks one rule at a time, `kept`
//! and `disk` make states cheap to copy and to tell apart, `scopes` are the runs.
//!
//! Invariant: a state holds all that its future depends on; two states with one
//! digest print alike in every field of every core.

mod disk;
mod kept;
mod properties;
mod replicas;
mod scopes;
mod state;
mod step;
mod wrong;
