//! A replica at work: the core between an epoll loop and a folder.
//!
//! Reads and writes are done in the loop (the page cache answers faster than a
//! thread can be woken); what waits for the disk, also a read of what is not in the
//! cache, is done on threads beside it.
//!
//! Invariant: when a sync or a promise fails, serving ends; it never goes on with a
//! disk that has lied.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    core::{Input, Known, Output, Replica},
    disk::{Folder, TakeFolder},
    pace::{Pace, Turn, is_request},
    promise::{BadPromise, PromiseFile},
    store::Store,
    succession::{self, Succession, TakeOverError},
    worker::Workers,
};
use crate::{
    net::{
        address::{Address, Listener},
        reactor::{Door, Event, LinkId, Reactor},
    },
    role,
};

/// Serve one copy of a volume from a folder.
#[derive(Debug, Clone, clap::Args)]
pub struct ReplicaArgs {
    /// Folder that holds the copy; made if it is not there.
    #[arg(long)]
    pub folder: PathBuf,
    /// Volume this is a copy of.
    #[arg(long)]
    pub volume: String,
    /// Size of the volume in bytes, for a folder that holds no copy yet.
    #[arg(long)]
    pub size: u64,
    /// Where engines connect: unix:PATH or IP:PORT; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: Address,
    /// Go on in the place of the process that serves the folder now, with its connections; it ends.
    #[arg(long)]
    pub take_over: bool,
}

impl ReplicaArgs {
    /// What starts a process with these arguments.
    pub fn command_line(&self) -> Vec<String> {
        let mut line = vec![
            "replica".to_owned(),
            format!("--folder={}", self.folder.display()),
            format!("--volume={}", self.volume),
            format!("--size={}", self.size),
            format!("--listen={}", self.listen),
        ];
        line.extend(self.take_over.then(|| "--take-over".to_owned()));
        line
    }
}

/// Why a replica does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error(transparent)]
    Folder(#[from] TakeFolder),
    #[error(transparent)]
    Promise(#[from] BadPromise),
    #[error("open the copy of volume {volume}")]
    Store { volume: String, source: io::Error },
    #[error("the folder holds a copy of {here}, not of {asked}")]
    OtherVolume { here: String, asked: String },
    #[error("listen on {address}")]
    Listen { address: Address, source: io::Error },
    #[error("take over")]
    TakeOver(#[from] TakeOverError),
    #[error("wait for messages")]
    Wait(#[source] io::Error),
    #[error("the store failed: {0}")]
    Dead(String),
}

/// Names the present run of the machine.
pub fn boot() -> u64 {
    boot_of(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

/// Where the kernel does not say, every start counts as one after a loss of power: nobody knows better.
fn boot_of(id: &str) -> u64 {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok().filter(|boot| *boot != 0).unwrap_or_else(role::process_name)
}

/// Between two looks for damage, of 256 KiB each: a layer of 1 TiB takes five days.
const SCRUB_EVERY: Duration = Duration::from_millis(100);

/// Whose turn it is to work on layers, of all copies that this process serves.
static PACE: Pace = Pace::new();

/// Serves until the store fails, the process is stopped, or a successor has taken over.
pub fn run(args: &ReplicaArgs) -> Result<(), ReplicaError> {
    let mut reactor = Reactor::new().map_err(ReplicaError::Wait)?;
    let (mut replica, address) = match args.take_over {
        true => succession::take_over(args, &mut reactor)?,
        false => Serving::begin(Opened::open(args)?, args, Door(0), &mut reactor)?,
    };
    let mut succession = Succession::open(&args.folder, &mut reactor);
    role::announce(&address);
    let mut events = Vec::new();
    loop {
        let deadline = [replica.deadline(), succession.deadline()].into_iter().flatten().min();
        reactor.wait(deadline, &mut events).map_err(ReplicaError::Wait)?;
        for event in events.drain(..) {
            match event {
                Event::Readable(link) if succession.is(link) => {
                    succession.on_asked(&args.volume, &mut reactor);
                }
                // What has arrived stays where it is, for this process or the next.
                Event::Arrived(_) if succession.is_asked() => {}
                event => replica.on_event(event, &mut reactor)?,
            }
        }
        replica.mind(&mut reactor)?;
        if succession.is_asked() {
            replica = match succession.go_on(replica, args, &address, &mut reactor)? {
                Some(replica) => replica,
                None => return Ok(()),
            };
        }
    }
}

/// A copy that was taken and read, and is not served yet: this may take a while, and no loop
/// has to wait for it.
pub struct Opened {
    folder: Folder,
    promise: PromiseFile<Folder>,
    store: Store<Folder>,
    boot: u64,
}

impl Opened {
    /// Takes the folder.
    pub fn open(args: &ReplicaArgs) -> Result<Opened, ReplicaError> {
        Opened::in_folder(Folder::take(&args.folder)?, args)
    }

    /// In a folder that this process owns.
    pub(super) fn in_folder(folder: Folder, args: &ReplicaArgs) -> Result<Opened, ReplicaError> {
        let promise = PromiseFile::open(folder.clone())?;
        let boot = boot();
        let store = Store::open(&folder, args.size, boot)
            .map_err(|source| ReplicaError::Store { volume: args.volume.clone(), source })?;
        if let Some(here) = store.layers().volume().filter(|here| *here != args.volume) {
            let (here, asked) = (here.to_owned(), args.volume.clone());
            return Err(ReplicaError::OtherVolume { here, asked });
        }
        Ok(Opened { folder, promise, store, boot })
    }
}

/// A copy that is served in a loop that it may share with others; see `host`.
pub struct Serving {
    core: Replica<Folder>,
    folder: Folder,
    workers: Workers<Folder>,
    outputs: Vec<Output>,
    /// When the next piece of the layers is looked at for damage.
    scrub_at: Instant,
    /// When the next piece of other work on them is done, if that was settled.
    turn: Option<Turn>,
}

impl Serving {
    /// Opens `door` to engines; says where they can reach it.
    pub fn begin(
        opened: Opened,
        args: &ReplicaArgs,
        door: Door,
        reactor: &mut Reactor,
    ) -> Result<(Serving, Address), ReplicaError> {
        let listen = |source| ReplicaError::Listen { address: args.listen.clone(), source };
        let listener = Listener::bind(&args.listen).map_err(listen)?;
        let address = listener.address(&args.listen).map_err(listen)?;
        reactor.open_door(door, listener).map_err(listen)?;
        let replica = Serving::new(opened, args, reactor);
        tracing::info!(volume = args.volume, %address, promised = %replica.core.promised(), "replica serves");
        Ok((replica, address))
    }

    fn new(opened: Opened, args: &ReplicaArgs, reactor: &Reactor) -> Serving {
        let Opened { folder, promise, store, boot } = opened;
        let core = Replica::new(args.volume.clone(), store, promise.standing(), boot);
        let workers = Workers::start(&folder, promise, reactor.waker());
        let scrub_at = Instant::now() + SCRUB_EVERY;
        Serving { core, folder, workers, outputs: Vec::new(), scrub_at, turn: None }
    }

    /// Goes on where a predecessor stood, with its connections.
    pub(super) fn resume(
        opened: Opened,
        args: &ReplicaArgs,
        known: Known,
        links: &BTreeMap<u64, LinkId>,
        reactor: &Reactor,
    ) -> Serving {
        let mut replica = Serving::new(opened, args, reactor);
        replica.core.go_on(known, links);
        replica
    }

    /// Whether nothing is under way that only this process knows of.
    pub(super) fn is_quiet(&self) -> bool {
        self.core.is_quiet()
    }

    /// Closes the copy's files; the folder is still this process's.
    pub(super) fn let_go(self) -> Result<(Folder, Known), ReplicaError> {
        let (folder, known) = (self.folder.clone(), self.core.known());
        self.end()?;
        Ok((folder, known))
    }

    /// Waits for the last sync; the folder is free afterwards.
    pub fn end(self) -> Result<(), ReplicaError> {
        let Serving { core, workers, .. } = self;
        drop(core);
        workers.end().map_err(ReplicaError::Dead)
    }

    /// When `mind` is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        match self.core.has_work() {
            true => Some(self.turn.map_or_else(Instant::now, |turn| turn.at)),
            false => self
                .core
                .wants_to_scrub()
                .then(|| self.turn.map_or(self.scrub_at, |turn| turn.at.max(self.scrub_at))),
        }
    }

    pub fn on_event(&mut self, event: Event, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        match event {
            Event::Accepted { .. } | Event::Connected(_) | Event::Readable(_) => Ok(()),
            Event::Arrived(link) => self.on_arrived(link, reactor),
            Event::Closed(link) => self.feed(Input::Closed(link), reactor),
            Event::Woken => self.on_woken(reactor),
        }
    }

    /// A piece of the work that can wait, when it is this copy's turn.
    pub fn mind(&mut self, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        let now = Instant::now();
        let Some(work) = self.wanted(now) else { return Ok(()) };
        let turn = *self.turn.get_or_insert_with(|| PACE.turn(now));
        if turn.at > now {
            return Ok(());
        }
        self.scrub_at = now + SCRUB_EVERY;
        self.feed(work, reactor)?;
        PACE.worked(turn, now.elapsed());
        self.turn = self.core.has_work().then(|| PACE.turn(now));
        Ok(())
    }

    /// What there is to do beside requests.
    fn wanted(&self, now: Instant) -> Option<Input> {
        match self.core.has_work() {
            true => Some(Input::Work),
            false => (self.core.wants_to_scrub() && self.scrub_at <= now).then_some(Input::Scrub),
        }
    }

    pub(super) fn on_arrived(&mut self, link: LinkId, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        let mut is_heard = false;
        loop {
            match reactor.next_frame(link) {
                Ok(Some(frame)) => {
                    if !is_heard && is_request(&frame) {
                        PACE.heard(Instant::now());
                        is_heard = true;
                    }
                    self.feed(Input::Frame(link, frame), reactor)?;
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "engine link closed");
                    reactor.close(link);
                    return self.feed(Input::Closed(link), reactor);
                }
            }
        }
    }

    fn on_woken(&mut self, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        while let Some(done) = self.workers.next_done() {
            self.feed(done.map_err(ReplicaError::Dead)?, reactor)?;
        }
        Ok(())
    }

    fn feed(&mut self, input: Input, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.core.apply(input, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send(link, frame) => reactor.send(link, frame),
                Output::Close(link) => reactor.close(link),
                Output::Persist(standing) => self.workers.persist(standing).map_err(ReplicaError::Dead)?,
                Output::SyncIntent => {
                    let file = self.core.store().intent_file();
                    self.workers.sync_intent(file).map_err(ReplicaError::Dead)?;
                }
                Output::SyncAbsent(key) => {
                    let file = self.core.store().absent_file(key);
                    self.workers.sync_absent(key, file).map_err(ReplicaError::Dead)?;
                }
                Output::Fetch(number) => {
                    let plan = self.core.fetch_plan(number);
                    self.workers.fetch(number, plan).map_err(ReplicaError::Dead)?;
                }
                Output::Sync => {
                    let plan =
                        self.core.sync_plan().map_err(|error| ReplicaError::Dead(error.to_string()))?;
                    self.workers.sync(plan).map_err(ReplicaError::Dead)?;
                }
                Output::Die(why) => return Err(ReplicaError::Dead(why)),
            }
        }
        self.outputs = outputs;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_the_machine_has_one_name_and_no_other_run_has_it() {
        assert_eq!(boot(), boot());
        let id = "01234567-89ab-cdef-0123-456789abcdef\n";
        assert_eq!(boot_of(id), 0x0123_4567_89ab_cdef);
        assert_ne!(boot_of(id), boot_of("11234567-89ab-cdef-0123-456789abcdef\n"));
        for nothing in ["", "00000000-0000-0000-0000-000000000000"] {
            assert_ne!(boot_of(nothing), 0, "0 would be every run");
        }
    }
}
