//! Datasets and runtimes that were deleted stay as long as workloads use them.
//!
//! The invariant: what serves a workload does not go because of a deletion before the pod of that workload has gone or ended.

use std::collections::BTreeSet;

use kube::{Resource, ResourceExt};
use midflight_api::fluid::{DELETION_WAITS, Dataset, IN_USE_FINALIZER, JuiceFSRuntime};
use midflight_plan::mount::dataset::{Action, Going};

use super::datasets::{Datasets, Look};
use super::pods::claim_of;
use super::service;
use crate::controller::{Controller, Key, News, Tone, TurnError};

fn is_guarded<K: Resource>(object: &K) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == IN_USE_FINALIZER)
}

/// Whether an object was deleted and waits for us.
fn waits_for_us<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some() && is_guarded(object)
}

/// Whether a step gives or takes the finalizer of an object.
fn concerns<K: Resource>(step: &Action, object: &K) -> bool {
    *step == Action::Guard || waits_for_us(object)
}

fn mark<K: Resource>(object: &mut K, step: &Action) {
    object.finalizers_mut().retain(|finalizer| finalizer != IN_USE_FINALIZER);
    object.finalizers_mut().extend((*step == Action::Guard).then(|| IN_USE_FINALIZER.to_owned()));
}

/// Changes only when the first of them has gone: there may be thousands.
fn in_words(what: &str, users: &BTreeSet<Key>) -> String {
    let first = users.first().map(Key::to_string).unwrap_or_default();
    let others = if users.len() > 1 { " and others" } else { "" };
    format!("{what} was deleted, and goes when nobody uses it any more: pod {first}{others}")
}

impl Look {
    /// Whether dataset and runtime wait for us when they are deleted.
    pub(super) fn is_guarded(&self) -> bool {
        self.dataset.as_deref().is_some_and(is_guarded) && self.runtime.as_deref().is_some_and(is_guarded)
    }

    /// Whether dataset or runtime was deleted and waits for us.
    pub(super) fn is_going(&self) -> bool {
        self.dataset.as_deref().is_some_and(waits_for_us) || self.runtime.as_deref().is_some_and(waits_for_us)
    }

    pub(super) fn going(&self) -> Option<Going> {
        let going = if self.kept_by.is_empty() { Going::Free } else { Going::InUse };
        self.is_going().then_some(going)
    }
}

impl Datasets {
    /// Pods that use a dataset, through its own claim or another one.
    pub(super) fn users(&self, key: &Key) -> Result<BTreeSet<Key>, TurnError> {
        let volumes = self.volumes.by(self.volumes_of, &key.to_string())?;
        let others = volumes.iter().filter_map(|volume| claim_of(volume));
        let claims: BTreeSet<Key> = others.chain([key.clone()]).collect();
        let mut users = BTreeSet::new();
        for claim in claims {
            users.extend(self.pods.by(self.users, &claim.to_string())?.iter().map(|pod| Key::of(&**pod)));
        }
        Ok(users)
    }

    /// Tells who keeps a dataset or runtime that was deleted.
    pub(super) async fn report_kept(&self, seen: &mut Look) -> Result<(), TurnError> {
        let words = in_words("it", &seen.kept_by);
        if let Some(runtime) = seen.runtime.as_mut().filter(|runtime| waits_for_us(&***runtime)) {
            let tell = |runtime: &mut JuiceFSRuntime| {
                runtime.status.get_or_insert_default().fuse_reason = words.as_str().into();
            };
            self.runtimes.report(runtime, tell).await?;
        }
        let Some(dataset) = &mut seen.dataset else { return Ok(()) };
        let what = if waits_for_us(&**dataset) { "it" } else { "its runtime" };
        let words = in_words(what, &seen.kept_by);
        let is_news = !service::is_kept(dataset.status.as_ref());
        let tell = |dataset: &mut Dataset| service::say_kept(&words, dataset.status.get_or_insert_default());
        self.datasets.report(dataset, tell).await?;
        if is_news {
            let news = News { by: Self::NAME, tone: Tone::Normal, reason: DELETION_WAITS, note: &words };
            self.datasets.tell(dataset, &news).await;
        }
        Ok(())
    }

    /// Has dataset and runtime wait for us when they are deleted, or lets those go that were.
    pub(super) async fn hold(&self, seen: &mut Look, step: &Action) -> Result<(), TurnError> {
        if let Some(dataset) = seen.dataset.as_mut().filter(|dataset| concerns(step, &***dataset)) {
            self.datasets.change(dataset, |dataset| mark(dataset, step)).await?;
        }
        if let Some(runtime) = seen.runtime.as_mut().filter(|runtime| concerns(step, &***runtime)) {
            self.runtimes.change(runtime, |runtime| mark(runtime, step)).await?;
        }
        Ok(())
    }
}
