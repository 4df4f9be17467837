//! An unmodified kube-rs controller against a server that is killed under it.
//!
//! A thousand objects are created, changed and deleted while the server loses
//! its watch history (410 and relist) and its life (kill -9). In the end the
//! controller has acted on the last word about every object, its cache is what
//! the server has, and at no time did it see an older state after a newer one.
//! What the server told its watcher is judged too: pages of one moment, no gap.

#![expect(clippy::unwrap_used, reason = "a test that cannot reach its server has failed")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use midflight_tests::kinds;
use midflight_tests::server::Killable;
use midflight_tests::told::{Story, Told};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const OBJECTS: usize = 1000;
const DELETED: usize = 100;
const ROUNDS: i64 = 4;
/// Events that the server keeps: far fewer than a round makes, so that whoever was away is too late.
const HISTORY: usize = 200;
/// How many writes are done when the server is killed: a part of the objects is there, or all of them.
const KILLS: [usize; 4] = [700, 1700, 2700, 3700];
const PATIENCE: Duration = Duration::from_secs(150);
/// Objects that are changed once more at a time: less than the history holds, with what is written about them.
const NUDGED: usize = HISTORY / 4;

/// What the controller saw and did.
struct Seen {
    api: Api<DynamicObject>,
    /// The highest size by object, and every time it fell.
    sizes: Mutex<HashMap<String, i64>>,
    faults: Mutex<Vec<String>>,
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

async fn write_all(client: Client, resource: ApiResource, written: &AtomicUsize) {
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
                written.fetch_add(1, Ordering::Relaxed);
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

/// A controller that has been through everything, and its server.
struct Survivor {
    _server: Killable,
    api: Api<DynamicObject>,
    cache: Store<DynamicObject>,
    running: JoinHandle<()>,
    seen: Arc<Seen>,
    told: Told,
}

impl Survivor {
    /// Runs it while everything is written and the server dies again and again.
    async fn of(config: watcher::Config) -> Survivor {
        let mut server = Killable::start(env!("CARGO_BIN_EXE_embedded_api"), HISTORY).await.unwrap();
        let endpoint = server.endpoint().await.unwrap();
        kinds::install(&endpoint).await.unwrap();
        let (client, told) = (endpoint.client(), Told::default());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kinds::GROUP, "v1", "Gadget"));
        let namespaced = |client| Api::<DynamicObject>::namespaced_with(client, "default", &resource);
        let (api, watched) = (namespaced(client.clone()), namespaced(endpoint.overheard(&told).unwrap()));

        let seen = Arc::new(Seen { api: api.clone(), sizes: Mutex::default(), faults: Mutex::default() });
        let controller = Controller::new_with(watched, config, resource.clone());
        let cache = controller.store();
        let running = controller
            .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(200)), seen.clone())
            .for_each(|_| std::future::ready(()));
        let running = tokio::spawn(running);

        let written = AtomicUsize::new(0);
        let mut writing = std::pin::pin!(write_all(client, resource, &written));
        for due in KILLS {
            let reached = async {
                while written.load(Ordering::Relaxed) < due {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                () = &mut writing => panic!("everything was written before the server was killed at {due}"),
                () = reached => {}
            }
            server.kill().unwrap();
            // The writers insist meanwhile.
            tokio::select! {
                () = &mut writing => panic!("everything was written while the server was dead"),
                restarted = server.restart() => restarted.unwrap(),
            }
        }
        writing.await;
        Survivor { _server: server, api, cache, running, seen, told }
    }

    /// Waits until it has acted on the last word about every object; `nudge` may help those that are late.
    async fn catches_up(&self, nudge: impl AsyncFn(&BTreeMap<String, Late>)) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let late = behind(&self.api, &self.cache).await;
            if late.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "still behind: {late:?}");
            nudge(&late).await;
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Nothing was seen out of order, and the server told one story, to its end.
    async fn judged(self) -> Story {
        let listed = self.api.list(&ListParams::default()).await.unwrap();
        let there: BTreeMap<String, String> = listed
            .items
            .iter()
            .map(|object| (object.name_any(), object.resource_version().unwrap()))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        let story = loop {
            let story = self.told.so_far();
            let told = story.known.iter().map(|(name, (version, _))| (name.clone(), version.to_string()));
            if told.collect::<BTreeMap<_, _>>() == there {
                break story;
            }
            assert!(Instant::now() < deadline, "the last word was not told: {story:?}");
            sleep(Duration::from_millis(50)).await;
        };
        self.running.abort();
        assert_eq!(story.faults, Vec::<String>::new());
        assert_eq!(*self.seen.faults.lock().unwrap(), Vec::<String>::new());
        assert!(story.expired > 0, "nothing was ever too late, so no relist was tried");
        story
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_misses_nothing_through_relists_and_restarts() {
    let survivor = Survivor::of(watcher::Config::default().page_size(2 * OBJECTS as u32)).await;
    survivor.catches_up(async |_| {}).await;
    let story = survivor.judged().await;
    assert_eq!(story.paged, 0);
}

/// While kube lists anew page by page, it already reconciles the first of them with what its cache held before,
/// and never looks again: against any server, a change may then be missed until the object changes once more.
/// What is the server's holds all the same: pages of one moment, no gap, the end seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_lists_in_pages_is_told_everything() {
    let survivor = Survivor::of(watcher::Config::default()).await;
    let api = &survivor.api;
    let nudge = async |late: &BTreeMap<String, Late>| {
        let missed = late.iter().filter(|(_, late)| **late == Late::NotActedUpon);
        for (name, _) in missed.take(NUDGED) {
            let moment = json!({"metadata": {"annotations": {"nudged": format!("{:?}", Instant::now())}}});
            api.patch(name, &PatchParams::default(), &Patch::Merge(&moment)).await.unwrap();
        }
    };
    survivor.catches_up(nudge).await;
    let story = survivor.judged().await;
    assert!(story.paged > 0, "no list came in pages");
}

/// How a controller is behind with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Late {
    NotActedUpon,
    CacheHasAnotherVersion,
    InTheCacheThoughDeleted,
}

/// Where the controller's deeds or its cache are not yet what the server has.
async fn behind(api: &Api<DynamicObject>, cache: &Store<DynamicObject>) -> BTreeMap<String, Late> {
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
            late.insert(name.clone(), Late::NotActedUpon);
        } else if cached.get(name).and_then(|copy| copy.resource_version()) != object.resource_version() {
            late.insert(name.clone(), Late::CacheHasAnotherVersion);
        }
    }
    for name in cached.keys().filter(|name| name.starts_with('g') && !there.contains_key(*name)) {
        late.insert(name.clone(), Late::InTheCacheThoughDeleted);
    }
    late
}
