//! What else the machine was doing while figures were taken: other work blurs them.

use std::{fmt, fs, thread, time::Duration};

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Conditions {
    version: &'static str,
    profile: &'static str,
    cpus: usize,
    /// Load average before and after.
    load_before: String,
    load_after: String,
}

impl Conditions {
    pub(super) fn before() -> Conditions {
        Conditions {
            version: env!("CARGO_PKG_VERSION"),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            cpus: thread::available_parallelism().map_or(0, usize::from),
            load_before: load_average(),
            load_after: String::new(),
        }
    }

    pub(super) fn after(self) -> Conditions {
        Conditions { load_after: load_average(), ..self }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { version, profile, cpus, load_before, load_after } = self;
        write!(
            f,
            "midflight {version} ({profile}), {cpus} CPUs, load {load_before} before and {load_after} after"
        )
    }
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

const GLANCE: Duration = Duration::from_millis(500);

/// How busy others keep the CPUs, in percent of all of them. Nothing of ours may run.
pub(super) fn others_percent() -> f64 {
    let before = ticks();
    thread::sleep(GLANCE);
    let after = ticks();
    let (idle, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if all == 0 { 0.0 } else { 100.0 * (1.0 - idle as f64 / all as f64) }
}

/// Idle ticks and all ticks of all CPUs since the machine started.
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    const IDLE: usize = 3;
    const WAITING_FOR_DISK: usize = 4;
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    (at(IDLE) + at(WAITING_FOR_DISK), ticks.iter().take(8).sum())
}
