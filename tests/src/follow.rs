//! Looks at objects whenever they are written, so that also what is true for a moment only is seen.
//!
//! The one invariant: every write after [`follow()`] has returned is looked at, in the order of the writes.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Looks at each object of a kind; begun when this returns.
pub async fn follow<K, S>(all: Api<K>, seen: Arc<Mutex<S>>, look: fn(&mut S, &K)) -> JoinHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    S: Send + 'static,
{
    let (begun, has_begun) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let (mut begun, mut events) = (Some(begun), watcher(all, watcher::Config::default()).boxed());
        while let Some(event) = events.next().await {
            match event.expect("the API answers") {
                Event::Apply(object) | Event::InitApply(object) => {
                    look(&mut seen.lock().expect("nobody failed while looking"), &object);
                }
                Event::InitDone => drop(begun.take()),
                Event::Init | Event::Delete(_) => {}
            }
        }
    });
    // Who has begun drops the other end.
    let _ = has_begun.await;
    task
}
