//! Looks at a cluster from both sides: its folder and its API.

use std::{collections::BTreeMap, fs};

use anyhow::Context;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1 as core},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Client, Discovery, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta},
    discovery::verbs,
};

use super::{Api, Control, Node, Seen};
use crate::{
    folder::Folder,
    listen,
    process::{Record, Role},
    session::Session,
    target,
};

/// What can be seen without the API.
pub(super) fn folder(folder: &Folder, session: &Session) -> anyhow::Result<Seen> {
    let marker = folder.marker()?;
    let control = Record::alive(&folder.run(), &Role::Control).context("look for the control plane")?;
    let address = marker.as_ref().and_then(|marker| marker.listen);
    let control = control.map(|(record, alive)| Control {
        pid: alive.pid,
        version: record.version,
        uptime_seconds: Timestamp::now().duration_since(record.since).as_secs(),
        since: record.since,
        address: address.map(|address| format!("https://{}", listen::reachable(address))),
    });
    let stopped = format!("the control plane does not run in {}", folder.root().display());
    let elsewhere = session.global.kubeconfig.is_some() || session.global.context.is_some();
    let kubeconfig = match &session.global.kubeconfig {
        Some(given) => Some(given.clone()),
        None => Some(folder.kubeconfig()).filter(|own| own.exists()),
    };
    Ok(Seen {
        folder: folder.root().display().to_string(),
        kubeconfig: kubeconfig.map(|path| path.display().to_string()),
        problem: (control.is_none() && !elsewhere).then_some(stopped),
        control,
        api: None,
        store_bytes: fs::metadata(folder.store()).ok().map(|file| file.len()),
    })
}

/// What the API knows.
pub(super) async fn api(session: &Session, folder: &Folder) -> anyhow::Result<Api> {
    let client = target::client(session).await?;
    let version = client.apiserver_version().await.context("ask the API for its version")?;
    let (nodes, kinds, counted) =
        tokio::try_join!(nodes(&client, folder), installed_kinds(&client), count(&client))?;
    Ok(Api {
        version: version.git_version,
        nodes,
        kinds_built_in: counted.kinds.saturating_sub(kinds),
        kinds_installed: kinds,
        objects: counted.objects,
        resource_version: counted.resource_version,
    })
}

async fn nodes(client: &Client, folder: &Folder) -> anyhow::Result<Vec<Node>> {
    let all = ListParams::default();
    let nodes = kube::Api::<core::Node>::all(client.clone()).list(&all).await.context("list nodes")?;
    let leases = kube::Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
    let leases = leases.list(&all).await.context("list the leases of nodes")?;
    let heard: BTreeMap<String, Lease> = leases.into_iter().map(|lease| (lease.name_any(), lease)).collect();
    let now = Timestamp::now();
    nodes.iter().map(|node| node_seen(node, heard.get(&node.name_any()), folder, now)).collect()
}

fn node_seen(
    node: &core::Node,
    lease: Option<&Lease>,
    folder: &Folder,
    now: Timestamp,
) -> anyhow::Result<Node> {
    let name = node.name_any();
    let status = node.status.clone().unwrap_or_default();
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    let lease = lease.and_then(|lease| lease.spec.as_ref());
    let heard =
        lease.and_then(|lease| lease.renew_time.as_ref()).map(|at| now.duration_since(at.0).as_secs());
    let silent = match (heard, lease.and_then(|lease| lease.lease_duration_seconds)) {
        (Some(heard), Some(most)) => heard > i64::from(most),
        _ => false,
    };
    let pid = match Role::parse(&name) {
        Some(role) => Record::alive(&folder.run(), &role)?.map(|(_, alive)| alive.pid),
        None => None,
    };
    let says_ready = condition.is_some_and(|condition| condition.status == "True");
    Ok(Node {
        ready: says_ready && !silent,
        reason: match (says_ready, silent) {
            (_, true) => "its agent has not been heard of".to_owned(),
            (true, false) => String::new(),
            (false, false) => {
                condition.and_then(|c| c.message.clone()).unwrap_or_else(|| "no status yet".into())
            }
        },
        address: status.addresses.iter().flatten().map(|a| a.address.clone()).next().unwrap_or_default(),
        version: status.node_info.map(|info| info.kubelet_version).unwrap_or_default(),
        last_heard_seconds: heard,
        name,
        pid,
    })
}

async fn installed_kinds(client: &Client) -> anyhow::Result<usize> {
    let crds = kube::Api::<PartialObjectMeta<CustomResourceDefinition>>::all(client.clone());
    Ok(crds.list_metadata(&ListParams::default()).await.context("list installed kinds")?.items.len())
}

struct Counted {
    kinds: usize,
    objects: i64,
    resource_version: String,
}

/// Counts the objects of every kind, asking for one of each: the answer says how many more there are.
async fn count(client: &Client) -> anyhow::Result<Counted> {
    let discovery =
        Discovery::new(client.clone()).run_aggregated().await.context("ask the API for its kinds")?;
    let mut kinds: BTreeMap<String, ApiResource> = BTreeMap::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.resources_by_stability() {
            // Events are served under two groups, from one store.
            let twice = resource.plural == "events" && !resource.group.is_empty();
            if capabilities.supports_operation(verbs::LIST) && !twice {
                kinds.insert(format!("{}.{}", resource.plural, resource.group), resource);
            }
        }
    }
    let one = ListParams::default().limit(1);
    let lists = try_join_all(kinds.values().map(async |resource| {
        let objects = kube::Api::<DynamicObject>::all_with(client.clone(), resource);
        let list = objects.list_metadata(&one).await;
        list.with_context(|| format!("count {}", resource.plural))
    }))
    .await?;
    let size = |list: &kube::api::ObjectList<_>| -> i64 {
        let listed: &kube::api::ObjectList<PartialObjectMeta<DynamicObject>> = list;
        i64::try_from(listed.items.len()).unwrap_or(i64::MAX)
            + listed.metadata.remaining_item_count.unwrap_or(0)
    };
    let newest =
        lists.iter().filter_map(|list| list.metadata.resource_version.as_deref()?.parse::<u64>().ok()).max();
    Ok(Counted {
        kinds: kinds.len(),
        objects: lists.iter().map(size).sum(),
        resource_version: newest.map(|version| version.to_string()).unwrap_or_default(),
    })
}
