//! Makes a backup of a snapshot: reads what has changed since the last one, keeps
//! what is not kept yet, writes the manifest last.
//!
//! Invariant: every block that the manifest names was there after this run had said
//! that it runs, and a sweep leaves alone what a run may rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use bytes::Bytes;
use serde::Serialize;

use super::{
    BackupError,
    block::{self, BlockName, PIECE},
    keep,
    lease::Run,
    manifest::{Manifest, Taken},
    progress::{Progress, Report},
    reader::{self, AHEAD, Reader},
    vault::Vault,
};
use crate::{
    blocks::{BLOCK_BITS, Blocks, Run as Run4k},
    extent::Extent,
    net::address::Address,
    wire::layout::Layout,
};

/// What to back up, and as what.
#[derive(Debug, Clone)]
pub struct Order {
    pub engine: Address,
    pub volume: String,
    pub snapshot: String,
    pub name: String,
    /// What the volume had when the snapshot was taken, if that is known: it may have grown since.
    pub size: Option<u64>,
}

/// What a backup has cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    pub volume: String,
    pub name: String,
    pub size: u64,
    /// The backup that it builds upon.
    pub since: Option<String>,
    pub read_bytes: u64,
    pub new_blocks: usize,
    /// What they take, compressed.
    pub new_bytes: u64,
    pub blocks: usize,
}

impl Created {
    /// What a backup that is there costs.
    fn before(manifest: &Manifest) -> Created {
        Created {
            volume: manifest.volume.clone(),
            name: manifest.name.clone(),
            size: manifest.size,
            since: None,
            read_bytes: 0,
            new_blocks: 0,
            new_bytes: 0,
            blocks: manifest.pieces.len(),
        }
    }
}

/// The bytes of a snapshot, wherever they come from.
pub(super) trait Source {
    /// Blocks in which it may differ from an older one, or that it has at all.
    fn changes(&mut self, since: Option<u64>, size: u64) -> Result<Blocks, BackupError>;
    fn request(&mut self, extent: Extent) -> Result<(), BackupError>;
    fn next(&mut self) -> Result<Option<(Extent, Bytes)>, BackupError>;
}

impl Source for Reader {
    fn changes(&mut self, since: Option<u64>, size: u64) -> Result<Blocks, BackupError> {
        Reader::changes(self, since, size)
    }

    fn request(&mut self, extent: Extent) -> Result<(), BackupError> {
        Reader::request(self, extent)
    }

    fn next(&mut self) -> Result<Option<(Extent, Bytes)>, BackupError> {
        Reader::next(self)
    }
}

pub fn create(
    vault: &impl Vault,
    order: &Order,
    tell: &mut dyn FnMut(&Report),
) -> Result<Created, BackupError> {
    let status = reader::status(&order.engine)?;
    let taken = taken(&status.layout, &order.snapshot)?;
    let mut source = Reader::connect(&order.engine, taken.id)?;
    create_from(vault, order, &status.layout, &mut source, tell)
}

/// The snapshot of that name, with the layer above it.
fn taken(layout: &Layout, name: &str) -> Result<Taken, BackupError> {
    let at = layout.position(name).ok_or_else(|| BackupError::NoSnapshot(name.to_owned()))?;
    Ok(Taken { id: layout.snapshots[at].id, name: name.to_owned(), above: layout.above(at) })
}

pub(super) fn create_from(
    vault: &impl Vault,
    order: &Order,
    layout: &Layout,
    source: &mut impl Source,
    tell: &mut dyn FnMut(&Report),
) -> Result<Created, BackupError> {
    keep::check_name(&order.volume)?;
    keep::check_name(&order.name)?;
    let snapshot = taken(layout, &order.snapshot)?;
    let mut run = Run::begin(vault)?;
    let made = Making { vault, order, layout, snapshot }.make(&mut run, source, tell);
    // A run that failed leaves blocks that the next one finds, or a sweep removes.
    run.end()?;
    // What was made is made: a sweep that fails stays owed.
    let _ = keep::settle(vault);
    made
}

/// A backup that is being made.
struct Making<'a, V: Vault> {
    vault: &'a V,
    order: &'a Order,
    layout: &'a Layout,
    snapshot: Taken,
}

impl<V: Vault> Making<'_, V> {
    /// What the volume had at the moment that is backed up, as far as is known.
    fn size(&self) -> u64 {
        self.order.size.unwrap_or(u64::MAX).min(self.layout.size)
    }

    /// The newest backup of the volume on whose snapshot the new one is built.
    fn base(&self) -> Result<Option<Manifest>, BackupError> {
        let layout = self.layout;
        let place = |id: u64| layout.snapshots.iter().position(|snapshot| snapshot.id == id);
        let here = |id: u64| layout.head == id || place(id).is_some();
        let fits = |manifest: &Manifest| {
            let Taken { id, above, .. } = manifest.snapshot;
            // Every volume's first layer is called 0: then the one above must be ours too.
            let is_ours = (id != 0 || here(above)) && place(id).is_some();
            is_ours && place(id) <= place(self.snapshot.id) && manifest.size <= self.size()
        };
        let mut all = keep::manifests(self.vault, Some(&self.order.volume))?;
        all.retain(fits);
        Ok(all.into_iter().max_by_key(|manifest| (place(manifest.snapshot.id), manifest.created)))
    }

    fn make(
        &self,
        run: &mut Run<'_, V>,
        source: &mut impl Source,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<Created, BackupError> {
        let path = Manifest::path(&self.order.volume, &self.order.name);
        match keep::find(self.vault, &self.order.volume, &self.order.name) {
            Ok(made) if made.snapshot == self.snapshot => return Ok(Created::before(&made)),
            Ok(_) => return Err(BackupError::Exists(self.order.name.clone())),
            Err(BackupError::NoBackup(_)) => {}
            Err(error) => return Err(error),
        }
        let base = self.base()?;
        let mut manifest = self.manifest(&run.id, base.as_ref());
        let changes = source.changes(base.as_ref().map(|base| base.snapshot.id), self.layout.size)?;
        let mut created = Created { since: base.map(|base| base.name), ..Created::before(&manifest) };
        let wanted = extents(&changes, &manifest);
        let mut progress =
            Progress::new("back up", wanted.iter().map(|extent| u64::from(extent.length())).sum(), tell);
        let mut wanted = wanted.into_iter();
        wanted.by_ref().take(AHEAD).try_for_each(|extent| source.request(extent))?;
        while let Some((extent, data)) = source.next()? {
            wanted.next().map_or(Ok(()), |next| source.request(next))?;
            run.renew()?;
            self.keep(extent.offset() / PIECE, &data, &mut manifest, &mut created)?;
            progress.add(extent.length().into());
        }
        progress.end();
        created.blocks = manifest.pieces.len();
        if run.is_fenced()? {
            return Err(BackupError::Fenced);
        }
        match self.vault.put_new(&path, manifest.encode())? {
            true => Ok(created),
            false => Err(BackupError::Exists(self.order.name.clone())),
        }
    }

    fn manifest(&self, run: &str, base: Option<&Manifest>) -> Manifest {
        Manifest {
            volume: self.order.volume.clone(),
            name: self.order.name.clone(),
            created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
            size: self.size(),
            snapshot: self.snapshot.clone(),
            run: run.to_owned(),
            pieces: base.map_or_else(BTreeMap::new, |base| base.pieces.clone()),
        }
    }

    /// Puts a piece into the manifest, and into the vault unless it is there.
    fn keep(
        &self,
        piece: u64,
        data: &[u8],
        manifest: &mut Manifest,
        created: &mut Created,
    ) -> Result<(), BackupError> {
        created.read_bytes += data.len() as u64;
        if data.iter().all(|byte| *byte == 0) {
            manifest.pieces.remove(&piece);
            return Ok(());
        }
        let name = BlockName::of(data);
        if !self.vault.exists(&name.path())? {
            let kept = block::encode(data);
            created.new_bytes += kept.len() as u64;
            created.new_blocks += 1;
            self.vault.put(&name.path(), kept)?;
        }
        manifest.pieces.insert(piece, name);
        Ok(())
    }
}

/// The pieces that changed blocks lie in.
fn extents(changes: &Blocks, manifest: &Manifest) -> Vec<Extent> {
    let touched = |run: &Run4k| (run.first << BLOCK_BITS) / PIECE..(run.end() << BLOCK_BITS).div_ceil(PIECE);
    let pieces: BTreeSet<u64> = changes.runs().iter().flat_map(touched).collect();
    let inside = pieces.range(..manifest.size.div_ceil(PIECE));
    inside.filter_map(|piece| Extent::new(piece * PIECE, manifest.length(*piece))).collect()
}
