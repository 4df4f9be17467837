//! Backup targets: each is looked through now and then, so that what others put there has its object here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{Backup, BackupSpec, BackupTarget, Condition, ConditionStatus, NAMESPACE};
use midflight_plan::storage::backup::{
    Folder, GONE, Listing, TARGET, TargetAction, TargetDecision, TargetSeen, TargetWait, VOLUME,
    decide_target,
};

use super::reach::Reach;
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};
use crate::storage::orders::Orders;

/// Whether a target cannot be used, in upstream's words.
const UNAVAILABLE: &str = "Unavailable";

pub(crate) struct BackupTargets {
    targets: Objects<BackupTarget>,
    backups: Objects<Backup>,
    backups_in: Index<Backup>,
    reach: Reach,
    /// Which generation of a target was looked through.
    looked_through: Mutex<HashMap<Key, i64>>,
}

pub(crate) struct Look {
    target: Arc<BackupTarget>,
    backups: Vec<Arc<Backup>>,
    observed: TargetSeen,
}

impl BackupTargets {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> BackupTargets {
        let backups: Objects<Backup> = operator.objects();
        let backups_in = backups.index(|backup| backup.labels().get(TARGET).cloned().into_iter().collect());
        BackupTargets {
            targets: operator.objects(),
            backups,
            backups_in,
            reach: Reach::new(operator, orders),
            looked_through: Mutex::default(),
        }
    }

    fn generations(&self) -> MutexGuard<'_, HashMap<Key, i64>> {
        self.looked_through.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The object of a backup that was found in a target. It names no snapshot to be copied.
fn adopted(item: &Listing, target: &str) -> Backup {
    let labels = [(VOLUME, item.volume.as_str()), (TARGET, target)];
    let metadata = ObjectMeta {
        name: Some(item.name.clone()),
        namespace: Some(NAMESPACE.into()),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        ..ObjectMeta::default()
    };
    Backup { metadata, spec: BackupSpec::default(), status: None }
}

impl Controller for BackupTargets {
    const NAME: &'static str = "backup-target";
    type Key = Key;
    type Seen = Look;
    type Decision = TargetDecision;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on_change(&self.targets, |old, new| {
            let spec = |target: Option<&BackupTarget>| target.map(|target| target.spec.clone());
            let changed = old.is_none() || spec(old) != spec(new);
            new.filter(|_| changed).map(Key::of).into_iter().collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(target) = self.targets.get(key)? else { return Ok(None) };
        let backups = self.backups.by(self.backups_in, &key.name)?;
        let mut observed = TargetSeen {
            now: Timestamp::now(),
            target: (*target).clone(),
            backups: backups.iter().map(|backup| (**backup).clone()).collect(),
            taken: Vec::new(),
            is_as_before: self.generations().get(key).copied() == target.metadata.generation,
            listing: None,
            is_unused: false,
        };
        if let Ok(folder) = Folder::parse(target.spec.backup_target_url.as_str())
            && observed.is_due()
        {
            let held = self.reach.list(&folder, "").await?;
            observed.is_unused = held.as_ref().is_ok_and(|held| held.is_unused);
            let listing = held.map(|all| {
                let item = |item: crate::storage::orders::proto::Backup| Listing {
                    volume: item.volume,
                    name: item.backup,
                };
                all.backups.into_iter().map(item).collect::<Vec<_>>()
            });
            for item in listing.iter().flatten() {
                let other = self.backups.get(&Key::new(NAMESPACE, &item.name))?;
                if other.is_some_and(|other| other.labels().get(TARGET) != Some(&key.name)) {
                    observed.taken.push(item.name.clone());
                }
            }
            observed.listing = Some(listing);
        }
        Ok(Some(Look { target, backups, observed }))
    }

    fn decide(seen: &Look) -> TargetDecision {
        decide_target(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &TargetDecision) -> Result<(), TurnError> {
        let now = seen.observed.now.to_string();
        let was_looked_into = seen.observed.listing.is_some();
        let edit = |target: &mut BackupTarget| {
            let status = target.status.get_or_insert_default();
            if decision.unavailable.is_some() || was_looked_into {
                status.available = decision.unavailable.is_none();
            }
            if decision.synced {
                status.last_synced_at = now.as_str().into();
            }
            let (holds, reason) = match &decision.unavailable {
                Some(_) => (ConditionStatus::True, UNAVAILABLE),
                None => (ConditionStatus::False, ""),
            };
            status.conditions.set(Condition {
                kind: UNAVAILABLE.into(),
                status: holds,
                reason: reason.into(),
                message: decision.unavailable.clone().unwrap_or_default().into(),
                last_transition_time: now.as_str().into(),
                ..Condition::default()
            });
        };
        self.targets.report(&mut seen.target, edit).await?;
        if decision.synced {
            let generation = seen.target.metadata.generation.unwrap_or_default();
            self.generations().insert(Key::of(&*seen.target), generation);
        }
        Ok(())
    }

    async fn act(&self, seen: Look, decision: TargetDecision) -> Result<Next, TurnError> {
        let rest = |until: Timestamp| {
            Next::After(seen.observed.now.duration_until(until).try_into().unwrap_or_default())
        };
        match decision.next {
            Ok(TargetAction::Align { adopt, let_go, keep }) => {
                for item in &adopt {
                    self.backups.create(&adopted(item, &seen.target.name_any())).await?;
                }
                for backup in &seen.backups {
                    let (name, mut backup) = (backup.name_any(), Arc::clone(backup));
                    if let_go.contains(&name) {
                        // Told first, since what somebody deletes is removed from its target.
                        let mark = |backup: &mut Backup| {
                            backup.annotations_mut().insert(GONE.into(), "true".into());
                        };
                        self.backups.change(&mut backup, mark).await?;
                        self.backups.delete(&backup).await?;
                    } else if keep.contains(&name) {
                        let unmark = |backup: &mut Backup| drop(backup.annotations_mut().remove(GONE));
                        self.backups.change(&mut backup, unmark).await?;
                    }
                }
                Ok(Next::After(Duration::ZERO))
            }
            Err(TargetWait::Bad(_) | TargetWait::Content { until: None }) => Ok(Next::OnChange),
            Err(
                TargetWait::Unreachable { until, .. }
                | TargetWait::Away { until, .. }
                | TargetWait::Content { until: Some(until) },
            ) => Ok(rest(until)),
        }
    }
}
