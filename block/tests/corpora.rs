//! What the fuzzer has found, and what it starts from, on every test run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{path::Path, sync::LazyLock};

use proptest::{prelude::*, sample::Index};

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

/// Each input of the corpora, with its reader.
static INPUTS: LazyLock<Vec<(&str, Reader, Vec<u8>)>> = LazyLock::new(|| {
    let corpus = |(name, read): (&'static str, Reader)| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = std::fs::read_dir(folder).unwrap();
        files.map(move |file| (name, read, std::fs::read(file.unwrap().path()).unwrap()))
    };
    TARGETS.into_iter().flat_map(corpus).collect()
});

/// Something that befalls an input.
#[derive(Debug, Clone)]
enum Damage {
    Replace(Index, u8),
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Repeat(Index, Index),
}

impl Damage {
    fn befall(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Damage::Replace(at, byte) => *at.get_mut(bytes) = *byte,
            Damage::Flip(at, bit) => *at.get_mut(bytes) ^= 1 << (bit % 8),
            Damage::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Damage::Remove(at) => {
                bytes.remove(at.index(bytes.len()));
            }
            Damage::Repeat(one, other) => {
                let (one, other) = (one.index(bytes.len()), other.index(bytes.len()));
                bytes.extend_from_within(one.min(other)..one.max(other));
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        any::<Index>().prop_map(Damage::Remove),
        (any::<Index>(), any::<Index>()).prop_map(|(one, other)| Damage::Repeat(one, other)),
    ]
}

proptest! {
    #[test]
    fn damaged_inputs_are_read_or_refused(
        input in any::<Index>(), damage in proptest::collection::vec(damage(), 1..8),
    ) {
        let (_, read, bytes) = input.get(&INPUTS);
        let mut bytes = bytes.clone();
        damage.iter().for_each(|damage| damage.befall(&mut bytes));
        read(&bytes);
    }

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
    for (_, read, bytes) in INPUTS.iter() {
        read(bytes);
        // Every input, cut anywhere, is an input too.
        (0..bytes.len()).for_each(|cut| read(&bytes[..cut]));
    }
    for (name, _) in TARGETS {
        let inputs = INPUTS.iter().filter(|(of, ..)| *of == name).count();
        assert!(inputs > 2, "{name} has a corpus");
    }
}
