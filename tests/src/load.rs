//! A client that keeps a volume busy while a test does something to it.
//!
//! The one invariant: what it wrote is read back and judged before it ends well.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use midflight_block::check::workload::{Report, Workload, WorkloadError};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any test.
const LONGEST: Duration = Duration::from_secs(3600);
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A client that writes, reads and judges until it is told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    client: JoinHandle<Result<Report, WorkloadError>>,
}

impl Load {
    /// Uses the volume behind an NBD endpoint.
    pub fn on(endpoint: &str, volume: &str, seed: u64) -> anyhow::Result<Load> {
        let (_, socket) =
            endpoint.split_once("?socket=").with_context(|| format!("{endpoint} has a socket"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let workload =
            Workload { socket: PathBuf::from(socket), volume: volume.into(), depth: 8, blocks: 0, seed };
        let told = Arc::clone(&stop);
        let client = tokio::task::spawn_blocking(move || workload.run(LONGEST, &told));
        Ok(Load { stop, client })
    }

    /// The client's report; it is clean.
    pub async fn judge(mut self) -> anyhow::Result<Report> {
        self.stop.store(true, Ordering::Relaxed);
        let report =
            timeout(LAST_ANSWERS_WITHIN, &mut self.client).await.context("get the last answers")???;
        ensure!(report.is_clean(), "{report:?}");
        ensure!(report.writes > 0 && report.verified_blocks > 0, "nothing was judged: {report:?}");
        Ok(report)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
