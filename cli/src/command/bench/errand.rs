//! Measuring that blocks, on a thread of its own, in a folder that is gone afterwards.
//!
//! The one invariant: an interrupted measurement still ends its processes and removes its files.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context;
use clap::Args;
use midflight_block::tour::Layout;
use tempfile::TempDir;

use crate::{cluster::Interrupts, failure::Failure, session::Session};

/// Where volumes are made, and of which binary.
#[derive(Debug, Clone, Args)]
pub(super) struct Place {
    /// Folder for volumes and files [default: the usual one for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Binary whose engine is measured [default: this one]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// What measuring work is given.
pub(super) struct Errand {
    folder: TempDir,
    binary: PathBuf,
    stopped: Arc<AtomicBool>,
}

impl Errand {
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Called between measurements: fails once someone has had enough.
    pub(super) fn go_on(&self) -> anyhow::Result<()> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }

    /// Binary whose engine is measured.
    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    /// A data plane of its own.
    pub(super) fn layout(&self, name: &str, size: u64, replicas: usize) -> Layout {
        Layout {
            binary: self.binary.clone(),
            folder: self.folder().join(name),
            volume: name.to_owned(),
            size,
            replicas,
        }
    }
}

pub(super) fn interrupted() -> anyhow::Error {
    Failure::error("interrupted", "start it again any time")
}

impl Place {
    /// Runs `work` until it ends or is interrupted.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        session: &Session,
        work: impl FnOnce(&Errand) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let parent = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new().prefix("mf-").tempdir_in(&parent);
        let folder = folder.with_context(|| format!("make a folder in {}", parent.display()))?;
        let binary = match &self.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe().context("find the own binary")?,
        };
        let stopped = Arc::new(AtomicBool::new(false));
        let errand = Errand { folder, binary, stopped: Arc::clone(&stopped) };
        let (done, mut is_done) = tokio::sync::oneshot::channel();
        let worker = thread::spawn(move || {
            let result = work(&errand);
            drop(errand);
            // The receiver outlives this thread: it is joined below.
            let _ = done.send(result);
        });
        let result = tokio::select! {
            result = &mut is_done => result,
            () = interrupts.next() => {
                stopped.store(true, Ordering::Relaxed);
                session.say("stops after the present measurement");
                is_done.await
            }
        };
        let _ = worker.join();
        let result = result.context("the measurement ended without a result")?;
        if stopped.load(Ordering::Relaxed) { Err(interrupted()) } else { result }
    }
}
