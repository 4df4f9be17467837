//! Snapshots: each an object that stands for one in the engine of its volume.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use midflight_api::Size;
use midflight_api::longhorn::{Engine, FINALIZER, NAMESPACE, Snapshot, VOLUME_LABEL, Volume};
use midflight_plan::storage::snapshot::{Action, Decision, Observed, Wait, decide};
use midflight_plan::storage::volume::engine_name;

use super::engines::{Engines, Seat};
use super::orders::{Orders, proto};
use crate::controller::{Controller, Index, Key, News, Next, Objects, Operator, Tone, TurnError, Wake};

/// How soon an order that was refused is given again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How soon a snapshot is looked at whose engine does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub(crate) struct Snapshots {
    snapshots: Objects<Snapshot>,
    snapshots_of: Index<Snapshot>,
    volumes: Objects<Volume>,
    objects: Objects<Engine>,
    engines: Engines,
}

pub(crate) struct Look {
    snapshot: Arc<Snapshot>,
    seat: Option<Seat>,
    observed: Observed,
}

impl Snapshots {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Snapshots {
        let snapshots: Objects<Snapshot> = operator.objects();
        Snapshots {
            snapshots_of: snapshots.index(|snapshot| vec![snapshot.spec.volume.to_string()]),
            snapshots,
            volumes: operator.objects(),
            objects: operator.objects(),
            engines: Engines::new(operator, orders),
        }
    }

    /// Gives the engine an order. What it refuses is written down, and asked for again.
    async fn order(&self, mut seen: Look, action: Action) -> Result<Next, TurnError> {
        let Some(seat) = &seen.seat else { return Ok(Next::After(LOOK_AGAIN)) };
        let (engine, snapshot) = (Some(seat.engine.clone()), seen.snapshot.name_any());
        let (mut manager, order) = (seat.manager.clone(), proto::SnapshotRequest { engine, snapshot });
        let answer = match action {
            Action::Take => manager.create_snapshot(order).await,
            Action::Remove | Action::Protect | Action::Release => manager.delete_snapshot(order).await,
        };
        if let Err(refused) = answer {
            let why = refused.message().to_owned();
            self.snapshots
                .report(&mut seen.snapshot, |snapshot| {
                    snapshot.status.get_or_insert_default().error = why.into();
                })
                .await?;
            return Ok(Next::After(TRY_AGAIN));
        }
        Ok(Next::After(Duration::ZERO))
    }
}

/// What of an engine says something about the snapshots of its volume.
fn told(engine: Option<&Engine>) -> Option<(String, Vec<(String, Size)>)> {
    let status = engine?.status.as_ref()?;
    let snapshots = status.snapshots.iter().map(|(name, info)| (name.clone(), info.size)).collect();
    Some((status.instance.current_state.to_string(), snapshots))
}

impl Controller for Snapshots {
    const NAME: &'static str = "snapshot";
    type Key = Key;
    type Seen = Look;
    type Decision = Decision;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.snapshots, |snapshot| vec![Key::of(snapshot)]);
        let (snapshots, of) = (self.snapshots.clone(), self.snapshots_of);
        // One of our own writes that is not shown yet wakes its snapshot itself.
        let of_volume = move |volume: &str| -> Vec<Key> {
            let all = snapshots.by(of, volume).unwrap_or_default();
            all.iter().map(|snapshot| Key::of(&**snapshot)).collect()
        };
        let touched = of_volume.clone();
        wake.on_change(&self.objects, move |old, new| match told(old) == told(new) {
            true => Vec::new(),
            false => {
                let engine = old.or(new);
                engine.map(|engine| touched(engine.spec.instance.volume_name.as_str())).unwrap_or_default()
            }
        });
        let state = |volume: Option<&Volume>| {
            let volume = volume?;
            let status = volume.status.as_ref()?;
            Some((status.state, volume.spec.standby, volume.metadata.deletion_timestamp.clone()))
        };
        wake.on_change(&self.volumes, move |old, new| match state(old) == state(new) {
            true => Vec::new(),
            false => old.or(new).map(|volume| of_volume(&volume.name_any())).unwrap_or_default(),
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(snapshot) = self.snapshots.get(key)? else { return Ok(None) };
        let name = snapshot.spec.volume.as_str();
        let volume = self.volumes.get(&Key::new(NAMESPACE, name))?;
        let seat = self.engines.of(name)?;
        let engine = match &seat {
            Some(seat) => seat.serving().await,
            None => None,
        };
        let object = self.objects.get(&Key::new(NAMESPACE, engine_name(name).as_str()))?;
        let info = object.and_then(|object| object.status.as_ref()?.snapshots.get(&key.name).cloned());
        let observed = Observed {
            now: Timestamp::now(),
            bytes: info.map(|info| info.size.bytes()).filter(|bytes| *bytes > 0),
            snapshot: (*snapshot).clone(),
            volume: volume.as_deref().cloned(),
            engine,
        };
        Ok(Some(Look { snapshot, seat, observed }))
    }

    fn decide(seen: &Look) -> Decision {
        decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let was_taken = seen.snapshot.status.as_ref().is_some_and(|status| !status.creation_time.is_empty());
        let status = decision.status.clone();
        self.snapshots.report(&mut seen.snapshot, |snapshot| snapshot.status = Some(status)).await?;
        if !was_taken && !decision.status.creation_time.is_empty() {
            let note = format!("volume {} is kept as it was", seen.snapshot.spec.volume);
            let news = News { by: Self::NAME, tone: Tone::Normal, reason: "SnapshotTaken", note: &note };
            self.snapshots.tell(&seen.snapshot, &news).await;
        }
        Ok(())
    }

    async fn act(&self, mut seen: Look, decision: Decision) -> Result<Next, TurnError> {
        match decision.next {
            Ok(Action::Protect) => {
                let volume = seen.observed.volume;
                let edit = |snapshot: &mut Snapshot| {
                    snapshot.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                    snapshot.finalizers_mut().push(FINALIZER.into());
                    if let Some(volume) = volume {
                        snapshot.labels_mut().insert(VOLUME_LABEL.into(), volume.name_any());
                        snapshot.owner_references_mut().retain(|owner| owner.kind != Volume::kind(&()));
                        snapshot.owner_references_mut().extend(volume.owner_ref(&()));
                    }
                };
                self.snapshots.change(&mut seen.snapshot, edit).await?;
                Ok(Next::OnChange)
            }
            Ok(Action::Release) => {
                let edit = |snapshot: &mut Snapshot| snapshot.finalizers_mut().retain(|one| one != FINALIZER);
                self.snapshots.change(&mut seen.snapshot, edit).await?;
                Ok(Next::OnChange)
            }
            Ok(action @ (Action::Take | Action::Remove)) => self.order(seen, action).await,
            Err(Wait::Silent) => Ok(Next::After(LOOK_AGAIN)),
            Err(
                Wait::Content | Wait::NoVolume | Wait::Detached | Wait::Lost | Wait::NotAsked | Wait::Standby,
            ) => Ok(Next::OnChange),
        }
    }
}
