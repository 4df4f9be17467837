use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    sync::Arc,
};

use midflight_handover::kernel::{HEAD_OUT, Head, ROOT, code, u32_at, u64_at};
use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::Errno,
};

use super::{Answer, Caching, Crowd, Folder};
use crate::wire::{
    call::{NodeId, Op},
    reply::Reply,
};

/// A folder that is asked without a kernel in between: things that a kernel would never send
/// can be asked, too.
struct Asked {
    folder: Folder,
    reply: Reply,
    caller: u32,
}

impl Asked {
    fn of(path: &Path, caching: Caching) -> Asked {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let crowd = Arc::new(Crowd::new(usize::MAX, Arc::new(wake)));
        Asked { folder: Folder::open(path, caching, crowd).unwrap(), reply: Reply::new(), caller: 0 }
    }

    /// What follows the head of the answer.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let head = Head { opcode, unique: 1, node, uid: self.caller, gid: self.caller };
        self.reply.begin();
        let answer = Op::parse(opcode, body).and_then(|op| self.folder.answer(&head, op, &mut self.reply))?;
        assert_eq!(answer, Answer::Ready);
        Ok(self.reply.finish(1, Ok(()))[HEAD_OUT..].to_vec())
    }

    fn look_up(&mut self, node: u64, name: &str) -> Result<u64, Errno> {
        let entry = self.ask(code::LOOKUP, node, format!("{name}\0").as_bytes())?;
        Ok(u64_at(&entry, 0))
    }

    fn forget(&mut self, node: u64, count: u64) {
        let head = Head { opcode: code::FORGET, unique: 1, node, uid: 0, gid: 0 };
        let body = count.to_ne_bytes();
        let op = Op::parse(code::FORGET, &body).unwrap();
        assert_eq!(self.folder.answer(&head, op, &mut self.reply), Ok(Answer::Unwanted));
    }
}

#[test]
fn no_link_is_followed_and_no_name_leads_out() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    symlink("../secret", served.join("link")).unwrap();
    symlink("..", served.join("up")).unwrap();
    let mut asked = Asked::of(&served, Caching::Shared);
    for name in ["..", ".", "../secret", "up/secret", "/etc/passwd", ""] {
        assert!(asked.look_up(ROOT, name).is_err(), "{name}");
    }
    let link = asked.look_up(ROOT, "link").unwrap();
    let up = asked.look_up(ROOT, "up").unwrap();
    assert_eq!(asked.look_up(up, "secret"), Err(Errno::NOTDIR));
    let read = [0u64, 0, 100, 0, 0].map(u64::to_ne_bytes).concat();
    assert_eq!(asked.ask(code::READ, link, &read), Err(Errno::INVAL));
    let create = [&[0; 16][..], b"link\0"].concat();
    assert_eq!(asked.ask(code::CREATE, ROOT, &create), Err(Errno::STALE));
    assert_eq!(fs::read(folder.path().join("secret")).unwrap(), b"secret");
}

/// The kernel saw no such name when it sent the call; somebody else has made it since.
#[test]
fn a_file_that_others_made_meanwhile_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "of others").unwrap();
    let before = fs::metadata(&path).unwrap();
    let mut asked = Asked::of(folder.path(), Caching::Shared);
    let create = |flags: OFlags| {
        [&flags.bits().to_ne_bytes()[..], &0o600_u32.to_ne_bytes(), &[0; 8], b"file\0"].concat()
    };
    for (uid, flags, expected) in [
        (0, OFlags::RDWR, Errno::STALE),
        (0, OFlags::RDWR | OFlags::TRUNC, Errno::STALE),
        (1000, OFlags::WRONLY | OFlags::TRUNC, Errno::STALE),
        (u32::MAX - 1, OFlags::RDWR, Errno::STALE),
        (0, OFlags::RDWR | OFlags::EXCL, Errno::EXIST),
    ] {
        asked.caller = uid;
        assert_eq!(asked.ask(code::CREATE, ROOT, &create(flags)), Err(expected), "{uid} {flags:?}");
        assert_eq!(fs::read(&path).unwrap(), b"of others", "{uid} {flags:?}");
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.uid(), after.mode()), (before.uid(), before.mode()), "{uid} {flags:?}");
    }
}

#[test]
fn contents_are_open_for_writing_only_where_somebody_writes() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "text").unwrap();
    let mut asked = Asked::of(folder.path(), Caching::Exclusive);
    let file = asked.look_up(ROOT, "file").unwrap();
    let rights = |asked: &Asked| {
        let node = asked.folder.nodes.get(NodeId(file)).unwrap();
        let data = node.data();
        fcntl_getfl(&data.as_ref().unwrap().descriptor).unwrap() & OFlags::RWMODE
    };
    let read = [0u64, 0, 100, 0, 0].map(u64::to_ne_bytes).concat();
    assert_eq!(asked.ask(code::READ, file, &read), Ok(b"text".to_vec()));
    assert_eq!(rights(&asked), OFlags::RDONLY);
    let write = [&[0u64, 0, 4, 0, 0].map(u64::to_ne_bytes).concat()[..], b"more"].concat();
    asked.ask(code::WRITE, file, &write).unwrap();
    assert_eq!(rights(&asked), OFlags::RDWR);
    assert_eq!(asked.ask(code::READ, file, &read), Ok(b"more".to_vec()));
    assert_eq!(rights(&asked), OFlags::RDWR, "one descriptor for all");
}

#[test]
fn calls_that_speak_of_no_node_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut asked = Asked::of(folder.path(), Caching::Exclusive);
    // So that the kernel sends no more of them.
    assert_eq!(asked.ask(code::INTERRUPT, 0, &[0; 8]), Err(Errno::NOSYS));
    assert_eq!(asked.ask(code::FLUSH, ROOT, &[0; 24]), Err(Errno::NOSYS));
    assert_eq!(asked.ask(code::DESTROY, 0, &[]), Ok(Vec::new()));
    assert_eq!(asked.ask(code::GETATTR, 0, &[]), Err(Errno::STALE));
}

#[test]
fn a_node_lives_as_long_as_the_kernel_counts_on_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "text").unwrap();
    fs::hard_link(folder.path().join("file"), folder.path().join("other")).unwrap();
    let mut asked = Asked::of(folder.path(), Caching::Exclusive);
    let file = asked.look_up(ROOT, "file").unwrap();
    assert_eq!(asked.look_up(ROOT, "other"), Ok(file));
    fs::remove_file(folder.path().join("file")).unwrap();
    fs::remove_file(folder.path().join("other")).unwrap();
    asked.forget(file, 1);
    let read = [0u64, 0, 100, 0, 0].map(u64::to_ne_bytes).concat();
    assert_eq!(asked.ask(code::READ, file, &read), Ok(b"text".to_vec()));
    asked.forget(file, 1);
    assert_eq!(asked.ask(code::GETATTR, file, &[]), Err(Errno::STALE));
    asked.forget(file, 1);
    asked.forget(ROOT, 5);
    assert_eq!(asked.folder.nodes.count(), 1);
    // A number is not given twice.
    fs::write(folder.path().join("file"), "new").unwrap();
    assert_ne!(asked.look_up(ROOT, "file"), Ok(file));
}

#[test]
fn contents_stay_readable_when_many_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let mut asked = Asked::of(folder.path(), Caching::Exclusive);
    let read = [0u64, 0, 100, 0, 0].map(u64::to_ne_bytes).concat();
    let mut nodes = Vec::new();
    for number in 0..1500 {
        let name = number.to_string();
        fs::write(folder.path().join(&name), &name).unwrap();
        nodes.push((asked.look_up(ROOT, &name).unwrap(), name.into_bytes()));
    }
    for _ in 0..2 {
        for (node, text) in &nodes {
            assert_eq!(asked.ask(code::READ, *node, &read).as_ref(), Ok(text));
        }
    }
    let open = fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 1500 + 1024 + 200, "{open} descriptors");
}

#[test]
fn what_is_not_there_is_remembered_only_where_nobody_else_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut exclusive = Asked::of(folder.path(), Caching::Exclusive);
    let absent = exclusive.ask(code::LOOKUP, ROOT, b"none\0").unwrap();
    assert_eq!((absent.len(), u64_at(&absent, 0)), (128, 0));
    assert!(u64_at(&absent, 16) > 0);
    let mut shared = Asked::of(folder.path(), Caching::Shared);
    assert_eq!(shared.look_up(ROOT, "none"), Err(Errno::NOENT));
    fs::write(folder.path().join("file"), "").unwrap();
    let entry = shared.ask(code::LOOKUP, ROOT, b"file\0").unwrap();
    assert_eq!((u64_at(&entry, 16), u64_at(&entry, 24), u32_at(&entry, 32)), (0, 0, 0));
}
