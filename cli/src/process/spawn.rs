//! Starts processes that outlive the terminal and their parent.
//!
//! The one invariant: a started process is either known to the folder by its
//! record, or dies with the parent that would have known it.

use std::{ffi::OsString, fs::File, io, os::unix::fs::OpenOptionsExt, path::PathBuf, process::Stdio};

use tokio::process::{Child, Command};

use super::system;

/// A program to start in a session of its own.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Where its stderr is appended.
    pub(crate) log: PathBuf,
}

impl Launch {
    /// Starts it with stdout as a pipe to us.
    pub(crate) fn spawn(&self) -> io::Result<Child> {
        let log = File::options().create(true).append(true).mode(0o600).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        system::in_own_session(&mut command);
        command.spawn()
    }
}
