//! What an instance manager says to each command: given twice, given too late, given
//! by someone who may not, and given by someone who means harm.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod nodes;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use midflight_block::{
    epoch::Epoch,
    instance::{
        Secret,
        order::{Orders, orders, refusal},
        proto::{self, Reason, backup_event::Event},
    },
    nbd::client::{Ask, NbdClient},
    net::address::Address,
    record::{Attachment, RecordStore},
};
use nodes::{Nodes, SIZE, engine, mfblock, replica, target, volume};
use rustix::process::Signal;
use tonic::{Code, Status};

fn term(number: u64) -> u64 {
    Epoch::of_term(number).bits()
}

fn at(nodes: &Nodes) -> SocketAddr {
    match nodes.nodes[0].process.address() {
        Address::Tcp(at) => *at,
        Address::Unix(_) => panic!("gRPC is over TCP"),
    }
}

fn private(path: PathBuf, text: &str) -> PathBuf {
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn nobody_without_the_secret_is_heard() {
    let nodes = Nodes::start(1);
    let wrong = private(nodes.root().join("wrong"), "another-secret-of-another-cluster");
    let inside = nodes.runtime.enter();
    let mut stranger = orders(at(&nodes), &Secret::load(&wrong).unwrap()).unwrap();
    drop(inside);
    let refused = nodes.runtime.block_on(stranger.list(proto::ListRequest {})).unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let refused = nodes.runtime.block_on(stranger.create(replica(0, "", term(1)))).unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(nodes.list(0).is_empty());
    assert!(get(&nodes, "/metrics", None).starts_with("HTTP/1.1 401"));
    let told = get(&nodes, "/metrics", Some("a-secret-of-the-cluster"));
    assert!(
        told.starts_with("HTTP/1.1 200") && told.contains("midflight_im_unauthenticated_total 3"),
        "{told}"
    );
}

fn get(nodes: &Nodes, path: &str, secret: Option<&str>) -> String {
    let mut stream = TcpStream::connect(at(nodes)).unwrap();
    let proof = secret.map(|secret| format!("authorization: Bearer {secret}\r\n")).unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{proof}\r\n").unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

#[test]
fn an_instance_manager_that_would_be_open_to_all_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let good = private(folder.path().join("secret"), "0123456789abcdef");
    let open = private(folder.path().join("open"), "0123456789abcdef");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let start = |listen: &str, secret: &Path| {
        let path = |name: &str| folder.path().join(name).display().to_string();
        let out = Command::new(mfblock())
            .args([
                "instance-manager",
                "--listen",
                listen,
                "--folder",
                &path("im"),
                "--records",
                &path("records"),
            ])
            .args(["--secret", &secret.display().to_string()])
            .output()
            .unwrap();
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    assert!(start("0.0.0.0:0", &good).contains("every address of the machine"));
    assert!(start("[::]:0", &good).contains("every address of the machine"));
    assert!(start("127.0.0.1:0", &open).contains("mode 0644"));
    assert!(start("127.0.0.1:0", &folder.path().join("none")).contains("read the secret"));
}

/// One command to the engine `e-0`.
type Give = fn(&Nodes, &mut Orders, u64) -> Result<(), Status>;

fn ask(epoch: u64) -> Option<proto::EngineRequest> {
    Some(target("e-0", epoch))
}

fn snapshot(epoch: u64, name: &str) -> proto::SnapshotRequest {
    proto::SnapshotRequest { engine: ask(epoch), snapshot: name.into() }
}

fn revert(epoch: u64, name: &str) -> proto::RevertRequest {
    proto::RevertRequest { engine: ask(epoch), snapshot: name.into(), head: 77 }
}

fn delete_backup(nodes: &Nodes, epoch: u64) -> proto::DeleteBackupRequest {
    let (target, backup) = (backups(nodes), "s".into());
    proto::DeleteBackupRequest { target, volume: volume(), backup, epoch, existing: false }
}

fn member(epoch: u64, name: &str, address: &str) -> proto::ReplicaRequest {
    proto::ReplicaRequest { engine: ask(epoch), replica: name.into(), address: address.into() }
}

fn delete(kind: proto::Kind, name: &str, epoch: u64) -> proto::DeleteRequest {
    let (name, volume) = (name.into(), volume());
    proto::DeleteRequest { kind: kind.into(), name, volume, epoch, remove_data: false }
}

fn switch_over(nodes: &Nodes, epoch: u64) -> proto::SwitchOverRequest {
    let engine = nodes.find(0, "e-0").address;
    proto::SwitchOverRequest { volume: volume(), epoch, engine, drain_within_ms: 100, within_ms: 5000 }
}

fn attach(nodes: &Nodes, epoch: u64) -> proto::AttachRequest {
    let engine = nodes.find(0, "e-0").address;
    proto::AttachRequest { volume: volume(), epoch, attachment: 7, size: SIZE, engine, device: false }
}

async fn restore(nodes: &Nodes, orders: &mut Orders, epoch: u64) -> Result<(usize, Event), Status> {
    let request = proto::RestoreBackupRequest {
        engine: ask(epoch),
        target: backups(nodes),
        volume: String::new(),
        backup: "s".into(),
    };
    last(orders.restore_backup(request).await).await
}

#[test]
fn every_command_may_be_given_twice_and_none_too_late() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("");
    let (old, now) = (term(1), nodes.next_term());
    let made = nodes.create_engine(0, "", now, &members);
    nodes.attach(&made);
    nodes.wait_until("the engine serves", |nodes| {
        let mut orders = nodes.orders(0);
        nodes.runtime.block_on(orders.status(target("e-0", now))).is_ok_and(|status| status.get_ref().serving)
    });
    #[rustfmt::skip]
    let commands: Vec<(&str, Give)> = vec![
        ("create replica",   |n, o, e| n.runtime.block_on(o.create(replica(0, "", e))).map(drop)),
        ("create engine",    |n, o, e| { let m = n.members(); n.runtime.block_on(o.create(engine(0, "", e, &m))).map(drop) }),
        ("switch over",      |n, o, e| { let order = switch_over(n, e); n.runtime.block_on(o.switch_over(order)).map(drop) }),
        ("suspend",          |n, o, e| n.runtime.block_on(o.suspend(target("e-0", e))).map(drop)),
        ("resume",           |n, o, e| n.runtime.block_on(o.resume(target("e-0", e))).map(drop)),
        ("status",           |n, o, e| n.runtime.block_on(o.status(target("e-0", e))).map(drop)),
        ("create snapshot",  |n, o, e| n.runtime.block_on(o.create_snapshot(snapshot(e, "s"))).map(drop)),
        ("create backup",    |n, o, e| n.runtime.block_on(back_up(n, o, e)).map(drop)),
        ("detach",           |n, o, e| n.runtime.block_on(o.detach(proto::DetachRequest { volume: volume(), epoch: e })).map(drop)),
        ("restore backup",   |n, o, e| n.runtime.block_on(restore(n, o, e)).map(drop)),
        ("attach",           |n, o, e| { let order = attach(n, e); n.runtime.block_on(o.attach(order)).map(drop) }),
        ("revert snapshot",  |n, o, e| n.runtime.block_on(o.revert_snapshot(revert(e, "s"))).map(drop)),
        ("delete snapshot",  |n, o, e| n.runtime.block_on(o.delete_snapshot(snapshot(e, "s"))).map(drop)),
        ("delete backup",    |n, o, e| n.runtime.block_on(o.delete_backup(delete_backup(n, e))).map(drop)),
        ("expand",           |n, o, e| n.runtime.block_on(o.expand(proto::ExpandRequest { engine: ask(e), size: 2 * SIZE })).map(drop)),
        ("finalize",         |n, o, e| n.runtime.block_on(o.finalize(target("e-0", e))).map(drop)),
        ("patience",         |n, o, e| n.runtime.block_on(o.patience(proto::PatienceRequest { engine: ask(e), seconds: 9 })).map(drop)),
        ("permit",           |n, o, e| n.runtime.block_on(o.permit(proto::PermitRequest { engine: ask(e), replicas: vec!["r-2".into()] })).map(drop)),
        ("throttle",         |n, o, e| n.runtime.block_on(o.throttle(proto::ThrottleRequest { engine: ask(e), bytes_per_second: 1 << 20 })).map(drop)),
        ("release replica",  |n, o, e| n.runtime.block_on(o.release_replica(member(e, "r-2", ""))).map(drop)),
        ("remove replica",   |n, o, e| n.runtime.block_on(o.remove_replica(member(e, "r-2", ""))).map(drop)),
        ("add replica",      |n, o, e| { let to = n.members()[2].address.clone(); n.runtime.block_on(o.add_replica(member(e, "r-2", &to))).map(drop) }),
        ("rebuild replica",  |n, o, e| n.runtime.block_on(o.rebuild_replica(member(e, "r-2", ""))).map(drop)),
        ("delete engine",    |n, o, e| n.runtime.block_on(o.delete(delete(proto::Kind::Engine, "e-0", e))).map(drop)),
        ("delete replica",   |n, o, e| n.runtime.block_on(o.delete(delete(proto::Kind::Replica, "r-0", e))).map(drop)),
    ];
    let mut orders = nodes.orders(0);
    for (name, give) in commands {
        for round in 1..=2 {
            let done = nodes.patiently(|nodes| give(nodes, &mut orders, now));
            assert!(done.is_ok(), "{name}, time {round}: {done:?}");
        }
        let refused = give(&nodes, &mut orders, old).expect_err(name);
        let (reason, refusal) = refusal(&refused).expect("a refusal has a reason");
        assert_eq!((reason, refusal.asked), (Reason::StaleEpoch, old), "{name}: {refused}");
        assert_eq!(refusal.known, now, "{name}: {refused}");
    }
    assert!(nodes.list(0).is_empty());
    let refused = nodes.runtime.block_on(orders.create(engine(0, "", old, &members))).unwrap_err();
    assert_eq!(refused.message(), format!("volume {} is at epoch 2.0 here, the command has 1.0", volume()));
    nodes.restart(0);
    let mut orders = nodes.orders(0);
    let refused = nodes.runtime.block_on(orders.create(replica(0, "", old))).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "it is not forgotten: {refused}");
}

#[test]
fn a_volume_with_the_name_of_one_that_is_gone_begins_anew() {
    let mut nodes = Nodes::start(1);
    nodes.create_replicas("");
    nodes.next_term();
    let late = nodes.next_term();
    let mut orders = nodes.orders(0);
    let gone = proto::DeleteRequest { remove_data: true, ..delete(proto::Kind::Replica, "r-0", late) };
    nodes.runtime.block_on(orders.delete(gone)).unwrap();
    std::fs::remove_file(nodes.root().join(format!("records/{}.record", volume()))).unwrap();
    let members = nodes.create_replicas("");
    let now = nodes.next_term();
    assert!(now < late);
    nodes.create_engine(0, "", now, &members);

    let of_the_old_one = nodes.runtime.block_on(orders.create(engine(0, "", late, &members))).unwrap_err();
    assert_eq!(of_the_old_one.code(), Code::InvalidArgument, "{of_the_old_one}");
    let too_late = nodes.runtime.block_on(orders.create(engine(0, "", term(1), &members))).unwrap_err();
    assert_eq!(refusal(&too_late).unwrap().0, Reason::StaleEpoch, "{too_late}");
}

/// Nobody told the frontend that the attachment was over: the instance manager was away.
#[test]
fn a_volume_that_the_frontend_has_for_an_attachment_that_is_over_is_offered_anew() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("");
    nodes.start_frontend();
    let mut orders = nodes.orders(0);
    for attachment in [7, 8] {
        let record = nodes.record.attach(Attachment::from_bits(attachment)).unwrap();
        let epoch = term(record.term);
        nodes.create_engine(0, "", epoch, &members);
        for round in 1..=2 {
            let order = proto::AttachRequest { attachment, ..attach(&nodes, epoch) };
            let endpoint = nodes.runtime.block_on(orders.attach(order)).unwrap().into_inner().endpoint;
            assert!(endpoint.ends_with(".nbd"), "attachment {attachment}, time {round}: {endpoint}");
        }
        nodes.wait_until("the engine listens to the frontend", |nodes| {
            let mut orders = nodes.orders(0);
            let status = nodes.runtime.block_on(orders.status(target("e-0", epoch)));
            status.is_ok_and(|status| status.get_ref().attached && status.get_ref().serving)
        });
        let socket = nodes.root().join(format!("{}.nbd", volume()));
        let mut client = NbdClient::connect(&socket, &volume()).unwrap();
        let found = client.call(Ask::Read { offset: 0, length: 4096 }).unwrap();
        let before = if attachment == 7 { 0 } else { 7 };
        assert!(found.error == 0 && found.data.iter().all(|byte| *byte == before), "as {attachment}");
        let data = [attachment as u8; 4096];
        assert_eq!(client.call(Ask::Write { offset: 0, data: &data }).unwrap().error, 0);
        assert_eq!(client.call(Ask::Flush).unwrap().error, 0);
    }
}

#[test]
fn a_volume_that_nobody_uses_grows_too() {
    let mut nodes = Nodes::start(2);
    let members = nodes.create_replicas("");
    let now = nodes.next_term();
    nodes.create_engine(0, "", now, &members);
    let mut orders = nodes.orders(0);
    let status = |nodes: &Nodes, orders: &mut Orders| {
        nodes.runtime.block_on(orders.status(target("e-0", now))).unwrap().into_inner()
    };
    assert!(!status(&nodes, &mut orders).serving, "nobody has asked it to");
    let grow = proto::ExpandRequest { engine: ask(now), size: 2 * SIZE };
    let grown = nodes.patiently(|nodes| nodes.runtime.block_on(orders.expand(grow.clone())));
    grown.unwrap();
    let after = status(&nodes, &mut orders);
    assert_eq!((after.size, after.serving), (2 * SIZE, true));
    // Whoever asks for it again knows only how large it is now.
    let before = nodes.find(0, "r-0");
    for _ in 0..2 {
        let order = proto::CreateRequest { size: 2 * SIZE, ..replica(0, "", now) };
        let same = nodes.runtime.block_on(orders.create(order)).unwrap().into_inner();
        assert_eq!(same, proto::Instance { epoch: now, ..before.clone() });
    }
}

/// The last event of a stream, and how many told of progress.
async fn last(
    events: Result<tonic::Response<tonic::Streaming<proto::BackupEvent>>, Status>,
) -> Result<(usize, Event), Status> {
    let (mut events, mut told) = (events?.into_inner(), 0);
    loop {
        match events.message().await?.expect("the last event is a result").event.expect("an event is one") {
            Event::Progress(_) => told += 1,
            event => return Ok((told, event)),
        }
    }
}

fn backups(nodes: &Nodes) -> String {
    nodes.root().join("backups").display().to_string()
}

fn create_backup(nodes: &Nodes, epoch: u64) -> proto::CreateBackupRequest {
    let (target, snapshot) = (backups(nodes), "s".into());
    proto::CreateBackupRequest { engine: ask(epoch), target, snapshot, ..Default::default() }
}

async fn back_up(nodes: &Nodes, orders: &mut Orders, epoch: u64) -> Result<(usize, Event), Status> {
    last(orders.create_backup(create_backup(nodes, epoch)).await).await
}

/// Whoever gave the order the first time may be gone; the second hears of the end of both.
#[test]
fn an_order_for_a_backup_that_is_being_made_waits_for_its_end() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("");
    let epoch = term(1);
    let made = nodes.create_engine(0, "", epoch, &members);
    let socket = nodes.attach(&made);
    let mut client = NbdClient::connect(&socket, &volume()).unwrap();
    for offset in (0..SIZE).step_by(1 << 20) {
        let data = vec![1 + (offset >> 20) as u8; 1 << 20];
        assert_eq!(client.call(Ask::Write { offset, data: &data }).unwrap().error, 0);
    }
    let mut orders = nodes.orders(0);
    nodes.runtime.block_on(orders.create_snapshot(snapshot(epoch, "s"))).unwrap();
    let ask = async || {
        let mut orders = orders.clone();
        match back_up(&nodes, &mut orders, epoch).await.unwrap().1 {
            Event::Created(made) => made.new_blocks,
            other => panic!("{other:?}"),
        }
    };
    let (one, two, three) =
        nodes.runtime.block_on(async { futures::future::join3(ask(), ask(), ask()).await });
    let mut blocks = [one, two, three];
    blocks.sort_unstable();
    assert_eq!(blocks, [0, 0, SIZE >> 21], "one of them has made it");
}

#[test]
fn backups_are_made_listed_verified_and_restored_on_order() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("");
    let epoch = term(1);
    let made = nodes.create_engine(0, "", epoch, &members);
    let socket = nodes.attach(&made);
    let mut client = NbdClient::connect(&socket, &volume()).unwrap();
    let mut write = |fill: u8| {
        assert_eq!(client.call(Ask::Write { offset: 4096, data: &[fill; 4096] }).unwrap().error, 0);
    };
    write(1);
    let mut orders = nodes.orders(0);
    nodes.runtime.block_on(orders.create_snapshot(snapshot(epoch, "s"))).unwrap();
    let (told, created) = nodes.runtime.block_on(back_up(&nodes, &mut orders, epoch)).unwrap();
    let Event::Created(created) = created else { panic!("{created:?}") };
    assert!(told > 0, "the end is told");
    assert_eq!((created.new_blocks, created.size), (1, SIZE));
    write(2);
    let target = backups(&nodes);
    let restore = || proto::RestoreBackupRequest {
        engine: ask(epoch),
        target: target.clone(),
        volume: String::new(),
        backup: "s".into(),
    };
    let attached = nodes.runtime.block_on(async { last(orders.restore_backup(restore()).await).await });
    assert_eq!(attached.unwrap_err().code(), Code::Unavailable, "a frontend is connected");
    nodes.detach();
    for _ in 0..2 {
        let (_, restored) =
            nodes.runtime.block_on(async { last(orders.restore_backup(restore()).await).await }).unwrap();
        let Event::Restored(restored) = restored else { panic!("{restored:?}") };
        assert_eq!(restored.backup, "s");
    }
    let socket = nodes.attach(&made);
    let mut client = NbdClient::connect(&socket, &volume()).unwrap();
    let found = client.call(Ask::Read { offset: 4096, length: 4096 }).unwrap();
    assert!(found.error == 0 && found.data.iter().all(|byte| *byte == 1), "the volume is what it was");
    let which = |backup: &str| proto::BackupsRequest {
        target: target.clone(),
        volume: volume(),
        backup: backup.into(),
    };
    let listed = nodes.runtime.block_on(orders.list_backups(which(""))).unwrap().into_inner().backups;
    assert_eq!(listed.iter().map(|backup| &*backup.backup).collect::<Vec<_>>(), ["s"]);
    let (_, verified) =
        nodes.runtime.block_on(async { last(orders.verify_backups(which("")).await).await }).unwrap();
    let Event::Verified(verified) = verified else { panic!("{verified:?}") };
    assert_eq!((verified.backups, verified.blocks, verified.damaged.len()), (1, 1, 0));
    for removed in [1, 0] {
        let swept = nodes.runtime.block_on(orders.delete_backup(delete_backup(&nodes, epoch)));
        let swept = swept.unwrap().into_inner();
        assert_eq!((swept.removed_blocks, swept.kept_blocks), (removed, 0));
    }
    let relative = proto::BackupsRequest { target: "backups".into(), ..which("") };
    let refused = nodes.runtime.block_on(orders.list_backups(relative)).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

/// Where a share is not mounted there is a folder all the same: nothing begins in it, and nothing counts as removed.
#[test]
fn backups_that_were_seen_are_not_taken_for_gone_while_their_folder_is_away() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("");
    let epoch = term(1);
    let made = nodes.create_engine(0, "", epoch, &members);
    nodes.attach(&made);
    let orders = nodes.orders(0);
    nodes
        .patiently(|nodes| nodes.runtime.block_on(orders.clone().create_snapshot(snapshot(epoch, "s"))))
        .unwrap();
    let create = |existing: bool| {
        let (mut orders, order) = (orders.clone(), create_backup(&nodes, epoch));
        let order = proto::CreateBackupRequest { existing, ..order };
        nodes.runtime.block_on(async { last(orders.create_backup(order).await).await }).map(drop)
    };
    let delete = |existing: bool| {
        let order = proto::DeleteBackupRequest { existing, ..delete_backup(&nodes, epoch) };
        let swept = nodes.runtime.block_on(orders.clone().delete_backup(order))?;
        Ok::<_, Status>(swept.into_inner().complete)
    };
    let list = || {
        let which =
            proto::BackupsRequest { target: backups(&nodes), volume: volume(), backup: String::new() };
        let listed = nodes.runtime.block_on(orders.clone().list_backups(which)).unwrap().into_inner();
        (listed.backups.len(), listed.unused)
    };
    let (folder, away) = (PathBuf::from(backups(&nodes)), nodes.root().join("away"));
    let is_away = |place: &str| {
        for refused in [create(true).unwrap_err(), delete(true).unwrap_err()] {
            assert!(refused.message().contains("bring it back"), "{place}: {refused}");
        }
        assert_eq!(list(), (0, true), "{place}");
    };
    is_away("nothing is there");
    assert!(delete(false).unwrap(), "what nobody saw is not there");
    assert!(!folder.exists(), "nothing but a backup makes a folder");
    create(false).unwrap();
    create(true).unwrap();
    assert_eq!(list(), (1, false));
    std::fs::rename(&folder, &away).unwrap();
    is_away("it was renamed");
    std::fs::create_dir(&folder).unwrap();
    is_away("where it is mounted, it is not");
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(list(), (1, false));
    assert!(delete(true).unwrap());
    assert_eq!(list(), (0, false), "one that was used stays so");
    assert!(delete(true).unwrap(), "given twice");
}

#[test]
fn a_suspended_volume_waits_also_when_its_engine_is_killed() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("old");
    let made = nodes.create_engine(0, "old", term(1), &members);
    let socket = nodes.attach(&made);
    let mut client = NbdClient::connect(&socket, &volume()).unwrap();
    assert_eq!(client.call(Ask::Read { offset: 0, length: 512 }).unwrap().error, 0);
    let mut orders = nodes.orders(0);
    nodes.runtime.block_on(orders.suspend(target("e-0", term(1)))).unwrap();
    let waiting = thread::spawn(move || client.call(Ask::Read { offset: 0, length: 512 }).unwrap().error);
    let pid = nodes.find(0, "e-0").pid;
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    nodes.wait_until("the engine is back and suspended", |nodes| {
        let status = nodes.runtime.block_on(nodes.orders(0).status(target("e-0", term(1))));
        status.is_ok_and(|status| status.get_ref().suspended && status.get_ref().serving)
    });
    assert!(!waiting.is_finished());
    nodes.runtime.block_on(orders.resume(target("e-0", term(1)))).unwrap();
    assert_eq!(waiting.join().unwrap(), 0);
    assert!(!nodes.find(0, "e-0").suspended);
}

/// A replica that was to be let go is to stay: the engine has to hear of it, or whoever says so has to say it again.
#[test]
fn a_replica_is_not_taken_back_before_the_engine_has_heard_of_it() {
    let mut nodes = Nodes::start(2);
    let members = nodes.create_replicas("");
    let now = nodes.next_term();
    let made = nodes.create_engine(0, "old", now, &members);
    nodes.attach(&made);
    let mut orders = nodes.orders(0);
    let stay = member(now, "r-1", &members[1].address);
    nodes.patiently(|nodes| nodes.runtime.block_on(orders.add_replica(stay.clone()))).unwrap();
    let pid = i32::try_from(nodes.find(0, "e-0").pid).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let unheard = nodes.runtime.block_on(orders.add_replica(stay.clone()));
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    assert!(unheard.is_err(), "{unheard:?}");
    nodes.patiently(|nodes| nodes.runtime.block_on(orders.add_replica(stay.clone()))).unwrap();
}

#[test]
fn hostile_callers_are_refused_and_the_others_are_served() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("");
    let mut lingering = Vec::new();
    for round in 0..40 {
        let mut stream = TcpStream::connect(at(&nodes)).unwrap();
        let junk: &[u8] = match round % 4 {
            0 => b"",
            1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            2 => &[0xff; 5000],
            _ => b"POST /midflight.instance.v1.InstanceManager/Create HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
        };
        // Whether it hangs up in the middle is its own affair.
        let _ = stream.write_all(junk);
        lingering.push(stream);
    }
    let mut orders = nodes.orders(0);
    let mut refused = |what: &str, request: proto::CreateRequest| {
        let refused = nodes.runtime.block_on(orders.create(request)).expect_err(what);
        assert_eq!(refused.code(), Code::InvalidArgument, "{what}: {refused}");
    };
    let good = || engine(0, "", term(1), &members);
    for name in ["", "../../etc", "a/b", "E", "e\0", &"e".repeat(64)] {
        refused(name, proto::CreateRequest { name: name.into(), ..good() });
        refused(name, proto::CreateRequest { volume: name.into(), ..good() });
    }
    for binary in ["../secret", "/bin/sh", "old/../../secret", "none", "."] {
        refused(binary, proto::CreateRequest { binary: binary.into(), ..good() });
    }
    refused("no kind", proto::CreateRequest { kind: 0, ..good() });
    refused("unknown kind", proto::CreateRequest { kind: 77, ..good() });
    refused("no replicas", proto::CreateRequest { members: Vec::new(), ..good() });
    refused("many replicas", proto::CreateRequest { members: vec![members[0].clone(); 33], ..good() });
    refused("no size", proto::CreateRequest { size: 0, name: "r-9".into(), ..replica(0, "", term(1)) });
    refused("no epoch", proto::CreateRequest { epoch: 0, ..good() });
    refused("an epoch nobody gave", proto::CreateRequest { epoch: u64::MAX, ..good() });
    let address = proto::Member { name: "r-0".into(), address: "nowhere".into() };
    refused("no address", proto::CreateRequest { members: vec![address], ..good() });
    let huge = proto::CreateRequest { binary: "x".repeat(8 << 20), ..good() };
    assert!(nodes.runtime.block_on(orders.create(huge)).is_err());
    let none = nodes.runtime.block_on(orders.suspend(target("e-7", term(1)))).unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
    nodes.create_engine(0, "", term(1), &members);
    let other = proto::CreateRequest { remote: false, ..good() };
    let different = nodes.runtime.block_on(orders.create(other)).unwrap_err();
    assert_eq!(different.code(), Code::AlreadyExists, "{different}");
    assert_eq!(nodes.list(0).len(), 2);
    drop(lingering);
}

#[test]
fn a_watch_tells_what_is_there_and_what_changes() {
    let mut nodes = Nodes::start(1);
    nodes.create_replicas("");
    let mut orders = nodes.orders(0);
    let mut events = nodes.runtime.block_on(orders.watch(proto::WatchRequest {})).unwrap().into_inner();
    let mut next = || {
        let event = nodes.runtime.block_on(events.message()).unwrap().expect("the watch goes on");
        match event.change.expect("an event has a change") {
            proto::event::Change::Changed(instance) => {
                format!("{} {}", instance.name, instance.state().as_str_name())
            }
            proto::event::Change::Removed(instance) => format!("{} removed", instance.name),
            proto::event::Change::Synced(_) => "synced".into(),
        }
    };
    assert_eq!([next(), next()], ["r-0 STATE_RUNNING", "synced"]);
    let mut orders = nodes.orders(0);
    nodes.runtime.block_on(orders.delete(delete(proto::Kind::Replica, "r-0", term(1)))).unwrap();
    let mut last = next();
    while last != "r-0 removed" {
        last = next();
    }
}

#[test]
fn an_instance_manager_that_is_ended_says_what_it_still_holds() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("old");
    nodes.create_engine(0, "", term(1), &members);
    nodes.nodes[0].process.signal(Signal::TERM).unwrap();
    assert!(nodes.nodes[0].process.wait_for_end(Duration::from_secs(20)).unwrap().success());
    let said = nodes.last_words();
    for held in ["engine-e-0", "replica-r-0"] {
        assert!(
            said.lines().any(|line| line.contains("still held") && line.contains(held)),
            "{held}: {said}"
        );
    }
    nodes.restart(0);
    assert_eq!(nodes.find(0, "r-0").state(), proto::State::Running, "its process lived on");
    assert_eq!(nodes.find(0, "e-0").state(), proto::State::Lost);
}

#[test]
fn orders_can_be_given_by_hand() {
    let nodes = Nodes::start(1);
    let by_hand = |arguments: &[&str]| {
        let secret = nodes.root().join("secret").display().to_string();
        let out = Command::new(mfblock())
            .args(["instance", "--at", &at(&nodes).to_string(), "--secret", &secret])
            .args(arguments)
            .output()
            .unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (done, made, _) =
        by_hand(&["create-replica", "r-0", "--volume", &volume(), "--term", "3", "--size", "1048576"]);
    assert!(
        done && made.contains(r#""kind":"replica","name":"r-0""#) && made.contains(r#""state":"running""#)
    );
    assert!(by_hand(&["list"]).1.contains(r#""epoch":"3.0""#));
    assert!(by_hand(&["version"]).1.contains(r#""api":{"oldest":1"#));
    let (done, _, why) = by_hand(&["delete-replica", "r-0", "--volume", &volume(), "--term", "2"]);
    assert!(!done && why.contains("is at epoch 3.0 here, the command has 2.0"), "{why}");
    assert!(by_hand(&["delete-replica", "r-0", "--volume", &volume(), "--term", "3", "--remove-data"]).0);
    assert_eq!(by_hand(&["list"]).1.trim(), "[]");
}
