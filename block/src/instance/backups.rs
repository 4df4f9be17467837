//! Backups on order: what takes long runs on a thread of its own and tells how far it is.
//!
//! Invariant: the order's epoch was admitted before anything is read or written, and the last
//! event of a stream is its result or its refusal.

use std::{path::PathBuf, pin::Pin, sync::Arc};

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
        vault::FolderVault,
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

fn vault(target: &str) -> Result<FolderVault, Refused> {
    let folder = PathBuf::from(target);
    match folder.is_absolute() {
        true => Ok(FolderVault::open(&folder).map_err(BackupError::from)?),
        false => Err(Refused::Invalid(format!("{target:?} is no folder from the root on"))),
    }
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
        Ok(create::create(&vault(&request.target)?, &order, tell)?)
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
        Ok(restore::restore(&vault(&request.target)?, &order, tell)?)
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
        let vault = vault(&request.target)?;
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
}

pub(super) fn list(request: &proto::BackupsRequest) -> Result<proto::ListBackupsResponse, Refused> {
    let items = keep::list(&vault(&request.target)?, volume(request)?)?;
    let shown = |item: Item| proto::Backup {
        volume: item.volume,
        backup: item.name,
        snapshot: item.snapshot,
        created: item.created,
        size: item.size,
        blocks: item.blocks as u64,
    };
    Ok(proto::ListBackupsResponse { backups: items.into_iter().map(shown).collect() })
}

fn volume(request: &proto::BackupsRequest) -> Result<Option<&str>, Refused> {
    given(&request.volume).map(|volume| name(volume).map(|_| volume)).transpose()
}

fn verify(request: &proto::BackupsRequest, tell: &mut dyn FnMut(&Report)) -> Result<Verified, Refused> {
    Ok(keep::verify(&vault(&request.target)?, volume(request)?, given(&request.backup), tell)?)
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
        self.work("verify-backups", move |_, tell| verify(&request, tell).map(verified))
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
