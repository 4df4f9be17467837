//! What each process of a folder writes down about itself, and the lock it holds.
//!
//! The one invariant: at most one process per role and folder; the lock lives
//! exactly as long as the process, the record may outlive it.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{Alive, Identity};
use crate::folder::write_atomically;

/// What a process of the folder is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// `midflight up` itself, while it starts or watches the others.
    Up,
    Control,
    Node(u8),
}

impl Role {
    /// Every role that has a record in the folder, whether its process lives or not.
    pub(crate) fn recorded(run: &Path) -> anyhow::Result<Vec<Role>> {
        let entries = match fs::read_dir(run) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("read {}", run.display())),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut roles: Vec<Role> =
            names.filter_map(|name| Role::parse(name.strip_suffix(".json")?)).collect();
        roles.sort();
        Ok(roles)
    }

    /// Every role that is being played.
    pub(crate) fn alive(run: &Path) -> anyhow::Result<Vec<Role>> {
        let mut roles = Vec::new();
        for role in Role::recorded(run)? {
            let looking = || format!("look for {role}");
            if Record::alive(run, &role).with_context(looking)?.is_some() {
                roles.push(role);
            }
        }
        Ok(roles)
    }

    /// The role of that name.
    pub(crate) fn parse(name: &str) -> Option<Role> {
        match name {
            "up" => Some(Role::Up),
            "control" => Some(Role::Control),
            _ => name.strip_prefix("node-")?.parse().ok().map(Role::Node),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Up => f.write_str("up"),
            Role::Control => f.write_str("control"),
            Role::Node(number) => write!(f, "node-{number}"),
        }
    }
}

/// The content of `run/ROLE.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    #[serde(flatten)]
    pub(crate) identity: Identity,
    pub(crate) version: String,
    pub(crate) since: jiff::Timestamp,
    /// Whether it is of use already, or still starting.
    #[serde(default)]
    pub(crate) ready: bool,
}

impl Record {
    /// What the role's last process wrote, whether it lives or not. A record
    /// that cannot be read is as good as none: the lock decides who may run.
    pub(crate) fn read(run: &Path, role: &Role) -> Option<Record> {
        let text = fs::read(path(run, role, "json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The role's process, if it runs.
    pub(crate) fn alive(run: &Path, role: &Role) -> io::Result<Option<(Record, Alive)>> {
        let Some(record) = Self::read(run, role) else { return Ok(None) };
        Ok(record.identity.open()?.map(|alive| (record, alive)))
    }

    fn write(&self, run: &Path, role: &Role) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self).context("encode the process record")?;
        write_atomically(&path(run, role, "json"), &text, 0o600)
    }
}

/// Held for as long as a role is played, or must not be played by anyone.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// `None` if another process holds it.
    pub(crate) fn take(run: &Path, role: &Role) -> anyhow::Result<Option<Lock>> {
        let path = path(run, role, "lock");
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("lock {}", path.display())),
        }
    }
}

/// Held by a process for as long as it plays a role.
#[derive(Debug)]
pub(crate) struct Recorded {
    run: PathBuf,
    role: Role,
    record: Record,
    _lock: Lock,
}

impl Recorded {
    /// Takes the role's lock and writes the record; `None` if another process holds the role.
    pub(crate) fn take(run: &Path, role: Role) -> anyhow::Result<Option<Recorded>> {
        let Some(lock) = Lock::take(run, &role)? else { return Ok(None) };
        let record = Record {
            identity: Identity::own().context("read own start time from /proc")?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since: jiff::Timestamp::now(),
            ready: false,
        };
        record.write(run, &role)?;
        Ok(Some(Recorded { run: run.to_owned(), role, record, _lock: lock }))
    }

    /// Writes down that others can rely on the process from now on.
    pub(crate) fn ready(&mut self) -> anyhow::Result<()> {
        self.record.ready = true;
        self.record.write(&self.run, &self.role)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // Still under the lock, so this is our own record. One that stays is recognised by its start time.
        let _ = fs::remove_file(path(&self.run, &self.role, "json"));
    }
}

fn path(run: &Path, role: &Role, extension: &str) -> PathBuf {
    run.join(format!("{role}.{extension}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_played_once_and_can_be_played_again() {
        let run = tempfile::tempdir().unwrap();
        let first = Recorded::take(run.path(), Role::Control).unwrap().expect("free");
        assert!(Recorded::take(run.path(), Role::Control).unwrap().is_none());
        assert!(Recorded::take(run.path(), Role::Node(1)).unwrap().is_some());
        let (record, alive) = Record::alive(run.path(), &Role::Control).unwrap().expect("recorded");
        assert_eq!(record.identity.pid, alive.pid);
        drop(first);
        assert!(Record::read(run.path(), &Role::Control).is_none());
        assert!(Recorded::take(run.path(), Role::Control).unwrap().is_some());
    }

    #[test]
    fn a_process_is_ready_when_it_says_so() {
        let run = tempfile::tempdir().unwrap();
        let ready = || Record::read(run.path(), &Role::Control).map(|record| record.ready);
        let mut place = Recorded::take(run.path(), Role::Control).unwrap().expect("free");
        assert_eq!(ready(), Some(false));
        place.ready().unwrap();
        assert_eq!(ready(), Some(true));
    }

    #[test]
    fn every_recorded_role_is_found() {
        let run = tempfile::tempdir().unwrap();
        let _held: Vec<_> = [Role::Node(12), Role::Up, Role::Control, Role::Node(2)]
            .map(|role| Recorded::take(run.path(), role).unwrap())
            .into();
        fs::write(run.path().join("node-x.json"), b"").unwrap();
        let roles = Role::recorded(run.path()).unwrap();
        assert_eq!(roles, [Role::Up, Role::Control, Role::Node(2), Role::Node(12)]);
    }

    #[test]
    fn a_damaged_record_counts_as_none() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join("control.json"), b"{\"pid\": 1").unwrap();
        assert!(Record::alive(run.path(), &Role::Control).unwrap().is_none());
    }
}
