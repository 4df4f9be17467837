//! Decides the next steps of a pod on its node.
//!
//! Input is what was seen of its containers, output is what to do with each of them now, or why nothing is done and
//! when to look again.
//!
//! The one invariant: no container of a pod that has to go is started, and nothing of a pod is removed while a process
//! of it runs. What runs beside others begins before them, and is asked to end after them.

mod backoff;
mod probe;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

pub use backoff::{CRASH, Ladder, PULL, START, is_told};
pub use probe::{Health, Thresholds};

/// When a container that has ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    Always,
    OnFailure,
    Never,
}

/// Everything that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub now: Timestamp,
    /// The pod has to go, and its processes must have ended by then.
    pub end_by: Option<Timestamp>,
    pub restart: Restart,
    /// How long a container that is stopped, while its pod stays, may take.
    pub grace: Duration,
    /// In the order in which they begin.
    pub containers: Vec<Container>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub part: Part,
    /// For the next start.
    pub image: Image,
    pub process: Process,
}

/// What a container is to its pod.
///
/// ```text
/// Init ──ends well──▶ Beside ──has started──▶ Init … ──▶ Main, all at once     then   Main ──have ended──▶ Beside, the last first
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Runs to success before those after it begin.
    Init,
    /// An init container that is always restarted: those after it begin once it has started, and it runs on beside them. The pod is
    /// done without it.
    Beside,
    /// What the pod is there for.
    Main,
}

/// Whether the image of a container is on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    NotLookedFor,
    Pulling,
    /// It could not be had.
    Refused {
        again_at: Timestamp,
    },
    Present,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// It was never started.
    None,
    Running {
        /// Its hook has run, and its startup probe has passed.
        started: bool,
        sick: Option<Sick>,
        stop: Option<Stop>,
    },
    Ended {
        well: bool,
        at: Timestamp,
        ran: Duration,
        /// How often in a row it ended before, soon after it was started.
        failures: u32,
    },
}

/// It must be started anew, as its startup or liveness probe says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sick {
    /// How long that probe lets it take to end; else the pod does.
    pub grace: Option<Duration>,
}

/// How far the stop of a process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    pub by: Timestamp,
    /// What has to run before it is asked to end does so still.
    pub hook_runs: bool,
    pub asked: bool,
}

/// Something to do. Each one is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Pull {
        container: String,
    },
    Start {
        container: String,
        failures: u32,
    },
    /// Note by when it has to end, and begin what runs before.
    BeginStop {
        container: String,
        by: Timestamp,
    },
    Terminate {
        container: String,
    },
    Kill {
        container: String,
    },
    /// Nothing of the pod runs any more: remove what is left of it.
    Remove,
}

/// Why nothing is done with a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("it runs")]
    Runs,
    #[error("its image is being pulled")]
    Pulls,
    #[error("its image could not be pulled; next try at {again_at}")]
    PullBackOff { again_at: Timestamp },
    #[error("it ended again and again; next start at {again_at}")]
    CrashBackOff { again_at: Timestamp },
    #[error("what runs before it is stopped has not ended")]
    Hook { by: Timestamp },
    #[error("it was asked to end")]
    Stops { by: Timestamp },
    #[error("containers before it have not finished")]
    Initializing,
    #[error("containers that it runs beside have not ended")]
    Beside { by: Timestamp },
    #[error("it has ended for good")]
    Ended,
}

impl Wait {
    /// When time alone changes the answer.
    fn until(&self) -> Option<Timestamp> {
        match self {
            Wait::PullBackOff { again_at } | Wait::CrashBackOff { again_at } => Some(*again_at),
            Wait::Hook { by } | Wait::Stops { by } | Wait::Beside { by } => Some(*by),
            Wait::Runs | Wait::Pulls | Wait::Initializing | Wait::Ended => None,
        }
    }
}

/// What to do with a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Why nothing is done with a container, by its name.
    pub waits: Vec<(String, Wait)>,
    /// When to look again though nothing has happened.
    pub look_at: Option<Timestamp>,
}

pub fn decide(seen: &Observed) -> Plan {
    let mut plan = Plan::default();
    if seen.end_by.is_some() && !seen.containers.iter().any(runs) {
        plan.steps.push(Step::Remove);
        return plan;
    }
    let (first, over) = (awaited(seen), is_over(seen));
    for (place, container) in seen.containers.iter().enumerate() {
        let decided = match container.process {
            Process::Running { .. } => {
                let serves = container.part == Part::Beside && seen.containers[place + 1..].iter().any(runs);
                running(container, serves, over, seen)
            }
            Process::None | Process::Ended { .. } => {
                let its_turn = match first {
                    Some(first) => place == first,
                    None => container.part != Part::Init,
                };
                match container.part {
                    Part::Init if finished(container) => Err(Wait::Ended),
                    Part::Beside if over => Err(Wait::Ended),
                    Part::Init | Part::Beside | Part::Main if !its_turn => Err(Wait::Initializing),
                    Part::Init | Part::Beside | Part::Main => stopped(container, seen),
                }
            }
        };
        match decided {
            Ok(step) => plan.steps.push(step),
            Err(wait) => {
                plan.look_at = plan.look_at.into_iter().chain(wait.until()).min();
                plan.waits.push((container.name.clone(), wait));
            }
        }
    }
    plan
}

/// The first container that those after it wait for. Once any was begun that the pod is there for, none waits any more.
fn awaited(seen: &Observed) -> Option<usize> {
    if mains(seen).any(|container| container.process != Process::None) {
        return None;
    }
    seen.containers.iter().position(|container| match container.part {
        Part::Init => !finished(container),
        Part::Beside => !matches!(container.process, Process::Running { started: true, .. }),
        Part::Main => false,
    })
}

/// Whether what the pod is there for is done, or never will be.
fn is_over(seen: &Observed) -> bool {
    let has_failed = |container: &Container| failed(container) && is_for_good(container, seen.restart);
    seen.containers.iter().any(|container| container.part == Part::Init && has_failed(container))
        || mains(seen).all(|container| is_for_good(container, seen.restart))
}

fn mains(seen: &Observed) -> impl Iterator<Item = &Container> {
    seen.containers.iter().filter(|container| container.part == Part::Main)
}

fn runs(container: &Container) -> bool {
    matches!(container.process, Process::Running { .. })
}

fn finished(container: &Container) -> bool {
    matches!(container.process, Process::Ended { well: true, .. })
}

fn failed(container: &Container) -> bool {
    matches!(container.process, Process::Ended { well: false, .. })
}

/// Whether it has ended, and is not started again.
fn is_for_good(container: &Container, policy: Restart) -> bool {
    match container.process {
        Process::Ended { well, .. } => !restarts(policy, well, container.part),
        Process::None | Process::Running { .. } => false,
    }
}

/// `serves` says whether those run that the container is beside, `over` whether they have ended for good.
fn running(container: &Container, serves: bool, over: bool, seen: &Observed) -> Result<Step, Wait> {
    let Process::Running { sick, stop, .. } = container.process else { return Err(Wait::Runs) };
    let name = container.name.clone();
    let Some(stop) = stop else {
        return match (seen.end_by, sick) {
            (Some(by), _) if serves && seen.now < by => Err(Wait::Beside { by }),
            (Some(_), _) if serves => Ok(Step::Kill { container: name }),
            (Some(by), _) => Ok(Step::BeginStop { container: name, by }),
            (None, Some(Sick { grace })) => {
                let by = after(seen.now, grace.unwrap_or(seen.grace));
                Ok(Step::BeginStop { container: name, by })
            }
            (None, None) if over && container.part == Part::Beside && !serves => {
                Ok(Step::BeginStop { container: name, by: after(seen.now, seen.grace) })
            }
            (None, None) => Err(Wait::Runs),
        };
    };
    // A pod may be told to go sooner than its container was.
    let by = seen.end_by.map_or(stop.by, |end| end.min(stop.by));
    if seen.now >= by {
        return Ok(Step::Kill { container: name });
    }
    if stop.hook_runs {
        return Err(Wait::Hook { by });
    }
    if !stop.asked {
        return Ok(Step::Terminate { container: name });
    }
    Err(Wait::Stops { by })
}

/// Any number of seconds may be asked for, more than there are in the calendar too.
fn after(now: Timestamp, grace: Duration) -> Timestamp {
    now.checked_add(grace).unwrap_or(Timestamp::MAX)
}

fn stopped(container: &Container, seen: &Observed) -> Result<Step, Wait> {
    if seen.end_by.is_some() || is_for_good(container, seen.restart) {
        return Err(Wait::Ended);
    }
    let failures = match container.process {
        Process::Ended { at, ran, failures, .. } => {
            let failures = if ran >= CRASH.forgotten_after { 0 } else { failures };
            let again_at = at + CRASH.wait(failures);
            if seen.now < again_at {
                return Err(Wait::CrashBackOff { again_at });
            }
            failures + 1
        }
        Process::None | Process::Running { .. } => 0,
    };
    let name = container.name.clone();
    match container.image {
        Image::NotLookedFor => Ok(Step::Pull { container: name }),
        Image::Pulling => Err(Wait::Pulls),
        Image::Refused { again_at } if seen.now < again_at => Err(Wait::PullBackOff { again_at }),
        Image::Refused { .. } => Ok(Step::Pull { container: name }),
        Image::Present => Ok(Step::Start { container: name, failures }),
    }
}

fn restarts(policy: Restart, well: bool, part: Part) -> bool {
    match (part, policy) {
        (Part::Beside, _) => true,
        (Part::Main, Restart::Always) => true,
        (Part::Main, Restart::OnFailure) | (Part::Init, Restart::Always | Restart::OnFailure) => !well,
        (Part::Init | Part::Main, Restart::Never) => false,
    }
}

/// Where a pod is in its life, as Kubernetes counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }
}

pub fn phase(seen: &Observed) -> Phase {
    let for_good = |container: &Container| match container.process {
        Process::Ended { .. } => is_for_good(container, seen.restart) || seen.end_by.is_some(),
        Process::None | Process::Running { .. } => false,
    };
    // How those ended that the others are beside says how the pod did, once none of it runs any more.
    let lingers = seen.containers.iter().any(|container| container.part == Part::Beside && runs(container));
    let mut init = seen.containers.iter().filter(|container| container.part == Part::Init);
    if !lingers && init.any(|container| failed(container) && for_good(container)) {
        return Phase::Failed;
    }
    if awaited(seen).is_some() {
        return Phase::Pending;
    }
    if !lingers && mains(seen).all(for_good) {
        return if mains(seen).any(failed) { Phase::Failed } else { Phase::Succeeded };
    }
    match mains(seen).all(|container| container.process != Process::None) {
        true => Phase::Running,
        false => Phase::Pending,
    }
}
