//! `midflight bench fuse`: files through our FUSE engine, side by side with fuse-overlayfs and
//! with the folder itself.
//!
//! Each load goes to all sides in turns, round after round, so that the noise of the machine
//! falls on all; a ratio is taken within a round.

mod compile;
mod loads;
mod mounts;
mod tree;

use clap::Args;
use serde::Serialize;

use self::{
    loads::{LOADS, Load, Materials},
    mounts::Mounts,
};
use super::{
    conditions::{Conditions, others_percent},
    errand::{Errand, Place},
    figure::{Better, Figure, median, show},
};
use crate::{
    failure::Failure,
    output::{Answer, Paint},
    session::Session,
};

/// Measure a mounted dataset
///
/// Programs read, write, unpack, clone, compile, walk and remove files through the FUSE engine, through fuse-overlayfs and
/// in the folder itself, in turns. Needs root, fuse-overlayfs, fio, git, tar and cc.
#[derive(Debug, Args)]
pub(crate) struct FuseBench {
    /// Files of the tree that is unpacked, walked and removed
    #[arg(long, value_name = "N", default_value_t = 5000)]
    files: usize,
    /// Size of the file that is read and written
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    size_mib: u64,
    /// Length of each measurement of reads and writes
    #[arg(long, default_value_t = 3)]
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
    Mount,
    Overlay,
    Folder,
}

const SIDES: [Side; 3] = [Side::Mount, Side::Overlay, Side::Folder];

/// One load on one side in one round.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sample {
    load: &'static str,
    side: Side,
    round: usize,
    value: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    files: usize,
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
            "{}{}\n{} files, {} MiB, {} rounds\n\n{}",
            self.conditions,
            others.unwrap_or_default(),
            self.files,
            self.size_mib,
            self.rounds,
            show(&self.figures)
        )
    }
}

impl FuseBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::usage("mounting needs root", "run it with sudo"));
        }
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
        let materials = Materials::make(errand.folder(), self.files, self.size_mib, self.seconds)?;
        let mounts = Mounts::make(errand)?;
        let (mut samples, mut others) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            others.push(others_percent());
            // A load works on what the one before it has left: all sides take each in turn.
            for load in loads {
                for side in SIDES {
                    errand.go_on()?;
                    mounts.settle()?;
                    let value = load.run(&materials, mounts.at(side))?;
                    samples.push(Sample { load: load.name, side, round, value });
                }
            }
            mounts.empty()?;
        }
        Ok(Measured {
            conditions: conditions.after(),
            files: self.files,
            size_mib: self.size_mib,
            rounds: self.rounds,
            others_percent: median(&others),
            figures: loads.iter().flat_map(|load| figures(load, &samples)).collect(),
            samples,
        })
    }
}

fn figures(load: &Load, samples: &[Sample]) -> Vec<Figure> {
    let of = |side: Side| -> Vec<f64> {
        let mine = samples.iter().filter(|sample| sample.load == load.name && sample.side == side);
        mine.map(|sample| sample.value).collect()
    };
    let (unit, better) = load.measure();
    let pairs = [(Side::Overlay, "fuse-overlayfs"), (Side::Folder, "the folder")];
    let figure = |(peer, name): (Side, &str)| {
        let name = format!("{}: mount, {name}", load.name);
        Figure::paired(&name, unit, better, &of(Side::Mount), &of(peer))
    };
    pairs.into_iter().filter_map(figure).collect()
}

/// What a load measures, and which way is better.
impl Load {
    fn measure(&self) -> (&'static str, Better) {
        match self.gives_rate() {
            true => ("1/s", Better::Higher),
            false => ("ms", Better::Lower),
        }
    }
}
