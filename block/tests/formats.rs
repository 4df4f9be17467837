//! Builds that really differ: this one and the one with the feature `next`, switched
//! under a client that judges; and builds that fail on purpose.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod nodes;

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use midflight_block::{
    epoch::Epoch,
    instance::proto,
    wire::{
        self, Frame, Header, Kind,
        hello::{Features, Hello, Versions},
    },
};
use nodes::{Nodes, mfblock, soon, target, volume};

/// The binary of the next version, which also has the failpoints: the one that
/// `MIDFLIGHT_NEXT` names, or else one that is built here. After `dev/test` has built it,
/// cargo finds nothing left to do.
fn next() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(there) = std::env::var_os("MIDFLIGHT_NEXT") {
            return there.into();
        }
        let target = mfblock().parent().and_then(Path::parent).expect("a target folder").join("next");
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--package", "midflight-block", "--bin", "mfblock"])
            .args(["--features", "next,failpoints", "--target-dir"])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        target.join("debug/mfblock")
    })
}

/// Three nodes that have both builds, and one that fails in each way.
fn nodes_with_both() -> Nodes {
    let nodes = Nodes::start(3);
    let binaries = nodes.root().join("binaries");
    std::fs::copy(next(), binaries.join("next")).unwrap();
    for failpoint in ["engine-start", "engine-go", "engine-serve"] {
        let path = binaries.join(failpoint);
        let next = binaries.join("next");
        let script = format!("#!/bin/sh\nMIDFLIGHT_FAILPOINT={failpoint} exec {} \"$@\"\n", next.display());
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    nodes
}

/// Gives the volume to a new engine of a build, next to those that are there.
fn move_to(nodes: &mut Nodes, binary: &str) -> Result<proto::Instance, tonic::Status> {
    let epoch = nodes.next_term();
    let members = nodes.members();
    let mut request = nodes::engine(0, binary, epoch, &members);
    request.name = format!("e-{}", Epoch::from_bits(epoch).term());
    let mut orders = nodes.orders(0);
    let made = nodes.runtime.block_on(orders.create(request))?.into_inner();
    nodes.switch(&made).map(|_| made)
}

/// Whether an engine serves for a while without being started again.
fn stays(nodes: &Nodes, engine: &proto::Instance) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        let mut orders = nodes.orders(0);
        let status = nodes.runtime.block_on(orders.status(target(&engine.name, engine.epoch)));
        if !status.is_ok_and(|status| status.get_ref().serving && status.get_ref().epoch == engine.epoch) {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Starts the replica of a node from another build, in the same folder.
fn replace_replica(nodes: &mut Nodes, node: usize, binary: &str) -> Result<(), tonic::Status> {
    let epoch = nodes.next_term();
    let mut orders = nodes.orders(node);
    let made = nodes.runtime.block_on(orders.create(nodes::replica(node, binary, epoch)))?.into_inner();
    assert_eq!(made.address, nodes.members()[node].address, "others were told where it is");
    Ok(())
}

#[test]
fn both_builds_serve_each_other_and_the_way_back_is_open() {
    let mut nodes = nodes_with_both();
    let members = nodes.create_replicas("old");
    let engine = nodes.create_engine(0, "old", Epoch::of_term(1).bits(), &members);
    let load = nodes::load(nodes.attach(&engine));
    for round in [["next", "next"], ["old", "old"], ["next", "old"], ["old", "next"]] {
        let [replica, engine] = round;
        replace_replica(&mut nodes, 1, replica).unwrap();
        soon();
        let moved = move_to(&mut nodes, engine).unwrap();
        assert!(stays(&nodes, &moved), "{round:?}: {}", nodes.last_words());
        nodes.wait_until_whole();
    }
    load.judge();
    assert!(nodes.copies_are_equal());
}

#[test]
fn what_is_new_on_disk_is_used_only_once_the_upgrade_is_final() {
    let mut nodes = nodes_with_both();
    let members = nodes.create_replicas("old");
    let engine = nodes.create_engine(0, "old", Epoch::of_term(1).bits(), &members);
    let load = nodes::load(nodes.attach(&engine));
    replace_replica(&mut nodes, 1, "next").unwrap();
    replace_replica(&mut nodes, 2, "next").unwrap();
    let engine = move_to(&mut nodes, "next").unwrap();
    nodes.wait_until_whole();
    let finalize = |nodes: &Nodes, engine: &proto::Instance| {
        nodes.patiently(|nodes| {
            let mut orders = nodes.orders(0);
            nodes.runtime.block_on(orders.finalize(target(&engine.name, engine.epoch)))
        })
    };
    let refused = finalize(&nodes, &engine).unwrap_err();
    assert_eq!(refused.message(), "replica r-0 has wire version 1, this engine 2");
    replace_replica(&mut nodes, 0, "next").unwrap();
    let engine = move_to(&mut nodes, "next").unwrap();
    nodes.wait_until_whole();
    // Not final: the way back is open.
    replace_replica(&mut nodes, 0, "old").unwrap();
    replace_replica(&mut nodes, 0, "next").unwrap();
    let engine = move_to(&mut nodes, "next").unwrap_or(engine);
    nodes.wait_until_whole();
    finalize(&nodes, &engine).unwrap();
    finalize(&nodes, &engine).unwrap();
    // Final: an engine of before still serves, a replica of before says why it cannot.
    let engine = move_to(&mut nodes, "old").unwrap();
    assert!(stays(&nodes, &engine));
    let refused = replace_replica(&mut nodes, 2, "old").unwrap_err();
    assert!(refused.message().contains("the folder has format 2, this build reads 1 to 1"), "{refused}");
    replace_replica(&mut nodes, 2, "next").unwrap();
    move_to(&mut nodes, "next").unwrap();
    nodes.wait_until_whole();
    load.judge();
}

#[test]
fn engines_that_fail_are_left_for_the_old_build_and_the_client_only_waits() {
    let mut nodes = nodes_with_both();
    let members = nodes.create_replicas("old");
    let engine = nodes.create_engine(0, "old", Epoch::of_term(1).bits(), &members);
    let load = nodes::load(nodes.attach(&engine));
    for failpoint in ["engine-start", "engine-go", "engine-serve"] {
        soon();
        let moved = move_to(&mut nodes, failpoint);
        assert!(moved.as_ref().map_or(true, |moved| !stays(&nodes, moved)), "{failpoint}: {moved:?}");
        let ended = nodes.list(0).iter().any(|made| made.binary == failpoint && made.restarts > 0);
        match failpoint {
            "engine-serve" => assert!(ended, "it takes the volume over before it ends: {moved:?}"),
            _ => assert!(moved.is_err(), "{failpoint}"),
        }
        let back = move_to(&mut nodes, "old").unwrap_or_else(|why| panic!("{failpoint}: {why}"));
        assert!(stays(&nodes, &back), "{failpoint}: {}", nodes.last_words());
    }
    nodes.wait_until_whole();
    load.judge();
    assert!(nodes.copies_are_equal());
}

#[test]
fn a_peer_outside_the_supported_range_is_told_both_ranges() {
    let mut nodes = Nodes::start(1);
    let members = nodes.create_replicas("");
    let mut stream = TcpStream::connect(&members[0].address).unwrap();
    let versions = Versions { oldest: 7, newest: 9, features: Features::NONE };
    let hello = Hello { versions, volume: volume(), sender: 1, size: 0, epoch: Epoch::of_term(1) };
    let frame = Frame::with(Header::new(Kind::Hello, 5, Epoch::NONE), hello.encode());
    stream.write_all(&[&frame.header.encode(frame.payload.len())[..], &frame.payload].concat()).unwrap();
    let mut input = BytesMut::new();
    let answer = loop {
        if let Ok(answer) = wire::decode(&mut input).unwrap() {
            break answer;
        }
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).unwrap();
        assert!(count > 0, "it answers before it hangs up");
        input.extend_from_slice(&chunk[..count]);
    };
    assert_eq!(answer.header.status, wire::Status::Invalid);
    let why = String::from_utf8_lossy(&answer.payload).into_owned();
    assert_eq!(why, "wire versions 1-1 here and 7-9 there do not overlap");
}
