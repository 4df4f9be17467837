//! Datasets: keeps DaemonSet, volume and claim as the Dataset and its runtime say, and tells how the
//! daemons stand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Resource, ResourceExt};
use midflight_api::fluid::{
    Dataset, DatasetPhase, DatasetRuntime, JuiceFSRuntime, JuiceFSRuntimeStatus, RuntimePhase,
};
use midflight_plan::mount::Policy;
use midflight_plan::mount::dataset::{Action, Generation, Going, Observed, Wanted, decide};
use midflight_plan::mount::progress::Standing;
use midflight_plan::mount::trouble::{self, Troubled};
use tracing::info;

use super::objects::{
    Design, FuseRuntime as _, claimed, daemon_set_key, daemons, is_ours, node_selector, volume_name,
};
use super::pace::Pace;
use super::pods::{claim_of, served_dataset, shown_dataset, troubled, used_claims};
use super::progress;
use super::service::{self, Missing, Trouble};
use crate::controller::{Controller, Index, Key, News, Next, Objects, Operator, Tone, TurnError, Wake};
use crate::figures::Figures;

pub(crate) struct Datasets {
    pace: Pace,
    figures: Figures,
    pub(super) datasets: Objects<Dataset>,
    pub(super) runtimes: Objects<JuiceFSRuntime>,
    daemon_sets: Objects<DaemonSet>,
    pub(super) volumes: Objects<PersistentVolume>,
    claims: Objects<PersistentVolumeClaim>,
    pub(super) pods: Objects<Pod>,
    /// Daemons that do not run, by their dataset.
    troubled: Index<Pod>,
    /// Pods by the claims that they use.
    pub(super) users: Index<Pod>,
    pub(super) volumes_of: Index<PersistentVolume>,
    volumes_for: Index<PersistentVolume>,
}

/// A dataset and all that belongs to it; the same name for both it and its runtime.
pub(crate) struct Look {
    key: Key,
    pub(super) dataset: Option<Arc<Dataset>>,
    pub(super) runtime: Option<Arc<JuiceFSRuntime>>,
    daemon_set: Option<Arc<DaemonSet>>,
    volume: Option<Arc<PersistentVolume>>,
    claim: Option<Arc<PersistentVolumeClaim>>,
    /// Daemons that do not run.
    troubled: Vec<Arc<Pod>>,
    /// Pods that keep it from going, if somebody deleted it or its runtime.
    pub(super) kept_by: BTreeSet<Key>,
    /// How long what was seen of the daemons is held back.
    held_back: Option<Duration>,
}

impl Datasets {
    pub(crate) fn new(operator: &mut Operator) -> Datasets {
        let (pods, volumes): (Objects<Pod>, Objects<PersistentVolume>) =
            (operator.objects(), operator.objects());
        Datasets {
            troubled: pods.index(|pod| troubled_of(pod).iter().map(Key::to_string).collect()),
            users: pods.index(|pod| used_claims(pod).iter().map(Key::to_string).collect()),
            volumes_of: volumes.index(|volume| shown_dataset(volume).iter().map(Key::to_string).collect()),
            volumes_for: volumes.index(|volume| claim_of(volume).iter().map(Key::to_string).collect()),
            pods,
            volumes,
            pace: Pace::default(),
            figures: operator.figures(),
            datasets: operator.objects(),
            runtimes: operator.objects(),
            daemon_sets: operator.objects(),
            claims: operator.objects(),
        }
    }

    /// Tells what is missing to whoever is there.
    async fn report_missing(&self, seen: &mut Look, missing: &Missing) -> Result<(), TurnError> {
        let words = missing.to_string();
        match missing {
            Missing::Dataset(_) => {
                let runtime = seen.runtime.as_mut();
                let stays = runtime.filter(|runtime| runtime.metadata.deletion_timestamp.is_none());
                let Some(runtime) = stays else { return Ok(()) };
                let tell = |runtime: &mut JuiceFSRuntime| {
                    runtime.status.get_or_insert_default().fuse_reason = words.as_str().into();
                };
                self.runtimes.report(runtime, tell).await?;
            }
            Missing::Runtime(_) | Missing::Folder(_) => {
                let Some(dataset) = &mut seen.dataset else { return Ok(()) };
                let is_news = service::is_news(missing, dataset.status.as_ref());
                let tell = |dataset: &mut Dataset| {
                    service::say_missing(missing, dataset.status.get_or_insert_default());
                };
                self.datasets.report(dataset, tell).await?;
                if is_news && missing.is_a_mistake() {
                    let reason = missing.reason();
                    let news = News { by: Self::NAME, tone: Tone::Warning, reason, note: &words };
                    self.datasets.tell(dataset, &news).await;
                }
            }
        }
        Ok(())
    }
}

/// The dataset of a daemon that does not run.
fn troubled_of(pod: &Pod) -> Option<Key> {
    troubled(pod).and(served_dataset(pod))
}

fn stays<K: Resource>(object: Option<&Arc<K>>) -> Option<&K> {
    object.map(|object| &**object).filter(|object| object.meta().deletion_timestamp.is_none())
}

impl Look {
    fn design(&self) -> Result<Design<'_>, Missing> {
        let dataset = stays(self.dataset.as_ref()).ok_or_else(|| Missing::Dataset(self.key.clone()))?;
        // What is wrong whoever comes is told before who is missing.
        dataset.folder()?;
        let runtime = stays(self.runtime.as_ref()).ok_or_else(|| Missing::Runtime(self.key.clone()))?;
        Ok(Design::new(&self.key, runtime, dataset)?)
    }

    fn observed(&self) -> Observed {
        let wanted = |design: Design<'_>| Wanted { template: design.digest(), asked: design.asked() };
        Observed {
            going: self.going(),
            guarded: self.is_guarded(),
            wanted: self.design().ok().map(wanted),
            daemons: self.daemon_set.as_deref().map(daemons),
            // One that is being deleted gives nobody anything any more.
            volume: stays(self.volume.as_ref()).is_some(),
            claim: self.claim.as_deref().map(claimed),
            policy: self.policy(),
            troubled: self.troubled(),
        }
    }

    /// How the daemons stand, as the DaemonSet tells.
    fn status(&self) -> JuiceFSRuntimeStatus {
        let before = self.runtime.as_ref().and_then(|runtime| runtime.status.clone()).unwrap_or_default();
        let seen = self.daemon_set.as_ref().and_then(|set| set.status.clone()).unwrap_or_default();
        let phase = match (seen.desired_number_scheduled, seen.number_ready) {
            (desired, ready) if ready >= desired => RuntimePhase::Ready,
            (_, 0) => RuntimePhase::NotReady,
            _ => RuntimePhase::PartialReady,
        };
        let mut status = JuiceFSRuntimeStatus {
            fuse_phase: phase,
            desired_fuse_number_scheduled: seen.desired_number_scheduled,
            current_fuse_number_scheduled: seen.current_number_scheduled,
            fuse_number_ready: seen.number_ready,
            fuse_number_available: seen.number_available.unwrap_or_default(),
            fuse_number_unavailable: seen.number_unavailable.unwrap_or_default(),
            ..before
        };
        if let Some(set) = &self.daemon_set {
            progress::say(&progress::counted(set), self.policy(), &mut status);
        }
        progress::say_trouble(self.trouble().as_deref(), &mut status);
        if let Ok(design) = self.design() {
            let mut unheeded = design.unheeded();
            unheeded.extend(self.keeps_nodes(&design).then_some("nodeSelector (stays as it was)"));
            progress::say_unheeded(&unheeded, &mut status);
        }
        status
    }

    /// Whether the daemons are for other nodes than the user wants them on now.
    fn keeps_nodes(&self, design: &Design<'_>) -> bool {
        let made_for = self.daemon_set.as_deref().and_then(node_selector);
        made_for.is_some_and(|nodes| *nodes != design.node_selector())
    }

    /// What the status tells, for the judgement whether that is news.
    fn standing(&self) -> Option<Standing> {
        let (set, runtime) = (self.daemon_set.as_ref()?, self.runtime.as_ref()?);
        let wish = runtime.metadata.generation.unwrap_or_default();
        Some(progress::standing(wish, set, self.troubled.len()))
    }

    /// Which daemons do not run, in words.
    fn trouble(&self) -> Option<String> {
        trouble::in_words(&self.troubled())
    }

    fn troubled(&self) -> Vec<Troubled> {
        self.troubled.iter().filter_map(|pod| troubled(pod)).collect()
    }

    /// What becomes of old daemons.
    fn policy(&self) -> Policy {
        match &self.runtime {
            Some(runtime) if runtime.spec.fuse.replaces_idle_pods() => Policy::ReplaceIdle,
            _ => Policy::Keep,
        }
    }

    /// What a change of the daemons means for those that run.
    fn change_in_words(&self, generation: Generation) -> String {
        let image = self.design().map(|design| design.asked().image).unwrap_or_default();
        let goes = match self.policy() {
            Policy::ReplaceIdle => "when no workload on their node uses them",
            Policy::Keep | Policy::Remove => "when they are deleted",
        };
        format!(
            "daemons that start now are of generation {generation} ({image}); older ones are replaced {goes}"
        )
    }
}

impl Controller for Datasets {
    const NAME: &'static str = "dataset";
    type Key = Key;
    type Seen = Look;
    type Decision = Action;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.datasets, |dataset| vec![Key::of(dataset)]);
        wake.on(&self.runtimes, |runtime| vec![Key::of(runtime)]);
        wake.on(&self.claims, |claim| vec![Key::of(claim)]);
        wake.on(&self.pods, |pod| troubled_of(pod).into_iter().collect());
        let (volumes, volumes_for) = (self.volumes.clone(), self.volumes_for);
        wake.on_change(&self.pods, move |old, new| {
            let (before, now) = (old.map(used_claims), new.map(used_claims));
            if before == now {
                return Vec::new();
            }
            let claims = before.into_iter().chain(now).flatten();
            let touched = claims.flat_map(|claim| {
                let through = volumes.shown_by(volumes_for, &claim.to_string());
                through.iter().filter_map(|volume| shown_dataset(volume)).chain([claim]).collect::<Vec<_>>()
            });
            touched.collect()
        });
        wake.on(&self.daemon_sets, |set| {
            let key = Key::of(set);
            key.name.strip_suffix("-fuse").map(|name| Key::new(&key.namespace, name)).into_iter().collect()
        });
        wake.on(&self.volumes, |volume| {
            let own = claim_of(volume).filter(|_| is_ours(volume));
            shown_dataset(volume).into_iter().chain(own).collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let volume = self.volumes.get(&Key::new("", &volume_name(key)))?;
        let mut look = Look {
            kept_by: BTreeSet::new(),
            key: key.clone(),
            dataset: self.datasets.get(key)?,
            runtime: self.runtimes.get(key)?,
            daemon_set: self.daemon_sets.get(&daemon_set_key(key))?,
            volume: volume.filter(|volume| is_ours(volume)),
            claim: self.claims.get(key)?,
            troubled: self.pods.by(self.troubled, &key.to_string())?,
            held_back: None,
        };
        if look.is_going() {
            look.kept_by = self.users(key)?;
        }
        Ok(Some(look))
    }

    fn decide(seen: &Look) -> Action {
        decide(&seen.observed())
    }

    async fn report(&self, seen: &mut Look, decision: &Action) -> Result<(), TurnError> {
        if seen.going() == Some(Going::InUse) {
            return self.report_kept(seen).await;
        }
        if let Err(missing) = seen.design().map(drop) {
            self.figures.dataset_has_gone(&seen.key.namespace, &seen.key.name);
            return self.report_missing(seen, &missing).await;
        }
        if let Some(set) = &seen.daemon_set {
            self.figures.fuse_daemons(&seen.key.namespace, &seen.key.name, &progress::counted(set));
        }
        let (status, standing) = (seen.status(), seen.standing());
        let others_run = standing.is_some_and(|standing| standing.ready > 0);
        let trouble = seen.trouble().map(|words| Trouble { words, others_run });
        let (Some(dataset), Some(runtime)) = (&mut seen.dataset, &mut seen.runtime) else { return Ok(()) };
        if let Some(standing) = standing
            && runtime.status.as_ref() != Some(&status)
        {
            let now = Instant::now();
            match self.pace.wait(&seen.key, standing, now) {
                None => {
                    let arrived = progress::arrival(runtime.status.as_ref(), &status);
                    let trouble = progress::new_trouble(runtime.status.as_ref(), &status);
                    self.runtimes.report(runtime, |runtime| runtime.status = Some(status)).await?;
                    self.pace.told(&seen.key, standing, now);
                    let arrived = arrived.map(|note| (Tone::Normal, "FuseUpgraded", note));
                    let trouble = trouble.map(|note| (Tone::Warning, "FuseDoesNotRun", note));
                    for (tone, reason, note) in arrived.into_iter().chain(trouble) {
                        let news = News { by: Self::NAME, tone, reason, note: &note };
                        self.runtimes.tell(runtime, &news).await;
                    }
                }
                Some(wait) => seen.held_back = Some(wait),
            }
        }
        let served_by = DatasetRuntime {
            name: seen.key.name.as_str().into(),
            namespace: seen.key.namespace.as_str().into(),
            kind: JuiceFSRuntime::TYPE.into(),
            category: "Accelerate".into(),
        };
        let is_held_back =
            seen.held_back.is_some() && matches!(decision, Action::Nothing | Action::MakeAnew { .. });
        let report = self.datasets.report(dataset, |dataset| {
            let mounts = dataset.spec.mounts.clone();
            let status = dataset.status.get_or_insert_default();
            status.runtimes = vec![served_by];
            status.mounts = mounts;
            // What is told of daemons is told of both at the same time.
            if !is_held_back || status.phase != DatasetPhase::Bound {
                service::say_served(decision, trouble.as_ref(), status);
            }
        });
        Ok(report.await?)
    }

    async fn act(&self, mut seen: Look, decision: Action) -> Result<Next, TurnError> {
        let (mut daemon_set, mut claim) = (seen.daemon_set.take(), seen.claim.take());
        if matches!(decision, Action::Guard | Action::LetGo) {
            self.hold(&mut seen, &decision).await?;
            return Ok(Next::OnChange);
        }
        match (decision, seen.design().ok()) {
            (Action::MakeDaemons { generation }, Some(design)) => {
                self.daemon_sets.create(&design.daemon_set(generation)).await?;
            }
            (Action::ChangeDaemons { generation }, Some(design)) => {
                let DaemonSet { metadata, spec, .. } = design.daemon_set(generation);
                if let (Some(daemon_set), Some(wanted)) = (&mut daemon_set, spec) {
                    // One that was taken away by hand would bring daemons to every node.
                    let own = wanted.template.spec.as_ref().and_then(|spec| spec.node_selector.clone());
                    let nodes = node_selector(daemon_set).cloned().or(own);
                    let change = self.daemon_sets.change(daemon_set, |set| {
                        let template = &mut set.spec.get_or_insert_default().template;
                        *template = wanted.template;
                        template.spec.get_or_insert_default().node_selector = nodes;
                        set.annotations_mut().extend(metadata.annotations.unwrap_or_default());
                    });
                    change.await?;
                }
                if let Some(runtime) = &seen.runtime {
                    let note = seen.change_in_words(generation);
                    let news =
                        News { by: Self::NAME, tone: Tone::Normal, reason: "FuseChanged", note: &note };
                    self.runtimes.tell(runtime, &news).await;
                }
            }
            (Action::MakeVolume, Some(design)) => self.volumes.create(&design.volume()).await?,
            (Action::MakeClaim { generation }, Some(design)) => {
                self.claims.create(&design.claim(generation)).await?;
            }
            (Action::ChangeClaim { generation }, Some(design)) => {
                if let Some(claim) = &mut claim {
                    self.claims.change(claim, |claim| design.ask(claim, generation)).await?;
                }
            }
            (Action::MakeAnew { pods }, Some(_)) => {
                for pod in seen.troubled.iter().filter(|pod| pods.contains(&pod.name_any())) {
                    self.pods.delete(pod).await?;
                    info!(pod = pod.name_any(), "a daemon that does not run is made anew");
                }
            }
            (Action::RemoveVolume, _) => {
                if let Some(volume) = &seen.volume {
                    self.volumes.delete(volume).await?;
                }
            }
            (Action::Guard | Action::LetGo | Action::Nothing, _) | (_, None) => {}
        }
        Ok(seen.held_back.map_or(Next::OnChange, Next::After))
    }
}
