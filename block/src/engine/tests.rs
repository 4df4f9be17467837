//! Whom an engine listens to, and when it tells a frontend that it is served.

use super::{
    control::Command,
    core::{Engine, Input, Output, Seat},
    members::Mode,
};
use crate::{
    epoch::Epoch,
    extent::Extent,
    net::reactor::LinkId,
    record::Attachment,
    wire::{
        Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
        layout::Layout,
        members::Promised,
    },
};

fn greet(engine: &mut Engine, link: u64, sender: u64) -> (Kind, Status) {
    let hello = Hello { versions: VERSIONS, volume: "v".into(), sender, size: 0, epoch: Epoch::NONE };
    let frame = Frame::with(Header::new(Kind::Hello, 0, Epoch::NONE), hello.encode());
    let mut out = Vec::new();
    engine.apply(Input::Frame(LinkId::from_bits(link), frame), &mut out);
    let answer = out.iter().find_map(|output| match output {
        Output::Send(_, frame) => Some((frame.header.kind, frame.header.status)),
        _ => None,
    });
    answer.expect("a greeting is answered")
}

#[test]
fn only_the_frontend_of_the_records_attachment_is_listened_to() {
    let (welcome, refused) = ((Kind::Hello, Status::Ok), (Kind::Reply, Status::Invalid));
    #[rustfmt::skip]
    let cases = [
        // what the record says, then who greets and how it is answered
        ("nobody in particular", None,    vec![(1, welcome), (2, welcome)]),
        ("the right one",        Some(1), vec![(1, welcome), (1, welcome)]),
        ("another node",         Some(1), vec![(2, refused), (1, welcome), (2, refused)]),
    ];
    for (name, attachment, greetings) in cases {
        let seat = Seat {
            volume: "v".into(),
            epoch: Epoch::of_term(1),
            sender: 9,
            version: 1,
            members: vec![(0, Mode::InService)],
        };
        let mut engine = Engine::new(seat);
        engine.listen_to(attachment.map(Attachment::from_bits));
        for (link, (sender, expected)) in greetings.into_iter().enumerate() {
            assert_eq!(greet(&mut engine, link as u64 + 1, sender), expected, "{name}: {sender}");
        }
    }
}

const MEMBER: LinkId = LinkId::from_bits(1);
const EPOCH: Epoch = Epoch::of_term(1);
const SIZE: u64 = 1 << 20;

/// An engine with one copy, which the test plays.
struct Bench {
    engine: Engine,
    out: Vec<Output>,
}

impl Bench {
    /// It serves a frontend on this connection, which has sent everything again.
    fn serving(frontend: u64) -> Bench {
        let members = vec![(0, Mode::InService)];
        let seat = Seat { volume: "v".into(), epoch: EPOCH, sender: 9, version: 1, members };
        let mut bench = Bench { engine: Engine::new(seat), out: Vec::new() };
        bench.feed(Input::Connected { member: 0, link: MEMBER });
        let hello =
            Hello { versions: VERSIONS, volume: "v".into(), sender: 0, size: SIZE, epoch: Epoch::NONE };
        bench.member(Frame::with(Header::new(Kind::Hello, 0, EPOCH), hello.encode()));
        bench.go(frontend);
        let promise = bench.asked(Kind::Promise).expect("a promise is asked for");
        let layout = Layout { size: SIZE, ..Layout::default() };
        let promised = Promised {
            last_write: Epoch::NONE,
            version: 1,
            lost_power: false,
            regions: Vec::new(),
            layout,
            damaged: false,
            damage: None,
        };
        bench.member(Frame::with(promise.reply(Status::Ok, EPOCH), promised.encode()));
        let replayed = bench.sent(frontend).find(|header| header.kind == Kind::Ping).expect("a question");
        bench.frontend(frontend, Frame::bare(replayed.reply(Status::Ok, EPOCH)));
        bench
    }

    fn feed(&mut self, input: Input) {
        self.engine.apply(input, &mut self.out);
    }

    fn member(&mut self, frame: Frame) {
        self.feed(Input::Frame(MEMBER, frame));
    }

    fn frontend(&mut self, link: u64, frame: Frame) {
        self.feed(Input::Frame(LinkId::from_bits(link), frame));
    }

    fn go(&mut self, link: u64) {
        greet(&mut self.engine, link, 1);
        self.frontend(link, Frame::bare(Header::new(Kind::Go, 77, EPOCH)));
    }

    fn write(&mut self, link: u64) {
        let extent = Extent::new(0, 512).expect("inside the volume");
        let header = Header { extent, ..Header::new(Kind::Write, 5, EPOCH) };
        self.frontend(link, Frame::with(header, vec![1; 512].into()));
    }

    fn sent(&self, link: u64) -> impl Iterator<Item = Header> {
        self.out.iter().filter_map(move |output| match output {
            Output::Send(to, frame) if *to == LinkId::from_bits(link) => Some(frame.header.clone()),
            _ => None,
        })
    }

    /// The last question of a kind to the member.
    fn asked(&self, kind: Kind) -> Option<Header> {
        self.sent(MEMBER.bits()).filter(|header| header.kind == kind).last()
    }

    fn answer(&mut self, kind: Kind) {
        let asked = self.asked(kind).expect("it was asked");
        self.member(Frame::bare(asked.reply(Status::Ok, EPOCH)));
    }

    fn is_served(&self, link: u64) -> bool {
        self.sent(link).any(|header| header.kind == Kind::Reply && header.tag == 77)
    }
}

/// A frontend is killed with a write under way. What its successor writes may touch the same blocks, and a copy
/// may carry the older one out later, so the successor is served only after it.
#[test]
fn a_frontend_is_served_when_what_its_predecessor_began_has_ended() {
    let mut bench = Bench::serving(10);
    assert!(bench.is_served(10));
    bench.write(10);
    bench.feed(Input::Closed(LinkId::from_bits(10)));
    bench.go(11);
    assert!(!bench.is_served(11), "a write of another is under way");
    bench.answer(Kind::Write);
    assert!(bench.is_served(11));
    bench.go(12);
    assert!(bench.is_served(12), "nothing is under way");
}

/// What a predecessor asked for and nobody began is not begun after all.
#[test]
fn what_a_dead_frontend_asked_for_is_not_begun_later() {
    let mut bench = Bench::serving(10);
    let snapshot = serde_json::to_vec(&Command::Snapshot { name: "s".into() }).expect("plain");
    bench.frontend(30, Frame::with(Header::new(Kind::Control, 0, EPOCH), snapshot.into()));
    bench.write(10);
    assert_eq!(bench.asked(Kind::Write), None, "it waits for the snapshot");
    bench.go(11);
    assert!(bench.is_served(11));
    bench.answer(Kind::Flush);
    bench.answer(Kind::Step);
    assert_eq!(bench.asked(Kind::Write), None, "nobody wants it any more");
}
