//! Real instance managers on three loopback addresses: volumes are made, moved and
//! survive the death of whoever serves them, under a client that judges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod nodes;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use midflight_block::{
    engine::members::Mode,
    epoch::Epoch,
    instance::proto::{self, State},
    nbd::client::{Ask, NbdClient},
    record::RecordStore,
};
use nodes::{Nodes, soon, target, volume};
use rustix::process::{Pid, Signal};

/// A new client is served.
fn assert_served(socket: &Path) {
    let mut client = NbdClient::connect(socket, &volume()).unwrap();
    assert_eq!(client.call(Ask::Read { offset: 0, length: 4096 }).unwrap().error, 0);
}

fn kill(instance: &proto::Instance) {
    let pid = Pid::from_raw(i32::try_from(instance.pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn an_engine_moves_between_instance_managers_and_the_client_only_waits() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("");
    let first = nodes.create_engine(0, "", Epoch::of_term(1).bits(), &members);
    let load = nodes::load(nodes.attach(&first));
    for node in [1, 2, 0, 1] {
        soon();
        let epoch = nodes.next_term();
        let next = nodes.create_engine(node, "", epoch, &members);
        let switched = nodes.switch(&next).unwrap();
        assert_eq!(switched.epoch, next.epoch);
        assert_eq!(nodes.switch(&next).unwrap().epoch, next.epoch, "given twice, it is done already");
    }
    load.judge();
    // The engines that were left behind find out that the record names another.
    nodes.wait_until("the old engine is fenced", |nodes| nodes.find(2, "e-2").state() == State::Fenced);
    assert!(nodes.copies_are_equal());
}

#[test]
fn processes_live_on_without_their_instance_manager_and_are_taken_up_again() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("old");
    let engine = nodes.create_engine(0, "old", Epoch::of_term(1).bits(), &members);
    let socket = nodes.attach(&engine);
    let load = nodes::load(socket.clone());
    soon();
    let before = nodes.list(0);
    nodes.nodes.iter_mut().for_each(|node| node.process.kill());
    assert_served(&socket);
    (0..3).for_each(|node| nodes.restart(node));
    assert_eq!(nodes.list(0), before, "the same processes, with the same epochs, at the same addresses");
    assert_served(&socket);

    // Minded as before: a dead engine comes back in its own term, a dead replica where it was.
    kill(&engine);
    nodes.wait_until("the engine is back", |nodes| {
        let now = nodes.find(0, "e-0");
        now.state() == State::Running && now.epoch > engine.epoch
    });
    let again = nodes.find(0, "e-0");
    assert_eq!(Epoch::from_bits(again.epoch).term(), 1);
    assert_eq!((again.restarts, again.address), (1, engine.address));
    assert_served(&socket);
    kill(&nodes.find(1, "r-1"));
    nodes.wait_until("the replica is back", |nodes| nodes.find(1, "r-1").restarts == 1);
    nodes.wait_until_whole();

    // What died while nobody minded it is started again.
    let engine = nodes.find(0, "e-0");
    nodes.nodes[0].process.kill();
    kill(&engine);
    nodes.restart(0);
    nodes.wait_until("the engine is back", |nodes| nodes.find(0, "e-0").epoch > engine.epoch);
    assert_served(&socket);
    nodes.wait_until_whole();
    load.judge();
    assert!(nodes.copies_are_equal());
}

#[test]
fn a_killed_instance_manager_loses_its_engine_to_another_and_nothing_else() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("");
    let engine = nodes.create_engine(0, "", Epoch::of_term(1).bits(), &members);
    let socket = nodes.attach(&engine);
    let load = nodes::load(socket.clone());
    soon();
    let began = Instant::now();
    nodes.nodes[0].process.kill();
    let epoch = nodes.next_term();
    let next = nodes.create_engine(1, "", epoch, &members);
    nodes.switch_at(1, &next).unwrap();
    assert_served(&socket);
    assert!(began.elapsed() < Duration::from_secs(20), "took {:?}", began.elapsed());

    // What was in the process is shown as lost, and comes back when it is asked for.
    nodes.restart(0);
    assert_eq!(nodes.find(0, "e-0").state(), State::Lost);
    let lost = nodes.find(0, "r-0");
    assert_eq!(lost.state(), State::Lost);
    let again = nodes.create_replica(0, "", epoch);
    assert_eq!(again.address, lost.address);
    nodes.wait_until_whole();

    // Also an engine of the same term: under the next incarnation.
    nodes.nodes[1].process.kill();
    nodes.restart(1);
    nodes.create_replica(1, "", epoch);
    let again = nodes.create_engine(1, "", epoch, &members);
    assert_eq!(again.address, next.address);
    assert!(
        again.epoch > next.epoch && Epoch::from_bits(again.epoch).term() == Epoch::from_bits(epoch).term()
    );
    assert_served(&socket);
    nodes.wait_until_whole();
    load.judge();
    assert!(nodes.copies_are_equal());
}

/// An empty copy in its place would be taken for one that only missed something.
#[test]
fn a_replica_whose_data_is_gone_says_so_until_it_is_brought_back() {
    for binary in ["", "old"] {
        let mut nodes = Nodes::start(1);
        nodes.create_replicas(binary);
        let before = nodes.find(0, "r-0");
        nodes.nodes[0].process.kill();
        if before.pid != 0 {
            kill(&before);
        }
        let (copy, away) = (nodes.nodes[0].folder.join("replicas/r-0"), nodes.root().join("away"));
        std::fs::rename(&copy, &away).unwrap();
        nodes.restart(0);
        let says_so = |why: &str| why.contains("its data is not there");
        nodes.wait_until("it is not begun anew", |nodes| {
            let now = nodes.find(0, "r-0");
            match now.state() {
                // What was in the instance manager waits for whoever asks for it.
                State::Lost => binary.is_empty(),
                State::Failed => says_so(&now.why),
                _ => false,
            }
        });
        let ask = |nodes: &Nodes| {
            let order = nodes::replica(0, binary, before.epoch);
            let order = proto::CreateRequest { existing: true, ..order };
            nodes.runtime.block_on(nodes.orders(0).create(order))
        };
        for _ in 0..2 {
            let refused = ask(&nodes).unwrap_err();
            assert!(says_so(refused.message()), "{binary:?}: {refused}");
            assert!(!copy.exists(), "{binary:?}");
        }
        std::fs::rename(&away, &copy).unwrap();
        assert_eq!(ask(&nodes).unwrap().into_inner().state(), State::Running, "{binary:?}");
    }
}

#[test]
fn replicas_come_and_go_under_load() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("");
    let engine = nodes.create_engine(0, "", Epoch::of_term(1).bits(), &members);
    let load = nodes::load(nodes.attach(&engine));
    soon();
    let mut orders = nodes.orders(0);
    let request = |name: &str, address: &str| proto::ReplicaRequest {
        engine: Some(target("e-0", engine.epoch)),
        replica: name.into(),
        address: address.into(),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(orders.remove_replica(request("r-2", ""))).unwrap();
    assert_eq!(nodes.record.read().unwrap().1.members.len(), 2);
    soon();
    runtime.block_on(orders.add_replica(request("r-2", &members[2].address))).unwrap();
    nodes.wait_until_whole();
    runtime.block_on(orders.rebuild_replica(request("r-1", ""))).unwrap();
    nodes.wait_until_whole();
    let engine_says = |nodes: &mut Nodes| {
        let mut orders = nodes.orders(0);
        let status = nodes.runtime.block_on(orders.status(target("e-0", engine.epoch))).unwrap();
        status.into_inner()
    };
    // The record is ahead of the engine that has changed it.
    nodes.wait_until("the engine knows it", |nodes| engine_says(nodes).in_service == 3);
    let incarnation = Epoch::from_bits(engine_says(&mut nodes).epoch).incarnation();
    assert_eq!(incarnation, 3, "each change is a new start in the same term");
    for name in ["r-0", "r-1"] {
        runtime.block_on(orders.remove_replica(request(name, ""))).unwrap();
    }
    let refused = runtime.block_on(orders.remove_replica(request("r-2", ""))).unwrap_err();
    assert_eq!(refused.message(), "the last replica in service stays");
    for number in [0, 1] {
        let address = &members[number].address;
        runtime.block_on(orders.add_replica(request(&format!("r-{number}"), address))).unwrap();
    }
    nodes.wait_until_whole();
    load.judge();
    assert!(nodes.copies_are_equal());
}

#[test]
fn a_released_replica_keeps_its_data_and_returns_with_what_it_missed() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("");
    let engine = nodes.create_engine(0, "", Epoch::of_term(1).bits(), &members);
    let load = nodes::load(nodes.attach(&engine));
    soon();
    let request = |address: &str| proto::ReplicaRequest {
        engine: Some(target("e-0", engine.epoch)),
        replica: "r-2".into(),
        address: address.into(),
    };
    let mut orders = nodes.orders(0);
    nodes.runtime.block_on(orders.release_replica(request(""))).unwrap();
    let modes: Vec<Mode> = nodes.record.read().unwrap().1.members.iter().map(|member| member.mode).collect();
    assert_eq!(modes, [Mode::InService, Mode::InService, Mode::Out]);
    let incarnation = nodes.find(0, "e-0").epoch;
    assert_eq!(Epoch::from_bits(incarnation).incarnation(), 0, "the engine was not started anew for it");
    soon();
    for _ in 0..2 {
        nodes.runtime.block_on(orders.add_replica(request(&members[2].address))).unwrap();
        nodes.wait_until_whole();
    }
    let engine = nodes.find(0, "e-0");
    assert_eq!(
        (Epoch::from_bits(engine.epoch).incarnation(), engine.restarts),
        (0, 0),
        "nor when it came back"
    );
    load.judge();
    assert!(nodes.copies_are_equal());
}

#[test]
fn replicas_of_another_binary_take_over_from_those_that_serve() {
    let mut nodes = Nodes::start(3);
    std::fs::copy(nodes::mfblock(), nodes.root().join("binaries/new")).unwrap();
    let members = nodes.create_replicas("old");
    let engine = nodes.create_engine(0, "old", nodes.find(0, "r-0").epoch, &members);
    let load = nodes::load(nodes.attach(&engine));
    soon();
    let before = nodes.record.read().unwrap().1;
    let epoch = nodes.next_term();
    for (node, member) in members.iter().enumerate() {
        let old = nodes.find(node, &member.name).pid;
        let again = nodes.create_replica(node, "new", epoch);
        assert_eq!(again.address, member.address, "engines find it where it was");
        let now = nodes.find(node, &member.name);
        assert_eq!((now.binary.as_str(), now.state()), ("new", State::Running));
        assert_ne!(now.pid, old);
        soon();
    }
    assert_eq!(nodes.record.read().unwrap().1.member_version, before.member_version, "nobody was dropped");
    // The engine of the new binary follows; who is killed after that comes back as what took over.
    let next = nodes.create_engine(1, "new", epoch, &members);
    nodes.switch(&next).unwrap();
    kill(&nodes.find(2, "r-2"));
    nodes.wait_until("it is started again", |nodes| {
        let now = nodes.find(2, "r-2");
        now.state() == State::Running && now.restarts > 0 && now.binary == "new"
    });
    nodes.wait_until_whole();
    load.judge();
    assert!(nodes.copies_are_equal());
}

#[test]
fn an_engine_that_is_started_again_rebuilds_whom_it_was_told_to_and_nobody_else() {
    let mut nodes = Nodes::start(3);
    let members = nodes.create_replicas("old");
    let epoch = Epoch::of_term(1).bits();
    let request = nodes::engine(0, "old", epoch, &members);
    let request = proto::CreateRequest { permitted: Vec::new(), ..request };
    let mut orders = nodes.orders(0);
    let engine = nodes.runtime.block_on(orders.create(request)).unwrap().into_inner();
    nodes.attach(&engine);
    let may_rebuild = |nodes: &mut Nodes| {
        let status = nodes.runtime.block_on(nodes.orders(0).status(target("e-0", epoch))).ok()?.into_inner();
        status.may_rebuild.filter(|_| status.serving).map(|permitted| permitted.replicas)
    };
    nodes.wait_until("it serves, and nobody was named", |nodes| may_rebuild(nodes) == Some(Vec::new()));
    let permit = |nodes: &Nodes, replicas: &[&str]| {
        let replicas = replicas.iter().map(|name| (*name).to_owned()).collect();
        let order = proto::PermitRequest { engine: Some(target("e-0", epoch)), replicas };
        nodes.patiently(|nodes| nodes.runtime.block_on(nodes.orders(0).permit(order.clone()))).unwrap();
    };
    let modes = |nodes: &mut Nodes| -> Vec<Mode> {
        nodes.record.read().unwrap().1.members.iter().map(|member| member.mode).collect()
    };
    permit(&nodes, &["r-2"]);
    kill(&nodes.find(1, "r-1"));
    nodes.wait_until("it is dropped", |nodes| modes(nodes)[1] == Mode::Out);
    kill(&nodes.find(0, "e-0"));
    nodes.wait_until("the engine is back, and was told whom it may rebuild", |nodes| {
        nodes.find(0, "e-0").restarts > 0 && may_rebuild(nodes) == Some(vec!["r-2".to_owned()])
    });
    let before = nodes.record.read().unwrap().1.member_version;
    kill(&nodes.find(2, "r-2"));
    nodes.wait_until("who may be rebuilt is dropped, and rebuilt", |nodes| {
        let now = nodes.record.read().unwrap().1.member_version;
        now >= before + 3 && modes(nodes)[2] == Mode::InService
    });
    assert_eq!(modes(&mut nodes)[1], Mode::Out, "it was back long before");
    permit(&nodes, &["r-1"]);
    nodes.wait_until_whole();
    assert!(nodes.copies_are_equal());
}
