//! `midflight bench pause`: how long clients wait while engines change, side by side with qemu's reconnect.
//!
//! One client keeps sixteen random writes under way; what counts for a change is
//! the longest wait of any write that met it.

mod hogs;

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use midflight_block::{
    check::stopwatch::{Stopwatch, Waits},
    tour::{DRAIN_WITHIN, Plane, managed::Managed},
};
use rustix::process::Signal;
use serde::Serialize;

use self::hogs::Hogs;
use super::{
    conditions::{Conditions, others_percent},
    errand::{Errand, Place},
    figure::quantile,
    fill::{fill_file, fill_volume},
    qemu::{QemuNbd, Socket, Source},
};
use crate::{
    output::{Answer, Paint, table},
    session::Session,
};

/// Measure how long clients wait while engines change
///
/// A volume of three replicas changes engines under a client with sixteen random writes under way: as planned, and
/// because the engine was killed (by hand, and under an instance manager), or the instance manager around it; on the machine as it is, and with CPU hogs beside. A planned switch is from the order to
/// the frontend until everyone who met it has an answer; the start of the next engine's process before it, the end of
/// the old one's after it, and a time in which nothing happens are measured by themselves. In the same run a qemu-nbd
/// reconnects to one that was ended and started again. Needs qemu-nbd.
#[derive(Debug, Args)]
pub(crate) struct PauseBench {
    /// Planned switches
    #[arg(long, default_value_t = 200)]
    switches: usize,
    /// Engines to kill
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Engines to kill that an instance manager minds, each a process of its own
    #[arg(long, default_value_t = 20)]
    minded_kills: usize,
    /// Instance managers to kill, with an engine and a copy inside
    #[arg(long, default_value_t = 10)]
    manager_kills: usize,
    /// Reconnects of qemu
    #[arg(long, default_value_t = 5)]
    reconnects: usize,
    /// Threads that only burn CPU, for the second half
    #[arg(long, default_value_t = 4)]
    hogs: usize,
    /// Size of the volume
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    size_mib: u64,
    #[command(flatten)]
    place: Place,
}

/// Changes of one kind, as the client saw them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pauses {
    what: &'static str,
    hogs: usize,
    count: usize,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    writes_per_second: f64,
    errors: u64,
    /// Requests sent a second time, over all changes.
    replayed: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    /// How busy others kept the CPUs before.
    others_percent: f64,
    pauses: Vec<Pauses>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.pauses.iter().map(|pauses| {
            let ms = |value: f64| format!("{value:.2}");
            [
                pauses.what.to_owned(),
                pauses.hogs.to_string(),
                pauses.count.to_string(),
                ms(pauses.p50_ms),
                ms(pauses.p90_ms),
                ms(pauses.p99_ms),
                ms(pauses.max_ms),
                format!("{:.0}", pauses.writes_per_second),
                pauses.errors.to_string(),
            ]
        });
        let header =
            ["CHANGE", "HOGS", "COUNT", "P50 MS", "P90 MS", "P99 MS", "MAX MS", "WRITES/S", "ERRORS"];
        format!(
            "{}, others used {:.0} % of the CPUs\nlongest wait of a client at each change:\n\n{}",
            self.conditions,
            self.others_percent,
            table(header, rows)
        )
    }
}

const DEPTH: u64 = 16;
const VOLUME: &str = "pause";
/// An engine that ends within a second of its start, again and again, is waited for before it is started: that is not what is measured.
const SETTLED: Duration = Duration::from_millis(1200);
/// Between two changes the client gets this much time undisturbed.
const UNDISTURBED: Duration = Duration::from_millis(30);
/// A client that gets no answer for this long after a change is lost.
const PATIENCE: Duration = Duration::from_secs(30);

impl PauseBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let place = self.place.clone();
        let measured = place.run(session, move |errand| self.measure(errand)).await?;
        session.answer(&measured)
    }

    fn measure(&self, errand: &Errand) -> anyhow::Result<Measured> {
        let conditions = Conditions::before();
        let others_percent = others_percent();
        let layout = errand.layout(VOLUME, self.size_mib << 20, 3);
        let mut plane = Plane::start(layout).context("start a data plane")?;
        fill_volume(&plane.socket(), VOLUME, self.size_mib << 20)?;
        let mut pauses = Vec::new();
        for hogs in [0, self.hogs].into_iter().take(if self.hogs == 0 { 1 } else { 2 }) {
            let _busy = Hogs::start(hogs);
            pauses.extend(self.planned(errand, &mut plane, hogs)?);
            pauses.extend(self.killed(errand, &mut plane, hogs)?);
            pauses.extend(self.killed_minded(errand, hogs)?);
            pauses.extend(self.killed_manager(errand, hogs)?);
            pauses.extend(self.reconnected(errand, hogs)?);
        }
        Ok(Measured { conditions: conditions.after(), others_percent, pauses })
    }

    /// The next engine is there before the frontend hears of it, and the old one ends afterwards: what
    /// these two cost clients is measured by itself, and what the machine costs them when nothing happens.
    fn planned(&self, errand: &Errand, plane: &mut Plane, hogs: usize) -> anyhow::Result<[Pauses; 4]> {
        let mut replayed = 0;
        let whats = ["planned switch", "start of the next", "end of the old", "30 ms of nothing"];
        let mut pauses = observe(&plane.socket(), VOLUME, (whats, hogs), self.switches, || {
            errand.go_on()?;
            let (next, start) = timed(|| plane.start_successor().context("start the next engine"));
            let next = next?;
            // Who waits since the start is not counted again.
            thread::sleep(UNDISTURBED);
            let ((), nothing) = timed(|| thread::sleep(UNDISTURBED));
            let (switched, switch) = timed(|| plane.switch_to(next, DRAIN_WITHIN).context("switch engines"));
            let (switched, old) = switched?;
            replayed += switched.replayed;
            thread::sleep(UNDISTURBED);
            let ((), end) = timed(|| drop(old));
            Ok([switch, start, end, nothing])
        })?;
        pauses[0].replayed = Some(replayed);
        Ok(pauses)
    }

    fn killed(&self, errand: &Errand, plane: &mut Plane, hogs: usize) -> anyhow::Result<[Pauses; 1]> {
        observe(&plane.socket(), VOLUME, (["killed engine"], hogs), self.kills, || {
            errand.go_on()?;
            let (killed, span) = timed(|| {
                plane.engine().signal(Signal::KILL).context("kill the engine")?;
                plane.engine().wait_for_end(Duration::from_secs(10)).context("wait for the engine's end")?;
                plane.restart_engine().context("start the engine again")
            });
            killed.map(|()| [span])
        })
    }

    /// A v1 engine as in a cluster: its instance manager notices that it ended and starts it again.
    fn killed_minded(&self, errand: &Errand, hogs: usize) -> anyhow::Result<[Pauses; 1]> {
        let layout = errand.layout(&format!("minded-{hogs}"), self.size_mib << 20, 3);
        let volume = layout.volume.clone();
        let mut plane = Managed::start_with_processes(layout).context("start instance managers")?;
        fill_volume(&plane.socket(), &volume, self.size_mib << 20)?;
        observe(&plane.socket(), &volume, (["killed v1 engine"], hogs), self.minded_kills, || {
            errand.go_on()?;
            thread::sleep(SETTLED);
            let (killed, span) = timed(|| plane.kill_engine().context("kill the engine of a manager"));
            killed.map(|()| [span])
        })
    }

    /// The engine and one copy were in it; another process is started, and both are created again.
    fn killed_manager(&self, errand: &Errand, hogs: usize) -> anyhow::Result<[Pauses; 1]> {
        let layout = errand.layout(&format!("managed-{hogs}"), self.size_mib << 20, 3);
        let volume = layout.volume.clone();
        let mut plane = Managed::start(layout).context("start instance managers")?;
        fill_volume(&plane.socket(), &volume, self.size_mib << 20)?;
        observe(&plane.socket(), &volume, (["killed manager"], hogs), self.manager_kills, || {
            errand.go_on()?;
            let (killed, span) = timed(|| plane.kill_manager().context("kill the instance manager"));
            killed.map(|()| [span])
        })
    }

    fn reconnected(&self, errand: &Errand, hogs: usize) -> anyhow::Result<[Pauses; 1]> {
        let file = errand.folder().join("peer");
        fill_file(&file, self.size_mib << 20)?;
        let (back_at, front_at) = (Socket::free_port()?, errand.folder().join("peer.sock"));
        let mut back = Some(QemuNbd::start(&Source::File(&file), &back_at)?);
        let _front = QemuNbd::start(&Source::Reconnecting(&back_at), &Socket::Unix(front_at.clone()))?;
        observe(&front_at, "", (["qemu reconnect"], hogs), self.reconnects, || {
            errand.go_on()?;
            let (restarted, span) = timed(|| {
                if let Some(back) = back.take() {
                    back.end(Signal::TERM)?;
                }
                back = Some(QemuNbd::start(&Source::File(&file), &back_at)?);
                anyhow::Ok(())
            });
            restarted.map(|()| [span])
        })
    }
}

/// From when to when something was done.
type Span = (Instant, Instant);

fn timed<T>(act: impl FnOnce() -> T) -> (T, Span) {
    let began = Instant::now();
    let result = act();
    (result, (began, Instant::now()))
}

/// Lets changes happen under a client. `change` says when each of its parts was done.
fn observe<const PARTS: usize>(
    socket: &Path,
    export: &str,
    (whats, hogs): ([&'static str; PARTS], usize),
    count: usize,
    mut change: impl FnMut() -> anyhow::Result<[Span; PARTS]>,
) -> anyhow::Result<[Pauses; PARTS]> {
    let client = Stopwatch::start(socket, export, DEPTH).with_context(|| format!("connect to {export:?}"))?;
    thread::sleep(10 * UNDISTURBED);
    let mut change_and_wait = || {
        let change = change()?;
        await_answers(&client)?;
        thread::sleep(UNDISTURBED);
        anyhow::Ok(change)
    };
    let changes: anyhow::Result<Vec<_>> = (0..count).map(|_| change_and_wait()).collect();
    let waits = client.stop().with_context(|| format!("{}: the client was cut off", whats[0]))?;
    let changes = changes?;
    Ok(std::array::from_fn(|part| {
        let spans: Vec<Span> = changes.iter().map(|spans| spans[part]).collect();
        summary(whats[part], hogs, &spans, &waits)
    }))
}

/// Returns when every write that was under way has been answered.
fn await_answers(client: &Stopwatch) -> anyhow::Result<()> {
    let (enough, deadline) = (client.answered() + 2 * DEPTH, Instant::now() + PATIENCE);
    while client.answered() < enough {
        anyhow::ensure!(Instant::now() < deadline, "the client got no answer for {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn summary(what: &'static str, hogs: usize, changes: &[Span], waits: &Waits) -> Pauses {
    let longest = changes.iter().map(|(from, to)| waits.longest(*from, *to).as_secs_f64() * 1000.0);
    let longest: Vec<f64> = longest.collect();
    let share = |share: f64| quantile(&longest, share).unwrap_or(0.0);
    Pauses {
        what,
        hogs,
        count: changes.len(),
        p50_ms: share(0.5),
        p90_ms: share(0.9),
        p99_ms: share(0.99),
        max_ms: share(1.0),
        writes_per_second: waits.per_second(),
        errors: waits.errors,
        replayed: None,
    }
}
