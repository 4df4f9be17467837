//! Backups on order: what takes long runs on a thread of its own and tells how far it is.
//!
//! Invariant: the order's epoch was admitted before anything is read or written, the last
//! event of a stream is its result or its refusal, and nothing but a backup makes a folder.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use futures::{Stream, stream};
use tokio::sync::mpsc::{self, Receiver};
use tonic::{Code, Response, Status};

use super::{
    proto::{self, backup_event::Event},
    refused::Refused,
    registry::{Registry, Target},
    service::{Service, name, some_engine},
    works::Turn,
};
use crate::{
    backup::{
        BackupError,
        create::{self, Created},
        keep::{self, Damage, Item, Swept, Verified},
        progress::Report,
        restore::{self, Restored},
        vault::{self, FolderVault},
    },
    engine::control::Command,
    epoch::Epoch,
    record::RecordStore,
    role::in_words,
};

/// Events that wait for a slow reader; of progress, the rest is left out.
const MOST_WAITING: usize = 16;

pub(super) type Events = Pin<Box<dyn Stream<Item = Result<proto::BackupEvent, Status>> + Send>>;

impl From<BackupError> for Refused {
    fn from(error: BackupError) -> Refused {
        let why = in_words(&error);
        match error {
            BackupError::NoBackup(_) | BackupError::NoSnapshot(_) => Refused::NotFound { what: why },
            BackupError::Name(_) | BackupError::Exists(_) | BackupError::TooSmall { .. } => {
                Refused::Invalid(why)
            }
            BackupError::Busy { .. }
            | BackupError::Fenced
            | BackupError::Attached
            | BackupError::SnapshotGone
            | BackupError::Refused(_) => Refused::Busy(why),
            BackupError::Engine(error) => error.into(),
            BackupError::Vault(_)
            | BackupError::Block { .. }
            | BackupError::Manifest { .. }
            | BackupError::Io(_)
            | BackupError::Damaged { .. }
            | BackupError::Output(_) => Refused::Failed { doing: "work on backups".into(), why },
        }
    }
}

/// The folder that a target means, if backups may be there: what lies beside the folder that nodes share is nobody's, and gone with
/// whoever wrote it.
fn place(target: &str, shared: Option<&Path>) -> Result<PathBuf, Refused> {
    let folder = PathBuf::from(target);
    let is_plain = folder.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !folder.is_absolute() || !is_plain {
        return Err(Refused::Invalid(format!("{target:?} is no folder from the root on")));
    }
    match shared.filter(|shared| !folder.starts_with(shared)) {
        None => Ok(folder),
        Some(shared) => {
            let shared = shared.display();
            Err(Refused::Invalid(format!(
                "nodes see only {shared}, and not {target}; name {shared} or a folder below it, and make DIR{shared} a link to a folder elsewhere"
            )))
        }
    }
}

/// A folder in which backups were seen.
fn used(folder: &Path) -> Result<FolderVault, Refused> {
    match vault::was_used(folder) {
        true => open(folder),
        false => Err(Refused::Failed {
            doing: format!("open the backups in {}", folder.display()),
            why: format!(
                "it is not there, or nothing was ever kept in it; bring it back, or, if all of it is gone for good, make {}/volumes",
                folder.display()
            ),
        }),
    }
}

/// A folder for its first backup. What nodes share is never made: where it is missing, it is elsewhere.
fn first(folder: &Path, shared: Option<&Path>) -> Result<FolderVault, Refused> {
    match shared.filter(|shared| !shared.is_dir()) {
        None => Ok(FolderVault::make(folder).map_err(BackupError::from)?),
        Some(_) => open(folder),
    }
}

/// One that cannot be looked at is not gone.
fn is_gone(folder: &Path) -> bool {
    matches!(fs::metadata(folder), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn open(folder: &Path) -> Result<FolderVault, Refused> {
    Ok(FolderVault::open(folder).map_err(BackupError::from)?)
}

/// A text that may be left empty.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

impl Registry {
    fn create_backup(
        &self,
        request: &proto::CreateBackupRequest,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Created, Refused> {
        let target = some_engine(request.engine.as_ref())?;
        let name = given(&request.backup).unwrap_or(&request.snapshot).to_owned();
        // Whoever gives the order again hears of the end of the first, and not only of its own.
        let _turn = self.works().begin(format!("backup {}/{name} in {}", target.volume, request.target));
        let order = create::Order {
            engine: self.address_of(&target)?,
            volume: target.volume.to_string(),
            snapshot: request.snapshot.clone(),
            name,
            size: Some(request.size).filter(|size| *size > 0),
        };
        let folder = self.folder(&request.target)?;
        let vault = match request.existing {
            true => used(&folder)?,
            false => first(&folder, self.world().backups.as_deref())?,
        };
        Ok(create::create(&vault, &order, tell)?)
    }

    fn folder(&self, target: &str) -> Result<PathBuf, Refused> {
        place(target, self.world().backups.as_deref())
    }

    fn restore_backup(
        &self,
        request: &proto::RestoreBackupRequest,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Restored, Refused> {
        let target = some_engine(request.engine.as_ref())?;
        let engine = self.address_of(&target)?;
        let _turn = self.restoring(&target)?;
        let order = restore::Order {
            engine,
            attachment: self.attachment(&target)?,
            volume: given(&request.volume).unwrap_or(target.volume.as_str()).to_owned(),
            into: target.volume.to_string(),
            name: request.backup.clone(),
        };
        Ok(restore::restore(&open(&self.folder(&request.target)?)?, &order, tell)?)
    }

    /// A volume that is being restored is not restored again at the same time, nor brought back to what it was.
    fn restoring(&self, target: &Target) -> Result<Turn<'_>, Refused> {
        let turn = self.works().begin_alone(format!("restore {}", target.key));
        turn.ok_or_else(|| Refused::Busy(format!("a backup is being restored to {}", target.volume)))
    }

    pub(super) fn revert(&self, target: &Target, revert: &Command) -> Result<(), Refused> {
        let _turn = self.restoring(target)?;
        self.command(target, revert)
    }

    /// Whoever writes while nobody uses the volume does it as the frontend of the attachment that the record names.
    pub(super) fn attachment(&self, target: &Target) -> Result<Option<crate::record::Attachment>, Refused> {
        let (_, record) =
            self.world().record(&target.volume).and_then(|mut record| record.read()).map_err(|error| {
                Refused::Failed {
                    doing: format!("read the record of {}", target.volume),
                    why: in_words(&error),
                }
            })?;
        Ok(record.attachment)
    }

    pub(super) fn delete_backup(
        &self,
        request: &proto::DeleteBackupRequest,
    ) -> Result<proto::DeleteBackupResponse, Refused> {
        let volume = name(&request.volume)?;
        if request.epoch != 0 || self.world().term(&volume).is_some() {
            self.admit(&volume, Epoch::from_bits(request.epoch))?;
        }
        let vault = match self.folder(&request.target) {
            Ok(folder) if request.existing => used(&folder)?,
            // What nobody ever kept there is removed.
            Ok(folder) if is_gone(&folder) => {
                return Ok(proto::DeleteBackupResponse { complete: true, ..Default::default() });
            }
            Ok(folder) => open(&folder)?,
            Err(_) if Path::new(&request.target).is_absolute() => {
                return Ok(proto::DeleteBackupResponse { complete: true, ..Default::default() });
            }
            Err(refused) => return Err(refused),
        };
        let swept = match keep::delete(&vault, &request.volume, &request.backup) {
            // An order may be given again.
            Err(BackupError::NoBackup(_)) => keep::settle(&vault),
            deleted => deleted,
        };
        let Swept { removed_blocks, removed_bytes, kept_blocks, complete } = swept?;
        Ok(proto::DeleteBackupResponse {
            removed_blocks: removed_blocks as u64,
            removed_bytes,
            kept_blocks: kept_blocks as u64,
            complete,
        })
    }

    pub(super) fn backups(
        &self,
        request: &proto::BackupsRequest,
    ) -> Result<proto::ListBackupsResponse, Refused> {
        let folder = self.folder(&request.target)?;
        let volume = volume(request)?;
        match vault::was_used(&folder) {
            true => list(&folder, volume),
            false => Ok(proto::ListBackupsResponse { backups: Vec::new(), unused: true }),
        }
    }

    fn verify(
        &self,
        request: &proto::BackupsRequest,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Verified, Refused> {
        let vault = open(&self.folder(&request.target)?)?;
        Ok(keep::verify(&vault, volume(request)?, given(&request.backup), tell)?)
    }
}

fn list(folder: &Path, volume: Option<&str>) -> Result<proto::ListBackupsResponse, Refused> {
    let items = keep::list(&open(folder)?, volume)?;
    let shown = |item: Item| proto::Backup {
        volume: item.volume,
        backup: item.name,
        snapshot: item.snapshot,
        created: item.created,
        size: item.size,
        blocks: item.blocks as u64,
    };
    Ok(proto::ListBackupsResponse { backups: items.into_iter().map(shown).collect(), unused: false })
}

fn volume(request: &proto::BackupsRequest) -> Result<Option<&str>, Refused> {
    given(&request.volume).map(|volume| name(volume).map(|_| volume)).transpose()
}

fn created(made: Created) -> Event {
    Event::Created(proto::BackupCreated {
        volume: made.volume,
        backup: made.name,
        size: made.size,
        since: made.since,
        read_bytes: made.read_bytes,
        new_blocks: made.new_blocks as u64,
        new_bytes: made.new_bytes,
        blocks: made.blocks as u64,
    })
}

fn restored(done: Restored) -> Event {
    Event::Restored(proto::BackupRestored {
        volume: done.volume,
        backup: done.name,
        since: done.since,
        pieces: done.pieces as u64,
        written_bytes: done.written_bytes,
    })
}

fn verified(found: Verified) -> Event {
    let damage =
        |damage: Damage| proto::Damage { what: damage.what, why: damage.why, backups: damage.backups };
    Event::Verified(proto::BackupsVerified {
        backups: found.backups as u64,
        blocks: found.blocks as u64,
        damaged: found.damaged.into_iter().map(damage).collect(),
    })
}

fn progress(report: &Report) -> proto::BackupEvent {
    let progress = proto::Progress {
        doing: report.doing.to_string(),
        done_bytes: report.done_bytes,
        total_bytes: report.total_bytes,
        bytes_per_second: report.bytes_per_second,
        seconds_left: report.seconds_left,
    };
    proto::BackupEvent { event: Some(Event::Progress(progress)) }
}

impl Service {
    pub(super) fn backing_up(&self, request: proto::CreateBackupRequest) -> Response<Events> {
        self.work("create-backup", move |registry, tell| registry.create_backup(&request, tell).map(created))
    }

    pub(super) fn restoring(&self, request: proto::RestoreBackupRequest) -> Response<Events> {
        self.work("restore-backup", move |registry, tell| {
            registry.restore_backup(&request, tell).map(restored)
        })
    }

    pub(super) fn verifying(&self, request: proto::BackupsRequest) -> Response<Events> {
        self.work("verify-backups", move |registry, tell| registry.verify(&request, tell).map(verified))
    }

    /// Goes on when nobody listens any more: the order may be given again to hear of its end.
    fn work(
        &self,
        command: &'static str,
        work: impl FnOnce(&Registry, &mut dyn FnMut(&Report)) -> Result<Event, Refused> + Send + 'static,
    ) -> Response<Events> {
        let (registry, metrics) = (Arc::clone(&self.registry), Arc::clone(&self.metrics));
        let (events, heard) = mpsc::channel(MOST_WAITING);
        tokio::task::spawn_blocking(move || {
            // Whoever is too slow, or gone, misses some of it.
            let mut tell = |report: &Report| drop(events.try_send(Ok(progress(report))));
            let last = match work(&registry, &mut tell) {
                Ok(event) => Ok(proto::BackupEvent { event: Some(event) }),
                Err(refused) => {
                    tracing::warn!(command, %refused, "refused");
                    Err(Status::from(refused))
                }
            };
            metrics.answered(command, last.as_ref().map_or_else(Status::code, |_| Code::Ok));
            let _ = events.blocking_send(last);
        });
        let next = |mut heard: Receiver<_>| async move { heard.recv().await.map(|event| (event, heard)) };
        Response::new(Box::pin(stream::unfold(heard, next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_are_where_every_node_sees_them() {
        let (outside, bad) = ("nodes see only /backups", "is no folder from the root on");
        #[rustfmt::skip]
        let cases = [
            ("/backups",        Some("/backups"), ""),
            ("/backups/a/b",    Some("/backups"), ""),
            ("/mnt/nas",        Some("/backups"), outside),
            ("/backups-else",   Some("/backups"), outside),
            ("/backups/../mnt", Some("/backups"), bad),
            ("backups",         Some("/backups"), bad),
            ("/mnt/nas",        None,             ""),
            ("backups",         None,             bad),
        ];
        for (target, shared, expected) in cases {
            let told = place(target, shared.map(Path::new)).err().map(|why| why.to_string());
            match expected {
                "" => assert_eq!(told, None, "{target}"),
                expected => {
                    assert!(told.as_ref().is_some_and(|why| why.contains(expected)), "{target}: {told:?}");
                }
            }
        }
    }

    #[test]
    fn the_first_backup_makes_its_folder_below_what_nodes_share_and_not_that() {
        let root = tempfile::tempdir().unwrap();
        let (shared, here) = (root.path().join("shared"), root.path().join("here"));
        let below = shared.join("below");
        assert!(first(&below, Some(&shared)).is_err() && !shared.exists());
        fs::create_dir(&shared).unwrap();
        for (folder, shared) in [(&below, Some(&*shared)), (&here, None)] {
            assert!(first(folder, shared).is_ok() && folder.is_dir());
            assert!(!vault::was_used(folder) && used(folder).is_err(), "nothing was put into it");
        }
    }
}
