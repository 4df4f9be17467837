//! The change of a volume from one engine to the next, as the frontend drives it.
//!
//! Invariant: the old engine is let go, drained or not, before the new one is asked to serve; who met the
//! pause is counted in it.

use std::time::{Duration, Instant};

use super::{
    control::Switched,
    core::{DRAIN, Engine, GO, Lease, Output, PREPARE, PROBE, Stage, Volume},
};
use crate::{
    net::{address::Address, reactor::LinkId},
    wire::{Frame, Header, Kind, Status, hello::Hello},
};

/// What is known of a pause while it lasts.
#[derive(Debug, Clone)]
pub(super) struct Pause {
    pub(super) began: Instant,
    pub(super) ended: Option<Instant>,
    pub(super) longest_wait: Duration,
    pub(super) replayed: usize,
    pub(super) drained: bool,
}

impl Volume {
    pub(super) fn on_switch(&mut self, to: Address, drain_within: Duration, out: &mut Vec<Output>) {
        // The same command again: it is being done, or it has been.
        if self.next.as_ref().is_some_and(|(next, _)| next.address == to) {
            return;
        }
        if self.next.is_none() && self.current.address == to && self.current.stage == Stage::Serving {
            return out.push(Output::Switched(Switched::already(self.epoch)));
        }
        // The record has moved on: whatever was under way gives place to it.
        if let Some((superseded, _)) = self.next.take() {
            out.extend(superseded.link.map(Output::Close));
            self.pause = None;
            self.let_go(superseded);
        }
        out.push(Output::Connect(to.clone()));
        self.next = Some((Engine::new(to), drain_within));
    }

    /// From the engine that is to take over, or from nobody who counts.
    pub(super) fn on_next(&mut self, now: Instant, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let Some((next, _)) = &mut self.next else { return };
        if !next.has(link) {
            return;
        }
        match (next.stage, frame.header.kind, frame.header.status) {
            (Stage::Greeting, Kind::Hello, _) => match Hello::accept(&frame.payload, &self.name) {
                // Nobody serves: what preparing would save is lost already.
                Ok(hello) if hello.epoch > self.epoch && self.current.stage != Stage::Serving => {
                    self.begin_pause(now, out);
                }
                Ok(hello) if hello.epoch > self.epoch => {
                    next.stage = Stage::Preparing;
                    let header = Header::new(Kind::Prepare, PREPARE, hello.epoch);
                    out.push(Output::Send(link, Frame::bare(header)));
                }
                Ok(hello) => {
                    let why =
                        format!("the new engine has epoch {}, the volume is at {}", hello.epoch, self.epoch);
                    self.abandon(now, &why, out);
                }
                Err(error) => self.abandon(now, &error.to_string(), out),
            },
            (Stage::Preparing, Kind::Reply, Status::Ok) if frame.header.tag == PREPARE => {
                self.begin_pause(now, out);
            }
            (Stage::Going, Kind::Reply, Status::Ok) if frame.header.tag == GO => {
                if let Some((next, _)) = self.next.take() {
                    self.current = next;
                }
                self.serve(now, &frame.header, out);
            }
            // The old engine was lost meanwhile, so nobody waited for this.
            (Stage::Going, Kind::Reply, Status::Ok) if frame.header.tag == PREPARE => {}
            (Stage::Going, Kind::Reply, _) if frame.header.tag == PROBE => {
                self.lease = Some(Lease::from(now));
            }
            (_, _, status) => {
                let why = format!(
                    "the new engine answered {status:?}: {}",
                    String::from_utf8_lossy(&frame.payload)
                );
                self.abandon(now, &why, out);
            }
        }
    }

    pub(super) fn begin_pause(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Some((_, drain_within)) = &self.next else { return };
        let longest_wait = Duration::ZERO;
        self.pause = Some(Pause { began: now, ended: None, longest_wait, replayed: 0, drained: false });
        match (self.current.stage, self.current.link) {
            (Stage::Serving, Some(link)) => {
                self.current.stage = Stage::Draining { until: now + *drain_within };
                out.push(Output::Send(link, Frame::bare(Header::new(Kind::Drain, DRAIN, self.epoch))));
            }
            _ => self.go(now, out),
        }
    }

    /// Lets the old engine go and asks the new one to take over.
    pub(super) fn go(&mut self, now: Instant, out: &mut Vec<Output>) {
        out.extend(self.current.link.take().map(Output::Close));
        self.current.stage = Stage::Connecting;
        self.retry_at = None;
        let Some((next, _)) = &mut self.next else {
            // It was given up meanwhile: the one that was let go may serve again.
            self.retry_at = Some(now);
            return;
        };
        let Some(link) = next.link else { return };
        next.stage = Stage::Going;
        self.lease = Some(Lease::from(now));
        out.push(Output::Send(link, Frame::bare(Header::new(Kind::Go, GO, self.epoch))));
    }

    /// Gives the new engine up. If the old one was still serving nothing happened;
    /// if it was already let go, whoever answers first gets the volume, and the
    /// replicas' promises decide whether it may serve.
    pub(super) fn abandon(&mut self, now: Instant, why: &str, out: &mut Vec<Output>) {
        let Some((next, _)) = self.next.take() else { return };
        out.extend(next.link.map(Output::Close));
        self.let_go(next);
        if self.current.stage == Stage::Connecting {
            self.retry_at = Some(now);
        }
        self.pause = None;
        out.push(Output::NotSwitched(why.into()));
    }

    /// One that was asked to serve may have the volume, or get it yet.
    pub(super) fn let_go(&mut self, engine: Engine) {
        if engine.stage == Stage::Going {
            self.lease = None;
            self.fallback = Some(engine.address);
        }
    }

    pub(super) fn measure(&mut self, now: Instant, arrived: Instant) {
        if let Some(pause) = &mut self.pause
            && pause.ended.is_none_or(|ended| arrived <= ended)
        {
            pause.longest_wait = pause.longest_wait.max(now - arrived);
        }
    }

    /// Once everyone who met the pause has an answer, it can be told.
    pub(super) fn report(&mut self, out: &mut Vec<Output>) {
        let Some(Pause { ended: Some(ended), .. }) = self.pause else { return };
        if self.table.has_since(ended) {
            return;
        }
        if let Some(pause) = self.pause.take() {
            let length = ended - pause.began;
            out.push(Output::Switched(Switched {
                epoch: self.epoch,
                pause_us: length.as_micros() as u64,
                longest_wait_us: pause.longest_wait.as_micros() as u64,
                replayed: pause.replayed,
                drained: pause.drained,
            }));
        }
    }
}
