//! A volume of real processes for a test, and a client that keeps it busy.

#![allow(dead_code, reason = "each test uses its part")]

#[path = "../load/mod.rs"]
mod load;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

pub(crate) use load::Load;
use midflight_block::{
    engine::control::{Answer, Command, Status},
    tour::{Layout, Plane},
};

pub(crate) const VOLUME: &str = "vol-1";
pub(crate) const WHOLE_WITHIN: Duration = Duration::from_secs(150);

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
        Answer::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Keeps the volume of a plane busy, also when its frontend is killed.
pub(crate) fn lasting_load(plane: &Plane, seed: u64) -> Load {
    Load::lasting(plane.socket(), VOLUME.into(), seed)
}

/// Keeps the volume of a plane busy.
pub(crate) fn load(plane: &Plane, seed: u64) -> Load {
    Load::on(plane.socket(), VOLUME.into(), seed)
}
