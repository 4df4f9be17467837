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

use super::{Api, Control, Node, Seen, storage};
use crate::{
    folder::Folder,
    listen,
    process::{Record, Role},
    session::Session,
    target::{self, refusal},
};

/// What can be seen of a cluster's folder, without its API.
pub(super) fn folder(folder: &Folder) -> anyhow::Result<Seen> {
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
    let root = folder.root().display();
    let problem = match (&marker, &control) {
        (None, _) => Some(format!("there is no cluster in {root}")),
        (Some(_), None) => Some(format!("the control plane does not run in {root}")),
        (Some(_), Some(_)) => None,
    };
    Ok(Seen {
        folder: Some(root.to_string()),
        kubeconfig: Some(folder.kubeconfig()).filter(|own| own.exists()).map(|own| own.display().to_string()),
        problem,
        control,
        api: None,
        store_bytes: fs::metadata(folder.store()).ok().map(|file| file.len()),
    })
}

/// What the API knows; of the processes of its nodes, those that run in the folder.
pub(super) async fn api(session: &Session, folder: Option<&Folder>) -> anyhow::Result<Api> {
    let client = target::client(session).await?;
    let version = client.apiserver_version().await.map_err(refusal).context("ask the API for its version")?;
    let (nodes, kinds, counted, storage) = tokio::try_join!(
        nodes(&client, folder),
        installed_kinds(&client),
        count(&client),
        storage::observe(&client)
    )?;
    Ok(Api {
        version: version.git_version,
        not_ready: readiness(&client).await,
        nodes,
        storage,
        kinds_built_in: counted.kinds.saturating_sub(kinds),
        kinds_installed: kinds,
        objects: counted.objects,
        not_counted: counted.hidden,
        resource_version: counted.resource_version,
    })
}

/// What the API says of itself, if it is not well.
async fn readiness(client: &Client) -> Option<String> {
    let request = http::Request::get("/readyz").body(Vec::new()).expect("it is a request");
    let failed = client.request_text(request).await.err()?;
    let text = refusal(failed).to_string();
    let failed: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("[-]")?.split(' ').next()).collect();
    Some(if failed.is_empty() { text } else { failed.join(", ") })
}

pub(super) async fn nodes(client: &Client, folder: Option<&Folder>) -> anyhow::Result<Vec<Node>> {
    let all = ListParams::default();
    let nodes = kube::Api::<core::Node>::all(client.clone())
        .list(&all)
        .await
        .map_err(refusal)
        .context("list nodes")?;
    let leases = kube::Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
    let leases = leases.list(&all).await.map_err(refusal).context("list the leases of nodes")?;
    let heard: BTreeMap<String, Lease> = leases.into_iter().map(|lease| (lease.name_any(), lease)).collect();
    let now = Timestamp::now();
    nodes.iter().map(|node| node_seen(node, heard.get(&node.name_any()), folder, now)).collect()
}

fn node_seen(
    node: &core::Node,
    lease: Option<&Lease>,
    folder: Option<&Folder>,
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
    let pid = match (Role::parse(&name), folder) {
        (Some(role), Some(folder)) => Record::alive(&folder.run(), &role)?.map(|(_, alive)| alive.pid),
        (_, _) => None,
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
    let listed = crds.list_metadata(&ListParams::default()).await;
    Ok(listed.map_err(refusal).context("list installed kinds")?.items.len())
}

struct Counted {
    kinds: usize,
    objects: i64,
    /// Kinds of which we may not even know how many there are.
    hidden: Vec<String>,
    resource_version: String,
}

/// Counts the objects of every kind, asking for one of each: the answer says how many more there are.
async fn count(client: &Client) -> anyhow::Result<Counted> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await;
    let discovery = discovery.map_err(refusal).context("ask the API for its kinds")?;
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
        match objects.list_metadata(&one).await {
            Ok(list) => Ok((resource, Some(list))),
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok((resource, None)),
            Err(error) => Err(refusal(error)).with_context(|| format!("count {}", resource.plural)),
        }
    }))
    .await?;
    let hidden: Vec<String> =
        lists.iter().filter(|(_, list)| list.is_none()).map(|(kind, _)| kind.plural.clone()).collect();
    let lists: Vec<_> = lists.into_iter().filter_map(|(_, list)| list).collect();
    let size = |list: &kube::api::ObjectList<_>| -> i64 {
        let listed: &kube::api::ObjectList<PartialObjectMeta<DynamicObject>> = list;
        i64::try_from(listed.items.len()).unwrap_or(i64::MAX)
            + listed.metadata.remaining_item_count.unwrap_or(0)
    };
    let newest =
        lists.iter().filter_map(|list| list.metadata.resource_version.as_deref()?.parse::<u64>().ok()).max();
    Ok(Counted {
        hidden,
        kinds: kinds.len(),
        objects: lists.iter().map(size).sum(),
        resource_version: newest.map(|version| version.to_string()).unwrap_or_default(),
    })
}
