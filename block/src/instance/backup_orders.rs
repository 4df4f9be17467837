//! Backups through an instance manager, ordered by hand.
//!
//! Invariant: an answer is that of the same command without an instance manager.

use std::{io, path::PathBuf};

use futures::StreamExt;
use tonic::{Status, Streaming};

use super::{
    client::TargetArgs,
    order::Orders,
    proto::{self, backup_event::Event},
};
use crate::{
    backup::{
        command::Told,
        create::Created,
        keep::{Damage, Item, Swept, Verified},
        progress::{self, Report},
        restore::Restored,
    },
    epoch::Epoch,
};

#[derive(Debug, Clone, clap::Subcommand)]
pub enum BackupOrder {
    /// Back a snapshot of a volume up.
    CreateBackup {
        #[command(flatten)]
        target: TargetArgs,
        /// Folder that holds the backups.
        #[arg(long)]
        into: PathBuf,
        #[arg(long)]
        snapshot: String,
        /// Name of the backup; that of the snapshot unless given.
        #[arg(long, default_value = "")]
        backup: String,
    },
    /// Write a backup into a volume that no frontend is connected to.
    RestoreBackup {
        #[command(flatten)]
        target: TargetArgs,
        /// Folder that holds the backups.
        #[arg(long)]
        from: PathBuf,
        /// The volume that was backed up, if it is another.
        #[arg(long, default_value = "")]
        of: String,
        #[arg(long)]
        backup: String,
    },
    /// List backups, oldest first.
    ListBackups(BackupsArgs),
    /// Read every block of backups and hash it again.
    VerifyBackups(BackupsArgs),
    /// Forget a backup and remove the blocks that no other names.
    DeleteBackup {
        /// Folder that holds the backups.
        #[arg(long)]
        from: PathBuf,
        #[arg(long)]
        volume: String,
        #[arg(long)]
        backup: String,
        /// Term of the volume's record.
        #[arg(long)]
        term: u64,
    },
}

/// Which backups.
#[derive(Debug, Clone, clap::Args)]
pub struct BackupsArgs {
    /// Folder that holds the backups.
    #[arg(long)]
    pub from: PathBuf,
    #[arg(long, default_value = "")]
    pub volume: String,
    #[arg(long, default_value = "", requires = "volume")]
    pub backup: String,
}

impl From<BackupsArgs> for proto::BackupsRequest {
    fn from(args: BackupsArgs) -> proto::BackupsRequest {
        proto::BackupsRequest { target: folder(&args.from), volume: args.volume, backup: args.backup }
    }
}

fn folder(path: &std::path::Path) -> String {
    path.display().to_string()
}

pub(super) async fn give(orders: &mut Orders, order: BackupOrder) -> Result<Told, Status> {
    match order {
        BackupOrder::CreateBackup { target, into, snapshot, backup } => {
            let target_folder = folder(&into);
            let request = proto::CreateBackupRequest {
                engine: Some(target.into()),
                target: target_folder,
                snapshot,
                backup,
                size: 0,
                existing: false,
            };
            follow(orders.create_backup(request).await?.into_inner()).await
        }
        BackupOrder::RestoreBackup { target, from, of, backup } => {
            let request = proto::RestoreBackupRequest {
                engine: Some(target.into()),
                target: folder(&from),
                volume: of,
                backup,
            };
            follow(orders.restore_backup(request).await?.into_inner()).await
        }
        BackupOrder::VerifyBackups(args) => {
            follow(orders.verify_backups(proto::BackupsRequest::from(args)).await?.into_inner()).await
        }
        BackupOrder::ListBackups(args) => {
            let found = orders.list_backups(proto::BackupsRequest::from(args)).await?.into_inner();
            Ok(Told::Backups(found.backups.into_iter().map(item).collect()))
        }
        BackupOrder::DeleteBackup { from, volume, backup, term } => {
            let (target, epoch) = (folder(&from), Epoch::of_term(term).bits());
            let request = proto::DeleteBackupRequest { target, volume, backup, epoch, existing: false };
            let swept = orders.delete_backup(request).await?.into_inner();
            Ok(Told::Swept(Swept {
                removed_blocks: swept.removed_blocks as usize,
                removed_bytes: swept.removed_bytes,
                kept_blocks: swept.kept_blocks as usize,
                complete: swept.complete,
            }))
        }
    }
}

/// Tells on stderr how far it is, until its end.
async fn follow(mut events: Streaming<proto::BackupEvent>) -> Result<Told, Status> {
    let mut tell = progress::to_writer(io::stderr(), false);
    while let Some(event) = events.next().await {
        match event?.event {
            Some(Event::Progress(now)) => tell(&report(now)),
            Some(Event::Created(made)) => return Ok(Told::Created(created(made))),
            Some(Event::Restored(done)) => return Ok(Told::Restored(restored(done))),
            Some(Event::Verified(found)) => return Ok(Told::Verified(verified(found))),
            // Something that a later instance manager tells.
            None => {}
        }
    }
    Err(Status::aborted("the instance manager has ended before the work; give the order again"))
}

fn report(now: proto::Progress) -> Report {
    Report {
        doing: now.doing.into(),
        done_bytes: now.done_bytes,
        total_bytes: now.total_bytes,
        bytes_per_second: now.bytes_per_second,
        seconds_left: now.seconds_left,
    }
}

fn created(made: proto::BackupCreated) -> Created {
    Created {
        volume: made.volume,
        name: made.backup,
        size: made.size,
        since: made.since,
        read_bytes: made.read_bytes,
        new_blocks: made.new_blocks as usize,
        new_bytes: made.new_bytes,
        blocks: made.blocks as usize,
    }
}

fn restored(done: proto::BackupRestored) -> Restored {
    Restored {
        volume: done.volume,
        name: done.backup,
        since: done.since,
        pieces: done.pieces as usize,
        written_bytes: done.written_bytes,
    }
}

fn verified(found: proto::BackupsVerified) -> Verified {
    let damage =
        |damage: proto::Damage| Damage { what: damage.what, why: damage.why, backups: damage.backups };
    Verified {
        backups: found.backups as usize,
        blocks: found.blocks as usize,
        damaged: found.damaged.into_iter().map(damage).collect(),
    }
}

fn item(backup: proto::Backup) -> Item {
    Item {
        volume: backup.volume,
        name: backup.backup,
        snapshot: backup.snapshot,
        created: backup.created,
        size: backup.size,
        blocks: backup.blocks as usize,
    }
}
