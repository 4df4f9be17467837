use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn backup() -> Observed {
    let mut backup = Backup::new("b-1", Default::default());
    backup.spec.snapshot_name = "monday".into();
    backup.metadata.finalizers = Some(vec![FINALIZER.into()]);
    let labels = [(VOLUME, "vol-1"), (TARGET, "default")];
    backup.metadata.labels = Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    let mut volume = Volume::new("vol-1", Default::default());
    volume.status.get_or_insert_default().state = VolumeState::Attached;
    let mut target = BackupTarget::new("default", Default::default());
    target.spec.backup_target_url = "file:///backups".into();
    Observed {
        now: at(1_000),
        backup,
        volume_name: "vol-1".into(),
        volume: Some(volume),
        snapshot: None,
        target_name: "default".into(),
        target: Some(target),
        is_target_used: false,
        engine: Some(Serving {
            attached: true,
            serving: true,
            size: Size::from_bytes(4096),
            snapshots: vec!["monday".into()],
            rebuilt_bytes: 0,
            rebuild_limit: None,
            patience: None,
            trouble: None,
            permitted: None,
            flaws: Vec::new(),
        }),
        is_upgrading: false,
        work: Work::None,
        found: None,
    }
}

fn with(change: impl FnOnce(&mut Observed)) -> Observed {
    let mut seen = backup();
    change(&mut seen);
    seen
}

fn in_state(state: BackupState, change: impl FnOnce(&mut Observed)) -> Observed {
    with(|seen| {
        seen.backup.status.get_or_insert_default().state = state;
        change(seen);
    })
}

/// Long after it was asked for.
fn late(change: impl FnOnce(&mut Observed)) -> Observed {
    with(|seen| {
        seen.backup.metadata.creation_timestamp = Some(Time(at(970)));
        change(seen);
    })
}

/// The engine has no snapshot; this object asks for one.
fn snapshot(seen: &mut Observed, volume: &str, taken: &str) {
    seen.engine.as_mut().unwrap().snapshots.clear();
    let mut snapshot = Snapshot::new("monday", Default::default());
    snapshot.spec.volume = volume.into();
    snapshot.spec.create_snapshot = true;
    snapshot.status.get_or_insert_default().creation_time = taken.into();
    seen.snapshot = Some(snapshot);
}

fn seen_in(seen: &mut Observed, folder: &str) {
    seen.backup.status.get_or_insert_default().url = format!("{folder}?backup=b-1&volume=vol-1").into();
}

fn deleted(state: BackupState, change: impl FnOnce(&mut Observed)) -> Observed {
    in_state(state, |seen| {
        seen.backup.metadata.deletion_timestamp = Some(Time(seen.now));
        change(seen);
    })
}

fn found() -> Found {
    Found { snapshot: "monday".into(), created: at(900), size: Size::from_bytes(4096) }
}

#[test]
fn a_backup_is_made_once_and_removed_once() {
    use BackupState::*;
    let folder = || Folder::parse("file:///backups").unwrap();
    let copied = || Action::Copy { folder: folder(), existing: false };
    let removed = |existing| Action::Remove { folder: folder(), existing };
    let done = |at_second| Work::Done { new_bytes: 1, at: at(at_second) };
    let there = |seen: &mut Observed| seen.found = Some(Ok(Some(found())));
    let name = || "vol-1".to_owned();
    let failed = |is_final, again| Work::Failed { why: "no".into(), is_final, again: at(again) };
    #[rustfmt::skip]
    let cases = [
        ("new",               with(|seen| seen.backup.metadata.finalizers = None), Ok(Action::Protect),                     New),
        ("without labels",    with(|seen| seen.backup.metadata.labels = None),     Ok(Action::Protect),                     New),
        ("of nobody knows",   with(|seen| seen.volume_name.clear()),               Err(Wait::NoVolumeName),                 Pending),
        ("protected",         backup(),                                            Ok(copied()),   InProgress),
        ("without target",    with(|seen| seen.target = None),                     Err(Wait::NoTarget("default".into())),   Pending),
        ("detached",          with(|seen| { seen.engine = None; seen.volume.as_mut().unwrap().status = None; }), Err(Wait::Detached(name())), Pending),
        ("silent",            with(|seen| seen.engine = None),                     Err(Wait::Silent(name())),               Pending),
        ("no snapshot",       with(|seen| seen.engine.as_mut().unwrap().snapshots.clear()), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Pending),
        ("and not to be had", late(|seen| seen.engine.as_mut().unwrap().snapshots.clear()), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Error),
        ("of another volume", late(|seen| snapshot(seen, "vol-2", "")), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Error),
        ("taken once, and lost", late(|seen| snapshot(seen, "vol-1", "1970-01-01T00:00:00Z")), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Error),
        ("yet to be taken",   late(|seen| snapshot(seen, "vol-1", "")), Err(Wait::NotTaken("monday".into())), Pending),
        ("nobody says of what", late(|seen| seen.volume_name.clear()),             Err(Wait::NoVolumeName),                 Error),
        ("and never will",    in_state(Error, |seen| seen.volume_name.clear()),    Err(Wait::GivenUp(String::new())),       Error),
        ("volume is gone",    late(|seen| seen.volume = None),                     Err(Wait::NoVolume(name())),             Error),
        ("detached for long", late(|seen| { seen.engine = None; seen.volume.as_mut().unwrap().status = None; }), Err(Wait::Detached(name())), Pending),
        ("no volume",         with(|seen| seen.volume = None),                     Err(Wait::NoVolume(name())),             Pending),
        ("of a standby",      with(|seen| seen.volume.as_mut().unwrap().spec.standby = true), Err(Wait::Standby(name())),   Pending),
        ("node is upgraded",  with(|seen| seen.is_upgrading = true),               Err(Wait::Upgrading),                    Pending),
        ("under way",         in_state(InProgress, |seen| seen.work = Work::Running { percent: 40 }), Err(Wait::Copying { percent: 40 }), InProgress),
        ("ordered before us", in_state(InProgress, |seen| seen.found = Some(Ok(None))), Ok(copied()), InProgress),
        ("to a used target",  with(|seen| seen.is_target_used = true),             Ok(Action::Copy { folder: folder(), existing: true }), InProgress),
        ("done, not seen yet", in_state(InProgress, |seen| (seen.found, seen.work) = (Some(Ok(None)), done(911))), Err(Wait::Unseen), InProgress),
        ("done, never seen",  in_state(InProgress, |seen| (seen.found, seen.work) = (Some(Ok(None)), done(910))), Err(Wait::Lost(folder())), Error),
        ("done",              in_state(InProgress, there),                         Err(Wait::Content),                      Completed),
        ("known to be done",  in_state(Completed, |_| {}),                         Err(Wait::Content),                      Completed),
        ("failed a while ago", in_state(InProgress, |seen| seen.work = failed(false, 999)), Ok(copied()), InProgress),
        ("failed just now",   in_state(InProgress, |seen| seen.work = failed(false, 1001)), Err(Wait::Failed { why: "no".into(), again: at(1001) }), InProgress),
        ("failed for good",   in_state(InProgress, |seen| seen.work = failed(true, 1001)), Err(Wait::GivenUp("no".into())),  Error),
        ("volume went away",  in_state(InProgress, |seen| { seen.volume = None; seen.found = Some(Ok(None)); }), Err(Wait::NoVolume(name())), Error),
        ("name is taken",     in_state(InProgress, |seen| { there(seen); seen.backup.spec.snapshot_name = "tuesday".into(); }), Err(Wait::OtherThere), Error),
        ("found in a target", with(|seen| { there(seen); seen.backup.spec.snapshot_name = "".into(); seen.volume = None; }), Err(Wait::Content), Completed),
        ("not in the target", with(|seen| { seen.found = Some(Ok(None)); seen.backup.spec.snapshot_name = "".into(); }), Err(Wait::NotThere), Error),
        ("deleted",           deleted(Completed, |_| {}),                          Ok(removed(false)), Deleting),
        ("deleted, was seen there", deleted(Completed, |seen| seen_in(seen, "file:///backups")), Ok(removed(true)), Deleting),
        ("deleted, was seen elsewhere", deleted(Completed, |seen| seen_in(seen, "file:///nas")), Ok(removed(false)), Deleting),
        ("deleted, was gone", deleted(Completed, |seen| drop(seen.backup.annotations_mut().insert(GONE.into(), "true".into()))), Ok(Action::Release), Deleting),
        ("deleted, never made", deleted(Pending, |_| {}),                          Ok(Action::Release),                     Pending),
        ("deleted under way", deleted(InProgress, |seen| seen.work = Work::Running { percent: 1 }), Err(Wait::Copying { percent: 1 }), InProgress),
        ("deleted, unheard of", deleted(InProgress, |_| {}),                       Ok(copied()),   InProgress),
        ("and being upgraded", deleted(InProgress, |seen| seen.is_upgrading = true), Ok(copied()), InProgress),
        ("and nobody to ask", deleted(InProgress, |seen| seen.engine = None),      Ok(removed(false)), Deleting),
        ("and no target",     deleted(InProgress, |seen| seen.target = None),      Ok(Action::Release),                     Deleting),
        ("deleted, it ended", deleted(InProgress, |seen| seen.work = done(999)), Ok(removed(false)), Deleting),
        ("deleted, it failed", deleted(InProgress, |seen| seen.work = failed(false, 1001)), Ok(removed(false)), Deleting),
        ("deleted, removed half", deleted(Deleting, |_| {}),                       Ok(removed(false)), Deleting),
        ("deleted, name was taken", deleted(Error, |seen| { there(seen); seen.backup.spec.snapshot_name = "tuesday".into(); }), Ok(Action::Release), Deleting),
        ("and again",         deleted(Deleting, |seen| { there(seen); seen.backup.spec.snapshot_name = "tuesday".into(); }), Ok(Action::Release), Deleting),
        ("deleted, ours after all", deleted(Error, there),                         Ok(removed(false)), Deleting),
        ("deleted, target gone", deleted(Completed, |seen| seen.target = None),    Ok(Action::Release),                     Deleting),
    ];
    for (case, seen, expected, state) in cases {
        let decision = decide(&seen);
        assert_eq!(decision.next, expected, "{case}");
        assert_eq!(decision.status.state, state, "{case}");
    }
}

#[test]
fn a_complete_backup_says_where_it_is_and_how_large() {
    let seen = in_state(BackupState::InProgress, |seen| {
        (seen.found, seen.work) = (Some(Ok(Some(found()))), Work::Done { new_bytes: 77, at: at(999) });
    });
    let status = decide(&seen).status;
    assert_eq!(status.url.as_str(), "file:///backups?backup=b-1&volume=vol-1");
    assert_eq!((status.progress, status.newly_upload_data_size), (100, Size::from_bytes(77)));
    assert_eq!(
        (status.volume_size.bytes(), status.backup_created_at.as_str()),
        (4096, "1970-01-01T00:15:00Z")
    );
    let mut again = seen.clone();
    again.backup.status = Some(status.clone());
    (again.found, again.work, again.now) = (None, Work::None, at(2_000));
    assert!(!again.wants_to_know());
    assert_eq!(decide(&again).status, status, "nothing changes while nothing happens");
}

#[test]
fn a_backup_that_is_copied_and_not_seen_yet_is_nearly_done_and_no_error() {
    let seen = in_state(BackupState::InProgress, |seen| {
        (seen.found, seen.work) = (Some(Ok(None)), Work::Done { new_bytes: 1, at: at(999) });
        seen.backup.status.get_or_insert_default().error = "before".into();
    });
    let status = decide(&seen).status;
    assert_eq!((status.state, status.progress, status.error.as_str()), (BackupState::InProgress, 99, ""));
}

#[test]
fn the_newest_counts_only_while_it_is_whole() {
    let made = |name: &str, second: i64, state: BackupState| {
        let mut backup = Backup::new(name, Default::default());
        let status = backup.status.get_or_insert_default();
        (status.state, status.backup_created_at) = (state, at(second).to_string().into());
        backup
    };
    let all = [
        made("b", 20, BackupState::Completed),
        made("a", 10, BackupState::Completed),
        made("c", 30, BackupState::InProgress),
    ];
    assert_eq!(newest(&all).map(ResourceExt::name_any).as_deref(), Some("b"));
    assert_eq!(newest([]), None);
}
