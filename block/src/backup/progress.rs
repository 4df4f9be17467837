//! How far a long piece of work is.
//!
//! Invariant: a report comes at most a few times a second, and one at the end.

use std::{
    borrow::Cow,
    io::Write,
    time::{Duration, Instant},
};

use serde::Serialize;

const EVERY: Duration = Duration::from_millis(500);

/// What is known at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub doing: Cow<'static, str>,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_second: u64,
    /// None while nothing is known of the rate.
    pub seconds_left: Option<u64>,
}

pub struct Progress<'a> {
    doing: &'static str,
    done: u64,
    total: u64,
    began: Instant,
    told: Instant,
    tell: &'a mut dyn FnMut(&Report),
}

impl<'a> Progress<'a> {
    pub fn new(doing: &'static str, total: u64, tell: &'a mut dyn FnMut(&Report)) -> Progress<'a> {
        let now = Instant::now();
        Progress { doing, done: 0, total, began: now, told: now, tell }
    }

    pub fn report(&self) -> Report {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { self.done as f64 / seconds } else { 0.0 };
        let left = self.total.saturating_sub(self.done) as f64;
        Report {
            doing: self.doing.into(),
            done_bytes: self.done,
            total_bytes: self.total,
            bytes_per_second: rate as u64,
            seconds_left: (rate >= 1.0).then_some((left / rate).ceil() as u64),
        }
    }

    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            let report = self.report();
            (self.tell)(&report);
        }
    }

    pub fn end(self) {
        let report = self.report();
        (self.tell)(&report);
    }
}

/// For people, a line that is written over; for programs, one JSON object each.
pub fn to_writer(mut out: impl Write, json: bool) -> impl FnMut(&Report) {
    move |report: &Report| {
        // Progress is a courtesy: nobody has to read it.
        let _ = match json {
            true => serde_json::to_writer(&mut out, report).map_err(Into::into).and_then(|()| writeln!(out)),
            false => {
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                let left = report.seconds_left.map_or("?".into(), |seconds| seconds.to_string());
                writeln!(
                    out,
                    "{}: {:.1} of {:.1} MiB, {:.1} MiB/s, {left} s left",
                    report.doing,
                    mib(report.done_bytes),
                    mib(report.total_bytes),
                    mib(report.bytes_per_second)
                )
            }
        };
    }
}
