//! A cluster in a folder of its own that is gone afterwards, for the tour and for measurements.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::Context;
use futures::future::BoxFuture;
use kube::Client;
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{Starter, stop};
use crate::{
    folder::{Folder, Marker},
    process::{Alive, Record, Role},
    session::Session,
    target,
};

/// Cleared with `clear`; dropped without it, its files go and its processes stay.
pub(crate) struct Temporary {
    pub(crate) starter: Starter,
    temporary: TempDir,
    /// Work on threads of its own, which cannot be cut short.
    blocking: Mutex<Vec<JoinHandle<()>>>,
}

impl Temporary {
    pub(crate) fn build(session: &Session, nodes: u8) -> anyhow::Result<Temporary> {
        let temporary = make_temporary()?;
        let folder = Folder::at(temporary.path().join("cluster"));
        let marker = folder.create_or_open()?;
        folder.write_marker(&Marker { nodes, ..marker })?;
        Ok(Temporary { starter: Starter::new(session, folder, None)?, temporary, blocking: Mutex::default() })
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.starter.folder
    }

    /// Room for what is not part of the cluster.
    pub(crate) fn room(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        target::client_of(self.folder()).await
    }

    /// The control process.
    pub(crate) fn control(&self) -> anyhow::Result<Alive> {
        let found = Record::alive(&self.folder().run(), &Role::Control)?;
        Ok(found.context("the control plane does not run")?.1)
    }

    /// Begins something that blocks, and waits for it when it is polled. The cluster is not cleared before it has ended.
    pub(crate) fn block<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> BoxFuture<'static, anyhow::Result<T>> {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let handle = spawn_blocking(move || {
            // Nobody waits any more if the tour was interrupted.
            let _ = done.send(work());
        });
        self.blocking.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Box::pin(async move { is_done.await.context("the work ended without a result") })
    }

    /// Ends every process and removes every file.
    pub(crate) async fn clear(self) -> anyhow::Result<()> {
        let blocking = self.blocking.into_inner().unwrap_or_else(PoisonError::into_inner);
        for handle in blocking {
            handle.await.context("wait for work that blocks")?;
        }
        stop(&self.starter.folder.run(), &[]).await?;
        self.temporary.close().context("remove the temporary folder")
    }
}

/// In the usual place, unless its path is too long for the sockets below it.
fn make_temporary() -> anyhow::Result<TempDir> {
    let usual = std::env::temp_dir();
    let place = if usual.as_os_str().len() > 40 { Path::new("/tmp") } else { &usual };
    let made = tempfile::Builder::new().prefix("midflight-").tempdir_in(place);
    made.with_context(|| format!("make a folder in {}", place.display()))
}
