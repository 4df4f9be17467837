//! Frontends are replaced and killed under real clients.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{
    io::Read,
    os::unix::net::UnixStream,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use midflight_block::{
    nbd::client::{Ask, NbdClient},
    tour::{DRAIN_WITHIN, Plane, replicas_equal},
};
use volume::{VOLUME, start, until};

const SIZE: u64 = 16 << 20;

#[test]
fn clients_do_not_notice_that_the_frontend_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let load = volume::load(&plane, 11);
    let mut negotiating = UnixStream::connect(plane.socket()).unwrap();
    for round in 0..6 {
        thread::sleep(Duration::from_millis(40));
        plane.replace_frontend().unwrap();
        if round % 2 == 0 {
            plane.switch(DRAIN_WITHIN).unwrap();
        }
    }
    load.judge();
    let mut greeting = [0; 18];
    negotiating.read_exact(&mut greeting).expect("half a negotiation goes along too");
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_keeper_is_replaced_under_the_frontend() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let load = volume::load(&plane, 11);
    let log = folder.path().join("processes.log");
    for round in 1..=2 {
        plane.replace_keeper().unwrap();
        let told = || std::fs::read_to_string(&log).unwrap().matches("a new keeper has everything").count();
        until("the frontend finds its new keeper", || told() >= round);
        plane.replace_frontend().unwrap();
    }
    load.judge();
}

fn write_all(client: &mut NbdClient, value: u8) {
    for offset in (0..SIZE).step_by(1 << 20) {
        let data = vec![value; 1 << 20];
        assert_eq!(client.call(Ask::Write { offset, data: &data }).unwrap().error, 0);
    }
}

#[test]
fn clients_of_a_killed_frontend_connect_again_and_find_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    for round in 1..=4u8 {
        let mut client = NbdClient::connect(&plane.socket(), VOLUME).unwrap();
        write_all(&mut client, round);
        let stop = Arc::new(AtomicBool::new(false));
        let other = {
            let mut client = NbdClient::connect(&plane.socket(), VOLUME).unwrap();
            let stop = Arc::clone(&stop);
            // Repeats what is there, so that something is under way when the frontend dies.
            thread::spawn(move || {
                let data = vec![round; 64 << 10];
                while !stop.load(Ordering::Relaxed) {
                    if client.call(Ask::Write { offset: 0, data: &data }).is_err() {
                        return;
                    }
                }
            })
        };
        thread::sleep(Duration::from_millis(20));
        plane.frontend().kill();
        assert!(client.call(Ask::Flush).is_err(), "its connection is gone");
        let socket = plane.socket();
        let waiting = thread::spawn(move || NbdClient::connect(&socket, VOLUME));
        if round % 2 == 0 {
            // What the dead frontend had asked is known to nobody else.
            plane.engine().kill();
            plane.restart_engine().unwrap();
        }
        plane.restart_frontend().unwrap();
        if round == 3 {
            plane.restart_engine().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
        let mut client = waiting.join().unwrap().expect("who connects meanwhile only waits");
        for offset in (0..SIZE).step_by(1 << 20) {
            let reply = client.call(Ask::Read { offset, length: 1 << 20 }).unwrap();
            assert!(
                reply.error == 0 && reply.data.iter().all(|byte| *byte == round),
                "round {round} at {offset}"
            );
        }
    }
    plane.switch(DRAIN_WITHIN).unwrap();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// Runs a program to its end while frontends change; whether it was installed.
fn across_replacements(plane: &mut Plane, program: &str, arguments: &[&str]) -> bool {
    let child = Command::new(program).args(arguments).stdout(std::process::Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{program}: {error}");
            skip(program);
            return false;
        }
    };
    let mut replaced = 0;
    while child.try_wait().unwrap().is_none() {
        plane.replace_frontend().unwrap();
        replaced += 1;
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(replaced > 0);
    true
}

#[allow(clippy::print_stderr)]
fn skip(program: &str) {
    eprintln!("SKIPPED: {program} is not installed");
}

#[test]
fn fio_nbdcopy_and_qemu_go_on_across_replacements() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let uri = format!("nbd+unix:///vol-1?socket={}", plane.socket().display());
    let state = folder.path().display().to_string();
    let fio_uri = format!("--uri={uri}");
    let aux = format!("--aux-path={state}");
    #[rustfmt::skip]
    let fio = [
        "--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--size=16M", "--iodepth=16",
        "--verify=crc32c", "--verify_fatal=1", "--randseed=42", "--verify_state_save=0", &fio_uri, &aux,
    ];
    across_replacements(&mut plane, "fio", &fio);
    let copy = folder.path().join("copy").display().to_string();
    if across_replacements(&mut plane, "nbdcopy", &["--request-size=65536", &uri, &copy]) {
        across_replacements(&mut plane, "qemu-img", &["compare", "-f", "raw", "-F", "raw", &copy, &uri]);
    }
    let pieces: Vec<String> =
        (0..64).flat_map(|at| ["-c".to_owned(), format!("write -P {at} {}k 256k", at * 256)]).collect();
    let mut qemu = vec!["-f", "raw"];
    qemu.extend(pieces.iter().map(String::as_str));
    qemu.push(&uri);
    across_replacements(&mut plane, "qemu-io", &qemu);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
