//! Clients that mean harm: the frontend stays up and serves the others.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
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

fn annoy(socket: &Path, round: u32) -> Option<UnixStream> {
    let connect = || UnixStream::connect(socket).expect("the frontend listens");
    let mut stream = match round % 3 {
        0 => connect(),
        _ => negotiated(socket),
    };
    // Whether the frontend hangs up in the middle is its own affair.
    let _ = match round % 6 {
        0 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        3 => stream.write_all(&[0, 0, 0, 3, 0x49]),
        1 => stream.write_all(&request(1, 0, u32::MAX)),
        2 => stream.write_all(&request(1, 0, 4096)[..20]),
        4 => stream.write_all(&[0xff; 4096]),
        _ => {
            // Asks for far more than it will ever take.
            stream.set_write_timeout(Some(Duration::from_millis(20))).expect("a timeout can be set");
            let flood = request(0, 0, 1 << 20).repeat(2000);
            stream.write_all(&flood)
        }
    };
    round.is_multiple_of(2).then_some(stream)
}

#[test]
fn others_are_served_while_clients_misbehave() {
    let folder = tempfile::tempdir().unwrap();
    let plane = Plane::start(Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_mfblock")),
        folder: folder.path().to_owned(),
        volume: "vol-1".into(),
        size: 8 << 20,
        replicas: 1,
    })
    .unwrap();
    let socket = plane.socket();
    let stop = Arc::new(AtomicBool::new(false));
    let good = {
        let (stop, socket) = (Arc::clone(&stop), socket.clone());
        let workload = Workload { socket, volume: "vol-1".into(), depth: 4, blocks: 0, seed: 5 };
        thread::spawn(move || workload.run(Duration::from_secs(60), &stop))
    };
    let mut lingering = Vec::new();
    for round in 0..60 {
        lingering.extend(annoy(&socket, round));
    }
    let mut late = NbdClient::connect(&socket, "vol-1").unwrap();
    assert_eq!(late.call(Ask::Read { offset: 0, length: 512 }).unwrap().error, 0);
    assert_eq!(late.call(Ask::Read { offset: 8 << 20, length: 512 }).unwrap().error, 22);
    stop.store(true, Ordering::Relaxed);
    let report = good.join().unwrap().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(report.writes > 0);
}
