//! The guards hold at the API, whoever writes: seed 000, case 2, and user experience 3.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use midflight_api::VolumeRecord;
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, EngineImage, InstanceManager,
    NAMESPACE, Node, Replica, Setting, Volume, VolumeSpec,
};
use midflight_api::settings::{ENGINE_UPGRADE_LIMIT as LIMIT, TABLE};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Admission;
use crate::bootstrap;
use crate::storage::SECRET;
use crate::testing::Cluster;
use crate::write::Writer;

const PATIENCE: Duration = Duration::from_secs(150);

/// A cluster whose API server asks for each write that is guarded, until `serving` is ended.
struct Guarded {
    cluster: Cluster,
    serving: JoinHandle<()>,
}

impl Guarded {
    async fn open() -> Guarded {
        let cluster = Cluster::open().await;
        bootstrap(&cluster.client).await.unwrap();
        Guarded::over(cluster).await
    }

    async fn over(cluster: Cluster) -> Guarded {
        let admission = Admission::open().await.unwrap();
        admission.register(&Writer::new(cluster.client.clone())).await.unwrap();
        let serving = tokio::spawn(admission.serve(cluster.client.clone()));
        Guarded { cluster, serving }
    }
}

async fn wait_until_gone(namespaces: &Api<core::Namespace>) {
    let gone = async {
        while namespaces.get_opt(NAMESPACE).await.unwrap().is_some() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = timeout(PATIENCE, gone).await.is_ok();
    assert!(ended, "{:#?}", namespaces.get_opt(NAMESPACE).await);
}

async fn make<K>(client: &Client, name: &str, spec: Value, status: Value)
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let labels = json!({ "longhornvolume": spec["volumeName"].as_str().unwrap_or("none") });
    let object = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": { "name": name, "labels": labels }, "spec": spec });
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let status = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &status).await.unwrap();
}

/// What the API says to somebody who asks a volume for an image.
async fn ask(client: &Client, volume: &str, image: &str) -> Result<(), String> {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "image": image } }));
    match volumes.patch(volume, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

async fn limit(client: &Client, value: &str) -> Result<(), String> {
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "value": value }));
    settings.patch(LIMIT, &PatchParams::default(), &patch).await.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn only_the_default_image_can_be_chosen_while_upgrades_are_automatic() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    for image in ["old", "new", "mine"] {
        let status = json!({ "state": "deployed", "controllerAPIVersion": 5, "controllerAPIMinVersion": 3,
            "nodeDeploymentMap": { "node-1": true } });
        make::<EngineImage>(own, &format!("ei-{image}"), json!({ "image": image }), status).await;
    }
    let settings: Api<Setting> = Api::namespaced(own.clone(), NAMESPACE);
    let default = Patch::Merge(json!({ "value": "new" }));
    settings.patch("default-engine-image", &PatchParams::default(), &default).await.unwrap();
    let spec = json!({ "size": "1073741824", "image": "old", "fromBackup": "file:///b?backup=x&volume=v", "Standby": true });
    let status = json!({ "state": "attached", "robustness": "healthy", "currentImage": "old", "currentNodeID": "node-1",
        "isStandby": true });
    make::<Volume>(own, "dr", spec, status).await;
    make::<Replica>(own, "dr-r", json!({ "volumeName": "dr", "nodeID": "node-1" }), json!({})).await;

    assert!(limit(user, "-1").await.unwrap_err().contains("a whole number from 0"));
    limit(user, "3").await.unwrap();
    let refused = ask(user, "dr", "mine").await.unwrap_err();
    assert!(
        refused.contains("engine-image.midflight.dev") && refused.contains("default engine image new"),
        "{refused}"
    );
    ask(user, "dr", "new").await.unwrap();
    ask(user, "dr", "old").await.unwrap();
    assert!(ask(user, "dr", "nobody's").await.is_err());

    limit(user, "0").await.unwrap();
    let unknown = ask(user, "dr", "midflight.local/nobodys:v1").await.unwrap_err();
    assert!(unknown.contains("there is no EngineImage for midflight.local/nobodys:v1"), "{unknown}");
    let short = ask(user, "dr", "nobodys:v1").await.unwrap_err();
    assert!(short.contains("write midflight.local/nobodys:v1"), "{short}");
    ask(user, "dr", "mine").await.unwrap();

    serving.abort();
    ask(user, "dr", "old").await.expect("the way back needs no answer");
    ask(user, "dr", "mine").await.expect_err("nobody answers");
    ask(own, "dr", "mine").await.expect("the controllers need no answer");
    cluster.close().await;
}

#[tokio::test]
async fn an_engine_image_that_is_needed_cannot_be_deleted() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let own = &cluster.client;
    let default = "midflight.local/engine:v1";
    for (name, image, references) in [("default", default, 0), ("used", "used", 2), ("free", "free", 0)] {
        make::<EngineImage>(own, name, json!({ "image": image }), json!({ "refCount": references })).await;
    }
    let settings: Api<Setting> = Api::namespaced(own.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "value": default }));
    settings.patch("default-engine-image", &PatchParams::default(), &patch).await.unwrap();
    let images: Api<EngineImage> = Api::namespaced(cluster.user("user"), NAMESPACE);
    let create = async |name: &str, image: &str| {
        let object = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "EngineImage",
            "metadata": { "name": name }, "spec": { "image": image } });
        let object = serde_json::from_value(object).unwrap();
        images.create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
    };
    let own_name = midflight_plan::storage::engine_image::name(&default.into());
    let refused = create("another", default).await.unwrap_err();
    assert!(refused.contains(&format!("is called {own_name}")), "{refused}");
    create(&own_name, default).await.unwrap();
    create(&own_name, default).await.expect_err("there is one already");
    let short = midflight_plan::storage::engine_image::name(&"engine:v1".into());
    let refused = create(&short, "engine:v1").await.unwrap_err();
    assert!(refused.contains(&format!("write {default} ")), "{refused}");
    let delete = async |name: &str| match images.delete(name, &DeleteParams::default()).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert!(delete("default").await.contains("is the default engine image"));
    assert!(delete("used").await.contains("used is used by 2 volumes"));
    assert_eq!(delete("free").await, "");
    serving.abort();
    cluster.close().await;
}

/// An image with two names would be two images: a short one is refused, unless what runs it is called so.
#[tokio::test]
async fn who_writes_a_short_name_is_told_the_whole_one() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    make::<EngineImage>(own, "ei-mine", json!({ "image": "mine:v1" }), json!({})).await;
    let settings: Api<Setting> = Api::namespaced(user.clone(), NAMESPACE);
    let set = async |name: &str, value: &str| {
        let value = Patch::Merge(json!({ "value": value }));
        settings
            .patch(name, &PatchParams::default(), &value)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let volumes: Api<Volume> = Api::namespaced(user.clone(), NAMESPACE);
    let create = async |name: &str, image: &str| {
        let spec = json!({ "size": "1073741824", "image": image });
        let volume = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": { "name": name }, "spec": spec });
        let volume = serde_json::from_value(volume).unwrap();
        volumes.create(&PostParams::default(), &volume).await.map(drop).map_err(|error| error.to_string())
    };
    let whole = "write midflight.local/engine:v2 ";
    for setting in ["default-engine-image", "default-instance-manager-image", "default-share-manager-image"] {
        let refused = set(setting, "engine:v2").await.unwrap_err();
        assert!(refused.contains(whole), "{refused}");
        set(setting, "midflight.local/engine:v2").await.unwrap();
    }
    set("default-engine-image", "mine:v1").await.expect("an EngineImage is called so");
    for setting in ["default-instance-manager-image", "default-share-manager-image"] {
        set(setting, "mine:v1").await.expect_err("an EngineImage is something else");
    }
    make::<InstanceManager>(
        own,
        "im-1",
        json!({ "image": "manager:v1", "nodeID": "node-1", "dataEngine": "v2" }),
        json!({}),
    )
    .await;
    set("default-instance-manager-image", "manager:v1").await.expect("an InstanceManager has it");
    set("default-share-manager-image", "manager:v1").await.expect_err("an InstanceManager is something else");
    let refused = create("short", "engine:v2").await.unwrap_err();
    assert!(refused.contains(whole), "{refused}");
    create("known", "mine:v1").await.unwrap();
    create("whole", "registry.example:5000/engine:v2").await.unwrap();
    create("any", "").await.unwrap();
    serving.abort();
    set("default-engine-image", "midflight.local/engine:v3").await.expect("whole names need no answer");
    cluster.close().await;
}

/// Nothing would ever become of it.
#[tokio::test]
async fn a_volume_that_nobody_would_serve_is_refused() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let create = async |namespace: &str, name: &str| {
        let volumes: Api<Volume> = Api::namespaced(cluster.user("user"), namespace);
        let volume = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": { "name": name }, "spec": { "size": "1073741824" } });
        let volume = serde_json::from_value(volume).unwrap();
        volumes.create(&PostParams::default(), &volume).await.map(drop).map_err(|error| error.to_string())
    };
    let refused = create("default", "astray").await.unwrap_err();
    assert!(refused.contains("`-n longhorn-system`"), "{refused}");
    let refused = create(NAMESPACE, &"v".repeat(64)).await.unwrap_err();
    assert!(refused.contains("labels have at most 63 characters"), "{refused}");
    create(NAMESPACE, &"v".repeat(63)).await.unwrap();
    serving.abort();
    cluster.close().await;
}

/// `kubectl delete namespace longhorn-system` ends although the default image and one that is used are in it.
#[tokio::test]
async fn engine_images_go_with_their_namespace() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let own = &cluster.client;
    let default = "midflight.local/engine:v1";
    for (name, image, references) in [("ei-1", default, 0), ("ei-2", "midflight.local/engine:v2", 2)] {
        make::<EngineImage>(own, name, json!({ "image": image }), json!({ "refCount": references })).await;
    }
    let settings: Api<Setting> = Api::namespaced(own.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "value": default }));
    settings.patch("default-engine-image", &PatchParams::default(), &patch).await.unwrap();
    let images: Api<EngineImage> = Api::namespaced(cluster.user("user"), NAMESPACE);
    for name in ["ei-1", "ei-2"] {
        images
            .delete(name, &DeleteParams::default())
            .await
            .expect_err("it is needed while the namespace stays");
    }
    let namespaces: Api<core::Namespace> = Api::all(cluster.user("user"));
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await.unwrap();
    wait_until_gone(&namespaces).await;
    assert_eq!(images.list(&ListParams::default()).await.unwrap().items.len(), 0);
    serving.abort();
    cluster.close().await;
}

#[tokio::test]
async fn what_everything_rests_on_cannot_be_deleted_while_it_is_needed() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    let spec = json!({ "size": "1073741824" });
    make::<Volume>(own, "kept", spec, json!({ "state": "attached" })).await;
    let records: Api<VolumeRecord> = Api::namespaced(user.clone(), NAMESPACE);
    for name in ["kept", "left"] {
        let record = json!({ "apiVersion": "midflight.dev/v1alpha1", "kind": "VolumeRecord",
            "metadata": { "name": name }, "spec": { "term": 1, "memberVersion": 0 } });
        records.create(&PostParams::default(), &serde_json::from_value(record).unwrap()).await.unwrap();
    }
    let settings: Api<Setting> = Api::namespaced(user.clone(), NAMESPACE);
    let volumes: Api<Volume> = Api::namespaced(user.clone(), NAMESPACE);
    let namespaces: Api<core::Namespace> = Api::all(user.clone());
    let how = DeleteParams::default();

    let refused = settings.delete(LIMIT, &how).await.unwrap_err().to_string();
    assert!(refused.contains("set its value back to its default"), "{refused}");
    let all = settings.delete_collection(&how, &ListParams::default()).await.unwrap_err().to_string();
    assert!(all.contains("set its value back to its default"), "{all}");
    assert_eq!(settings.list(&ListParams::default()).await.unwrap().items.len(), TABLE.len());

    let refused = records.delete("kept", &how).await.unwrap_err().to_string();
    assert!(refused.contains("goes with the volume"), "{refused}");
    records.delete("left", &how).await.expect("there is no such volume");

    let (nodes, machines) =
        (Api::<Node>::namespaced(user.clone(), NAMESPACE), Api::<core::Node>::all(user.clone()));
    for name in ["node-1", "node-2"] {
        make::<Node>(own, name, json!({ "name": name, "tags": ["fast"] }), json!({})).await;
    }
    let machine = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" } });
    machines.create(&PostParams::default(), &serde_json::from_value(machine).unwrap()).await.unwrap();
    let refused = nodes.delete("node-1", &how).await.unwrap_err().to_string();
    assert!(refused.contains("node-1 is a node of this cluster"), "{refused}");
    nodes.delete("node-2", &how).await.expect("there is no such machine");

    let refused = namespaces.delete(NAMESPACE, &how).await.unwrap_err().to_string();
    assert!(
        refused.contains("volume kept is still attached") && refused.contains("volume detach"),
        "{refused}"
    );
    let detached = Patch::Merge(json!({ "status": { "state": "detached" } }));
    volumes.patch_status("kept", &PatchParams::default(), &detached).await.unwrap();
    namespaces.delete(NAMESPACE, &how).await.unwrap();
    wait_until_gone(&namespaces).await;
    assert!(settings.list(&ListParams::default()).await.unwrap().items.is_empty());
    serving.abort();
    cluster.close().await;
}

/// The namespace ends, and the controllers still have to tell instance managers that a volume goes.
#[tokio::test]
async fn the_secret_of_instance_managers_outlives_those_who_need_it() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    let secrets: Api<core::Secret> = Api::namespaced(user.clone(), NAMESPACE);
    for name in [SECRET.0, "another"] {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name } });
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    }
    let spec =
        json!({ "image": "midflight.local/instance-manager:v1", "nodeID": "node-1", "dataEngine": "v2" });
    make::<InstanceManager>(own, "im-1", spec, json!({})).await;
    make::<Volume>(own, "held", json!({ "size": "1073741824" }), json!({ "state": "detached" })).await;
    let volumes: Api<Volume> = Api::namespaced(own.clone(), NAMESPACE);
    let finalizers = |names: Value| Patch::Merge(json!({ "metadata": { "finalizers": names } }));
    let hold = finalizers(json!(["longhorn.io/held"]));
    volumes.patch("held", &PatchParams::default(), &hold).await.unwrap();

    let how = DeleteParams::default();
    let refused = secrets.delete(SECRET.0, &how).await.unwrap_err().to_string();
    assert!(refused.contains("1 volume and 1 instance manager"), "{refused}");
    secrets.delete("another", &how).await.expect("nobody asks about it");

    let namespaces: Api<core::Namespace> = Api::all(user.clone());
    namespaces.delete(NAMESPACE, &how).await.unwrap();
    let managers: Api<InstanceManager> = Api::namespaced(own.clone(), NAMESPACE);
    let told = async {
        loop {
            let namespace = namespaces.get(NAMESPACE).await.unwrap();
            let conditions = serde_json::to_string(&namespace.status).unwrap();
            if managers.get_opt("im-1").await.unwrap().is_none() && conditions.contains("1 volume could not")
            {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("the namespace tells what needs the Secret");
    secrets.get(SECRET.0).await.expect("the volume is still there");
    volumes.patch("held", &PatchParams::default(), &finalizers(Value::Null)).await.unwrap();
    wait_until_gone(&namespaces).await;
    assert!(secrets.get_opt(SECRET.0).await.unwrap().is_none());
    serving.abort();
    cluster.close().await;
}

/// Seed 004, webhook validation, and what may be asked of an upgrade of nodes.
#[tokio::test]
async fn an_upgrade_of_nodes_is_guarded_by_name() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(user.clone(), NAMESPACE);
    let begin = async |name: &str, spec: Value| {
        let object = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "DataEngineUpgradeManager",
            "metadata": { "name": name }, "spec": spec });
        let made = upgrades.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        made.map(drop).map_err(|error| error.to_string())
    };
    make::<Node>(own, "node-1", json!({ "name": "node-1" }), json!({})).await;
    let refused = begin("upgrade", json!({ "dataEngine": "v2" })).await.unwrap_err();
    assert!(refused.contains("a cluster of one node"), "{refused}");
    make::<Node>(own, "node-2", json!({ "name": "node-2" }), json!({})).await;
    let refused = begin("upgrade", json!({ "dataEngine": "v2", "nodes": ["node-2", "node-9"] })).await;
    assert!(refused.unwrap_err().contains("not in the cluster: node-9"));
    begin("upgrade", json!({ "dataEngine": "v1" })).await.unwrap_err();
    begin("upgrade", json!({ "dataEngine": "v2" })).await.unwrap();
    let asked = DataEngineUpgradeManagerSpec {
        data_engine: DataEngine::V2,
        max_parallel_nodes: 1,
        ..DataEngineUpgradeManagerSpec::default()
    };
    assert_eq!(upgrades.get("upgrade").await.unwrap().spec, asked, "nothing is written into it");
    let refused = begin("second", json!({ "dataEngine": "v2" })).await.unwrap_err();
    assert!(refused.contains("DataEngineUpgradeManager upgrade is not done"), "{refused}");
    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        upgrades.patch("upgrade", &PatchParams::default(), &patch).await.map(drop)
    };
    change(json!({ "paused": true })).await.unwrap();
    change(json!({ "nodes": ["node-1"] })).await.unwrap_err();

    let own_upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(own.clone(), NAMESPACE);
    let is = async |name: &str, state: &str| {
        let patch = Patch::Merge(json!({ "status": { "state": state } }));
        own_upgrades.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    };
    is("upgrade", "error").await;
    begin("second", json!({ "dataEngine": "v2" })).await.expect("the first one has failed");
    let refused = change(json!({ "paused": false })).await.unwrap_err().to_string();
    assert!(refused.contains("DataEngineUpgradeManager second is not done"), "{refused}");
    change(json!({ "maxParallelNodes": 2 })).await.expect("it does not go on while it is paused");
    is("second", "completed").await;
    change(json!({ "paused": false })).await.expect("it goes on where no other is active");

    for volume in ["old", "new"] {
        let spec = json!({ "size": "1073741824", "dataEngine": "v2", "nodeID": if volume == "old" { "node-1" } else { "" } });
        make::<Volume>(user, volume, spec, json!({})).await;
    }
    let volumes: Api<Volume> = Api::namespaced(user.clone(), NAMESPACE);
    let attach = async |volume: &str, node: &str| {
        let patch = Patch::Merge(json!({ "spec": { "nodeID": node } }));
        volumes
            .patch(volume, &PatchParams::default(), &patch)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let nodes: Api<Node> = Api::namespaced(own.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "dataEngineUpgradeRequested": true } }));
    nodes.patch("node-1", &PatchParams::default(), &patch).await.unwrap();
    let refused = attach("new", "node-1").await.unwrap_err();
    assert!(refused.contains("the data engine of node node-1 is being upgraded"), "{refused}");
    let before = volumes.get("new").await.unwrap().spec;
    attach("new", "node-2").await.expect("other nodes take volumes");
    let after = volumes.get("new").await.unwrap().spec;
    assert_eq!(after, VolumeSpec { node_id: "node-2".into(), ..before }, "nothing else is written into it");
    let refused = attach("new", "node-9").await.unwrap_err();
    assert!(
        refused.contains("spec.nodeID is node-9") && refused.contains("it has node-1, node-2"),
        "{refused}"
    );
    let spec = json!({ "size": "1073741824", "nodeID": "node-9" });
    let lost: Volume = serde_json::from_value(json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
        "metadata": { "name": "lost" }, "spec": spec }))
    .unwrap();
    volumes.create(&PostParams::default(), &lost).await.expect_err("nor can one be made there");
    let machines: Api<core::Node> = Api::all(own.clone());
    let machine = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-9" } });
    machines.create(&PostParams::default(), &serde_json::from_value(machine).unwrap()).await.unwrap();
    attach("new", "node-9").await.expect("storage has not seen it yet");
    attach("old", "").await.expect("detaching is allowed");
    serving.abort();
    cluster.close().await;
}

/// Nothing would ever become of it. One that is there already, of an earlier build, may change.
#[tokio::test]
async fn an_upgrade_of_nodes_that_nobody_would_begin_is_refused() {
    let cluster = Cluster::open().await;
    bootstrap(&cluster.client).await.unwrap();
    let long = "u".repeat(64);
    let over = json!({ "state": "completed" });
    make::<DataEngineUpgradeManager>(&cluster.client, &long, json!({ "dataEngine": "v2" }), over).await;
    let Guarded { cluster, serving } = Guarded::over(cluster).await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    for node in ["node-1", "node-2"] {
        make::<Node>(own, node, json!({ "name": node }), json!({})).await;
    }
    let create = async |namespace: &str, name: &str| {
        let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(user.clone(), namespace);
        let upgrade = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "DataEngineUpgradeManager",
            "metadata": { "name": name }, "spec": { "dataEngine": "v2" } });
        let upgrade = serde_json::from_value(upgrade).unwrap();
        upgrades.create(&PostParams::default(), &upgrade).await.map(drop).map_err(|error| error.to_string())
    };
    let refused = create("default", "astray").await.unwrap_err();
    assert!(refused.contains("from the namespace longhorn-system only"), "{refused}");
    let refused = create(NAMESPACE, &long).await.unwrap_err();
    assert!(refused.contains("labels have at most 63 characters; choose a shorter one"), "{refused}");

    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(user.clone(), NAMESPACE);
    let paused = Patch::Merge(json!({ "spec": { "paused": true } }));
    upgrades.patch(&long, &PatchParams::default(), &paused).await.unwrap();
    upgrades.delete(&long, &DeleteParams::default()).await.unwrap();
    create(NAMESPACE, &long[1..]).await.unwrap();
    serving.abort();
    cluster.close().await;
}

/// Also while the volume is detached: it would say so only when it is next attached, and then to somebody else.
#[tokio::test]
async fn a_target_is_on_a_node_that_there_is() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let (own, user) = (&cluster.client, &cluster.user("user"));
    for node in ["node-1", "node-2"] {
        make::<Node>(own, node, json!({ "name": node }), json!({})).await;
    }
    let volumes: Api<Volume> = Api::namespaced(user.clone(), NAMESPACE);
    let create = async |name: &str, target: &str| {
        let spec = json!({ "size": "1073741824", "dataEngine": "v2", "targetNodeID": target });
        let volume = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": { "name": name }, "spec": spec });
        let volume = serde_json::from_value(volume).unwrap();
        volumes.create(&PostParams::default(), &volume).await.map(drop).map_err(|error| error.to_string())
    };
    let ask = async |client: &Client, target: &str| {
        let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
        let patch = Patch::Merge(json!({ "spec": { "targetNodeID": target } }));
        let asked = volumes.patch("v", &PatchParams::default(), &patch).await;
        asked.map(drop).map_err(|error| error.to_string())
    };
    create("v", "node-1").await.unwrap();
    for refused in [create("astray", "node-9").await, ask(user, "node-9").await] {
        let refused = refused.unwrap_err();
        let why = "spec.targetNodeID is node-9, which is no node of the cluster; it has node-1, node-2; name one of its nodes";
        assert!(refused.contains(why), "{refused}");
    }
    ask(user, "node-2").await.unwrap();
    // What is there already keeps nobody from changing something else.
    ask(own, "node-9").await.expect("the controllers have looked before");
    let other = Patch::Merge(json!({ "spec": { "numberOfReplicas": 2 } }));
    volumes.patch("v", &PatchParams::default(), &other).await.unwrap();
    ask(user, "").await.unwrap();
    serving.abort();
    ask(user, "node-1").await.expect("where nobody answers it stays where it is, and says so");
    cluster.close().await;
}

#[tokio::test]
async fn a_node_that_holds_or_serves_something_cannot_be_taken_out_of_storage() {
    let Guarded { cluster, serving } = Guarded::open().await;
    let own = &cluster.client;
    for node in ["holds", "serves", "idle"] {
        make::<Node>(own, node, json!({ "name": node }), json!({})).await;
    }
    make::<Replica>(own, "v-r", json!({ "volumeName": "v", "nodeID": "holds" }), json!({})).await;
    let spec = json!({ "size": "1073741824", "dataEngine": "v2", "nodeID": "serves" });
    make::<Volume>(own, "v", spec, json!({})).await;
    let nodes: Api<Node> = Api::namespaced(cluster.user("user"), NAMESPACE);
    let delete = async |name: &str| match nodes.delete(name, &DeleteParams::default()).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let refused = delete("holds").await;
    assert!(
        refused.contains("1 replicas (v-r)") && refused.contains("midflight node drain holds"),
        "{refused}"
    );
    let refused = delete("serves").await;
    assert!(refused.contains("1 attached volumes (v)"), "{refused}");
    assert_eq!(delete("idle").await, "");
    let volumes: Api<Volume> = Api::namespaced(own.clone(), NAMESPACE);
    let detach = Patch::Merge(json!({ "spec": { "nodeID": "" } }));
    volumes.patch("v", &PatchParams::default(), &detach).await.unwrap();
    assert_eq!(delete("serves").await, "");
    serving.abort();
    cluster.close().await;
}
