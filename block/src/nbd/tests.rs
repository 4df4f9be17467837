//! The server's side of NBD against clients of every kind.

use bytes::{BufMut, BytesMut};

use super::{
    handshake::{Export, Handshake, Step},
    transmission::{BadRequest, Command, parse},
    *,
};

type Case<'a> = (&'a str, Vec<(u32, &'a [u8])>, Step, Vec<u32>);

const VOL: Export<'_> = Export { name: "vol", size: 1 << 20 };

fn put_option(input: &mut BytesMut, option: u32, data: &[u8]) {
    input.put_u64(OPTION_MAGIC);
    input.put_u32(option);
    input.put_u32(data.len() as u32);
    input.put_slice(data);
}

fn info_data(name: &str, kinds: &[u16]) -> BytesMut {
    let mut data = BytesMut::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u16(kinds.len() as u16);
    kinds.iter().for_each(|kind| data.put_u16(*kind));
    data
}

/// Kinds of the option replies in what the server sent.
fn answers(mut reply: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while reply.len() >= 20 && u64_at(reply, 0) == OPTION_REPLY_MAGIC {
        kinds.push(u32_at(reply, 12));
        reply = &reply[20 + u32_at(reply, 16) as usize..];
    }
    kinds
}

fn negotiate(options: &[(u32, &[u8])]) -> (Step, Vec<u32>, BytesMut) {
    let mut reply = BytesMut::new();
    let mut handshake = Handshake::begin(&mut reply);
    assert_eq!(reply.split().len(), 18);
    let mut input = BytesMut::new();
    input.put_u32(3);
    for (option, data) in options {
        put_option(&mut input, *option, data);
    }
    let step = handshake.advance(&mut input, &mut reply, &VOL);
    (step, answers(&reply), reply)
}

#[test]
fn every_option_gets_its_answer() {
    let go = |structured| Step::Transmission { structured };
    let (vol, other) = (info_data("vol", &[info::BLOCK_SIZE, info::NAME]), info_data("other", &[]));
    let (ack, infos) = (answer::ACK, answer::INFO);
    #[rustfmt::skip]
    let cases: [Case; 11] = [
        ("go",            vec![(option::GO, &vol)],                                    go(false),   vec![infos, infos, infos, ack]),
        ("info, then go", vec![(option::INFO, &vol), (option::GO, &vol)],              go(false),   vec![infos, infos, infos, ack, infos, infos, infos, ack]),
        ("structured",    vec![(option::STRUCTURED_REPLY, b""), (option::GO, &vol)],   go(true),    vec![ack, infos, infos, infos, ack]),
        ("unknown name",  vec![(option::GO, &other)],                                  Step::Wait,  vec![answer::UNKNOWN]),
        ("list",          vec![(option::LIST, b"")],                                   Step::Wait,  vec![answer::SERVER, ack]),
        ("list, data",    vec![(option::LIST, b"x")],                                  Step::Wait,  vec![answer::INVALID]),
        ("unknown option",vec![(99, b"abc")],                                          Step::Wait,  vec![answer::UNSUPPORTED]),
        ("tls",           vec![(5, b"")],                                              Step::Wait,  vec![answer::UNSUPPORTED]),
        ("short go",      vec![(option::GO, &vol[..5])],                               Step::Wait,  vec![answer::INVALID]),
        ("abort",         vec![(option::ABORT, b"")],                                  Step::Close, vec![ack]),
        ("old, unknown",  vec![(option::EXPORT_NAME, b"other")],                       Step::Close, vec![]),
    ];
    for (name, options, step, kinds) in cases {
        let (seen, answered, _) = negotiate(&options);
        assert_eq!((seen, answered), (step, kinds), "{name}");
    }
}

#[test]
fn the_old_way_in_tells_size_and_flags() {
    let (step, _, reply) = negotiate(&[(option::EXPORT_NAME, b"vol")]);
    assert_eq!(step, Step::Transmission { structured: false });
    assert_eq!((reply.len(), u64_at(&reply, 0)), (10, 1 << 20));
}

#[test]
fn a_write_beyond_the_limit_ends_the_stream_before_it_is_buffered() {
    let mut input = BytesMut::new();
    input.put_u32(0x2560_9513);
    input.put_u16(0);
    input.put_u16(1);
    input.put_u64(7);
    input.put_u64(0);
    input.put_u32(MAX_LENGTH + 1);
    assert_eq!(parse(&mut input), Err(BadRequest::TooLong(MAX_LENGTH + 1)));
    assert!(input.capacity() < 4096);
}

#[test]
fn a_request_is_read_whole_however_it_is_cut() {
    let mut raw = BytesMut::new();
    raw.put_u32(0x2560_9513);
    raw.put_u16(1);
    raw.put_u16(1);
    raw.put_u64(7);
    raw.put_u64(4096);
    raw.put_u32(5);
    raw.put_slice(b"hello");
    for cut in 0..raw.len() {
        let mut input = BytesMut::from(&raw[..cut]);
        assert_eq!(parse(&mut input), Ok(None));
        input.extend_from_slice(&raw[cut..]);
        let request = parse(&mut input).unwrap().unwrap();
        assert_eq!((request.command, request.cookie, request.offset), (Command::Write, 7, 4096));
        assert_eq!(&request.payload[..], b"hello");
    }
}
