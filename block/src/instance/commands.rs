//! Commands to the engines that are hosted here, and to this node's frontend.
//!
//! Invariant: a command that was carried out may be given again: it is answered the
//! same and changes nothing.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    life::{Instance, State, View},
    names::Name,
    refused::Refused,
    registry::{Registry, Target},
    spec::{Particulars, Seat},
};
use crate::{
    backup::writer::Writer,
    caller::{ControlError, EngineControl, FrontendControl},
    engine::control::{Answer, Command, Status},
    epoch::Epoch,
    frontend::control::{self as frontend, Switched},
    net::address::Address,
    record::{Record, RecordStore},
};

/// An engine that starts anew with other members is up in much less.
const ANEW_WITHIN: Duration = Duration::from_secs(15);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How long those who stay and the record may take to note that a member goes, and how often that is asked.
const RELEASED_WITHIN: Duration = Duration::from_secs(15);
const ASK_AGAIN: Duration = Duration::from_millis(5);
/// A snapshot waits for a flush of every replica. Where that takes longer it goes on, and whoever asks again waits for the same one.
const DONE_WITHIN: Duration = Duration::from_secs(30);

/// A switch-over as it is asked for.
#[derive(Debug, Clone)]
pub(super) struct SwitchOver {
    pub(super) volume: Name,
    pub(super) epoch: Epoch,
    pub(super) engine: Address,
    pub(super) drain_within: Duration,
    pub(super) within: Duration,
}

fn address(view: &View) -> Result<&Address, Refused> {
    match (&view.spec.address, view.state) {
        (Some(address), State::Running) => Ok(address),
        (_, state) => Err(Refused::Busy(format!("{} is {state:?}: {}", view.spec.key(), view.why))),
    }
}

fn ask(address: &Address, command: &Command, within: Duration) -> Result<Answer, ControlError> {
    let mut engine = EngineControl::connect(address)?;
    engine.wait_at_most(within)?;
    engine.call(command)
}

fn done(answer: Answer) -> Result<(), Refused> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(not_understood(&other)),
    }
}

fn not_understood(answer: &impl std::fmt::Debug) -> Refused {
    Refused::Failed { doing: "understand the engine".into(), why: format!("it answered {answer:?}") }
}

/// An engine that was asked and has not answered in time still does what it was asked for.
fn still_at_it(error: ControlError) -> Refused {
    match error {
        ControlError::Io(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Refused::Busy("the engine is still at it, and goes on; ask again".into())
        }
        error => error.into(),
    }
}

impl Registry {
    pub(super) fn status(&self, target: &Target) -> Result<Status, Refused> {
        self.on_engine(target, |_, view| match ask(address(view)?, &Command::Status, ANSWERS_WITHIN)? {
            Answer::Status(status) => Ok(*status),
            other => Err(not_understood(&other)),
        })
    }

    /// Where an engine listens that may be given orders of this epoch.
    pub(super) fn address_of(&self, target: &Target) -> Result<Address, Refused> {
        self.on_engine(target, |_, view| address(view).cloned())
    }

    /// A command that the engine itself carries out.
    pub(super) fn command(&self, target: &Target, command: &Command) -> Result<(), Refused> {
        self.on_engine(target, |_, view| {
            done(ask(address(view)?, command, DONE_WITHIN).map_err(still_at_it)?)
        })
    }

    /// Lets a volume grow. One that does not serve yet and that no frontend has is let serve for it.
    pub(super) fn expand(&self, target: &Target, size: u64) -> Result<(), Refused> {
        let status = self.status(target)?;
        let _frontend = match status.serving || status.attached {
            true => None,
            false => {
                let (engine, attachment) = (self.address_of(target)?, self.attachment(target)?);
                Some(Writer::connect(&engine, target.volume.as_str(), attachment)?)
            }
        };
        self.command(target, &Command::Expand { size })
    }

    /// Suspended it stays when it is started again, until it is resumed.
    pub(super) fn suspend(&self, target: &Target, suspend: bool) -> Result<(), Refused> {
        self.on_engine(target, |instance, view| {
            let command = if suspend { Command::Suspend } else { Command::Resume };
            let noted = instance.alter(false, |spec| {
                if let Particulars::Engine { suspended, .. } = &mut spec.particulars {
                    *suspended = suspend;
                }
            });
            noted.map_err(Refused::failed("note that the engine is suspended"))?;
            done(ask(address(view)?, &command, DONE_WITHIN)?)
        })
    }

    /// Whom it may rebuild it also knows when it is started again.
    pub(super) fn permit(&self, target: &Target, replicas: Vec<String>) -> Result<(), Refused> {
        self.on_engine(target, |instance, view| {
            let noted = instance.alter(false, |spec| {
                if let Particulars::Engine { permitted, .. } = &mut spec.particulars {
                    permitted.clone_from(&replicas);
                }
            });
            noted.map_err(Refused::failed("note whom the engine may rebuild"))?;
            done(ask(address(view)?, &Command::Permit { replicas }, DONE_WITHIN)?)
        })
    }

    /// A new member is rebuilt before it counts. One that was away is made known to the engine as it runs; only an engine
    /// that does not know it, or is too old to be told, is started anew.
    pub(super) fn add_replica(&self, target: &Target, seat: Seat) -> Result<(), Refused> {
        self.on_engine(target, |instance, view| {
            let known = view.spec.members().iter().find(|member| member.name == seat.name);
            let added = self.change_record(target, |record| record.with_member(seat.name.as_str()))?;
            let introduction =
                Command::Introduce { replica: seat.name.to_string(), address: seat.address.clone() };
            match known {
                // Whoever noted it may have ended before the engine was told, and one that is to be let go may not be yet.
                Some(known) if *known == seat && !added => return remind(view, &introduction),
                None if !added => {
                    // One that is started anew meanwhile finds it there.
                    note_members(instance, |members| members.push(seat.clone()))?;
                    if is_done(view, &introduction) {
                        return Ok(());
                    }
                }
                Some(_) | None => {}
            }
            reseat(instance, |members, _| {
                members.retain(|member| member.name != seat.name);
                members.push(seat);
            })
        })
    }

    /// The last member in service stays.
    pub(super) fn remove_replica(&self, target: &Target, replica: &Name) -> Result<(), Refused> {
        self.on_engine(target, |instance, view| {
            let removed = self.change_record(target, |record| record.without_member(replica.as_str()))?;
            let known = view.spec.members().iter().any(|member| member.name == *replica);
            match removed || known {
                true => reseat(instance, |members, _| members.retain(|member| member.name != *replica)),
                false => Ok(()),
            }
        })
    }

    /// Lets a member go that is to come back. Started again, the engine does not know where it is.
    pub(super) fn release_replica(&self, target: &Target, replica: &Name) -> Result<(), Refused> {
        self.on_engine(target, |instance, view| {
            let command = Command::Release { replica: replica.to_string() };
            let until = Instant::now() + RELEASED_WITHIN;
            loop {
                match ask(address(view)?, &command, ANSWERS_WITHIN) {
                    Ok(Answer::Done) => break,
                    Ok(other) => return Err(not_understood(&other)),
                    Err(ControlError::Busy(_)) if Instant::now() < until => thread::sleep(ASK_AGAIN),
                    Err(error) => return Err(error.into()),
                }
            }
            note_members(instance, |members| members.retain(|member| member.name != *replica))
        })
    }

    /// Copies a member anew from the others, whoever else may be rebuilt. One that is out, or being rebuilt, already is.
    pub(super) fn rebuild_replica(&self, target: &Target, replica: &Name) -> Result<(), Refused> {
        self.on_engine(target, |instance, view| {
            if !view.spec.members().iter().any(|member| member.name == *replica) {
                return Err(Refused::NotFound { what: format!("replica {replica}") });
            }
            match self.change_record(target, |record| record.with_member_out(replica.as_str()))? {
                true => reseat(instance, |_, permitted| {
                    permitted.retain(|permitted| permitted != replica.as_str());
                    permitted.push(replica.to_string());
                }),
                false => Ok(()),
            }
        })
    }

    /// Changes the record under the engine's own term; says whether there was anything to change.
    fn change_record(
        &self,
        target: &Target,
        change: impl Fn(&Record) -> Result<Option<Record>, &'static str>,
    ) -> Result<bool, Refused> {
        let failed = |error: crate::record::RecordError| Refused::Failed {
            doing: "change the record".into(),
            why: crate::role::in_words(&error),
        };
        let mut store = self.world().record(&target.volume).map_err(failed)?;
        loop {
            let (seen, record) = store.read().map_err(failed)?;
            if record.term != target.epoch.term() {
                let known = Epoch::of_term(record.term);
                return Err(Refused::StaleEpoch {
                    volume: target.volume.clone(),
                    asked: target.epoch,
                    known,
                });
            }
            match change(&record).map_err(|why| Refused::Invalid(why.into()))? {
                None => return Ok(false),
                Some(next) => {
                    if store.swap(&seen, &next).map_err(failed)? {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Moves a volume of this node's frontend to another engine.
    pub(super) fn switch_over(&self, order: &SwitchOver) -> Result<Switched, Refused> {
        self.admit(&order.volume, order.epoch)?;
        let Some(frontend) = &self.world().frontend else {
            return Err(Refused::Invalid("this instance manager was not told where its frontend is".into()));
        };
        let already = match ask(&order.engine, &Command::Status, ANSWERS_WITHIN) {
            Ok(Answer::Status(status)) if status.epoch.term() != order.epoch.term() => {
                let (name, known) = (order.volume.clone(), status.epoch);
                return Err(Refused::OtherEpoch { name, asked: order.epoch, known });
            }
            Ok(Answer::Status(status)) => status.serving.then_some(status.epoch),
            Ok(other) => return Err(not_understood(&other)),
            Err(error) => return Err(error.into()),
        };
        if let Some(epoch) = already {
            return Ok(Switched { epoch, pause_us: 0, longest_wait_us: 0, replayed: 0, drained: true });
        }
        let mut control = FrontendControl::connect(frontend)?;
        control.wait_at_most(order.within).map_err(ControlError::from)?;
        let answer = control.call(&frontend::Command::Switch {
            volume: order.volume.to_string(),
            engine: order.engine.to_string(),
            drain_within_ms: order.drain_within.as_millis() as u64,
        });
        match answer {
            Ok(frontend::Answer::Switched(switched)) => Ok(switched),
            Ok(other) => Err(not_understood(&other)),
            Err(ControlError::Refused(why)) => Err(Refused::Failed { doing: "switch over".into(), why }),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether the engine has done as it was told.
fn is_done(view: &View, command: &Command) -> bool {
    let answer = address(view).map(|address| ask(address, command, ANSWERS_WITHIN));
    matches!(answer, Ok(Ok(Answer::Done)))
}

/// Tells an engine what it was told when it started, and may have been told to forget since. One that is not up finds it
/// when it is, and one of an older build, which refuses, could not be told to forget it.
fn remind(view: &View, introduction: &Command) -> Result<(), Refused> {
    let Ok(address) = address(view) else { return Ok(()) };
    match ask(address, introduction, ANSWERS_WITHIN) {
        Ok(_) | Err(ControlError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Notes what the engine is to know when it starts again.
fn note_members(instance: &Instance, change: impl FnOnce(&mut Vec<Seat>)) -> Result<(), Refused> {
    let noted = instance.alter(false, |spec| {
        if let Particulars::Engine { members, .. } = &mut spec.particulars {
            change(members);
        }
    });
    noted.map_err(Refused::failed("note the engine's members"))
}

/// Starts the engine anew with other members, or others that it may rebuild: its next incarnation reads the record.
fn reseat(
    instance: &Arc<Instance>,
    change: impl FnOnce(&mut Vec<Seat>, &mut Vec<String>),
) -> Result<(), Refused> {
    let altered = instance.alter(true, |spec| {
        if let Particulars::Engine { members, permitted, .. } = &mut spec.particulars {
            change(members, permitted);
        }
    });
    altered.map_err(Refused::failed("note the engine's members"))?;
    let view = instance.settled(ANEW_WITHIN);
    match view.state {
        State::Running => Ok(()),
        State::Starting | State::Lost | State::Fenced | State::Failed => {
            Err(Refused::Failed { doing: "start the engine anew".into(), why: view.why })
        }
    }
}
