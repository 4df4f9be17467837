//! Real NBD clients against a volume of three replicas. They come with the
//! packages qemu-utils, libnbd-bin and fio; where they are missing the test says
//! so, and in CI it fails.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use midflight_block::tour::{DRAIN_WITHIN, Layout, Plane, replicas_equal};

const SIZE: u64 = 64 << 20;

fn start(folder: &Path) -> (Plane, String) {
    let plane = Plane::start(Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_mfblock")),
        folder: folder.to_owned(),
        volume: "vol-1".into(),
        size: SIZE,
        replicas: 3,
    })
    .expect("the plane starts");
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

#[test]
fn a_copy_in_and_out_is_identical_across_a_switch() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, uri) = start(folder.path());
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    let mut state = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(SIZE as usize / 4)
    .collect();
    std::fs::write(&source, &bytes).unwrap();
    std::fs::File::options().write(true).open(&source).unwrap().set_len(SIZE).unwrap();
    let (source, copy) = (source.to_str().unwrap(), copy.to_str().unwrap());
    if client("nbdcopy", &[source, &uri]).is_none() {
        return;
    }
    plane.switch(DRAIN_WITHIN).unwrap();
    client("nbdcopy", &[&uri, copy]).unwrap();
    assert!(std::fs::read(source).unwrap() == std::fs::read(copy).unwrap());
    client("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
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
    let fio = std::thread::spawn(move || client("fio", &[&arguments[..], &[&uri]].concat()).is_some());
    while !fio.is_finished() {
        plane.switch(DRAIN_WITHIN).unwrap();
    }
    assert!(fio.join().is_ok(), "fio found what it had not written");
}
