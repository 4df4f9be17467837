//! Moves volumes to the default engine image, as `plan::engine_upgrade` decides.
//!
//! Every turn tells the fleet what changed and carries out what the fleet then asks for, whichever
//! volume that is about. A change is one patch: `spec.image` and the annotation that tells of the
//! attempt. The invariant: a change whose fate is not known is sent again, never another in its place.

mod told;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{EngineImage, NAMESPACE, Replica, Setting, Volume};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT;
use midflight_api::{ENGINE_UPGRADE_ATTEMPT, VolumeName};
use midflight_plan::engine_upgrade::{self as plan, Change, Fleet, Hold, Reason, Standing, World, judge};
use tracing::warn;

use crate::controller::{Controller, Index, Key, Next, Objects, Operator, Stale, TurnError, Wake};
use crate::figures::Figures;

/// How often deadlines, rests and back-offs are looked at while there are volumes.
const LOOK_AT_THE_CLOCK: Duration = Duration::from_secs(1);
/// Writes of one turn that are on their way to the API at once.
const AT_ONCE: usize = 32;

pub(crate) struct EngineUpgrades {
    volumes: Objects<Volume>,
    replicas: (Objects<Replica>, Index<Replica>),
    images: Objects<EngineImage>,
    settings: Objects<Setting>,
    figures: Figures,
    known: Arc<Mutex<Known>>,
    wake: OnceLock<Wake<Topic>>,
}

/// What a turn is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Topic {
    /// Settings, images, the clock.
    World,
    Volume(Key),
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topic::World => f.write_str("settings and images"),
            Topic::Volume(key) => key.fmt(f),
        }
    }
}

/// What all turns know.
#[derive(Default)]
struct Known {
    /// Nothing is decided before every volume was told.
    fleet: Option<Fleet>,
    /// The objects as the fleet was told of them.
    objects: HashMap<VolumeName, Arc<Volume>>,
    /// Changes that may or may not have been made.
    unsure: BTreeMap<VolumeName, (Arc<Volume>, Change)>,
    /// The last reason that was told of a volume that is left out.
    told: HashMap<VolumeName, &'static str>,
    told_hold: Option<&'static str>,
    /// Whether a turn of the world comes by itself.
    clock_runs: bool,
}

/// What a turn looks at.
pub(crate) struct Look {
    topic: Topic,
    now: Timestamp,
    known: Arc<Mutex<Known>>,
    news: News,
}

/// What people were not told yet.
#[derive(Default)]
struct News {
    /// Settings or images have changed: every volume is to be looked at, once all that may begin has begun.
    is_other_world: bool,
    left_out: Vec<(Arc<Volume>, Reason)>,
    /// Why nothing begins, told of the setting.
    hold: Option<(Arc<Setting>, Hold)>,
}

impl EngineUpgrades {
    pub(crate) fn new(operator: &mut Operator) -> EngineUpgrades {
        let replicas: Objects<Replica> = operator.objects();
        let of_volume = replicas.index(|replica| vec![replica.spec.instance.volume_name.to_string()]);
        EngineUpgrades {
            volumes: operator.objects(),
            replicas: (replicas, of_volume),
            images: operator.objects(),
            settings: operator.objects(),
            figures: operator.figures(),
            known: Arc::default(),
            wake: OnceLock::new(),
        }
    }

    fn world(&self) -> Result<World, Stale> {
        let settings = self.settings.all()?;
        let ours = settings.iter().filter(|setting| is_ours(&***setting));
        let values: HashMap<String, &str> =
            ours.map(|setting| (setting.name_any(), setting.value.as_str())).collect();
        let value = |name: &str| values.get(name).copied();
        let images = self.images.all()?;
        Ok(World::of(value, images.iter().map(|image| &**image).filter(|image| is_ours(*image))))
    }

    fn replicas(&self, volume: &str) -> Result<plan::Replicas, Stale> {
        let (replicas, of_volume) = &self.replicas;
        let replicas = replicas.by(*of_volume, volume)?;
        Ok(replicas.iter().map(|replica| &**replica).filter(|replica| is_ours(*replica)).collect())
    }

    /// Tells the fleet of a volume.
    fn tell_of(&self, known: &mut Known, object: Arc<Volume>, now: Timestamp) -> Result<(), Stale> {
        let volume = plan::Volume::of(&object, self.replicas(&object.name_any())?);
        let Some(fleet) = &mut known.fleet else { return Ok(()) };
        let name = volume.name.clone();
        let is_newest = fleet.volume(&name).is_none_or(|there| there.version <= volume.version);
        fleet.observe(volume, now);
        if is_newest {
            known.objects.insert(name, object);
        }
        Ok(())
    }

    /// Tells a new fleet of all that is there. Others may be writing volumes and replicas all the time, and need not be waited for:
    /// each change is told afterwards, and whatever begins names the version that was seen.
    fn begin(&self, known: &mut Known, now: Timestamp) -> Result<(), Stale> {
        if known.fleet.is_some() {
            return Ok(());
        }
        let mut replicas: HashMap<String, plan::Replicas> = HashMap::new();
        let mut fleet = Fleet::new(self.world()?);
        for replica in self.replicas.0.shown().into_iter().filter(|replica| is_ours(&**replica)) {
            let volume = replica.spec.instance.volume_name.to_string();
            replicas.entry(volume).or_default().add(&replica);
        }
        for object in self.volumes.shown().into_iter().filter(|volume| is_ours(&**volume)) {
            let name = object.name_any();
            fleet.observe(plan::Volume::of(&object, replicas.remove(&name).unwrap_or_default()), now);
            known.objects.insert(name.as_str().into(), object);
        }
        known.fleet = Some(fleet);
        Ok(())
    }

    /// Says how many are on their way and how many wait.
    fn count(&self, known: &Known) {
        let Some(fleet) = &known.fleet else { return };
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.figures.upgrades_under_way.set(number(fleet.under_way()));
        self.figures.upgrades_waiting.set(number(fleet.waiting()));
    }

    /// Carries one change out. What is not known to have failed or to be done is kept for another try.
    async fn carry_out(&self, object: Arc<Volume>, change: Change) -> Result<(), TurnError> {
        let mut written = Arc::clone(&object);
        let sent = self.volumes.change(&mut written, |volume| {
            volume.annotations_mut().insert(ENGINE_UPGRADE_ATTEMPT.into(), change.attempt.to_annotation());
            if let Some(image) = &change.image {
                volume.spec.image.clone_from(image);
            }
        });
        let sent = sent.await;
        let now = Timestamp::now();
        match sent {
            Ok(()) => {
                // It is made, and so it is counted and told, whatever the caches show by now.
                let noted = self.tell_of(&mut lock(&self.known), Arc::clone(&written), now);
                told::outcome(change.why)
                    .into_iter()
                    .for_each(|outcome| self.figures.engine_upgrade(outcome));
                if let Some(told) = told::of_change(&change) {
                    self.volumes.tell(&written, &told.news(Self::NAME)).await;
                }
                Ok(noted?)
            }
            // A later state is there, and the watch will show it.
            Err(failed) if failed.source.is_conflict() || failed.source.is_not_found() => Ok(()),
            Err(failed) if failed.source.is_refusal() => {
                warn!(volume = %change.volume, error = %failed.source, "the API refuses to change a volume");
                let news = lock(&self.known).refused(&change, &failed.source.to_string(), now);
                self.tell(news).await;
                Ok(())
            }
            Err(failed) => {
                lock(&self.known).unsure.insert(change.volume.clone(), (object, change));
                Err(failed.into())
            }
        }
    }

    /// Tells why volumes are left out.
    async fn tell(&self, left_out: impl IntoIterator<Item = (Arc<Volume>, Reason)>) {
        let told = futures::stream::iter(left_out).map(async move |(volume, reason)| {
            self.volumes.tell(&volume, &told::of_volume(&reason).news(Self::NAME)).await;
        });
        told.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// Whether an object is of the namespace that is looked after; the caches hold those of all.
fn is_ours(object: &impl ResourceExt) -> bool {
    object.namespace().as_deref() == Some(NAMESPACE)
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// Whether there is a volume for which time matters. The clock runs from now on, or stands.
    fn needs_clock(&mut self) -> bool {
        self.clock_runs = !self.objects.is_empty() || !self.unsure.is_empty();
        self.clock_runs
    }

    /// Why the volume is left out, if that was not told yet. While nothing begins at all, that is told instead.
    fn news_of(&mut self, name: &VolumeName, now: Timestamp) -> Option<(Arc<Volume>, Reason)> {
        let (fleet, object) = (self.fleet.as_ref()?, self.objects.get(name)?);
        let volume = fleet.volume(name).filter(|_| fleet.hold().is_none())?;
        match judge(volume, fleet.world(), now) {
            Standing::LeftOut(reason) if reason.is_news() => {
                let is_new = self.told.insert(name.clone(), reason.word()) != Some(reason.word());
                is_new.then(|| (Arc::clone(object), reason))
            }
            Standing::LeftOut(_) | Standing::There | Standing::UnderWay | Standing::Candidate(_) => {
                self.told.remove(name);
                None
            }
        }
    }

    /// Takes down that the API refuses to change a volume; says so if that was not told yet.
    fn refused(&mut self, change: &Change, said: &str, now: Timestamp) -> Option<(Arc<Volume>, Reason)> {
        let fleet = self.fleet.as_mut()?;
        // A later state of the volume may have come, and another change with it: that one still counts.
        if fleet.issued(&change.volume) != Some(change) {
            return None;
        }
        fleet.refused(&change.volume, said, now);
        self.news_of(&change.volume, now)
    }

    /// Takes over the world; says whether it is another.
    fn change_world(&mut self, world: World, now: Timestamp) -> bool {
        let other = self.fleet.as_mut().filter(|fleet| *fleet.world() != world);
        other.map(|fleet| fleet.change_world(world, now)).is_some()
    }

    /// Why volumes are left out of which that was not told yet: in another world each may be for another reason.
    fn news_of_all(&mut self, now: Timestamp) -> Vec<(Arc<Volume>, Reason)> {
        let Some(fleet) = &self.fleet else { return Vec::new() };
        let left_out: Vec<VolumeName> = fleet.left_out(now).map(|(volume, _)| volume.name.clone()).collect();
        left_out.iter().filter_map(|name| self.news_of(name, now)).collect()
    }

    /// Every change that may begin now, and those whose fate is not known.
    fn changes(&mut self, now: Timestamp) -> Vec<(Arc<Volume>, Change)> {
        let mut changes: Vec<_> = std::mem::take(&mut self.unsure).into_values().collect();
        let Some(fleet) = &mut self.fleet else { return changes };
        while let Some(change) = fleet.next(now) {
            if let Some(object) = self.objects.get(&change.volume) {
                changes.push((Arc::clone(object), change));
            }
        }
        changes
    }
}

impl Controller for EngineUpgrades {
    const NAME: &'static str = "engine-upgrade";
    const WORKERS: usize = 16;
    type Key = Topic;
    type Seen = Look;
    type Decision = Vec<(Arc<Volume>, Change)>;

    fn watch(&self, wake: &Wake<Topic>) {
        let _ = self.wake.set(wake.clone());
        let of_volume = |name: &str| Topic::Volume(Key::new(NAMESPACE, name));
        wake.on(&self.volumes, move |volume| {
            is_ours(volume).then(|| of_volume(&volume.name_any())).into_iter().collect()
        });
        wake.on(&self.replicas.0, move |replica| {
            let volume = replica.spec.instance.volume_name.as_str();
            is_ours(replica).then(|| of_volume(volume)).into_iter().collect()
        });
        // A setting acts at once, however many volumes wait to be looked at.
        wake.first_on(&self.images, Topic::World, is_ours);
        wake.first_on(&self.settings, Topic::World, is_ours);
    }

    async fn observe(&self, topic: &Topic) -> Result<Option<Look>, TurnError> {
        let now = Timestamp::now();
        let mut known = lock(&self.known);
        self.begin(&mut known, now)?;
        let mut news = News::default();
        match topic {
            Topic::World => {
                news.is_other_world = known.change_world(self.world()?, now);
                // That upgrades are off, as they are by default, is no news.
                let is_on = |fleet: &&Fleet| fleet.world().policy.per_node > 0;
                let hold = known.fleet.as_ref().filter(is_on).and_then(Fleet::hold);
                let word = hold.as_ref().map(Hold::word);
                self.figures.upgrades_held.set(word.is_some().into());
                self.count(&known);
                let setting = self.settings.get(&Key::new(NAMESPACE, ENGINE_UPGRADE_LIMIT))?;
                let was = std::mem::replace(&mut known.told_hold, word);
                news.hold = setting.zip(hold.filter(|_| was != word));
            }
            Topic::Volume(key) => {
                let name = VolumeName::from(key.name.as_str());
                match self.volumes.get(key)? {
                    Some(object) => {
                        self.tell_of(&mut known, object, now)?;
                        news.left_out.extend(known.news_of(&name, now));
                        if !known.clock_runs && known.needs_clock() {
                            self.wake.get().into_iter().for_each(|wake| wake.one(Topic::World));
                        }
                    }
                    None => {
                        known.fleet.as_mut().into_iter().for_each(|fleet| fleet.forget(&name, now));
                        known.objects.remove(&name);
                        known.unsure.remove(&name);
                        known.told.remove(&name);
                    }
                }
            }
        }
        Ok(Some(Look { topic: topic.clone(), now, known: Arc::clone(&self.known), news }))
    }

    fn decide(seen: &Look) -> Self::Decision {
        lock(&seen.known).changes(seen.now)
    }

    async fn report(&self, seen: &mut Look, _: &Self::Decision) -> Result<(), TurnError> {
        if let Some((setting, hold)) = &seen.news.hold {
            self.settings.tell(setting, &told::of_hold(hold).news(Self::NAME)).await;
        }
        Ok(())
    }

    async fn act(&self, seen: Look, changes: Self::Decision) -> Result<Next, TurnError> {
        let sent = futures::stream::iter(changes).map(|(object, change)| self.carry_out(object, change));
        let sent: Vec<Result<(), TurnError>> = sent.buffer_unordered(AT_ONCE).collect().await;
        // Those who wait can wait for the news, too.
        let mut left_out = seen.news.left_out;
        if seen.news.is_other_world {
            left_out.extend(lock(&self.known).news_of_all(seen.now));
        }
        self.tell(left_out).await;
        sent.into_iter().collect::<Result<(), TurnError>>()?;
        Ok(match seen.topic {
            Topic::World if lock(&self.known).needs_clock() => Next::After(LOOK_AT_THE_CLOCK),
            Topic::World | Topic::Volume(_) => Next::OnChange,
        })
    }
}
