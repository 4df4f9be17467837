//! What the fuzzer has found, and what it starts from, on every test run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

#[path = "../fuzz/metadata.rs"]
mod metadata;
#[path = "../fuzz/readers.rs"]
mod readers;

#[test]
fn every_input_of_the_corpora_is_read_as_it_must_be() {
    type Reader = fn(&[u8]);
    let targets: [(&str, Reader); 5] = [
        ("backup_manifest", readers::backup_manifest),
        ("nbd_handshake", readers::nbd_handshake),
        ("nbd_requests", readers::nbd_requests),
        ("replica_metadata", metadata::replica_metadata),
        ("wire_frames", readers::wire_frames),
    ];
    for (name, read) in targets {
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
