//! Builders for nodes and volumes, which hide what a row does not speak of.

mod admission;
mod attempts;
mod forecasts;
mod model;
mod properties;
mod rules;
mod runs;
mod steps;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use midflight_api::NodeName;
use midflight_api::longhorn::{InstanceManagerState, VolumeState};

use crate::storage::engine_image::{Range, Ranges, SPOKEN};

use super::facts::{Copy, Image, Manager, Node, Nodes, Policy, Replica, Volume};

const OLD: &str = "im:v1";
const NEW: &str = "im:v2";

/// So many seconds after the beginning of time.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn policy() -> Policy {
    Policy {
        deadline: Duration::from_secs(600),
        retries: 1,
        back_off: Duration::from_secs(60),
        rebuilds: true,
    }
}

fn name(node: usize) -> NodeName {
    format!("node-{node}").into()
}

/// A program that takes our orders and knows these versions of all else.
fn speaks(oldest: u32, newest: u32) -> Ranges {
    let all = Range { oldest, newest };
    Ranges { api: SPOKEN, wire: all, disk: all }
}

/// An instance manager of an image that serves.
fn manager(node: &str, image: &str, instances: usize) -> Manager {
    let state = InstanceManagerState::Running;
    let name = format!("{image}-{node}");
    Manager { name, image: image.into(), state, deleting: false, instances, versions: speaks(1, 2) }
}

/// A node that runs the old image and has the new one.
fn node(number: usize) -> Node {
    let old = manager(name(number).as_str(), OLD, 0);
    let stopped = InstanceManagerState::Stopped;
    let new = Manager { state: stopped, ..manager(name(number).as_str(), NEW, 0) };
    Node {
        ready: true,
        requested: false,
        image: Image::There,
        labels: Ranges::default(),
        managers: vec![old, new],
    }
}

fn nodes(count: usize) -> Nodes {
    (1..=count).map(|number| (name(number), node(number))).collect()
}

fn replica(volume: &str, node: usize) -> Replica {
    Replica {
        name: format!("{volume}-r-{node}").into(),
        node: name(node),
        told_to_stop: false,
        runs: true,
        copy: Copy::InService,
    }
}

/// A healthy volume that is attached to a node, with replicas on these.
fn attached(volume: &str, on: usize, replicas: &[usize]) -> Volume {
    Volume {
        name: volume.into(),
        state: VolumeState::Attached,
        node: name(on),
        serves_on: name(on),
        seat: name(on),
        owner: name(on),
        image: OLD.into(),
        wanted_replicas: replicas.len(),
        replicas: replicas.iter().map(|node| replica(volume, *node)).collect(),
        ..Volume::default()
    }
}

/// The same, attached to no node.
fn detached(volume: &str, owner: usize, replicas: &[usize]) -> Volume {
    let mut one = attached(volume, owner, replicas);
    (one.node, one.serves_on, one.seat) = Default::default();
    one.state = VolumeState::Detached;
    one.replicas.iter_mut().for_each(|replica| replica.runs = false);
    one
}

/// A volume with one thing about it changed.
fn with(mut volume: Volume, change: impl FnOnce(&mut Volume)) -> Volume {
    change(&mut volume);
    volume
}

fn by_name(volumes: Vec<Volume>) -> BTreeMap<midflight_api::VolumeName, Volume> {
    volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect()
}
