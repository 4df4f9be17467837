//! The loop against a real API server: it misses nothing, spreads its writes by key, goes on after
//! failures, and writes nothing on an old view.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::testing::Cluster;
use crate::write::{Cut, Moment, Writer};

const PATIENCE: Duration = Duration::from_secs(150);

/// Writes into `copy` what `text` says. Fails the first turns if told to.
struct Copyist {
    maps: Objects<ConfigMap>,
    fails: AtomicUsize,
    turns: Arc<Mutex<Vec<String>>>,
}

impl Controller for Copyist {
    const NAME: &'static str = "copyist";
    type Key = Key;
    type Seen = Arc<ConfigMap>;
    type Decision = Option<String>;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.maps, |map| {
            let is_ours = map.data.as_ref().is_some_and(|data| data.contains_key("text"));
            is_ours.then(|| Key::of(map)).into_iter().collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Arc<ConfigMap>>, TurnError> {
        self.turns.lock().unwrap().push(key.name.clone());
        Ok(self.maps.get(key)?)
    }

    fn decide(seen: &Arc<ConfigMap>) -> Option<String> {
        let data = seen.data.as_ref()?;
        data.get("text").filter(|text| data.get("copy") != Some(text)).cloned()
    }

    async fn report(&self, _: &mut Arc<ConfigMap>, _: &Option<String>) -> Result<(), TurnError> {
        let failed = self.fails.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        match failed {
            Ok(_) => Err(TurnError::Failed { doing: "copy".into(), source: "as told".into() }),
            Err(_) => Ok(()),
        }
    }

    async fn act(&self, mut seen: Arc<ConfigMap>, copy: Option<String>) -> Result<Next, TurnError> {
        if let Some(copy) = copy {
            let edit = |map: &mut ConfigMap| {
                map.data.get_or_insert_default().insert("copy".into(), copy);
            };
            self.maps.change(&mut seen, edit).await?;
            let (by, tone) = (Self::NAME, Tone::Normal);
            let news = News { by, tone, reason: "Copied", note: "it says the same now" };
            self.maps.tell(&seen, &news).await;
        }
        Ok(Next::OnChange)
    }
}

fn copyist(writer: Writer, fails: usize) -> (Operator, Arc<Mutex<Vec<String>>>) {
    let mut operator = Operator::new(Arc::new(writer));
    let turns = Arc::default();
    let controller =
        Copyist { maps: operator.objects(), fails: AtomicUsize::new(fails), turns: Arc::clone(&turns) };
    operator.add(controller);
    (operator, turns)
}

async fn make(maps: &Api<ConfigMap>, name: &str, text: &str) {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let data = Some([("text".to_owned(), text.to_owned())].into());
    maps.create(&PostParams::default(), &ConfigMap { metadata, data, ..ConfigMap::default() }).await.unwrap();
}

async fn until_copied(maps: &Api<ConfigMap>, name: &str) {
    let copied = async {
        loop {
            let data = maps.get(name).await.unwrap().data.unwrap_or_default();
            if data.get("copy") == data.get("text") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, copied).await.unwrap_or_else(|_| panic!("{name} was not copied"));
}

#[tokio::test]
async fn a_turn_follows_every_change_and_failures_are_retried() {
    let cluster = Cluster::open().await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    make(&maps, "before", "one").await;
    let (operator, turns) = copyist(Writer::new(cluster.client.clone()), 2);
    let running = tokio::spawn(operator.run());
    until_copied(&maps, "before").await;
    make(&maps, "after", "two").await;
    until_copied(&maps, "after").await;
    let change = Patch::Merge(json!({ "data": { "text": "three" } }));
    maps.patch("before", &PatchParams::default(), &change).await.unwrap();
    until_copied(&maps, "before").await;
    running.abort();

    let before = turns.lock().unwrap().iter().filter(|name| *name == "before").count();
    assert!((5..20).contains(&before), "{before} turns: two failed, two copied, and a look after each write");
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let told = events.list(&ListParams::default()).await.unwrap();
    let mut told: Vec<_> =
        told.iter().map(|event| (event.involved_object.name.clone(), event.count)).collect();
    told.sort();
    assert_eq!(told[0], (Some("after".into()), Some(1)));
    assert_eq!(told[1].0, Some("before".into()), "the same news is one event");
    cluster.close().await;
}

#[tokio::test]
async fn whoever_comes_after_a_cut_completes_the_work() {
    for (write, moment) in (0..2).flat_map(|write| {
        [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged].map(|moment| (write, moment))
    }) {
        let cluster = Cluster::open().await;
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
        make(&maps, "a", "one").await;
        let (operator, _) = copyist(Writer::with_cut(cluster.client.clone(), Cut { write, moment }), 0);
        let first = tokio::spawn(operator.run());
        match moment {
            Moment::AnswerLost => {}
            Moment::NotSent | Moment::Acknowledged => {
                timeout(PATIENCE, first).await.expect("the cut ends the operator").unwrap();
                let (operator, _) = copyist(Writer::new(cluster.client.clone()), 0);
                tokio::spawn(operator.run());
            }
        }
        until_copied(&maps, "a").await;
        cluster.close().await;
    }
}

#[tokio::test]
async fn a_write_that_was_decided_on_an_old_view_is_refused() {
    let cluster = Cluster::open().await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    make(&maps, "a", "one").await;
    let mut operator = Operator::new(Arc::new(Writer::new(cluster.client.clone())));
    let objects: Objects<ConfigMap> = operator.objects();
    let old = Arc::new(maps.get("a").await.unwrap());
    let change = Patch::Merge(json!({ "data": { "text": "two" } }));
    maps.patch("a", &PatchParams::default(), &change).await.unwrap();

    let label = |map: &mut ConfigMap| {
        map.labels_mut().insert("seen".into(), "one".into());
    };
    let refused = objects.change(&mut Arc::clone(&old), label).await.unwrap_err();
    assert!(refused.source.is_conflict(), "{refused}");
    let refused = objects.delete(&old).await.unwrap_err();
    assert!(refused.source.is_conflict(), "{refused}");

    let mut now = Arc::new(maps.get("a").await.unwrap());
    objects.change(&mut now, label).await.unwrap();
    objects.change(&mut now, |_| {}).await.unwrap();
    assert_eq!(maps.get("a").await.unwrap().data.unwrap()["text"], "two", "only what changes is written");
    objects.delete(&now).await.unwrap();
    objects.delete(&now).await.unwrap();
    cluster.close().await;
}

/// What cannot be learnt again is written down although somebody else wrote to the object since it was seen.
#[tokio::test]
async fn a_status_is_reported_over_what_others_wrote_meanwhile() {
    let cluster = Cluster::open().await;
    let mut operator = Operator::new(Arc::new(Writer::new(cluster.client.clone())));
    let objects: Objects<Pod> = operator.objects();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let pod =
        json!({ "metadata": { "name": "a" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let by_others = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    pods.patch_status("a", &PatchParams::default(), &by_others).await.unwrap();

    let edit = |pod: &mut Pod| pod.status.get_or_insert_default().reason = Some("learnt".into());
    let refused = objects.report(&mut Arc::new(pod.clone()), edit).await.unwrap_err();
    assert!(refused.source.is_conflict(), "{refused:?}");
    objects.report_over(&mut Arc::new(pod.clone()), edit).await.unwrap();
    let status = pods.get("a").await.unwrap().status.unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Running"), Some("learnt")));

    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete("a", &at_once).await.unwrap();
    objects.report_over(&mut Arc::new(pod), edit).await.expect("what is gone needs no status");
    cluster.close().await;
}
