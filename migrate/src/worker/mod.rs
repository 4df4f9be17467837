//! Programs of migrations run in processes of their own, so that one that loops
//! for ever or eats memory can be stopped, and none is handed a credential.
//!
//! The tool starts itself again as the worker: [`main`] is what it then calls.
//! A worker runs jq filters that it is fed rows for, or watches another that
//! limits itself and turns into the operator's command.
//!
//! The one invariant: a worker is given no environment and no open file of ours
//! but its pipes, cannot look into the tool's memory and environment, and ends
//! when the process that started it does. A command may do all else that its user
//! may: files that user can read, it can, and the tool's arguments as well.

mod answers;
mod child;
mod exec;
mod filter;
mod jq;
mod process;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;

pub use child::main;
pub use exec::{Exec, ExecError};
pub use filter::Filter;
pub use jq::{Jq, JqError};

/// How to start a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// A program that passes the arguments after `arguments` to [`main`].
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// jq workers at a time.
    pub parallel: usize,
    /// A folder that commands find in `MIDFLIGHT_SHARED`, to read what other databases' migrations left there.
    pub shared: Option<PathBuf>,
}

/// Names the folder by which migrations of several databases share what they found out.
pub(crate) const SHARED: &str = "MIDFLIGHT_SHARED";

impl Worker {
    /// A worker on every core.
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Worker {
        Worker {
            program: program.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            parallel: std::thread::available_parallelism().map_or(1, usize::from),
            shared: None,
        }
    }
}
