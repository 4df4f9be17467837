//! What a frontend tells engines of its own knowledge.

use std::time::{Duration, Instant};

use super::core::{Input, Output, Standing, Volume};
use crate::{
    epoch::Epoch,
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
