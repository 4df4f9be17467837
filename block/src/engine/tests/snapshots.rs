//! What writes wait for while a snapshot is taken, and who is told of it.

use super::*;

/// What a snapshot has flushed nobody misses who is lost afterwards.
#[test]
fn the_flush_of_a_snapshot_is_accounted_for() {
    let mut bench = Bench::with_copies(3, 10);
    bench.write_block(10, 5);
    bench.all_answer(Kind::Write);
    assert_eq!(bench.order(&snapshot()), None);
    bench.all_answer(Kind::Ping);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Step);
    bench.write_block(10, 6);
    bench.feed(Input::Closed(LinkId::from_bits(2)));
    assert_eq!((bench.noted(1), bench.noted(3)), (Some(vec![6]), Some(vec![6])));
}

/// Writes wait for a snapshot from when everyone is ready for it until everyone has made it; that it is durable only
/// whoever asked for it waits for.
#[test]
fn writes_wait_for_a_snapshot_only_while_it_is_made() {
    let mut bench = Bench::with_copies(3, 10);
    let writes = |bench: &Bench| bench.sent(1).filter(|header| header.kind == Kind::Write).count();
    let answered = |bench: &Bench| bench.last(COORDINATOR, Kind::Control).is_some();
    assert_eq!(bench.order(&snapshot()), None);
    let announced = bench.last(1, Kind::Ping).expect("it is announced");
    assert!(matches!(Step::decode(&announced.payload), Some(Step::Freeze { .. })), "{announced:?}");
    bench.all_answer(Kind::Flush);
    bench.copy_answers(1, Kind::Ping);
    bench.hurry();
    let many = writes(&bench);
    assert!(many > 0, "not everyone is ready");
    bench.copy_answers(2, Kind::Ping);
    bench.copy_answers(3, Kind::Ping);
    bench.hurry();
    assert_eq!(writes(&bench), 2 * many, "everyone flushes once more");
    bench.all_answer(Kind::Flush);
    bench.write_block(10, 3);
    assert_eq!(writes(&bench), 2 * many, "it waits");
    bench.all_carry_out();
    assert_eq!(bench.last(1, Kind::Step), None, "first it is flushed what was written");
    bench.all_answer(Kind::Flush);
    assert_eq!(bench.last(1, Kind::Step).map(|step| step.header.flags), Some(SOON));
    bench.all_answer(Kind::Step);
    assert_eq!(writes(&bench), 2 * many + 1);
    assert!(!answered(&bench), "it is not durable yet");
    bench.all_answer(Kind::Flush);
    assert!(answered(&bench));
}

/// While few write, everyone flushes ahead until nobody has written meanwhile: then nothing is left to be flushed while
/// writes wait. Where somebody always writes, it is not tried for ever.
#[test]
fn a_snapshot_is_made_in_a_moment_in_which_nobody_writes() {
    let flushes = |bench: &Bench| bench.sent(1).filter(|header| header.kind == Kind::Flush).count();
    for busy_rounds in 0..=8 {
        let mut bench = Bench::with_copies(2, 10);
        bench.order(&snapshot());
        bench.all_answer(Kind::Ping);
        for _ in 0..busy_rounds {
            bench.write_block(10, 5);
            bench.all_answer(Kind::Write);
            bench.all_answer(Kind::Flush);
        }
        assert_eq!(bench.last(1, Kind::Step), None, "{busy_rounds}: something was written");
        bench.all_answer(Kind::Flush);
        assert!(bench.last(1, Kind::Step).is_some(), "{busy_rounds}: all of it is flushed");
        assert_eq!(flushes(&bench), busy_rounds + 1);
    }
}

/// Whoever lost patience with a slow disk and asks for the same snapshot again is answered when it is there.
#[test]
fn everyone_who_asks_for_a_snapshot_is_answered_when_it_is_durable() {
    let mut bench = Bench::with_copies(2, 10);
    assert_eq!(bench.order(&snapshot()), None);
    assert_eq!(bench.order(&snapshot()), None);
    let other = Command::Snapshot { name: "t".into() };
    assert!(matches!(bench.order(&other), Some(Answer::Busy(_))));
    let answers = |bench: &Bench| bench.sent(COORDINATOR).count();
    let before = answers(&bench);
    bench.all_answer(Kind::Ping);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Step);
    assert_eq!(answers(&bench), before);
    bench.all_answer(Kind::Flush);
    assert_eq!(answers(&bench), before + 2);
    assert_eq!(bench.order(&snapshot()), Some(Answer::Done));
}

/// The flushes of a snapshot follow each other at once: no region is let go for them.
#[test]
fn the_flushes_of_a_snapshot_let_no_region_go() {
    let mut bench = Bench::with_copies(2, 10);
    bench.order(&snapshot());
    for kind in [Kind::Ping, Kind::Flush, Kind::Step, Kind::Flush] {
        bench.all_answer(kind);
    }
    assert!(bench.last(COORDINATOR, Kind::Control).is_some());
    assert_eq!(bench.last(1, Kind::Settled), None);
    bench.frontend(10, Frame::bare(Header::new(Kind::Flush, 6, EPOCH)));
    bench.all_answer(Kind::Flush);
    assert!(bench.last(1, Kind::Settled).is_some());
}

/// A flush may take long where much was written: a snapshot lets it go by before any write has to wait.
#[test]
fn writes_go_on_while_everyone_flushes_ahead_of_a_snapshot() {
    let mut bench = Bench::with_copies(2, 10);
    bench.order(&snapshot());
    let ahead = bench.last(1, Kind::Flush);
    bench.hurry();
    bench.all_answer(Kind::Ping);
    bench.all_answer(Kind::Flush);
    let once_more = bench.last(1, Kind::Flush);
    assert_ne!(once_more, ahead);
    bench.hurry();
    assert!(bench.last(1, Kind::Write).is_some(), "nobody waits yet");
    bench.all_answer(Kind::Flush);
    assert_eq!(bench.last(1, Kind::Flush), once_more, "what is under way has to end first");
    let under_way = bench.last(1, Kind::Write);
    bench.write_block(10, 6);
    assert_eq!(bench.last(1, Kind::Write), under_way, "now writes wait");
    bench.all_carry_out();
    assert_ne!(bench.last(1, Kind::Flush), once_more);
    assert_eq!(bench.last(1, Kind::Step), None);
    bench.all_answer(Kind::Flush);
    bench.all_answer(Kind::Step);
    assert_ne!(bench.last(1, Kind::Write), under_way);
}

/// A switch-over does not wait for a snapshot of which nothing was done yet; whoever wants it asks the next engine.
#[test]
fn a_snapshot_that_only_flushes_gives_way_to_a_switch_over() {
    let mut bench = Bench::with_copies(2, 10);
    assert_eq!(bench.order(&snapshot()), None);
    bench.frontend(10, Frame::bare(Header::new(Kind::Drain, 78, EPOCH)));
    assert!(bench.is_answered(10, 78));
    let answer = bench.last(COORDINATOR, Kind::Control).expect("it is told");
    assert!(matches!(serde_json::from_slice(&answer.payload), Ok(Answer::Busy(_))));
    bench.all_answer(Kind::Flush);
    assert_eq!(bench.last(1, Kind::Step), None);
}
