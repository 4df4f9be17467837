//! Act: the control plane is killed while clients write, and nothing acknowledged is lost.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use futures::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use rustix::process::Signal;
use tokio::time::timeout;

use super::{program::Outcome, stage::Stage};
use crate::process::Role;

const OBJECTS: usize = 1_000;
const WRITERS: usize = 16;
/// How many writes are acknowledged before the kill.
const BEFORE_THE_KILL: usize = OBJECTS / 2;
/// The watch must have seen everything this long after the last write.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "default";

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let objects: Api<ConfigMap> = Api::namespaced(stage.cluster.client().await?, NAMESPACE);
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let watching = tokio::spawn(see_all(Api::namespaced(stage.cluster.client().await?, NAMESPACE)));

    let began = Instant::now();
    let writing = join_all((0..WRITERS).map(|writer| write(&objects, writer, &acknowledged)));
    let killing = kill_and_restart(stage, &acknowledged);
    let (written, restarted) = tokio::join!(writing, killing);
    let took = began.elapsed();
    let restarted = restarted?;
    let acknowledged: BTreeSet<String> = written.into_iter().flatten().collect();
    anyhow::ensure!(
        acknowledged.len() == OBJECTS,
        "only {} of {OBJECTS} writes succeeded",
        acknowledged.len()
    );

    let stored =
        objects.list(&ListParams::default().labels("tour=durable")).await.context("list what is stored")?;
    let stored: BTreeSet<String> = stored.iter().map(ResourceExt::name_any).collect();
    let lost = acknowledged.difference(&stored).count();
    anyhow::ensure!(lost == 0, "{lost} acknowledged objects are gone");
    let seen = timeout(SEEN_WITHIN, watching).await.context("the watch has not seen everything")??;
    anyhow::ensure!(seen == stored, "the watch saw other objects than are stored");
    Ok(Outcome::Shown(vec![
        format!("{OBJECTS} writes acknowledged in {} ms, one kill -9 included; 0 lost", took.as_millis()),
        format!("the control plane was back {} ms after the kill", restarted.as_millis()),
        format!("a watch opened before saw all {} objects", seen.len()),
    ]))
}

/// Writes this writer's share. A write that got no answer is tried again; that it exists already is an answer.
async fn write(objects: &Api<ConfigMap>, writer: usize, acknowledged: &AtomicUsize) -> Vec<String> {
    let mut names = Vec::new();
    for number in (writer..OBJECTS).step_by(WRITERS) {
        let name = format!("durable-{number}");
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some([("tour".to_owned(), "durable".to_owned())].into()),
                ..Default::default()
            },
            data: Some([("number".to_owned(), number.to_string())].into()),
            ..Default::default()
        };
        let deadline = Instant::now() + SEEN_WITHIN;
        while Instant::now() < deadline {
            match objects.create(&PostParams::default(), &object).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
            names.push(name);
            break;
        }
    }
    names
}

/// How long the control plane was away.
async fn kill_and_restart(stage: &Stage<'_>, acknowledged: &AtomicUsize) -> anyhow::Result<Duration> {
    while acknowledged.load(Ordering::Relaxed) < BEFORE_THE_KILL {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let control = stage.cluster.control()?;
    let killed = Instant::now();
    control.signal(Signal::KILL)?;
    control.ended().await?;
    stage.cluster.starter.start(&Role::Control).await?;
    Ok(killed.elapsed())
}

/// Watches until every object was seen.
async fn see_all(objects: Api<ConfigMap>) -> BTreeSet<String> {
    let config = watcher::Config::default().labels("tour=durable");
    let mut events = watcher(objects, config).default_backoff().applied_objects().boxed();
    let mut seen = BTreeSet::new();
    while let Some(event) = events.next().await {
        // Errors are the time when the control plane is away; the watcher connects again by itself.
        if let Ok(object) = event {
            seen.insert(object.name_any());
        }
        if seen.len() == OBJECTS {
            break;
        }
    }
    seen
}
