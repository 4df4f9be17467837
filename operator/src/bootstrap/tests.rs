//! A cluster is prepared whole, whoever was there before and wherever it is cut.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{ListParams, PatchParams};
use midflight_api::System;
use serde_json::{Value, json};

use super::*;
use crate::testing::Cluster;
use crate::write::{Cut, Moment};

/// All that preparing a cluster should leave behind.
#[derive(Debug, PartialEq)]
struct State {
    kinds: BTreeMap<String, Value>,
    namespace: bool,
    settings: BTreeMap<String, String>,
}

impl Cluster {
    async fn state(&self) -> State {
        let all: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let kinds = all.list(&ListParams::default()).await.unwrap();
        State {
            kinds: kinds
                .into_iter()
                .map(|crd| (crd.name_any(), serde_json::to_value(crd.spec).unwrap()))
                .collect(),
            namespace: namespaces.get_opt(NAMESPACE).await.unwrap().is_some(),
            settings: self.settings().await,
        }
    }

    async fn settings(&self) -> BTreeMap<String, String> {
        let settings: Api<Setting> = Api::namespaced(self.client.clone(), NAMESPACE);
        let Ok(all) = settings.list(&ListParams::default()).await else { return BTreeMap::new() };
        all.into_iter().map(|setting| (setting.name_any(), setting.value)).collect()
    }

    /// Installs a definition that is not ours.
    async fn install_foreign(&self, plural: &str, group: &str, kind: &str) {
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}"), "labels": { "app.kubernetes.io/managed-by": "Helm" } },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List") },
                "versions": [{ "name": "v1beta2", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
            },
        });
        let all: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        all.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn prepares_an_empty_cluster_and_does_nothing_twice() {
    let cluster = Cluster::open().await;
    let standing = bootstrap(&cluster.client).await.unwrap();
    assert_eq!(standing.installed.len(), midflight_api::crds().len());
    assert_eq!(standing.left_alone, []);

    let state = cluster.state().await;
    assert!(state.namespace);
    let defaults: BTreeMap<String, String> =
        TABLE.iter().map(|setting| (setting.name.into(), setting.default.into())).collect();
    assert_eq!(state.settings, defaults);

    let writer = Writer::new(cluster.client.clone());
    assert_eq!(bootstrap_with(&writer).await.unwrap(), standing);
    assert_eq!(writer.issued(), 0, "what is as it should be is not written again");
    assert_eq!(cluster.state().await, state);
    cluster.close().await;
}

#[tokio::test]
async fn keeps_a_users_value_and_makes_a_deleted_setting_anew() {
    let cluster = Cluster::open().await;
    bootstrap(&cluster.client).await.unwrap();
    let settings: Api<Setting> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let limit = midflight_api::settings::ENGINE_UPGRADE_LIMIT;
    let change = Patch::Merge(json!({ "value": "3" }));
    settings.patch(limit, &PatchParams::default(), &change).await.unwrap();
    settings.delete("auto-salvage", &Default::default()).await.unwrap();

    bootstrap(&cluster.client).await.unwrap();
    let now = cluster.settings().await;
    assert_eq!(now[limit], "3");
    assert_eq!(now["auto-salvage"], "true");
    cluster.close().await;
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_told_with_what_holds_it() {
    let cluster = Cluster::open().await;
    bootstrap(&cluster.client).await.unwrap();
    let held = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "held", "finalizers": ["example.com/hold"] } });
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete(NAMESPACE, &Default::default()).await.unwrap();
    let told = async {
        loop {
            let error = bootstrap(&cluster.client).await.unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("the namespace longhorn-system is being deleted"), "{text}");
            if text.contains("example.com/hold in 1 resource instances") {
                return error;
            }
            sleep(ASK_AGAIN).await;
        }
    };
    let told = timeout(Duration::from_secs(150), told).await.expect("it is told what holds it");
    assert!(matches!(told, BootstrapError::NamespaceEnds { standing, .. } if !standing.installed.is_empty()));

    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    maps.patch("held", &PatchParams::default(), &free).await.unwrap();
    let again = async {
        while bootstrap(&cluster.client).await.is_err() {
            sleep(ASK_AGAIN).await;
        }
    };
    timeout(Duration::from_secs(150), again).await.expect("it is made again");
    assert_eq!(cluster.settings().await.len(), TABLE.len());
    cluster.close().await;
}

#[tokio::test]
async fn brings_our_own_definitions_to_this_version() {
    let cluster = Cluster::open().await;
    bootstrap(&cluster.client).await.unwrap();
    let clean = cluster.state().await;
    let all: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let edit = Patch::Merge(json!({ "spec": { "names": { "shortNames": ["vol"] } } }));
    all.patch("volumes.longhorn.io", &PatchParams::default(), &edit).await.unwrap();
    assert_ne!(cluster.state().await, clean);

    bootstrap(&cluster.client).await.unwrap();
    assert_eq!(cluster.state().await, clean);
    cluster.close().await;
}

#[tokio::test]
async fn leaves_longhorns_cluster_to_longhorn() {
    let cluster = Cluster::open().await;
    cluster.install_foreign("volumes", "longhorn.io", "Volume").await;
    cluster.install_foreign("settings", "longhorn.io", "Setting").await;
    let before = cluster.state().await;

    let standing = bootstrap(&cluster.client).await.unwrap();
    let after = cluster.state().await;
    for (name, spec) in &before.kinds {
        assert_eq!(&after.kinds[name], spec, "{name}");
    }
    let added: Vec<&String> = after.kinds.keys().filter(|name| !before.kinds.contains_key(*name)).collect();
    assert_eq!(
        added,
        [
            "dataengineupgrademanagers.longhorn.io",
            "datasets.data.fluid.io",
            "images.longhorn.io",
            "juicefsruntimes.data.fluid.io",
            "nodedataengineupgrades.longhorn.io",
            "volumerecords.midflight.dev",
        ]
    );
    assert!(standing.left_alone.contains(&StandDown::SomebodyElses { name: "volumes.longhorn.io".into() }));
    let node = standing.left_alone.iter().find(|reason| reason.to_string().starts_with("nodes.longhorn.io"));
    assert!(matches!(node, Some(StandDown::OfSystem { system: System::Longhorn, .. })), "{node:?}");
    assert_eq!(after.settings, BTreeMap::new());
    cluster.close().await;
}

#[tokio::test]
async fn completes_what_a_predecessor_left_wherever_it_ended() {
    let clean = {
        let cluster = Cluster::open().await;
        bootstrap(&cluster.client).await.unwrap();
        let state = cluster.state().await;
        cluster.close().await;
        state
    };
    let moments = [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged];
    for (write, moment) in (0..).zip(moments.into_iter().cycle()) {
        let cluster = Cluster::open().await;
        let writer = Writer::with_cut(cluster.client.clone(), Cut { write, moment });
        let ended = bootstrap_with(&writer).await;
        let cut = writer.issued() > write;
        assert_eq!(ended.is_err(), cut, "write {write}, {moment:?}: {ended:?}");
        bootstrap(&cluster.client).await.unwrap();
        assert_eq!(cluster.state().await, clean, "write {write}, {moment:?}");
        cluster.close().await;
        if !cut {
            assert!(write > 20, "only {write} writes");
            return;
        }
    }
}
