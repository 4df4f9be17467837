//! What there is to say of an upgrade of nodes while it moves.
//!
//! The invariant: a line is told again only because something has happened, never because time has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngineUpgradeManager, NodeDataEngineUpgrade, NodeDataEngineUpgradeStatus, NodeUpgradeState,
    UpgradeNodeStatus, UpgradeState,
};
use midflight_plan::node_upgrade::Pace;

use crate::output::{about, milliseconds};

/// Something that happened, and what is expected since.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    of: String,
    happened: String,
    expected: String,
}

impl Line {
    fn of(of: impl Into<String>, happened: impl Into<String>) -> Line {
        Line { of: of.into(), happened: happened.into(), expected: String::new() }
    }
}

/// Who has told what.
#[derive(Default)]
pub(super) struct View {
    told: BTreeMap<String, String>,
}

impl View {
    /// What was not told yet.
    pub(super) fn news(
        &mut self,
        upgrade: &DataEngineUpgradeManager,
        children: &[NodeDataEngineUpgrade],
        pace: Pace,
        now: Timestamp,
    ) -> Vec<String> {
        let mut news = Vec::new();
        for Line { of, happened, expected } in lines(upgrade, children, pace, now) {
            if self.told.get(&of) != Some(&happened) {
                news.push(format!("{of}: {happened}{expected}"));
                self.told.insert(of, happened);
            }
        }
        news
    }
}

/// By node and volume.
fn lines(
    upgrade: &DataEngineUpgradeManager,
    children: &[NodeDataEngineUpgrade],
    pace: Pace,
    now: Timestamp,
) -> Vec<Line> {
    let mut lines = vec![summary(upgrade, pace, now)];
    for child in children {
        let Some(status) = &child.status else { continue };
        let node = child.spec.node_id.to_string();
        lines.push(Line::of(node.clone(), of_node(status)));
        for (volume, entry) in &status.volumes {
            let of = format!("{node}: {volume}");
            if !entry.message.is_empty() {
                lines.push(Line::of(of.clone(), entry.message.to_string()));
            }
            if entry.pause_us > 0 {
                let there = &entry.temporary_node_id;
                let pause =
                    format!("{} while its engine moved to {there} or back", milliseconds(entry.pause_us));
                lines.push(Line::of(format!("{of}: longest pause"), pause));
            }
        }
    }
    lines
}

/// Where a node stands, and what it waits for that is not told of a volume.
fn of_node(status: &NodeDataEngineUpgradeStatus) -> String {
    let state = status.state;
    let is_of_volume = status.volumes.values().any(|volume| !volume.message.is_empty());
    match (status.failure.as_str(), status.message.as_str()) {
        ("", message) if message.is_empty() || is_of_volume => state.to_string(),
        ("", message) => format!("{state}: {message}"),
        (failure, _) if state == NodeUpgradeState::Error => format!("{state}: {failure}"),
        (failure, message) if message == failure || is_of_volume => format!("{state}, goes back: {failure}"),
        (_, message) => format!("{state}: {message}"),
    }
}

fn summary(upgrade: &DataEngineUpgradeManager, pace: Pace, now: Timestamp) -> Line {
    let status = upgrade.status.clone().unwrap_or_default();
    let count = status.upgrade_nodes.len();
    let done = status.upgrade_nodes.values().filter(|node| node.state == NodeUpgradeState::Completed).count();
    let nodes = if count == 0 { String::new() } else { format!(", {done} of {count} nodes") };
    let why = if status.message.is_empty() { String::new() } else { format!(": {}", status.message) };
    let is_moving = status.state == UpgradeState::Upgrading && !upgrade.spec.paused;
    let learnt = Pace::learn([upgrade]);
    let pace = if learnt.learnt_from > 0 { learnt } else { pace };
    let rest = rest(status.upgrade_nodes.values(), pace, now);
    let expected = match rest.as_secs() {
        1.. if is_moving && pace.learnt_from > 0 => format!("; {} to go", about(rest.as_secs())),
        1.. if is_moving => {
            format!("; {} to go, if each node takes {}", about(rest.as_secs()), about(pace.node.as_secs()))
        }
        _ => String::new(),
    };
    Line { of: upgrade.name_any(), happened: format!("{}{nodes}{why}", status.state), expected }
}

/// How long the nodes that are left are expected to take, as many at once as are now.
fn rest<'a>(nodes: impl Iterator<Item = &'a UpgradeNodeStatus>, pace: Pace, now: Timestamp) -> Duration {
    let (mut all, mut at_once) = (Duration::ZERO, 0);
    for entry in nodes {
        let moment = |text: &str| text.parse::<Timestamp>().ok();
        all += match entry.state {
            NodeUpgradeState::Undefined => {
                let rests = moment(entry.retry_at.as_str()).filter(|at| *at > now);
                pace.node + rests.map_or(Duration::ZERO, |at| at.duration_since(now).unsigned_abs())
            }
            state if state.is_under_way() => {
                at_once += 1;
                let began = moment(entry.started_at.as_str()).unwrap_or(now).min(now);
                pace.node.saturating_sub(now.duration_since(began).unsigned_abs())
            }
            _ => Duration::ZERO,
        };
    }
    all / at_once.max(1)
}

#[cfg(test)]
mod tests {
    use NodeUpgradeState::*;
    use midflight_api::longhorn::VolumeUpgradeStatus;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn entry(state: NodeUpgradeState, began: i64, ended: Option<i64>) -> UpgradeNodeStatus {
        let mut entry = UpgradeNodeStatus { state, ..Default::default() };
        if state != Undefined {
            entry.started_at = at(began).to_string().into();
        }
        entry.completed_at = ended.map(|at_second| at(at_second).to_string()).unwrap_or_default().into();
        entry
    }

    fn upgrade(nodes: &[UpgradeNodeStatus]) -> DataEngineUpgradeManager {
        let mut upgrade = DataEngineUpgradeManager::new("upgrade", Default::default());
        let status = upgrade.status.get_or_insert_default();
        status.state = UpgradeState::Upgrading;
        let named =
            |(number, entry): (usize, &UpgradeNodeStatus)| (format!("node-{number}").into(), entry.clone());
        status.upgrade_nodes = nodes.iter().enumerate().map(named).collect();
        upgrade
    }

    #[test]
    fn what_is_left_is_estimated_by_what_nodes_have_taken() {
        let told = |nodes: &[UpgradeNodeStatus], pace| summary(&upgrade(nodes), pace, at(30)).expected;
        let known = Pace { node: Duration::from_secs(20), learnt_from: 3 };
        let (waits, done) = (entry(Undefined, 0, None), entry(Completed, 0, Some(10)));
        let mut retried = waits.clone();
        retried.retry_at = at(35).to_string().into();
        #[rustfmt::skip]
        let cases = [
            ("assumed",            vec![entry(Initializing, 30, None), waits.clone()],              Pace::ASSUMED, "; about 2m0s to go, if each node takes about 1m0s"),
            ("known from before",  vec![entry(Initializing, 30, None), waits.clone()],              known,         "; about 40s to go"),
            ("half of it is over", vec![entry(SwitchingOver, 20, None), waits.clone()],             known,         "; about 30s to go"),
            ("learnt by now",      vec![done.clone(), entry(SwitchingOver, 26, None), waits.clone()], known,       "; about 16s to go"),
            ("two at once",        vec![entry(SwitchingOver, 20, None), entry(SwitchingOver, 20, None), waits.clone(), waits.clone()], known, "; about 30s to go"),
            ("longer than usual",  vec![entry(RebuildingReplica, -900, None)],                      known,         ""),
            ("tried again later",  vec![retried],                                                   known,         "; about 25s to go"),
            ("all are done",       vec![done],                                                      known,         ""),
        ];
        for (case, nodes, pace, expected) in cases {
            assert_eq!(told(&nodes, pace), expected, "{case}");
        }
        let mut paused = upgrade(&[waits]);
        paused.spec.paused = true;
        assert_eq!(summary(&paused, known, at(30)).expected, "", "nobody knows when it goes on");
    }

    #[test]
    fn lines_are_told_when_something_has_happened_and_not_because_time_passes() {
        let mut view = View::default();
        let one = upgrade(&[entry(SwitchingOver, 0, None), entry(Undefined, 0, None)]);
        let mut child = NodeDataEngineUpgrade::new("upgrade-node-0", Default::default());
        child.spec.node_id = "node-0".into();
        child.status.get_or_insert_default().state = SwitchingOver;
        let children = [child];
        let first = view.news(&one, &children, Pace::ASSUMED, at(0));
        let expected = "about 2m0s to go, if each node takes about 1m0s";
        assert_eq!(
            first,
            [format!("upgrade: upgrading, 0 of 2 nodes; {expected}"), "node-0: switching-over".into()]
        );
        assert!(view.news(&one, &children, Pace::ASSUMED, at(9)).is_empty());

        let [mut child] = children;
        let status = child.status.get_or_insert_default();
        let moved =
            VolumeUpgradeStatus { pause_us: 1500, temporary_node_id: "node-1".into(), ..Default::default() };
        status.volumes = [("vol".into(), moved)].into();
        let told = view.news(&one, &[child], Pace::ASSUMED, at(10));
        assert_eq!(told, ["node-0: vol: longest pause: 1.50 ms while its engine moved to node-1 or back"]);
    }

    #[test]
    fn a_node_says_what_it_waits_for_and_why_it_goes_back() {
        #[rustfmt::skip]
        let cases = [
            // state,                   failure, message,                 of a volume, told
            (SwitchingOver,             "",      "",                      false,       "switching-over"),
            (UpgradingInstanceManager,  "",      "it does not run yet",   false,       "upgrading-instance-manager: it does not run yet"),
            (SwitchingOver,             "",      "the engine moves",      true,        "switching-over"),
            (SwitchingBack,             "why",   "why",                   false,       "switching-back, goes back: why"),
            (SwitchingBack,             "why",   "why; goes back: home",  true,        "switching-back, goes back: why"),
            (SwitchingBack,             "why",   "why; goes back: it",    false,       "switching-back: why; goes back: it"),
            (Error,                     "why",   "why",                   false,       "error: why"),
        ];
        for (state, failure, message, is_of_volume, expected) in cases {
            let mut status = NodeDataEngineUpgradeStatus { state, ..Default::default() };
            (status.failure, status.message) = (failure.into(), message.into());
            let entry = VolumeUpgradeStatus { message: message.into(), ..Default::default() };
            status.volumes = is_of_volume.then_some(("vol".into(), entry)).into_iter().collect();
            assert_eq!(of_node(&status), expected);
        }
    }
}
