//! Volumes that come from a backup: each is brought to it, and a standby to every newer one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{Backup, Condition, ConditionStatus, Engine, NAMESPACE, RestoreStatus, Volume};
use midflight_plan::storage::backup::{
    Place, RestoreAction as Action, RestoreDecision as Decision, RestoreOrder as Order,
    RestoreSeen as Observed, RestoreWait as Wait, decide_restore as decide, marker,
};
use midflight_plan::storage::volume::engine_name;

use super::jobs::Jobs;
use crate::controller::{Controller, Index, Key, News, Next, Objects, Operator, Tone, TurnError, Wake};
use crate::storage::engines::{Engines, Seat};
use crate::storage::orders::{Orders, proto};

/// How soon a volume is looked at that waits for something no watch tells of.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Whether a volume is being restored, in upstream's words.
const RESTORE: &str = "Restore";

pub(crate) struct Restores {
    volumes: Objects<Volume>,
    volumes_from: Index<Volume>,
    backups: Objects<Backup>,
    backups_at: Index<Backup>,
    objects: Objects<Engine>,
    engines: Engines,
    jobs: Jobs<Order>,
}

pub(crate) struct Look {
    volume: Arc<Volume>,
    engine: Option<Arc<Engine>>,
    seat: Option<Seat>,
    observed: Observed,
}

/// All backups of one volume in one folder have the same shelf.
fn shelf(url: &str) -> Option<String> {
    let place = Place::parse(url).ok()?;
    Some(format!("{}/{}", place.folder, place.volume))
}

fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name)
}

impl Restores {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Restores {
        let volumes: Objects<Volume> = operator.objects();
        let backups: Objects<Backup> = operator.objects();
        Restores {
            volumes_from: volumes
                .index(|volume| shelf(volume.spec.from_backup.as_str()).into_iter().collect()),
            volumes,
            backups_at: backups.index(|backup| {
                let url = backup.status.as_ref().map(|status| status.url.to_string());
                url.as_deref().and_then(shelf).into_iter().collect()
            }),
            backups,
            objects: operator.objects(),
            engines: Engines::new(operator, orders),
            jobs: Jobs::default(),
        }
    }

    async fn write_engine(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let Some(engine) = &mut seen.engine else { return Ok(()) };
        let place = Place::parse(seen.volume.spec.from_backup.as_str()).ok();
        self.objects
            .change(engine, |engine| {
                engine.spec.requested_backup_restore = decision.wanted.as_str().into();
                let volume = place.as_ref().map(|place| place.volume.as_str()).unwrap_or_default();
                engine.spec.backup_volume = volume.into();
            })
            .await?;
        let state = match &decision.next {
            Err(Wait::Content) => "complete",
            Err(Wait::Failed { .. } | Wait::NotReverted { .. } | Wait::Bad(_) | Wait::NoBackup(_)) => "error",
            Ok(_)
            | Err(
                Wait::Restoring { .. } | Wait::NoEngine | Wait::Grows(_) | Wait::Written | Wait::Reverting(_),
            ) => "incomplete",
        };
        let current = if decision.required { decision.wanted.as_str() } else { "" };
        let restore = RestoreStatus {
            is_restoring: matches!(decision.next, Err(Wait::Restoring { .. })),
            progress: decision.percent,
            state: state.into(),
            error: decision.error.clone(),
            last_restored: decision.held.as_str().into(),
            current_restoring_backup: current.into(),
            backup_url: seen.volume.spec.from_backup.clone(),
        };
        self.objects
            .report(engine, |engine| {
                let name = engine.name_any();
                let status = engine.status.get_or_insert_default();
                if !decision.held.is_empty() {
                    status.last_restored_backup = decision.held.as_str().into();
                }
                status.restore_status = BTreeMap::from([(name, restore)]);
            })
            .await?;
        Ok(())
    }

    async fn write_volume(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let before = seen.volume.status.clone().unwrap_or_default();
        let now = seen.observed.now.to_string();
        let (holds, reason, message) = match &decision.next {
            Err(Wait::Content) => (ConditionStatus::False, "", String::new()),
            Err(Wait::Failed { .. } | Wait::NotReverted { .. } | Wait::Bad(_) | Wait::NoBackup(_)) => {
                (ConditionStatus::False, "RestoreFailure", decision.error.to_string())
            }
            Err(wait) => (ConditionStatus::True, "RestoreInProgress", wait.to_string()),
            Ok(_) => (ConditionStatus::True, "RestoreInProgress", format!("backup {}", decision.wanted)),
        };
        self.volumes
            .report(&mut seen.volume, |volume| {
                let status = volume.status.get_or_insert_default();
                status.is_standby = decision.is_standby;
                status.restore_required = decision.required;
                status.restore_initiated = decision.initiated;
                status.conditions.set(Condition {
                    kind: RESTORE.into(),
                    status: holds,
                    reason: reason.into(),
                    message: message.into(),
                    last_transition_time: now.into(),
                    ..Condition::default()
                });
            })
            .await?;
        let news =
            |reason, note| News { by: <Restores as Controller>::NAME, tone: Tone::Normal, reason, note };
        let note = format!("it holds backup {}", decision.held);
        if before.is_standby && !decision.is_standby {
            self.volumes.tell(&seen.volume, &news("Activated", &note)).await;
        } else if before.restore_required && !decision.required {
            self.volumes.tell(&seen.volume, &news("Restored", &note)).await;
        }
        Ok(())
    }

    fn restore(&self, seen: &Look, from: &Place) {
        let Some(seat) = &seen.seat else { return };
        let order = proto::RestoreBackupRequest {
            engine: Some(seat.engine.clone()),
            target: from.folder.path().to_owned(),
            volume: from.volume.clone(),
            backup: from.backup.clone(),
        };
        let mut manager = seat.manager.clone();
        let work = async move { manager.restore_backup(order).await };
        self.jobs.follow(&Key::of(&*seen.volume), Order::Restore(from.backup.clone()), work);
    }

    fn revert(&self, seen: &Look, to: String, number: u64) {
        let Some(seat) = &seen.seat else { return };
        let (engine, snapshot) = (Some(seat.engine.clone()), marker(&to));
        let order = proto::RevertRequest { engine, snapshot, head: number };
        let mut manager = seat.manager.clone();
        let work = async move { manager.revert_snapshot(order).await.map(drop) };
        self.jobs.await_end(&Key::of(&*seen.volume), Order::Revert(to), work);
    }
}

impl Controller for Restores {
    const NAME: &'static str = "restore";
    type Key = Key;
    type Seen = Look;
    type Decision = Option<Decision>;

    fn watch(&self, wake: &Wake<Key>) {
        self.jobs.wakes(wake);
        wake.on(&self.volumes, |volume| match volume.spec.from_backup.is_empty() {
            true => Vec::new(),
            false => vec![Key::of(volume)],
        });
        let (volumes, from) = (self.volumes.clone(), self.volumes_from);
        // One of our own writes that is not shown yet wakes its volume itself.
        wake.on(&self.backups, move |backup| {
            let url = backup.status.as_ref().map(|status| status.url.to_string());
            let shelf = url.as_deref().and_then(shelf);
            let all = shelf.and_then(|shelf| volumes.by(from, &shelf).ok()).unwrap_or_default();
            all.iter().map(|volume| Key::of(&**volume)).collect()
        });
        wake.on_change(&self.objects, |old, new| {
            let state = |engine: Option<&Engine>| Some(engine?.status.as_ref()?.instance.current_state);
            let follows = new.is_some_and(|engine| !engine.spec.requested_backup_restore.is_empty());
            match follows && state(old) != state(new) {
                true => {
                    new.map(|engine| key(engine.spec.instance.volume_name.as_str())).into_iter().collect()
                }
                false => Vec::new(),
            }
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(volume) = self.volumes.get(key)? else {
            self.jobs.forget(key);
            return Ok(None);
        };
        let backups = match shelf(volume.spec.from_backup.as_str()) {
            Some(shelf) => self.backups.by(self.backups_at, &shelf)?,
            None => Vec::new(),
        };
        let mut observed = Observed {
            now: Timestamp::now(),
            volume: (*volume).clone(),
            backups: backups.iter().map(|backup| (**backup).clone()).collect(),
            engine: None,
            work: self.jobs.of(key),
        };
        if decide(&observed).is_none() {
            self.jobs.forget(key);
            return Ok(None);
        }
        let seat = self.engines.of(&key.name)?;
        if let Some(seat) = &seat {
            observed.engine = seat.serving().await;
        }
        let engine = self.objects.get(&self::key(engine_name(&key.name).as_str()))?;
        Ok(Some(Look { volume, engine, seat, observed }))
    }

    fn decide(seen: &Look) -> Option<Decision> {
        decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Option<Decision>) -> Result<(), TurnError> {
        let Some(decision) = decision else { return Ok(()) };
        self.write_engine(seen, decision).await?;
        self.write_volume(seen, decision).await
    }

    async fn act(&self, mut seen: Look, decision: Option<Decision>) -> Result<Next, TurnError> {
        let Some(decision) = decision else { return Ok(Next::OnChange) };
        match decision.next {
            Ok(Action::Resize { size }) => {
                self.volumes.change(&mut seen.volume, |volume| volume.spec.size = size).await?;
                Ok(Next::OnChange)
            }
            Ok(Action::Restore { from }) => {
                self.restore(&seen, &from);
                Ok(Next::After(LOOK_AGAIN))
            }
            Ok(Action::Revert { to, number }) => {
                self.revert(&seen, to, number);
                Ok(Next::After(LOOK_AGAIN))
            }
            Err(Wait::Content | Wait::Bad(_)) => Ok(Next::OnChange),
            Err(Wait::Failed { again, .. } | Wait::NotReverted { again, .. }) => {
                Ok(Next::After(seen.observed.now.duration_until(again).try_into().unwrap_or_default()))
            }
            Err(
                Wait::NoBackup(_)
                | Wait::NoEngine
                | Wait::Grows(_)
                | Wait::Restoring { .. }
                | Wait::Written
                | Wait::Reverting(_),
            ) => Ok(Next::After(LOOK_AGAIN)),
        }
    }
}
