//! Gives up images when the node's disk fills.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::Duration,
};

use jiff::Timestamp;
use midflight_plan::image_collection::{Image, Observed, decide};
use rustix::fs::statvfs;
use tracing::{info, warn};

use super::{Digest, Store};
use crate::chain;

/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Looks at the disk again and again. `in_use` says what runs.
pub(crate) async fn collect(store: &Store, data: &Path, in_use: impl Fn() -> BTreeSet<Digest>) {
    let mut last_used: BTreeMap<Digest, Timestamp> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (running, now) = (in_use(), Timestamp::now());
        last_used.extend(running.iter().map(|digest| (digest.clone(), now)));
        if let Err(error) = turn(store, data, &running, &last_used) {
            warn!(error = chain(&error), "could not give up images");
        }
    }
}

fn turn(
    store: &Store,
    data: &Path,
    running: &BTreeSet<Digest>,
    last_used: &BTreeMap<Digest, Timestamp>,
) -> io::Result<()> {
    let disk = statvfs(data)?;
    let image = |held: super::Held| Image {
        digest: held.digest.to_string(),
        size_bytes: held.size_bytes,
        in_use: running.contains(&held.digest),
        last_used: last_used
            .get(&held.digest)
            .copied()
            .into_iter()
            .chain([store.wanted_at(&held)])
            .max()
            .unwrap_or_default(),
    };
    let seen = Observed {
        now: Timestamp::now(),
        disk_bytes: disk.f_blocks * disk.f_frsize,
        free_bytes: disk.f_bavail * disk.f_frsize,
        images: store.list().into_iter().map(image).collect(),
    };
    for digest in decide(&seen) {
        info!(digest, "the disk is full: gave up an image");
        let digest: Digest = digest.parse().map_err(io::Error::other)?;
        store.remove(&digest)?;
    }
    Ok(())
}
