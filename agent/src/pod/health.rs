//! Watches one run of a container by its probes, and tells its pod when the judgement changes.
//!
//! The one invariant: a container is ready only after its start was found good and while its readiness is.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Probe;
use midflight_plan::pod::Health;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::probe::{Pace, Target, ask, hook};

/// What is known of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Its start is over: the hook has run and the startup probe has passed.
    pub(super) started: bool,
    pub(super) ready: bool,
    pub(super) sick: Option<Sick>,
    /// What the last failed probe said.
    pub(super) complaint: Option<String>,
}

/// Why it must be started anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sick {
    pub(super) why: String,
    /// How long the probe that says so lets it take to end, if that says it.
    pub(super) grace: Option<Duration>,
}

impl Sick {
    fn says(probe: &Probe, why: String) -> Sick {
        let seconds = probe.termination_grace_period_seconds;
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Sick { why, grace: seconds.map(Duration::from_secs) }
    }
}

/// The watching of a run; ends when dropped.
#[derive(Debug)]
pub(super) struct Watching {
    verdict: Arc<Mutex<Verdict>>,
    _tasks: JoinSet<()>,
}

impl Watching {
    /// `was_ready` is what an earlier agent said of this very run.
    pub(super) fn begin(target: Target, taken_up: bool, was_ready: bool, nudge: Arc<Notify>) -> Watching {
        let verdict = Verdict { started: false, ready: false, sick: None, complaint: None };
        let verdict = Arc::new(Mutex::new(verdict));
        let mut tasks = JoinSet::new();
        let told = Told { verdict: verdict.clone(), nudge };
        tasks.spawn(watch(target, taken_up, was_ready, told));
        Watching { verdict, _tasks: tasks }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Clone)]
struct Told {
    verdict: Arc<Mutex<Verdict>>,
    nudge: Arc<Notify>,
}

impl Told {
    fn change(&self, change: impl FnOnce(&mut Verdict)) {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        let before = verdict.clone();
        change(&mut verdict);
        if *verdict != before {
            self.nudge.notify_one();
        }
    }
}

async fn watch(target: Target, taken_up: bool, was_ready: bool, told: Told) {
    let lifecycle = target.container.lifecycle.clone().unwrap_or_default();
    if let Some(handler) = lifecycle.post_start.filter(|_| !taken_up)
        && let Err(why) = hook(&handler, &target).await
    {
        let why = format!("its postStart hook failed: {why}");
        told.change(|verdict| verdict.sick = Some(Sick { why, grace: None }));
        return;
    }
    let container = target.container.clone();
    if let Some(probe) = container.startup_probe.filter(|_| !was_ready) {
        let mut good = false;
        asking(&probe, &target, Health::assumed(false), true, |health, failures, complaint| {
            good = health.is_good();
            told.change(|verdict| {
                verdict.complaint = complaint.map(|text| format!("Startup probe failed: {text}"));
            });
            if failures {
                let sick = Sick::says(&probe, "its startup probe failed".into());
                told.change(|verdict| verdict.sick = Some(sick));
            }
            !good && !failures
        })
        .await;
        if !good {
            return;
        }
    }
    let has_readiness = container.readiness_probe.is_some();
    told.change(|verdict| {
        verdict.started = true;
        verdict.ready = was_ready || !has_readiness;
    });
    let readiness = async {
        if let Some(probe) = container.readiness_probe {
            asking(&probe, &target, Health::assumed(was_ready), false, |health, _, complaint| {
                told.change(|verdict| {
                    verdict.ready = health.is_good();
                    verdict.complaint = complaint.map(|text| format!("Readiness probe failed: {text}"));
                });
                true
            })
            .await;
        }
    };
    let liveness = async {
        if let Some(probe) = container.liveness_probe {
            asking(&probe, &target, Health::assumed(true), false, |health, _, complaint| {
                if !health.is_good() {
                    let why = format!("its liveness probe failed: {}", complaint.unwrap_or_default());
                    told.change(|verdict| verdict.sick = Some(Sick::says(&probe, why)));
                }
                health.is_good()
            })
            .await;
        }
    };
    tokio::join!(readiness, liveness);
}

/// Asks again and again until the listener has heard enough. It hears the judgement, whether a run that never was
/// good has failed too often, and what the last failure said.
async fn asking(
    probe: &Probe,
    target: &Target,
    assumed: Health,
    give_up: bool,
    mut listener: impl FnMut(Health, bool, Option<String>) -> bool,
) {
    let pace = Pace::of(probe);
    tokio::time::sleep(pace.delay).await;
    let mut ticks = interval(pace.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut health = assumed;
    let mut failures = 0;
    loop {
        ticks.tick().await;
        let answer = ask(probe, target).await;
        health = health.after(answer.is_ok(), pace.thresholds);
        failures = if answer.is_ok() { 0 } else { failures + 1 };
        let failed = give_up && failures >= pace.thresholds.failure;
        if !listener(health, failed, answer.err()) {
            return;
        }
    }
}
