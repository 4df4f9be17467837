use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::failure::{Exit, Report};

/// Nothing is left.
const WHOLE: Purged = Purged { foreign: false, backups: None };

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn folder(path: &Path) -> Folder {
    Folder::locate(Some(path), &Environment::default()).unwrap()
}

#[test]
fn is_found_by_flag_then_data_home_then_home() {
    let environment = |data_home: Option<&str>, home: Option<&str>| Environment {
        data_home: data_home.map(PathBuf::from),
        home: home.map(PathBuf::from),
    };
    let cases = [
        (Some("/x"), environment(Some("/data"), Some("/home/a")), Some("/x")),
        (None, environment(Some("/data"), Some("/home/a")), Some("/data/midflight")),
        (None, environment(None, Some("/home/a")), Some("/home/a/.local/share/midflight")),
        (None, environment(Some("data"), Some("/home/a")), Some("/home/a/.local/share/midflight")),
        (None, environment(None, None), None),
    ];
    for (given, environment, expected) in cases {
        let found = Folder::locate(given.map(Path::new), &environment).ok();
        assert_eq!(found.as_ref().map(Folder::root), expected.map(Path::new));
    }
}

#[test]
fn a_new_folder_is_made_private_and_recognised_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = folder(&parent.path().join("a/b"));
    let mut marker = folder.create_or_open().unwrap();
    assert_eq!(mode(folder.root()), 0o700);
    marker.nodes = 3;
    folder.write_marker(&marker).unwrap();
    assert_eq!(folder.create_or_open().unwrap(), marker);
}

#[test]
fn those_who_make_a_folder_at_once_make_the_same() {
    let parent = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let folder = folder(&parent.path().join(round.to_string()));
        let made: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| folder.create_or_open().unwrap())).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert!(made.iter().all(|marker| *marker == made[0]), "{made:?}");
    }
}

#[test]
fn an_empty_folder_is_made_private_and_one_of_someone_else_stays_as_it_is() {
    for (file, expected) in [(None, 0o700), (Some("thesis.tex"), 0o755)] {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        if let Some(file) = file {
            fs::write(root.path().join(file), b"precious").unwrap();
        }
        assert_eq!(folder(root.path()).create_or_open().is_ok(), file.is_none());
        assert_eq!(mode(root.path()), expected, "{file:?}");
    }
}

#[test]
fn a_start_that_died_before_the_marker_was_whole_is_repeated() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("midflight.unfinished"), b"{").unwrap();
    folder(root.path()).create_or_open().unwrap();
}

#[test]
fn a_folder_of_someone_else_is_neither_taken_nor_purged() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("thesis.tex"), b"precious").unwrap();
    let folder = folder(root.path());
    for refused in [folder.create_or_open().map(drop), folder.purge(Backups::Remove).map(drop)] {
        assert_eq!(Report::of(&refused.unwrap_err()).exit, Exit::Usage);
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_purge_takes_what_is_ours_and_leaves_the_rest() {
    let parent = tempfile::tempdir().unwrap();
    let folder = folder(&parent.path().join("mine"));
    folder.create_or_open().unwrap();
    fs::write(folder.root().join("notes.txt"), b"keep").unwrap();
    assert_eq!(folder.purge(Backups::Keep).unwrap(), Purged { foreign: true, backups: None });
    assert_eq!(fs::read(folder.root().join("notes.txt")).unwrap(), b"keep");
    fs::remove_file(folder.root().join("notes.txt")).unwrap();
    folder.create_or_open().unwrap();
    assert_eq!(folder.purge(Backups::Keep).unwrap(), WHOLE);
    assert!(!folder.root().exists());
}

#[test]
fn a_purge_takes_all_that_a_start_cut_short_can_leave() {
    let before_the_marker: &[&[&str]] = &[&[], &["midflight.unfinished"]];
    for left in before_the_marker {
        let parent = tempfile::tempdir().unwrap();
        let folder = folder(&parent.path().join("c"));
        leave(folder.root(), left);
        assert_eq!(folder.purge(Backups::Keep).unwrap(), WHOLE, "{left:?}");
        assert!(!folder.root().exists());
    }
    let after_it = [
        "midflight.unfinished",
        "kubeconfig",
        "kubeconfig.unfinished",
        "viewer.kubeconfig",
        "viewer.unfinished",
        "store.redb",
        "store.redb.new",
        "store.redb.journal",
        "store.redb.mark",
        "store.redb.before-midflight.store.rename",
        "tokens.json",
        "tokens.new",
        "tls/ca.new",
        "tls/ca.key",
        "run/control.lock",
        "run/control.unfinished",
        "nodes/node-1/access/kubeconfig.unfinished",
        "logs/control.log",
    ];
    let parent = tempfile::tempdir().unwrap();
    let folder = folder(&parent.path().join("c"));
    folder.create_or_open().unwrap();
    leave(folder.root(), &after_it);
    assert_eq!(folder.purge(Backups::Keep).unwrap(), WHOLE);
    assert!(!folder.root().exists());
}

#[test]
fn a_purge_keeps_backups_until_they_are_named() {
    let parent = tempfile::tempdir().unwrap();
    let folder = folder(&parent.path().join("c"));
    let mut marker = folder.create_or_open().unwrap();
    marker.nodes = 3;
    folder.write_marker(&marker).unwrap();
    let backups = ["backups/volumes/vol-1/monday", "backups/volumes/vol-2/tuesday", "backups/blocks/ab/abcd"];
    leave(folder.root(), &backups);
    leave(folder.root(), &["store.redb", "nodes/node-1/data"]);
    for _again in 0..2 {
        assert_eq!(folder.purge(Backups::Keep).unwrap(), Purged { foreign: false, backups: Some(2) });
        assert!(backups.iter().all(|file| folder.root().join(file).exists()));
        assert!(!folder.root().join("store.redb").exists() && !folder.root().join("nodes").exists());
    }
    assert_eq!(folder.create_or_open().unwrap(), Marker::new(), "it can be used again, as a new one");
    assert_eq!(folder.purge(Backups::Remove).unwrap(), WHOLE);
    assert!(!folder.root().exists());
}

#[test]
fn a_purge_takes_a_folder_without_backups_and_a_link_but_not_what_it_leads_to() {
    let parent = tempfile::tempdir().unwrap();
    let elsewhere = parent.path().join("elsewhere");
    leave(&elsewhere, &["volumes/vol-1/monday"]);
    let folder = folder(&parent.path().join("c"));
    for link in [false, true] {
        fs::create_dir_all(folder.root()).unwrap();
        match link {
            true => std::os::unix::fs::symlink(&elsewhere, folder.backups()).unwrap(),
            false => fs::create_dir_all(folder.backups().join("volumes/vol-1")).unwrap(),
        }
        folder.create_or_open().unwrap();
        let backups = if link { Backups::Remove } else { Backups::Keep };
        assert_eq!(folder.purge(backups).unwrap(), WHOLE, "{link}");
        assert!(!folder.root().exists());
    }
    assert!(elsewhere.join("volumes/vol-1/monday").exists());
}

#[test]
fn a_folder_that_holds_nothing_but_backups_is_taken_and_not_purged_before() {
    let root = tempfile::tempdir().unwrap();
    leave(root.path(), &["backups/volumes/vol-1/monday"]);
    let folder = folder(root.path());
    assert_eq!(Report::of(&folder.purge(Backups::Remove).unwrap_err()).exit, Exit::Usage);
    folder.create_or_open().unwrap();
    assert!(root.path().join("backups/volumes/vol-1/monday").exists());
}

fn leave(root: &Path, files: &[&str]) {
    fs::create_dir_all(root).unwrap();
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"half").unwrap();
    }
}

#[test]
fn a_folder_too_deep_for_sockets_is_refused_before_anything_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let deep = parent.path().join("d".repeat(70));
    let refused = Report::of(&folder(&deep).create_or_open().unwrap_err());
    assert_eq!(refused.exit, Exit::Usage);
    assert!(refused.to_string().contains("107"), "{refused}");
    assert!(!deep.exists());
}

#[test]
fn a_folder_of_a_newer_midflight_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let newer = br#"{"format": 2, "planets": []}"#;
    fs::write(root.path().join("midflight.json"), newer).unwrap();
    let refused = Report::of(&folder(root.path()).create_or_open().unwrap_err());
    assert!(refused.to_string().contains("format 2"), "{refused}");
    assert_eq!(fs::read(root.path().join("midflight.json")).unwrap(), newer);
}

#[test]
fn a_path_that_cannot_be_a_folder_is_explained() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("file"), b"").unwrap();
    let refused = Report::of(&folder(&parent.path().join("file/inside")).create_or_open().unwrap_err());
    assert!(refused.try_this.unwrap().contains("--dir"));
}
