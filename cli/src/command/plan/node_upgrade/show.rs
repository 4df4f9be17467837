//! How the plan of a node upgrade looks, to people and to programs.

use std::borrow::Cow;

use midflight_plan::node_upgrade::{Forecast, Obstacle, Stage, Target};
use serde::Serialize;

use crate::output::{Answer, Paint, about, duration, table};

/// A plan as programs read it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    image: String,
    nodes: usize,
    expected_seconds: u64,
    seconds_per_node: u64,
    /// Nodes of this cluster that the figure comes from; with none it is assumed.
    learnt_from: usize,
    /// Nodes that run the image already.
    there: Vec<String>,
    /// Nodes that get the image first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lacking: Vec<String>,
    obstacles: Vec<InTheWay>,
    /// What nobody knows before it is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    caveat: Option<String>,
    stages: Vec<ShownStage>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InTheWay {
    reason: &'static str,
    message: String,
    way_out: Cow<'static, str>,
    /// Whether it may go away by itself.
    passes: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownStage {
    stage: usize,
    starts_after_seconds: u64,
    nodes: Vec<String>,
    volumes: Vec<ShownVolume>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownVolume {
    volume: String,
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_moves_to: Option<String>,
    replica_leaves: bool,
}

impl Shown {
    pub(super) fn of(plan: &Forecast) -> Shown {
        Shown {
            image: plan.image.to_string(),
            nodes: plan.stages.iter().map(|stage| stage.nodes.len()).sum(),
            expected_seconds: plan.duration.as_secs(),
            seconds_per_node: plan.pace.node.as_secs(),
            learnt_from: plan.pace.learnt_from,
            there: plan.there.iter().map(ToString::to_string).collect(),
            lacking: plan.lacking.iter().map(ToString::to_string).collect(),
            obstacles: plan.obstacles.iter().map(in_the_way).collect(),
            caveat: plan.caveat.clone(),
            stages: plan.stages.iter().enumerate().map(|(at, stage)| shown_stage(at + 1, stage)).collect(),
        }
    }
}

fn in_the_way(obstacle: &Obstacle) -> InTheWay {
    InTheWay {
        reason: obstacle.word(),
        message: obstacle.to_string(),
        way_out: obstacle.way_out(),
        passes: obstacle.passes(),
    }
}

fn shown_stage(number: usize, stage: &Stage) -> ShownStage {
    let volume = |one: &Target| ShownVolume {
        volume: one.volume.to_string(),
        node: one.node.to_string(),
        engine_moves_to: one.moves_to.as_ref().map(ToString::to_string),
        replica_leaves: one.replica_leaves,
    };
    ShownStage {
        stage: number,
        starts_after_seconds: stage.after.as_secs(),
        nodes: stage.nodes.iter().map(ToString::to_string).collect(),
        volumes: stage.volumes.iter().map(volume).collect(),
    }
}

impl Answer for Shown {
    fn to_table(&self, paint: Paint) -> String {
        let pace = match self.learnt_from {
            0 => "assumed, as no node was upgraded here".to_owned(),
            count => format!("learnt from {count} nodes here"),
        };
        let mut text = format!("to          {}\n", if self.image.is_empty() { "-" } else { &self.image });
        text += &match self.nodes {
            0 => "upgrades    no node\n".to_owned(),
            count => format!(
                "upgrades    {}, in {} ({} each; {pace})\n",
                nodes(count),
                about(self.expected_seconds),
                about(self.seconds_per_node)
            ),
        };
        text += &format!("there       {}\n", nodes(self.there.len()));
        if !self.lacking.is_empty() {
            let (count, image) = (nodes(self.lacking.len()), &self.image);
            text += &format!(
                "lacking     {count}, which get it first: `midflight upgrade nodes --to {image}` makes it the default\n"
            );
        }
        for one in &self.obstacles {
            text += &format!(
                "{}  {}\n            what helps: {}\n",
                paint.bad("in the way"),
                one.message,
                one.way_out
            );
        }
        if let Some(caveat) = &self.caveat {
            text += &format!("not known   {caveat}\n");
        }
        if self.stages.is_empty() {
            return text;
        }
        text += "\n";
        text += &table(
            ["STAGE", "STARTS", "NODE", "VOLUME", "ENGINE", "REPLICA"],
            self.stages.iter().flat_map(rows),
        );
        text
    }
}

/// A row for each volume of each node, and one for a node without any.
fn rows(stage: &ShownStage) -> Vec<[String; 6]> {
    let start = |node: &str| [stage.stage.to_string(), seconds(stage.starts_after_seconds), node.to_owned()];
    let mut rows = Vec::new();
    for node in &stage.nodes {
        let mut volumes = stage.volumes.iter().filter(|one| one.node == *node).peekable();
        let [number, starts, name] = start(node);
        if volumes.peek().is_none() {
            rows.push([number.clone(), starts.clone(), name.clone(), "-".into(), "-".into(), "-".into()]);
        }
        for one in volumes {
            let engine =
                one.engine_moves_to.as_ref().map_or("stays".to_owned(), |to| format!("to {to} and back"));
            let replica = if one.replica_leaves { "leaves and returns" } else { "-" };
            rows.push([
                number.clone(),
                starts.clone(),
                name.clone(),
                one.volume.clone(),
                engine,
                replica.into(),
            ]);
        }
    }
    rows
}

fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

fn seconds(count: u64) -> String {
    duration(i64::try_from(count).unwrap_or(i64::MAX))
}
