//! The objects of one kind: read from the cache, written through the shim.
//!
//! The invariant: a write names the fields that change and the version it was decided on; the
//! API refuses it if the object has changed since.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{Api, DeleteParams, LogParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use midflight_api::MANAGER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cache::{Cache, Index, Stale};
use super::difference::difference;
use super::{Key, News, TurnError, event};
use crate::write::{WriteError, Writer};

/// How often others may be faster with a write before a turn gives up on its own.
const MOST_CONFLICTS: usize = 8;

/// A kind that controllers look at and write.
pub trait Kind:
    Resource<DynamicType = (), Scope: Place>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope: Place>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Whether a kind's objects are in namespaces.
pub trait Place {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: &str) -> Api<K>;
}

impl Place for NamespaceResourceScope {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: &str) -> Api<K> {
        Api::namespaced(client, namespace)
    }
}

impl Place for ClusterResourceScope {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, _: &str) -> Api<K> {
        Api::all(client)
    }
}

/// A write that the API did not do, or of which it is not known.
#[derive(Debug, thiserror::Error)]
#[error("{verb} {kind} {key}")]
pub struct WriteFailed {
    verb: &'static str,
    kind: String,
    key: Key,
    pub source: WriteError,
}

/// The objects of one kind.
pub struct Objects<K> {
    cache: Arc<Cache<K>>,
    writer: Arc<Writer>,
}

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Objects { cache: Arc::clone(&self.cache), writer: Arc::clone(&self.writer) }
    }
}

impl<K: Kind> Objects<K> {
    pub(super) fn new(cache: Arc<Cache<K>>, writer: Arc<Writer>) -> Objects<K> {
        Objects { cache, writer }
    }

    pub(super) fn cache(&self) -> &Arc<Cache<K>> {
        &self.cache
    }

    /// Makes the objects known by words that they say.
    pub fn index(&self, words: fn(&K) -> Vec<String>) -> Index<K> {
        self.cache.index(words)
    }

    pub fn get(&self, key: &Key) -> Result<Option<Arc<K>>, Stale> {
        self.cache.get(key)
    }

    /// All that say this word, in the order of their keys.
    pub fn by(&self, index: Index<K>, word: &str) -> Result<Vec<Arc<K>>, Stale> {
        self.cache.by(index, word)
    }

    /// All that the watch has shown to say this word. For whoever wakes them: one of our own writes that is not shown yet wakes its
    /// object itself, and keeps no other from its turn.
    pub fn shown_by(&self, index: Index<K>, word: &str) -> Vec<Arc<K>> {
        self.cache.shown_by(index, word)
    }

    /// How many say this word, without looking at each. A write of ours that is not shown yet counts too, so that the number is
    /// never too low because of it.
    pub fn count(&self, index: Index<K>, word: &str) -> usize {
        self.cache.count(index, word)
    }

    /// All there are. For kinds of which there are few.
    pub fn all(&self) -> Result<Vec<Arc<K>>, Stale> {
        self.cache.all()
    }

    /// All that the watch has shown, which may be older than our own last writes. For whoever is told of each change afterwards and
    /// writes only by the version that it was shown.
    pub fn shown(&self) -> Vec<Arc<K>> {
        self.cache.shown()
    }

    /// Asks the API whether somebody wants something else of an object than what was seen. For acts that no version guards: another
    /// object is made or taken away because of this one.
    pub async fn confirm(&self, seen: &K) -> Result<(), TurnError> {
        let key = Key::of(seen);
        let kind = K::kind(&()).into_owned();
        let now = self.api(&key).get_opt(&key.name).await.map_err(|source| TurnError::Failed {
            doing: format!("look at {kind} {key} again"),
            source: Box::new(source),
        })?;
        let wanted = |object: &K| {
            let meta = object.meta();
            (meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some())
        };
        match now.is_some_and(|now| wanted(&now) == wanted(seen)) {
            true => Ok(()),
            false => Err(Stale { kind, key }.into()),
        }
    }

    /// Makes an object. One of its name that is there already counts as ours, made by a turn whose answer
    /// was lost: the cache will show it.
    pub async fn create(&self, object: &K) -> Result<(), WriteFailed> {
        let key = Key::of(object);
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let api = self.api(&key);
        match self.send("create", &key, api.create(&parameters, object)).await {
            Ok(made) => {
                self.cache.wrote(made);
                Ok(())
            }
            Err(failed) if failed.source.is_already_there() => Ok(()),
            Err(failed) => Err(failed),
        }
    }

    /// Changes metadata and spec of an object that was seen. What is written takes its place.
    pub async fn change(&self, seen: &mut Arc<K>, edit: impl FnOnce(&mut K)) -> Result<(), WriteFailed> {
        self.edit("change", seen, edit, false).await
    }

    /// Changes the status of an object that was seen. What is written takes its place.
    pub async fn report(&self, seen: &mut Arc<K>, edit: impl FnOnce(&mut K)) -> Result<(), WriteFailed> {
        self.edit("report", seen, edit, true).await
    }

    /// Changes the status of an object, whatever else was written to it since it was seen: for what was learnt once and cannot be
    /// learnt again. The edit is made to what the API has by then. An object that is gone needs no status.
    pub async fn report_over(&self, seen: &mut Arc<K>, edit: impl Fn(&mut K)) -> Result<(), TurnError> {
        for _ in 0..MOST_CONFLICTS {
            match self.report(seen, &edit).await {
                Err(failed) if failed.source.is_conflict() => {}
                Err(failed) if failed.source.is_not_found() => return Ok(()),
                done => return Ok(done?),
            }
            let key = Key::of(&**seen);
            let now = self.api(&key).get_opt(&key.name).await.map_err(|source| TurnError::Failed {
                doing: format!("look at {} {key} again", K::kind(&())),
                source: Box::new(source),
            })?;
            match now.filter(|now| now.meta().uid == seen.meta().uid) {
                Some(now) => *seen = Arc::new(now),
                None => return Ok(()),
            }
        }
        Ok(self.report(seen, &edit).await?)
    }

    async fn edit(
        &self,
        verb: &'static str,
        seen: &mut Arc<K>,
        edit: impl FnOnce(&mut K),
        status: bool,
    ) -> Result<(), WriteFailed> {
        let key = Key::of(&**seen);
        let mut wanted = K::clone(seen);
        edit(&mut wanted);
        let (old, new) = (parts(&**seen, status), parts(&wanted, status));
        let Some(mut change) = difference(&old, &new) else { return Ok(()) };
        change["metadata"]["resourceVersion"] = json!(seen.resource_version());
        let (api, change) = (self.api(&key), Patch::Merge(change));
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let written = if status {
            self.send(verb, &key, api.patch_status(&key.name, &parameters, &change)).await?
        } else {
            self.send(verb, &key, api.patch(&key.name, &parameters, &change)).await?
        };
        *seen = self.cache.wrote(written);
        Ok(())
    }

    /// Deletes an object as it was seen, and no other of its name. One that is gone is deleted already.
    pub async fn delete(&self, seen: &Arc<K>) -> Result<(), WriteFailed> {
        let key = Key::of(&**seen);
        let preconditions = Preconditions { uid: seen.uid(), resource_version: seen.resource_version() };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let api = self.api(&key);
        match self.send("delete", &key, api.delete(&key.name, &parameters)).await {
            Ok(answer) => match answer.left() {
                Some(object) if object.meta().deletion_timestamp.is_some() => {
                    self.cache.wrote(object);
                }
                _ => self.cache.deleted(seen),
            },
            Err(failed) if failed.source.is_not_found() => self.cache.deleted(seen),
            Err(failed) => return Err(failed),
        }
        Ok(())
    }

    /// Tells people about an object, by an event. One that cannot be written is left out.
    pub async fn tell(&self, about: &K, news: &News<'_>) {
        event::tell(&self.writer, about.object_ref(&()), news).await;
    }

    fn api(&self, key: &Key) -> Api<K> {
        <K::Scope as Place>::api(self.writer.client().clone(), &key.namespace)
    }

    async fn send<T>(
        &self,
        verb: &'static str,
        key: &Key,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WriteFailed> {
        let kind = K::kind(&()).into_owned();
        let object = format!("{kind} {key}");
        let sent = self.writer.send(verb, &object, request).await;
        sent.map_err(|source| WriteFailed { verb, kind, key: key.clone(), source })
    }
}

impl Objects<Pod> {
    /// Puts a pod as it was seen, and no other of its name, on a node.
    pub async fn bind(&self, seen: &Arc<Pod>, node: &str) -> Result<(), WriteFailed> {
        let key = Key::of(&**seen);
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": key.name, "namespace": key.namespace, "uid": seen.uid() },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let (api, parameters) = (self.api(&key), PostParams::default());
        let bound = api.create_subresource::<Value, Value>("binding", &key.name, &parameters, &binding);
        self.send("bind", &key, bound).await.map(drop)
    }

    /// The last words of one of its containers.
    pub async fn last_words(&self, pod: &Pod, container: &str) -> kube::Result<String> {
        let key = Key::of(pod);
        let wanted =
            LogParams { container: Some(container.into()), tail_lines: Some(1), ..LogParams::default() };
        self.api(&key).logs(&key.name, &wanted).await
    }
}

/// The part of an object that a write is about: its status, or all else.
fn parts<K: Serialize>(object: &K, status: bool) -> Value {
    let mut whole = serde_json::to_value(object).expect("an object that was read can be written");
    let taken = whole.as_object_mut().and_then(|fields| fields.remove("status"));
    if status { json!({ "metadata": {}, "status": taken.unwrap_or_default() }) } else { whole }
}
