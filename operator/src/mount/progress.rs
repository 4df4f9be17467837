//! Tells how the daemons of a dataset stand: in the status of its runtime, in events and in figures.
//!
//! The invariant: everything comes from what the runtime says, what the DaemonSet counts and the daemons that do not run, so that no other pod is looked at and
//! nothing is told per node.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::jiff::Timestamp;
use midflight_api::fluid::{JuiceFSRuntimeStatus, RuntimeCondition};
use midflight_api::longhorn::ConditionStatus;
use midflight_plan::mount::Policy;
use midflight_plan::mount::progress::{Counted, Standing};

use super::objects::daemons;

/// Condition of a runtime: whether its daemons are what is wanted.
const UP_TO_DATE: &str = "FusesUpToDate";
/// Condition of a runtime: whether all options of its daemons mean something; absent if they do.
const HEEDED: &str = "FuseOptionsHeeded";
/// Condition of a runtime: whether its daemons run; absent if they do, or are about to.
const RUNNING: &str = "FusesRunning";

fn number(count: i32) -> u32 {
    u32::try_from(count).unwrap_or_default()
}

pub(super) fn counted(set: &DaemonSet) -> Counted {
    let seen = set.status.clone().unwrap_or_default();
    Counted {
        generation: daemons(set).generation,
        is_fresh: seen.observed_generation >= set.metadata.generation,
        daemons: number(seen.current_number_scheduled),
        updated: number(seen.updated_number_scheduled.unwrap_or_default()),
    }
}

/// What is told of the daemons, for which of the user's wishes.
pub(super) fn standing(wish: i64, set: &DaemonSet, troubled: usize) -> Standing {
    let seen = set.status.clone().unwrap_or_default();
    let (desired, ready) = (number(seen.desired_number_scheduled), number(seen.number_ready));
    let troubled = u32::try_from(troubled).unwrap_or(u32::MAX);
    Standing { wish, counted: counted(set), desired, ready, troubled }
}

fn condition<'a>(status: &'a JuiceFSRuntimeStatus, kind: &str) -> Option<&'a RuntimeCondition> {
    status.conditions.iter().find(|condition| condition.kind.as_str() == kind)
}

/// Says it in a status.
pub(super) fn say(counted: &Counted, policy: Policy, status: &mut JuiceFSRuntimeStatus) {
    let words = counted.in_words(policy);
    let (is_so, reason) = match counted.outdated() {
        0 => (ConditionStatus::True, "NoneOutdated"),
        _ => (ConditionStatus::False, "SomeOutdated"),
    };
    status.fuse_reason = if is_so == ConditionStatus::True { "".into() } else { words.as_str().into() };
    put(status, UP_TO_DATE, (is_so, reason), &words);
}

/// Says which daemons do not run, if any.
pub(super) fn say_trouble(words: Option<&str>, status: &mut JuiceFSRuntimeStatus) {
    let Some(words) = words else {
        status.conditions.retain(|condition| condition.kind.as_str() != RUNNING);
        return;
    };
    status.fuse_reason = words.into();
    put(status, RUNNING, (ConditionStatus::False, "SomeDoNotRun"), words);
}

/// What is wrong with daemons, to somebody who was told the status before and has not heard of any.
pub(super) fn new_trouble(
    before: Option<&JuiceFSRuntimeStatus>,
    now: &JuiceFSRuntimeStatus,
) -> Option<String> {
    let trouble = condition(now, RUNNING)?;
    let is_news = before.is_none_or(|before| condition(before, RUNNING).is_none());
    is_news.then(|| trouble.message.as_str().to_owned())
}

/// Names the options that change nothing, if there are any.
pub(super) fn say_unheeded(options: &[&str], status: &mut JuiceFSRuntimeStatus) {
    /// A message has an end.
    const NAMED: usize = 8;
    if options.is_empty() {
        status.conditions.retain(|condition| condition.kind.as_str() != HEEDED);
        return;
    }
    let (named, more) = options.split_at(options.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    let words =
        format!("daemons do not have these options, or not with that value: {}{more}", named.join(", "));
    put(status, HEEDED, (ConditionStatus::False, "SomeUnheeded"), &words);
}

fn put(status: &mut JuiceFSRuntimeStatus, kind: &str, (is_so, reason): (ConditionStatus, &str), words: &str) {
    let before = condition(status, kind);
    if before.is_some_and(|before| before.message.as_str() == words) {
        return;
    }
    let now = Timestamp::now().to_string();
    let since =
        before.filter(|before| before.status == is_so).map(|before| before.last_transition_time.clone());
    let told = RuntimeCondition {
        kind: kind.into(),
        status: is_so,
        reason: reason.into(),
        message: words.into(),
        last_probe_time: now.as_str().into(),
        last_transition_time: since.unwrap_or_else(|| now.as_str().into()),
    };
    status.conditions.retain(|condition| condition.kind.as_str() != kind);
    status.conditions.push(told);
}

/// What is news to somebody who was told the status before: the last old daemon has gone.
pub(super) fn arrival(before: Option<&JuiceFSRuntimeStatus>, now: &JuiceFSRuntimeStatus) -> Option<String> {
    let (before, now) = (condition(before?, UP_TO_DATE)?, condition(now, UP_TO_DATE)?);
    let is_news = now.status == ConditionStatus::True && now.message != before.message;
    is_news.then(|| now.message.as_str().to_owned())
}
