//! Backups on the command line.
//!
//! Invariant: an answer is the same whether it is shown to a person or to a program.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    BackupError,
    create::{self, Created},
    keep::{self, Damage, Item, Swept, Verified},
    progress::Report,
    restore::{self, Restored},
    vault::FolderVault,
};
use crate::{net::address::Address, record::Attachment};

/// Back volumes up to a folder, and bring them back.
#[derive(Debug, Clone, clap::Args)]
pub struct BackupArgs {
    /// Folder that holds the backups.
    #[arg(long, global = true, default_value = "backups")]
    pub target: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Back a snapshot up; only what changed since the volume's last backup is read.
    Create {
        /// Socket of the volume's engine: unix:PATH.
        #[arg(long)]
        engine: Address,
        #[arg(long)]
        volume: String,
        #[arg(long)]
        snapshot: String,
        /// Name of the backup; that of the snapshot unless given.
        #[arg(long)]
        name: Option<String>,
    },
    /// List backups, oldest first.
    List {
        #[arg(long)]
        volume: Option<String>,
    },
    /// Read every block of backups and hash it again.
    Verify {
        #[arg(long)]
        volume: Option<String>,
        #[arg(long, requires = "volume")]
        name: Option<String>,
    },
    /// Write a backup into a volume that no frontend is attached to. If the volume holds
    /// an earlier backup of the same volume, only the difference is written.
    Restore {
        /// Socket of the engine of the volume to write to: unix:PATH.
        #[arg(long)]
        engine: Address,
        /// Volume to write to; the one that was backed up unless given.
        #[arg(long)]
        into: Option<String>,
        /// What the record of that volume calls its attachment (`mfblock record FILE show`); without
        /// one the record must not name any.
        #[arg(long)]
        attachment: Option<u64>,
        #[arg(long)]
        volume: String,
        #[arg(long)]
        name: String,
    },
    /// Forget a backup and remove the blocks that no other names.
    Delete {
        #[arg(long)]
        volume: String,
        #[arg(long)]
        name: String,
    },
    /// Remove the blocks that no backup names.
    Sweep,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Told {
    Created(Created),
    Backups(Vec<Item>),
    Verified(Verified),
    Restored(Restored),
    Swept(Swept),
}

impl Told {
    /// Whether something was found that is not as it must be.
    pub fn damage(&self) -> Option<BackupError> {
        match self {
            Told::Verified(verified) if !verified.damaged.is_empty() => Some(BackupError::Damaged {
                damaged: verified.damaged.len(),
                of: verified.blocks + verified.backups,
            }),
            Told::Created(_) | Told::Backups(_) | Told::Verified(_) | Told::Restored(_) | Told::Swept(_) => {
                None
            }
        }
    }

    /// For people: rows of cells.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let pairs = |pairs: Vec<(&str, String)>| {
            pairs.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
        };
        let backup = |volume: &str, name: &str| format!("{volume}/{name}");
        match self {
            Told::Created(made) => pairs(vec![
                ("backup", backup(&made.volume, &made.name)),
                ("since", made.since.clone().unwrap_or_else(|| "-".into())),
                ("size", made.size.to_string()),
                ("read", format!("{} bytes", made.read_bytes)),
                ("written", format!("{} blocks, {} bytes", made.new_blocks, made.new_bytes)),
                ("blocks", made.blocks.to_string()),
            ]),
            Told::Backups(items) => {
                let header = ["VOLUME", "NAME", "SNAPSHOT", "SIZE", "BLOCKS"].map(str::to_owned).to_vec();
                let row = |item: &Item| {
                    let words = [&item.volume, &item.name, &item.snapshot].map(Clone::clone);
                    words.into_iter().chain([item.size.to_string(), item.blocks.to_string()]).collect()
                };
                [header].into_iter().chain(items.iter().map(row)).collect()
            }
            Told::Verified(verified) => {
                let mut rows: Vec<Vec<String>> = pairs(vec![
                    ("backups", verified.backups.to_string()),
                    ("blocks", verified.blocks.to_string()),
                    ("damaged", verified.damaged.len().to_string()),
                ]);
                let row = |damage: &Damage| {
                    let needed = format!("{}; needed by {}", damage.why, damage.backups.join(", "));
                    vec![damage.what.clone(), needed]
                };
                rows.extend(verified.damaged.iter().map(row));
                rows
            }
            Told::Restored(restored) => pairs(vec![
                ("volume", restored.volume.clone()),
                ("backup", restored.name.clone()),
                ("since", restored.since.clone().unwrap_or_else(|| "-".into())),
                ("written", format!("{} pieces, {} bytes", restored.pieces, restored.written_bytes)),
            ]),
            Told::Swept(swept) => pairs(vec![
                ("removed", format!("{} blocks, {} bytes", swept.removed_blocks, swept.removed_bytes)),
                ("kept", format!("{} blocks", swept.kept_blocks)),
                ("complete", swept.complete.to_string()),
            ]),
        }
    }
}

/// Carries a command out; `tell` hears how far it is.
pub fn run(args: &BackupArgs, tell: &mut dyn FnMut(&Report)) -> Result<Told, BackupError> {
    let vault = &match args.command {
        Command::Create { .. } => FolderVault::make(&args.target)?,
        Command::List { .. }
        | Command::Verify { .. }
        | Command::Restore { .. }
        | Command::Delete { .. }
        | Command::Sweep => FolderVault::open(&args.target)?,
    };
    Ok(match args.command.clone() {
        Command::Create { engine, volume, snapshot, name } => {
            let name = name.unwrap_or_else(|| snapshot.clone());
            let order = create::Order { engine, volume, snapshot, name, size: None };
            Told::Created(create::create(vault, &order, tell)?)
        }
        Command::List { volume } => Told::Backups(keep::list(vault, volume.as_deref())?),
        Command::Verify { volume, name } => {
            Told::Verified(keep::verify(vault, volume.as_deref(), name.as_deref(), tell)?)
        }
        Command::Restore { engine, into, attachment, volume, name } => {
            let into = into.unwrap_or_else(|| volume.clone());
            let attachment = attachment.map(Attachment::from_bits);
            let order = restore::Order { engine, into, attachment, volume, name };
            Told::Restored(restore::restore(vault, &order, tell)?)
        }
        Command::Delete { volume, name } => Told::Swept(keep::delete(vault, &volume, &name)?),
        Command::Sweep => Told::Swept(keep::sweep(vault)?),
    })
}
