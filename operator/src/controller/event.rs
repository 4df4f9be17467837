//! Events: what people read in `kubectl describe`.
//!
//! The invariant: the same news about the same object is one Event that counts.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use midflight_api::MANAGER;
use serde_json::json;
use tracing::warn;

use crate::write::{WriteError, Writer};

/// Longest note that the API takes.
const LONGEST_NOTE: usize = 1024;

/// Whether somebody should look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tone {
    Normal,
    Warning,
}

impl Tone {
    fn as_str(self) -> &'static str {
        match self {
            Tone::Normal => "Normal",
            Tone::Warning => "Warning",
        }
    }
}

/// Something to tell about an object.
#[derive(Debug, Clone, Copy)]
pub struct News<'a> {
    /// Controller that tells it.
    pub by: &'static str,
    pub tone: Tone,
    /// What happened, in one word that a program can match on.
    pub reason: &'a str,
    /// What happened, in words.
    pub note: &'a str,
}

pub(super) async fn tell(writer: &Writer, about: ObjectReference, news: &News<'_>) {
    let name = about.name.clone().unwrap_or_default();
    if let Err(error) = write(writer, about, news).await {
        warn!(object = name, controller = news.by, %error, "an event was not written");
    }
}

async fn write(writer: &Writer, about: ObjectReference, news: &News<'_>) -> Result<(), WriteError> {
    let namespace = about.namespace.clone().unwrap_or_else(|| "default".into());
    let events: Api<Event> = Api::namespaced(writer.client().clone(), &namespace);
    let note: String = news.note.chars().take(LONGEST_NOTE).collect();
    let mut identity = DefaultHasher::new();
    (&about.uid, news.by, news.tone, news.reason, &note).hash(&mut identity);
    // A name ends at 253 characters; what is cut off is in the hash by the object's uid.
    let named: String = about.name.iter().flat_map(|name| name.chars()).take(200).collect();
    let name = format!("{named}.{:016x}", identity.finish());
    let now = Time(Timestamp::now());
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: about,
        reason: Some(news.reason.into()),
        message: Some(note),
        type_: Some(news.tone.as_str().into()),
        source: Some(EventSource { component: Some(news.by.into()), host: None }),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now.clone()),
        count: Some(1),
        ..Event::default()
    };
    match writer.send("create", &name, events.create(&PostParams::default(), &event)).await {
        Err(error) if error.is_already_there() => {}
        made => return made.map(drop),
    }
    let before = events.get(&name).await?.count.unwrap_or_default();
    let again = Patch::Merge(json!({ "count": before.saturating_add(1), "lastTimestamp": now }));
    let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    writer.send("count", &name, events.patch(&name, &parameters, &again)).await.map(drop)
}
