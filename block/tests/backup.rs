//! Backups by real processes: of a volume under load, killed at any moment, brought
//! back into another volume, again and again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{
    ffi::OsStr,
    fmt::Debug,
    path::{Path, PathBuf},
    process::{Command as Program, Output, Stdio},
    time::Duration,
};

use midflight_block::{
    caller::FrontendControl,
    engine::control::{Answer, Command},
    extent::Extent,
    frontend,
    nbd::client::{Ask, NbdClient},
    replica::{disk::Folder, serve::boot, store::Store},
    tour::Plane,
};
use volume::{VOLUME, layout, start, until};

const SIZE: u64 = 24 << 20;
const PIECE: u64 = 2 << 20;

fn mfblock(arguments: &[impl AsRef<OsStr>], target: &Path) -> Program {
    let mut program = Program::new(env!("CARGO_BIN_EXE_mfblock"));
    program.args(["backup", "--target"]).arg(target).args(arguments);
    program
}

/// Runs a command of backups and gives its result.
fn run(arguments: &[impl AsRef<OsStr> + Debug], target: &Path) -> serde_json::Value {
    let Output { status, stdout, stderr } = mfblock(arguments, target).output().unwrap();
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    let last = String::from_utf8(stdout).unwrap();
    serde_json::from_str(last.lines().last().unwrap_or("null")).unwrap()
}

fn snapshot(plane: &mut Plane, name: &str) {
    assert_eq!(plane.command(&Command::Snapshot { name: name.into() }).unwrap(), Answer::Done);
}

fn write(plane: &Plane, offset: u64, fill: u8) {
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).unwrap();
    assert_eq!(client.call(Ask::Write { offset, data: &[fill; 4096] }).unwrap().error, 0);
    assert_eq!(client.call(Ask::Flush).unwrap().error, 0);
}

/// What a copy holds, or held at a snapshot.
fn content(folder: &Path, snapshot: Option<&str>) -> Vec<u8> {
    let folder = Folder::take(&folder.join("replica-0")).unwrap();
    let store = Store::open(&folder, SIZE, boot()).unwrap();
    let extent = Extent::new(0, SIZE as u32).unwrap();
    match snapshot {
        Some(name) => {
            let place = store.layout().position(name).unwrap();
            store.layers().read_snapshot(place, extent).unwrap().to_vec()
        }
        None => store.read(extent).unwrap().to_vec(),
    }
}

/// Takes the frontend away; the engine stays.
fn detach(plane: &mut Plane) {
    let mut control = FrontendControl::connect(plane.frontend().address()).unwrap();
    control.call(&frontend::control::Command::Detach { volume: VOLUME.into() }).unwrap();
    until("the engine is alone", || !volume::status(plane).attached);
}

#[test]
fn a_standby_volume_follows_the_backups_of_one_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let [source, standby, target] = ["source", "standby", "target"].map(|name| folder.path().join(name));
    let mut plane = start(&source, SIZE);
    let engine = plane.engine().address().to_string();
    let create =
        |name: &str| run(&["create", "--engine", &engine, "--volume", VOLUME, "--snapshot", name], &target);
    let load = volume::load(&plane, 5);
    std::thread::sleep(Duration::from_millis(300));
    snapshot(&mut plane, "one");
    let first = create("one");
    assert_eq!(first["since"], serde_json::Value::Null);
    snapshot(&mut plane, "two");
    let second = create("two");
    assert_eq!(second["since"], "one");
    load.judge();
    snapshot(&mut plane, "three");
    write(&plane, 5 * PIECE + 4096, 7);
    snapshot(&mut plane, "four");
    create("three");
    let fourth = create("four");
    assert_eq!(fourth["readBytes"], PIECE, "one piece has changed");
    assert_eq!(fourth["newBlocks"], 1);
    assert_eq!(create("four")["newBlocks"], 0, "it is made already");
    let other = ["create", "--engine", &engine, "--volume", VOLUME, "--snapshot", "three", "--name", "four"];
    assert!(refusal(&other, &target).contains("there is a backup"));

    let mut other = start(&standby, SIZE);
    let into = other.engine().address().to_string();
    let attachment = other.record().unwrap().attachment.unwrap().bits();
    let order = |name: &str, attachment: u64| {
        let attachment = attachment.to_string();
        let words = ["restore", "--engine", &into, "--volume", VOLUME, "--attachment", &attachment, "--name"];
        words.into_iter().chain([name]).map(String::from).collect::<Vec<_>>()
    };
    let restore = |name: &str| run(&order(name, attachment), &target);
    assert!(refusal(&order("two", attachment), &target).contains("a frontend is attached"));
    detach(&mut other);
    assert!(refusal(&order("two", attachment + 1), &target).contains("attached elsewhere"));
    assert_eq!(restore("two")["since"], serde_json::Value::Null);
    assert_eq!(restore("three")["since"], "two");
    let last = restore("four");
    assert_eq!(last["since"], "three");
    assert_eq!(last["pieces"], 1, "only the difference is written");
    assert_eq!(run(&["verify"], &target)["damaged"], serde_json::json!([]));
    drop((plane, other));
    assert!(content(&source, Some("four")) == content(&standby, None), "the standby holds the last backup");
    assert!(midflight_block::tour::replicas_equal(&layout(&standby, SIZE)).unwrap());

    assert_eq!(run(&["list"], &target).as_array().unwrap().len(), 4);
    for name in ["one", "two", "three"] {
        run(&["delete", "--volume", VOLUME, "--name", name], &target);
    }
    let verified = run(&["verify"], &target);
    assert_eq!(verified["backups"], 1);
    assert_eq!(verified["damaged"], serde_json::json!([]));
    let blocks = blocks(&target);
    assert!(blocks.len() as u64 <= SIZE / PIECE, "what nobody names is gone");
    std::fs::write(&blocks[0], b"damaged").unwrap();
    let damaged = mfblock(&["verify"], &target).output().unwrap();
    assert!(!damaged.status.success());
    assert!(
        String::from_utf8_lossy(&damaged.stdout).contains(&*blocks[0].file_name().unwrap().to_string_lossy())
    );
}

#[test]
fn a_restore_that_fails_in_the_middle_leaves_the_backup_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let [source, standby, target] = ["source", "standby", "target"].map(|name| folder.path().join(name));
    let mut plane = start(&source, SIZE);
    let engine = plane.engine().address().to_string();
    let mut back_up = |name: &str, pieces: std::ops::Range<u64>, fill: u8| {
        pieces.for_each(|piece| write(&plane, piece * PIECE, fill + piece as u8));
        snapshot(&mut plane, name);
        run(&["create", "--engine", &engine, "--volume", VOLUME, "--snapshot", name], &target);
        blocks(&target)
    };
    back_up("one", 0..5, 10);
    let before = back_up("two", 0..3, 20);
    let after = back_up("three", 3..4, 30);
    // It is the last that is restored of the three.
    let lost: Vec<&PathBuf> = after.iter().filter(|block| !before.contains(block)).collect();
    assert_eq!(lost.len(), 1);
    std::fs::remove_file(lost[0]).unwrap();

    let mut other = start(&standby, SIZE);
    let into = other.engine().address().to_string();
    let attachment = other.record().unwrap().attachment.unwrap().bits().to_string();
    detach(&mut other);
    let order = |name: &'static str| {
        ["restore", "--engine", &into, "--volume", VOLUME, "--attachment", &attachment, "--name", name]
    };
    run(&order("one"), &target);
    let why = refusal(&order("three"), &target);
    assert!(why.contains("block"), "{why}");
    until("the engine is alone", || !volume::status(&mut other).attached);
    drop((plane, other));
    assert!(content(&source, Some("one")) == content(&standby, None), "it is what it was");
}

/// Why a command is not carried out.
fn refusal(arguments: &[impl AsRef<OsStr>], target: &Path) -> String {
    let output = mfblock(arguments, target).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

fn blocks(target: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(target.join("blocks")).unwrap();
    let mut found: Vec<PathBuf> = folders
        .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    found.sort();
    found
}

#[test]
fn a_backup_that_is_killed_leaves_nothing_that_counts_and_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let mut plane = start(&source, SIZE);
    for piece in 0..SIZE / PIECE {
        write(&plane, piece * PIECE, 1 + piece as u8);
    }
    snapshot(&mut plane, "one");
    let engine = plane.engine().address().to_string();
    let arguments = ["create", "--engine", &engine, "--volume", VOLUME, "--snapshot", "one"];
    let mut killed = 0;
    // Ever longer, until it comes to its end.
    for wait in std::iter::successors(Some(2), |wait: &u64| Some(wait + wait / 2 + 1)).take(24) {
        let mut child =
            mfblock(&arguments, &target).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        if target.exists() {
            assert_eq!(run(&["verify"], &target)["damaged"], serde_json::json!([]));
        }
        if ended.is_some_and(|status| status.success()) {
            break;
        }
        killed += 1;
    }
    assert!(killed > 2, "it was killed in the middle");
    assert_eq!(run(&arguments, &target)["newBlocks"], 0, "it is made already");
    assert_eq!(run(&["verify"], &target)["blocks"], SIZE / PIECE);
}
