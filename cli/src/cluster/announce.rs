//! The one line a started process says on its stdout: ready, or why not.

use std::io::{self, Write};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::ChildStdout,
};

use crate::failure::Report;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Announcement {
    Ready,
    Failed(Report),
}

impl Announcement {
    /// `None` if the process ended without a word.
    pub(crate) async fn read(stdout: ChildStdout) -> anyhow::Result<Option<Announcement>> {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await.context("listen to the new process")?;
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&line).map(Some).context("understand the new process")
    }
}

/// Tells whoever started us; nobody listening is fine.
pub(crate) fn announce(announcement: &Announcement) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(announcement).context("encode the announcement")?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_line() {
        let report =
            Report { chain: vec!["two\nlines".into()], try_this: None, exit: crate::failure::Exit::Error };
        let line = serde_json::to_vec(&Announcement::Failed(report)).unwrap();
        assert!(!line.contains(&b'\n'));
    }
}
