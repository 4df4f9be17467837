//! What was measured, beside the goals.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    command::bench::{conditions::Conditions, figure::quantile},
    output::{Answer, Paint, size, table},
};

/// The longest waits may be so much above those of the time without switches.
const WAIT_GOAL_MS: f64 = 10.0;
/// What is copied may be so many times what was missed.
const REBUILD_GOAL: f64 = 1.3;

/// Of one value for each volume: the middle, almost the worst, and the worst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    pub(super) fn of(values: &[f64]) -> Spread {
        let share = |share| quantile(values, share).unwrap_or(0.0);
        Spread { p50: share(0.5), p99: share(0.99), max: share(1.0) }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Waits {
    pub(super) upgrade: Spread,
    pub(super) control: Spread,
}

/// The longest wait of one volume's client in the upgrade.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Worst {
    pub(super) volume: String,
    pub(super) wait_ms: f64,
    /// Node that was under way when it ended, and where that stood.
    pub(super) node: String,
    pub(super) state: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct NodeTook {
    pub(super) node: String,
    pub(super) seconds: f64,
}

/// An upgrade of two groups of nodes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    /// `maxParallelNodes`.
    pub(super) parallel: i32,
    pub(super) nodes: u8,
    pub(super) seconds: f64,
    pub(super) nodes_per_hour: f64,
    /// How many really were under way at once.
    pub(super) most_at_once: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) conditions: Conditions,
    pub(super) nodes: u8,
    pub(super) volumes: u32,
    pub(super) writes_per_second: u32,
    /// All writes, each answered well and each block read back.
    pub(super) writes: usize,
    /// The longest wait of each volume's client.
    pub(super) waits_ms: Waits,
    pub(super) worst: Vec<Worst>,
    /// For how long each frontend held requests back.
    pub(super) pauses_ms: Spread,
    /// The longest that any request waited which met such a pause.
    pub(super) waits_of_moves_ms: Spread,
    pub(super) took: Vec<NodeTook>,
    /// Different blocks of 4 KiB that were written while a replica was away, over all replicas.
    pub(super) missed_bytes: u64,
    pub(super) rebuilt_bytes: u64,
    pub(super) rebuilt_by_missed: f64,
    pub(super) groups: Vec<Group>,
}

impl Measured {
    fn rows(&self) -> Vec<[String; 5]> {
        let number = |value: f64| format!("{value:.1}");
        let row = |name: &str, unit: &str, ours: f64, control: Option<f64>, goal: String| {
            [name.to_owned(), unit.to_owned(), number(ours), control.map(number).unwrap_or_default(), goal]
        };
        let Waits { upgrade, control } = &self.waits_ms;
        let above = upgrade.p99 - control.p99;
        let wait_goal = format!("at most {WAIT_GOAL_MS:.0} above: {}", word(above <= WAIT_GOAL_MS));
        let mut rows = vec![
            row("longest wait of a client, p50", "ms", upgrade.p50, Some(control.p50), String::new()),
            row("longest wait of a client, p99", "ms", upgrade.p99, Some(control.p99), wait_goal),
            row("longest wait of a client, max", "ms", upgrade.max, Some(control.max), String::new()),
            row("pause of a frontend, p50", "ms", self.pauses_ms.p50, None, String::new()),
            row("pause of a frontend, p99", "ms", self.pauses_ms.p99, None, String::new()),
            row("pause of a frontend, max", "ms", self.pauses_ms.max, None, String::new()),
            row("wait for a pause, p50", "ms", self.waits_of_moves_ms.p50, None, String::new()),
            row("wait for a pause, p99", "ms", self.waits_of_moves_ms.p99, None, String::new()),
            row("wait for a pause, max", "ms", self.waits_of_moves_ms.max, None, String::new()),
        ];
        for (state, (volumes, longest)) in self.by_state() {
            let name = format!("longest wait of {volumes} volumes, {state}");
            rows.push(row(&name, "ms", longest, None, String::new()));
        }
        for NodeTook { node, seconds } in &self.took {
            rows.push(row(&format!("time for {node}"), "s", *seconds, None, String::new()));
        }
        let ratio = self.rebuilt_by_missed;
        rows.push([
            "copied by what was missed".to_owned(),
            String::new(),
            format!("{ratio:.2}"),
            String::new(),
            format!("at most {REBUILD_GOAL}: {}", word(ratio <= REBUILD_GOAL)),
        ]);
        for group in &self.groups {
            let name = format!("{} nodes of two groups, {} at once", group.nodes, group.parallel);
            rows.push(row(&name, "nodes/h", group.nodes_per_hour, None, String::new()));
        }
        rows
    }
}

impl Measured {
    /// In which state of a node how many volumes waited longest, and for how long at most.
    fn by_state(&self) -> BTreeMap<&'static str, (usize, f64)> {
        let mut states = BTreeMap::new();
        for Worst { state, wait_ms, .. } in &self.worst {
            let (volumes, longest) = states.entry(*state).or_insert((0, 0.0_f64));
            (*volumes, *longest) = (*volumes + 1, longest.max(*wait_ms));
        }
        states
    }
}

fn word(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        format!(
            "{}\n{} nodes, {} volumes, {} writes per second on each; {} writes, 0 errors, nothing lost; {} missed, {} copied\n\n{}",
            self.conditions,
            self.nodes,
            self.volumes,
            self.writes_per_second,
            self.writes,
            size(self.missed_bytes),
            size(self.rebuilt_bytes),
            table(["MEASURE", "UNIT", "UPGRADE", "CONTROL", "GOAL"], self.rows())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_said_to_be_met_or_missed() {
        let spread = |p99| Spread { p50: 1.0, p99, max: 99.0 };
        let measured = |p99, rebuilt_by_missed| Measured {
            conditions: Conditions::before(),
            nodes: 3,
            volumes: 60,
            writes_per_second: 50,
            writes: 1000,
            waits_ms: Waits { upgrade: spread(p99), control: spread(5.0) },
            worst: [("vol-1", 7.0), ("vol-2", 9.0)]
                .map(|(volume, wait_ms)| Worst {
                    volume: volume.into(),
                    wait_ms,
                    node: "node-1".into(),
                    state: "switching-over",
                })
                .into(),
            pauses_ms: spread(2.0),
            waits_of_moves_ms: spread(3.0),
            took: vec![NodeTook { node: "node-1".into(), seconds: 2.5 }],
            missed_bytes: 4096,
            rebuilt_bytes: 4096,
            rebuilt_by_missed,
            groups: vec![Group {
                parallel: 2,
                nodes: 6,
                seconds: 36.0,
                nodes_per_hour: 600.0,
                most_at_once: 2,
            }],
        };
        let [name, _, longest, ..] = &measured(1.0, 1.0).rows()[9];
        assert_eq!((&name[..], &longest[..]), ("longest wait of 2 volumes, switching-over", "9.0"));
        let goals = |measured: Measured| {
            let goals = measured.rows().into_iter().map(|[.., goal]| goal);
            goals.filter(|goal| !goal.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(goals(measured(15.0, 1.3)), ["at most 10 above: met", "at most 1.3: met"]);
        assert_eq!(goals(measured(15.1, 1.31)), ["at most 10 above: missed", "at most 1.3: missed"]);
    }
}
