//! Real NBD clients against a volume of three replicas. They come with the
//! packages qemu-utils, libnbd-bin and fio; where they are missing the test says
//! so, and in CI it fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{path::Path, process::Command};

use midflight_block::{
    nbd::client::{Ask, NbdClient},
    tour::{DRAIN_WITHIN, Plane, replicas_equal},
};

const SIZE: u64 = 64 << 20;

fn start(folder: &Path) -> (Plane, String) {
    let plane = volume::start(folder, SIZE);
    let uri = format!("nbd+unix:///vol-1?socket={}", plane.socket().display());
    (plane, uri)
}

/// Runs a client; `None` when it is not installed.
fn client(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let wrong = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}\n{said}\n{wrong}");
            Some(said)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "{program} is not installed");
            eprintln_skip(program);
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

#[allow(clippy::print_stderr)]
fn eprintln_skip(program: &str) {
    eprintln!("SKIPPED: {program} is not installed");
}

#[test]
fn nbdinfo_sees_what_the_volume_can() {
    let folder = tempfile::tempdir().unwrap();
    let (_plane, uri) = start(folder.path());
    let Some(said) = client("nbdinfo", &[&uri]) else { return };
    for line in
        ["export-size: 67108864", "can_fua: true", "can_multi_conn: true", "can_trim: true", "can_zero: true"]
    {
        assert!(said.contains(line), "{line} is missing:\n{said}");
    }
    let listed = client("nbdinfo", &["--list", &uri]).unwrap();
    assert!(listed.contains("export=\"vol-1\""), "{listed}");
}

#[test]
fn qemu_writes_zeroes_trims_and_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let (plane, uri) = start(folder.path());
    #[rustfmt::skip]
    let commands = [
        "write -P 7 0 1M", "read -P 7 0 1M", "write -z 4k 8k", "read -P 0 4k 8k", "write -f -P 9 6k 1k",
        "read -P 9 6k 1k", "read -P 0 4k 2k", "discard 64k 64k", "read -P 7 16k 48k", "flush",
        "write -P 1 67108352 512", "read -P 1 67108352 512",
    ];
    let mut arguments = vec!["-f", "raw"];
    arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
    arguments.push(&uri);
    if client("qemu-io", &arguments).is_some() {
        assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
    }
}

/// A file as large as the volume, a quarter of it data.
fn source(folder: &Path) -> String {
    let path = folder.join("source");
    let mut state = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(SIZE as usize / 4)
    .collect();
    std::fs::write(&path, &bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
    path.display().to_string()
}

/// Runs a client to its end while engines change; whether it is installed.
fn across_switches(plane: &mut Plane, program: &'static str, arguments: &[&str]) -> bool {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let client = std::thread::spawn(move || {
        client(program, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).is_some()
    });
    while !client.is_finished() {
        plane.switch(DRAIN_WITHIN).unwrap();
    }
    client.join().expect("the client does not notice")
}

#[test]
fn qemu_img_converts_in_and_out_and_measures_across_switches() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, uri) = start(folder.path());
    let (source, copy) = (source(folder.path()), folder.path().join("copy").display().to_string());
    let convert = |from: &str, to: &str| {
        ["convert", "-n", "-f", "raw", "-O", "raw", from, to].map(str::to_owned).to_vec()
    };
    let mut qemu_img = |arguments: Vec<String>| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        across_switches(&mut plane, "qemu-img", &arguments)
    };
    if !qemu_img(convert(&source, &uri)) {
        return;
    }
    std::fs::File::create(&copy).unwrap().set_len(SIZE).unwrap();
    qemu_img(convert(&uri, &copy));
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&copy).unwrap());
    let bench = |way: &[&str]| {
        let arguments = [&["bench", "-f", "raw", "-c", "2000", "-d", "16", "-s", "4096"], way, &[&uri]];
        arguments.concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    qemu_img(bench(&[]));
    qemu_img(bench(&["-w", "--pattern=7", "--flush-interval=100"]));
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_copy_in_and_out_is_identical_across_a_switch() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, uri) = start(folder.path());
    let (source, copy) = (source(folder.path()), folder.path().join("copy"));
    let (source, copy) = (source.as_str(), copy.to_str().unwrap());
    if client("nbdcopy", &[source, &uri]).is_none() {
        return;
    }
    plane.switch(DRAIN_WITHIN).unwrap();
    client("nbdcopy", &[&uri, copy]).unwrap();
    assert!(std::fs::read(source).unwrap() == std::fs::read(copy).unwrap());
    client("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// Bytes that a folder takes on its disk.
fn taken(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().metadata().unwrap());
    files.map(|about| about.blocks() * 512).sum()
}

#[test]
fn zeroes_take_no_room_unless_the_client_wants_them_to() {
    const LENGTH: u32 = 8 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, _) = start(folder.path());
    let mut client = NbdClient::connect(&plane.socket(), "vol-1").unwrap();
    let replica = plane.replica_folder(0);
    let mut taken_after = |ask: Ask<'_>| {
        assert_eq!(client.call(ask).unwrap().error, 0);
        assert_eq!(client.call(Ask::Flush).unwrap().error, 0);
        let found = client.call(Ask::Read { offset: 0, length: LENGTH }).unwrap();
        (taken(&replica), found.data)
    };
    let (written, _) = taken_after(Ask::Write { offset: 0, data: &vec![7; LENGTH as usize] });
    let half = u64::from(LENGTH) / 2;
    let zeroes = vec![0; LENGTH as usize];
    #[rustfmt::skip]
    let cases = [
        ("solid zeroes", Ask::SolidZero { offset: 0, length: LENGTH }, true),
        ("zeroes",       Ask::Zero { offset: 0, length: LENGTH },      false),
        ("solid again",  Ask::SolidZero { offset: 0, length: LENGTH }, true),
        ("trimmed",      Ask::Trim { offset: 0, length: LENGTH },      false),
    ];
    for (name, ask, takes_room) in cases {
        let (taken, found) = taken_after(ask);
        assert!(found == zeroes, "{name}");
        assert_eq!(taken + half > written, takes_room, "{name}: {taken} of {written}");
    }
    plane.switch(DRAIN_WITHIN).unwrap();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn fio_verifies_while_engines_change() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, uri) = start(folder.path());
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
        "--size=32M",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=42",
        "--norandommap=0",
    ];
    let uri = format!("--uri={uri}");
    across_switches(&mut plane, "fio", &[&arguments[..], &[&uri]].concat());
}
