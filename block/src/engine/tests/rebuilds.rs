//! What frontends wait for while a member is being copied to, and what that member does before it is in service.

use super::*;
use crate::{
    blocks::{Blocks, Run},
    wire::members::Joined,
};

const FRONTEND: u64 = 10;
/// The connection of the member that is copied to.
const JOINING: u64 = 2;
const OTHERS: [u64; 2] = [1, 3];

/// Of three members the second was away and takes writes again.
fn rejoined() -> Bench {
    let mut bench = Bench::with_copies(3, FRONTEND);
    bench.all_answer(Kind::Standing);
    bench.feed(Input::Closed(LinkId::from_bits(JOINING)));
    bench.all_answer(Kind::Depart);
    bench.record_changes();
    bench.connect(JOINING);
    bench.promise(JOINING, 1);
    bench.record_changes();
    assert_eq!(bench.engine.services(), [Service::In, Service::Joining, Service::In]);
    bench
}

impl Bench {
    fn writes(&self, link: u64) -> usize {
        self.sent(link).filter(|header| header.kind == Kind::Write).count()
    }

    fn answers(&self) -> usize {
        self.sent(FRONTEND).filter(|header| header.kind == Kind::Reply && header.tag == 5).count()
    }

    fn others_answer(&mut self, kind: Kind) {
        OTHERS.into_iter().for_each(|link| self.copy_answers(link, kind));
    }

    /// The member has its layers, and the others say that it misses this block.
    fn joiner_misses(&mut self, block: u64) {
        let joined = self.last(JOINING, Kind::Join).expect("it is told of the layers").header;
        let layers = Joined { snapshots: None }.encode();
        self.frontend(JOINING, Frame::with(joined.reply(Status::Ok, EPOCH), layers));
        let mut blocks = Blocks::default();
        blocks.insert_all(Run { first: block, count: 1 });
        let missing = Missing { replica: 1, from: 1, blocks };
        for link in OTHERS {
            let asked = self.last(link, Kind::Absent).expect("it is asked what is missing").header;
            self.frontend(link, Frame::with(asked.reply(Status::Ok, EPOCH), missing.encode()));
        }
    }

    fn drain(&mut self) {
        self.frontend(FRONTEND, Frame::bare(Header::new(Kind::Drain, 78, EPOCH)));
    }

    /// No other engine has got the volume.
    fn comes_back(&mut self) {
        self.frontend(FRONTEND, Frame::bare(Header::new(Kind::Go, 79, EPOCH)));
        OTHERS.into_iter().for_each(|link| self.promise(link, 1));
    }

    /// The block is read at the first member and written to the one that misses it.
    fn block_is_copied(&mut self) {
        let asked = self.asked(Kind::Read).expect("the block is read").clone();
        let data = vec![7; asked.extent.length() as usize].into();
        self.member(Frame::with(asked.reply(Status::Ok, EPOCH), data));
        self.copy_answers(JOINING, Kind::Write);
    }
}

#[test]
fn nobody_waits_for_a_member_that_is_being_copied_to() {
    let mut bench = rejoined();
    bench.write_block(FRONTEND, 5);
    bench.copy_answers(1, Kind::Write);
    assert_eq!(bench.answers(), 0, "another that is in service has not answered");
    bench.copy_answers(3, Kind::Write);
    assert_eq!(bench.answers(), 1);
    bench.frontend(FRONTEND, Frame::bare(Header::new(Kind::Flush, 6, EPOCH)));
    bench.others_answer(Kind::Flush);
    assert!(bench.is_answered(FRONTEND, 6));
    bench.copy_answers(JOINING, Kind::Write);
    bench.copy_answers(JOINING, Kind::Flush);
    assert_eq!(bench.answers(), 1, "once is enough");
}

/// A member may carry two changes out in either order: it gets the second when it has the first.
#[test]
fn a_change_of_what_a_member_has_not_done_yet_waits_for_it() {
    let mut bench = rejoined();
    bench.write_block(FRONTEND, 5);
    bench.others_answer(Kind::Write);
    bench.write_block(FRONTEND, 5);
    bench.write_block(FRONTEND, 6);
    assert_eq!(bench.writes(1), 2, "only what touches the first waits");
    let first = bench.sent(JOINING).find(|header| header.kind == Kind::Write).expect("it was sent");
    bench.frontend(JOINING, Frame::bare(first.reply(Status::Ok, EPOCH)));
    assert_eq!(bench.writes(1), 3);
}

#[test]
fn a_member_has_done_what_was_answered_ahead_of_it_before_it_is_in_service() {
    let mut bench = rejoined();
    bench.write_block(FRONTEND, 5);
    bench.others_answer(Kind::Write);
    let behind = bench.last(JOINING, Kind::Write).expect("it was sent").header;
    bench.joiner_misses(3);
    bench.block_is_copied();
    assert_eq!(bench.last(JOINING, Kind::Flush), None, "it has not caught up");
    bench.write_block(FRONTEND, 6);
    bench.others_answer(Kind::Write);
    assert_eq!(bench.answers(), 1, "from here on it is waited for");
    bench.frontend(JOINING, Frame::bare(behind.reply(Status::Ok, EPOCH)));
    bench.copy_answers(JOINING, Kind::Write);
    assert_eq!(bench.answers(), 2);
    bench.copy_answers(1, Kind::Flush);
    assert_eq!(bench.engine.services()[1], Service::Joining);
    bench.copy_answers(JOINING, Kind::Flush);
    bench.record_changes();
    assert_eq!(bench.engine.services()[1], Service::In);
}

/// What it has not done is kept in memory for it.
#[test]
fn a_member_is_waited_for_when_it_is_too_far_behind() {
    let most = (8 << 20) / (4 << 10);
    let mut bench = rejoined();
    for block in 0..=most {
        bench.write_block(FRONTEND, block);
        bench.others_answer(Kind::Write);
    }
    assert_eq!(bench.answers(), most as usize);
    bench.copy_answers(JOINING, Kind::Write);
    assert_eq!(bench.answers(), most as usize + 1);
}

/// Its successor begins anew with the member, so there is nothing to wait for.
#[test]
fn a_switch_over_does_not_wait_for_a_member_that_is_being_copied_to() {
    for drained_first in [false, true] {
        let mut bench = rejoined();
        bench.write_block(FRONTEND, 5);
        if drained_first {
            bench.drain();
            assert!(!bench.is_answered(FRONTEND, 78), "the others have not answered");
        }
        bench.others_answer(Kind::Write);
        if !drained_first {
            bench.write_block(FRONTEND, 5);
            bench.drain();
        }
        assert!(bench.is_answered(FRONTEND, 78));
    }
}

/// What waited for a write that was under way is not forgotten where the engine gets the volume back.
#[test]
fn what_was_to_be_copied_is_copied_when_the_volume_comes_back() {
    let mut bench = rejoined();
    bench.write_block(FRONTEND, 5);
    bench.joiner_misses(5);
    assert_eq!(bench.asked(Kind::Read), None, "it is being written to");
    bench.drain();
    bench.others_answer(Kind::Write);
    bench.copy_answers(JOINING, Kind::Write);
    assert_eq!(bench.asked(Kind::Read), None, "somebody else may have the volume");
    bench.comes_back();
    bench.block_is_copied();
    bench.copy_answers(1, Kind::Flush);
    bench.copy_answers(JOINING, Kind::Flush);
    bench.record_changes();
    assert_eq!(bench.engine.services(), [Service::In; 3]);
}

/// Whoever was to say what is missing does not say it on a connection that is gone.
#[test]
fn a_member_whose_sources_were_lost_meanwhile_begins_anew() {
    let mut bench = rejoined();
    bench.drain();
    bench.feed(Input::Closed(LinkId::from_bits(1)));
    bench.frontend(FRONTEND, Frame::bare(Header::new(Kind::Go, 79, EPOCH)));
    assert_eq!(bench.engine.services(), [Service::In, Service::Leaving, Service::In]);
}

/// The engine gets the volume back, and nothing may wait for one that is not there.
#[test]
fn a_member_that_is_lost_after_the_volume_was_given_away_leaves_when_it_comes_back() {
    let mut bench = rejoined();
    bench.write_block(FRONTEND, 5);
    bench.others_answer(Kind::Write);
    bench.drain();
    bench.feed(Input::Closed(LinkId::from_bits(JOINING)));
    bench.comes_back();
    bench.others_answer(Kind::Depart);
    bench.record_changes();
    assert_eq!(bench.engine.services(), [Service::In, Service::Out, Service::In]);
    bench.write_block(FRONTEND, 5);
    bench.others_answer(Kind::Write);
    assert_eq!(bench.answers(), 2);
}
