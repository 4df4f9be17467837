//! Workloads get the mount of a daemon, and get it again when the daemon was replaced.
//!
//! Invariant: a place shows the volume once, however often it is asked for or repaired, and
//! nothing that others have mounted is touched.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use midflight_plan::mount::meeting::{Anyway, Came, Meeting, Refused, Waited, meet};
use rustix::io::Errno;
use tonic::Status;

use super::{
    bound::{self, Bound},
    mounts::{self, Mounted, Mounts, Place},
    node::{Busy, NodeService, aside, failed},
    record::{Published, Record},
    staging::reported,
    successor::{News, tell},
    volume::{Attributes, Crowd, VolumeId},
};

/// Reason of an event: workloads have a daemon that may not be what is wanted.
const FUSE_NOT_AS_WANTED: &str = "FuseNotAsWanted";

/// Said to kubelet, which tries again.
pub(super) const NO_ANSWER: &str = "the FUSE daemon does not answer";

/// The same of one whose folder cannot be read.
pub(super) fn sick(errno: Errno) -> String {
    format!("the FUSE daemon answers with an error: {errno}")
}

/// What waiting for a daemon came to.
enum Met {
    /// One serves that is taken as it is: others use it, or nothing is insisted on.
    Served {
        device: String,
    },
    /// One serves, and it is what is insisted on.
    Wanted {
        device: String,
    },
    /// One serves that may not be the right one, and no other would come.
    Other {
        device: String,
        why: Anyway,
    },
    /// One serves that was to be replaced.
    Outdated(Refused),
    /// One serves that has not said yet what it is.
    Untold,
    /// One is there that gives no answer.
    Silent,
    /// One is there that answers with an error.
    Sick(Errno),
    Nobody,
}

/// Waits for the mount of a daemon; for one that says what it is, where that matters. The one that was refused last is known.
fn await_daemon(
    mounts: &Mounts,
    record: &Record,
    refused: Option<&Refused>,
    patience: Duration,
) -> io::Result<Met> {
    let (attributes, given) = (&record.attributes, record.targets());
    let mut met = Met::Nobody;
    let mut served_since = None;
    mounts::wait_until(patience, || {
        // As it was seen last.
        met = Met::Nobody;
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
            Place::Sick { errno, .. } => {
                met = Met::Sick(errno);
                return Ok(false);
            }
            Place::Plain => return Ok(false),
        };
        // Whoever shares it with others takes it as it is.
        let users = mounts.users(&device, &attributes.mount, &given)?;
        let Some(expects) = record.expects.as_ref().filter(|_| users == 0) else {
            met = Met::Served { device };
            return Ok(true);
        };
        let since = *served_since.get_or_insert_with(Instant::now);
        // One that came late is waited for by the next call.
        let waited = if since.elapsed() >= patience / 2 { Waited::Enough } else { Waited::NotLong };
        let (version, now) = (reported(&attributes.metadata()), Timestamp::now());
        met = match meet(&Came { expects, reports: &version, refused, waited, now }) {
            Meeting::Await => Met::Untold,
            Meeting::Take => Met::Wanted { device },
            Meeting::Refuse => {
                Met::Outdated(Refused { wish: expects.clone(), version, has_gone: false, at: now })
            }
            Meeting::TakeAnyway(why) => Met::Other { device, why },
        };
        Ok(!matches!(met, Met::Untold))
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
    /// Nothing: the daemon answers with an error.
    Sick(Errno),
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
        Place::Served { .. } | Place::Silent { .. } | Place::Sick { .. } if !known => {
            return Ok(Shown::Others);
        }
        // Of a daemon that has gone, hangs or fails: covered by the one that serves, once.
        Place::Served { .. } | Place::Silent { .. } | Place::Sick { .. } | Place::Dead => {
            mounts.uncover(&at.target)?;
        }
        Place::Plain => {}
    }
    let mounted = Mounted { device: device.to_owned(), at: attributes.mount.clone() };
    match mounts.bind(&mounted, attributes.sub_path.as_deref(), &at.target, at.access)? {
        Bound::There => Ok(Shown::TheVolume),
        Bound::Gone => Ok(Shown::Nothing),
        Bound::NoFolder => Ok(Shown::NoFolder),
        Bound::Silent => Ok(Shown::NoAnswer),
        Bound::Sick(errno) => Ok(Shown::Sick(errno)),
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
        // Kubelet may not stage again what was staged once.
        if self.records.is_leaving(&daemon).map_err(failed("read the note"))? {
            self.stage(volume, &record.staged, record.attributes).await?;
            return Err(Status::unavailable("the daemon that was sent away has gone; the next one comes"));
        }
        let refused = self.records.refused(&daemon).map_err(failed("read the note"))?;
        let (mounts, patience, looked_at) = (self.mounts.clone(), self.config.patience, record.clone());
        let met = aside("wait for the daemon", move || {
            await_daemon(&mounts, &looked_at, refused.as_ref(), patience)
        })
        .await?;
        let device = match met {
            Met::Served { device } => device,
            Met::Wanted { device } => {
                self.new_trouble_of(&daemon, FUSE_NOT_AS_WANTED, None);
                device
            }
            Met::Other { device, why } => {
                self.tell_anyway(&record.attributes, &why).await;
                device
            }
            Met::Untold => {
                return Err(Status::unavailable("the FUSE daemon has not said yet what it is"));
            }
            Met::Silent => return Err(Status::unavailable(NO_ANSWER)),
            Met::Sick(errno) => return Err(Status::unavailable(sick(errno))),
            Met::Nobody => return Err(Status::unavailable("the FUSE daemon has not mounted yet")),
            Met::Outdated(refused) => {
                // Known to whoever goes on after a crash, and to every volume of the daemon.
                self.records.refuses(&daemon, &refused).map_err(failed("write the note"))?;
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
            Shown::Sick(errno) => return Err(Status::unavailable(sick(errno))),
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

    /// Tells people, once, that workloads have a daemon that may not be what is wanted.
    async fn tell_anyway(&self, attributes: &Attributes, why: &Anyway) {
        let note = format!(
            "workloads on {} use a FUSE daemon that may not be what is wanted: {why}",
            self.config.node
        );
        let daemon = attributes.daemon();
        let Some(note) = self.new_trouble_of(&daemon, FUSE_NOT_AS_WANTED, Some(note)) else { return };
        tracing::warn!(daemon = daemon.as_str(), note);
        // Whom to tell is all that is asked for.
        if let Ok(wish) = self.cluster.wish(attributes).await {
            let news = News { reason: FUSE_NOT_AS_WANTED, action: "Bind", note };
            tell(self.cluster.client(), &self.config.node, wish.about.as_ref(), news).await;
        } else {
            // By the next one that is given it.
            self.new_trouble_of(&daemon, FUSE_NOT_AS_WANTED, None);
        }
    }

    pub(super) async fn unpublish(&self, volume: &VolumeId, target: &Path) -> Result<(), Status> {
        let record = self.record(volume);
        let names_it = |record: &Record| record.published.iter().any(|published| published.target == target);
        let is_named = matches!(&record, Ok(Some(record)) if names_it(record));
        let (mounts, at) = (self.mounts.clone(), target.to_owned());
        let removed = aside("remove the bind mount", move || {
            if is_named {
                // Of a process that died while it made the mount ready.
                mounts.remove(&bound::beside(&at))?;
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
            Ok(Shown::Nothing | Shown::NoAnswer | Shown::Sick(_) | Shown::Others | Shown::NoFolder) => {}
            Err(error) => repaired = Err(error),
        }
    }
    repaired
}
