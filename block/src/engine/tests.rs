//! Whom an engine listens to.

use super::{
    core::{Engine, Input, Output, Seat},
    members::Mode,
};
use crate::{
    epoch::Epoch,
    net::reactor::LinkId,
    record::Attachment,
    wire::{
        Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
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
