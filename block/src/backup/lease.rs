//! Keeps those who make backups and those who sweep blocks apart.
//!
//! ```text
//! backup: running/R  ─▶ is anyone sweeping? ─▶ blocks, manifest ─▶ running/R removed
//! sweep:  sweeping/S ─▶ is anyone running?  ─▶ remove blocks   ─▶ sweeping/S removed
//! ```
//!
//! Each says what it does before it looks at the other, so at least one of two that meet
//! sees the other. A run that has not been heard of for long is fenced out by name: a
//! manifest that it may still write does not count.
//!
//! Invariant: a block is removed only while no run that counts may rely on it.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;

use super::{
    BackupError,
    vault::{Listed, Vault, VaultError},
};
use crate::role;

/// A run that has not said for so long that it lives is taken for dead.
const DEAD_AFTER: Duration = Duration::from_secs(600);
const RENEW_EVERY: Duration = Duration::from_secs(20);
/// A sweep stops by itself long before it could be taken for dead.
pub(super) const SWEEP_AT_MOST: Duration = Duration::from_secs(300);
const WAIT_FOR_SWEEP: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

const RUNNING: &str = "running";
const SWEEPING: &str = "sweeping";
const FENCED: &str = "fenced";

fn age(object: &Listed) -> Duration {
    SystemTime::now().duration_since(object.modified).unwrap_or_default()
}

fn name_of(object: &Listed) -> &str {
    object.path.rsplit('/').next().unwrap_or_default()
}

/// A backup that is being made.
pub(super) struct Run<'v, V: Vault> {
    vault: &'v V,
    pub(super) id: String,
    renewed: Instant,
}

impl<'v, V: Vault> Run<'v, V> {
    /// Waits for a sweep to end, for a while.
    pub(super) fn begin(vault: &'v V) -> Result<Run<'v, V>, BackupError> {
        let id = format!("{:016x}{:016x}", role::process_name(), role::process_name());
        vault.put(&format!("{RUNNING}/{id}"), Bytes::new())?;
        let run = Run { vault, id, renewed: Instant::now() };
        let began = Instant::now();
        loop {
            let sweeps = vault.list(SWEEPING)?;
            let Some(alive) = sweeps.iter().find(|sweep| age(sweep) < DEAD_AFTER) else { break };
            if began.elapsed() > WAIT_FOR_SWEEP {
                run.end()?;
                return Err(BackupError::Busy { what: "a sweep".into(), seconds: age(alive).as_secs() });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(run)
    }

    /// Says now and then that it lives.
    pub(super) fn renew(&mut self) -> Result<(), VaultError> {
        if self.renewed.elapsed() >= RENEW_EVERY {
            self.vault.put(&format!("{RUNNING}/{}", self.id), Bytes::new())?;
            self.renewed = Instant::now();
        }
        Ok(())
    }

    /// Whether someone took it for dead.
    pub(super) fn is_fenced(&self) -> Result<bool, VaultError> {
        self.vault.exists(&format!("{FENCED}/{}", self.id))
    }

    pub(super) fn end(self) -> Result<(), VaultError> {
        self.vault.remove(&format!("{RUNNING}/{}", self.id))
    }
}

/// Runs whose manifests do not count.
pub(super) fn fenced(vault: &impl Vault) -> Result<BTreeSet<String>, VaultError> {
    Ok(vault.list(FENCED)?.iter().map(|object| name_of(object).to_owned()).collect())
}

/// Runs `act` while no backup is being made; `act` is told until when it may remove.
pub(super) fn sweep<V: Vault, R>(
    vault: &V,
    act: impl FnOnce(Instant) -> Result<R, BackupError>,
) -> Result<R, BackupError> {
    let until = Instant::now() + SWEEP_AT_MOST;
    let mine = format!("{SWEEPING}/{:016x}", role::process_name());
    vault.put(&mine, Bytes::new())?;
    let swept = begin_sweep(vault).and_then(|()| act(until));
    vault.remove(&mine)?;
    if swept.is_ok() {
        // What dead sweeps have left is in nobody's way any more.
        for dead in vault.list(SWEEPING)?.iter().filter(|sweep| age(sweep) >= DEAD_AFTER) {
            vault.remove(&dead.path)?;
        }
    }
    swept
}

fn begin_sweep(vault: &impl Vault) -> Result<(), BackupError> {
    for run in vault.list(RUNNING)? {
        if age(&run) < DEAD_AFTER {
            return Err(BackupError::Busy { what: "a backup".into(), seconds: age(&run).as_secs() });
        }
        vault.put(&format!("{FENCED}/{}", name_of(&run)), Bytes::new())?;
        vault.remove(&run.path)?;
    }
    Ok(())
}
