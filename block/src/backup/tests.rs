//! Backups in a vault that stops at every write, before or after it takes effect.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use super::{
    BackupError,
    block::{self, BadBlock, BlockName, PIECE},
    create::{Created, Order, Source, create_from},
    keep,
    manifest::{BadManifest, Manifest},
    vault::{Listed, Vault, VaultError},
};
use crate::{
    blocks::{BLOCK_BITS, Blocks, Run},
    extent::Extent,
    net::address::Address,
    wire::layout::{Layout, Snapshot},
};

#[derive(Default)]
struct Memory {
    objects: RefCell<BTreeMap<String, (Bytes, SystemTime)>>,
    /// Writes until it stops, and whether the last one still takes effect.
    left: Cell<Option<usize>>,
    takes_effect: Cell<bool>,
}

impl Memory {
    fn stopped(path: &str) -> VaultError {
        VaultError { doing: "write", path: path.to_owned(), source: "the machine has stopped".into() }
    }

    fn change(
        &self,
        path: &str,
        act: impl FnOnce(&mut BTreeMap<String, (Bytes, SystemTime)>),
    ) -> Result<(), VaultError> {
        match self.left.get() {
            Some(0) => return Err(Self::stopped(path)),
            Some(1) if !self.takes_effect.get() => {
                self.left.set(Some(0));
                return Err(Self::stopped(path));
            }
            Some(left) => self.left.set(Some(left - 1)),
            None => {}
        }
        act(&mut self.objects.borrow_mut());
        if self.left.get() == Some(0) { Err(Self::stopped(path)) } else { Ok(()) }
    }

    /// So much time passes.
    fn age(&self, by: Duration) {
        self.objects.borrow_mut().values_mut().for_each(|(_, modified)| *modified -= by);
    }

    fn names(&self) -> Vec<String> {
        self.objects.borrow().keys().cloned().collect()
    }
}

impl Vault for Memory {
    fn put(&self, path: &str, data: Bytes) -> Result<(), VaultError> {
        self.change(path, |objects| {
            objects.insert(path.to_owned(), (data, SystemTime::now()));
        })
    }

    fn put_new(&self, path: &str, data: Bytes) -> Result<bool, VaultError> {
        if self.exists(path)? {
            return Ok(false);
        }
        self.put(path, data).map(|()| true)
    }

    fn get(&self, path: &str) -> Result<Option<Bytes>, VaultError> {
        Ok(self.objects.borrow().get(path).map(|(data, _)| data.clone()))
    }

    fn exists(&self, path: &str) -> Result<bool, VaultError> {
        Ok(self.objects.borrow().contains_key(path))
    }

    fn list(&self, below: &str) -> Result<Vec<Listed>, VaultError> {
        let objects = self.objects.borrow();
        let below = format!("{below}/");
        let found = objects.iter().filter(|(path, _)| path.starts_with(&below));
        Ok(found
            .map(|(path, (data, modified))| Listed {
                path: path.clone(),
                size: data.len() as u64,
                modified: *modified,
            })
            .collect())
    }

    fn remove(&self, path: &str) -> Result<(), VaultError> {
        self.change(path, |objects| {
            objects.remove(path);
        })
    }
}

/// A volume of three pieces and a bit, with its snapshots.
struct Disk {
    snapshots: Vec<(u64, Vec<u8>)>,
    at: usize,
    asked: VecDeque<Extent>,
}

const SIZE: u64 = 3 * PIECE + 8192;

impl Disk {
    fn layout(&self) -> Layout {
        let snapshot = |(id, _): &(u64, Vec<u8>)| Snapshot { id: *id, name: format!("s{id}") };
        Layout { size: SIZE, snapshots: self.snapshots.iter().map(snapshot).collect(), head: 99 }
    }
}

impl Source for Disk {
    fn changes(&mut self, since: Option<u64>, size: u64) -> Result<Blocks, BackupError> {
        let zeroes = vec![0; size as usize];
        let old = since.map(|since| &self.snapshots.iter().find(|(id, _)| *id == since).unwrap().1);
        let (old, new) = (old.unwrap_or(&zeroes), &self.snapshots[self.at].1);
        let mut changes = Blocks::default();
        for block in 0..size >> BLOCK_BITS {
            let range = (block << BLOCK_BITS) as usize..((block + 1) << BLOCK_BITS) as usize;
            if old[range.clone()] != new[range] {
                changes.insert_all(Run { first: block, count: 1 });
            }
        }
        Ok(changes)
    }

    fn request(&mut self, extent: Extent) -> Result<(), BackupError> {
        self.asked.push_back(extent);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Extent, Bytes)>, BackupError> {
        let content = &self.snapshots[self.at].1;
        let read = |extent: Extent| {
            Bytes::copy_from_slice(&content[extent.offset() as usize..extent.end() as usize])
        };
        Ok(self.asked.pop_front().map(|extent| (extent, read(extent))))
    }
}

/// Two snapshots: the second changes one piece, clears one, leaves the last as it was.
fn disk() -> Disk {
    let mut one = vec![0; SIZE as usize];
    one[100] = 1;
    one[PIECE as usize + 5] = 2;
    one[3 * PIECE as usize] = 3;
    let mut two = one.clone();
    two[101] = 4;
    two[PIECE as usize + 5] = 0;
    Disk { snapshots: vec![(0, one), (7, two)], at: 0, asked: VecDeque::new() }
}

fn back_up(vault: &Memory, disk: &mut Disk, at: usize) -> Result<Created, BackupError> {
    back_up_as(vault, disk, at, &format!("b{at}"), None)
}

fn back_up_as(
    vault: &Memory,
    disk: &mut Disk,
    at: usize,
    name: &str,
    size: Option<u64>,
) -> Result<Created, BackupError> {
    (disk.at, disk.asked) = (at, VecDeque::new());
    let order = Order {
        engine: Address::Unix("engine".into()),
        volume: "v".into(),
        snapshot: disk.layout().snapshots[at].name.clone(),
        name: name.to_owned(),
        size,
    };
    let layout = disk.layout();
    create_from(vault, &order, &layout, disk, &mut |_| {})
}

/// What a backup brings back.
fn content(vault: &Memory, name: &str) -> Vec<u8> {
    let manifest = keep::find(vault, "v", name).unwrap();
    let mut whole = vec![0; manifest.size as usize];
    for (piece, block) in &manifest.pieces {
        let data = keep::fetch(vault, block).unwrap();
        whole[(piece * PIECE) as usize..][..data.len()].copy_from_slice(&data);
    }
    whole
}

fn assert_whole(vault: &Memory) {
    let verified = keep::verify(vault, None, None, &mut |_| {}).unwrap();
    assert_eq!(verified.damaged, []);
}

#[test]
fn the_second_backup_reads_and_writes_only_what_has_changed() {
    let (vault, mut disk) = (Memory::default(), disk());
    let first = back_up(&vault, &mut disk, 0).unwrap();
    assert_eq!((first.since, first.new_blocks, first.blocks), (None, 3, 3));
    assert_eq!(first.read_bytes, 2 * PIECE + 8192);
    let second = back_up(&vault, &mut disk, 1).unwrap();
    assert_eq!((second.since.as_deref(), second.new_blocks, second.blocks), (Some("b0"), 1, 2));
    assert_eq!(second.read_bytes, 2 * PIECE);
    assert!(content(&vault, "b0") == disk.snapshots[0].1 && content(&vault, "b1") == disk.snapshots[1].1);
    assert_eq!(back_up(&vault, &mut disk, 1).unwrap().read_bytes, 0, "it is made already");
    // Another volume of the same name has the same first layer and another above it.
    let mut other = self::disk();
    other.snapshots[1].0 = 8;
    vault.remove("volumes/v/b1").unwrap();
    assert_eq!(back_up(&vault, &mut other, 1).unwrap().since, None);
}

/// The volume had two pieces and a bit when the first snapshot was taken.
#[test]
fn a_backup_is_as_large_as_its_volume_was() {
    let small = 2 * PIECE + 4096;
    let (vault, mut disk) = (Memory::default(), disk());
    for at in 0..2 {
        disk.snapshots[at].1[small as usize..].fill(0);
        disk.snapshots[at].1[small as usize - 1] = 6;
    }
    disk.snapshots[1].1[small as usize] = 7;
    let first = back_up_as(&vault, &mut disk, 0, "small", Some(small)).unwrap();
    assert_eq!(first.size, small);
    assert!(content(&vault, "small") == disk.snapshots[0].1[..small as usize]);
    // The next one is of the whole volume, and begins where that one ended.
    let second = back_up_as(&vault, &mut disk, 1, "large", Some(SIZE + 4096)).unwrap();
    assert_eq!((second.size, second.since.as_deref()), (SIZE, Some("small")));
    assert!(content(&vault, "large") == disk.snapshots[1].1);
    // One that nobody told the size of is as large as the volume is, and no smaller one is built upon it.
    back_up_as(&vault, &mut disk, 0, "unknown", None).unwrap();
    vault.remove("volumes/v/small").unwrap();
    let again = back_up_as(&vault, &mut disk, 0, "again", Some(small)).unwrap();
    assert_eq!((again.size, again.since), (small, None));
    assert!(content(&vault, "again") == disk.snapshots[0].1[..small as usize]);
    assert_whole(&vault);
}

#[test]
fn stopped_at_any_write_a_backup_is_whole_or_not_there() {
    for (stop, takes_effect) in (1..40).flat_map(|stop| [(stop, false), (stop, true)]) {
        let (vault, mut disk) = (Memory::default(), disk());
        back_up(&vault, &mut disk, 0).unwrap();
        vault.left.set(Some(stop));
        vault.takes_effect.set(takes_effect);
        let ended = back_up(&vault, &mut disk, 1);
        vault.left.set(None);
        assert_whole(&vault);
        let there = keep::find(&vault, "v", "b1").is_ok();
        assert!(there || ended.is_err());
        if !there {
            back_up(&vault, &mut disk, 1).unwrap();
        }
        assert!(content(&vault, "b1") == disk.snapshots[1].1);
        if ended.is_ok() {
            assert!(stop > 4, "it was stopped in the middle of something");
            return;
        }
    }
    panic!("it never came to its end");
}

#[test]
fn stopped_at_any_write_a_deletion_removes_nothing_that_is_needed_and_ends_later() {
    for (stop, takes_effect) in (1..40).flat_map(|stop| [(stop, false), (stop, true)]) {
        let (vault, mut disk) = (Memory::default(), disk());
        back_up(&vault, &mut disk, 0).unwrap();
        back_up(&vault, &mut disk, 1).unwrap();
        vault.left.set(Some(stop));
        vault.takes_effect.set(takes_effect);
        let ended = keep::delete(&vault, "v", "b0");
        vault.left.set(None);
        assert_whole(&vault);
        assert!(content(&vault, "b1") == disk.snapshots[1].1);
        match keep::delete(&vault, "v", "b0") {
            Ok(swept) => assert!(swept.complete),
            Err(BackupError::NoBackup(_)) => assert!(keep::settle(&vault).unwrap().complete),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(vault.list("blocks").unwrap().len(), 2);
        if ended.is_ok() {
            assert!(stop > 3, "it was stopped in the middle of something");
            return;
        }
    }
    panic!("it never came to its end");
}

#[test]
fn a_sweep_waits_for_runs_and_fences_out_dead_ones() {
    let (vault, mut disk) = (Memory::default(), disk());
    back_up(&vault, &mut disk, 0).unwrap();
    vault.left.set(Some(2));
    vault.takes_effect.set(true);
    back_up(&vault, &mut disk, 1).unwrap_err();
    vault.left.set(None);
    assert!(matches!(keep::sweep(&vault), Err(BackupError::Busy { .. })), "a backup may be under way");
    assert!(vault.list("sweeping").unwrap().is_empty(), "a sweep that gave way is in nobody's way");
    vault.age(Duration::from_secs(3600));
    let run = vault.list("running").unwrap()[0].path.rsplit('/').next().unwrap().to_owned();
    assert_eq!(keep::sweep(&vault).unwrap().removed_blocks, 1);
    // The run was only asleep: it wakes up and writes its manifest, whose block is gone.
    let mut late = keep::find(&vault, "v", "b0").unwrap();
    (late.name, late.run) = ("late".into(), run);
    late.pieces.insert(0, BlockName::of(b"gone"));
    vault.put("volumes/v/late", late.encode()).unwrap();
    assert!(matches!(keep::find(&vault, "v", "late"), Err(BackupError::NoBackup(_))));
    assert_whole(&vault);
    assert_eq!(keep::list(&vault, None).unwrap().len(), 1);
}

#[test]
fn a_deletion_waits_for_nobody_and_the_next_backup_removes_its_blocks() {
    let (vault, mut disk) = (Memory::default(), disk());
    back_up(&vault, &mut disk, 0).unwrap();
    let kept = vault.list("blocks").unwrap().len();
    vault.left.set(Some(1));
    vault.takes_effect.set(true);
    back_up(&vault, &mut disk, 1).unwrap_err();
    vault.left.set(None);
    assert_eq!(vault.list("running").unwrap().len(), 1, "one that died counts");

    let swept = keep::delete(&vault, "v", "b0").unwrap();
    assert!(!swept.complete && swept.removed_blocks == 0);
    assert!(keep::list(&vault, None).unwrap().is_empty());
    assert_eq!(vault.list("blocks").unwrap().len(), kept);
    assert!(!keep::settle(&vault).unwrap().complete, "it still may be at work");

    vault.age(Duration::from_secs(3600));
    back_up(&vault, &mut disk, 1).unwrap();
    assert_whole(&vault);
    let named = keep::find(&vault, "v", "b1").unwrap().pieces.into_values().collect::<BTreeSet<_>>();
    assert_eq!(vault.list("blocks").unwrap().len(), named.len(), "nothing is left of the first");
    assert!(keep::settle(&vault).unwrap().complete);
    assert_eq!(vault.list("owed").unwrap(), []);
}

#[test]
fn damage_is_named_and_refused() {
    let (vault, mut disk) = (Memory::default(), disk());
    back_up(&vault, &mut disk, 0).unwrap();
    let block = vault.names().into_iter().find(|name| name.starts_with("blocks/")).unwrap();
    let good = vault.get(&block).unwrap().unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        // Some bits of a packed block mean nothing: then the bytes are still the right ones.
        let name = BlockName::at(&block).unwrap();
        assert!(block::decode(&name, &bad).map_or(true, |data| BlockName::of(&data) == name), "bit {bit}");
    }
    vault.remove(&block).unwrap();
    let verified = keep::verify(&vault, Some("v"), Some("b0"), &mut |_| {}).unwrap();
    assert_eq!(verified.damaged.len(), 1);
    assert_eq!(
        (&verified.damaged[0].why[..], &verified.damaged[0].backups[..]),
        ("it is not there", &["v/b0".to_owned()][..])
    );
    let raw = vault.get("volumes/v/b0").unwrap().unwrap();
    for bit in 0..raw.len() * 8 {
        let mut bad = raw.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&bad).is_err(), "bit {bit}");
    }
    let newer =
        String::from_utf8(raw.to_vec()).unwrap().replacen("midflight-backup 1 ", "midflight-backup 2 ", 1);
    assert!(matches!(Manifest::decode(newer.as_bytes()), Err(BadManifest::Format { theirs: 2 })));
    vault.put("volumes/v/b0", Bytes::from_static(b"rubbish")).unwrap();
    assert!(
        matches!(keep::sweep(&vault), Err(BackupError::Manifest { .. })),
        "nothing is removed on a guess"
    );
    assert_eq!(block::decode(&BlockName::of(b""), b"mfbl"), Err(BadBlock::Header));
}
