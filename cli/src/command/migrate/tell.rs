//! Tells on stderr how a run goes: lines for people, or one JSON document per line with `-o json`.
//!
//! The one invariant: stdout holds the result and nothing else.

use std::io::{IsTerminal, Write};

use jiff::Timestamp;
use midflight_migrate::run::Event;

use crate::{args::Format, session::Session};

/// Milliseconds of a step that somebody has noticed.
const WORTH_A_LINE: u64 = 1000;

/// Where events go.
pub(super) struct Teller {
    json: bool,
    /// Progress is drawn over itself, so only where somebody sees it.
    terminal: bool,
}

impl Teller {
    pub(super) fn new(session: &Session) -> Teller {
        let json = match session.global.output {
            Format::Json => true,
            Format::Table | Format::Yaml => false,
        };
        Teller { json, terminal: std::io::stderr().is_terminal() }
    }

    pub(super) fn tell(&self, event: &Event) {
        if self.json {
            self.line(&serde_json::to_string(event).unwrap_or_default());
            return;
        }
        match event {
            Event::Progress { step, done, total, per_second, eta_seconds } if self.terminal => {
                let of = if *total > 0 { format!("/{total}") } else { String::new() };
                let eta = eta_seconds.map(|eta| format!(", {eta} s left")).unwrap_or_default();
                let _ = write!(std::io::stderr(), "\r\x1b[K  {step}: {done}{of}, {per_second}/s{eta}");
            }
            Event::Progress { .. } => {}
            Event::Finished { milliseconds, .. } if *milliseconds < WORTH_A_LINE => {}
            other => self.line(&words(other)),
        }
    }

    /// Anything else worth a line.
    pub(super) fn say(&self, text: &str, event: &impl serde::Serialize) {
        if self.json {
            self.line(&serde_json::to_string(event).unwrap_or_default());
        } else {
            self.line(text);
        }
    }

    fn line(&self, text: &str) {
        let erase = if self.terminal && !self.json { "\r\x1b[K" } else { "" };
        // Nobody to hear it is no failure.
        let _ = writeln!(std::io::stderr(), "{erase}{text}");
    }
}

fn words(event: &Event) -> String {
    match event {
        Event::Recovered { what } => format!("first: {what}"),
        Event::Progress { step, done, .. } => format!("{step}: {done}"),
        Event::Taken { rows, bytes, milliseconds } => {
            format!("read {rows} rows ({}) in {}", size(*bytes), time(*milliseconds))
        }
        Event::BackedUp { path, bytes, rows, milliseconds } => {
            let (path, size, took) = (path.display(), size(*bytes), time(*milliseconds));
            format!("backup of {rows} rows in {path} ({size}), verified, in {took}")
        }
        Event::Finished { step, done, milliseconds } => {
            let rows = if *done > 1 { format!(": {done} rows") } else { String::new() };
            format!("{step}{rows} in {}", time(*milliseconds))
        }
        Event::Migrated { id, rows, removed, milliseconds } => {
            let removed = if *removed > 0 { format!(", {removed} removed") } else { String::new() };
            format!("ran {id}: {rows} rows{removed} in {}", time(*milliseconds))
        }
        Event::Validated { rows, violations, milliseconds } => {
            format!("validated {rows} rows in {}: {violations} violations", time(*milliseconds))
        }
        Event::Switched { run, microseconds } => {
            format!("run {run} is live; the switch took {:.2} ms", *microseconds as f64 / 1000.0)
        }
        Event::Waiting { services, seconds } => {
            let services = services.join(", ");
            format!("waiting {seconds} s, whether what was stopped stays silent: {services}")
        }
        Event::Warning { text } => format!("warning: {text}"),
    }
}

pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A time for people: to the second.
pub(super) fn moment(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `1 migration`, `2 migrations`.
pub(super) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(super) fn time(milliseconds: u64) -> String {
    if milliseconds < 1000 {
        format!("{milliseconds} ms")
    } else {
        format!("{:.1} s", milliseconds as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!([size(17), size(2048), size(5 << 20)], ["17 B", "2.0 KiB", "5.0 MiB"]);
        assert_eq!([time(12), time(2500)], ["12 ms", "2.5 s"]);
    }
}
