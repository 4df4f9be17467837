//! Upgrades that are asked for and not over: of engines, and of nodes.
//!
//! The invariant: what holds them is told in the words of the planner that the controllers ask.

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngineUpgradeManager, DataEngineUpgradeManagerStatus, NodeUpgradeState, UpgradeState,
};
use midflight_plan::engine_upgrade::{Forecast, Volume, World, forecast};

use super::storage::Does;

/// What the volumes do that are not on the default engine image.
pub(super) fn engines(world: &World, volumes: &[Volume], now: Timestamp) -> Option<Does> {
    // Where nobody has asked for any, volumes that somebody moves by hand tell of themselves.
    if world.policy.per_node == 0 || world.target.is_empty() {
        return None;
    }
    let plan = forecast(world, volumes, now);
    let waiting = plan.left_out.iter().filter(|one| one.reason.is_waiting());
    let is_idle = plan.moves() == 0 && plan.under_way.is_empty();
    match (&plan.hold, waiting.clone().next()) {
        (_, None) if is_idle => None,
        (Some(hold), _) => Some(Does::Waits(format!("{hold} ({})", how_far(&plan)))),
        (None, Some(first)) if is_idle => {
            Some(Does::Waits(format!("{}; {}: {}", how_far(&plan), first.volume, first.reason)))
        }
        (None, _) => Some(Does::Moves(how_far(&plan))),
    }
}

fn how_far(plan: &Forecast) -> String {
    let waiting = plan.left_out.iter().filter(|one| one.reason.is_waiting()).count();
    let waiting = if waiting == 0 { String::new() } else { format!(", {waiting} left out") };
    format!(
        "to {}: {} there, {} on the way, {} to go{waiting}, {} of a node at once",
        plan.target,
        plan.there,
        plan.under_way.len(),
        plan.moves(),
        plan.policy.per_node
    )
}

/// What an upgrade of nodes does.
pub(super) fn nodes(upgrade: &DataEngineUpgradeManager) -> Option<Does> {
    let status = upgrade.status.clone().unwrap_or_default();
    let (is_under_way, told) = (!status.upgrading_node.is_empty(), progress(&status));
    let because = if status.message.is_empty() { String::new() } else { format!(": {}", status.message) };
    if upgrade.metadata.deletion_timestamp.is_some() {
        return Some(Does::Moves(format!("is given up, {told}{because}")));
    }
    match status.state {
        UpgradeState::Completed => None,
        UpgradeState::Error => Some(Does::Waits(format!("has failed, {told}{because}"))),
        UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => {
            let paused = if upgrade.spec.paused { "paused, " } else { "" };
            // After a failure a node rests, and comes again by itself.
            let rests = status
                .upgrade_nodes
                .values()
                .any(|entry| entry.state == NodeUpgradeState::Undefined && !entry.retry_at.is_empty());
            let is_held = !is_under_way && (upgrade.spec.paused || !status.message.is_empty() && !rests);
            let told = match is_held && upgrade.spec.paused {
                true => format!(
                    "{paused}{told}; `midflight upgrade nodes --name {} --resume` goes on",
                    upgrade.name_any()
                ),
                false => format!("{paused}{told}{because}"),
            };
            Some(if is_held { Does::Waits(told) } else { Does::Moves(told) })
        }
    }
}

fn progress(status: &DataEngineUpgradeManagerStatus) -> String {
    let done =
        status.upgrade_nodes.values().filter(|entry| entry.state == NodeUpgradeState::Completed).count();
    let under_way = status.upgrade_nodes.iter().filter(|(_, entry)| entry.state.is_under_way());
    let under_way: String = under_way.map(|(node, entry)| format!(", {node} is {}", entry.state)).collect();
    let to = match status.instance_manager_image.as_str() {
        "" => "begins".to_owned(),
        image => format!("to {image}"),
    };
    match status.upgrade_nodes.len() {
        0 => to,
        all => format!("{to}: {done} of {all} nodes done{under_way}"),
    }
}

#[cfg(test)]
mod tests {
    use midflight_api::longhorn::{
        self, DataEngine, EngineImage, Replica, Robustness, Setting, UpgradeNodeStatus, VolumeState,
    };

    use super::*;
    use crate::command::plan::engine_upgrade::seen;

    fn upgrade(state: UpgradeState, message: &str, at: &[NodeUpgradeState]) -> DataEngineUpgradeManager {
        let mut upgrade = DataEngineUpgradeManager::new("upgrade", Default::default());
        let status = upgrade.status.get_or_insert_default();
        (status.state, status.message) = (state, message.into());
        status.instance_manager_image = "im:2".into();
        for (number, state) in at.iter().enumerate() {
            let name = format!("node-{}", number + 1);
            if !matches!(state, NodeUpgradeState::Completed | NodeUpgradeState::Undefined) {
                status.upgrading_node = name.as_str().into();
            }
            status
                .upgrade_nodes
                .insert(name.into(), UpgradeNodeStatus { state: *state, ..Default::default() });
        }
        upgrade
    }

    #[test]
    fn an_upgrade_of_nodes_goes_on_waits_or_is_over() {
        use NodeUpgradeState::{Completed, SwitchingOver, Undefined};
        let paused = |mut upgrade: DataEngineUpgradeManager| {
            upgrade.spec.paused = true;
            upgrade
        };
        let rests = |mut upgrade: DataEngineUpgradeManager| {
            let nodes = &mut upgrade.status.as_mut().unwrap().upgrade_nodes;
            nodes.get_mut("node-2").unwrap().retry_at = "2026-01-01T00:01:00Z".into();
            upgrade
        };
        let moves = |text: &str| Some(Does::Moves(text.to_owned()));
        let waits = |text: &str| Some(Does::Waits(text.to_owned()));
        let half = [Completed, SwitchingOver];
        #[rustfmt::skip]
        let cases = [
            ("under way", upgrade(UpgradeState::Upgrading, "", &half),
                moves("to im:2: 1 of 2 nodes done, node-2 is switching-over")),
            ("paused, one ends", paused(upgrade(UpgradeState::Upgrading, "paused: no further node begins", &half)),
                moves("paused, to im:2: 1 of 2 nodes done, node-2 is switching-over: paused: no further node begins")),
            ("paused", paused(upgrade(UpgradeState::Upgrading, "paused: no further node begins", &[Completed, Undefined])),
                waits("paused, to im:2: 1 of 2 nodes done; `midflight upgrade nodes --name upgrade --resume` goes on")),
            ("held up", upgrade(UpgradeState::Initializing, "waits: vol-1 is expanding", &[Undefined]),
                waits("to im:2: 0 of 1 nodes done: waits: vol-1 is expanding")),
            ("it rests", rests(upgrade(UpgradeState::Upgrading, "node-2: failed, and is tried again after 60 s: why", &[Completed, Undefined])),
                moves("to im:2: 1 of 2 nodes done: node-2: failed, and is tried again after 60 s: why")),
            ("paused while it rests", paused(rests(upgrade(UpgradeState::Upgrading, "paused: no further node begins", &[Completed, Undefined]))),
                waits("paused, to im:2: 1 of 2 nodes done; `midflight upgrade nodes --name upgrade --resume` goes on")),
            ("failed", upgrade(UpgradeState::Error, "single replica of vol-1", &[]),
                waits("has failed, to im:2: single replica of vol-1")),
            ("over", upgrade(UpgradeState::Completed, "", &[Completed]), None),
        ];
        for (case, upgrade, expected) in cases {
            assert_eq!(nodes(&upgrade), expected, "{case}");
        }
    }

    /// A volume of the v1 data engine that nobody has.
    fn volume(name: &str, runs: &str, wanted: &str) -> longhorn::Volume {
        let mut volume = longhorn::Volume::new(name, Default::default());
        (volume.spec.data_engine, volume.spec.image) = (DataEngine::V1, wanted.into());
        let status = volume.status.get_or_insert_default();
        (status.state, status.robustness) = (VolumeState::Detached, Robustness::Unknown);
        (status.current_image, status.owner_id) = (runs.into(), "node-1".into());
        volume
    }

    fn told(volumes: &[longhorn::Volume], settings: &[(&str, &str)]) -> Option<Does> {
        let image = |name: &str| {
            let mut image = EngineImage::new(name, Default::default());
            image.spec.image = name.into();
            let status = image.status.get_or_insert_default();
            status.node_deployment_map = [("node-1".into(), true)].into();
            status.controller_api_version = 1;
            image
        };
        let setting = |(name, value): &(&str, &str)| {
            let mut setting = Setting::default();
            (setting.metadata.name, setting.value) = (Some((*name).to_owned()), (*value).to_owned());
            setting
        };
        let settings: Vec<Setting> = settings.iter().map(setting).collect();
        let replica = |volume: &longhorn::Volume| {
            let mut replica = Replica::new("r", Default::default());
            let spec = &mut replica.spec.instance;
            (spec.volume_name, spec.node_id) = (volume.name_any().into(), "node-1".into());
            replica
        };
        let replicas: Vec<Replica> = volumes.iter().map(replica).collect();
        let (world, volumes) = seen(volumes, &replicas, &[image("engine:1"), image("engine:2")], &settings);
        engines(&world, &volumes, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn upgrades_of_engines_are_told_with_what_holds_them() {
        const DEFAULT: (&str, &str) = ("default-engine-image", "engine:2");
        const LIMIT: &str = "concurrent-automatic-engine-upgrade-per-node-limit";
        const PAUSED: (&str, &str) = ("automatic-engine-upgrade-paused", "true");
        let old = || volume("a", "engine:1", "engine:1");
        let new = || volume("b", "engine:2", "engine:2");
        let on_its_way = || volume("c", "engine:1", "engine:2");
        let all = "to engine:2: 1 there, 1 on the way, 1 to go, 3 of a node at once";
        #[rustfmt::skip]
        let cases = [
            ("under way", vec![old(), new(), on_its_way()], vec![DEFAULT, (LIMIT, "3")], Some(Does::Moves(all.into()))),
            ("paused", vec![old(), new(), on_its_way()], vec![DEFAULT, (LIMIT, "3"), PAUSED],
                Some(Does::Waits(format!("automatic engine upgrades are paused ({all})")))),
            ("off", vec![old(), new()], vec![DEFAULT, (LIMIT, "0")], None),
            ("no default", vec![old(), on_its_way()], vec![(LIMIT, "3")], None),
            ("all are there", vec![new()], vec![DEFAULT, (LIMIT, "3")], None),
        ];
        for (case, volumes, settings, expected) in cases {
            assert_eq!(told(&volumes, &settings), expected, "{case}");
        }
    }
}
