//! Builders for worlds and volumes, which hide what a row does not speak of.

mod admission;
mod attempts;
mod forecasts;
mod limits;
mod model;
mod rules;

use std::time::Duration;

use jiff::Timestamp;
use midflight_api::longhorn::{EngineImageState, EngineImageStatus, Robustness, VolumeState};
use midflight_api::{Attempt, Initiator, NodeName, Outcome, Size, Way};

use super::facts::{Policy, TakeOver, Version, Volume, World};

const OLD: &str = "engine:v1";
const NEW: &str = "engine:v2";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// So many seconds after the beginning of time.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

/// An image on all three nodes, which speaks versions 3 to 5 of the engine's interface.
fn image(commit: &str) -> EngineImageStatus {
    EngineImageStatus {
        state: EngineImageState::Deployed,
        node_deployment_map: NODES.iter().map(|node| (NodeName::from(*node), true)).collect(),
        git_commit: commit.into(),
        controller_api_version: 5,
        controller_api_min_version: 3,
        data_format_version: 1,
        data_format_min_version: 1,
        ..EngineImageStatus::default()
    }
}

/// The new image is the default, and so many volumes of a node may move at once.
fn world(per_node: usize) -> World {
    World {
        target: NEW.into(),
        take_over: TakeOver::OfAnyAge,
        policy: Policy { per_node, deadline: Duration::from_secs(600), ..Policy::default() },
        images: [(OLD.into(), image("one")), (NEW.into(), image("two"))].into(),
    }
}

/// A detached volume of the old image, last attached to the node.
fn detached(name: &str, node: &str) -> Volume {
    Volume {
        name: name.into(),
        version: Version::of("1"),
        size: Size::from_bytes(1 << 30),
        wanted: OLD.into(),
        current: OLD.into(),
        state: VolumeState::Detached,
        robustness: Robustness::Unknown,
        owner: node.into(),
        replicas: NODES.iter().map(|node| NodeName::from(*node)).collect(),
        ..Volume::default()
    }
}

/// A healthy volume of the old image, attached to the node.
fn attached(name: &str, node: &str) -> Volume {
    let (state, robustness) = (VolumeState::Attached, Robustness::Healthy);
    Volume { state, robustness, node: node.into(), ..detached(name, node) }
}

/// An attempt to reach the new image that began at second 0.
fn attempt(by: Initiator, outcome: Outcome) -> Attempt {
    let ended_at = (outcome != Outcome::Running).then(|| at(20));
    Attempt {
        by,
        way: Way::Live,
        from: OLD.into(),
        to: NEW.into(),
        node: "node-1".into(),
        issued_at: at(0),
        ended_at,
        outcome,
        failures: u32::from(outcome == Outcome::Failed),
    }
}
