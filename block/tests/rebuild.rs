//! What a rebuild copies, and how fast.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::time::{Duration, Instant};

use midflight_block::{
    engine::{
        control::{Answer, Command},
        members::Mode,
    },
    nbd::client::{Ask, NbdClient},
    tour::{Plane, replicas_equal},
};
use volume::{VOLUME, WHOLE_WITHIN, start, status, until};

const BLOCK: u64 = 4096;
const SIZE: u64 = 32 << 20;

/// A written and flushed volume; then one copy is away while `dirtied` blocks are
/// written, each of them twice. Gives how many bytes it takes to bring it back.
fn rebuild(plane: &mut Plane, dirtied: u64) -> u64 {
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).expect("the plane works");
    let mut ask = |ask: Ask<'_>| assert_eq!(client.call(ask).expect("the plane works").error, 0);
    for offset in (0..SIZE).step_by(1 << 20) {
        ask(Ask::Write { offset, data: &vec![7; 1 << 20] });
    }
    ask(Ask::Flush);
    plane.replica(1).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    for round in 1..=2 {
        // Never two neighbours, so that no piece can be longer than what was written.
        for number in 0..dirtied {
            let offset = number * 2 % (SIZE / BLOCK) * BLOCK;
            ask(Ask::Write { offset, data: &[round; BLOCK as usize] });
        }
    }
    let before = status(plane).copied_bytes;
    plane.restart_replica(1).unwrap();
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    status(plane).copied_bytes - before
}

#[test]
fn a_copy_that_was_away_gets_what_it_missed_and_little_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    // One percent of the volume, and a quarter of it.
    for dirtied in [SIZE / BLOCK / 100, SIZE / BLOCK / 4] {
        let copied = rebuild(&mut plane, dirtied);
        assert!(copied >= dirtied * BLOCK, "{copied} bytes for {dirtied} blocks");
        assert!(copied * 10 <= dirtied * BLOCK * 13, "{copied} bytes for {dirtied} blocks");
    }
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// What it misses while it waits is copied with the rest. That it does not return is seen by another that does, twice: both are tried
/// again as often.
#[test]
fn a_copy_that_is_back_waits_until_it_may_be_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let names: Vec<String> =
        plane.record().unwrap().members.iter().map(|member| member.replica.clone()).collect();
    let permit = |plane: &mut Plane, replica: usize| {
        let replicas = vec![names[replica].clone()];
        let answer = plane.command(&Command::Permit { replicas }).expect("the plane works");
        assert_eq!(answer, Answer::Done);
    };
    permit(&mut plane, 2);
    plane.replica(1).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    plane.restart_replica(1).unwrap();
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).expect("the plane works");
    for round in 1..=2 {
        plane.replica(2).kill();
        until("the other is dropped", || plane.record().unwrap().in_service() == 1);
        for offset in (0..SIZE).step_by(1 << 20) {
            let data = &vec![round; 1 << 20];
            let written = client.call(Ask::Write { offset, data }).expect("the plane works");
            assert_eq!(written.error, 0);
        }
        plane.restart_replica(2).unwrap();
        until("the other is whole", || plane.record().unwrap().in_service() == 2);
        let modes: Vec<Mode> = plane.record().unwrap().members.iter().map(|member| member.mode).collect();
        assert_eq!(modes, [Mode::InService, Mode::Out, Mode::InService], "round {round}");
    }
    permit(&mut plane, 1);
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_rebuild_goes_no_faster_than_it_was_told() {
    const RATE: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let throttle = |plane: &mut Plane, bytes_per_second| {
        let answer = plane.command(&Command::Throttle { bytes_per_second }).expect("the plane works");
        assert_eq!(answer, Answer::Done);
    };
    throttle(&mut plane, Some(RATE));
    let began = Instant::now();
    let copied = rebuild(&mut plane, 512);
    // What may be copied at once, a piece of 256 KiB, comes on top.
    let least = Duration::from_secs_f64((copied - (256 << 10)) as f64 / RATE as f64);
    assert!(began.elapsed() >= least, "{copied} bytes in {:?}", began.elapsed());
    throttle(&mut plane, None);
    rebuild(&mut plane, 512);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
