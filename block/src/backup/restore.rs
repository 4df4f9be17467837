//! Brings a volume to what a backup holds: all of it, or only where it differs from
//! the backup that the volume was brought to before.
//!
//! ```text
//! volume at `backup-A` ─ revert ─▶ write the difference ─▶ flush ─▶ snapshot `backup-B` ─▶ forget `backup-A`
//!              ▲────────────── revert ──────┘ it cannot be had
//! ```
//!
//! Invariant: a snapshot `backup-B` of a volume holds what backup B does. Whatever a
//! restore that failed has left is reverted at once, that of one that died before anything else is done, or written over.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde::Serialize;

use super::{
    BackupError,
    block::PIECE,
    keep,
    manifest::Manifest,
    progress::{Progress, Report},
    reader,
    vault::Vault,
    writer::Writer,
};
use crate::{
    caller::{ControlError, EngineControl},
    engine::control::Command,
    extent::Extent,
    net::address::Address,
    record::Attachment,
};

/// Which backup, and into which volume.
#[derive(Debug, Clone)]
pub struct Order {
    pub engine: Address,
    /// The volume that is written to.
    pub into: String,
    /// What that volume's record calls its attachment: others are not listened to.
    pub attachment: Option<Attachment>,
    /// The volume that the backup is of.
    pub volume: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    pub volume: String,
    pub name: String,
    /// The backup that the volume held before, if only the difference was written.
    pub since: Option<String>,
    pub pieces: usize,
    pub written_bytes: u64,
}

const GONE_WITHIN: Duration = Duration::from_secs(1);
const REBUILT_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn marker(name: &str) -> String {
    format!("backup-{name}")
}

pub fn restore(
    vault: &impl Vault,
    order: &Order,
    tell: &mut dyn FnMut(&Report),
) -> Result<Restored, BackupError> {
    let wanted = keep::find(vault, &order.volume, &order.name)?;
    wait_until_alone(&order.engine)?;
    let mut writer = Writer::connect(&order.engine, &order.into, order.attachment)?;
    let layout = reader::status(&order.engine)?.layout;
    if layout.size < wanted.size {
        return Err(BackupError::TooSmall { backup: wanted.size, volume: layout.size });
    }
    let mut engine = EngineControl::connect(&order.engine)?;
    let held = layout.snapshots.iter().rev().find_map(|snapshot| snapshot.name.strip_prefix("backup-"));
    let before = match held {
        Some(held) => keep::find(vault, &order.volume, held).ok().filter(|before| before.size <= layout.size),
        None => None,
    };
    if let Some(before) = &before {
        insist(&mut engine, &Command::Revert { name: marker(&before.name), head: None })?;
    }
    let pieces = difference(before.as_ref(), &wanted, layout.size);
    let written = write(vault, &mut writer, &wanted, &pieces, tell);
    if let (Err(_), Some(before)) = (&written, &before) {
        take_back(&mut writer, &mut engine, before);
    }
    let written_bytes = written?;
    if before.as_ref().is_none_or(|before| before.name != wanted.name) {
        insist(&mut engine, &Command::Snapshot { name: marker(&wanted.name) })?;
        if let Some(before) = &before {
            insist(&mut engine, &Command::RemoveSnapshot { name: marker(&before.name) })?;
        }
    }
    let since = before.map(|before| before.name);
    Ok(Restored { volume: order.into.clone(), name: wanted.name, since, pieces: pieces.len(), written_bytes })
}

/// Makes the volume again what it was. An engine that does not listen to us any more may have other clients by now: then
/// nothing is thrown away.
fn take_back(writer: &mut Writer, engine: &mut EngineControl, before: &Manifest) {
    let revert = Command::Revert { name: marker(&before.name), head: None };
    let taken_back = writer.flush().and_then(|()| Ok(insist(engine, &revert)?));
    if let Err(error) = taken_back {
        tracing::warn!(%error, backup = before.name, "part of another backup is left over it");
    }
}

/// Changes the layers. While a copy is rebuilt that has to wait.
fn insist(engine: &mut EngineControl, command: &Command) -> Result<(), ControlError> {
    let began = Instant::now();
    loop {
        match engine.call(command) {
            Err(ControlError::Busy(_)) if began.elapsed() < REBUILT_WITHIN => std::thread::sleep(LOOK_AGAIN),
            answer => return answer.map(drop),
        }
    }
}

/// Whoever wrote last may just have gone.
fn wait_until_alone(engine: &Address) -> Result<(), BackupError> {
    let began = Instant::now();
    while reader::status(engine)?.attached {
        if began.elapsed() > GONE_WITHIN {
            return Err(BackupError::Attached);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Pieces that have to be written: where two backups differ, or all.
fn difference(before: Option<&Manifest>, wanted: &Manifest, size: u64) -> Vec<Extent> {
    let pieces: BTreeSet<u64> = match before {
        None => (0..size.div_ceil(PIECE)).collect(),
        Some(before) => {
            let named = before.pieces.keys().chain(wanted.pieces.keys());
            named.filter(|piece| before.pieces.get(piece) != wanted.pieces.get(piece)).copied().collect()
        }
    };
    let length = |piece: u64| (size - piece * PIECE).min(PIECE) as u32;
    pieces.into_iter().filter_map(|piece| Extent::new(piece * PIECE, length(piece))).collect()
}

fn write(
    vault: &impl Vault,
    writer: &mut Writer,
    wanted: &Manifest,
    pieces: &[Extent],
    tell: &mut dyn FnMut(&Report),
) -> Result<u64, BackupError> {
    let total = pieces.iter().map(|piece| u64::from(piece.length())).sum();
    let mut progress = Progress::new("restore", total, tell);
    let mut written = 0;
    for whole in pieces {
        match wanted.pieces.get(&(whole.offset() / PIECE)) {
            Some(name) => {
                let data = Bytes::from(keep::fetch(vault, name)?);
                written += data.len() as u64;
                // Shorter than a piece where the volume ended at the time of the backup.
                let there = (data.len() as u32).min(whole.length());
                let [extent, rest] = [(0, there), (there, whole.length() - there)].map(|(from, length)| {
                    Extent::new(whole.offset() + u64::from(from), length).expect("inside the piece")
                });
                writer.write(extent, Some(data.slice(..there as usize)))?;
                if rest.length() > 0 {
                    writer.write(rest, None)?;
                }
            }
            None => writer.write(*whole, None)?,
        }
        progress.add(whole.length().into());
    }
    writer.flush()?;
    progress.end();
    Ok(written)
}
