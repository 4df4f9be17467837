//! What a replica finds in its folder when it starts, whatever has happened to it: one file
//! is what the fuzzer gives, the others are as they were left.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use midflight_block::{
    extent::Extent,
    replica::{
        disk::Disk,
        layers::{Patience, Worked},
        promise::PromiseFile,
        store::Store,
    },
    wire::layout::Step,
};

const SIZE: u64 = 64 << 10;
const BOOT: u64 = 1;
/// A file that would be larger is refused, as by a full disk.
const LARGEST: u64 = 4 << 20;
const SLOT_OF_LAYERS: usize = 128 << 10;
const SLOT_OF_PROMISE: usize = 4096;
const SECTOR: usize = 512;

/// Files in memory.
#[derive(Debug, Clone, Default)]
struct Files(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Files {
    fn on<R>(&self, name: &str, act: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(files.entry(name.to_owned()).or_default())
    }
}

fn within(size: u64) -> io::Result<usize> {
    if size <= LARGEST { Ok(size as usize) } else { Err(io::ErrorKind::StorageFull.into()) }
}

impl Disk for Files {
    type File = String;

    fn open(&self, name: &str) -> io::Result<String> {
        self.on(name, |_| Ok(name.to_owned()))
    }

    fn size(&self, file: &String) -> io::Result<u64> {
        self.on(file, |bytes| Ok(bytes.len() as u64))
    }

    fn resize(&self, file: &String, size: u64) -> io::Result<()> {
        let size = within(size)?;
        self.on(file, |bytes| bytes.resize(size, 0));
        Ok(())
    }

    fn read_at(&self, file: &String, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.on(file, |bytes| {
            let there = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)?.get(..buffer.len()));
            buffer.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn read_cached(&self, file: &String, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(file, buffer, offset)
    }

    fn write_at(&self, file: &String, data: &[u8], offset: u64) -> io::Result<()> {
        let end = within(offset.saturating_add(data.len() as u64))?;
        self.on(file, |bytes| {
            bytes.resize(bytes.len().max(end), 0);
            bytes[end - data.len()..end].copy_from_slice(data);
            Ok(())
        })
    }

    fn punch(&self, file: &String, offset: u64, length: u64) -> io::Result<()> {
        self.write_at(file, &vec![0; within(length)?], offset)
    }

    fn sync(&self, _: &String) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }

    fn next_data(&self, file: &String, from: u64) -> io::Result<Option<(u64, u64)>> {
        let size = self.size(file)?;
        Ok((from < size).then_some((from, size)))
    }
}

/// What a copy has left in its folder.
fn copy() -> Files {
    static COPY: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    let left = COPY.get_or_init(|| {
        let made = make().expect("a new folder can be made");
        made.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    });
    Files(Arc::new(Mutex::new(left.clone())))
}

/// A copy with two snapshots, and a note of what another copy misses.
fn make() -> io::Result<Files> {
    let files = Files::default();
    let mut store = Store::open(&files, SIZE, BOOT)?;
    for (head, fill) in [(7, 1), (8, 2)] {
        store.write(head * 4096, &[fill; 4096])?;
        store.take_step(&Step::Freeze { name: format!("snapshot-{head}"), head })?;
    }
    store.write(0, &[3; 4096])?;
    let missing = store.regions();
    store.absent.begin(9, 1, &missing)?;
    PromiseFile::open(files.clone()).map_err(io::Error::other)?;
    Ok(files)
}

/// A list of layers with the checksum that it must have.
fn sealed_layers(body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len().min(SLOT_OF_LAYERS - 28)];
    let mut raw = b"mfchain\0".to_vec();
    raw.extend(1u32.to_le_bytes());
    raw.extend((body.len() as u32).to_le_bytes());
    raw.extend(99u64.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&raw);
    hasher.update(body);
    raw.extend(hasher.finalize().to_le_bytes());
    raw.extend(body);
    raw.resize(2 * SLOT_OF_LAYERS, 0);
    raw
}

fn sealed_promise(body: &[u8]) -> Vec<u8> {
    let mut raw = vec![0; 2 * SLOT_OF_PROMISE];
    raw[..8].copy_from_slice(b"mfpromis");
    let count = body.len().min(SLOT_OF_PROMISE - 12);
    raw[8..8 + count].copy_from_slice(&body[..count]);
    let check = crc32fast::hash(&raw[..SLOT_OF_PROMISE - 4]);
    raw[SLOT_OF_PROMISE - 4..SLOT_OF_PROMISE].copy_from_slice(&check.to_le_bytes());
    raw
}

/// Sectors with the checksums that a layer's maps must have; the first is the header.
fn sealed_sectors(body: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    for (at, part) in body.chunks(SECTOR - 4).enumerate() {
        let mut sector = part.to_vec();
        sector.resize(SECTOR - 4, 0);
        let number = (at as u64).checked_sub(1).unwrap_or(u64::MAX);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&number.to_le_bytes());
        hasher.update(&sector);
        sector.extend(hasher.finalize().to_le_bytes());
        raw.extend(sector);
    }
    raw
}

/// The first byte says which file it is, and whether it is sealed.
pub(crate) fn replica_metadata(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let files = copy();
    let names = files.names().expect("files in memory have names");
    let name = &names[usize::from(choice / 4) % names.len()];
    let (name, content) = match choice % 4 {
        0 => ("layers", sealed_layers(body)),
        1 => ("promise", sealed_promise(body)),
        2 => (name.as_str(), sealed_sectors(body)),
        _ => (name.as_str(), body.to_vec()),
    };
    files.on(name, |file| *file = content);
    // Whatever is found is refused, or served as it is; nobody falls over it.
    let _ = PromiseFile::open(files.clone());
    let Ok(mut store) = Store::open(&files, SIZE, BOOT) else { return };
    let length = store.size().min(SIZE) as u32;
    let Some(extent) = Extent::new(0, length) else { return };
    if let Ok(data) = store.read(extent) {
        assert_eq!(data.len(), length as usize, "a read gives what was asked for");
    }
    for place in 0..store.layout().snapshots.len() {
        let _ = store.layers().read_snapshot(place, extent);
    }
    let _ = store.absent.get(9);
    let _ = store.write(0, &[4; 4096]);
    for _ in 0..16 {
        let worked = if store.has_work() { store.work(Patience::Wait) } else { Ok(Worked::Piece) };
        let synced = match worked {
            Ok(Worked::Piece) => Ok(()),
            Ok(Worked::WantsSync) => store
                .sync_plan(false)
                .and_then(|plan| plan.carry_out(&files))
                .and_then(|carried| store.synced(carried)),
            Err(error) => Err(error),
        };
        if synced.is_err() {
            return;
        }
    }
}
