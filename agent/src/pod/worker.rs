//! One pod: looks, lets `plan` decide, tells the API, acts.
//!
//! The one invariant: what is needed to go on after a crash is on disk before it is relied upon.

mod act;
mod tell;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodSpec};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use midflight_plan::pod::{
    self as plan, Container, Image, Observed, PULL, Part, Plan, Process, Restart, START, Sick, Step, Stop,
    Wait, is_told,
};
use serde_json::Value;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tracing::warn;

use self::tell::Recorders;
use super::{
    Shell,
    health::Watching,
    observe::{self, Newest},
    probe::Target,
    status::{ImageStands, Known, status},
};
use crate::{
    chain,
    container::{RoomError, State},
    image::{Held, ImageName},
    node::FIELD_MANAGER,
};

/// Why a container waits whose image is there and which could not be started.
const NOT_STARTED: &str = "CreateContainerError";
/// How long the containers of a pod have that has gone from the API without a word.
const GRACE_OF_THE_FORGOTTEN: Duration = Duration::from_secs(10);
/// When to look again after something failed.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is told how far a pull is.
const TELL_PULLS_EVERY: Duration = Duration::from_secs(1);

/// What the API wants.
#[derive(Debug, Clone)]
pub(super) enum Assigned {
    Here(Arc<Pod>),
    /// It is not in the API any more.
    Gone,
}

/// The worker of one pod.
pub(super) struct Worker {
    shell: Arc<Shell>,
    clients: watch::Receiver<Option<Client>>,
    folder: PathBuf,
    inbox: watch::Receiver<Assigned>,
    nudge: Arc<Notify>,
    tasks: JoinSet<Done>,
    live: BTreeMap<String, Live>,
    reported: Option<Value>,
    gone_since: Option<Timestamp>,
    recorders: Recorders,
}

/// What is remembered of a container while the worker lives.
#[derive(Debug, Default)]
struct Live {
    image: Option<Image>,
    held: Option<Held>,
    pull_failures: u32,
    /// Starts that failed since it last ran, and what was told of them. Its image is looked for before each.
    start_failures: u32,
    not_started: Option<String>,
    /// Why its image or its start was refused: a word and a sentence.
    refused: Option<(&'static str, String)>,
    /// Of the run with that id.
    stop: Option<(String, Stop)>,
    watching: Option<(String, Watching)>,
    complained: Option<String>,
}

/// What a task of the worker has finished.
enum Done {
    Pulled { container: String, pulling: Pulling, pulled: Result<Box<Held>, String> },
    HookRan { container: String },
}

/// A pull that was begun.
struct Pulling {
    image: ImageName,
    since: Timestamp,
    /// Whether the node had no image of that name.
    is_new: bool,
}

/// What was seen in one look.
struct Look {
    observed: Observed,
    newest: BTreeMap<String, Newest>,
}

impl Worker {
    pub(super) fn new(
        shell: Arc<Shell>,
        clients: watch::Receiver<Option<Client>>,
        uid: String,
        inbox: watch::Receiver<Assigned>,
    ) -> Worker {
        let folder = shell.pods().join(uid);
        Worker {
            shell,
            clients,
            folder,
            inbox,
            nudge: Arc::default(),
            tasks: JoinSet::new(),
            live: BTreeMap::new(),
            reported: None,
            gone_since: None,
            recorders: Recorders::default(),
        }
    }

    /// Returns when nothing is left of the pod.
    pub(super) async fn run(mut self) {
        loop {
            let assigned = self.inbox.borrow_and_update().clone();
            let wait = match self.turn(&assigned).await {
                Ok(Turn::Over) => return,
                Ok(Turn::LookAt(at)) => at.map(until),
                Err(error) => {
                    warn!(pod = %self.folder.display(), error = chain(&error), "the pod cannot be looked at");
                    Some(RETRY)
                }
            };
            let rest = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = rest => {}
                () = self.nudge.notified() => {}
                changed = self.inbox.changed() => if changed.is_err() { return },
                Some(done) = self.tasks.join_next() => if let Ok(done) = done { self.note(done).await },
            }
        }
    }

    async fn turn(&mut self, assigned: &Assigned) -> Result<Turn, RoomError> {
        let pod = match assigned {
            Assigned::Here(pod) => Some(&**pod),
            Assigned::Gone => None,
        };
        let look = self.look(pod)?;
        let plan = plan::decide(&look.observed);
        self.follow_health(pod, &look);
        self.complain(pod).await;
        let mut look_at = plan.look_at;
        if plan.waits.iter().any(|(_, wait)| *wait == Wait::Pulls) {
            look_at = look_at.into_iter().chain([Timestamp::now() + TELL_PULLS_EVERY]).min();
        }
        if let Some(pod) = pod
            && !self.report(pod, &look, &plan).await
        {
            look_at = look_at.into_iter().chain([Timestamp::now() + RETRY]).min();
        }
        for step in &plan.steps {
            if *step == Step::Remove {
                return Ok(self.remove(pod).await);
            }
            self.act(pod, &look, step).await?;
        }
        // What was done shows in the next look; what failed is tried again then, after a pause.
        match plan.steps.is_empty() {
            true => Ok(Turn::LookAt(look_at)),
            false => Ok(Turn::LookAt(Some(Timestamp::now()))),
        }
    }

    fn look(&mut self, pod: Option<&Pod>) -> Result<Look, RoomError> {
        let now = Timestamp::now();
        let spec = pod.and_then(|pod| pod.spec.as_ref());
        let parts: Vec<(String, Part)> = match spec {
            Some(spec) => parts(spec).map(|(container, part)| (container.name.clone(), part)).collect(),
            // Nobody knows any more what they are to each other.
            None => observe::containers(&self.folder).into_iter().map(|name| (name, Part::Main)).collect(),
        };
        let mut newest = BTreeMap::new();
        for (name, _) in &parts {
            if let Some(found) = observe::newest(&self.folder, name)? {
                newest.insert(name.clone(), found);
            }
        }
        let grace = spec.and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let end_by = match pod {
            Some(pod) => pod.metadata.deletion_timestamp.as_ref().map(|at| at.0),
            None => Some(*self.gone_since.get_or_insert(now) + GRACE_OF_THE_FORGOTTEN),
        };
        let restart = match spec.and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => Restart::Never,
            Some("OnFailure") => Restart::OnFailure,
            _ => Restart::Always,
        };
        let container = |(name, part): &(String, Part)| Container {
            name: name.clone(),
            part: *part,
            image: self.live.get(name).and_then(|live| live.image).unwrap_or(Image::NotLookedFor),
            process: self.process(name, newest.get(name)),
        };
        let observed = Observed {
            now,
            end_by,
            restart,
            grace: Duration::from_secs(u64::try_from(grace).unwrap_or_default()),
            containers: parts.iter().map(container).collect(),
        };
        Ok(Look { observed, newest })
    }

    fn process(&self, name: &str, newest: Option<&Newest>) -> Process {
        let Some(newest) = newest else { return Process::None };
        let live = self.live.get(name);
        match &newest.state {
            // A run that was planned but not begun is begun by the next step.
            State::Planned => Process::None,
            State::Running { .. } | State::Lost => {
                let of_this = |id: &String| *id == newest.blueprint.id;
                let stop = live.and_then(|live| live.stop.as_ref()).filter(|(id, _)| of_this(id));
                let watching = live.and_then(|live| live.watching.as_ref()).filter(|(id, _)| of_this(id));
                let verdict = watching.map(|(_, watching)| watching.verdict());
                let started = verdict.as_ref().is_some_and(|verdict| verdict.started);
                let sick = verdict.and_then(|verdict| verdict.sick).map(|why| Sick { grace: why.grace });
                Process::Running { started, sick, stop: stop.map(|(_, stop)| *stop) }
            }
            State::Ended(exit) => Process::Ended {
                well: exit.code == 0,
                at: exit.finished_at,
                ran: Duration::try_from(exit.finished_at.duration_since(exit.started_at)).unwrap_or_default(),
                failures: newest.blueprint.failures,
            },
        }
    }

    /// Begins to watch runs that are new to us, and forgets those that are over.
    fn follow_health(&mut self, pod: Option<&Pod>, look: &Look) {
        for (name, newest) in &look.newest {
            let live = self.live.entry(name.clone()).or_default();
            let id = &newest.blueprint.id;
            let State::Running { .. } = &newest.state else {
                live.watching = None;
                continue;
            };
            if live.watching.as_ref().is_some_and(|(watched, _)| watched == id) {
                continue;
            }
            let Some((pod, spec)) = pod.and_then(|pod| Some((pod, container_of(pod, name)?))) else {
                continue;
            };
            let target = target(&self.shell, newest, spec);
            let (taken_up, was_ready) = known_before(pod, id);
            let watching = Watching::begin(target, taken_up, was_ready, self.nudge.clone());
            live.watching = Some((id.clone(), watching));
            if let Ok(Some(shim)) = newest.room.shim() {
                let nudge = self.nudge.clone();
                tokio::spawn(async move {
                    if shim.ended().await.is_ok() {
                        nudge.notify_one();
                    }
                });
            }
        }
    }

    /// Whether the API knows all that there is to know.
    async fn report(&mut self, pod: &Pod, look: &Look, plan: &Plan) -> bool {
        let spec = pod.spec.clone().unwrap_or_default();
        let phase = plan::phase(&look.observed);
        let value = {
            let known: Vec<Known<'_>> =
                parts(&spec).map(|(container, part)| self.known(container, part, look, plan)).collect();
            status(pod, &self.shell.config, phase, &known, look.observed.now)
        };
        if self.reported.as_ref() == Some(&value) {
            return true;
        }
        let Some(client) = self.client() else { return false };
        let api: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
        let how = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch_status(&pod.name_any(), &how, &Patch::Apply(&value)).await {
            Ok(_) => {
                self.reported = Some(value);
                true
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => true,
            Err(error) => {
                warn!(pod = pod.name_any(), error = chain(&error), "could not report");
                false
            }
        }
    }

    fn known<'a>(&'a self, spec: &'a Spec, part: Part, look: &'a Look, plan: &'a Plan) -> Known<'a> {
        let live = self.live.get(&spec.name);
        let newest = look.newest.get(&spec.name).filter(|newest| !matches!(newest.state, State::Planned));
        let watching = live.and_then(|live| live.watching.as_ref());
        let wait = plan.waits.iter().find(|(name, _)| *name == spec.name).map(|(_, wait)| wait);
        Known {
            name: &spec.name,
            part,
            image: spec.image.as_deref().unwrap_or_default(),
            newest,
            verdict: watching.map(|(_, watching)| watching.verdict()),
            wait,
            pulled: self.image_stands(spec, live, newest.is_some()),
            refused: live
                .and_then(|live| live.refused.as_ref())
                .map(|(reason, message)| (*reason, message.as_str())),
        }
    }

    /// What is known of a container's image.
    fn image_stands<'a>(&'a self, spec: &Spec, live: Option<&'a Live>, has_run: bool) -> ImageStands<'a> {
        match live.and_then(|live| live.image) {
            Some(Image::Pulling) => {
                let image = spec.image.as_deref().unwrap_or_default().parse::<ImageName>();
                match image.ok().and_then(|image| self.shell.images.progress(&image)) {
                    // One that is started again finds its image where it was.
                    None if has_run => ImageStands::There,
                    progress => ImageStands::Pulled(progress),
                }
            }
            Some(Image::Refused { again_at }) => match live.and_then(|live| live.refused.as_ref()) {
                Some((reason, message)) if *reason != NOT_STARTED => {
                    ImageStands::Refused { reason, message, again_at }
                }
                _ => ImageStands::There,
            },
            Some(Image::Present) => ImageStands::There,
            Some(Image::NotLookedFor) | None if has_run => ImageStands::There,
            Some(Image::NotLookedFor) | None => ImageStands::NotLookedFor,
        }
    }

    fn client(&self) -> Option<Client> {
        self.clients.borrow().clone()
    }
}

impl Live {
    fn has(&mut self, held: Held) {
        self.image = Some(Image::Present);
        self.held = Some(held);
        self.pull_failures = 0;
        self.refused = None;
    }

    fn refuse(&mut self, reason: &'static str, message: String) {
        self.pull_failures += 1;
        self.wait(PULL.wait(self.pull_failures), reason, message);
    }

    fn started(&mut self) {
        (self.image, self.refused) = (None, None);
        (self.start_failures, self.not_started) = (0, None);
    }

    /// It could not be started. Says whether people are to be told.
    fn not_started(&mut self, message: String) -> bool {
        self.start_failures = self.start_failures.saturating_add(1);
        self.wait(START.wait(self.start_failures), NOT_STARTED, message.clone());
        let is_news = self.not_started.as_ref() != Some(&message);
        self.not_started = Some(message);
        is_news || is_told(self.start_failures)
    }

    fn wait(&mut self, wait: Duration, reason: &'static str, message: String) {
        self.image = Some(Image::Refused { again_at: Timestamp::now() + wait });
        self.refused = Some((reason, message));
    }
}

enum Turn {
    LookAt(Option<Timestamp>),
    Over,
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

/// The containers of a pod in the order in which they begin, each with what it is to the pod.
fn parts(spec: &PodSpec) -> impl Iterator<Item = (&Spec, Part)> {
    let init = spec.init_containers.iter().flatten().map(|container| {
        let stays = container.restart_policy.as_deref() == Some("Always");
        (container, if stays { Part::Beside } else { Part::Init })
    });
    init.chain(spec.containers.iter().map(|container| (container, Part::Main)))
}

fn container_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a Spec> {
    let mut all = parts(pod.spec.as_ref()?).map(|(container, _)| container);
    all.find(|container| container.name == name)
}

fn target(shell: &Shell, newest: &Newest, container: &Spec) -> Target {
    Target {
        address: shell.config.address,
        room: newest.room.path().to_owned(),
        container: container.clone(),
    }
}

/// Whether the API knows this very run, and whether as ready.
fn known_before(pod: &Pod, id: &str) -> (bool, bool) {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.init_container_statuses.iter().chain(&status.container_statuses).flatten());
    let id = format!("midflight://{id}");
    let known = statuses.into_iter().find(|status| status.container_id.as_ref() == Some(&id));
    (known.is_some(), known.is_some_and(|status| status.ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim that is missing: the image is found each time, and the start fails each time.
    #[test]
    fn a_start_that_fails_again_and_again_is_told_ever_more_seldom() {
        let mut live = Live::default();
        let mut fail = |why: &str| {
            let before = Timestamp::now();
            let told = live.not_started(why.to_owned());
            let after = Timestamp::now();
            let Some(Image::Refused { again_at }) = live.image else { panic!("{live:?}") };
            let is_wait = |wait: &u64| {
                let wait = Duration::from_secs(*wait);
                before + wait <= again_at && again_at <= after + wait
            };
            let wait = [1, 2, 4].into_iter().find(is_wait).unwrap_or_default();
            (live.image, live.refused, live.pull_failures) = (Some(Image::Present), None, 0);
            (told, wait)
        };
        let told: Vec<(bool, u64)> = (0..5).map(|_| fail("there is no claim c")).collect();
        assert_eq!(told, [(true, 1), (true, 2), (false, 4), (true, 4), (false, 4)]);
        assert_eq!(fail("claim c has no volume yet"), (true, 4), "that is news");
        live.started();
        assert!(live.not_started("there is no claim c".into()), "it ran in between");
    }
}
