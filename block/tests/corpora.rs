//! What the fuzzer has found, and what it starts from, on every test run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use proptest::prelude::*;

#[path = "../fuzz/metadata.rs"]
mod metadata;
#[path = "../fuzz/readers.rs"]
mod readers;

type Reader = fn(&[u8]);

const TARGETS: [(&str, Reader); 5] = [
    ("backup_manifest", readers::backup_manifest),
    ("nbd_handshake", readers::nbd_handshake),
    ("nbd_requests", readers::nbd_requests),
    ("replica_metadata", metadata::replica_metadata),
    ("wire_frames", readers::wire_frames),
];

/// What makes a reader look at more than the first bytes.
const BEGINNINGS: [&[u8]; 4] = [
    b"",
    // A client's flags, and the option GO with a length.
    b"\x00\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00\x00",
    // A request.
    b"\x00\x25\x60\x95\x13",
    // A frame.
    b"FM\x01",
];

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for begin in BEGINNINGS {
            let input = [begin, &bytes].concat();
            TARGETS.iter().for_each(|(_, read)| read(&input));
        }
    }
}

#[test]
fn every_input_of_the_corpora_is_read_as_it_must_be() {
    for (name, read) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let mut inputs = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            read(&bytes);
            // Every input, cut anywhere, is an input too.
            (0..bytes.len()).for_each(|cut| read(&bytes[..cut]));
            inputs += 1;
        }
        assert!(inputs > 2, "{name} has a corpus");
    }
}
