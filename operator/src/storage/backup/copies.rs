//! Backups: each an object that stands for one in a backup target.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{
    Backup, BackupState, BackupTarget, FINALIZER, NAMESPACE, Node, Snapshot, Volume,
};
use midflight_plan::storage::backup::{
    CopyAction as Action, CopyDecision as Decision, CopySeen as Observed, CopyWait as Wait, DEFAULT_TARGET,
    Folder, TARGET, VOLUME, decide_copy as decide, newest, was_seen_in,
};

use super::jobs::Jobs;
use super::reach::Reach;
use crate::controller::{
    Controller, Index, Key, News, Next, Objects, Operator, Stale, Tone, TurnError, Wake,
};
use crate::storage::engines::{Engines, Seat};
use crate::storage::orders::{Orders, proto};

/// How soon a backup is looked at that waits for something no watch tells of.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub(crate) struct Backups {
    backups: Objects<Backup>,
    backups_of: Index<Backup>,
    backups_from: Index<Backup>,
    backups_in: Index<Backup>,
    targets: Objects<BackupTarget>,
    volumes: Objects<Volume>,
    snapshots: Objects<Snapshot>,
    nodes: Objects<Node>,
    engines: Engines,
    reach: Reach,
    jobs: Jobs<String>,
}

pub(crate) struct Look {
    backup: Arc<Backup>,
    volume: Option<Arc<Volume>>,
    seat: Option<Seat>,
    observed: Observed,
}

fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name)
}

fn state(backup: &Backup) -> BackupState {
    backup.status.as_ref().map(|status| status.state).unwrap_or_default()
}

impl Backups {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Backups {
        let backups: Objects<Backup> = operator.objects();
        Backups {
            backups_of: backups.index(|backup| backup.labels().get(VOLUME).cloned().into_iter().collect()),
            backups_from: backups.index(|backup| match state(backup) {
                BackupState::Completed => Vec::new(),
                _ => vec![backup.spec.snapshot_name.to_string()],
            }),
            backups_in: backups.index(|backup| backup.labels().get(TARGET).cloned().into_iter().collect()),
            backups,
            targets: operator.objects(),
            volumes: operator.objects(),
            snapshots: operator.objects(),
            nodes: operator.objects(),
            engines: Engines::new(operator, Arc::clone(&orders)),
            reach: Reach::new(operator, orders),
            jobs: Jobs::default(),
        }
    }

    /// What is known without asking anybody.
    fn known(&self, backup: &Arc<Backup>) -> Result<Observed, Stale> {
        let snapshot = match backup.spec.snapshot_name.as_str() {
            "" => None,
            name => self.snapshots.get(&key(name))?,
        };
        let first = |all: [Option<String>; 3]| all.into_iter().flatten().find(|text| !text.is_empty());
        let status = backup.status.clone().unwrap_or_default();
        let volume_name = first([
            backup.labels().get(VOLUME).cloned(),
            snapshot.as_ref().map(|snapshot| snapshot.spec.volume.to_string()),
            Some(status.volume_name.to_string()),
        ])
        .unwrap_or_default();
        let volume = self.volumes.get(&key(&volume_name))?;
        let target_name = first([
            backup.labels().get(TARGET).cloned(),
            volume.as_ref().map(|volume| volume.spec.backup_target_name.to_string()),
            Some(DEFAULT_TARGET.to_owned()),
        ])
        .unwrap_or_default();
        let target = self.targets.get(&key(&target_name))?;
        let is_settled = matches!(status.state, BackupState::Completed | BackupState::Error);
        let is_target_used = !is_settled && self.is_used(&target_name, target.as_deref())?;
        Ok(Observed {
            now: Timestamp::now(),
            is_upgrading: self.is_upgrading(volume.as_deref())?,
            backup: (**backup).clone(),
            volume_name,
            volume: volume.as_deref().cloned(),
            snapshot: snapshot.as_deref().cloned(),
            target_name,
            target: target.as_deref().cloned(),
            is_target_used,
            engine: None,
            work: self.jobs.of(&Key::of(&**backup)).1,
            found: None,
        })
    }

    /// Whether a target was seen to have backups in its folder.
    fn is_used(&self, name: &str, target: Option<&BackupTarget>) -> Result<bool, Stale> {
        let url = target.map(|target| target.spec.backup_target_url.to_string()).unwrap_or_default();
        let Ok(folder) = Folder::parse(&url) else { return Ok(false) };
        Ok(self.backups.by(self.backups_in, name)?.iter().any(|backup| was_seen_in(backup, &folder)))
    }

    fn is_upgrading(&self, volume: Option<&Volume>) -> Result<bool, Stale> {
        let Some(status) = volume.and_then(|volume| volume.status.as_ref()) else { return Ok(false) };
        let node = self.nodes.get(&key(status.current_engine_node_id.as_str()))?;
        Ok(node.is_some_and(|node| node.spec.data_engine_upgrade_requested))
    }

    /// Lets the volume say which of its backups is the newest.
    async fn tell_volume(&self, seen: &mut Look) -> Result<(), TurnError> {
        let Some(volume) = &mut seen.volume else { return Ok(()) };
        let ours = seen.backup.name_any();
        let mut all = self.backups.by(self.backups_of, &seen.observed.volume_name)?;
        all.retain(|backup| backup.name_any() != ours);
        all.push(Arc::clone(&seen.backup));
        let last = newest(all.iter().map(|backup| &**backup));
        let at = last.and_then(|backup| Some(backup.status.as_ref()?.backup_created_at.clone()));
        let name = last.map(ResourceExt::name_any).unwrap_or_default();
        let edit = |volume: &mut Volume| {
            let status = volume.status.get_or_insert_default();
            (status.last_backup, status.last_backup_at) = (name.into(), at.unwrap_or_default());
        };
        Ok(self.volumes.report(volume, edit).await?)
    }

    fn copy(&self, seen: &Look, folder: &Folder, existing: bool) {
        let Some(seat) = &seen.seat else { return };
        let backup = seen.backup.name_any();
        let order = proto::CreateBackupRequest {
            engine: Some(seat.engine.clone()),
            target: folder.path().to_owned(),
            snapshot: seen.backup.spec.snapshot_name.to_string(),
            backup: backup.clone(),
            size: seen.observed.size_then(),
            existing,
        };
        let mut manager = seat.manager.clone();
        self.jobs.follow(&Key::of(&*seen.backup), backup, async move { manager.create_backup(order).await });
    }

    async fn release(&self, seen: &mut Look) -> Result<Next, TurnError> {
        let edit = |backup: &mut Backup| backup.finalizers_mut().retain(|one| one != FINALIZER);
        self.backups.change(&mut seen.backup, edit).await?;
        self.jobs.forget(&Key::of(&*seen.backup));
        Ok(Next::OnChange)
    }
}

impl Controller for Backups {
    const NAME: &'static str = "backup";
    type Key = Key;
    type Seen = Look;
    type Decision = Decision;

    fn watch(&self, wake: &Wake<Key>) {
        self.jobs.wakes(wake);
        wake.on(&self.backups, |backup| vec![Key::of(backup)]);
        let (backups, from) = (self.backups.clone(), self.backups_from);
        wake.on(&self.snapshots, move |snapshot| {
            // One of our own writes that is not shown yet wakes its backup itself.
            let all = backups.by(from, &snapshot.name_any()).unwrap_or_default();
            all.iter().map(|backup| Key::of(&**backup)).collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(backup) = self.backups.get(key)? else { return Ok(None) };
        let mut observed = self.known(&backup)?;
        let volume = self.volumes.get(&self::key(&observed.volume_name))?;
        let is_settled = matches!(state(&backup), BackupState::Completed | BackupState::Error);
        let is_deleting = backup.metadata.deletion_timestamp.is_some();
        let seat = match is_settled || (is_deleting && !observed.is_unheard_of()) {
            true => None,
            false => self.engines.of(&observed.volume_name)?,
        };
        if let Some(seat) = &seat {
            observed.engine = seat.serving().await;
        }
        if observed.wants_to_know()
            && let Ok(folder) = observed.folder()
        {
            // One that names no snapshot was found there.
            let needed = backup.spec.snapshot_name.is_empty();
            observed.found = Some(self.reach.find(&folder, needed, &observed.volume_name, &key.name).await?);
        }
        Ok(Some(Look { backup, volume, seat, observed }))
    }

    fn decide(seen: &Look) -> Decision {
        decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let (before, status) = (state(&seen.backup), decision.status.clone());
        let now = status.state;
        self.backups.report(&mut seen.backup, |backup| backup.status = Some(status)).await?;
        let told = match now {
            _ if now == before => None,
            BackupState::Completed => {
                Some((Tone::Normal, "BackupCompleted", decision.status.url.to_string()))
            }
            BackupState::Error => Some((Tone::Warning, "BackupFailed", decision.status.error.to_string())),
            BackupState::New
            | BackupState::Pending
            | BackupState::InProgress
            | BackupState::Unknown
            | BackupState::Deleting
            | BackupState::Unrecognised => None,
        };
        if let Some((tone, reason, note)) = told {
            self.backups.tell(&seen.backup, &News { by: Self::NAME, tone, reason, note: &note }).await;
        }
        if matches!(now, BackupState::Completed | BackupState::Deleting) {
            self.tell_volume(seen).await?;
        }
        Ok(())
    }

    async fn act(&self, mut seen: Look, decision: Decision) -> Result<Next, TurnError> {
        match decision.next {
            Ok(Action::Protect) => {
                let labels = [(VOLUME, &seen.observed.volume_name), (TARGET, &seen.observed.target_name)];
                let edit = |backup: &mut Backup| {
                    backup.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                    backup.finalizers_mut().push(FINALIZER.into());
                    let labels = labels.map(|(name, value)| (name.to_owned(), value.clone()));
                    backup.labels_mut().extend(labels);
                };
                self.backups.change(&mut seen.backup, edit).await?;
                Ok(Next::OnChange)
            }
            Ok(Action::Copy { folder, existing }) => {
                self.copy(&seen, &folder, existing);
                Ok(Next::After(LOOK_AGAIN))
            }
            Ok(Action::Remove { folder, existing }) => {
                let name = seen.backup.name_any();
                match self.reach.remove(&folder, existing, &seen.observed.volume_name, &name).await? {
                    Ok(()) => self.release(&mut seen).await,
                    Err(why) => {
                        let edit =
                            |backup: &mut Backup| backup.status.get_or_insert_default().error = why.into();
                        self.backups.report(&mut seen.backup, edit).await?;
                        Ok(Next::After(LOOK_AGAIN))
                    }
                }
            }
            Ok(Action::Release) => self.release(&mut seen).await,
            Err(Wait::Content) => {
                self.jobs.forget(&Key::of(&*seen.backup));
                Ok(Next::OnChange)
            }
            Err(Wait::GivenUp(_) | Wait::NotThere | Wait::OtherThere | Wait::Lost(_)) => Ok(Next::OnChange),
            Err(Wait::Failed { again, .. }) => {
                Ok(Next::After(seen.observed.now.duration_until(again).try_into().unwrap_or_default()))
            }
            Err(
                Wait::NoVolumeName
                | Wait::NoTarget(_)
                | Wait::BadTarget(_)
                | Wait::Unreachable(_)
                | Wait::NoVolume(_)
                | Wait::Standby(_)
                | Wait::Detached(_)
                | Wait::Silent(_)
                | Wait::NoSnapshot { .. }
                | Wait::NotTaken(_)
                | Wait::Upgrading
                | Wait::Unseen
                | Wait::Copying { .. },
            ) => Ok(Next::After(LOOK_AGAIN)),
        }
    }
}
