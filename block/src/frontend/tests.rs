//! What a frontend tells engines of its own knowledge, and how long it waits for them.

use std::time::{Duration, Instant};

use super::core::{Input, Output, Standing, Volume};
use crate::{
    epoch::Epoch,
    extent::Extent,
    net::{address::Address, reactor::LinkId},
    wire::{
        CONTINUED, Frame, Header, Kind,
        hello::{Hello, VERSIONS},
    },
};

struct Bench {
    volume: Volume,
    now: Instant,
    link: u64,
}

fn engine() -> Address {
    Address::Unix("engine".into())
}

impl Bench {
    fn new(known: Epoch) -> Bench {
        let standing = Standing { epoch: known, ..Standing::new(engine()) };
        let volume = Volume::attach("v".into(), 4096, 1, standing, &mut Vec::new());
        Bench { volume, now: Instant::now(), link: 0 }
    }

    fn feed(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.volume.apply(self.now, input, &mut out);
        out
    }

    /// An engine of this epoch takes the volume over; gives the epoch it was greeted with.
    fn served(&mut self, epoch: Epoch, flags: u8) -> Epoch {
        self.link += 1;
        let link = LinkId::from_bits(self.link);
        let out = self.feed(Input::Connected { to: engine(), link });
        let Some(Output::Send(_, frame)) = out.first() else { panic!("no greeting: {out:?}") };
        let greeted = Hello::accept(&frame.payload, "v").expect("a greeting").epoch;
        let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 2, size: 4096, epoch };
        let out =
            self.feed(Input::Frame(link, Frame::with(Header::new(Kind::Hello, 0, epoch), hello.encode())));
        let Some(Output::Send(_, go)) = out.first() else { panic!("no go: {out:?}") };
        let ready = Header { flags, ..go.header.reply(crate::wire::Status::Ok, epoch) };
        self.feed(Input::Frame(link, Frame::bare(ready)));
        self.feed(Input::Closed(link));
        self.now += Duration::from_secs(1);
        self.feed(Input::Tick);
        greeted
    }
}

#[test]
fn a_frontend_vouches_only_for_what_it_knows() {
    let (one, two, three) = (Epoch::of_term(1), Epoch::of_term(2), Epoch::of_term(3));
    #[rustfmt::skip]
    let cases = [
        // what is known at first, then each engine's epoch, its flags, and what it must be greeted with
        ("a volume begins",               Epoch::NONE, vec![(one, 0, Epoch::NONE),         (two, 0, one),         (three, 0, two)]),
        ("a successor without the table", Epoch::NONE, vec![(one, CONTINUED, Epoch::NONE), (two, 0, Epoch::NONE), (three, 0, two)]),
        ("it finds the same engine again",Epoch::NONE, vec![(one, CONTINUED, Epoch::NONE), (one, CONTINUED, Epoch::NONE), (two, 0, Epoch::NONE)]),
        ("a successor with the table",    one,         vec![(one, CONTINUED, one),         (two, 0, one),         (three, 0, two)]),
    ];
    for (name, known, engines) in cases {
        let mut bench = Bench::new(known);
        for (epoch, flags, greeted) in engines {
            assert_eq!(bench.served(epoch, flags), greeted, "{name}, engine {epoch}");
        }
    }
}

/// The only frame that was sent, by its kind.
fn sent(out: &[Output]) -> Option<Kind> {
    out.iter().find_map(|output| match output {
        Output::Send(_, frame) => Some(frame.header.kind),
        _ => None,
    })
}

/// Whoever follows a frontend that is killed has to offer all of the volume.
#[test]
fn it_is_told_once_that_a_volume_has_grown() {
    let mut bench = Bench::new(Epoch::NONE);
    let (link, epoch) = (LinkId::from_bits(1), Epoch::of_term(1));
    bench.feed(Input::Connected { to: engine(), link });
    let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 2, size: 4096, epoch };
    let out = bench.feed(Input::Frame(link, Frame::with(Header::new(Kind::Hello, 0, epoch), hello.encode())));
    let Some(Output::Send(_, go)) = out.first() else { panic!("no go: {out:?}") };
    let ready = go.header.reply(crate::wire::Status::Ok, epoch);
    let ping = || Header::new(Kind::Ping, 7, epoch);
    #[rustfmt::skip]
    let cases = [
        ("it takes over",     ready,  8192,  true,  8192),
        ("it says it again",  ping(), 8192,  false, 8192),
        ("it was expanded",   ping(), 12288, true,  12288),
        ("an old ping",       ping(), 8192,  false, 12288),
    ];
    for (name, header, told, grown, size) in cases {
        let extent = Extent::new(told, 0).expect("an end");
        let out = bench.feed(Input::Frame(link, Frame::bare(Header { extent, ..header })));
        assert_eq!((out.contains(&Output::Grown), bench.volume.size()), (grown, size), "{name}: {out:?}");
    }
}

/// An engine that was asked to serve is asked whether it is there, waited for while it says so, and
/// given up when it does not.
#[test]
fn an_engine_that_says_nothing_is_given_up_and_one_that_works_is_not() {
    let mut bench = Bench::new(Epoch::NONE);
    let (link, epoch) = (LinkId::from_bits(1), Epoch::of_term(1));
    bench.feed(Input::Connected { to: engine(), link });
    let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 2, size: 4096, epoch };
    bench.feed(Input::Frame(link, Frame::with(Header::new(Kind::Hello, 0, epoch), hello.encode())));
    let tick = |bench: &mut Bench| {
        bench.now = bench.volume.deadline().expect("it does not wait for ever");
        bench.feed(Input::Tick)
    };
    for _ in 0..3 {
        let out = tick(&mut bench);
        assert_eq!(sent(&out), Some(Kind::Ping), "{out:?}");
        let Some(Output::Send(_, probe)) = out.first() else { panic!("{out:?}") };
        let there = Frame::bare(probe.header.reply(crate::wire::Status::NotServing, epoch));
        assert_eq!(bench.feed(Input::Frame(link, there)), []);
    }
    assert_eq!(sent(&tick(&mut bench)), Some(Kind::Ping));
    assert_eq!(tick(&mut bench), [Output::Close(link)], "it is silent");
    assert_eq!(tick(&mut bench), [Output::Connect(engine())], "it may be back");
}
