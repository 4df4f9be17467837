//! Reads what a node upgrade would look at.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client, ResourceExt};
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, Image, InstanceManager, Node, NodeDataEngineUpgrade, Replica,
    Setting, Volume,
};
use midflight_api::settings;
use midflight_api::{ImageRef, NodeName, VolumeRecord, images_listed};
use midflight_plan::node_upgrade::{self as plan, Child, Nodes, Pace, Policy, Run};
use midflight_plan::storage::engine_image::Ranges;
use midflight_plan::storage::held::{holders, speaks};

use crate::command::plan::engine_upgrade::all;
use crate::list;

const IMAGE: &str = "default-instance-manager-image";

/// The cluster as an upgrade of all nodes sees it, and how long a node takes here.
pub(crate) async fn cluster(client: &Client, to: Option<&str>) -> anyhow::Result<(Run, Pace)> {
    let (volumes, replicas, records, nodes) = tokio::try_join!(
        all::<Volume>(client),
        all::<Replica>(client),
        all::<VolumeRecord>(client),
        all::<Node>(client),
    )?;
    let (managers, images, settings, upgrades, children, machines) = tokio::try_join!(
        all::<InstanceManager>(client),
        all::<Image>(client),
        all::<Setting>(client),
        all::<DataEngineUpgradeManager>(client),
        all::<NodeDataEngineUpgrade>(client),
        machines(client),
    )?;
    let values: BTreeMap<String, String> =
        settings.into_iter().map(|setting| (setting.name_any(), setting.value)).collect();
    let value = |name: &str| values.get(name).map(String::as_str);
    let image = to.or(value(IMAGE)).unwrap_or(built_in());
    let run = Run {
        now: Timestamp::now(),
        name: "plan".into(),
        generation: 1,
        deleting: false,
        protected: true,
        spec: Default::default(),
        status: Default::default(),
        default_image: image.into(),
        policy: Policy::of(value),
        nodes: nodes_of(&nodes, &managers, &Held::of(&image.into(), &images, &machines)),
        volumes: volumes_of(&volumes, &replicas, &records),
        children: children.iter().map(Child::of).collect(),
        rival: None,
    };
    Ok((run, Pace::learn(&upgrades)))
}

/// The image that is the default where no setting says otherwise.
fn built_in() -> &'static str {
    settings::find(IMAGE).map(|setting| setting.default).unwrap_or_default()
}

/// The image that instance managers that are started anew get.
pub(crate) async fn default_image(client: &Client) -> anyhow::Result<ImageRef> {
    let settings = all::<Setting>(client).await?;
    let given = settings.into_iter().find(|setting| setting.name_any() == IMAGE);
    Ok(given.map_or_else(|| built_in().into(), |setting| setting.value.into()))
}

/// Images of instance managers that the cluster knows, as they are called there.
pub(crate) async fn known_images(client: &Client) -> anyhow::Result<Vec<ImageRef>> {
    let (managers, settings) = tokio::try_join!(all::<InstanceManager>(client), all::<Setting>(client))?;
    Ok(images_of(&managers, &settings))
}

fn images_of(managers: &[InstanceManager], settings: &[Setting]) -> Vec<ImageRef> {
    let default = settings.iter().filter(|setting| setting.name_any() == IMAGE);
    let default = default.map(|setting| ImageRef::from(setting.value.as_str()));
    default.chain(managers.iter().map(|manager| manager.spec.image.clone())).collect()
}

async fn machines(client: &Client) -> anyhow::Result<Vec<core::Node>> {
    Ok(list::all(Api::<core::Node>::all(client.clone())).await?.unwrap_or_default())
}

/// What nodes say of an image.
struct Held {
    holders: BTreeSet<NodeName>,
    labels: BTreeMap<NodeName, Ranges>,
}

impl Held {
    fn of(image: &ImageRef, images: &[Image], machines: &[core::Node]) -> Held {
        let listed = machines.iter().map(|machine| (machine.name_any().into(), images_listed(machine)));
        let labels = machines
            .iter()
            .filter_map(|one| Some((one.name_any().into(), speaks(image, one.annotations())?)));
        Held { holders: holders(image, images, listed), labels: labels.collect() }
    }
}

fn nodes_of(nodes: &[Node], managers: &[InstanceManager], held: &Held) -> Nodes {
    let node = |node: &Node| {
        let name = NodeName::from(node.name_any());
        let has_it = held.holders.contains(&name);
        let here =
            managers.iter().filter(|one| one.spec.node_id == name && one.spec.data_engine == DataEngine::V2);
        let seen = plan::Node {
            ready: node.status.as_ref().is_some_and(|status| status.conditions.holds("Ready")),
            requested: node.spec.data_engine_upgrade_requested,
            image: if has_it { plan::Image::There } else { plan::Image::Missing },
            labels: held.labels.get(&name).copied().unwrap_or_default(),
            managers: here.map(plan::Manager::of).collect(),
        };
        (name, seen)
    };
    nodes.iter().map(node).collect()
}

fn volumes_of(volumes: &[Volume], replicas: &[Replica], records: &[VolumeRecord]) -> Vec<plan::Volume> {
    let mut of: BTreeMap<String, Vec<&Replica>> = BTreeMap::new();
    for replica in replicas {
        of.entry(replica.spec.instance.volume_name.to_string()).or_default().push(replica);
    }
    let records: BTreeMap<String, &VolumeRecord> =
        records.iter().map(|record| (record.name_any(), record)).collect();
    let volume = |volume: &Volume| {
        let name = volume.name_any();
        let record = records.get(&name).map(|record| &record.spec);
        plan::Volume::of(volume, record, of.get(&name).into_iter().flatten().copied())
    };
    volumes.iter().filter(|volume| volume.spec.data_engine == DataEngine::V2).map(volume).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image that is there under a short name would be another one under the whole name.
    #[test]
    fn the_default_and_what_runs_are_known_by_the_names_they_have() {
        let setting = |name: &str, value: &str| {
            let mut setting = Setting::default();
            (setting.metadata.name, setting.value) = (Some(name.to_owned()), value.to_owned());
            setting
        };
        let settings = [setting(IMAGE, "manager:v2"), setting("default-engine-image", "engine:v2")];
        let mut manager = InstanceManager::new("im-1", Default::default());
        manager.spec.image = "manager:v1".into();
        assert_eq!(images_of(&[manager], &settings), ["manager:v2", "manager:v1"].map(ImageRef::from));
    }
}
