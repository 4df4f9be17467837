//! A client that keeps a volume busy while a test does something to it.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use midflight_block::check::workload::{Report, Workload, WorkloadError};

const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(150);

/// A client that writes, reads and judges until it is told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    client: JoinHandle<Result<Report, WorkloadError>>,
}

impl Load {
    pub(crate) fn on(socket: PathBuf, volume: String, seed: u64) -> Load {
        Load::begin(Workload { socket, volume, depth: 16, blocks: 0, seed, connects_again_within: None })
    }

    /// A client that connects again when it is cut off.
    #[allow(dead_code, reason = "each test uses its part")]
    pub(crate) fn lasting(socket: PathBuf, volume: String, seed: u64) -> Load {
        let connects_again_within = Some(LAST_ANSWERS_WITHIN);
        Load::begin(Workload { socket, volume, depth: 16, blocks: 0, seed, connects_again_within })
    }

    fn begin(workload: Workload) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let client = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || workload.run(Duration::from_secs(3600), &stop))
        };
        Load { stop, client }
    }

    /// What became of the client.
    pub(crate) fn end(self) -> Result<Report, WorkloadError> {
        self.stop.store(true, Ordering::Relaxed);
        let began = Instant::now();
        while !self.client.is_finished() {
            assert!(began.elapsed() < LAST_ANSWERS_WITHIN, "the client never gets its last answers");
            thread::sleep(Duration::from_millis(5));
        }
        self.client.join().expect("the client does not panic")
    }

    /// The client's report; it is clean.
    pub(crate) fn judge(self) -> Report {
        let report = self.end().expect("the client is not cut off");
        assert_eq!(report.complaints, Vec::<String>::new());
        assert_eq!(report.errors, 0);
        assert!(report.writes > 0 && report.clears > 0 && report.verified_blocks > 0, "{report:?}");
        report
    }
}
