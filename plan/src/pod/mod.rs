//! Decides the next steps of a pod on its node.
//!
//! Input is what was seen of its containers, output is what to do with each of them now, or why nothing is done and
//! when to look again.
//!
//! The one invariant: no container of a pod that has to go is started, and nothing of a pod is removed while a process
//! of it runs.

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
    /// Run one after the other, each to success, before the others.
    pub init: Vec<Container>,
    pub containers: Vec<Container>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    /// For the next start.
    pub image: Image,
    pub process: Process,
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
        /// Its startup or liveness probe says that it must be started anew.
        sick: bool,
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
    #[error("it has ended for good")]
    Ended,
}

impl Wait {
    /// When time alone changes the answer.
    fn until(&self) -> Option<Timestamp> {
        match self {
            Wait::PullBackOff { again_at } | Wait::CrashBackOff { again_at } => Some(*again_at),
            Wait::Hook { by } | Wait::Stops { by } => Some(*by),
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
    let all = || seen.init.iter().chain(&seen.containers);
    if seen.end_by.is_some() && !all().any(|container| runs(container.process)) {
        plan.steps.push(Step::Remove);
        return plan;
    }
    let unfinished = seen.init.iter().position(|container| !finished(container.process));
    for (place, container) in all().enumerate() {
        let is_init = place < seen.init.len();
        let its_turn = match unfinished {
            Some(first) => place == first,
            None => !is_init,
        };
        let decided = match container.process {
            Process::Running { .. } => running(container, seen),
            _ if is_init && finished(container.process) => Err(Wait::Ended),
            _ if !its_turn => Err(Wait::Initializing),
            process => stopped(container, process, is_init, seen),
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

fn runs(process: Process) -> bool {
    matches!(process, Process::Running { .. })
}

fn finished(process: Process) -> bool {
    matches!(process, Process::Ended { well: true, .. })
}

fn running(container: &Container, seen: &Observed) -> Result<Step, Wait> {
    let Process::Running { sick, stop } = container.process else { return Err(Wait::Runs) };
    let name = container.name.clone();
    let Some(stop) = stop else {
        return match seen.end_by {
            Some(by) => Ok(Step::BeginStop { container: name, by }),
            None if sick => Ok(Step::BeginStop { container: name, by: after(seen.now, seen.grace) }),
            None => Err(Wait::Runs),
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

fn stopped(container: &Container, process: Process, is_init: bool, seen: &Observed) -> Result<Step, Wait> {
    if seen.end_by.is_some() {
        return Err(Wait::Ended);
    }
    let failures = match process {
        Process::Ended { well, at, ran, failures } => {
            if !restarts(seen.restart, well, is_init) {
                return Err(Wait::Ended);
            }
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

fn restarts(policy: Restart, well: bool, is_init: bool) -> bool {
    match policy {
        Restart::Always => !(is_init && well),
        Restart::OnFailure => !well,
        Restart::Never => false,
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
    let for_good = |container: &Container, is_init: bool| match container.process {
        Process::Ended { well, .. } => !restarts(seen.restart, well, is_init) || seen.end_by.is_some(),
        Process::None | Process::Running { .. } => false,
    };
    let failed = |container: &Container| matches!(container.process, Process::Ended { well: false, .. });
    if seen.init.iter().any(|container| failed(container) && for_good(container, true)) {
        return Phase::Failed;
    }
    if seen.init.iter().any(|container| !finished(container.process)) {
        return Phase::Pending;
    }
    if seen.containers.iter().all(|container| for_good(container, false)) {
        return if seen.containers.iter().any(failed) { Phase::Failed } else { Phase::Succeeded };
    }
    match seen.containers.iter().all(|container| container.process != Process::None) {
        true => Phase::Running,
        false => Phase::Pending,
    }
}
