//! Volumes as people and programs read them.

use kube::ResourceExt;
use midflight_api::longhorn::{Engine, Replica, Volume};
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
    engine: String,
}

impl Row {
    fn of(volume: &Volume) -> Row {
        let status = volume.status.clone().unwrap_or_default();
        Row {
            name: volume.name_any(),
            state: status.state.to_string(),
            robustness: status.robustness.to_string(),
            size_bytes: volume.spec.size.bytes(),
            taken_bytes: status.actual_size.try_into().unwrap_or_default(),
            node: status.current_node_id.to_string(),
            engine: volume.spec.data_engine.to_string(),
        }
    }
}

/// All volumes.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Listed(Vec<Row>);

impl Listed {
    pub(super) fn of(volumes: &[Volume]) -> Listed {
        Listed(volumes.iter().map(Row::of).collect())
    }
}

impl Answer for Listed {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.0.iter().map(|row| {
            let cells =
                [&row.name, &row.state, &row.robustness, &size(row.size_bytes), &row.node, &row.engine];
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
    pub(super) fn of(volume: &Volume, engines: &[Engine], replicas: &[Replica]) -> Shown {
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
        Shown {
            row: Row::of(volume),
            endpoint: engine.endpoint.to_string(),
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
