//! A volume of real processes for a test, and a client that keeps it busy.

#![allow(dead_code, reason = "each test uses its part")]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use midflight_block::{
    check::workload::{Report, Workload, WorkloadError},
    engine::control::{Answer, Command, Status},
    tour::{Layout, Plane},
};

pub(crate) const VOLUME: &str = "vol-1";
pub(crate) const WHOLE_WITHIN: Duration = Duration::from_secs(60);

pub(crate) fn layout(folder: &Path, size: u64) -> Layout {
    Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_mfblock")),
        folder: folder.to_owned(),
        volume: VOLUME.into(),
        size,
        replicas: 3,
    }
}

pub(crate) fn start(folder: &Path, size: u64) -> Plane {
    Plane::start(layout(folder, size)).expect("the plane starts")
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WHOLE_WITHIN, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn status(plane: &mut Plane) -> Status {
    match plane.command(&Command::Status).expect("the plane works") {
        Answer::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// A client that writes, reads and judges until it is told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    client: JoinHandle<Result<Report, WorkloadError>>,
}

impl Load {
    pub(crate) fn on(plane: &Plane, seed: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let workload = Workload { socket: plane.socket(), volume: VOLUME.into(), depth: 16, blocks: 0, seed };
        let client = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || workload.run(Duration::from_secs(3600), &stop))
        };
        Load { stop, client }
    }

    /// What became of the client.
    pub(crate) fn end(self) -> Result<Report, WorkloadError> {
        self.stop.store(true, Ordering::Relaxed);
        until("the client gets its last answers", || self.client.is_finished());
        self.client.join().expect("the client does not panic")
    }

    /// The client's report; it is clean.
    pub(crate) fn judge(self) -> Report {
        let report = self.end().expect("the client is not cut off");
        assert_eq!(report.complaints, Vec::<String>::new());
        assert_eq!(report.errors, 0);
        assert!(report.writes > 0 && report.verified_blocks > 0, "{report:?}");
        report
    }
}
