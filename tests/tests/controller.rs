//! An unmodified kube-rs controller against a server that is killed under it.
//!
//! A thousand objects are created, changed and deleted while the server loses
//! its watch history (410 and relist) and its life (kill -9). In the end the
//! controller has acted on the last word about every object, its cache is what
//! the server has, and at no time did it see an older state after a newer one.

#![expect(clippy::unwrap_used, reason = "a test that cannot reach its server has failed")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Error};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use midflight_tests::kinds;
use midflight_tests::server::Killable;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const OBJECTS: usize = 1000;
const DELETED: usize = 100;
const ROUNDS: i64 = 4;
/// Events that the server keeps: far fewer than a round makes, so that whoever was away is too late.
const HISTORY: usize = 200;
const KILLS: usize = 4;
const BETWEEN_KILLS: Duration = Duration::from_millis(600);
const PATIENCE: Duration = Duration::from_secs(120);
/// Lists come in one page. While kube lists anew page by page, it already reconciles the first of them with
/// what its cache held before, and never looks again: against any server, a change may then be missed.
const PAGE: u32 = 2 * OBJECTS as u32;

/// What the controller saw and did.
struct Seen {
    api: Api<DynamicObject>,
    /// The highest size by object, and every time it fell.
    sizes: Mutex<HashMap<String, i64>>,
    faults: Mutex<Vec<String>>,
    /// How often its watch was too late and it had to list anew.
    expired: AtomicUsize,
}

impl Seen {
    fn note<T>(&self, outcome: &Result<T, Error<kube::Error, watcher::Error>>) {
        if matches!(outcome, Err(Error::QueueError(watcher::Error::WatchError(status))) if status.code == 410)
        {
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn size(object: &DynamicObject) -> i64 {
    object.data.pointer("/spec/size").and_then(Value::as_i64).unwrap_or_default()
}

fn acted(object: &DynamicObject) -> Option<i64> {
    object.data.pointer("/status/observedGeneration").and_then(Value::as_i64)
}

/// Writes down which generation it saw, as every controller does.
async fn reconcile(object: Arc<DynamicObject>, seen: Arc<Seen>) -> Result<Action, kube::Error> {
    let name = object.name_any();
    {
        let mut sizes = seen.sizes.lock().unwrap();
        let highest = sizes.entry(name.clone()).or_insert(0);
        if size(&object) < *highest {
            let fault = format!("{name} went from {highest} back to {}", size(&object));
            seen.faults.lock().unwrap().push(fault);
        }
        *highest = size(&object).max(*highest);
    }
    if acted(&object) == object.metadata.generation {
        return Ok(Action::await_change());
    }
    let status = json!({
        "apiVersion": format!("{}/v1", kinds::GROUP), "kind": "Gadget",
        "status": {"observedGeneration": object.metadata.generation, "phase": "Seen"},
    });
    let parameters = PatchParams::apply("controller").force();
    match seen.api.patch_status(&name, &parameters, &Patch::Apply(status)).await {
        // Deleted meanwhile: nothing is left to be said about it.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Action::await_change()),
        other => other.map(|_| Action::await_change()),
    }
}

/// Does it until the server is there to do it. The deed must be safe to repeat.
async fn insist<T>(deed: impl AsyncFn() -> Result<T, kube::Error>, fine: &[u16]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match deed().await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if fine.contains(&status.code) => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn write_all(client: Client, resource: ApiResource) {
    let api = Api::<DynamicObject>::namespaced_with(client, "default", &resource);
    let names = || (0..OBJECTS).map(|number| format!("g{number:04}"));
    let each = |round: i64| {
        let (api, resource) = (api.clone(), resource.clone());
        futures::stream::iter(names()).for_each_concurrent(16, move |name| {
            let (api, resource) = (api.clone(), resource.clone());
            async move {
                let mut object = DynamicObject::new(&name, &resource);
                object.data = json!({"spec": {"size": 1}});
                match round {
                    0 => insist(async || api.create(&PostParams::default(), &object).await, &[409]).await,
                    _ => {
                        let patch = json!({"spec": {"size": round + 1}});
                        insist(
                            async || api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await,
                            &[],
                        )
                        .await;
                    }
                }
            }
        })
    };
    for round in 0..=ROUNDS {
        each(round).await;
    }
    for name in names().take(DELETED) {
        insist(async || api.delete(&name, &DeleteParams::default()).await, &[404]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_misses_nothing_through_relists_and_restarts() {
    let mut server = Killable::start(env!("CARGO_BIN_EXE_embedded_api"), HISTORY).await.unwrap();
    let endpoint = server.endpoint().await.unwrap();
    kinds::install(&endpoint).await.unwrap();
    let client = endpoint.client();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kinds::GROUP, "v1", "Gadget"));
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &resource);

    let seen = Arc::new(Seen {
        api: api.clone(),
        sizes: Mutex::default(),
        faults: Mutex::default(),
        expired: AtomicUsize::new(0),
    });
    let controller =
        Controller::new_with(api.clone(), watcher::Config::default().page_size(PAGE), resource.clone());
    let cache = controller.store();
    let running = controller
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(200)), seen.clone())
        .for_each({
            let seen = seen.clone();
            move |outcome| {
                seen.note(&outcome);
                std::future::ready(())
            }
        });
    let running = tokio::spawn(running);

    let mut writing = std::pin::pin!(write_all(client.clone(), resource.clone()));
    let mut kills = 0;
    loop {
        tokio::select! {
            () = &mut writing => break,
            () = sleep(BETWEEN_KILLS), if kills < KILLS => {
                server.kill().unwrap();
                server.restart().await.unwrap();
                kills += 1;
            }
        }
    }
    assert!(kills >= 2, "the work was done before the server could be killed twice");

    let deadline = Instant::now() + PATIENCE;
    loop {
        let late = behind(&api, &cache).await;
        if late.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "still behind after {kills} kills: {late:?}");
        sleep(Duration::from_millis(200)).await;
    }
    running.abort();
    assert!(seen.expired.load(Ordering::Relaxed) > 0, "no watch was ever too late, so no relist was tried");
    let faults = seen.faults.lock().unwrap();
    assert!(faults.is_empty(), "{faults:?}");
}

/// Where the controller's deeds or its cache are not yet what the server has.
async fn behind(
    api: &Api<DynamicObject>,
    cache: &kube::runtime::reflector::Store<DynamicObject>,
) -> BTreeMap<String, String> {
    let listed = api.list(&ListParams::default()).await.unwrap();
    let there = listed.items.iter().filter(|object| object.name_any().starts_with('g'));
    let there = there.map(|object| (object.name_any(), object)).collect::<BTreeMap<_, _>>();
    assert_eq!(there.len(), OBJECTS - DELETED);
    let cached =
        cache.state().into_iter().map(|object| (object.name_any(), object)).collect::<BTreeMap<_, _>>();

    let mut late = BTreeMap::new();
    for (name, object) in &there {
        assert_eq!(size(object), ROUNDS + 1, "{name} lost an acknowledged write");
        if acted(object) != object.metadata.generation {
            late.insert(name.clone(), "not acted upon".to_owned());
        } else if cached.get(name).and_then(|copy| copy.resource_version()) != object.resource_version() {
            late.insert(name.clone(), "the cache has another version".to_owned());
        }
    }
    for name in cached.keys().filter(|name| name.starts_with('g') && !there.contains_key(*name)) {
        late.insert(name.clone(), "in the cache though deleted".to_owned());
    }
    late
}
