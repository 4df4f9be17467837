//! Random operations on a mount and on a folder beside it: both must say the same and
//! look the same.
//!
//! `MIDFLIGHT_FUSE_STEPS` says how many, `MIDFLIGHT_SEED` replays a run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{
        CWD, FallocateFlags, RenameFlags, XattrFlags, copy_file_range, fallocate, getxattr, listxattr,
        removexattr, renameat_with, setxattr,
    },
    io::Errno,
};

use support::{Dice, Mode, mounts_below, skipped, start};

/// What an operation said; errors by their numbers.
type Said = Result<Vec<u8>, i32>;

/// Few names, so that operations meet.
const NAMES: [&[u8]; 7] = [b"a", b"b", b"c", b"\xff\xfe", b"a long name with spaces", b"d", b"e"];
const MOST_HELD: usize = 6;
const MOST_LENGTH: u64 = 40_000;

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

fn said<T>(result: io::Result<T>, tell: impl FnOnce(T) -> Vec<u8>) -> Said {
    result.map(tell).map_err(|error| number(&error))
}

fn done<T>(result: io::Result<T>) -> Said {
    said(result, |_| Vec::new())
}

fn done_errno<T>(result: Result<T, Errno>) -> Said {
    done(result.map_err(io::Error::from))
}

/// One of the two folders, and the files that are open in it.
struct Side {
    root: PathBuf,
    held: Vec<File>,
}

/// An operation, the same for both sides.
#[derive(Debug, Clone)]
enum Step {
    Create(PathBuf, Vec<u8>),
    CreateNew(PathBuf),
    Append(PathBuf, Vec<u8>),
    WriteAt(PathBuf, u64, Vec<u8>),
    Read(PathBuf),
    SetLength(PathBuf, u64),
    MakeFolder(PathBuf),
    RemoveFolder(PathBuf),
    RemoveFile(PathBuf),
    Rename(PathBuf, PathBuf, RenameFlags),
    Link(PathBuf, PathBuf),
    SymbolicLink(PathBuf, PathBuf),
    ReadLink(PathBuf),
    List(PathBuf),
    Look(PathBuf),
    SetMode(PathBuf, u32),
    SetTime(PathBuf, u64),
    SetXattr(PathBuf, u8, Vec<u8>, XattrFlags),
    GetXattr(PathBuf, u8),
    ListXattrs(PathBuf),
    RemoveXattr(PathBuf, u8),
    Allocate(PathBuf, FallocateFlags, u64, u64),
    Copy(PathBuf, PathBuf, u64, u64, usize),
    Sync(PathBuf),
    Hold(PathBuf),
    LetGo(usize),
    HeldWrite(usize, u64, Vec<u8>),
    HeldRead(usize, u64, usize),
    HeldLength(usize, u64),
    HeldLook(usize),
}

fn path(dice: &mut Dice) -> PathBuf {
    let depth = dice.pick(&[1, 1, 1, 2, 2, 3]);
    let mut path = PathBuf::new();
    for _ in 0..depth {
        path.push(OsStr::from_bytes(dice.pick(&NAMES)));
    }
    path
}

fn bytes(dice: &mut Dice) -> Vec<u8> {
    let length = dice.pick(&[0, 1, 10, 100, 4096, 5000, 20_000]);
    let first = dice.roll(256) as u8;
    (0..length).map(|index| first.wrapping_add((index % 251) as u8)).collect()
}

fn step(dice: &mut Dice) -> Step {
    let at = path(dice);
    let offset = dice.roll(MOST_LENGTH);
    let slot = dice.roll(MOST_HELD as u64) as usize;
    let name = dice.roll(3) as u8;
    match dice.roll(34) {
        0..=2 => Step::Create(at, bytes(dice)),
        3 => Step::CreateNew(at),
        4 => Step::Append(at, bytes(dice)),
        5 | 6 => Step::WriteAt(at, offset, bytes(dice)),
        7 | 8 => Step::Read(at),
        9 => Step::SetLength(at, offset),
        10 | 11 => Step::MakeFolder(at),
        12 => Step::RemoveFolder(at),
        13 => Step::RemoveFile(at),
        14 | 15 => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            Step::Rename(at, path(dice), dice.pick(&flags))
        }
        16 => Step::Link(at, path(dice)),
        17 => Step::SymbolicLink(path(dice), at),
        18 => Step::ReadLink(at),
        19 => Step::List(at),
        20 | 21 => Step::Look(at),
        22 => Step::SetMode(at, dice.pick(&[0o600, 0o644, 0o755, 0o4755, 0o2711, 0o1777])),
        23 => Step::SetTime(at, dice.roll(2_000_000_000)),
        24 => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
            Step::SetXattr(at, name, vec![name; dice.roll(200) as usize], dice.pick(&flags))
        }
        25 => match dice.roll(3) {
            0 => Step::GetXattr(at, name),
            1 => Step::ListXattrs(at),
            _ => Step::RemoveXattr(at, name),
        },
        26 => {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let flags =
                [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE, hole, FallocateFlags::ZERO_RANGE];
            Step::Allocate(at, dice.pick(&flags), offset, dice.roll(MOST_LENGTH) + 1)
        }
        27 => Step::Copy(at, path(dice), offset, dice.roll(MOST_LENGTH), dice.roll(20_000) as usize),
        28 => Step::Sync(at),
        29 => Step::Hold(at),
        30 => Step::LetGo(slot),
        31 => Step::HeldWrite(slot, offset, bytes(dice)),
        32 => Step::HeldRead(slot, offset, dice.roll(10_000) as usize),
        _ => match dice.roll(2) {
            0 => Step::HeldLength(slot, offset),
            _ => Step::HeldLook(slot),
        },
    }
}

/// What is comparable of a file: not times, inodes and places on disk.
fn look(seen: &fs::Metadata) -> Vec<u8> {
    let size = if seen.is_dir() { 0 } else { seen.len() };
    format!("{:o} {} {} {} {size}", seen.mode(), seen.uid(), seen.gid(), seen.nlink()).into_bytes()
}

fn xattr(name: u8) -> String {
    format!("user.{name}")
}

impl Side {
    fn new(root: PathBuf) -> Side {
        Side { root, held: Vec::new() }
    }

    fn slot(&self, slot: usize) -> Option<&File> {
        (!self.held.is_empty()).then(|| &self.held[slot % self.held.len()])
    }

    fn take(&mut self, step: &Step) -> Said {
        let root = self.root.clone();
        let at = |path: &Path| root.join(path);
        match step {
            Step::Create(path, text) => done(fs::write(at(path), text)),
            Step::CreateNew(path) => done(File::create_new(at(path))),
            Step::Append(path, text) => {
                let file = OpenOptions::new().append(true).create(true).open(at(path));
                done(file.and_then(|mut file| io::Write::write_all(&mut file, text)))
            }
            Step::WriteAt(path, offset, text) => {
                let file = OpenOptions::new().write(true).open(at(path));
                done(file.and_then(|file| file.write_all_at(text, *offset)))
            }
            Step::Read(path) => said(fs::read(at(path)), |text| text),
            Step::SetLength(path, length) => {
                let file = OpenOptions::new().write(true).open(at(path));
                done(file.and_then(|file| file.set_len(*length)))
            }
            Step::MakeFolder(path) => done(fs::create_dir(at(path))),
            Step::RemoveFolder(path) => done(fs::remove_dir(at(path))),
            Step::RemoveFile(path) => done(fs::remove_file(at(path))),
            Step::Rename(from, to, flags) => done_errno(renameat_with(CWD, at(from), CWD, at(to), *flags)),
            Step::Link(from, to) => done(fs::hard_link(at(from), at(to))),
            Step::SymbolicLink(target, path) => done(symlink(target, at(path))),
            Step::ReadLink(path) => {
                said(fs::read_link(at(path)), |target| target.as_os_str().as_bytes().to_vec())
            }
            Step::List(path) => said(list(&at(path)), |names| names.join(&b'/')),
            Step::Look(path) => said(fs::symlink_metadata(at(path)), |seen| look(&seen)),
            Step::SetMode(path, mode) => done(fs::set_permissions(at(path), Permissions::from_mode(*mode))),
            Step::SetTime(path, seconds) => set_time(&at(path), *seconds),
            Step::SetXattr(path, name, value, flags) => {
                done_errno(setxattr(at(path), xattr(*name), value, *flags))
            }
            Step::GetXattr(path, name) => {
                let mut value = vec![0; 300];
                let length = getxattr(at(path), xattr(*name), &mut value).map_err(io::Error::from);
                said(length, |length| value[..length].to_vec())
            }
            Step::ListXattrs(path) => {
                let mut names = vec![0; 300];
                let length = listxattr(at(path), &mut names).map_err(io::Error::from);
                said(length, |length| names[..length].to_vec())
            }
            Step::RemoveXattr(path, name) => done_errno(removexattr(at(path), xattr(*name))),
            Step::Allocate(path, flags, offset, length) => {
                let file = OpenOptions::new().write(true).open(at(path)).map_err(|error| number(&error))?;
                done_errno(fallocate(file, *flags, *offset, *length))
            }
            Step::Copy(from, to, start, into, length) => {
                let from = File::open(at(from)).map_err(|error| number(&error))?;
                let to = OpenOptions::new().write(true).open(at(to)).map_err(|error| number(&error))?;
                let (mut start, mut into) = (*start, *into);
                let copied = copy_file_range(&from, Some(&mut start), &to, Some(&mut into), *length);
                said(copied.map_err(io::Error::from), |count| count.to_string().into_bytes())
            }
            Step::Sync(path) => done(File::open(at(path)).and_then(|file| file.sync_data())),
            Step::Hold(path) => {
                let file = OpenOptions::new().read(true).write(true).open(at(path));
                let file = file.map_err(|error| number(&error))?;
                if self.held.len() == MOST_HELD {
                    self.held.remove(0);
                }
                self.held.push(file);
                Ok(Vec::new())
            }
            Step::LetGo(slot) => {
                if !self.held.is_empty() {
                    self.held.remove(slot % self.held.len());
                }
                Ok(Vec::new())
            }
            Step::HeldWrite(slot, offset, text) => {
                self.slot(*slot).map_or(Ok(Vec::new()), |file| done(file.write_all_at(text, *offset)))
            }
            Step::HeldRead(slot, offset, length) => self.slot(*slot).map_or(Ok(Vec::new()), |file| {
                let mut text = vec![0; *length];
                said(file.read_at(&mut text, *offset), |count| text[..count].to_vec())
            }),
            Step::HeldLength(slot, length) => {
                self.slot(*slot).map_or(Ok(Vec::new()), |file| done(file.set_len(*length)))
            }
            Step::HeldLook(slot) => {
                self.slot(*slot).map_or(Ok(Vec::new()), |file| said(file.metadata(), |seen| look(&seen)))
            }
        }
    }
}

fn set_time(path: &Path, seconds: u64) -> Said {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let set = File::open(path).and_then(|file| file.set_times(FileTimes::new().set_modified(time)));
    set.map_err(|error| number(&error))?;
    let seen = fs::metadata(path).and_then(|seen| seen.modified()).map_err(|error| number(&error))?;
    assert_eq!(seen, time, "{}", path.display());
    Ok(Vec::new())
}

fn list(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let names: io::Result<Vec<_>> =
        fs::read_dir(folder)?.map(|line| line.map(|line| line.file_name().as_bytes().to_vec())).collect();
    let mut names = names?;
    names.sort();
    Ok(names)
}

/// Everything below a folder.
fn tree(root: &Path) -> BTreeMap<PathBuf, (Vec<u8>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for line in fs::read_dir(root.join(&folder)).unwrap() {
            let path = folder.join(line.unwrap().file_name());
            let seen = fs::symlink_metadata(root.join(&path)).unwrap();
            let contents = match seen.file_type() {
                kind if kind.is_dir() => {
                    folders.push(path.clone());
                    Vec::new()
                }
                kind if kind.is_symlink() => {
                    fs::read_link(root.join(&path)).unwrap().as_os_str().as_bytes().to_vec()
                }
                _ => fs::read(root.join(&path)).unwrap(),
            };
            found.insert(path, (look(&seen), contents));
        }
    }
    found
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[allow(clippy::print_stderr)]
fn walk(mode: Mode, steps: u64, seed: u64) {
    const LOOK_EVERY: u64 = 1000;
    eprintln!("{mode:?}: {steps} steps, MIDFLIGHT_SEED={seed}");
    let mut dice = Dice::new(seed);
    let served = start(mode);
    let reference = served.source.parent().unwrap().join("reference");
    fs::create_dir(&reference).unwrap();
    let mut ours = Side::new(served.mount.clone());
    let mut theirs = Side::new(reference.clone());
    for number in 1..=steps {
        let step = step(&mut dice);
        let (we, they) = (ours.take(&step), theirs.take(&step));
        let full = Err(Errno::NOSPC.raw_os_error());
        assert!(
            we != full && they != full,
            "the disk is full at step {number} of seed {seed}: nothing is shown"
        );
        assert!(we == they, "step {number} of seed {seed}: {step:?}: {}, not {}", short(&we), short(&they));
        if number % LOOK_EVERY == 0 || number == steps {
            assert!(
                tree(&served.mount) == tree(&reference),
                "trees differ after step {number} of seed {seed}"
            );
            assert!(tree(&served.source) == tree(&reference), "the folder differs after step {number}");
        }
    }
    assert_eq!(mounts_below(&served.mount), 1);
}

fn short(said: &Said) -> String {
    match said {
        Ok(text) => {
            format!("{} bytes: {:?}", text.len(), String::from_utf8_lossy(&text[..text.len().min(60)]))
        }
        Err(number) => format!("error {}", io::Error::from_raw_os_error(*number)),
    }
}

#[test]
fn a_mount_and_a_folder_are_the_same() {
    if skipped() {
        return;
    }
    let steps = from_environment("MIDFLIGHT_FUSE_STEPS", 10_000);
    let seed = from_environment("MIDFLIGHT_SEED", 7);
    walk(Mode::Exclusive, steps / 2, seed);
    walk(Mode::Shared, steps / 2, seed + 1);
}
