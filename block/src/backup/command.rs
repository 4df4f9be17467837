//! Backups on the command line.
//!
//! Invariant: results go to stdout, progress to stderr; with `-o json` both are JSON,
//! one object a line.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use serde::Serialize;

use super::{
    BackupError, create, keep, progress, restore,
    vault::{FolderVault, Vault},
};
use crate::{net::address::Address, record::Attachment};

/// Back volumes up to a folder, and bring them back.
#[derive(Debug, Clone, clap::Args)]
pub struct BackupArgs {
    /// Folder that holds the backups.
    #[arg(long, global = true, default_value = "backups")]
    pub target: PathBuf,
    /// How to print.
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    Json,
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

pub fn run(args: &BackupArgs, out: &mut impl Write) -> Result<(), BackupError> {
    let vault = FolderVault::open(&args.target)?;
    let json = args.output == Format::Json;
    carry_out(&vault, &args.command, json, out)
}

fn carry_out(
    vault: &impl Vault,
    command: &Command,
    json: bool,
    out: &mut impl Write,
) -> Result<(), BackupError> {
    let mut tell = progress::to_writer(io::stderr(), json);
    let mut print = |value: &dyn Printed| value.print(json, out).map_err(BackupError::Output);
    match command.clone() {
        Command::Create { engine, volume, snapshot, name } => {
            let name = name.unwrap_or_else(|| snapshot.clone());
            let order = create::Order { engine, volume, snapshot, name };
            print(&create::create(vault, &order, &mut tell)?)
        }
        Command::List { volume } => {
            keep::list(vault, volume.as_deref())?.iter().try_for_each(|item| print(item))
        }
        Command::Verify { volume, name } => {
            let verified = keep::verify(vault, volume.as_deref(), name.as_deref(), &mut tell)?;
            print(&verified)?;
            let (damaged, of) = (verified.damaged.len(), verified.blocks + verified.backups);
            if damaged == 0 { Ok(()) } else { Err(BackupError::Damaged { damaged, of }) }
        }
        Command::Restore { engine, into, attachment, volume, name } => {
            let into = into.unwrap_or_else(|| volume.clone());
            let attachment = attachment.map(Attachment::from_bits);
            let order = restore::Order { engine, into, attachment, volume, name };
            print(&restore::restore(vault, &order, &mut tell)?)
        }
        Command::Delete { volume, name } => {
            keep::delete(vault, &volume, &name)?;
            print(&keep::sweep(vault)?)
        }
        Command::Sweep => print(&keep::sweep(vault)?),
    }
}

/// Something that can be printed for people and for programs.
trait Printed {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()>;
}

fn print_as<T: Serialize>(value: &T, json: bool, text: &str, out: &mut dyn Write) -> io::Result<()> {
    match json {
        true => writeln!(out, "{}", serde_json::to_string(value)?),
        false => writeln!(out, "{text}"),
    }
}

impl Printed for create::Created {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        let since = self.since.as_ref().map_or(String::new(), |since| format!(" since {since}"));
        let text = format!(
            "backup {}/{}{since}: read {} bytes, wrote {} blocks ({} bytes), names {} blocks",
            self.volume, self.name, self.read_bytes, self.new_blocks, self.new_bytes, self.blocks
        );
        print_as(self, json, &text, out)
    }
}

impl Printed for keep::Item {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        let text = format!("{}/{}\t{} bytes\t{} blocks", self.volume, self.name, self.size, self.blocks);
        print_as(self, json, &text, out)
    }
}

impl Printed for keep::Verified {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        let mut text =
            format!("{} backups, {} blocks, {} damaged", self.backups, self.blocks, self.damaged.len());
        for damage in &self.damaged {
            text += &format!("\n{}: {} (needed by {})", damage.what, damage.why, damage.backups.join(", "));
        }
        print_as(self, json, &text, out)
    }
}

impl Printed for keep::Swept {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        let text = format!(
            "removed {} blocks ({} bytes), {} are needed",
            self.removed_blocks, self.removed_bytes, self.kept_blocks
        );
        print_as(self, json, &text, out)
    }
}

impl Printed for restore::Restored {
    fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        let since = self.since.as_ref().map_or(String::new(), |since| format!(", which held {since}"));
        let text = format!(
            "{} into {}{since}: {} pieces, {} bytes written",
            self.name, self.volume, self.pieces, self.written_bytes
        );
        print_as(self, json, &text, out)
    }
}
