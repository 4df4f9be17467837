//! What the API is told of a pod.
//!
//! The one invariant: nothing is told that was not seen; a time is kept for as long as what it dates holds.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use midflight_api::IMAGES_PULLED;
use midflight_plan::pod::{Part, Phase, Wait};
use serde_json::{Value, json};

use super::{health::Verdict, observe::Newest};
use crate::{
    Config,
    container::{Exit, State},
    image::Progress,
};

/// What is known of a container's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImageStands<'a> {
    NotLookedFor,
    /// It is being pulled, so far.
    Pulled(Option<Progress>),
    /// It could not be had: a word and a sentence.
    Refused {
        reason: &'a str,
        message: &'a str,
        again_at: Timestamp,
    },
    There,
}

/// All that is known of a container.
pub(super) struct Known<'a> {
    pub(super) name: &'a str,
    pub(super) part: Part,
    pub(super) image: &'a str,
    pub(super) newest: Option<&'a Newest>,
    pub(super) verdict: Option<Verdict>,
    /// Why nothing is done with it, if so.
    pub(super) wait: Option<&'a Wait>,
    pub(super) pulled: ImageStands<'a>,
    /// Why its image or its start was refused: a word and a sentence.
    pub(super) refused: Option<(&'a str, &'a str)>,
}

pub(super) fn status(
    pod: &Pod,
    config: &Config,
    phase: Phase,
    containers: &[Known<'_>],
    now: Timestamp,
) -> Value {
    let (main, init): (Vec<_>, Vec<_>) = containers.iter().partition(|known| known.part == Part::Main);
    let of = |those: &[&Known<'_>]| those.iter().map(|known| container(known)).collect::<Vec<_>>();
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now, |at| at.0);
    let mut status = json!({
        "observedGeneration": pod.metadata.generation,
        "phase": phase.name(),
        "hostIP": config.address,
        "hostIPs": [{ "ip": config.address }],
        "podIP": config.address,
        "podIPs": [{ "ip": config.address }],
        "startTime": format!("{started:.0}"),
        "conditions": conditions(pod, phase, containers, now),
        "containerStatuses": of(&main),
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = json!(of(&init));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid },
        "status": status,
    })
}

fn container(known: &Known<'_>) -> Value {
    let id = known.newest.map(|newest| format!("midflight://{}", newest.blueprint.id));
    let mut status = json!({
        "name": known.name,
        "image": known.image,
        "imageID": known.newest.map(|newest| newest.blueprint.image_id.clone()).unwrap_or_default(),
        "restartCount": known.newest.map_or(0, |newest| newest.blueprint.attempt),
        "ready": ready(known) || (known.part == Part::Init && is_done(known)),
        "started": known.verdict.as_ref().is_some_and(|verdict| verdict.started),
        "state": state(known),
        "lastState": last_state(known),
    });
    if let Some(id) = id {
        status["containerID"] = json!(id);
    }
    status
}

fn is_done(known: &Known<'_>) -> bool {
    matches!(&known.newest, Some(Newest { state: State::Ended(exit), .. }) if exit.code == 0)
}

/// Whether those that come after need not wait for it.
fn is_initialized(known: &Known<'_>) -> bool {
    match known.part {
        Part::Init => is_done(known),
        Part::Beside => known.verdict.as_ref().is_some_and(|verdict| verdict.started),
        Part::Main => true,
    }
}

fn ready(known: &Known<'_>) -> bool {
    known.verdict.as_ref().is_some_and(|verdict| verdict.ready)
}

fn state(known: &Known<'_>) -> Value {
    match known.newest.map(|newest| &newest.state) {
        Some(State::Running { started_at: Some(at), .. }) => {
            return json!({ "running": { "startedAt": format!("{at:.0}") } });
        }
        Some(State::Ended(exit)) if known.refused.is_none() && !restarts(known) => {
            return json!({ "terminated": terminated(exit, known) });
        }
        _ => {}
    }
    let (reason, message) = match (known.refused, known.wait) {
        (Some((reason, message)), _) => (reason, message.to_owned()),
        (None, Some(wait @ Wait::CrashBackOff { .. })) => ("CrashLoopBackOff", wait.to_string()),
        (None, Some(Wait::Initializing)) => ("PodInitializing", String::new()),
        (None, Some(wait @ Wait::Pulls)) => ("ContainerCreating", wait.to_string()),
        (None, _) => ("ContainerCreating", String::new()),
    };
    match message.is_empty() {
        true => json!({ "waiting": { "reason": reason } }),
        false => json!({ "waiting": { "reason": reason, "message": message } }),
    }
}

/// It has ended, and its next start is only a matter of time.
fn restarts(known: &Known<'_>) -> bool {
    matches!(known.wait, Some(Wait::CrashBackOff { .. } | Wait::Pulls | Wait::PullBackOff { .. }))
}

fn last_state(known: &Known<'_>) -> Value {
    let Some(newest) = known.newest else { return json!({}) };
    let exit = match &newest.state {
        State::Ended(exit) if known.refused.is_some() || restarts(known) => Some(exit),
        _ => newest.before.as_ref(),
    };
    exit.map_or_else(|| json!({}), |exit| json!({ "terminated": terminated(exit, known) }))
}

fn terminated(exit: &Exit, known: &Known<'_>) -> Value {
    let mut value = json!({
        "exitCode": exit.code,
        "reason": exit.reason,
        "startedAt": format!("{:.0}", exit.started_at),
        "finishedAt": format!("{:.0}", exit.finished_at),
    });
    if let Some(signal) = exit.signal {
        value["signal"] = json!(signal);
    }
    if let Some(message) = &exit.message {
        value["message"] = json!(message);
    }
    if let Some(newest) = known.newest {
        value["containerID"] = json!(format!("midflight://{}", newest.blueprint.id));
    }
    value
}

fn conditions(pod: &Pod, phase: Phase, containers: &[Known<'_>], now: Timestamp) -> Vec<Value> {
    let known = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let over = matches!(phase, Phase::Succeeded | Phase::Failed);
    let main_begun = containers.iter().any(|known| known.part == Part::Main && known.newest.is_some());
    let awaited: Vec<&str> = match main_begun {
        true => Vec::new(),
        false => containers.iter().filter(|known| !is_initialized(known)).map(|known| known.name).collect(),
    };
    let initialized = awaited.is_empty();
    let serving = containers.iter().filter(|known| known.part != Part::Init);
    let unready: Vec<&str> = serving.filter(|known| !ready(known)).map(|known| known.name).collect();
    let containers_ready = unready.is_empty() && !over;
    let why_unready = match phase {
        Phase::Succeeded => Some(("PodCompleted", String::new())),
        Phase::Failed => Some(("PodFailed", String::new())),
        Phase::Pending | Phase::Running if unready.is_empty() => None,
        Phase::Pending | Phase::Running => {
            Some(("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" "))))
        }
    };
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let gates_open = { gates }.all(|gate| {
        known.iter().any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    });
    let why_not_ready = why_unready.clone().or_else(|| {
        (!gates_open).then(|| ("ReadinessGatesNotReady", "a readiness gate is not open".to_owned()))
    });
    let not_initialized = (!initialized).then(|| {
        ("ContainersNotInitialized", format!("containers with incomplete status: [{}]", awaited.join(" ")))
    });
    let begun = containers.iter().any(|known| known.newest.is_some());
    let not_pulled = if over { None } else { not_pulled(containers) };
    [
        (IMAGES_PULLED, not_pulled.is_none(), not_pulled),
        ("PodReadyToStartContainers", begun && !over, None),
        ("Initialized", initialized, not_initialized),
        ("Ready", containers_ready && gates_open, why_not_ready),
        ("ContainersReady", containers_ready, why_unready),
        ("PodScheduled", true, None),
    ]
    .into_iter()
    .map(|(kind, holds, why)| condition(known, kind, holds, why, now))
    .collect()
}

/// What is said of images that are not there: of one that cannot be had before one that is on its way.
fn not_pulled<'a>(containers: &[Known<'a>]) -> Option<(&'a str, String)> {
    let refused = containers.iter().find_map(|known| match known.pulled {
        ImageStands::Refused { reason, message, again_at } => {
            Some((reason, format!("{}: {message}; it is tried again at {again_at:.0}", known.image)))
        }
        ImageStands::NotLookedFor | ImageStands::Pulled(_) | ImageStands::There => None,
    });
    let pulled: Vec<String> = containers
        .iter()
        .filter_map(|known| match known.pulled {
            ImageStands::Pulled(Some(progress)) => Some(format!("{}: {progress}", known.image)),
            ImageStands::Pulled(None) => Some(format!("{}: it is looked for", known.image)),
            ImageStands::NotLookedFor | ImageStands::Refused { .. } | ImageStands::There => None,
        })
        .collect();
    let on_their_way = (!pulled.is_empty()).then(|| ("Pulling", pulled.join(", ")));
    let to_come = containers.iter().any(|known| known.pulled == ImageStands::NotLookedFor);
    refused.or(on_their_way).or_else(|| to_come.then(|| ("NotPulledYet", String::new())))
}

fn condition(
    known: &[PodCondition],
    kind: &str,
    holds: bool,
    why: Option<(&str, String)>,
    now: Timestamp,
) -> Value {
    let status = if holds { "True" } else { "False" };
    let before = known.iter().find(|condition| condition.type_ == kind && condition.status == status);
    let since = before.and_then(|condition| condition.last_transition_time.as_ref()).map_or(now, |at| at.0);
    let mut condition =
        json!({ "type": kind, "status": status, "lastTransitionTime": format!("{since:.0}") });
    if let Some((reason, message)) = why {
        condition["reason"] = json!(reason);
        if !message.is_empty() {
            condition["message"] = json!(message);
        }
    }
    condition
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of which nothing is known.
    fn unknown(name: &str, part: Part) -> Known<'_> {
        let pulled = ImageStands::NotLookedFor;
        Known { name, part, image: "app:v1", newest: None, verdict: None, wait: None, pulled, refused: None }
    }

    #[test]
    fn a_pod_that_is_not_initialized_names_those_it_waits_for() {
        let known =
            [unknown("first", Part::Init), unknown("beside", Part::Beside), unknown("main", Part::Main)];
        let told = conditions(&Pod::default(), Phase::Pending, &known, Timestamp::UNIX_EPOCH);
        let initialized = told.iter().find(|condition| condition["type"] == "Initialized").unwrap();
        assert_eq!(initialized["status"], "False");
        assert_eq!(initialized["reason"], "ContainersNotInitialized");
        assert_eq!(initialized["message"], "containers with incomplete status: [first beside]");
        let told = conditions(&Pod::default(), Phase::Pending, &known[2..], Timestamp::UNIX_EPOCH);
        let initialized = told.iter().find(|condition| condition["type"] == "Initialized").unwrap();
        assert_eq!((&initialized["status"], initialized.get("message")), (&json!("True"), None));
    }

    #[test]
    fn a_pod_tells_how_far_its_images_are_or_what_is_in_the_way() {
        use ImageStands::{NotLookedFor, There};
        let half = ImageStands::Pulled(Some(Progress::Arrives { bytes: 1 << 20, of: 2 << 20 }));
        let again_at = Timestamp::from_second(60).unwrap();
        let refused = ImageStands::Refused { reason: "ErrImagePull", message: "no such image", again_at };
        #[rustfmt::skip]
        let cases = [
            (vec![There, There],              None),
            (vec![There, NotLookedFor],       Some(("NotPulledYet", "")),),
            (vec![NotLookedFor, half.clone()], Some(("Pulling", "app-1:v1: 1.0 of 2.0 MiB have arrived"))),
            (vec![half, refused],             Some(("ErrImagePull", "app-1:v1: no such image; it is tried again at 1970-01-01T00:01:00Z"))),
        ];
        for (stands, expected) in cases {
            let names: Vec<String> = (0..stands.len()).map(|number| format!("app-{number}:v1")).collect();
            let known: Vec<Known<'_>> = stands
                .iter()
                .zip(&names)
                .map(|(pulled, image)| Known { image, pulled: pulled.clone(), ..unknown("c", Part::Main) })
                .collect();
            let found = not_pulled(&known);
            assert_eq!(
                found.as_ref().map(|(reason, message)| (*reason, message.as_str())),
                expected,
                "{stands:?}"
            );
        }
    }
}
