//! Becomes the program of a container: puts its view of the files together, and runs it there.
//!
//! The view is the image's own files, the machine's system folders where the image has none, empty folders to write
//! into, and the volumes of the pod.
//!
//! The one invariant: of the machine's and the image's files, a container can change only what is mounted for it.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::symlink, process::CommandExt},
    },
    path::{Component, Path, PathBuf},
    process::Command,
};

use rustix::{
    fs::CWD,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_bind,
        mount_bind_recursive, mount_change, mount_remount, move_mount, open_tree, unmount,
    },
    process::{Signal, chdir, getegid, geteuid, getppid, pivot_root, set_parent_process_death_signal},
};

use super::{Blueprint, MARK, Mount, Room, RoomError};
use crate::{
    mount_table::{self, Line, TABLE},
    process::own_namespaces,
};

/// System folders that a program may need, seen as they are on the machine; read-only.
const SYSTEM: [&str; 10] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "nix"];
/// What the kernel shows; as it is on the machine.
const KERNEL: [&str; 3] = ["dev", "proc", "sys"];
/// Empty at the start, and writable.
const SCRATCH: [&str; 5] = ["tmp", "run", "var", "root", "home"];

/// Why a container could not be started.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("read the room of the container")]
    Room(#[from] RoomError),
    #[error("the room has no blueprint")]
    NoBlueprint,
    #[error("the shim has ended")]
    Orphaned,
    #[error("{doing} {path}", path = path.display())]
    Path { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{doing}")]
    System { doing: &'static str, source: io::Error },
    #[error("volume at {path}: what is mounted there is to be seen by the node, for which it must be root", path = path.display())]
    NeedsRoot { path: PathBuf },
    #[error("run {program}")]
    Run { program: String, source: io::Error },
}

/// Becomes the container's program, or says in the room why not. Must be called before there is a second thread.
pub fn init(folder: &Path, shim: i32) -> Result<Infallible, InitError> {
    let room = Room::at(folder);
    let path = room.error();
    // Opened now: the room is out of sight once the container's files are the root.
    let mut note = File::create(&path).map_err(at("make", &path))?;
    let path_of_entered = room.entered();
    let mut entered = File::create(&path_of_entered).map_err(at("make", &path_of_entered))?;
    let Err(error) = run(&room, shim, &mut entered);
    note.write_all(crate::chain(&error).as_bytes()).map_err(at("write", &path))?;
    Err(error)
}

fn run(room: &Room, shim: i32, entered: &mut File) -> Result<Infallible, InitError> {
    let blueprint = room.blueprint()?.ok_or(InitError::NoBlueprint)?;
    set_up(room, &blueprint)?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| system("follow the shim")(e.into()))?;
    // It may have died before it could take us along.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(shim) {
        return Err(InitError::Orphaned);
    }
    let path = Path::new(&blueprint.working_directory);
    chdir(path).map_err(|errno| at("change to", path)(errno.into()))?;
    entered.write_all(b"entered").map_err(at("write", &room.entered()))?;
    let program = blueprint.command.first().cloned().unwrap_or_default();
    let source = Command::new(&program)
        .args(blueprint.command.iter().skip(1))
        .env_clear()
        .envs(blueprint.environment)
        .env(MARK, room.path())
        .exec();
    Err(InitError::Run { program, source })
}

fn set_up(room: &Room, blueprint: &Blueprint) -> Result<(), InitError> {
    let is_root = geteuid().is_root();
    // Taken while our mounts are still those of the node, so that they stay connected to them.
    let shared = shared_trees(blueprint, is_root)?;
    separate(is_root)?;
    let root = room.root();
    fs::create_dir_all(&root).map_err(at("make", &root))?;
    bind(&root, &root)?;
    put_files(&root, &blueprint.files)?;
    let mut mounts: Vec<(&Mount, Option<&OwnedFd>)> =
        blueprint.mounts.iter().zip(shared.iter().map(Option::as_ref)).collect();
    mounts.sort_by_key(|(mount, _)| mount.target.components().count());
    for (mount, tree) in mounts {
        put_volume(&root, mount, tree)?;
    }
    enter_root(&root)
}

fn shared_trees(blueprint: &Blueprint, is_root: bool) -> Result<Vec<Option<OwnedFd>>, InitError> {
    let tree = |mount: &Mount| {
        if !mount.bidirectional {
            return Ok(None);
        }
        if !is_root {
            return Err(InitError::NeedsRoot { path: mount.target.clone() });
        }
        share(&mount.source)?;
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let opened = open_tree(CWD, &mount.source, flags);
        opened.map(Some).map_err(|errno| at("take the mounts of", &mount.source)(errno.into()))
    };
    blueprint.mounts.iter().map(tree).collect()
}

/// Makes what is mounted below a folder known to all who have it. A machine whose mounts are private shows it
/// as a mount of its own for that; once.
fn share(folder: &Path) -> Result<(), InitError> {
    let table = mounts()?;
    let folder = fs::canonicalize(folder).map_err(at("look at", folder))?;
    let own = table.iter().rfind(|line| line.at == folder);
    if own.is_some_and(|line| line.is_shared) {
        return Ok(());
    }
    if own.is_none() {
        mount_bind(&folder, &folder).map_err(|errno| at("mount", &folder)(errno.into()))?;
    }
    mount_change(&folder, MountPropagationFlags::SHARED).map_err(|errno| at("share", &folder)(errno.into()))
}

/// Leaves the node's mounts: theirs are seen here, ours are not seen there.
fn separate(is_root: bool) -> Result<(), InitError> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    own_namespaces(is_root).map_err(system("get mounts of its own"))?;
    if !is_root {
        let write = |name: &str, text: String| {
            let path = Path::new("/proc/self").join(name);
            fs::write(&path, text).map_err(at("write", &path))
        };
        write("setgroups", "deny".into())?;
        write("uid_map", format!("{user} {user} 1"))?;
        write("gid_map", format!("{group} {group} 1"))?;
    }
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(|errno| system("separate mounts")(errno.into()))
}

fn put_files(root: &Path, image: &Path) -> Result<(), InitError> {
    let mut there = BTreeSet::new();
    for entry in fs::read_dir(image).map_err(at("read", image))? {
        let entry = entry.map_err(at("read", image))?;
        if KERNEL.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        put_entry(root, &entry.path(), &entry.file_name())?;
        there.insert(entry.file_name());
    }
    for name in SYSTEM.map(OsString::from) {
        let source = Path::new("/").join(&name);
        if !there.contains(&name) && fs::symlink_metadata(&source).is_ok() {
            put_entry(root, &source, &name)?;
        }
    }
    for name in KERNEL {
        let target = root.join(name);
        fs::create_dir_all(&target).map_err(at("make", &target))?;
        bind(&Path::new("/").join(name), &target)?;
    }
    for name in SCRATCH.map(OsString::from) {
        let target = root.join(&name);
        if !there.contains(&name) {
            fs::create_dir_all(&target).map_err(at("make", &target))?;
        }
    }
    Ok(())
}

/// Shows one entry of a folder in the root, read-only.
fn put_entry(root: &Path, source: &Path, name: &OsStr) -> Result<(), InitError> {
    let target = root.join(name);
    let kind = fs::symlink_metadata(source).map_err(at("look at", source))?.file_type();
    if kind.is_symlink() {
        let to = fs::read_link(source).map_err(at("read", source))?;
        return symlink(to, &target).map_err(at("make", &target));
    }
    let made = if kind.is_dir() { fs::create_dir_all(&target) } else { fs::write(&target, b"") };
    made.map_err(at("make", &target))?;
    bind(source, &target)?;
    make_read_only(&target)
}

fn put_volume(root: &Path, mount: &Mount, tree: Option<&OwnedFd>) -> Result<(), InitError> {
    let inside: PathBuf =
        mount.target.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let target = root.join(inside);
    let is_dir = fs::metadata(&mount.source).map_err(at("look at", &mount.source))?.is_dir();
    if fs::symlink_metadata(&target).is_err() {
        let parent = target.parent().unwrap_or(root);
        fs::create_dir_all(if is_dir { &target } else { parent }).map_err(at("make", &target))?;
        if !is_dir {
            fs::write(&target, b"").map_err(at("make", &target))?;
        }
    }
    match tree {
        Some(tree) => move_mount(tree, "", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|errno| at("mount", &target)(errno.into()))?,
        None => bind(&mount.source, &target)?,
    }
    if mount.read_only { make_read_only(&target) } else { Ok(()) }
}

fn bind(source: &Path, target: &Path) -> Result<(), InitError> {
    mount_bind_recursive(source, target).map_err(|errno| at("mount", source)(errno.into()))
}

/// This mount and all below it. What forbids more already goes on forbidding it.
fn make_read_only(target: &Path) -> Result<(), InitError> {
    for Line { at: place, options, .. } in mounts()? {
        if !place.starts_with(target) {
            continue;
        }
        let mut flags = MountFlags::BIND | MountFlags::RDONLY;
        for option in options.split(',') {
            flags |= match option {
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                _ => MountFlags::empty(),
            };
        }
        mount_remount(&place, flags, c"").map_err(|errno| at("protect", &place)(errno.into()))?;
    }
    Ok(())
}

fn mounts() -> Result<Vec<Line>, InitError> {
    mount_table::read().map_err(at("read", Path::new(TABLE)))
}

/// Makes it the root, and lets go of what was the root before.
fn enter_root(root: &Path) -> Result<(), InitError> {
    let entering = |errno: rustix::io::Errno| system("enter the container's files")(errno.into());
    chdir(root).map_err(entering)?;
    pivot_root(".", ".").map_err(entering)?;
    unmount(".", UnmountFlags::DETACH).map_err(entering)?;
    chdir("/").map_err(entering)
}

fn at<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> InitError + 'a {
    move |source| InitError::Path { doing, path: path.to_owned(), source }
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> InitError {
    move |source| InitError::System { doing, source }
}
