//! A client that keeps a volume busy while a test does something to it.
//!
//! The one invariant: what it wrote is read back and judged before it ends well.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use midflight_block::check::workload::{Report, Workload, WorkloadError};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any test.
const LONGEST: Duration = Duration::from_secs(3600);
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(150);
/// A frontend that was killed is back in less.
const CONNECTS_AGAIN_WITHIN: Duration = Duration::from_secs(150);

/// A client that writes, reads and judges until it is told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    client: JoinHandle<Result<Report, WorkloadError>>,
}

impl Load {
    /// Uses the volume behind an NBD endpoint.
    pub fn on(endpoint: &str, volume: &str, seed: u64) -> anyhow::Result<Load> {
        Load::on_blocks(endpoint, volume, seed, 0)
    }

    /// The same on the first blocks of 4 KiB only; 0 is all.
    pub fn on_blocks(endpoint: &str, volume: &str, seed: u64, blocks: u64) -> anyhow::Result<Load> {
        Load::begin(endpoint, volume, seed, blocks, None)
    }

    /// Uses all of the volume, and connects again where its frontend was killed.
    pub fn connecting_again(endpoint: &str, volume: &str, seed: u64) -> anyhow::Result<Load> {
        Load::begin(endpoint, volume, seed, 0, Some(CONNECTS_AGAIN_WITHIN))
    }

    fn begin(
        endpoint: &str,
        volume: &str,
        seed: u64,
        blocks: u64,
        connects_again_within: Option<Duration>,
    ) -> anyhow::Result<Load> {
        let (_, socket) =
            endpoint.split_once("?socket=").with_context(|| format!("{endpoint} has a socket"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let workload = Workload {
            socket: PathBuf::from(socket),
            volume: volume.into(),
            depth: 8,
            blocks,
            seed,
            connects_again_within,
        };
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

/// fio beside it: writes a part of a volume and verifies it, pass after pass.
pub struct Fio {
    stop: Arc<AtomicBool>,
    passes: JoinHandle<anyhow::Result<u32>>,
}

impl Fio {
    /// Uses this part of the volume behind an NBD endpoint, in bytes.
    pub fn on(endpoint: &str, offset: u64, size: u64) -> Fio {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, uri) = (Arc::clone(&stop), endpoint.to_owned());
        let passes = tokio::spawn(async move {
            let mut passes = 0;
            while !told.load(Ordering::Relaxed) {
                pass(&uri, offset, size).await?;
                passes += 1;
            }
            Ok(passes)
        });
        Fio { stop, passes }
    }

    /// Ends after the pass that is under way; says how many there were, none with an error.
    pub async fn judge(mut self) -> anyhow::Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let passes =
            timeout(LAST_ANSWERS_WITHIN, &mut self.passes).await.context("wait for the last pass")???;
        ensure!(passes > 0, "fio made no pass");
        Ok(passes)
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.passes.abort();
    }
}

/// Writes every block in random order, some more than once, and reads all of it back.
async fn pass(uri: &str, offset: u64, size: u64) -> anyhow::Result<()> {
    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bs=4k", "--iodepth=8"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--do_verify=1", "--loops=4"])
        .args([format!("--uri={uri}"), format!("--offset={offset}"), format!("--size={size}")])
        .kill_on_drop(true);
    let output = fio.output().await.context("run fio")?;
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "fio: {said}{complaint}");
    Ok(())
}
