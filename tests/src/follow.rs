//! Looks at objects whenever they are written, so that also what is true for a moment only is seen.
//!
//! The one invariant: every write after [`follow()`] has returned is looked at, in the order of the writes. Where the API was away, what it
//! has afterwards is looked at, and the output of the test says that something may have been missed.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const BEGINS_WITHIN: Duration = Duration::from_secs(150);

/// Looks at each object of a kind; begun when this returns.
#[expect(clippy::print_stderr, reason = "whoever runs the tests must read it")]
pub async fn follow<K, S>(all: Api<K>, seen: Arc<Mutex<S>>, look: fn(&mut S, &K)) -> JoinHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    S: Send + 'static,
{
    let (begun, has_begun) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let mut begun = Some(begun);
        let mut events = watcher(all, watcher::Config::default()).default_backoff().boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    look(&mut seen.lock().expect("nobody failed while looking"), &object);
                }
                Ok(Event::InitDone) => drop(begun.take()),
                Ok(Event::Init | Event::Delete(_)) => {}
                Err(error) => eprintln!("a watch of {} is renewed after {error}", K::kind(&())),
            }
        }
    });
    // Who has begun drops the other end.
    let begins = timeout(BEGINS_WITHIN, has_begun).await;
    assert!(begins.is_ok(), "a watch of {} has not begun after {BEGINS_WITHIN:?}", K::kind(&()));
    task
}
