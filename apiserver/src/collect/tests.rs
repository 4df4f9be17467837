//! The rules as a table, the graph as a property, and random families of
//! objects against a reference that only knows sets.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::Collector;
use super::decide::{Action, Dependents, Owner, decide};
use super::graph::Graph;
use super::observe::Seen;
use crate::kind::ResourceId;
use crate::lifecycle::Propagation;
use crate::store::{Key, StoreOptions};
use crate::testing::{Api, GADGETS, gadget};

#[test]
fn decides_by_how_owners_and_dependents_stand() {
    use Owner::{Exists, Gone, Unknown, WaitsForDependents};
    let plain = json!({"metadata": {}});
    let leaving =
        |finalizer: &str| json!({"metadata": {"deletionTimestamp": "t", "finalizers": [finalizer]}});
    let none = Dependents::default();
    let some = Dependents { any: true, blocking: false };
    let blocking = Dependents { any: true, blocking: true };
    let dropped = |uid: &str| Action::DropReferences(vec![uid.to_owned()]);
    #[rustfmt::skip]
    let cases = [
        ("no owners",            &plain, vec![],                         none,     Action::Nothing),
        ("owner exists",         &plain, vec![Exists],                   none,     Action::Nothing),
        ("one owner gone",       &plain, vec![Exists, Gone],             none,     dropped("1")),
        ("one owner waits",      &plain, vec![Exists, WaitsForDependents], none,   dropped("1")),
        ("all gone",             &plain, vec![Gone, Gone],               none,     Action::Delete(Propagation::Background)),
        ("kind not served",      &plain, vec![Gone, Unknown],            none,     Action::Nothing),
        ("awaited",              &plain, vec![WaitsForDependents],       none,     Action::Delete(Propagation::Background)),
        ("awaited, a parent",    &plain, vec![WaitsForDependents, Gone], some,     Action::Delete(Propagation::Foreground)),
        ("foreground, blocked",  &leaving("foregroundDeletion"), vec![], blocking, Action::DeleteDependents),
        ("foreground, children", &leaving("foregroundDeletion"), vec![], some,     Action::DeleteDependents),
        ("foreground, alone",    &leaving("foregroundDeletion"), vec![], none,     Action::RemoveFinalizer("foregroundDeletion")),
        ("orphan, children",     &leaving("orphan"), vec![],             blocking, Action::OrphanDependents),
        ("orphan, alone",        &leaving("orphan"), vec![],             none,     Action::RemoveFinalizer("orphan")),
        ("held by others",       &leaving("example.com/x"), vec![Gone],  some,     Action::Nothing),
    ];
    for (name, object, owners, dependents, expected) in cases {
        let owners: Vec<(String, Owner)> =
            owners.into_iter().enumerate().map(|(index, owner)| (index.to_string(), owner)).collect();
        assert_eq!(decide(object, &owners, dependents), expected, "{name}");
    }
}

fn key(name: &str) -> Key {
    Key::new(ResourceId { group: "".into(), plural: "configmaps".into() }, Some("default"), name)
}

fn seen(name: &str, owners: &[&str]) -> Seen {
    let owners = owners.iter().map(|&owner| owner.to_owned()).collect();
    Seen { key: key(name), uid: name.to_owned(), owners, deleting: false, gone: false }
}

#[test]
fn the_graph_says_where_to_look() {
    let mut graph = Graph::default();
    assert_eq!(graph.note(seen("owner", &[])), []);
    assert_eq!(
        graph.note(seen("child", &["owner"])),
        [key("child")],
        "a new child may have no owner any more"
    );
    assert_eq!(graph.note(seen("child", &["owner"])), [], "nothing new");
    let leaving = Seen { deleting: true, ..seen("owner", &[]) };
    assert_eq!(graph.note(leaving), [key("owner")]);
    let gone = Seen { gone: true, ..seen("child", &["owner"]) };
    assert_eq!(graph.note(gone), [key("owner"), key("owner")], "its owner may wait for it");
    assert_eq!(graph.dependents_of("owner").count(), 0);
}

#[test]
fn a_relist_forgets_what_is_gone_and_looks_at_the_rest() {
    let mut graph = Graph::default();
    for child in ["stays", "gone"] {
        graph.note(seen(child, &["owner"]));
    }
    for leaving in ["waits", "gone too", "made anew"] {
        graph.note(Seen { deleting: true, ..seen(leaving, &[]) });
    }
    let uid_of = |key: &Key| match &*key.name {
        "gone" | "gone too" => None,
        "made anew" => Some("another".to_owned()),
        name => Some(name.to_owned()),
    };
    let elsewhere = ResourceId { group: "".into(), plural: "secrets".into() };
    assert_eq!(graph.relisted(&elsewhere, uid_of).len(), 5, "other resources are taken as they are");
    let due: BTreeSet<Key> = graph.relisted(&key("any").resource, uid_of).into_iter().collect();
    assert_eq!(due, BTreeSet::from([key("stays"), key("waits")]));
    assert_eq!(graph.dependents_of("owner").collect::<Vec<_>>(), [&key("stays")]);
}

/// A server whose only collector does nothing but what it is told to, and whose observers are
/// behind as soon as a few events are not taken.
struct Held {
    api: Api,
    collector: Collector,
}

impl Held {
    async fn open() -> Held {
        let api = Api::with_store(StoreOptions { history_events: 4, ..StoreOptions::default() }).await;
        api.server.shutdown().await;
        let mut collector = Collector::new(api.server.shared.clone(), 1);
        collector.follow_registry();
        Held { api, collector }
    }

    /// Works until nothing is left to do for what has been written so far.
    async fn catch_up(&mut self) {
        self.api
            .post(CONFIG_MAPS, json!({"metadata": {"name": "mark", "ownerReferences": [nobody()]}}))
            .await
            .ok();
        let mark = format!("{CONFIG_MAPS}/mark");
        while self.api.get(&mark).await.code != 404 {
            match self.collector.due.is_empty() {
                true => {
                    let told = self.collector.told.recv().await.unwrap();
                    self.collector.take_note(told);
                }
                false => self.collector.work_off().await,
            }
        }
    }

    /// Makes so many changes of a resource that its observer misses what is written between them.
    async fn miss(&self, plural: &str, change: impl Future<Output = Value>) {
        let noise = async |round: &str| {
            for number in 0..8 {
                let name = format!("noise-{round}-{number}");
                let path = format!("/api/v1/namespaces/default/{plural}");
                self.api.post(&path, json!({"metadata": {"name": name}})).await.ok();
            }
        };
        noise("before").await;
        change.await;
        noise("after").await;
    }

    fn release(self) -> (Api, AbortOnDropHandle<()>) {
        (self.api, AbortOnDropHandle::new(tokio::spawn(self.collector.work())))
    }
}

fn nobody() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "none"})
}

const OWNER: &str = "/api/v1/namespaces/default/secrets/owner";
const CHILD: &str = "/api/v1/namespaces/default/configmaps/child";

/// An owner and a child of the kinds above; the owner waits for the child, and the finalizers hold it.
#[allow(clippy::needless_pass_by_value, reason = "callers give a literal")]
async fn make_pair(api: &Api, finalizers: Value) {
    let secrets = OWNER.trim_end_matches("/owner");
    let owner = api.post(secrets, json!({"metadata": {"name": "owner"}})).await.ok();
    let reference = json!({"apiVersion": "v1", "kind": "Secret", "name": "owner",
                           "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true});
    let child =
        json!({"metadata": {"name": "child", "finalizers": finalizers, "ownerReferences": [reference]}});
    api.post(CONFIG_MAPS, child).await.ok();
}

#[tokio::test]
async fn an_owner_whose_deletion_was_missed_takes_its_dependents_along() {
    let mut held = Held::open().await;
    make_pair(&held.api, json!([])).await;
    held.catch_up().await;
    held.miss("secrets", async { held.api.delete(OWNER, Value::Null).await.ok() }).await;
    let (api, _working) = held.release();
    api.until(CHILD, |answer| answer.code == 404).await;
}

#[tokio::test]
async fn an_owner_stops_waiting_for_a_dependent_whose_deletion_was_missed() {
    let mut held = Held::open().await;
    make_pair(&held.api, json!(["example.com/hold"])).await;
    held.api.delete(OWNER, json!({"propagationPolicy": "Foreground"})).await.ok();
    held.catch_up().await;
    assert!(held.api.get(CHILD).await.ok()["metadata"]["deletionTimestamp"].is_string());
    let let_go = json!({"metadata": {"finalizers": null}});
    held.miss("configmaps", async { held.api.merge(CHILD, let_go).await.ok() }).await;
    assert_eq!(held.api.get(CHILD).await.code, 404);
    let (api, _working) = held.release();
    api.until(OWNER, |answer| answer.code == 404).await;
}

#[tokio::test]
async fn a_deleted_definition_takes_along_what_its_objects_owned() {
    let api = Api::with_gadgets().await;
    let reference = async |name: &str| {
        let made = api.post(GADGETS, gadget(name, 1)).await.ok();
        json!({"apiVersion": "example.com/v1", "kind": "Gadget", "name": name, "uid": made["metadata"]["uid"]})
    };
    let (first, second) = (reference("first").await, reference("second").await);
    let own = api.post(CONFIG_MAPS, json!({"metadata": {"name": "own"}})).await.ok();
    let other =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "own", "uid": own["metadata"]["uid"]});
    #[rustfmt::skip]
    let cases = [
        ("of-one",     vec![first.clone()],          None),
        ("of-two",     vec![first.clone(), second],  None),
        ("of-another", vec![first, other.clone()],   Some(json!([other]))),
    ];
    for (name, owners, _) in &cases {
        let child = json!({"metadata": {"name": name, "ownerReferences": owners}});
        api.post(CONFIG_MAPS, child).await.ok();
    }
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.com";
    api.delete(definition, Value::Null).await.ok();
    api.until(definition, |answer| answer.code == 404).await;
    settle(&api).await;
    for (name, _, left) in cases {
        let found = api.get(&format!("{CONFIG_MAPS}/{name}")).await;
        let owners = (found.code == 200).then(|| found.body["metadata"]["ownerReferences"].clone());
        assert_eq!(owners, left, "{name}");
    }
}

#[tokio::test]
async fn a_namespace_with_a_pod_that_may_stop_for_ever_does_not_end_collection() {
    let api = Api::open().await;
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "patient"}})).await.ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": i64::MAX,
                     "containers": [{"name": "c", "image": "i"}]}});
    api.post("/api/v1/namespaces/patient/pods", pod).await.ok();
    api.delete("/api/v1/namespaces/patient", Value::Null).await.ok();
    let path = "/api/v1/namespaces/patient/pods/p";
    api.until(path, |answer| answer.body["metadata"]["deletionTimestamp"].is_string()).await;
    settle(&api).await;
    api.delete(path, json!({"gracePeriodSeconds": 0})).await.ok();
    api.until("/api/v1/namespaces/patient", |answer| answer.code == 404).await;
}

/// Has deletions of the resources refused, because nobody answers who must be asked.
async fn refuse_deletions(api: &Api, resources: &[&str]) {
    let webhook = json!({
        "name": "down.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"url": "https://127.0.0.1:1/hook"},
        "rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["*"], "resources": resources}],
    });
    api.post(WEBHOOKS, json!({"metadata": {"name": "down"}, "webhooks": [webhook]})).await.ok();
}

const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn condition<'a>(namespace: &'a Value, kind: &str) -> &'a Value {
    let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_refused_deletion_in_a_namespace_is_told_and_keeps_nothing_else_there() {
    let api = Api::open().await;
    let namespace = "/api/v1/namespaces/leaving";
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "leaving"}})).await.ok();
    for plural in ["configmaps", "persistentvolumeclaims", "secrets", "serviceaccounts"] {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let object = match plural {
            "persistentvolumeclaims" => json!({"metadata": {"name": "a"}, "spec": spec}),
            _ => json!({"metadata": {"name": "a"}}),
        };
        api.post(&format!("{namespace}/{plural}"), object).await.ok();
    }
    refuse_deletions(&api, &["configmaps"]).await;
    api.delete(namespace, Value::Null).await.ok();
    for plural in ["persistentvolumeclaims", "secrets", "serviceaccounts"] {
        api.until(&format!("{namespace}/{plural}/a"), |answer| answer.code == 404).await;
    }
    const FAILURE: &str = "NamespaceDeletionContentFailure";
    let told = api.until(namespace, |answer| condition(&answer.body, FAILURE)["status"] == "True").await.ok();
    let failure = condition(&told, FAILURE);
    assert_eq!(failure["reason"], "ContentDeletionFailed");
    let message = failure["message"].as_str().unwrap();
    let expected = "Failed to delete all resource types, 1 remaining: Internal error occurred: failed calling webhook \"down.example.com\"";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(
        condition(&told, "NamespaceContentRemaining")["message"],
        "Some resources are remaining: configmaps has 1 resource instances"
    );
    settle_secrets(&api).await;

    api.delete(&format!("{WEBHOOKS}/down"), Value::Null).await.ok();
    api.until(namespace, |answer| answer.code == 404).await;
}

#[tokio::test]
async fn a_refused_deletion_of_one_dependent_keeps_no_other() {
    let api = Api::open().await;
    make_pair(&api, json!([])).await;
    let owner = api.get(OWNER).await.ok();
    let reference = json!({"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner["metadata"]["uid"],
                           "blockOwnerDeletion": true});
    let others = "/api/v1/namespaces/default/serviceaccounts";
    api.post(others, json!({"metadata": {"name": "other", "ownerReferences": [reference]}})).await.ok();
    refuse_deletions(&api, &["configmaps"]).await;
    api.delete(OWNER, json!({"propagationPolicy": "Foreground"})).await.ok();
    api.until(&format!("{others}/other"), |answer| answer.code == 404).await;
    assert_eq!(api.get(CHILD).await.code, 200);
    api.delete(&format!("{WEBHOOKS}/down"), Value::Null).await.ok();
    api.until(OWNER, |answer| answer.code == 404).await;
}

/// As `settle`, where no configuration map can be deleted.
async fn settle_secrets(api: &Api) {
    let secrets = "/api/v1/namespaces/default/secrets";
    let sentinel = json!({"metadata": {"name": "sentinel", "ownerReferences": [nobody()]}});
    api.post(secrets, sentinel).await.ok();
    api.until(&format!("{secrets}/sentinel"), |answer| answer.code == 404).await;
}

/// A small generator of numbers, so that a failing family can be made again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Objects 0..n, each owned by some of those before it.
struct Family {
    owners: Vec<Vec<usize>>,
    uids: Vec<String>,
}

fn name(number: usize) -> String {
    format!("m{number}")
}

async fn make_family(api: &Api, numbers: &mut Numbers, size: usize) -> Family {
    let mut family = Family { owners: Vec::new(), uids: Vec::new() };
    for number in 0..size {
        let chosen: BTreeSet<usize> = (0..numbers.below(3))
            .filter(|_| number > 0)
            .map(|_| numbers.below(number as u64) as usize)
            .collect();
        let references: Vec<Value> = chosen
            .iter()
            .map(|&owner| {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name(owner), "uid": family.uids[owner],
                       "blockOwnerDeletion": numbers.below(2) == 0})
            })
            .collect();
        let object = json!({"metadata": {"name": name(number), "ownerReferences": references}});
        let made = api.post(CONFIG_MAPS, object).await.ok();
        family.uids.push(made["metadata"]["uid"].as_str().unwrap().to_owned());
        family.owners.push(chosen.into_iter().collect());
    }
    family
}

/// Who is left once `deleted` is gone: everyone without owners, or with one that is left.
fn survivors(family: &Family, deleted: usize, orphan: bool) -> BTreeSet<String> {
    let mut left: BTreeSet<usize> = BTreeSet::new();
    for (number, owners) in family.owners.iter().enumerate() {
        let owners: Vec<usize> =
            owners.iter().copied().filter(|owner| !(orphan && *owner == deleted)).collect();
        let stays = owners.is_empty() || owners.iter().any(|owner| left.contains(owner));
        if number != deleted && stays {
            left.insert(number);
        }
    }
    left.into_iter().map(name).collect()
}

async fn present(api: &Api) -> BTreeSet<String> {
    let list = api.get(CONFIG_MAPS).await.ok();
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Comes back when everything that was under way is done: a new orphan is found and collected after it.
async fn settle(api: &Api) {
    let sentinel = json!({"metadata": {"name": "sentinel", "ownerReferences": [nobody()]}});
    api.post(CONFIG_MAPS, sentinel).await.ok();
    api.until(&format!("{CONFIG_MAPS}/sentinel"), |answer| answer.code == 404).await;
}

#[tokio::test]
async fn random_families_lose_exactly_those_without_owners() {
    let api = Api::open().await;
    for seed in 0..12 {
        let mut numbers = Numbers(seed);
        let family = make_family(&api, &mut numbers, 10).await;
        let deleted = numbers.below(4) as usize;
        let policy = ["Background", "Foreground", "Orphan"][numbers.below(3) as usize];
        let options = json!({"propagationPolicy": policy});
        api.delete(&format!("{CONFIG_MAPS}/{}", name(deleted)), options).await.ok();

        let expected = survivors(&family, deleted, policy == "Orphan");
        for gone in (0..10).map(name).filter(|name| !expected.contains(name)) {
            api.until(&format!("{CONFIG_MAPS}/{gone}"), |answer| answer.code == 404).await;
        }
        settle(&api).await;
        assert_eq!(present(&api).await, expected, "seed {seed}, {policy} deletion of {}", name(deleted));
        for survivor in &expected {
            let object = api.get(&format!("{CONFIG_MAPS}/{survivor}")).await.ok();
            let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let dangling = owners.iter().find(|owner| !expected.contains(owner["name"].as_str().unwrap()));
            assert!(dangling.is_none(), "seed {seed}: {survivor} still names {dangling:?}");
        }
        api.delete(CONFIG_MAPS, Value::Null).await.ok();
        settle(&api).await;
    }
}
