//! What may be asked of nodes, also while their data engines are upgraded.

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{DataEngineUpgradeManager, NAMESPACE, Node, Replica, VOLUME_LABEL, Volume};
use midflight_api::{NodeName, VolumeRecord};
use midflight_plan::node_upgrade::{self as plan, Nodes, Stand, attach, create, resume, target};
use serde_json::Value;

use super::{Verdict, register};

/// Whether a volume may come to the node that it asks for.
pub(super) async fn may_be_attached(object: &Value, client: &Client) -> Verdict {
    let volume: Volume = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    let nodes = nodes(client, &volume.spec.node_id).await?;
    let is_known = nodes.contains_key(&volume.spec.node_id);
    if is_known && !nodes.values().any(|node| node.requested) {
        return Ok(Ok(()));
    }
    let name = volume.name_any();
    let records: Api<VolumeRecord> = Api::namespaced(client.clone(), NAMESPACE);
    let replicas: Api<Replica> = Api::namespaced(client.clone(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("{VOLUME_LABEL}={name}"));
    let (record, replicas) = tokio::try_join!(records.get_opt(&name), replicas.list(&of_volume))?;
    let seen = plan::Volume::of(&volume, record.as_ref().map(|record| &record.spec), &replicas);
    Ok(attach(&seen, &volume.spec.node_id, &nodes).map_err(|refusal| refusal.to_string()))
}

/// Whether the target of a volume may come to the node that is asked for, also while the volume is detached.
pub(super) async fn may_be_target(object: &Value, client: &Client) -> Verdict {
    let asked = NodeName::from(object["spec"]["targetNodeID"].as_str().unwrap_or_default());
    let nodes = nodes(client, &asked).await?;
    Ok(target(&asked, &nodes).map_err(|refusal| refusal.to_string()))
}

/// All nodes, and this one also if storage has not seen it yet.
async fn nodes(client: &Client, asked: &NodeName) -> kube::Result<Nodes> {
    let nodes: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    let all = nodes.list(&ListParams::default()).await?.into_iter().map(|node| {
        let requested = node.spec.data_engine_upgrade_requested;
        (node.name_any().into(), plan::Node { requested, ..plan::Node::default() })
    });
    let mut all: Nodes = all.collect();
    let machines: Api<core::Node> = Api::all(client.clone());
    if !all.contains_key(asked) && machines.get_opt(asked.as_str()).await?.is_some() {
        all.insert(asked.clone(), plan::Node::default());
    }
    Ok(all)
}

/// Whether an upgrade of nodes may begin, or go on where it had failed.
pub(super) async fn may_begin(request: &Value, client: &Client) -> Verdict {
    let upgrade: DataEngineUpgradeManager =
        serde_json::from_value(request["object"].clone()).map_err(kube::Error::SerdeError)?;
    if upgrade.namespace().as_deref() != Some(NAMESPACE) {
        return Ok(Err(format!(
            "nodes are upgraded from the namespace {NAMESPACE} only; create it there, with `-n {NAMESPACE}`"
        )));
    }
    // One that is there already may change, and go.
    if request["operation"] == "CREATE" && upgrade.name_any().len() > register::LONGEST_NAME {
        return Ok(Err(format!(
            "the name of an upgrade becomes a label of the upgrades of its nodes, and labels have at most {} characters; choose a shorter one",
            register::LONGEST_NAME
        )));
    }
    let nodes: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client.clone(), NAMESPACE);
    let all = ListParams::default();
    let (nodes, upgrades) = tokio::try_join!(nodes.list(&all), upgrades.list(&all))?;
    let nodes: Vec<_> = nodes.into_iter().map(|node| node.name_any().into()).collect();
    let own = upgrade.name_any();
    let active = upgrades.iter().filter(|other| other.name_any() != own && Stand::of(other).is_active());
    let active = active.map(ResourceExt::name_any).min();
    let verdict = match request["operation"] == "UPDATE" {
        true => resume(&upgrade.spec, &Stand::of(&upgrade), active.as_deref()),
        false => create(&upgrade.spec, &nodes, active.as_deref()),
    };
    Ok(verdict.map_err(|refusal| refusal.to_string()))
}
