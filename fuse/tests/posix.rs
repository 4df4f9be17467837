//! What programs expect of a file system, one operation after the other, each on a
//! mount with and without caching.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions, Permissions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::Command,
    sync::Barrier,
    thread,
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FileType, Gid, Mode as Bits, OFlags, RenameFlags, Uid, XattrFlags,
        chown, fallocate, fchown, getxattr, getxattr_query, listxattr, mknodat, openat, removexattr,
        renameat_with, setxattr, statvfs, unlinkat,
    },
    io::Errno,
};

use support::{MODES, Mode, skipped, start};

type Check = fn(&Path);

#[rustfmt::skip]
const CHECKS: &[(&str, Check)] = &[
    ("create, exclusively too",       create),
    ("read, write, holes",            read_and_write),
    ("append",                        append),
    ("truncate",                      truncate),
    ("mkdir and rmdir",               folders),
    ("mknod",                         nodes),
    ("unlink, while open too",        unlink),
    ("rename",                        rename),
    ("link",                          links),
    ("symlink and readlink",          symbolic_links),
    ("readdir of many",               listing),
    ("readdir while entries go",      listing_while_entries_go),
    ("chmod, chown, utimens",         attributes),
    ("fsync and fsyncdir",            sync),
    ("statfs",                        statistics),
    ("xattrs",                        xattrs),
    ("fallocate",                     allocate),
    ("lseek to data and holes",       seek),
    ("copy_file_range",               copy),
    ("names of any bytes",            names),
    ("paths that lead out",           paths_that_lead_out),
    ("owners of what is made",        owners),
    ("rights that a write ends",      privileges),
    ("who may do what",               permissions),
    ("memory that is a file",         mapped),
    ("programs run from it",          programs),
];

#[test]
fn behaves_as_a_file_system_should() {
    if skipped() {
        return;
    }
    for mode in MODES {
        let served = start(mode);
        for (number, (name, check)) in CHECKS.iter().enumerate() {
            let folder = served.mount.join(number.to_string());
            fs::create_dir(&folder).unwrap();
            let checked = std::panic::catch_unwind(|| check(&folder));
            assert!(checked.is_ok(), "{name} ({mode:?})");
        }
    }
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}

/// Whoever does not insist on making the file opens that of the other; it stays as the other made it.
#[test]
fn a_file_that_two_make_at_once_belongs_to_the_one_who_made_it() {
    const ROUNDS: u32 = 300;
    if skipped() {
        return;
    }
    let served = start(Mode::Shared);
    let both = Barrier::new(2);
    for round in 0..ROUNDS {
        let name = round.to_string();
        let (at, past) = (served.mount.join(&name), served.source.join(&name));
        let made_past = thread::scope(|programs| {
            let other = programs.spawn(|| {
                both.wait();
                let mut file = File::create_new(&past).ok()?;
                fchown(&file, Some(Uid::from_raw(1234)), None).unwrap();
                file.write_all(b"of the other").unwrap();
                Some(())
            });
            both.wait();
            OpenOptions::new().create(true).append(true).open(&at).unwrap();
            other.join().unwrap().is_some()
        });
        let seen = fs::metadata(&past).unwrap();
        let expected = if made_past { (1234, 12) } else { (0, 0) };
        assert_eq!((seen.uid(), seen.len()), expected, "round {round}, made past the mount: {made_past}");
    }
}

fn create(at: &Path) {
    let file = at.join("file");
    File::create_new(&file).unwrap();
    assert_eq!(kind(File::create_new(&file)), ErrorKind::AlreadyExists);
    assert_eq!(kind(File::open(at.join("other"))), ErrorKind::NotFound);
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    assert_eq!(kind(File::create(at)), ErrorKind::IsADirectory);
    assert_eq!(kind(File::create(file.join("below"))), ErrorKind::NotADirectory);
    fs::write(&file, "long text").unwrap();
    fs::write(&file, "short").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"short");
    // What was looked for in vain is found once it is there.
    assert!(!at.join("late").exists());
    fs::write(at.join("late"), "").unwrap();
    assert!(at.join("late").exists());
}

fn read_and_write(at: &Path) {
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
    let pattern: Vec<u8> = (0..3_000_000u32).map(|number| (number / 7) as u8).collect();
    file.write_all(&pattern).unwrap();
    file.write_all_at(b"far", 10_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000_003);
    let mut all = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut all).unwrap();
    assert!(all[..pattern.len()] == pattern[..]);
    assert!(all[pattern.len()..10_000_000].iter().all(|byte| *byte == 0));
    assert_eq!(&all[10_000_000..], b"far");
    assert_eq!(file.read_at(&mut [0; 10], 10_000_003).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], 10_000_000).unwrap(), 3);
    let direct = OpenOptions::new().read(true).open(at.join("file")).unwrap();
    let mut part = [0; 1000];
    direct.read_exact_at(&mut part, 123_457).unwrap();
    assert!(part[..] == pattern[123_457..124_457]);
}

fn append(at: &Path) {
    let open = || OpenOptions::new().append(true).create(true).open(at.join("log")).unwrap();
    let (mut one, mut two) = (open(), open());
    for round in 0..10 {
        writeln!(one, "one {round}").unwrap();
        writeln!(two, "two {round}").unwrap();
    }
    let text = fs::read_to_string(at.join("log")).unwrap();
    assert_eq!(text.lines().count(), 20);
    assert!(text.lines().take(2).eq(["one 0", "two 0"]));
}

fn truncate(at: &Path) {
    let file = File::options().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    file.set_len(4).unwrap();
    file.set_len(8).unwrap();
    assert_eq!(fs::read(at.join("file")).unwrap(), b"0123\0\0\0\0");
    drop(File::options().write(true).truncate(true).open(at.join("file")).unwrap());
    assert_eq!(file.metadata().unwrap().len(), 0);
}

fn folders(at: &Path) {
    let folder = at.join("folder");
    let before = fs::metadata(at).unwrap().nlink();
    fs::create_dir(&folder).unwrap();
    assert_eq!(fs::metadata(at).unwrap().nlink(), before + 1);
    assert_eq!(kind(fs::create_dir(&folder)), ErrorKind::AlreadyExists);
    fs::write(folder.join("file"), "x").unwrap();
    assert_eq!(kind(fs::remove_dir(&folder)), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs::remove_dir(folder.join("file"))), ErrorKind::NotADirectory);
    fs::remove_file(folder.join("file")).unwrap();
    fs::remove_dir(&folder).unwrap();
    assert_eq!(kind(fs::remove_dir(&folder)), ErrorKind::NotFound);
    assert_eq!(fs::metadata(at).unwrap().nlink(), before);
    fs::create_dir_all(at.join("a/b/c/d/e")).unwrap();
    fs::remove_dir_all(at.join("a")).unwrap();
    assert!(!at.join("a").exists());
}

fn nodes(at: &Path) {
    let make = |name: &str, kind| mknodat(CWD, at.join(name), kind, Bits::from_raw_mode(0o640), 0);
    make("regular", FileType::RegularFile).unwrap();
    make("pipe", FileType::Fifo).unwrap();
    make("socket", FileType::Socket).unwrap();
    let is = |name: &str| fs::metadata(at.join(name)).unwrap();
    assert!(is("regular").is_file() && is("pipe").file_type().is_fifo());
    assert!(is("socket").file_type().is_socket());
    assert_eq!(is("regular").mode() & 0o777, 0o640 & !0o022);
    assert_eq!(make("regular", FileType::RegularFile), Err(Errno::EXIST));
    assert_eq!(make("device", FileType::CharacterDevice), Err(Errno::PERM));
    let writer = thread::spawn({
        let pipe = at.join("pipe");
        move || fs::write(pipe, "through the pipe").unwrap()
    });
    assert_eq!(fs::read_to_string(at.join("pipe")).unwrap(), "through the pipe");
    writer.join().unwrap();
}

fn unlink(at: &Path) {
    let path = at.join("file");
    fs::write(&path, "first").unwrap();
    let held = File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(kind(fs::metadata(&path)), ErrorKind::NotFound);
    fs::write(&path, "second").unwrap();
    held.write_all_at(b"FIRST and more", 0).unwrap();
    let mut text = [0; 14];
    held.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"FIRST and more");
    assert_eq!((held.metadata().unwrap().nlink(), held.metadata().unwrap().len()), (0, 14));
    held.set_len(3).unwrap();
    held.set_permissions(Permissions::from_mode(0o600)).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 3);
    assert_eq!(fs::read(&path).unwrap(), b"second");
    assert_eq!(unlinkat(CWD, at, AtFlags::empty()), Err(Errno::ISDIR));
    assert_eq!(kind(fs::remove_file(at.join("none"))), ErrorKind::NotFound);
}

fn rename(at: &Path) {
    let path = |name: &str| at.join(name);
    fs::write(path("a"), "a").unwrap();
    fs::write(path("b"), "b").unwrap();
    let inode = fs::metadata(path("a")).unwrap().ino();
    let held = File::open(path("b")).unwrap();
    fs::rename(path("a"), path("b")).unwrap();
    assert_eq!(fs::metadata(path("b")).unwrap().ino(), inode);
    assert_eq!(held.metadata().unwrap().nlink(), 0);
    assert!(!path("a").exists());
    fs::write(path("a"), "new").unwrap();
    let with = |from: &str, to: &str, flags| renameat_with(CWD, path(from), CWD, path(to), flags);
    assert_eq!(with("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    with("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(path("a")).unwrap(), fs::read(path("b")).unwrap()),
        (b"a".to_vec(), b"new".to_vec())
    );
    assert_eq!(with("a", "b", RenameFlags::WHITEOUT), Err(Errno::INVAL));
    fs::create_dir_all(path("x/y")).unwrap();
    fs::create_dir(path("z")).unwrap();
    fs::write(path("x/y/file"), "deep").unwrap();
    assert_eq!(with("x", "x/y/z", RenameFlags::empty()), Err(Errno::INVAL));
    assert_eq!(with("z", "x", RenameFlags::empty()), Err(Errno::NOTEMPTY));
    assert_eq!(with("a", "z", RenameFlags::empty()), Err(Errno::ISDIR));
    assert_eq!(with("z", "a", RenameFlags::empty()), Err(Errno::NOTDIR));
    with("x", "z", RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(path("z/y/file")).unwrap(), b"deep");
    assert_eq!(with("none", "a", RenameFlags::empty()), Err(Errno::NOENT));
}

fn links(at: &Path) {
    let (one, two) = (at.join("one"), at.join("two"));
    fs::write(&one, "one").unwrap();
    fs::hard_link(&one, &two).unwrap();
    let numbers = |path: &Path| fs::metadata(path).map(|seen| (seen.ino(), seen.nlink())).unwrap();
    assert_eq!(numbers(&one), numbers(&two));
    assert_eq!(numbers(&one).1, 2);
    fs::write(&two, "changed").unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"changed");
    assert_eq!(kind(fs::hard_link(&one, &two)), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs::hard_link(at, at.join("folder"))), ErrorKind::PermissionDenied);
    fs::remove_file(&one).unwrap();
    assert_eq!(numbers(&two).1, 1);
    assert_eq!(fs::read(&two).unwrap(), b"changed");
}

fn symbolic_links(at: &Path) {
    let long = "t".repeat(3000);
    for target in ["file", "/etc/../etc/hostname", "gone", "..", long.as_str()] {
        let link = at.join("link");
        symlink(target, &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap().as_os_str(), target);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(kind(symlink(target, &link)), ErrorKind::AlreadyExists);
        fs::remove_file(&link).unwrap();
    }
    fs::write(at.join("file"), "through").unwrap();
    symlink("file", at.join("link")).unwrap();
    assert_eq!(fs::read(at.join("link")).unwrap(), b"through");
    symlink("loop", at.join("loop")).unwrap();
    assert_eq!(Errno::from_io_error(&fs::read(at.join("loop")).err().unwrap()), Some(Errno::LOOP));
}

fn names_in(at: &Path) -> BTreeSet<OsString> {
    fs::read_dir(at).unwrap().map(|line| line.unwrap().file_name()).collect()
}

fn listing(at: &Path) {
    let expected: BTreeSet<OsString> =
        (0..2000).map(|number| format!("a-name-of-some-length-{number}").into()).collect();
    for name in &expected {
        fs::write(at.join(name), name.as_bytes()).unwrap();
    }
    assert_eq!(names_in(at), expected);
    for line in fs::read_dir(at).unwrap() {
        let line = line.unwrap();
        assert!(line.file_type().unwrap().is_file());
        assert_eq!(line.metadata().unwrap().len(), line.file_name().len() as u64);
    }
    assert_eq!(names_in(at), expected);
    fs::remove_file(at.join(expected.first().unwrap())).unwrap();
    fs::write(at.join("another"), "").unwrap();
    let listed = names_in(at);
    assert!(listed.contains(OsStr::new("another")) && !listed.contains(expected.first().unwrap()));
    assert_eq!(listed.len(), 2000);
}

fn listing_while_entries_go(at: &Path) {
    let count = 1500;
    for number in 0..count {
        fs::create_dir(at.join(number.to_string())).unwrap();
    }
    // As `rm -r` does it.
    let mut seen = BTreeSet::new();
    for line in fs::read_dir(at).unwrap() {
        let line = line.unwrap();
        fs::remove_dir(line.path()).unwrap();
        assert!(seen.insert(line.file_name()), "listed twice: {line:?}");
    }
    assert_eq!(seen.len(), count);
    assert!(names_in(at).is_empty());
}

fn attributes(at: &Path) {
    let path = at.join("file");
    fs::write(&path, "x").unwrap();
    for mode in [0o000, 0o600, 0o755, 0o4711, 0o2755, 0o1644] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
    }
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    chown(&path, Some(Uid::from_raw(12)), Some(Gid::from_raw(34))).unwrap();
    let seen = fs::metadata(&path).unwrap();
    assert_eq!((seen.uid(), seen.gid(), seen.mode() & 0o7777), (12, 34, 0o755));
    chown(&path, None, Some(Gid::from_raw(56))).unwrap();
    assert_eq!((fs::metadata(&path).unwrap().uid(), fs::metadata(&path).unwrap().gid()), (12, 56));
    symlink("nowhere", at.join("link")).unwrap();
    std::os::unix::fs::lchown(at.join("link"), Some(7), Some(8)).unwrap();
    assert_eq!(fs::symlink_metadata(at.join("link")).unwrap().uid(), 7);
    let past = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let file = File::open(&path).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(past)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
    fs::write(&path, "later").unwrap();
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > past);
    File::open(at).unwrap().set_times(fs::FileTimes::new().set_modified(past)).unwrap();
    assert_eq!(fs::metadata(at).unwrap().modified().unwrap(), past);
    fs::write(at.join("new"), "").unwrap();
    assert!(fs::metadata(at).unwrap().modified().unwrap() > past);
}

fn sync(at: &Path) {
    let mut file = File::create_new(at.join("file")).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    File::open(at).unwrap().sync_all().unwrap();
    rustix::fs::syncfs(&file).unwrap();
}

fn statistics(at: &Path) {
    let seen = statvfs(at).unwrap();
    assert!(seen.f_blocks > 0 && seen.f_bsize > 0 && seen.f_files > 0);
    assert!(seen.f_bfree <= seen.f_blocks);
    assert_eq!(seen.f_namemax, 255);
}

fn xattrs(at: &Path) {
    let path = at.join("file");
    fs::write(&path, "").unwrap();
    let get = |name: &str| {
        let mut value = vec![0; 256];
        getxattr(&path, name, &mut value).map(|length| value[..length].to_vec())
    };
    assert_eq!(get("user.none"), Err(Errno::NODATA));
    setxattr(&path, "user.one", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.one", b"1", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.two", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    setxattr(&path, "user.two", b"\0\xff", XattrFlags::empty()).unwrap();
    assert_eq!((get("user.one").unwrap(), get("user.two").unwrap()), (b"1".to_vec(), b"\0\xff".to_vec()));
    assert_eq!(getxattr(&path, "user.two", &mut [0; 1]), Err(Errno::RANGE));
    assert_eq!(getxattr_query(&path, "user.two"), Ok(2));
    let mut names = vec![0; 100];
    let length = listxattr(&path, &mut names).unwrap();
    let listed: BTreeSet<&[u8]> = names[..length].split_inclusive(|byte| *byte == 0).collect();
    assert!(listed.contains(&b"user.one\0"[..]) && listed.contains(&b"user.two\0"[..]));
    removexattr(&path, "user.one").unwrap();
    assert_eq!(removexattr(&path, "user.one"), Err(Errno::NODATA));
    setxattr(at, "user.folder", b"yes", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(at, "user.folder", &mut [0; 9]), Ok(3));
    // A list of who may do what would be kept and not obeyed.
    assert_eq!(
        setxattr(&path, "system.posix_acl_access", b"\x02\0\0\0", XattrFlags::empty()),
        Err(Errno::OPNOTSUPP)
    );
}

fn allocate(at: &Path) {
    let file = File::options().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    assert!(file.metadata().unwrap().blocks() >= (1 << 20) / 512);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    file.write_all_at(&[7; 12288], 0).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096).unwrap();
    let mut text = [1; 12288];
    file.read_exact_at(&mut text, 0).unwrap();
    assert!(text[..4096] == [7; 4096] && text[4096..8192] == [0; 4096] && text[8192..] == [7; 4096]);
    assert_eq!(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 4096), Err(Errno::OPNOTSUPP));
    let reader = File::open(at.join("file")).unwrap();
    assert_eq!(fallocate(&reader, FallocateFlags::empty(), 0, 1), Err(Errno::BADF));
}

fn seek(at: &Path) {
    let file = File::options().read(true).write(true).create_new(true).open(at.join("file")).unwrap();
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    file.sync_all().unwrap();
    use rustix::fs::{SeekFrom::*, seek};
    assert_eq!(seek(&file, Data(0)), Ok(1 << 20));
    assert_eq!(seek(&file, Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(&file, Data((1 << 20) + 4096)), Err(Errno::NXIO));
    assert_eq!(seek(&file, End(-1)), Ok((1 << 20) + 4095));
}

fn copy(at: &Path) {
    let text: Vec<u8> = (0..200_000u32).map(|number| (number / 3) as u8).collect();
    fs::write(at.join("from"), &text).unwrap();
    assert_eq!(fs::copy(at.join("from"), at.join("to")).unwrap(), text.len() as u64);
    assert!(fs::read(at.join("to")).unwrap() == text);
    let from = File::open(at.join("from")).unwrap();
    let to = File::options().write(true).open(at.join("to")).unwrap();
    let (mut start, mut into) = (5, 150_000);
    let mut left = 100_000;
    while left > 0 {
        left -= rustix::fs::copy_file_range(&from, Some(&mut start), &to, Some(&mut into), left).unwrap();
    }
    let copied = fs::read(at.join("to")).unwrap();
    assert!(copied.len() == 250_000 && copied[150_000..] == text[5..100_005]);
}

fn names(at: &Path) {
    let longest = OsString::from_vec(vec![b'n'; 255]);
    let odd: Vec<OsString> =
        [&b"\xff\xfe invalid"[..], b" ", b"...", b"new\nline", "\u{fc}\u{1f680}".as_bytes()]
            .map(|raw| OsStr::from_bytes(raw).to_owned())
            .into();
    for name in odd.iter().chain([&longest]) {
        fs::write(at.join(name), name.as_bytes()).unwrap();
        assert_eq!(fs::read(at.join(name)).unwrap(), name.as_bytes());
    }
    assert_eq!(names_in(at), odd.into_iter().chain([longest]).collect());
    for length in [256, 1000, 1024, 1025, 4000] {
        let name = at.join(OsString::from_vec(vec![b'n'; length]));
        for result in [
            fs::write(&name, ""),
            fs::metadata(&name).map(|_| ()),
            fs::create_dir(&name),
            fs::remove_file(&name),
            symlink("x", &name),
            fs::rename(at, &name),
        ] {
            let error = result.unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::NAMETOOLONG), "{length}: {error}");
        }
    }
}

fn paths_that_lead_out(at: &Path) {
    // The kernel resolves these; none may reach what lies beside the served folder.
    let beside = at.parent().unwrap().parent().unwrap().join("secret");
    fs::write(&beside, "secret").unwrap();
    let folder = openat(CWD, at, OFlags::PATH | OFlags::DIRECTORY, Bits::empty()).unwrap();
    let through = openat(&folder, "../secret", OFlags::RDONLY, Bits::empty());
    assert_eq!(through.err(), Some(Errno::NOENT));
    symlink("../secret", at.join("link")).unwrap();
    assert_eq!(kind(fs::read(at.join("link"))), ErrorKind::NotFound);
    // A link is followed by whoever reads it, in its own world, never by the daemon.
    symlink(&beside, at.join("absolute")).unwrap();
    assert_eq!(fs::read(at.join("absolute")).unwrap(), b"secret");
    assert_eq!(fs::symlink_metadata(at.join("absolute")).unwrap().len(), beside.as_os_str().len() as u64);
}

/// Runs a line of shell as an ordinary user; gives whether it succeeded.
fn as_user(at: &Path, line: &str) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1234", "--regid=5678", "--clear-groups", "sh", "-c", line]).current_dir(at);
    command.stderr(std::process::Stdio::null()).status().unwrap().success()
}

fn owners(at: &Path) {
    fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap();
    let mut world = at.to_owned();
    while world.pop() && fs::metadata(&world).unwrap().mode() & 0o005 == 0 {
        fs::set_permissions(&world, Permissions::from_mode(0o755)).unwrap();
    }
    assert!(as_user(at, "umask 027; touch file; mkdir folder; ln -s x link; mkfifo pipe; ln file other"));
    for name in ["file", "folder", "link", "pipe", "other"] {
        let seen = fs::symlink_metadata(at.join(name)).unwrap();
        assert_eq!((seen.uid(), seen.gid()), (1234, 5678), "{name}");
    }
    assert_eq!(fs::metadata(at.join("file")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(at.join("folder")).unwrap().mode() & 0o777, 0o750);
    let group = at.join("group");
    fs::create_dir(&group).unwrap();
    chown(&group, None, Some(Gid::from_raw(99))).unwrap();
    fs::set_permissions(&group, Permissions::from_mode(0o2777)).unwrap();
    assert!(as_user(at, "touch group/file; mkdir group/folder"));
    assert_eq!(fs::metadata(group.join("file")).unwrap().gid(), 99);
    let below = fs::metadata(group.join("folder")).unwrap();
    assert_eq!((below.uid(), below.gid(), below.mode() & 0o2000), (1234, 99, 0o2000));
}

fn privileges(at: &Path) {
    fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap();
    let mode = |name: &str| fs::metadata(at.join(name)).unwrap().mode() & 0o7777;
    for (name, line) in [
        ("written", "echo x >> written"),
        ("cut", "truncate -s 1 cut"),
        ("emptied", ": > emptied"),
        ("allocated", "fallocate -l 8192 allocated"),
    ] {
        fs::write(at.join(name), "program").unwrap();
        fs::set_permissions(at.join(name), Permissions::from_mode(0o6777)).unwrap();
        assert!(as_user(at, line), "{line}");
        assert_eq!(mode(name), 0o777, "{line}");
    }
    fs::write(at.join("mine"), "program").unwrap();
    fs::set_permissions(at.join("mine"), Permissions::from_mode(0o6755)).unwrap();
    OpenOptions::new().append(true).open(at.join("mine")).unwrap().write_all(b"by root").unwrap();
    assert_eq!(mode("mine"), 0o6755);
}

fn permissions(at: &Path) {
    fs::write(at.join("secret"), "secret").unwrap();
    fs::set_permissions(at.join("secret"), Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(at.join("closed")).unwrap();
    fs::set_permissions(at.join("closed"), Permissions::from_mode(0o700)).unwrap();
    fs::write(at.join("closed/file"), "").unwrap();
    assert!(as_user(at, "test -e secret"));
    for line in ["cat secret", "ls closed", "cat closed/file", "touch new", "rm secret", "chmod 777 secret"] {
        assert!(!as_user(at, line), "{line}");
    }
    fs::set_permissions(at.join("secret"), Permissions::from_mode(0o644)).unwrap();
    assert!(as_user(at, "cat secret > /dev/null"));
    assert!(!as_user(at, "echo x >> secret"));
    fs::set_permissions(at, Permissions::from_mode(0o1777)).unwrap();
    assert!(as_user(at, "touch mine && rm mine"));
    assert!(!as_user(at, "rm secret"));
}

fn mapped(at: &Path) {
    let program = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0)\n\
        assert m[:4]==b'0123'; m[8192:8196]=b'mmap'; m.flush(); m.close()\n";
    let path = at.join("file");
    fs::write(&path, [&b"0123"[..], &[0; 20_000]].concat()).unwrap();
    let status = Command::new("python3").args(["-c", program]).arg(&path).status().unwrap();
    assert!(status.success());
    assert_eq!(&fs::read(&path).unwrap()[8192..8196], b"mmap");
}

fn programs(at: &Path) {
    fs::copy("/bin/true", at.join("program")).unwrap();
    fs::set_permissions(at.join("program"), Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new(at.join("program")).status().unwrap().success());
    fs::set_permissions(at.join("program"), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(kind(Command::new(at.join("program")).status()), ErrorKind::PermissionDenied);
}
