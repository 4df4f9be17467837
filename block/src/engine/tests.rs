//! Whom an engine listens to, when it tells a frontend that it is served, and how it lets members go.

mod rebuilds;
mod snapshots;

use super::{
    control::{Answer, Command},
    core::{Engine, Input, Output, Seat},
    members::{Mode, Service},
};
use crate::{
    blocks::BLOCK_BITS,
    epoch::Epoch,
    extent::Extent,
    net::{address::Address, reactor::LinkId},
    record::Attachment,
    wire::{
        Frame, Header, Kind, SOON, Status,
        hello::{Hello, VERSIONS},
        layout::{Layout, Step},
        members::{Missing, Promised},
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
            permitted: Vec::new(),
        };
        let mut engine = Engine::new(seat);
        engine.listen_to(attachment.map(Attachment::from_bits));
        for (link, (sender, expected)) in greetings.into_iter().enumerate() {
            assert_eq!(greet(&mut engine, link as u64 + 1, sender), expected, "{name}: {sender}");
        }
    }
}

const MEMBER: LinkId = LinkId::from_bits(1);
/// The connection on which commands come.
const COORDINATOR: u64 = 30;
const EPOCH: Epoch = Epoch::of_term(1);
const SIZE: u64 = 16 << 20;

/// Every copy may be rebuilt.
fn seat_of(copies: u64) -> Seat {
    let members = (0..copies).map(|key| (key, Mode::InService)).collect();
    let permitted = (0..copies).map(|number| number.to_string()).collect();
    Seat { volume: "v".into(), epoch: EPOCH, sender: 9, version: 1, members, permitted }
}

/// An engine with copies that the test plays: the first at the other end of connection 1, and so on.
struct Bench {
    engine: Engine,
    out: Vec<Output>,
    copies: u64,
}

impl Bench {
    /// It serves a frontend on this connection, which has sent everything again.
    fn serving(frontend: u64) -> Bench {
        Bench::with_copies(1, frontend)
    }

    fn with_copies(copies: u64, frontend: u64) -> Bench {
        Bench::with_copies_of(1, copies, frontend)
    }

    /// The copies have noted this member version; the record's is 1.
    fn with_copies_of(version: u64, copies: u64, frontend: u64) -> Bench {
        let mut bench = Bench { engine: Engine::new(seat_of(copies)), out: Vec::new(), copies };
        for link in 1..=copies {
            bench.connect(link);
        }
        bench.go(frontend);
        for link in 1..=copies {
            bench.promise(link, version);
        }
        let replayed = bench.sent(frontend).find(|header| header.kind == Kind::Ping).expect("a question");
        bench.frontend(frontend, Frame::bare(replayed.reply(Status::Ok, EPOCH)));
        bench
    }

    fn connect(&mut self, link: u64) {
        self.feed(Input::Connected { member: link as usize - 1, link: LinkId::from_bits(link) });
        let hello =
            Hello { versions: VERSIONS, volume: "v".into(), sender: 0, size: SIZE, epoch: Epoch::NONE };
        self.frontend(link, Frame::with(Header::new(Kind::Hello, 0, EPOCH), hello.encode()));
    }

    /// A copy that has noted this member version promises.
    fn promise(&mut self, link: u64, version: u64) {
        let asked = self.last(link, Kind::Promise).expect("a promise is asked for").header;
        let promised = Promised {
            last_write: Epoch::NONE,
            version,
            lost_power: false,
            regions: Vec::new(),
            layout: Layout { size: SIZE, ..Layout::default() },
            damaged: false,
            damage: None,
        };
        self.frontend(link, Frame::with(asked.reply(Status::Ok, EPOCH), promised.encode()));
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
        self.write_block(link, 0);
    }

    fn write_block(&mut self, link: u64, block: u64) {
        let extent = Extent::new(block << BLOCK_BITS, 512).expect("inside the volume");
        let header = Header { extent, ..Header::new(Kind::Write, 5, EPOCH) };
        self.frontend(link, Frame::with(header, vec![1; 512].into()));
    }

    fn sent(&self, link: u64) -> impl Iterator<Item = Header> {
        self.out.iter().filter_map(move |output| match output {
            Output::Send(to, frame) if *to == LinkId::from_bits(link) => Some(frame.header.clone()),
            _ => None,
        })
    }

    /// The last frame of a kind on a connection.
    fn last(&self, link: u64, kind: Kind) -> Option<Frame> {
        let sent = self.out.iter().filter_map(|output| match output {
            Output::Send(to, frame) if *to == LinkId::from_bits(link) => Some(frame),
            _ => None,
        });
        sent.filter(|frame| frame.header.kind == kind).last().cloned()
    }

    /// The last question of a kind to the member.
    fn asked(&self, kind: Kind) -> Option<Header> {
        self.sent(MEMBER.bits()).filter(|header| header.kind == kind).last()
    }

    /// Every copy answers the last question of a kind; who was not asked says nothing.
    fn all_answer(&mut self, kind: Kind) {
        (1..=self.copies).for_each(|link| self.copy_answers(link, kind));
    }

    fn copy_answers(&mut self, link: u64, kind: Kind) {
        if let Some(asked) = self.last(link, kind) {
            self.frontend(link, Frame::bare(asked.header.reply(Status::Ok, EPOCH)));
        }
    }

    /// So many writes at once that no quiet moment is to be hoped for.
    fn hurry(&mut self) {
        (0..40).for_each(|_| self.write(10));
    }

    /// Every copy has carried out every write that it was sent.
    fn all_carry_out(&mut self) {
        let asked: Vec<Header> = self.sent(1).filter(|header| header.kind == Kind::Write).collect();
        for header in asked {
            let answer = Frame::bare(header.reply(Status::Ok, EPOCH));
            (1..=self.copies).for_each(|link| self.frontend(link, answer.clone()));
        }
    }

    /// A command, and the answer to it if there is one already.
    fn order(&mut self, command: &Command) -> Option<Answer> {
        let payload = serde_json::to_vec(command).expect("plain");
        let before = self.sent(COORDINATOR).count();
        self.frontend(COORDINATOR, Frame::with(Header::new(Kind::Control, 0, EPOCH), payload.into()));
        let answered = self.sent(COORDINATOR).count() > before;
        answered.then(|| {
            let frame = self.last(COORDINATOR, Kind::Control).expect("it was sent");
            serde_json::from_slice(&frame.payload).expect("an answer is readable")
        })
    }

    fn release(&mut self, replica: u64) -> Option<Answer> {
        self.order(&Command::Release { replica: replica.to_string() })
    }

    /// The record is changed as the engine asked last.
    fn record_changes(&mut self) {
        let changes = self.out.iter().filter_map(|output| match output {
            Output::Change(change) => Some(*change),
            _ => None,
        });
        let change = changes.last().expect("a change is asked for");
        self.feed(Input::Changed(change));
    }

    /// What the copy on this connection was told that another misses, if it was told.
    fn noted(&self, link: u64) -> Option<Vec<u64>> {
        let frame = self.last(link, Kind::Depart)?;
        let missing = Missing::decode(&frame.payload, SIZE >> BLOCK_BITS).expect("readable");
        Some(missing.blocks.runs().into_iter().flat_map(|run| run.first..run.first + run.count).collect())
    }

    fn answer(&mut self, kind: Kind) {
        let asked = self.asked(kind).expect("it was asked");
        self.member(Frame::bare(asked.reply(Status::Ok, EPOCH)));
    }

    /// Reads a little of every part of the volume that could have a reader of its own.
    fn read_everywhere(&mut self, link: u64) {
        for block in 0..SIZE >> BLOCK_BITS {
            let extent = Extent::new(block << BLOCK_BITS, 512).expect("inside the volume");
            self.frontend(link, Frame::bare(Header { extent, ..Header::new(Kind::Read, 9, EPOCH) }));
        }
    }

    fn is_answered(&self, link: u64, tag: u64) -> bool {
        self.sent(link).any(|header| header.kind == Kind::Reply && header.tag == tag)
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
    bench.answer(Kind::Ping);
    bench.answer(Kind::Flush);
    bench.write(10);
    assert_eq!(bench.asked(Kind::Write), None, "it waits for the snapshot");
    bench.go(11);
    assert!(bench.is_served(11));
    bench.answer(Kind::Flush);
    bench.answer(Kind::Step);
    assert_eq!(bench.asked(Kind::Write), None, "nobody wants it any more");
}

/// A copy that was let go returns to the engine that let it go, as soon as that is told where it is.
#[test]
fn a_member_that_was_let_go_is_asked_to_return_when_it_is_introduced() {
    let mut bench = Bench::with_copies(3, 10);
    bench.all_answer(Kind::Standing);
    bench.release(1);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Depart);
    bench.record_changes();
    assert_eq!(bench.release(1), Some(Answer::Done));
    assert!(!bench.engine.may_connect(1), "it is not asked to return");
    let address: Address = "127.0.0.1:9".parse().expect("an address");
    let introduce = |replica: &str| Command::Introduce { replica: replica.into(), address: address.clone() };
    assert!(matches!(bench.order(&introduce("7")), Some(Answer::Refused(_))));
    assert_eq!(bench.order(&introduce("1")), Some(Answer::Done));
    assert!(bench.out.contains(&Output::Reach { member: 1, address: address.clone() }));
    assert!(bench.engine.may_connect(1));
    assert_eq!(bench.engine.services(), [Service::In, Service::Out, Service::In]);
}

fn snapshot() -> Command {
    Command::Snapshot { name: "s".into() }
}

/// A copy that is let go misses what was written from then on, not what was written since somebody flushed last.
#[test]
fn a_member_is_let_go_when_everyone_has_flushed() {
    for client_flushes in [false, true] {
        let mut bench = Bench::with_copies(3, 10);
        bench.all_answer(Kind::Standing);
        bench.write_block(10, 5);
        bench.all_answer(Kind::Write);
        if client_flushes {
            bench.frontend(10, Frame::bare(Header::new(Kind::Flush, 6, EPOCH)));
        }
        assert!(matches!(bench.release(1), Some(Answer::Busy(_))));
        let asked = bench.last(2, Kind::Flush);
        assert!(matches!(bench.release(1), Some(Answer::Busy(_))));
        assert_eq!(bench.last(2, Kind::Flush), asked, "one flush is enough");
        bench.write_block(10, 6);
        assert_eq!(bench.noted(1), None, "nobody leaves before the flush has ended");
        bench.all_answer(Kind::Flush);
        assert_eq!((bench.noted(1), bench.noted(3)), (Some(vec![6]), Some(vec![6])));
    }
}

/// What others note of a copy begins with the member version that it has noted itself: while that is on its way, nobody
/// knows which one it will bring back.
#[test]
fn a_member_is_let_go_when_it_has_noted_that_it_is_in_service() {
    let mut bench = Bench::with_copies_of(0, 3, 10);
    assert!(matches!(bench.release(1), Some(Answer::Busy(_))));
    assert_eq!(bench.last(2, Kind::Flush), None);
    bench.all_answer(Kind::Standing);
    assert!(matches!(bench.release(1), Some(Answer::Busy(_))));
    assert!(bench.last(2, Kind::Flush).is_some());
    bench.all_answer(Kind::Flush);
    assert_eq!(bench.noted(1), Some(vec![]));
}

/// A copy that is let go takes every write until the record says that it is out: no client waits for the record. It is
/// read from no more, and what it still owes then is not waited for.
#[test]
fn a_member_that_is_let_go_answers_until_the_record_says_that_it_is_out() {
    let mut bench = Bench::with_copies(3, 10);
    bench.all_answer(Kind::Standing);
    bench.release(1);
    bench.all_answer(Kind::Flush);
    assert_eq!(bench.engine.services(), [Service::In, Service::Departing, Service::In]);
    assert!(matches!(bench.order(&snapshot()), Some(Answer::Busy(_))), "nobody changes the layers meanwhile");
    bench.write_block(10, 5);
    bench.copy_answers(1, Kind::Write);
    bench.copy_answers(3, Kind::Write);
    assert!(!bench.is_answered(10, 5), "the record counts the one that goes");
    bench.copy_answers(2, Kind::Write);
    assert!(bench.is_answered(10, 5), "nothing is waited for but its answer");
    bench.read_everywhere(10);
    assert_eq!(bench.last(2, Kind::Read), None);
    let written = bench.last(2, Kind::Write);
    bench.all_answer(Kind::Depart);
    bench.write_block(10, 6);
    assert_ne!(bench.last(2, Kind::Write), written, "it still gets what is written");
    bench.out.retain(|output| !matches!(output, Output::Send(to, _) if to.bits() == 10));
    bench.copy_answers(1, Kind::Write);
    bench.copy_answers(3, Kind::Write);
    assert!(!bench.is_answered(10, 5));
    bench.record_changes();
    assert!(bench.is_answered(10, 5), "nobody waits for it now");
    assert!(bench.out.contains(&Output::Close(LinkId::from_bits(2))));
    assert_eq!(bench.engine.services(), [Service::In, Service::Out, Service::In]);
    assert_eq!(bench.release(1), Some(Answer::Done));
}

/// One that fails on its way out leaves as any other that fails; who has noted what it misses is not told again.
#[test]
fn a_member_that_fails_while_it_departs_leaves_with_the_notes_that_there_are() {
    let mut bench = Bench::with_copies(3, 10);
    bench.all_answer(Kind::Standing);
    bench.release(1);
    bench.all_answer(Kind::Flush);
    bench.copy_answers(1, Kind::Depart);
    bench.write_block(10, 5);
    let told = [1, 3].map(|link| bench.last(link, Kind::Depart));
    bench.feed(Input::Closed(LinkId::from_bits(2)));
    assert_eq!(bench.engine.services()[1], Service::Leaving);
    assert_eq!([1, 3].map(|link| bench.last(link, Kind::Depart)), told);
    bench.copy_answers(3, Kind::Depart);
    bench.record_changes();
    assert_eq!(bench.engine.services()[1], Service::Out);
}

/// Whoever wanted a copy to go may have given that up when it fails: it returns by itself, unless it is said again.
#[test]
fn a_member_that_fails_before_it_was_let_go_returns_unless_it_is_to_go_still() {
    for asked_again in [false, true] {
        let mut bench = Bench::with_copies(3, 10);
        bench.all_answer(Kind::Standing);
        bench.release(1);
        bench.feed(Input::Closed(LinkId::from_bits(2)));
        if asked_again {
            assert!(matches!(bench.release(1), Some(Answer::Busy(_))));
        }
        bench.all_answer(Kind::Depart);
        bench.record_changes();
        assert_eq!(bench.engine.services()[1], Service::Out);
        assert_eq!(bench.engine.may_connect(1), !asked_again);
    }
}

/// Members are called by their numbers here.
#[test]
fn a_member_that_is_back_is_rebuilt_when_that_is_permitted() {
    let mut bench = Bench::with_copies(3, 10);
    bench.all_answer(Kind::Standing);
    let permit =
        |replicas: &[&str]| Command::Permit { replicas: replicas.iter().map(|r| (*r).into()).collect() };
    assert_eq!(bench.order(&permit(&["0"])), Some(Answer::Done));
    bench.feed(Input::Closed(LinkId::from_bits(2)));
    bench.all_answer(Kind::Depart);
    bench.record_changes();
    bench.connect(2);
    bench.promise(2, 1);
    let changes = |bench: &Bench| bench.out.iter().filter(|out| matches!(out, Output::Change(_))).count();
    assert_eq!((bench.engine.services()[1], changes(&bench)), (Service::Returning, 1), "it waits");
    bench.order(&permit(&["1"]));
    assert_eq!(changes(&bench), 2);
    bench.record_changes();
    assert_eq!(bench.engine.services()[1], Service::Joining);
}

/// A connection that was on its way when a copy was given up may stand before the record says so. Nobody asks for
/// anything on it, so the copy has to be met anew, or it would never return.
#[test]
fn a_member_that_greets_while_it_leaves_is_met_again_when_it_is_out() {
    let second = LinkId::from_bits(2);
    let mut bench = Bench::with_copies(3, 10);
    bench.all_answer(Kind::Standing);
    bench.feed(Input::Closed(second));
    bench.connect(2);
    assert_eq!(bench.engine.services()[1], Service::Leaving);
    bench.out.retain(|output| *output != Output::Close(second));
    bench.all_answer(Kind::Depart);
    bench.record_changes();
    assert!(bench.out.contains(&Output::Close(second)));
    assert!(bench.engine.may_connect(1));
    bench.connect(2);
    bench.promise(2, 1);
    bench.record_changes();
    assert_eq!(bench.engine.services()[1], Service::Joining);
}

/// The same where the engine that gave it up does not serve yet: what it promises then is too early to return.
#[test]
fn a_member_that_promises_before_the_engine_serves_is_met_again_when_it_does() {
    let second = LinkId::from_bits(2);
    let mut bench = Bench { engine: Engine::new(seat_of(3)), out: Vec::new(), copies: 3 };
    bench.connect(1);
    bench.connect(3);
    bench.go(10);
    bench.promise(1, 1);
    bench.feed(Input::Unreachable { member: 1 });
    bench.promise(3, 1);
    bench.all_answer(Kind::Depart);
    // Of two that are to be given up the first is; the frontend is not served before both are.
    bench.feed(Input::Closed(LinkId::from_bits(3)));
    bench.record_changes();
    assert_eq!(bench.engine.services(), [Service::In, Service::Out, Service::Leaving]);
    bench.connect(2);
    bench.promise(2, 1);
    assert!(!bench.is_served(10));
    bench.all_answer(Kind::Depart);
    bench.record_changes();
    assert!(bench.is_served(10));
    assert!(bench.out.contains(&Output::Close(second)));
    assert!(bench.engine.may_connect(1));
}

/// An engine that gets the volume back does not speak again to one that it was about to let go.
#[test]
fn a_member_that_departs_when_the_volume_is_given_away_does_not_come_back_with_it() {
    let mut bench = Bench::with_copies(3, 10);
    bench.all_answer(Kind::Standing);
    bench.release(1);
    bench.all_answer(Kind::Flush);
    bench.frontend(10, Frame::bare(Header::new(Kind::Drain, 78, EPOCH)));
    bench.frontend(10, Frame::bare(Header::new(Kind::Go, 79, EPOCH)));
    assert_eq!(bench.engine.services(), [Service::In, Service::Leaving, Service::In]);
    assert!(bench.out.contains(&Output::Close(LinkId::from_bits(2))));
}

/// Neither a snapshot under way nor the loss of the others meanwhile lets one go that should stay.
#[test]
fn a_member_that_cannot_go_after_the_flush_stays() {
    let mut bench = Bench::with_copies(2, 10);
    bench.all_answer(Kind::Standing);
    bench.release(1);
    bench.feed(Input::Closed(LinkId::from_bits(1)));
    bench.copy_answers(2, Kind::Flush);
    bench.copy_answers(2, Kind::Depart);
    bench.record_changes();
    assert_eq!(bench.engine.services(), [Service::Out, Service::In], "the last one stays");
    let mut bench = Bench::with_copies(2, 10);
    bench.all_answer(Kind::Standing);
    bench.order(&snapshot());
    assert!(matches!(bench.release(1), Some(Answer::Busy(_))));
    bench.all_answer(Kind::Ping);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Step);
    assert_eq!(bench.noted(1), None, "it is asked for again after the snapshot");
}
