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

use super::{Digest, Held, Store};
use crate::chain;

/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How large a disk is, and how much of it is free.
#[derive(Debug, Clone, Copy)]
struct Disk {
    bytes: u64,
    free_bytes: u64,
}

impl Disk {
    fn of(folder: &Path) -> io::Result<Disk> {
        let disk = statvfs(folder)?;
        Ok(Disk { bytes: disk.f_blocks * disk.f_frsize, free_bytes: disk.f_bavail * disk.f_frsize })
    }
}

/// Looks at the disk again and again. `in_use` says what runs.
pub(crate) async fn collect(store: &Store, data: &Path, in_use: impl Fn() -> BTreeSet<Digest>) {
    let mut used = Used::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = Timestamp::now();
        used.see(in_use(), now);
        let done = Disk::of(data).and_then(|disk| turn(store, disk, &used, now));
        if let Err(error) = done {
            warn!(error = chain(&error), "could not give up images");
        }
    }
}

/// What runs, and when each image was last seen to be run from.
#[derive(Debug, Default)]
struct Used {
    running: BTreeSet<Digest>,
    last: BTreeMap<Digest, Timestamp>,
}

impl Used {
    fn see(&mut self, running: BTreeSet<Digest>, now: Timestamp) {
        self.last.extend(running.iter().map(|digest| (digest.clone(), now)));
        self.running = running;
    }
}

fn turn(store: &Store, disk: Disk, used: &Used, now: Timestamp) -> io::Result<()> {
    let image = |held: Held| Image {
        in_use: used.running.contains(&held.digest),
        last_used: used.last.get(&held.digest).copied().max(Some(store.wanted_at(&held))).unwrap_or_default(),
        digest: held.digest.to_string(),
        size_bytes: held.size_bytes,
    };
    let seen = Observed {
        now,
        disk_bytes: disk.bytes,
        free_bytes: disk.free_bytes,
        images: store.list().into_iter().map(image).collect(),
    };
    for digest in decide(&seen) {
        let digest: Digest = digest.parse().map_err(io::Error::other)?;
        if store.remove_unless_wanted_after(&digest, now)? {
            info!(%digest, "the disk is full: gave up an image");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::{super::store::testing::add, *};

    /// 90 of 100 bytes are taken; images of 7 bytes each go until 80 are.
    const FULL: Disk = Disk { bytes: 100, free_bytes: 10 };
    const ROOMY: Disk = Disk { bytes: 100, free_bytes: 16 };

    fn names(store: &Store) -> BTreeSet<String> {
        store.list().into_iter().flat_map(|held| held.names).collect()
    }

    fn local<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.into_iter().map(|name| format!("midflight.local/{name}:v1")).collect()
    }

    #[test]
    fn what_nothing_runs_from_goes_when_the_disk_fills_the_longest_unused_first() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path()).unwrap();
        let [running, old, older, young] =
            ["running", "old", "older", "young"].map(|name| add(&store, &format!("{name}:v1"), name).digest);
        let (begin, minute) = (Timestamp::now(), SignedDuration::from_mins(1));
        let mut used = Used::default();
        used.see([older].into(), begin + minute);
        used.see([old].into(), begin + minute * 2);
        used.see([young, running.clone()].into(), begin + minute * 9);
        used.see([running.clone()].into(), begin + minute * 10);
        let now = begin + minute * 10;

        turn(&store, ROOMY, &used, now).unwrap();
        assert_eq!(
            names(&store),
            local(["running", "old", "older", "young"]),
            "below the threshold all stay"
        );
        turn(&store, FULL, &used, now).unwrap();
        assert_eq!(names(&store), local(["running", "young"]), "two are enough");
        assert!(!store.files(&Digest::of(b"old")).exists(), "its files are gone");
        turn(&store, FULL, &used, now).unwrap();
        assert_eq!(names(&store), local(["running", "young"]), "one that was just used stays");
        turn(&store, FULL, &used, now + minute * 5).unwrap();
        assert_eq!(names(&store), local(["running"]), "what runs stays, however full the disk is");
        assert!(store.files(&running).join("program").exists());
    }

    #[test]
    fn an_image_that_is_asked_for_while_it_is_to_go_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path()).unwrap();
        let digest = add(&store, "engine:v1", "one").digest;
        let decided = Timestamp::now();
        assert!(store.find(&"engine:v1".parse().unwrap()).is_some());
        assert!(!store.remove_unless_wanted_after(&digest, decided).unwrap());
        assert_eq!(names(&store), local(["engine"]));
        assert!(store.remove_unless_wanted_after(&digest, Timestamp::now()).unwrap());
        assert!(store.list().is_empty());
    }
}
