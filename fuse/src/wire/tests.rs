use midflight_handover::kernel::{HEAD_OUT, code, u32_at, u64_at};
use proptest::prelude::*;
use rustix::{
    fs::{FileType, RenameFlags},
    io::Errno,
};

use super::{
    call::{NodeId, Op, Range},
    reply::{Line, Reply},
};

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn calls_that_are_not_whole_or_lead_out_are_refused() {
    #[rustfmt::skip]
    let cases: [(&str, u32, Vec<u8>, Errno); 9] = [
        ("no end",          code::LOOKUP,  b"name".to_vec(),                                     Errno::INVAL),
        ("upwards",         code::LOOKUP,  b"..\0".to_vec(),                                     Errno::INVAL),
        ("a path",          code::UNLINK,  b"a/b\0".to_vec(),                                    Errno::INVAL),
        ("too long",        code::MKDIR,   [&[0; 8][..], &[b'n'; 256], &[0]].concat(),           Errno::NAMETOOLONG),
        ("a second name",   code::RENAME,  [&words(&[1])[..], b"a\0"].concat(),                  Errno::INVAL),
        ("upwards, second", code::RENAME,  [&words(&[1])[..], b"a\0..\0"].concat(),              Errno::INVAL),
        ("whiteout",        code::RENAME2, [&words(&[1, 4])[..], b"a\0b\0"].concat(),            Errno::INVAL),
        ("less data",       code::WRITE,   [&words(&[0, 0, 9, 0, 0])[..], b"12345678"].concat(), Errno::INVAL),
        ("fewer to forget", code::BATCH_FORGET, words(&[2, 5, 1]),                               Errno::INVAL),
    ];
    for (name, opcode, raw, expected) in cases {
        assert_eq!(Op::parse(opcode, &raw), Err(expected), "{name}");
    }
}

#[test]
fn calls_are_read() {
    let name = |text: &'static std::ffi::CStr| super::name::Name::new(text).unwrap();
    assert_eq!(Op::parse(code::LOOKUP, b"a\xff\0"), Ok(Op::Lookup(name(c"a\xff"))));
    assert_eq!(
        Op::parse(code::READ, &words(&[0, 4096, 512, 0, 0])),
        Ok(Op::Read(Range { offset: 4096, length: 512 }))
    );
    let raw = [&words(&[7, 1])[..], b"a\0b\0"].concat();
    let expected =
        Op::Rename { name: name(c"a"), to: NodeId(7), new_name: name(c"b"), flags: RenameFlags::NOREPLACE };
    assert_eq!(Op::parse(code::RENAME2, &raw), Ok(expected));
    assert_eq!(Op::parse(9999, b""), Ok(Op::Unserved));
}

#[test]
fn an_error_is_told_alone() {
    let mut reply = Reply::new();
    reply.begin();
    reply.bytes(b"half an answer");
    let raw = reply.finish(9, Err(Errno::NOENT));
    assert_eq!((raw.len(), u32_at(raw, 0), u32_at(raw, 4) as i32, u64_at(raw, 8)), (HEAD_OUT, 16, -2, 9));
}

#[test]
fn lines_of_a_listing_have_the_length_foretold() {
    for length in 1..20 {
        let name = vec![b'n'; length];
        let mut reply = Reply::new();
        reply.begin();
        reply.line(&Line { inode: 1, kind: FileType::Directory, name: &name, next: 2 });
        assert_eq!(reply.length(), Reply::line_length(&name, false));
    }
}

proptest! {
    #[test]
    fn no_call_breaks_it(opcode in 0..60u32, raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Op::parse(opcode, &raw);
    }
}
