//! Workloads get the mount of a daemon, and get it again when the daemon was replaced.
//!
//! Invariant: a place shows the volume once, however often it is asked for or repaired, and
//! nothing that others have mounted is touched.

use std::{io, path::Path, time::Duration};

use midflight_plan::mount::Version;
use tonic::Status;

use super::{
    mounts::{self, Bound, Mounted, Mounts, Place},
    node::{Busy, NodeService, aside, failed},
    record::{Published, Record},
    staging::reported,
    volume::{Attributes, Crowd, VolumeId},
};

/// Said to kubelet, which tries again.
pub(super) const NO_ANSWER: &str = "the FUSE daemon does not answer";

/// What waiting for a daemon came to.
enum Met {
    /// The right one serves.
    Served {
        device: String,
    },
    /// One serves that was to be replaced.
    Outdated,
    /// One is there that gives no answer.
    Silent,
    Nobody,
}

/// Waits for the mount of a daemon; for one that says what it is, where that matters.
fn meet(mounts: &Mounts, record: &Record, patience: Duration) -> io::Result<Met> {
    let (attributes, given) = (&record.attributes, record.targets());
    let mut met = Met::Nobody;
    mounts::wait_until(patience, || {
        let device = match mounts.look(&attributes.mount)? {
            Place::Served { device } => device,
            Place::Dead => {
                mounts.clear(&attributes.mount)?;
                return Ok(false);
            }
            Place::Silent { .. } => {
                met = Met::Silent;
                return Ok(false);
            }
            Place::Plain => return Ok(false),
        };
        // Whoever shares it with others takes it as it is.
        let expects = match mounts.users(&device, &attributes.mount, &given)? {
            0 => record.expects.as_ref(),
            _ => None,
        };
        let running = expects.map(|_| reported(&attributes.metadata()));
        met = match (expects, running) {
            // Daemons of ours tell their image a moment after they mount; of others there may be nothing to wait for.
            (Some(expects), Some(running)) if running == Version::default() && expects.image.is_some() => {
                return Ok(false);
            }
            (Some(expects), Some(running)) if running.is_behind(expects) => Met::Outdated,
            _ => Met::Served { device },
        };
        Ok(true)
    })?;
    Ok(met)
}

/// What a place shows.
enum Shown {
    TheVolume,
    /// Something that is not ours.
    Others,
    /// Nothing: the daemon has ended meanwhile.
    Nothing,
    /// Nothing: the dataset has no folder of that name.
    NoFolder,
    /// Nothing: the daemon hangs.
    NoAnswer,
}

/// Shows the volume at a place.
fn show(
    mounts: &Mounts,
    attributes: &Attributes,
    device: &str,
    at: &Published,
    known: bool,
) -> io::Result<Shown> {
    match mounts.look(&at.target)? {
        Place::Served { device: there } if there == device => return Ok(Shown::TheVolume),
        Place::Served { .. } | Place::Silent { .. } if !known => return Ok(Shown::Others),
        // Of a daemon that has gone, or hangs: covered by the one that serves, once.
        Place::Served { .. } | Place::Silent { .. } | Place::Dead => mounts.uncover(&at.target)?,
        Place::Plain => {}
    }
    let mounted = Mounted { device: device.to_owned(), at: attributes.mount.clone() };
    match mounts.bind(&mounted, attributes.sub_path.as_deref(), &at.target, at.access)? {
        Bound::There => Ok(Shown::TheVolume),
        Bound::Gone => Ok(Shown::Nothing),
        Bound::NoFolder => Ok(Shown::NoFolder),
        Bound::Silent => Ok(Shown::NoAnswer),
    }
}

impl NodeService {
    pub(super) async fn publish(
        &self,
        volume: &VolumeId,
        mut record: Record,
        at: Published,
        crowd: Crowd,
    ) -> Result<(), Status> {
        let before = record.published.iter().find(|published| published.target == at.target);
        if before.is_some_and(|before| before.access != at.access) {
            return Err(Status::already_exists("the volume is there with other rights to write"));
        }
        if crowd == Crowd::One && record.published.iter().any(|published| published.target != at.target) {
            return Err(Status::failed_precondition("another workload of this node has the volume"));
        }
        let known = before.is_some();
        let daemon = record.attributes.daemon();
        if self.records.is_leaving(&daemon).map_err(failed("read the note"))? {
            return Err(Status::unavailable("the daemon was sent away; stage the volume again"));
        }
        let (mounts, patience, looked_at) = (self.mounts.clone(), self.config.patience, record.clone());
        let meeting = move || meet(&mounts, &looked_at, patience);
        let met = aside("wait for the daemon", meeting).await?;
        let device = match met {
            Met::Served { device } => device,
            Met::Silent => return Err(Status::unavailable(NO_ANSWER)),
            Met::Nobody => return Err(Status::unavailable("the FUSE daemon has not mounted yet")),
            Met::Outdated => {
                self.stage(volume, &record.staged, record.attributes).await?;
                return Err(Status::unavailable("an outdated FUSE daemon is being replaced"));
            }
        };
        if !known {
            record.published.push(at.clone());
            self.write(volume, &record)?;
        }
        let (mounts, attributes, showing) = (self.mounts.clone(), record.attributes.clone(), at.clone());
        let shown = move || show(&mounts, &attributes, &device, &showing, known);
        let shown = aside("bind the mount", shown).await?;
        let refused = match shown {
            Shown::TheVolume => return Ok(()),
            Shown::Nothing => return Err(Status::unavailable("the FUSE daemon has just ended")),
            Shown::NoAnswer => return Err(Status::unavailable(NO_ANSWER)),
            Shown::Others => Status::failed_precondition("something else is mounted at target_path"),
            Shown::NoFolder => Status::not_found("the dataset has no folder fluid_sub_path"),
        };
        // A workload that has it already goes on waiting for it there.
        if !known {
            record.published.retain(|published| *published != at);
            self.write(volume, &record)?;
        }
        Err(refused)
    }

    pub(super) async fn unpublish(&self, volume: &VolumeId, target: &Path) -> Result<(), Status> {
        let record = self.record(volume);
        let names_it = |record: &Record| record.published.iter().any(|published| published.target == target);
        let is_named = matches!(&record, Ok(Some(record)) if names_it(record));
        let (mounts, at) = (self.mounts.clone(), target.to_owned());
        let removed = aside("remove the bind mount", move || {
            if is_named {
                // Of a process that died while it made the mount ready.
                mounts.remove(&mounts::beside(&at))?;
            } else if mounts.is_of_others(&at)? {
                return Ok(false);
            }
            mounts.remove(&at).map(|()| true)
        });
        if !removed.await? {
            return Err(Status::failed_precondition("something else is mounted at target_path"));
        }
        if let Some(mut record) = record? {
            let before = record.published.len();
            record.published.retain(|published| published.target != target);
            if record.published.len() < before {
                self.write(volume, &record)?;
            }
        }
        Ok(())
    }

    /// Gives workloads the mount of the daemon that serves now, where theirs is of one before.
    pub(super) fn repair(&self) -> io::Result<()> {
        for volume in self.records.volumes()? {
            // Whoever works on it sees to it, or the next look does.
            let Ok(_turn) = self.turn(Busy::Volume(volume.clone())) else { continue };
            let repaired = self.records.get(&volume).and_then(|record| match record {
                Some(record) => repair(&self.mounts, &volume, &record),
                None => Ok(()),
            });
            self.tell_trouble(&volume, repaired);
        }
        Ok(())
    }
}

/// Gives workloads of one volume the mount of the daemon that serves now, each that can have it.
fn repair(
    mounts: &Mounts,
    volume: &VolumeId,
    Record { attributes, published, .. }: &Record,
) -> io::Result<()> {
    let table = mounts.table()?;
    let top = |at: &Path| {
        let listed = mounts.listed(at);
        table.iter().rfind(|mounted| mounted.at == listed).map(|mounted| &mounted.device)
    };
    let Some(device) = top(&attributes.mount) else { return Ok(()) };
    // Also one that shows nothing: a repair that was interrupted.
    let is_old = |at: &&Published| top(&at.target) != Some(device);
    let old: Vec<&Published> = published.iter().filter(is_old).collect();
    if old.is_empty() || !matches!(mounts.look(&attributes.mount)?, Place::Served { .. }) {
        return Ok(());
    }
    let mut repaired = Ok(());
    for at in old {
        match show(mounts, attributes, device, at, true) {
            Ok(Shown::TheVolume) => {
                tracing::info!(volume = volume.as_str(), target = %at.target.display(), "bound to the new daemon");
            }
            // The next look finds the daemon that comes.
            Ok(Shown::Nothing | Shown::NoAnswer | Shown::Others | Shown::NoFolder) => {}
            Err(error) => repaired = Err(error),
        }
    }
    repaired
}
