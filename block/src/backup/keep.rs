//! What is done with backups that are there: list, verify, delete, sweep.
//!
//! Invariant: nothing is removed that a manifest names; while a manifest cannot be
//! read, nothing is removed at all.

use std::{collections::BTreeMap, collections::BTreeSet, time::Instant};

use bytes::Bytes;
use serde::Serialize;

use super::{
    BackupError,
    block::{self, BadBlock, BlockName},
    lease,
    manifest::{BadManifest, Manifest},
    progress::{Progress, Report},
    vault::Vault,
};

pub(super) fn check_name(name: &str) -> Result<(), BackupError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=128).contains(&name.len()) && name.bytes().all(fine) && !name.starts_with('.') {
        true => Ok(()),
        false => Err(BackupError::Name(name.to_owned())),
    }
}

/// The backups that count, of one volume or of all, oldest first.
pub(super) fn manifests(vault: &impl Vault, volume: Option<&str>) -> Result<Vec<Manifest>, BackupError> {
    let fenced = lease::fenced(vault)?;
    let below = volume.map_or("volumes".into(), |volume| format!("volumes/{volume}"));
    let mut found = Vec::new();
    for object in vault.list(&below)? {
        found.extend(read(vault, &object.path)?.filter(|manifest| !fenced.contains(&manifest.run)));
    }
    found.sort_by(|one: &Manifest, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
    Ok(found)
}

/// None when it was deleted meanwhile.
fn read(vault: &impl Vault, path: &str) -> Result<Option<Manifest>, BackupError> {
    let Some(raw) = vault.get(path)? else { return Ok(None) };
    let damaged = |source| BackupError::Manifest { name: path.to_owned(), source };
    let manifest = Manifest::decode(&raw).map_err(damaged)?;
    match path == Manifest::path(&manifest.volume, &manifest.name) {
        true => Ok(Some(manifest)),
        false => Err(damaged(BadManifest::Other { volume: manifest.volume, name: manifest.name })),
    }
}

/// One backup that counts.
pub(super) fn find(vault: &impl Vault, volume: &str, name: &str) -> Result<Manifest, BackupError> {
    check_name(volume)?;
    check_name(name)?;
    let missing = || BackupError::NoBackup(format!("{volume}/{name}"));
    let manifest = read(vault, &Manifest::path(volume, name))?.ok_or_else(missing)?;
    match lease::fenced(vault)?.contains(&manifest.run) {
        true => Err(missing()),
        false => Ok(manifest),
    }
}

/// The bytes of a block that is what its name says.
pub(super) fn fetch(vault: &impl Vault, name: &BlockName) -> Result<Vec<u8>, BackupError> {
    let damaged = |source| BackupError::Block { name: name.as_str().to_owned(), source };
    let raw = vault.get(&name.path())?.ok_or_else(|| damaged(BadBlock::Missing))?;
    block::decode(name, &raw).map_err(damaged)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    pub volume: String,
    pub name: String,
    pub snapshot: String,
    /// Seconds since 1970.
    pub created: u64,
    pub size: u64,
    pub blocks: usize,
}

pub fn list(vault: &impl Vault, volume: Option<&str>) -> Result<Vec<Item>, BackupError> {
    let item = |manifest: Manifest| Item {
        blocks: manifest.pieces.len(),
        volume: manifest.volume,
        name: manifest.name,
        snapshot: manifest.snapshot.name,
        created: manifest.created,
        size: manifest.size,
    };
    Ok(manifests(vault, volume)?.into_iter().map(item).collect())
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    pub backups: usize,
    pub blocks: usize,
    /// What is damaged or missing, and which backups need it.
    pub damaged: Vec<Damage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Damage {
    pub what: String,
    pub why: String,
    pub backups: Vec<String>,
}

/// Reads every block of the backups of one volume, or of all, and hashes it again.
pub fn verify(
    vault: &impl Vault,
    volume: Option<&str>,
    name: Option<&str>,
    tell: &mut dyn FnMut(&Report),
) -> Result<Verified, BackupError> {
    let fenced = lease::fenced(vault)?;
    let below = volume.map_or("volumes".into(), |volume| format!("volumes/{volume}"));
    let mut verified = Verified { backups: 0, blocks: 0, damaged: Vec::new() };
    let mut named: BTreeMap<BlockName, (u32, Vec<String>)> = BTreeMap::new();
    for object in vault.list(&below)? {
        let title = object.path.trim_start_matches("volumes/").to_owned();
        if name.is_some_and(|name| !title.ends_with(&format!("/{name}"))) {
            continue;
        }
        match read(vault, &object.path) {
            Ok(Some(manifest)) if !fenced.contains(&manifest.run) => {
                verified.backups += 1;
                for (piece, block) in &manifest.pieces {
                    let entry = named.entry(block.clone()).or_insert((manifest.length(*piece), Vec::new()));
                    entry.1.push(title.clone());
                }
            }
            Ok(_) => {}
            Err(BackupError::Manifest { source, .. }) => {
                let why = source.to_string();
                verified.damaged.push(Damage { what: format!("backup {title}"), why, backups: vec![title] });
            }
            Err(error) => return Err(error),
        }
    }
    let total = named.values().map(|(length, _)| u64::from(*length)).sum();
    let mut progress = Progress::new("verify", total, tell);
    for (block, (length, backups)) in named {
        verified.blocks += 1;
        match fetch(vault, &block) {
            Ok(_) => {}
            Err(BackupError::Block { name, source }) => {
                let what = format!("block {name}");
                verified.damaged.push(Damage { what, why: source.to_string(), backups });
            }
            Err(error) => return Err(error),
        }
        progress.add(length.into());
    }
    progress.end();
    Ok(verified)
}

/// It is there while blocks of deleted backups wait for a sweep.
const OWED: &str = "owed/sweep";

/// What a sweep has removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Swept {
    pub removed_blocks: usize,
    pub removed_bytes: u64,
    pub kept_blocks: usize,
    /// False when there was no time for all; another sweep goes on.
    pub complete: bool,
}

/// Forgets a backup, and removes the blocks that no other names. While a backup is being made they stay;
/// the next that ends removes them.
pub fn delete(vault: &impl Vault, volume: &str, name: &str) -> Result<Swept, BackupError> {
    check_name(volume)?;
    check_name(name)?;
    let path = Manifest::path(volume, name);
    if !vault.exists(&path)? {
        return Err(BackupError::NoBackup(format!("{volume}/{name}")));
    }
    vault.put(OWED, Bytes::new())?;
    vault.remove(&path)?;
    settle(vault)
}

/// Sweeps if a deletion could not, unless a backup is being made.
pub fn settle(vault: &impl Vault) -> Result<Swept, BackupError> {
    let nothing = Swept { removed_blocks: 0, removed_bytes: 0, kept_blocks: 0, complete: false };
    if !vault.exists(OWED)? {
        return Ok(Swept { complete: true, ..nothing });
    }
    match sweep(vault) {
        Err(BackupError::Busy { .. }) => Ok(nothing),
        swept => swept,
    }
}

/// Removes blocks that no backup names.
pub fn sweep(vault: &impl Vault) -> Result<Swept, BackupError> {
    lease::sweep(vault, |until| {
        let all = manifests(vault, None)?;
        let named: BTreeSet<BlockName> =
            all.into_iter().flat_map(|manifest| manifest.pieces.into_values()).collect();
        let mut swept = Swept { removed_blocks: 0, removed_bytes: 0, kept_blocks: 0, complete: true };
        for object in vault.list("blocks")? {
            if BlockName::at(&object.path).is_some_and(|name| named.contains(&name)) {
                swept.kept_blocks += 1;
            } else if Instant::now() < until {
                vault.remove(&object.path)?;
                swept.removed_blocks += 1;
                swept.removed_bytes += object.size;
            } else {
                swept.complete = false;
            }
        }
        if swept.complete {
            vault.remove(OWED)?;
        }
        Ok(swept)
    })
}
