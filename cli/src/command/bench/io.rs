//! `midflight bench io`: reads and writes of a volume, side by side with qemu's servers.
//!
//! One client gives each load to all sides in turns, round after round, so that
//! the noise of the machine falls on all; a ratio is taken within a round.

mod fio;

use std::{fs::File, path::PathBuf};

use anyhow::Context;
use clap::Args;
use midflight_block::tour::Plane;
use serde::Serialize;

use self::fio::{LOADS, Load, Seen, Target};
use super::{
    conditions::{Conditions, others_percent},
    errand::{Errand, Place},
    figure::{Better, Figure, median, show},
    fill::{fill_file, fill_volume},
    qemu::{QemuNbd, Socket, Source},
};
use crate::{
    failure::Failure,
    output::{Answer, Paint},
    session::Session,
};

/// Measure reads and writes of a volume
///
/// Beside the volume (of three replicas and of one, the first in the engine's own process), the same load goes to qemu's quorum over three qemu-nbd, to
/// a single qemu-nbd and to a file past the page cache, in turns. Needs fio and qemu-nbd.
#[derive(Debug, Args)]
pub(crate) struct IoBench {
    /// Size of each volume and file
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    size_mib: u64,
    /// Length of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each is repeated; the median of the ratios counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only loads whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    #[command(flatten)]
    place: Place,
}

/// Who is measured. The order is that of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Side {
    ThreeReplicas,
    Quorum,
    OneReplica,
    QemuNbd,
    RawFile,
}

const SIDES: [Side; 5] = [Side::ThreeReplicas, Side::Quorum, Side::OneReplica, Side::QemuNbd, Side::RawFile];

/// What is compared with what.
#[rustfmt::skip]
const PAIRS: [(Side, Side, &str); 4] = [
    (Side::ThreeReplicas, Side::Quorum,  "3 replicas, qemu quorum"),
    (Side::OneReplica,    Side::QemuNbd, "1 replica, qemu-nbd"),
    (Side::ThreeReplicas, Side::QemuNbd, "3 replicas, qemu-nbd"),
    (Side::ThreeReplicas, Side::RawFile, "3 replicas, raw file"),
];

/// One load on one side in one round.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sample {
    load: &'static str,
    side: Side,
    round: usize,
    #[serde(flatten)]
    seen: Seen,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    size_mib: u64,
    rounds: usize,
    /// How busy others kept the CPUs between the rounds.
    others_percent: Option<f64>,
    figures: Vec<Figure>,
    samples: Vec<Sample>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        let others = self.others_percent.map(|percent| format!(", others used {percent:.0} % of the CPUs"));
        format!(
            "{}{}\n{} MiB, {} rounds\n\n{}",
            self.conditions,
            others.unwrap_or_default(),
            self.size_mib,
            self.rounds,
            show(&self.figures)
        )
    }
}

impl IoBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let loads: Vec<Load> = LOADS.into_iter().filter(|load| load.name.contains(&self.only)).collect();
        if loads.is_empty() {
            let names = LOADS.map(|load| load.name).join("; ");
            return Err(Failure::usage(format!("no load has {:?} in its name", self.only), names));
        }
        let place = self.place.clone();
        let measured = place.run(session, move |errand| self.measure(errand, &loads)).await?;
        session.answer(&measured)
    }

    fn measure(&self, errand: &Errand, loads: &[Load]) -> anyhow::Result<Measured> {
        let conditions = Conditions::before();
        let stage = Stage::build(errand, self.size_mib << 20)?;
        let (mut samples, mut others) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            stage.sync()?;
            others.push(others_percent());
            for load in loads {
                for side in SIDES {
                    errand.go_on()?;
                    let seen = fio::run(load, stage.target(side), self.size_mib << 20, self.seconds)
                        .with_context(|| format!("measure {side:?}"))?;
                    samples.push(Sample { load: load.name, side, round, seen });
                    if load.writes() {
                        stage.sync()?;
                    }
                }
            }
        }
        Ok(Measured {
            conditions: conditions.after(),
            size_mib: self.size_mib,
            rounds: self.rounds,
            others_percent: median(&others),
            figures: loads.iter().flat_map(|load| figures(load, &samples)).collect(),
            samples,
        })
    }
}

fn figures(load: &Load, samples: &[Sample]) -> Vec<Figure> {
    let of = |side: Side, what: fn(&Seen) -> f64| -> Vec<f64> {
        let mine = samples.iter().filter(|sample| sample.load == load.name && sample.side == side);
        mine.map(|sample| what(&sample.seen)).collect()
    };
    let mut figures = Vec::new();
    for (ours, peer, pair) in PAIRS {
        let name = format!("{}: {pair}", load.name);
        let rate: fn(&Seen) -> f64 = |seen| seen.per_second;
        figures.extend(Figure::paired(&name, "1/s", Better::Higher, &of(ours, rate), &of(peer, rate)));
        if peer == Side::Quorum {
            let name = format!("{name}, p99");
            let slow: fn(&Seen) -> f64 = |seen| seen.p99_us;
            figures.extend(Figure::paired(&name, "us", Better::Lower, &of(ours, slow), &of(peer, slow)));
        }
    }
    figures
}

/// All sides, ready to be measured. Fields are dropped in order: clients before servers.
struct Stage {
    folder: PathBuf,
    targets: Vec<(Side, Target)>,
    _planes: Vec<Plane>,
    _servers: Vec<QemuNbd>,
}

impl Stage {
    fn build(errand: &Errand, size: u64) -> anyhow::Result<Stage> {
        let folder = errand.folder().to_owned();
        let (mut planes, mut targets) = (Vec::new(), Vec::new());
        for (side, name, replicas) in [(Side::ThreeReplicas, "three", 3), (Side::OneReplica, "one", 1)] {
            errand.go_on()?;
            let plane =
                Plane::start_with_local(errand.layout(name, size, replicas)).context("start a data plane")?;
            fill_volume(&plane.socket(), name, size)?;
            targets.push((side, Target::Nbd(plane.socket())));
            planes.push(plane);
        }
        let mut servers = Vec::new();
        let mut children = Vec::new();
        for number in 0..3 {
            errand.go_on()?;
            let file = folder.join(format!("quorum-{number}"));
            fill_file(&file, size)?;
            // Not TCP: there some versions of qemu wait out delayed acknowledgements, 40 ms each.
            let at = Socket::Unix(folder.join(format!("quorum-{number}.sock")));
            servers.push(QemuNbd::start(&Source::File(&file), &at)?);
            children.push(at);
        }
        let socket = folder.join("quorum.sock");
        servers.insert(0, QemuNbd::start(&Source::Quorum(&children), &Socket::Unix(socket.clone()))?);
        targets.push((Side::Quorum, Target::Nbd(socket)));

        let (file, raw) = (folder.join("single"), folder.join("raw"));
        fill_file(&file, size)?;
        fill_file(&raw, size)?;
        let socket = folder.join("single.sock");
        servers.push(QemuNbd::start(&Source::File(&file), &Socket::Unix(socket.clone()))?);
        targets.push((Side::QemuNbd, Target::Nbd(socket)));
        targets.push((Side::RawFile, Target::File(raw)));
        Ok(Stage { folder, targets, _planes: planes, _servers: servers })
    }

    fn target(&self, side: Side) -> &Target {
        let found = self.targets.iter().find(|(of, _)| *of == side);
        &found.expect("every side has a target").1
    }

    /// Nobody pays for what another wrote.
    fn sync(&self) -> anyhow::Result<()> {
        let folder = File::open(&self.folder).context("open the folder")?;
        rustix::fs::syncfs(folder).context("sync the file system")
    }
}
