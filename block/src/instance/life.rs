//! One instance: the thread that serves it, or minds its process, from its start to
//! its end.
//!
//! Invariant: one thread at a time serves or minds an instance, and every epoch is on
//! disk before it is used.

use std::{
    error::Error,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::broadcast;

use super::{
    decide::{Next, Seen, Wish, decide, start_epoch},
    loops::{self, Guest, Heard, Loops},
    names::{Kind, Name},
    probe::highest_promise,
    process::{self, Process},
    spec::{Particulars, Place, Shelf, Spec},
};
use crate::{
    engine::serve::{self as engine, EngineArgs, Named},
    epoch::Epoch,
    net::address::Address,
    record::{
        RecordError, RecordStore,
        place::{OpenRecord, Records},
    },
    replica::{
        layers,
        serve::{Opened, ReplicaArgs},
    },
    role::in_words,
};

/// What all instances of an instance manager share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) shelf: Shelf,
    /// Where the volumes' records are.
    pub(super) records: Records,
    /// Folder of the binaries that v1 instances are started from.
    pub(super) binaries: Option<PathBuf>,
    /// Address of this node.
    pub(super) node: IpAddr,
    /// Where commands for this node's frontend go.
    pub(super) frontend: Option<Address>,
    /// The folder of backups that all nodes share; without one, any folder is taken for such.
    pub(super) backups: Option<PathBuf>,
    /// Where v2 instances live.
    pub(super) loops: Loops,
    /// Folder in which that offers volumes, as its clients see it.
    pub(super) endpoints: Option<PathBuf>,
    pub(super) told: broadcast::Sender<Told>,
}

impl World {
    pub(super) fn record(&self, volume: &Name) -> Result<OpenRecord, RecordError> {
        self.records.of(volume.as_str()).open()
    }

    /// Term of the volume's record, if that can be read.
    pub(super) fn term(&self, volume: &Name) -> Option<u64> {
        self.record(volume).and_then(|mut record| record.read()).ok().map(|(_, record)| record.term)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    Starting,
    Running,
    /// It was in a process that is gone.
    Lost,
    /// Another engine has the volume.
    Fenced,
    Failed,
}

/// An instance as it is told to whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    pub(super) spec: Spec,
    pub(super) state: State,
    pub(super) pid: Option<u32>,
    pub(super) restarts: u64,
    pub(super) why: String,
}

/// What whoever watches is told.
#[derive(Debug, Clone)]
pub(super) enum Told {
    Changed(View),
    Removed(View),
}

#[derive(Debug)]
enum Ender {
    Seat(loops::Ender),
    Process(process::Ender),
}

impl Ender {
    fn end(&self) {
        match self {
            Ender::Seat(ender) => ender.end(),
            Ender::Process(ender) => ender.kill(),
        }
    }
}

#[derive(Debug)]
struct Now {
    view: View,
    /// The highest epoch that one of its processes may have.
    used: Epoch,
    wish: Wish,
    /// Whether it ever could be reached.
    ran: bool,
    ender: Option<Ender>,
    thread: Option<JoinHandle<()>>,
    succession: Succession,
}

/// Whether another process takes the place of the present one.
#[derive(Debug)]
enum Succession {
    None,
    /// It has been started; nobody knows yet whether it takes over.
    Begun,
    /// It has: the present one ends.
    Done(Process),
}

/// How an instance begins.
#[derive(Debug)]
pub(super) enum Start {
    /// Nobody has used its epoch.
    New,
    /// It was started before, here.
    Again,
    /// Its process lives.
    TakenUp(Process),
}

#[derive(Debug)]
pub(super) struct Instance {
    world: Arc<World>,
    place: Place,
    now: Mutex<Now>,
    changed: Condvar,
}

/// A process that does not say where it listens for so long does not start.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// One that ends sooner than this after its start ended quickly.
const QUICK: Duration = Duration::from_secs(1);
const LAST_WORDS: usize = 400;

impl Instance {
    /// An instance that was in a process which is gone: it is shown, and waits to be created again.
    pub(super) fn lost(world: &Arc<World>, spec: Spec) -> Arc<Instance> {
        let why = "it was in an instance manager that has ended; create it again".to_owned();
        Arc::new(Instance::new(world, spec, State::Lost, why))
    }

    fn new(world: &Arc<World>, spec: Spec, state: State, why: String) -> Instance {
        let place = world.shelf.place(&spec.key());
        let used = spec.epoch.max(spec.ahead);
        let view = View { spec, state, pid: None, restarts: 0, why };
        let (wish, succession) = (Wish::Serve, Succession::None);
        let now = Now { view, used, wish, ran: false, ender: None, thread: None, succession };
        Instance { world: Arc::clone(world), place, now: Mutex::new(now), changed: Condvar::new() }
    }

    /// Begins to serve or to mind it.
    pub(super) fn begin(world: &Arc<World>, spec: Spec, start: Start) -> io::Result<Arc<Instance>> {
        let instance = Arc::new(Instance::new(world, spec, State::Starting, String::new()));
        instance.place.store(&instance.view().spec)?;
        let own = Arc::clone(&instance);
        let name = instance.view().spec.key().to_string();
        let thread = thread::Builder::new().name(name).spawn(move || own.live(start))?;
        instance.lock().thread = Some(thread);
        Ok(instance)
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn view(&self) -> View {
        self.lock().view.clone()
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        let mut now = self.lock();
        change(&mut now);
        let view = now.view.clone();
        tracing::info!(
            instance = %view.spec.key(), volume = %view.spec.volume, epoch = %view.spec.epoch,
            state = ?view.state, why = view.why, "instance"
        );
        // Nobody has to watch.
        let _ = self.world.told.send(Told::Changed(view));
        self.changed.notify_all();
    }

    /// How it is once it is not on its way up any more, or after `within`.
    pub(super) fn settled(&self, within: Duration) -> View {
        let on_its_way = |now: &mut Now| now.view.state == State::Starting || now.wish == Wish::ServeAnew;
        let (now, _) = self
            .changed
            .wait_timeout_while(self.lock(), within, on_its_way)
            .unwrap_or_else(PoisonError::into_inner);
        now.view.clone()
    }

    /// Changes what it is on disk; with `anew` it is started again to take it up.
    pub(super) fn alter(&self, anew: bool, change: impl FnOnce(&mut Spec)) -> io::Result<()> {
        let mut now = self.lock();
        let mut spec = now.view.spec.clone();
        change(&mut spec);
        spec.ahead = spec.ahead.max(spec.epoch);
        self.place.store(&spec)?;
        now.used = now.used.max(spec.epoch);
        now.view.spec = spec;
        if anew {
            now.wish = Wish::ServeAnew;
            now.ender.iter().for_each(Ender::end);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Notes what one that runs says is wrong; nothing if all is well again.
    pub(super) fn complain(&self, complaint: &str) {
        let is_news = {
            let now = self.lock();
            now.view.state == State::Running && now.view.why != complaint
        };
        if is_news {
            self.change(|now| {
                if now.view.state == State::Running {
                    now.view.why = complaint.to_owned();
                }
            });
        }
    }

    /// Ends it, and waits until it has ended.
    pub(super) fn end(&self) {
        let thread = {
            let mut now = self.lock();
            now.wish = Wish::End;
            now.ender.iter().for_each(Ender::end);
            self.changed.notify_all();
            now.thread.take()
        };
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(instance = %self.view().spec.key(), "its thread panicked");
        }
    }

    /// Forgets one that has ended.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.place.remove()?;
        let _ = self.world.told.send(Told::Removed(self.view()));
        Ok(())
    }

    fn live(&self, start: Start) {
        let mut quick_ends = 0;
        let mut taken_up = None;
        let mut next = match start {
            Start::New => self.first(false),
            Start::Again => self.first(true),
            Start::TakenUp(process) => {
                taken_up = Some(process);
                Next::Again { epoch: self.view().spec.epoch, after: Duration::ZERO }
            }
        };
        loop {
            let Next::Again { epoch, after } = next else { return self.settle(next) };
            if let Err(error) = self.rest(after).start_at(epoch) {
                self.change(|now| now.view.why = format!("note its epoch: {error}"));
                return self.settle(Next::Failed);
            }
            let began = Instant::now();
            let why = self.serve(taken_up.take());
            taken_up = self.successor();
            if taken_up.is_some() {
                next = Next::Again { epoch: self.view().spec.epoch, after: Duration::ZERO };
                continue;
            }
            quick_ends = if began.elapsed() < QUICK { quick_ends + 1 } else { 0 };
            self.change(|now| {
                (now.ender, now.view.pid, now.view.why) = (None, None, why);
                now.view.state = State::Starting;
                now.view.restarts += 1;
            });
            next = decide(self.see(quick_ends));
        }
    }

    /// Puts a process of another binary in the place of the one that runs; that one ends when the
    /// other has all it had. If it does not get that far, the present one goes on; `None` if that one may not
    /// be followed by the other.
    pub(super) fn replace(&self, wanted: Spec) -> io::Result<Option<View>> {
        let before = self.view().spec;
        let binary = self.binary(&wanted);
        let mut arguments = self.arguments(&wanted);
        arguments.push("--take-over".to_owned());
        self.lock().succession = Succession::Begun;
        let said_before = fs::metadata(self.place.log()).map_or(0, |log| log.len());
        let taken = self.place.store(&wanted).and_then(|()| {
            let mut process = Process::start_beside(&self.place, &binary, &arguments)?;
            match process.listens(&self.place, LISTENS_WITHIN) {
                Ok(_) => Ok(Some(process)),
                Err(error) => {
                    process.ender()?.kill();
                    match process.was_refused()? {
                        true => Ok(None),
                        false => Err(match self.complaint(said_before) {
                            Some(why) => io::Error::other(format!("{error}: {why}")),
                            None => error,
                        }),
                    }
                }
            }
        });
        let mut now = self.lock();
        let result = match taken {
            Ok(Some(process)) => {
                now.view.spec = wanted;
                now.succession = Succession::Done(process);
                Ok(true)
            }
            not_taken => {
                now.succession = Succession::None;
                self.place.store(&before).and(not_taken).map(|_| false)
            }
        };
        drop(now);
        self.changed.notify_all();
        Ok(result?.then(|| self.settled_as(&binary)))
    }

    /// How it is once the process of a binary has taken over.
    fn settled_as(&self, binary: &Path) -> View {
        let on_its_way = |now: &mut Now| matches!(now.succession, Succession::Done(_));
        let waited = self.changed.wait_timeout_while(self.lock(), LISTENS_WITHIN, on_its_way);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        tracing::info!(instance = %self.view().spec.key(), binary = %binary.display(), "taken over");
        self.settled(LISTENS_WITHIN)
    }

    /// Who takes the place of a process that has ended, if anyone does.
    fn successor(&self) -> Option<Process> {
        let begun = |now: &mut Now| matches!(now.succession, Succession::Begun);
        let waited = self.changed.wait_timeout_while(self.lock(), 2 * LISTENS_WITHIN, begun);
        let (mut now, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let mut process = match std::mem::replace(&mut now.succession, Succession::None) {
            Succession::Done(process) => process,
            Succession::None | Succession::Begun => return None,
        };
        now.view.state = State::Starting;
        drop(now);
        if let Err(error) = process.follow() {
            tracing::error!(%error, "take the lock of an instance");
        }
        Some(process)
    }

    fn see(&self, quick_ends: u32) -> Seen {
        let (spec, ours, wish, ran) = {
            let now = self.lock();
            (now.view.spec.clone(), now.used, now.wish, now.ran)
        };
        // Nobody is asked for the sake of one that is to end.
        let asked = if wish == Wish::End { &[] } else { spec.members() };
        let promised = highest_promise(&spec.volume, asked);
        let record = self.world.term(&spec.volume);
        Seen { kind: spec.key().kind, wish, ours, record, promised, ran, quick_ends }
    }

    fn first(&self, used: bool) -> Next {
        let seen = self.see(0);
        let ours = Next::Again { epoch: seen.ours, after: Duration::ZERO };
        match seen.kind {
            Kind::Replica => ours,
            Kind::Engine => match start_epoch(seen.ours, seen.record, seen.promised, used) {
                Ok(Some(epoch)) => Next::Again { epoch, after: Duration::ZERO },
                Ok(None) => Next::Failed,
                Err(by) => Next::Fenced { by },
            },
        }
    }

    /// Waits before the next start, unless someone wants something else.
    fn rest(&self, after: Duration) -> &Instance {
        let calm = |now: &mut Now| now.wish == Wish::Serve;
        drop(
            self.changed.wait_timeout_while(self.lock(), after, calm).unwrap_or_else(PoisonError::into_inner),
        );
        self
    }

    fn start_at(&self, epoch: Epoch) -> io::Result<()> {
        let mut now = self.lock();
        now.used = now.used.max(epoch);
        now.view.spec.epoch = epoch;
        if now.view.spec.ahead < epoch {
            now.view.spec.ahead = epoch;
            self.place.store(&now.view.spec)?;
        }
        if now.wish == Wish::ServeAnew {
            now.wish = Wish::Serve;
        }
        Ok(())
    }

    fn settle(&self, end: Next) {
        self.change(|now| match end {
            Next::Again { .. } | Next::Gone => {}
            Next::Fenced { by } => {
                now.view.state = State::Fenced;
                now.view.why = format!("epoch {by} has the volume");
            }
            Next::Failed => now.view.state = State::Failed,
        });
    }

    /// It can be reached.
    fn running(&self, address: &Address, pid: Option<u32>, ender: Ender) {
        self.change(|now| {
            if now.wish != Wish::Serve {
                ender.end();
            }
            let before = now.view.spec.clone();
            now.view.spec.address = Some(address.clone());
            if let Particulars::Replica { existing, .. } = &mut now.view.spec.particulars {
                // What was begun is not begun again.
                *existing = true;
            }
            if before.key().kind == Kind::Engine {
                // Noted while it serves: when it ends, its clients wait for the next one.
                now.view.spec.ahead = now.used.next_incarnation().unwrap_or(now.used);
            }
            if now.view.spec != before
                && let Err(error) = self.place.store(&now.view.spec)
            {
                tracing::error!(%error, "note where an instance listens");
                ender.end();
            }
            now.ran = true;
            now.ender = Some(ender);
            (now.view.state, now.view.pid) = (State::Running, pid);
            now.view.why.clear();
        });
    }

    /// Serves, or minds the process that does; gives the reason of its end.
    fn serve(&self, taken_up: Option<Process>) -> String {
        let spec = self.view().spec;
        if self.lock().wish == Wish::End {
            return String::new();
        }
        match &spec.binary {
            None => self.serve_here(&spec),
            Some(_) => {
                let binary = self.binary(&spec);
                let started = match taken_up {
                    Some(process) => Ok(process),
                    // One that has followed another may live when this process does not know of it.
                    None if spec.key().kind == Kind::Replica => match Process::find(&self.place) {
                        Ok(Some(process)) => Ok(process),
                        Ok(None) => match self.lacks(&spec) {
                            Some(what) => return what,
                            None => Process::start(&self.place, &binary, &self.arguments(&spec)),
                        },
                        Err(error) => Err(error),
                    },
                    None => Process::start(&self.place, &binary, &self.arguments(&spec)),
                };
                match started {
                    Ok(process) => self.mind(process),
                    Err(error) => format!("start {}: {error}", binary.display()),
                }
            }
        }
    }

    /// What a replica has lost that has to be there: then it has failed, however often it ran before.
    fn lacks(&self, spec: &Spec) -> Option<String> {
        let copy = self.world.shelf.copy(&spec.name);
        match spec.particulars {
            Particulars::Replica { existing: true, .. } if !layers::is_there(&copy) => {
                self.lock().ran = false;
                let copy = copy.display();
                Some(format!("its data is not there: {copy} holds no copy; bring back the disk that has it"))
            }
            Particulars::Replica { .. } | Particulars::Engine { .. } => None,
        }
    }

    /// The program of a v1 instance.
    fn binary(&self, spec: &Spec) -> PathBuf {
        let folder = self.world.binaries.as_deref().unwrap_or("".as_ref());
        spec.binary.as_ref().map_or_else(|| folder.to_owned(), |binary| folder.join(binary))
    }

    fn mind(&self, mut process: Process) -> String {
        let listens = process.listens(&self.place, LISTENS_WITHIN);
        let why = match (listens, process.ender()) {
            (Ok(address), Ok(ender)) => {
                self.running(&address, Some(process.pid()), Ender::Process(ender));
                None
            }
            (Err(error), Ok(ender)) => {
                ender.kill();
                Some(error.to_string())
            }
            (_, Err(error)) => return format!("mind its process: {error}"),
        };
        let how = process.wait().unwrap_or_else(|error| error.to_string());
        let why = why.map(|why| format!("{why} ({how})")).unwrap_or(how);
        match self.last_words() {
            Some(words) => format!("{why}: {words}"),
            None => why,
        }
    }

    /// What a process has complained of since its log had this length; another may write to it as well.
    fn complaint(&self, since: u64) -> Option<String> {
        let log = fs::read(self.place.log()).ok()?;
        let text = String::from_utf8_lossy(log.get(usize::try_from(since).ok()?..)?).into_owned();
        text.lines().rev().find(|line| line.contains("ERROR")).map(|line| line.trim().to_owned())
    }

    fn last_words(&self) -> Option<String> {
        let log = fs::read(self.place.log()).ok()?;
        let text = String::from_utf8_lossy(&log[log.len().saturating_sub(LAST_WORDS)..]).into_owned();
        text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }

    /// Serves in the loop of the volume until it ends there.
    fn serve_here(&self, spec: &Spec) -> String {
        self.try_serve_here(spec).unwrap_or_else(|error| in_words(&*error))
    }

    fn try_serve_here(&self, spec: &Spec) -> Result<String, Box<dyn Error>> {
        let guest = match &spec.particulars {
            Particulars::Replica { size, .. } => {
                if let Some(what) = self.lacks(spec) {
                    return Ok(what);
                }
                let args = self.replica(spec, *size);
                Guest::Replica(Box::new(Opened::open(&args)?), args)
            }
            Particulars::Engine { .. } => {
                let args = self.engine(spec);
                Guest::Engine(Box::new(engine::Opened::open(&args)?), args)
            }
        };
        for heard in self.world.loops.seat(&spec.volume, guest)? {
            match heard {
                Heard::Seated(address, ender) => self.running(&address, None, Ender::Seat(ender)),
                Heard::NotSeated(why) => return Err(why.into()),
                Heard::Over(part, why) => {
                    part.end()?;
                    return Ok(why);
                }
            }
        }
        Ok("the loop of its volume has ended".into())
    }

    /// The node's address; the kernel chooses the port once.
    fn anywhere(&self) -> Address {
        Address::Tcp(SocketAddr::new(self.world.node, 0))
    }

    fn replica(&self, spec: &Spec, size: u64) -> ReplicaArgs {
        ReplicaArgs {
            folder: self.world.shelf.copy(&spec.name),
            volume: spec.volume.to_string(),
            size,
            listen: spec.address.clone().unwrap_or_else(|| self.anywhere()),
            take_over: false,
        }
    }

    fn engine(&self, spec: &Spec) -> EngineArgs {
        let remote = matches!(spec.particulars, Particulars::Engine { remote: true, .. });
        let first = || match remote {
            true => self.anywhere(),
            false => Address::Unix(self.world.shelf.socket(&spec.name)),
        };
        let named =
            |seat: &super::spec::Seat| Named { name: seat.name.to_string(), address: seat.address.clone() };
        EngineArgs {
            volume: spec.volume.to_string(),
            term: spec.epoch.term(),
            incarnation: spec.epoch.incarnation(),
            record: self.world.records.of(spec.volume.as_str()),
            replicas: spec.members().iter().map(named).collect(),
            listen: spec.address.clone().unwrap_or_else(first),
            suspended: spec.is_suspended(),
            permitted: spec.permitted().to_vec(),
        }
    }

    /// The command line of its process.
    fn arguments(&self, spec: &Spec) -> Vec<String> {
        match &spec.particulars {
            Particulars::Replica { size, .. } => self.replica(spec, *size).command_line(),
            Particulars::Engine { .. } => self.engine(spec).command_line(),
        }
    }
}
