//! What the worker of a pod does about one step of the plan.

use std::{fs, io};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
    runtime::events::EventType,
};
use midflight_plan::pod::{Image, Step, Stop};
use rustix::process::Signal;
use tracing::{info, warn};

use super::{
    super::{
        probe::hook,
        start::{Start, run_shim},
    },
    Assigned, Done, Look, Pulling, RETRY, Turn, Worker, container_of, target,
    tell::told_of,
};
use crate::{
    chain,
    container::{RoomError, State},
    image::ImageName,
};

impl Worker {
    pub(super) async fn act(&mut self, pod: Option<&Pod>, look: &Look, step: &Step) -> Result<(), RoomError> {
        match step {
            Step::Remove => {}
            Step::Pull { container } => {
                if let Some(pod) = pod {
                    self.pull(pod, container).await;
                }
            }
            Step::Start { container, failures } => {
                if let Some(pod) = pod {
                    self.start(pod, look, container, *failures).await;
                }
            }
            Step::BeginStop { container, by } => self.begin_stop(pod, look, container, *by).await,
            Step::Terminate { container } => {
                signal(look, container, Signal::TERM);
                if let Some((_, stop)) = self.live.entry(container.clone()).or_default().stop.as_mut() {
                    stop.asked = true;
                }
            }
            Step::Kill { container } => {
                signal(look, container, Signal::KILL);
                // Its shim ends it and what it left; the next look is when that has been written down.
                if let Some(shim) =
                    look.newest.get(container).and_then(|newest| newest.room.shim().ok().flatten())
                {
                    let _ = tokio::time::timeout(RETRY, shim.ended()).await;
                }
            }
        }
        Ok(())
    }

    async fn pull(&mut self, pod: &Pod, container: &str) {
        let Some(spec) = container_of(pod, container) else { return };
        let live = self.live.entry(container.to_owned()).or_default();
        let text = spec.image.clone().unwrap_or_default();
        let policy = spec.image_pull_policy.clone().unwrap_or_default();
        let image: ImageName = match text.parse() {
            Ok(image) => image,
            Err(error) => {
                live.refuse("InvalidImageName", chain(&error));
                return;
            }
        };
        if policy == "Never" {
            match self.shell.images.store.find(&image) {
                Some(held) => live.has(held),
                None => live.refuse("ErrImageNeverPull", format!("{image} is not on the node")),
            }
            return;
        }
        let Some(client) = self.clients.borrow().clone() else {
            live.refuse("ErrImagePull", "the API cannot be reached".to_owned());
            return;
        };
        live.image = Some(Image::Pulling);
        let is_new = self.shell.images.store.find(&image).is_none();
        if is_new {
            let note = format!("Pulling image {:?}", image.to_string());
            self.tell(pod, EventType::Normal, "Pulling", note).await;
        }
        let (shell, container) = (self.shell.clone(), container.to_owned());
        let pulling = Pulling { image, since: Timestamp::now(), is_new };
        self.tasks.spawn(async move {
            let pulled = shell.images.pull(&pulling.image, policy == "Always", &client).await;
            Done::Pulled { container, pulling, pulled: pulled.map(Box::new).map_err(|error| chain(&error)) }
        });
    }

    pub(super) async fn note(&mut self, done: Done) {
        match done {
            Done::Pulled { container, pulling, pulled } => {
                let told = told_of(&pulling, &pulled);
                let live = self.live.entry(container).or_default();
                match pulled {
                    Ok(held) => live.has(*held),
                    Err(error) => {
                        let reason =
                            if live.pull_failures == 0 { "ErrImagePull" } else { "ImagePullBackOff" };
                        live.refuse(reason, error);
                    }
                }
                let assigned = self.inbox.borrow().clone();
                if let (Assigned::Here(pod), Some((kind, reason, note))) = (assigned, told) {
                    self.tell(&pod, kind, reason, note).await;
                }
            }
            Done::HookRan { container } => {
                if let Some((_, stop)) = self.live.entry(container).or_default().stop.as_mut() {
                    stop.hook_runs = false;
                }
            }
        }
    }

    async fn start(&mut self, pod: &Pod, look: &Look, container: &str, failures: u32) {
        let Some(spec) = container_of(pod, container).cloned() else { return };
        let newest = look.newest.get(container);
        let live = self.live.entry(container.to_owned()).or_default();
        let (Some(held), Ok(name)) = (live.held.clone(), spec.image.clone().unwrap_or_default().parse())
        else {
            live.image = None;
            return;
        };
        let started = match newest {
            Some(newest) if matches!(newest.state, State::Planned) => {
                run_shim(&newest.room).await.map_err(|error| chain(&error))
            }
            _ => {
                let Some(client) = self.clients.borrow().clone() else { return };
                let attempt = newest.map_or(0, |newest| newest.blueprint.attempt + 1);
                let files = self.shell.images.store.files(&held.digest);
                let start = Start {
                    config: &self.shell.config,
                    claims: &self.shell.claims,
                    folder: &self.folder,
                    pod,
                    container: &spec,
                    image: (&name, &held, files),
                    attempt,
                    failures,
                };
                start.run(&client).await.map_err(|error| chain(&error))
            }
        };
        let live = self.live.entry(container.to_owned()).or_default();
        live.stop = None;
        match started {
            Ok(()) => {
                info!(pod = pod.name_any(), container, "started");
                live.started();
                self.tell(pod, EventType::Normal, "Started", format!("Started container {container}")).await;
            }
            Err(error) => {
                if live.not_started(error.clone()) {
                    self.tell(pod, EventType::Warning, "Failed", format!("Error: {error}")).await;
                }
            }
        }
    }

    async fn begin_stop(&mut self, pod: Option<&Pod>, look: &Look, container: &str, by: Timestamp) {
        let Some(newest) = look.newest.get(container) else { return };
        let live = self.live.entry(container.to_owned()).or_default();
        let spec = pod.and_then(|pod| container_of(pod, container));
        let handler = spec.and_then(|spec| spec.lifecycle.as_ref()?.pre_stop.clone());
        let sick = live.watching.as_ref().and_then(|(_, watching)| watching.verdict().sick);
        let stop = Stop { by, hook_runs: handler.is_some(), asked: false };
        live.stop = Some((newest.blueprint.id.clone(), stop));
        if let (Some(handler), Some(spec)) = (handler, spec) {
            let (target, container) = (target(&self.shell, newest, spec), container.to_owned());
            self.tasks.spawn(async move {
                if let Err(why) = hook(&handler, &target).await {
                    warn!(container, why, "the preStop hook failed");
                }
                Done::HookRan { container }
            });
        }
        if let Some(pod) = pod {
            let why = sick.map(|sick| format!(": {}", sick.why)).unwrap_or_default();
            self.tell(pod, EventType::Normal, "Killing", format!("Stopping container {container}{why}"))
                .await;
        }
    }

    /// Removes what is on disk, then the pod itself.
    pub(super) async fn remove(&mut self, pod: Option<&Pod>) -> Turn {
        self.live.clear();
        let uid = self.folder.file_name().unwrap_or_default().to_string_lossy();
        if let Err(error) = self.shell.claims.release(&self.shell.config, &uid).await {
            warn!(folder = %self.folder.display(), error = chain(&error), "a volume of a pod is not gone yet");
            return Turn::LookAt(Some(Timestamp::now() + RETRY));
        }
        if let Err(error) = fs::remove_dir_all(&self.folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(folder = %self.folder.display(), error = chain(&error), "could not remove what is left of a pod");
            return Turn::LookAt(Some(Timestamp::now() + RETRY));
        }
        let Some(pod) = pod else { return Turn::Over };
        let Some(client) = self.client() else { return Turn::LookAt(Some(Timestamp::now() + RETRY)) };
        let api: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
        let how = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&pod.name_any(), &how).await {
            Ok(_) => Turn::Over,
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Turn::Over,
            Err(error) => {
                warn!(pod = pod.name_any(), error = chain(&error), "could not delete a pod that has ended");
                Turn::LookAt(Some(Timestamp::now() + RETRY))
            }
        }
    }
}

fn signal(look: &Look, container: &str, signal: Signal) {
    let Some(State::Running { main: Some(main), .. }) =
        look.newest.get(container).map(|newest| &newest.state)
    else {
        return;
    };
    if let Err(error) = main.signal(signal) {
        warn!(container, pid = main.pid, %error, "could not signal a container");
    }
}
