//! Volumes as people and programs read them.

use kube::ResourceExt;
use midflight_api::longhorn::{Condition, ConditionStatus, Engine, Node, Replica, Volume};
use midflight_plan::storage::volume::{NODE_LOST, SETTLED};
use serde::Serialize;

use super::wait::why;
use crate::output::{self, Answer, Paint, table};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    state: String,
    robustness: String,
    size_bytes: u64,
    /// What it takes on the disk of each replica, as was last seen.
    taken_bytes: u64,
    node: String,
    /// Why that node is not ready, if so: what runs there may serve on, or be lost.
    #[serde(skip_serializing_if = "String::is_empty")]
    node_problem: String,
    engine: String,
}

/// What is wrong with a node that storage knows.
fn problem(node: &Node) -> Option<String> {
    let ready = node.status.as_ref()?.conditions.get("Ready")?;
    (ready.status == ConditionStatus::False).then(|| ready.message.to_string())
}

impl Row {
    fn of(volume: &Volume, nodes: &[Node]) -> Row {
        let status = volume.status.clone().unwrap_or_default();
        let node = nodes.iter().find(|node| status.current_node_id == node.name_any().as_str());
        Row {
            name: volume.name_any(),
            state: status.state.to_string(),
            robustness: status.robustness.to_string(),
            size_bytes: volume.spec.size.bytes(),
            taken_bytes: status.actual_size.try_into().unwrap_or_default(),
            node: status.current_node_id.to_string(),
            node_problem: node.and_then(problem).unwrap_or_default(),
            engine: volume.spec.data_engine.to_string(),
        }
    }
}

/// All volumes.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Listed(Vec<Row>);

impl Listed {
    pub(super) fn of(volumes: &[Volume], nodes: &[Node]) -> Listed {
        Listed(volumes.iter().map(|volume| Row::of(volume, nodes)).collect())
    }
}

impl Answer for Listed {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.0.iter().map(|row| {
            let node = match row.node_problem.is_empty() {
                true => row.node.clone(),
                false => format!("{} (not ready)", row.node),
            };
            let cells = [&row.name, &row.state, &row.robustness, &size(row.size_bytes), &node, &row.engine];
            cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell.clone() })
        });
        table(["NAME", "STATE", "ROBUSTNESS", "SIZE", "NODE", "ENGINE"], rows)
    }
}

/// One volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    #[serde(flatten)]
    row: Row,
    /// Empty while nobody is served.
    endpoint: String,
    waits_for: String,
    replicas: Vec<Held>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    name: String,
    node: String,
    state: String,
    mode: String,
}

impl Shown {
    pub(super) fn of(volume: &Volume, nodes: &[Node], engines: &[Engine], replicas: &[Replica]) -> Shown {
        let engine = engines.first().and_then(|engine| engine.status.clone()).unwrap_or_default();
        let copy = |replica: &Replica| {
            let mode = engine.replica_mode_map.get(replica.name_any().as_str());
            let status = replica.status.clone().unwrap_or_default();
            Held {
                name: replica.name_any(),
                node: replica.spec.instance.node_id.to_string(),
                state: status.instance.current_state.to_string(),
                mode: mode.map(ToString::to_string).unwrap_or_default(),
            }
        };
        let settled = volume.status.as_ref().and_then(|status| status.conditions.get(SETTLED));
        let is_lost = settled.is_some_and(|settled: &Condition| settled.reason == NODE_LOST);
        Shown {
            row: Row::of(volume, nodes),
            // The path is known still, and nobody is there.
            endpoint: if is_lost { String::new() } else { engine.endpoint.to_string() },
            waits_for: why(Some(volume)),
            replicas: replicas.iter().map(copy).collect(),
        }
    }
}

impl Answer for Shown {
    fn to_table(&self, paint: Paint) -> String {
        let row = &self.row;
        let mut text = format!(
            "{} is {} and {}: {} of {}, which take {} on each replica\n",
            paint.bold(&row.name),
            row.state,
            row.robustness,
            size(row.size_bytes),
            row.engine,
            output::size(row.taken_bytes)
        );
        if !self.endpoint.is_empty() {
            text += &format!("clients find it at {} on {}\n", self.endpoint, row.node);
        }
        if !row.node_problem.is_empty() {
            text += &format!("{}: {}\n", row.node, row.node_problem);
        }
        text += &format!("{}\n\n", self.waits_for);
        let rows = self.replicas.iter().map(|copy| {
            [&copy.name, &copy.node, &copy.state, &copy.mode]
                .map(|cell| if cell.is_empty() { "-".to_owned() } else { cell.clone() })
        });
        text + &table(["REPLICA", "NODE", "STATE", "MODE"], rows)
    }
}

/// A size in the largest unit that leaves no rest.
fn size(bytes: u64) -> String {
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let fits = units.into_iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    fits.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: &str, reason: &str, message: &str) -> Condition {
        let status = ConditionStatus::False;
        let (kind, reason, message) = (kind.into(), reason.into(), message.into());
        Condition { kind, status, reason, message, ..Condition::default() }
    }

    /// An agent that is gone leaves those who serve; a node that is lost leaves nobody.
    #[test]
    fn a_volume_says_that_its_node_is_not_there() {
        let mut volume = Volume::new("vol-1", Default::default());
        volume.status.get_or_insert_default().current_node_id = "node-1".into();
        let mut engine = Engine::new("vol-1-e-0", Default::default());
        engine.status.get_or_insert_default().endpoint = "nbd+unix:///vol-1?socket=s".into();
        let (mut node, other) =
            (Node::new("node-1", Default::default()), Node::new("node-2", Default::default()));
        let shown = |volume: &Volume, node: &Node| {
            let nodes = [other.clone(), node.clone()];
            let one =
                Shown::of(volume, &nodes, std::slice::from_ref(&engine), &[]).to_table(Paint { on: false });
            let all = Listed::of(std::slice::from_ref(volume), &nodes).to_table(Paint { on: false });
            (one, all)
        };
        let (one, all) = shown(&volume, &node);
        assert!(one.contains("clients find it at nbd+unix") && !one.contains("not Ready"), "{one}");
        assert!(all.contains("node-1") && !all.contains("(not ready)"), "{all}");

        node.status.get_or_insert_default().conditions.set(said("Ready", "no", "the Node is not Ready"));
        let (one, all) = shown(&volume, &node);
        assert!(one.contains("clients find it at") && one.contains("node-1: the Node is not Ready"), "{one}");
        assert!(all.contains("node-1 (not ready)"), "{all}");

        let lost = said(SETTLED, NODE_LOST, "node node-1 is lost");
        volume.status.get_or_insert_default().conditions.set(lost);
        let (one, _) = shown(&volume, &node);
        assert!(!one.contains("clients find it at") && one.contains("node node-1 is lost"), "{one}");
    }
}
