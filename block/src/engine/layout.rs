//! Snapshots, reverts and expansion: one change of the layout at a time, made at
//! every member in service.
//!
//! ```text
//!           ┌─ a few writes since ─┐
//!           ▼                      │
//! asked ─▶ Ahead ─ flushed ────────┴─▶ Draining ─ nothing under way ─▶ Flushing ─▶ Telling ─ all have made it ─▶ answered
//!   │                                     └─ nothing written since ──────────────────▲ ▲  └─ frozen ─▶ Settling ─ flushed ─▲
//!   └──── where the order of writes does not matter ───────────────────────────────────┘
//! ```
//!
//! Writes wait from `Draining` to `Telling`. What was written before is flushed ahead of that, again while that finds a
//! moment in which nobody writes, and members are told what is to come, so that nothing or little is left to do while they
//! wait; that a snapshot is durable they do not wait for.
//!
//! Invariant: between the first and the last member that freezes or reverts no
//! write is carried out, so the frozen layers are equal, and an engine that finds
//! the change half made can finish it.

use std::time::Duration;

use super::{
    control::{Answer, Command, Flaw, Status},
    core::{CONTROL, Engine, Output, Phase},
    members::Service,
    requests::{Asker, changes},
};
use crate::{
    net::reactor::LinkId,
    record::Record,
    wire::{
        Frame, Header, Kind, SOON,
        hello::VERSIONS,
        layout::{LONGEST_NAME, Layout, MOST_SNAPSHOTS, Step},
    },
};

/// The first wire version with `Step::Finalize`.
const FINAL_FROM: u16 = 2;
/// Answers to steps that bring members to the same layout before the engine serves.
pub(super) const ALIGN: u64 = CONTROL + 4000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Everyone flushes while writes go on.
    Ahead,
    Draining,
    Flushing,
    Telling,
    /// Everyone has made it and flushes; writes go on.
    Settling,
}

#[derive(Debug, Clone)]
pub(super) struct Operation {
    /// Everyone who asked for it and waits for the answer.
    askers: Vec<(LinkId, u64)>,
    step: Step,
    stage: Stage,
    /// How often everyone was asked to flush ahead of it.
    rounds: u32,
}

/// Changes during a flush that let another one hope for a moment without any. With more of them, what came during the second one
/// is as little as it gets.
const FEW_CHANGES: u64 = 32;
const MOST_ROUNDS: u32 = 8;
const ROUNDS_WHEN_BUSY: u32 = 2;

impl Operation {
    fn new(asker: (LinkId, u64), step: Step, stage: Stage) -> Operation {
        Operation { askers: vec![asker], step, stage, rounds: 1 }
    }

    /// Whether another flush ahead is worth its while after so many changes during the last.
    fn wants_another(&self, changes: u64) -> bool {
        let most = if changes <= FEW_CHANGES { MOST_ROUNDS } else { ROUNDS_WHEN_BUSY };
        self.rounds < most
    }

    /// Whether this is what a command asks for.
    fn is_for(&self, command: &Command) -> bool {
        match (&self.step, command) {
            (Step::Freeze { name, .. }, Command::Snapshot { name: asked }) => name == asked,
            _ => false,
        }
    }

    /// Whether writes wait until it is done.
    fn holds_writes(&self) -> bool {
        let waits = match self.stage {
            Stage::Draining | Stage::Flushing | Stage::Telling => true,
            Stage::Ahead | Stage::Settling => false,
        };
        waits && is_exclusive(&self.step)
    }
}

/// Whether all members have to make a step between the same two writes.
fn is_exclusive(step: &Step) -> bool {
    match step {
        Step::Freeze { .. } | Step::Revert { .. } => true,
        Step::Remove { .. } | Step::Expand { .. } | Step::Finalize { .. } => false,
    }
}

impl Engine {
    pub(super) fn on_command(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let asker = (link, frame.header.tag);
        let wanted = match serde_json::from_slice(&frame.payload) {
            Ok(Command::Status) => Err(Answer::Status(Box::new(self.status()))),
            Ok(Command::Throttle { bytes_per_second }) => {
                self.set_throttle(bytes_per_second, out);
                Err(Answer::Done)
            }
            Ok(Command::Patience { seconds }) => {
                self.patience = seconds.max(1);
                out.push(Output::Patience(Duration::from_secs(self.patience.into())));
                Err(Answer::Done)
            }
            Ok(Command::Permit { replicas }) => {
                self.permitted = replicas.into();
                if self.phase == Phase::Serving {
                    self.change_members(out);
                }
                Err(Answer::Done)
            }
            Ok(Command::Release { replica }) => Err(self.release(&replica, out)),
            Ok(Command::Introduce { replica, address }) => Err(self.introduce(&replica, address, out)),
            Ok(Command::Suspend) => {
                self.suspension.suspend();
                Err(Answer::Done)
            }
            Ok(Command::Resume) => {
                self.resume(out);
                Err(Answer::Done)
            }
            Ok(command) => match self.operation.as_mut().filter(|operation| operation.is_for(&command)) {
                // Whoever lost patience and asks again is told when it is done, like everyone.
                Some(operation) => return operation.askers.push(asker),
                None => self.plan(&command),
            },
            Err(error) => Err(Answer::Refused(format!("not a command: {error}"))),
        };
        match wanted {
            Ok(step) if is_exclusive(&step) => {
                let announced = Frame::with(Header::new(Kind::Ping, 0, self.epoch), step.encode());
                self.operation = Some(Operation::new(asker, step, Stage::Ahead));
                self.send_to(self.members.in_service(), announced, Asker::Ahead, out);
                self.flush(Asker::Ahead, out);
            }
            Ok(step) => {
                self.operation = Some(Operation::new(asker, step, Stage::Draining));
                self.operate(out);
            }
            Err(answer) => self.tell(asker, &answer, out),
        }
    }

    fn tell(&self, (link, tag): (LinkId, u64), answer: &Answer, out: &mut Vec<Output>) {
        let payload = serde_json::to_vec(answer).expect("an answer holds only plain fields");
        let header = Header::new(Kind::Control, tag, self.epoch);
        out.push(Output::Send(link, Frame::with(header, payload.into())));
    }

    fn tell_all(&self, operation: &Operation, answer: &Answer, out: &mut Vec<Output>) {
        operation.askers.iter().for_each(|asker| self.tell(*asker, answer, out));
    }

    fn status(&self) -> Status {
        Status {
            epoch: self.epoch,
            serving: self.phase == Phase::Serving,
            attached: self.is_attached(),
            layout: self.layout.clone(),
            in_service: self.members.in_service().count_ones() as usize,
            members: self.members.iter().count(),
            copied_bytes: self.copied,
            suspended: self.suspension.is_on(),
            waits_for: self.waits_for().map(|at| self.name_of(at)).collect(),
            trouble: self.trouble.clone().map(Box::new),
            rebuild_limit: Some(self.throttle.rate().unwrap_or(0)),
            patience: Some(self.patience),
            may_rebuild: Some(self.permitted.to_vec()),
            damaged: self.damaged.iter().map(|(at, damage)| self.flaw(*at, damage)).collect(),
        }
    }

    fn flaw(&self, at: usize, (what, repaired): &(String, bool)) -> Flaw {
        Flaw { replica: self.name_of(at), what: what.clone(), repaired: *repaired }
    }

    /// What whoever reads an answer calls a member.
    pub(super) fn name_of(&self, at: usize) -> String {
        self.names.get(at).cloned().unwrap_or_else(|| at.to_string())
    }

    /// The step that a command asks for, or the answer if there is nothing to do.
    fn plan(&mut self, command: &Command) -> Result<Step, Answer> {
        let refuse = |why: &str| Answer::Refused(why.to_owned());
        let find = |name: &str| self.layout.position(name).map(|at| self.layout.snapshots[at].id);
        let step = match command {
            Command::Status
            | Command::Release { .. }
            | Command::Introduce { .. }
            | Command::Throttle { .. }
            | Command::Patience { .. }
            | Command::Permit { .. }
            | Command::Suspend
            | Command::Resume => {
                return Err(Answer::Status(Box::new(self.status())));
            }
            Command::Snapshot { name } if find(name).is_some() => return Err(Answer::Done),
            Command::Snapshot { name } if name.is_empty() || name.len() > LONGEST_NAME => {
                return Err(refuse("a snapshot needs a name of at most 128 bytes"));
            }
            Command::Snapshot { .. } if self.layout.snapshots.len() >= MOST_SNAPSHOTS => {
                return Err(refuse("the volume has 250 snapshots; remove one first"));
            }
            Command::Snapshot { name } => Step::Freeze { name: name.clone(), head: self.new_layer() },
            Command::RemoveSnapshot { name } => match find(name) {
                Some(id) => Step::Remove { id },
                None => return Err(Answer::Done),
            },
            Command::Revert { head: Some(0), .. } => {
                return Err(refuse("the number of a revert is not 0"));
            }
            Command::Revert { head: Some(head), .. } if self.layout.has(*head) => return Err(Answer::Done),
            Command::Revert { name, head } => match find(name) {
                Some(id) => Step::Revert { id, head: head.unwrap_or_else(|| self.new_layer()) },
                None => return Err(refuse("there is no such snapshot")),
            },
            Command::Expand { size } if *size == self.layout.size => return Err(Answer::Done),
            Command::Expand { size } if *size < self.layout.size => {
                return Err(refuse("a volume cannot be made smaller"));
            }
            Command::Expand { size } => Step::Expand { size: *size },
            Command::Finalize => self.plan_final()?,
        };
        let idle =
            self.replayed && self.operation.is_none() && self.copying.is_none() && self.changing.is_none();
        let someone_goes = self.members.iter().any(|(_, member)| member.goes());
        if self.phase != Phase::Serving || !idle || someone_goes {
            return Err(Answer::Busy("the volume does not serve, or is being rebuilt or changed".into()));
        }
        Ok(step)
    }

    /// What is final cannot be undone: everyone in service must be of this build, or newer.
    fn plan_final(&self) -> Result<Step, Answer> {
        let ours = VERSIONS.newest;
        if ours < FINAL_FROM {
            return Err(Answer::Done);
        }
        let behind =
            self.members.iter().find(|(_, member)| member.service != Service::In || member.newest < ours);
        match behind {
            Some((at, member)) if member.service != Service::In => {
                Err(Answer::Busy(format!("replica {} is not in service", self.name_of(at))))
            }
            Some((at, member)) => {
                let (name, theirs) = (self.name_of(at), member.newest);
                Err(Answer::Refused(format!("replica {name} has wire version {theirs}, this engine {ours}")))
            }
            None => Ok(Step::Finalize { volume: self.volume.clone() }),
        }
    }

    /// A name that no layer of this volume ever had: this process is unique, and so
    /// is the count within it.
    fn new_layer(&mut self) -> u64 {
        self.layers += 1;
        let [sender, count] = [self.sender, self.layers].map(u64::to_le_bytes);
        let digits = sender.into_iter().chain(count).map(|byte| format!("{byte:02x}")).collect::<String>();
        Record::key(&digits).max(1)
    }

    /// Whether a change has to wait for the operation under way.
    pub(super) fn holds_writes(&self) -> bool {
        self.operation.as_ref().is_some_and(Operation::holds_writes)
    }

    /// Everyone has flushed what was there when they were asked, or is ready for the operation.
    pub(super) fn on_ready(&mut self, out: &mut Vec<Output>) {
        let is_awaited = self.pending.iter().any(|(_, pending)| pending.asker == Asker::Ahead);
        let operation = self.operation.as_mut().filter(|operation| operation.stage == Stage::Ahead);
        let Some(operation) = operation.filter(|_| !is_awaited) else { return };
        if self.unflushed.is_nothing() || !operation.wants_another(self.unflushed.changes()) {
            operation.stage = Stage::Draining;
            return;
        }
        operation.rounds += 1;
        self.flush(Asker::Ahead, out);
    }

    /// The volume is about to be given away: what has changed nothing yet is not begun.
    pub(super) fn give_up_operation(&mut self, out: &mut Vec<Output>) {
        if let Some(operation) = self.operation.take_if(|operation| operation.stage == Stage::Ahead) {
            self.tell_all(&operation, &Answer::Busy("another engine takes the volume over".into()), out);
        }
    }

    /// Takes the next step of the operation under way, if it can be taken.
    pub(super) fn operate(&mut self, out: &mut Vec<Output>) {
        let Some(operation) = &mut self.operation else { return };
        let busy = || self.pending.iter().any(|(_, pending)| changes(pending.asked.kind));
        if operation.stage != Stage::Draining || operation.holds_writes() && busy() {
            return;
        }
        if operation.holds_writes() && !self.unflushed.is_nothing() {
            operation.stage = Stage::Flushing;
            return self.flush(Asker::Operation, out);
        }
        self.tell_step(out);
    }

    fn tell_step(&mut self, out: &mut Vec<Output>) {
        let Some(operation) = &mut self.operation else { return };
        operation.stage = Stage::Telling;
        let header = Header { flags: SOON, ..Header::new(Kind::Step, 0, self.epoch) };
        let frame = Frame::with(header, operation.step.encode());
        self.send_to(self.members.in_service(), frame, Asker::Operation, out);
    }

    /// Every member in service has flushed, or made the step.
    pub(super) fn on_operated(&mut self, out: &mut Vec<Output>) {
        match self.operation.as_ref().map(|operation| operation.stage) {
            Some(Stage::Flushing) => self.tell_step(out),
            Some(Stage::Telling) => {
                let Some(operation) = &mut self.operation else { return };
                self.layout = self.layout.after(&operation.step);
                self.size = self.layout.size;
                let is_frozen = matches!(operation.step, Step::Freeze { .. });
                operation.stage = Stage::Settling;
                self.tell_frontend(out);
                if is_frozen {
                    self.flush(Asker::Operation, out);
                    return self.release_held(out);
                }
                self.end_operation(out);
            }
            Some(Stage::Settling) => self.end_operation(out),
            Some(Stage::Ahead | Stage::Draining) | None => {}
        }
    }

    fn end_operation(&mut self, out: &mut Vec<Output>) {
        let Some(operation) = self.operation.take() else { return };
        self.tell_all(&operation, &Answer::Done, out);
        self.release_held(out);
        self.change_members(out);
    }

    /// Brings everyone in service to the layout that most can reach: an engine
    /// before may have died in the middle of a change. Says whether all are there.
    pub(super) fn align(&mut self, out: &mut Vec<Output>) -> bool {
        let all = self.members.iter().filter(|(_, member)| member.service == Service::In);
        let layouts: Vec<(usize, Layout)> = all
            .filter_map(|(at, member)| member.promise.as_ref().map(|promise| (at, promise.layout.clone())))
            .collect();
        let reach =
            |target: &Layout| layouts.iter().filter(|(_, layout)| layout.steps_to(target).is_some()).count();
        // Of equals the last: it has come at least as far as those before it.
        let Some(target) =
            layouts.iter().map(|(_, layout)| layout).max_by_key(|layout| reach(layout)).cloned()
        else {
            return false;
        };
        let mut aligned = true;
        for (at, layout) in layouts {
            match layout.steps_to(&target) {
                None => {
                    aligned = false;
                    tracing::warn!(member = at, "member has other layers");
                    self.put_out(at, out);
                }
                Some(steps) => {
                    let Some(step) = steps.into_iter().next() else { continue };
                    aligned = false;
                    self.align_member(at, step, out);
                }
            }
        }
        if aligned {
            self.size = target.size;
            self.layout = target;
        }
        aligned
    }

    fn align_member(&mut self, at: usize, step: Step, out: &mut Vec<Output>) {
        let epoch = self.epoch;
        let member = self.members.get(at);
        let Some(link) = member.link.filter(|_| member.stepping.is_none()) else { return };
        let frame = Frame::with(Header::new(Kind::Step, ALIGN, epoch), step.encode());
        member.stepping = Some(step);
        out.push(Output::Send(link, frame));
    }

    /// A member has made a step towards the common layout.
    pub(super) fn on_aligned(&mut self, at: usize, out: &mut Vec<Output>) {
        let member = self.members.get(at);
        if let (Some(step), Some(promise)) = (member.stepping.take(), &mut member.promise) {
            promise.layout = promise.layout.after(&step);
        }
        self.advance(out);
    }
}
