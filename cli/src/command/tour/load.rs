//! A client that keeps a volume busy while something is done to it.
//!
//! The one invariant: it ends when nobody is interested any more, and what it wrote is judged before it ends well.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use midflight_block::check::workload::{Report, Workload, WorkloadError};

use crate::cluster::Temporary;

/// Longer than any act.
const LONGEST: Duration = Duration::from_secs(600);

pub(super) struct Load {
    enough: Arc<AtomicBool>,
    report: BoxFuture<'static, anyhow::Result<Result<Report, WorkloadError>>>,
}

impl Load {
    /// Begins to write and read so many blocks of a volume, so that many are written more than once.
    pub(super) fn begin(cluster: &Temporary, volume: &str, socket: PathBuf, blocks: u64) -> Load {
        let workload = Workload {
            socket,
            volume: volume.to_owned(),
            depth: 8,
            blocks,
            seed: 7,
            connects_again_within: None,
        };
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let report = cluster.block(move || workload.run(LONGEST, &told));
        Load { enough, report }
    }

    /// Ends it. Every block that it wrote is read back first; that none is wrong has been checked.
    pub(super) async fn judge(mut self) -> anyhow::Result<Report> {
        self.enough.store(true, Ordering::Relaxed);
        let report = (&mut self.report).await??;
        anyhow::ensure!(
            report.is_clean(),
            "the client saw {} errors: {:?}",
            report.errors,
            report.complaints
        );
        Ok(report)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

/// What all of them met together.
pub(super) fn in_all(reports: &[Report]) -> String {
    let sum = |number: fn(&Report) -> u64| reports.iter().map(number).sum::<u64>();
    format!(
        "{} writes and {} reads meanwhile, 0 errors; {} blocks read back and verified: no byte was lost",
        sum(|report| report.writes),
        sum(|report| report.reads),
        sum(|report| report.verified_blocks)
    )
}
