//! Ctrl-C while a database is open: the lock is freed, and it is told where the database stands.
//!
//! The one invariant: it ends the process even while a migration computes, and whatever was begun is such that the
//! next command finishes or removes it.

use std::io::{self, Write};

use midflight_migrate::run::{Database, GivenUp};

use crate::cluster::Interrupts;

/// As a shell tells of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Watches until the process ends.
pub(super) fn watch(database: &Database) -> io::Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let handle = database.handle();
    tokio::spawn(async move {
        interrupts.next().await;
        let text = match handle.give_up().await {
            Ok(given_up) => words(&given_up),
            Err(error) => format!("interrupted, and where the database stands could not be told: {error}"),
        };
        // Nobody to hear it is no failure.
        let _ = writeln!(io::stderr(), "\n{text}");
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}

fn words(given_up: &GivenUp) -> String {
    match given_up {
        GivenUp::Untouched => "interrupted; nothing was changed".to_owned(),
        GivenUp::Staged { run } => {
            format!(
                "interrupted; the old data is live, and the next command removes what run {run} had staged"
            )
        }
        GivenUp::Committed { run } => {
            format!("interrupted; run {run} had begun to write, and the next command finishes that")
        }
        GivenUp::Live { run } => format!("interrupted; run {run} is live and can be rolled back"),
    }
}
