//! What the worker of a pod tells people, as events.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tracing::warn;

use super::{super::Shell, Pulling, Worker};
use crate::{chain, image::Held, node::FIELD_MANAGER};

/// What the API takes of an event's note, in bytes.
const LONGEST_NOTE: usize = 1000;

impl Worker {
    /// Says once what a probe complains about.
    pub(super) async fn complain(&mut self, pod: Option<&Pod>) {
        let (Some(pod), Some(client)) = (pod, self.client()) else { return };
        let mut said = Vec::new();
        for live in self.live.values_mut() {
            let verdict = live.watching.as_ref().map(|(_, watching)| watching.verdict());
            let complaint = verdict.and_then(|verdict| verdict.complaint.or(verdict.sick));
            if complaint != live.complained {
                said.extend(complaint.clone().map(|text| ("Unhealthy", text)));
                live.complained = complaint;
            }
        }
        for (reason, text) in said {
            publish(&client, &self.shell, pod, (EventType::Warning, reason, text)).await;
        }
    }

    pub(super) async fn tell(&self, pod: &Pod, kind: EventType, reason: &str, note: String) {
        if let Some(client) = self.client() {
            publish(&client, &self.shell, pod, (kind, reason, note)).await;
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

async fn publish(client: &Client, shell: &Shell, pod: &Pod, (kind, reason, note): (EventType, &str, String)) {
    let reporter =
        Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(shell.config.name.clone()) };
    let mut note = note;
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    let event = Event {
        type_: kind,
        reason: reason.to_owned(),
        note: Some(note),
        action: reason.to_owned(),
        secondary: None,
    };
    let recorder = Recorder::new(client.clone(), reporter);
    if let Err(error) = recorder.publish(&event, &pod.object_ref(&())).await {
        warn!(pod = pod.name_any(), reason, error = chain(&error), "could not record an event");
    }
}
