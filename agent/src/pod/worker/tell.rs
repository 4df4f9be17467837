//! What the worker of a pod tells people, as events.
//!
//! The invariant: the same news again is no new event: the one that there is counts.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tracing::warn;

use super::{super::Shell, Pulling, Worker};
use crate::{
    chain,
    image::Held,
    node::{FIELD_MANAGER, LONGEST_NOTE},
};

/// Different news of a pod that are known to be told again.
const KNOWN: usize = 32;

/// Those who count the events of a pod: one for each note, since a recorder takes all of one reason for the same.
#[derive(Default)]
pub(super) struct Recorders(HashMap<String, Recorder>);

impl Recorders {
    fn of(&mut self, note: &str, client: &Client, shell: &Shell) -> &Recorder {
        if self.0.len() >= KNOWN && !self.0.contains_key(note) {
            self.0.clear();
        }
        self.0.entry(note.to_owned()).or_insert_with(|| {
            let instance = Some(shell.config.name.clone());
            Recorder::new(client.clone(), Reporter { controller: FIELD_MANAGER.to_owned(), instance })
        })
    }
}

impl Worker {
    /// Says once what a probe complains about.
    pub(super) async fn complain(&mut self, pod: Option<&Pod>) {
        let Some(pod) = pod.filter(|_| self.client().is_some()) else { return };
        let mut said = Vec::new();
        for live in self.live.values_mut() {
            let verdict = live.watching.as_ref().map(|(_, watching)| watching.verdict());
            let complaint =
                verdict.and_then(|verdict| verdict.complaint.or(verdict.sick.map(|sick| sick.why)));
            if complaint != live.complained {
                said.extend(complaint.clone().map(|text| ("Unhealthy", text)));
                live.complained = complaint;
            }
        }
        for (reason, text) in said {
            self.tell(pod, EventType::Warning, reason, text).await;
        }
    }

    pub(super) async fn tell(&mut self, pod: &Pod, kind: EventType, reason: &str, mut note: String) {
        // Whoever was connected anew may have been moved.
        if self.clients.has_changed().unwrap_or_default() {
            self.clients.mark_unchanged();
            self.recorders = Recorders::default();
        }
        let Some(client) = self.client() else { return };
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let recorder = self.recorders.of(&note, &client, &self.shell);
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(note.clone()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &pod.object_ref(&())).await {
            warn!(pod = pod.name_any(), reason, error = chain(&error), "could not record an event");
            // Somebody may have removed the event that counts.
            self.recorders.0.remove(&note);
        }
    }
}

/// What people are told of a pull that has ended, as by kubelet.
pub(super) fn told_of(
    pulling: &Pulling,
    pulled: &Result<Box<Held>, String>,
) -> Option<(EventType, &'static str, String)> {
    let image = pulling.image.to_string();
    match pulled {
        Ok(_) if !pulling.is_new => None,
        Ok(held) => {
            let took = Timestamp::now().duration_since(pulling.since);
            let size = held.size_bytes;
            let note =
                format!("Pulled image {image:?} in {:.3}s. Image size: {size} bytes.", took.as_secs_f64());
            Some((EventType::Normal, "Pulled", note))
        }
        Err(error) => {
            Some((EventType::Warning, "Failed", format!("Failed to pull image {image:?}: {error}")))
        }
    }
}
