//! Clients that mean harm: the frontend stays up and serves the others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use midflight_block::{
    check::workload::Workload,
    nbd::client::{Ask, NbdClient},
    tour::{Layout, Plane},
};
use volume::{VOLUME, layout};

/// Greets, chooses the export, and stands at the start of its requests.
fn negotiated(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("the frontend listens");
    let mut raw = 3u32.to_be_bytes().to_vec();
    raw.extend(0x4948_4156_454f_5054u64.to_be_bytes());
    raw.extend(7u32.to_be_bytes());
    raw.extend(6u32.to_be_bytes());
    raw.extend([0; 6]);
    stream.write_all(&raw).expect("the frontend reads");
    let mut greeting = [0; 18 + 20 + 12 + 20];
    stream.read_exact(&mut greeting).expect("the frontend answers");
    stream
}

fn request(kind: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut raw = 0x2560_9513u32.to_be_bytes().to_vec();
    raw.extend(0u16.to_be_bytes());
    raw.extend(kind.to_be_bytes());
    raw.extend(9u64.to_be_bytes());
    raw.extend(offset.to_be_bytes());
    raw.extend(length.to_be_bytes());
    raw
}

/// What the good client uses of the volume; what hostile ones write is behind it.
const GOOD_BLOCKS: u64 = 1024;

fn annoy(socket: &Path, round: u32) -> Option<UnixStream> {
    let mut stream = match round % 8 {
        0 | 1 => UnixStream::connect(socket).expect("the frontend listens"),
        _ => negotiated(socket),
    };
    stream.set_write_timeout(Some(Duration::from_millis(20))).expect("a timeout can be set");
    // Whether the frontend hangs up in the middle is its own affair.
    let _ = match round % 8 {
        0 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        1 => stream.write_all(&[0, 0, 0, 3, 0x49]),
        2 => stream.write_all(&request(1, 0, u32::MAX)),
        3 => stream.write_all(&request(1, 0, 4096)[..20]),
        4 => stream.write_all(&[0xff; 4096]),
        5 => {
            // Asks for far more than it will ever take.
            let length = if round < 16 { 1 << 20 } else { 64 << 10 };
            stream.write_all(&request(0, 0, length).repeat(2000))
        }
        6 => stream.write_all(&request(3, 0, 0).repeat(500)),
        _ => {
            // Each of them has to wait for the one before.
            let write = [request(1, GOOD_BLOCKS * 4096, 4096), vec![7; 4096]].concat();
            stream.write_all(&write.repeat(200))
        }
    };
    (round / 8).is_multiple_of(2).then_some(stream)
}

fn start(folder: &Path) -> Plane {
    Plane::start(Layout { replicas: 1, ..layout(folder, 8 << 20) }).expect("the plane starts")
}

#[test]
fn who_asks_on_without_reading_and_who_comes_too_often_is_sent_away() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start(folder.path());
    let socket = plane.socket();
    let mut good = NbdClient::connect(&socket, VOLUME).unwrap();

    let mut deaf = UnixStream::connect(&socket).unwrap();
    deaf.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut list = 0x4948_4156_454f_5054u64.to_be_bytes().to_vec();
    list.extend(3u32.to_be_bytes());
    list.extend(0u32.to_be_bytes());
    deaf.write_all(&3u32.to_be_bytes()).unwrap();
    let flood = list.repeat(4096);
    let hung_up = (0..200).any(|_| deaf.write_all(&flood).is_err());
    assert!(hung_up, "it may ask for ever");

    let crowd: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let greeted = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        matches!(stream.read(&mut [0; 18]), Ok(18))
    };
    assert!(crowd.iter().all(greeted), "everyone who comes is greeted");
    let may_stay = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Ok(0) => false,
            other => panic!("{other:?}"),
        }
    };
    let (stay, go): (Vec<&UnixStream>, Vec<&UnixStream>) = crowd.iter().partition(|stream| may_stay(stream));
    assert_eq!((stay.len(), go.len()), (255, 45), "a volume has 256 clients, of which one has finished");
    assert_eq!(good.call(Ask::Read { offset: 0, length: 512 }).unwrap().error, 0);
    let mut late = NbdClient::connect(&socket, VOLUME).expect("who only came keeps nobody out");
    assert_eq!(late.call(Ask::Read { offset: 0, length: 512 }).unwrap().error, 0);
    drop(crowd);
}

/// Bytes of a process in memory: now, and at most so far.
fn resident(pid: rustix::process::Pid) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel says it");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// Each of them may have 64 MiB under way, all together no more than a volume's part, 256 MiB, and 64 MiB of which
/// each has its own; the allocator keeps some more.
#[test]
fn what_all_clients_of_a_volume_keep_together_is_bounded() {
    const MIB: u64 = 1 << 20;
    const MOST: u64 = (256 + 64 + 48) * MIB;
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path());
    let socket = plane.socket();
    let mut good = NbdClient::connect(&socket, VOLUME).unwrap();
    let frontend = plane.frontend().pid();
    let (bare, _) = resident(frontend);
    let crowd: Vec<UnixStream> = (0..16)
        .map(|_| {
            let mut greedy = negotiated(&socket);
            // Nobody takes the answers.
            greedy.write_all(&request(0, 0, 1 << 20).repeat(100)).unwrap();
            greedy
        })
        .collect();
    let began = std::time::Instant::now();
    while resident(frontend).0 < bare + 200 * MIB {
        assert!(began.elapsed() < Duration::from_secs(150), "they never get their part");
        thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..50 {
        assert_eq!(good.call(Ask::Read { offset: 0, length: 4096 }).unwrap().error, 0, "it is served");
    }
    // Its own part of the volume's room is there for larger ones too.
    let large = good.call(Ask::Read { offset: 0, length: 2 << 20 }).unwrap();
    assert_eq!((large.error, large.data.len()), (0, 2 << 20));
    let (_, most) = resident(frontend);
    assert!(most <= bare + MOST, "{} MiB, {} MiB without them", most / MIB, bare / MIB);
    drop(crowd);
}

/// Longer than any disk here takes, shorter than any patience of the frontend with a client.
const HELD_UP: Duration = Duration::from_secs(8);

#[test]
fn others_are_served_while_clients_misbehave() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start(folder.path());
    let socket = plane.socket();
    let stop = Arc::new(AtomicBool::new(false));
    let good = {
        let (stop, socket) = (Arc::clone(&stop), socket.clone());
        let workload = Workload {
            socket,
            volume: VOLUME.into(),
            depth: 4,
            blocks: GOOD_BLOCKS,
            seed: 5,
            connects_again_within: None,
        };
        thread::spawn(move || workload.run(Duration::from_secs(60), &stop))
    };
    let mut lingering = Vec::new();
    for round in 0..64 {
        lingering.extend(annoy(&socket, round));
    }
    let mut late = NbdClient::connect(&socket, VOLUME).unwrap();
    assert_eq!(late.call(Ask::Read { offset: 0, length: 512 }).unwrap().error, 0);
    assert_eq!(late.call(Ask::Read { offset: 8 << 20, length: 512 }).unwrap().error, 22);
    stop.store(true, Ordering::Relaxed);
    let report = good.join().unwrap().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(report.writes > 0);
    assert!(report.longest_wait_us < HELD_UP.as_micros() as u64, "{report:?}");
}
