//! Daemons come for the first workload of a node and go with the last, if they are outdated.
//!
//! Invariant: of one daemon, one stage or unstage is carried out at a time, and no label is given
//! while a daemon that was sent away is still there.

use std::{fs, path::Path};

use jiff::Timestamp;
use midflight_plan::mount::{
    Arrival, Departure, Policy, Rest, Seen, Version, arrive, depart, meeting::Refused, rest,
};
use tonic::Status;

use super::{
    cluster::{Label, Wish},
    mounts::{self, Place},
    node::{Busy, NodeService, aside, failed},
    record::Record,
    volume::{Attributes, Daemon, VolumeId},
};

/// What a daemon's pod has written down of itself.
pub(super) fn reported(metadata: &Path) -> Version {
    let read = |name: &str| fs::read_to_string(metadata.join(name)).ok();
    Version::reported(read(IMAGE).as_deref(), read(LABELS).as_deref())
}

const IMAGE: &str = "image-version";
const LABELS: &str = "labels";

/// What a daemon that has gone wrote is not true of the next one.
fn forget_report(metadata: &Path) {
    for name in [IMAGE, LABELS] {
        // Not there; or shown by the pod that writes it, and gone with that.
        let _ = fs::remove_file(metadata.join(name));
    }
}

impl NodeService {
    /// Looks at a volume's mount; one that nobody serves is removed.
    async fn observe(
        &self,
        volume: Option<&VolumeId>,
        attributes: &Attributes,
        wish: &Wish,
    ) -> Result<Seen, Status> {
        let daemon = attributes.daemon();
        let leaving = self.records.is_leaving(&daemon).map_err(failed("read the note"))?;
        let neighbours = self.records.neighbours(volume, &daemon).map_err(failed("read the records"))?;
        let record = volume.map(|volume| self.record(volume)).transpose()?.flatten();
        let given = record.map(|record| record.targets()).unwrap_or_default();
        let (mounts, looked_at) = (self.mounts.clone(), attributes.clone());
        let (running, users) = aside("look at the mount", move || {
            let device = match mounts.look(&looked_at.mount)? {
                // One that hangs or fails is there, too: who uses it and what it is, others tell.
                Place::Served { device } | Place::Silent { device } | Place::Sick { device, .. } => device,
                Place::Dead => {
                    mounts.clear(&looked_at.mount)?;
                    return Ok((None, 0));
                }
                Place::Plain => return Ok((None, 0)),
            };
            Ok((Some(reported(&looked_at.metadata())), mounts.users(&device, &looked_at.mount, &given)?))
        })
        .await?;
        let refused = self.refused(&daemon, running.is_some())?;
        let (policy, wanted) = (wish.policy, wish.version.clone());
        let (can_follow, now) = (true, Timestamp::now());
        let seen = Seen { policy, wanted, running, users, neighbours, leaving, can_follow, refused, now };
        Ok(self.with_successor(seen, &daemon, wish.about.as_ref()).await)
    }

    /// The daemon that was refused last, and whether it has gone: noted where nothing is mounted.
    fn refused(&self, daemon: &Daemon, is_there: bool) -> Result<Option<Refused>, Status> {
        let mut noted = self.records.refused(daemon).map_err(failed("read the note"))?;
        if let Some(refused) = noted.as_mut().filter(|refused| !is_there && !refused.has_gone) {
            refused.has_gone = true;
            self.records.refuses(daemon, refused).map_err(failed("write the note"))?;
        }
        Ok(noted)
    }

    /// Notes that the daemon goes, then takes its label. As long as the daemon is there the label is taken again and again: a
    /// write that was given up as lost may have brought it back, and the daemon would stay for ever.
    async fn send_away(&self, attributes: &Attributes) -> Result<(), Status> {
        let daemon = attributes.daemon();
        let goes_already = self.records.is_leaving(&daemon).map_err(failed("read the note"))?;
        if !goes_already {
            self.records.leaves(&daemon).map_err(failed("write the note"))?;
        }
        self.cluster.label(&attributes.label, Label::Absent).await?;
        if !goes_already {
            tracing::info!(daemon = daemon.as_str(), "the daemon is idle and not what is wanted: sent away");
        }
        Ok(())
    }

    /// Waits until a daemon that was sent away has gone.
    async fn await_end(&self, attributes: &Attributes) -> Result<(), Status> {
        let (mounts, mount, patience) = (self.mounts.clone(), attributes.mount.clone(), self.config.patience);
        let gone = aside("wait for the end of the old daemon", move || {
            mounts::wait_until(patience, || Ok(matches!(mounts.look(&mount)?, Place::Plain | Place::Dead)))
        })
        .await?;
        if gone { Ok(()) } else { Err(Status::unavailable("the daemon that was sent away is still there")) }
    }

    pub(super) async fn stage(
        &self,
        volume: &VolumeId,
        staging: &Path,
        attributes: Attributes,
    ) -> Result<(), Status> {
        let daemon = attributes.daemon();
        let _turn = self.call(Busy::Daemon(daemon.clone())).await?;
        let wish = self.cluster.wish(&attributes).await?;
        if wish.policy == Policy::Remove {
            return Err(Status::not_found(format!("there is no dataset {}", daemon.as_str())));
        }
        let before = self.record(volume)?;
        let seen = self.observe(Some(volume), &attributes, &wish).await?;
        match arrive(&seen) {
            Arrival::Label => {}
            // Nobody is labelled by a call that has taken the label: the next call does that.
            Arrival::SendAway | Arrival::AwaitEnd => {
                self.send_away(&attributes).await?;
                self.await_end(&attributes).await?;
                return Err(Status::unavailable(
                    "the daemon that was sent away has gone; the next one comes",
                ));
            }
        }
        if self.records.is_leaving(&daemon).map_err(failed("read the note"))? {
            forget_report(&attributes.metadata());
            self.records.has_left(&daemon).map_err(failed("remove the note"))?;
        }
        // The first of a daemon may insist on the version that is wanted, if that can come; the others take what is there.
        let is_first = seen.users == 0 && seen.neighbours == 0 && wish.policy == Policy::ReplaceIdle;
        let record = Record {
            expects: (is_first && seen.can_follow).then_some(wish.version),
            staged: staging.to_owned(),
            published: before.map(|before| before.published).unwrap_or_default(),
            attributes,
        };
        self.records.rests_no_more(&daemon).map_err(failed("remove the note"))?;
        // The label comes last: a stage that fails has left none behind, unless its answer was lost.
        self.write(volume, &record)?;
        self.cluster.label(&record.attributes.label, Label::Present).await
    }

    pub(super) async fn unstage(&self, volume: &VolumeId, record: &Record) -> Result<(), Status> {
        let _turn = self.call(Busy::Daemon(record.attributes.daemon())).await?;
        let wish = self.cluster.wish(&record.attributes).await?;
        let seen = self.observe(Some(volume), &record.attributes, &wish).await?;
        match depart(&seen).map_err(|in_use| Status::failed_precondition(in_use.to_string()))? {
            Departure::Keep => {}
            Departure::SendAway => self.send_away(&record.attributes).await?,
        }
        if seen.neighbours == 0 {
            self.records.rests(&record.attributes).map_err(failed("write the note"))?;
        }
        self.records.remove(volume).map_err(failed("remove the record"))
    }

    /// Looks at the daemons that nobody uses: what is wanted may have changed since the last workload went.
    pub(super) async fn look_at_resting(&self) -> Result<(), Status> {
        self.records.forget_refused(Timestamp::now()).map_err(failed("remove the notes"))?;
        for attributes in self.records.resting().map_err(failed("read the notes"))? {
            let daemon = attributes.daemon();
            // Whoever works on it sees to it, or the next look does.
            let Ok(_turn) = self.turn(Busy::Daemon(daemon.clone())) else { continue };
            if let Err(status) = self.look_at_one(&daemon, &attributes).await {
                let error = status.message();
                tracing::warn!(daemon = daemon.as_str(), error, "an idle daemon cannot be looked at");
            }
        }
        Ok(())
    }

    async fn look_at_one(&self, daemon: &Daemon, attributes: &Attributes) -> Result<(), Status> {
        let wish = self.cluster.wish(attributes).await?;
        let seen = self.observe(None, attributes, &wish).await?;
        match rest(&seen) {
            Rest::Keep => Ok(()),
            Rest::SendAway => self.send_away(attributes).await,
            Rest::Forget => {
                forget_report(&attributes.metadata());
                // The pod of the next one, if one comes, has it shown again.
                if let Some(folder) = attributes.mount.parent() {
                    self.mounts.unshare(folder).map_err(failed("take back the folder of the mount"))?;
                }
                self.records.has_left(daemon).map_err(failed("remove the note"))?;
                self.records.rests_no_more(daemon).map_err(failed("remove the note"))
            }
        }
    }
}
