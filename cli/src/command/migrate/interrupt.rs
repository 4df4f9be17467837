//! Ctrl-C while a database is open: the lock is freed, and it is told where the database stands.
//!
//! The one invariant: it ends the process even while a migration computes, and whatever was begun is such that the
//! next command finishes or removes it.

use std::{
    io::{self, Write},
    time::Duration,
};

use midflight_migrate::run::{Database, GivenUp, RunError, Stopper};
use tokio::sync::oneshot;

use crate::cluster::Interrupts;

/// As a shell tells of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;
/// How long the commands of an upgrade are given to end.
const GRACE: Duration = Duration::from_secs(1);

/// Watches until the process ends.
pub(super) fn watch(database: &Database) -> io::Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let handle = database.handle();
    tokio::spawn(async move {
        interrupts.next().await;
        end(&told(handle.give_up().await));
    });
    Ok(())
}

/// Watches until the process ends. Whoever waits on what this gives ends the upgrade's commands and calls
/// [`end_upgrade`]; a migration that computes hears nothing, so after a while this does it.
pub(super) fn watch_upgrade(stopper: &Stopper) -> io::Result<oneshot::Receiver<()>> {
    let mut interrupts = Interrupts::listen()?;
    let stopper = stopper.clone();
    let (tell, heard) = oneshot::channel();
    tokio::spawn(async move {
        interrupts.next().await;
        // Nobody hears it where the upgrade has just ended.
        let _ = tell.send(());
        tokio::time::sleep(GRACE).await;
        end_upgrade(stopper.give_up().await);
    });
    Ok(heard)
}

/// Tells where our database stands and ends the process.
pub(super) fn end_upgrade(given_up: Result<GivenUp, RunError>) -> ! {
    let ours = match given_up {
        // Other steps may have been done.
        Ok(GivenUp::Untouched) => "interrupted".to_owned(),
        given_up => told(given_up),
    };
    end(&format!("{ours}; run it again to go on, or with --back to go back"))
}

fn end(text: &str) -> ! {
    // Nobody to hear it is no failure.
    let _ = writeln!(io::stderr(), "\n{text}");
    std::process::exit(INTERRUPTED)
}

fn told(given_up: Result<GivenUp, RunError>) -> String {
    match given_up {
        Ok(given_up) => words(&given_up),
        Err(error) => format!("interrupted, and where the database stands could not be told: {error}"),
    }
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
        GivenUp::Over { run, phase } => format!("interrupted; run {run} is {phase}"),
    }
}
