//! A replica at work: the core between an epoll loop and a folder.
//!
//! Reads and writes are done in the loop (the page cache answers faster than a
//! thread can be woken); what waits for the disk is done on threads beside it.
//!
//! Invariant: when a sync or a promise fails, serving ends; it never goes on with a
//! disk that has lied.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    core::{Input, Output, Replica},
    disk::{Folder, TakeFolder},
    promise::{BadPromise, PromiseFile},
    store::Store,
    worker::Workers,
};
use crate::{
    net::{
        address::{Address, Listener},
        reactor::{Door, Event, LinkId, Reactor},
        stop::Stop,
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
}

impl ReplicaArgs {
    /// What starts a process with these arguments.
    pub fn command_line(&self) -> Vec<String> {
        vec![
            "replica".to_owned(),
            format!("--folder={}", self.folder.display()),
            format!("--volume={}", self.volume),
            format!("--size={}", self.size),
            format!("--listen={}", self.listen),
        ]
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
    #[error("wait for messages")]
    Wait(#[source] io::Error),
    #[error("the store failed: {0}")]
    Dead(String),
}

/// Names the present run of the machine; 0 where the kernel does not say.
pub fn boot() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Between two looks for damage, of 256 KiB each: a layer of 1 TiB takes five days.
const SCRUB_EVERY: Duration = Duration::from_millis(100);

/// Serves until the store fails or the process is stopped.
pub fn run(args: &ReplicaArgs) -> Result<(), ReplicaError> {
    host(args, |address, _| role::announce(address))
}

/// Serves in the calling thread; `started` is told where it can be reached and how it is
/// ended. When it returns the folder is free.
pub fn host(args: &ReplicaArgs, started: impl FnOnce(&Address, Stop)) -> Result<(), ReplicaError> {
    let mut reactor = Reactor::new().map_err(ReplicaError::Wait)?;
    let (mut replica, address) = Serving::begin(args, Door(0), &mut reactor)?;
    let stop = Stop::of(reactor.waker());
    started(&address, stop.clone());
    let served = replica.serve(&mut reactor, &stop);
    served.and(replica.end())
}

/// A copy that is served in a loop that it may share with others; see `host`.
pub struct Serving {
    core: Replica<Folder>,
    workers: Workers<Folder>,
    outputs: Vec<Output>,
    /// When the next piece of the layers is looked at for damage.
    scrub_at: Instant,
}

impl Serving {
    /// Takes the folder and opens `door` to engines; says where they can reach it.
    pub fn begin(
        args: &ReplicaArgs,
        door: Door,
        reactor: &mut Reactor,
    ) -> Result<(Serving, Address), ReplicaError> {
        let folder = Folder::take(&args.folder)?;
        let promise = PromiseFile::open(folder.clone())?;
        let boot = boot();
        let store = Store::open(&folder, args.size, boot)
            .map_err(|source| ReplicaError::Store { volume: args.volume.clone(), source })?;
        if let Some(here) = store.layers().volume().filter(|here| *here != args.volume) {
            let (here, asked) = (here.to_owned(), args.volume.clone());
            return Err(ReplicaError::OtherVolume { here, asked });
        }
        let listen = |source| ReplicaError::Listen { address: args.listen.clone(), source };
        let listener = Listener::bind(&args.listen).map_err(listen)?;
        let address = listener.address(&args.listen).map_err(listen)?;
        reactor.open_door(door, listener).map_err(listen)?;

        let core = Replica::new(args.volume.clone(), store, promise.standing(), boot);
        let workers = Workers::start(&folder, promise, reactor.waker());
        tracing::info!(volume = args.volume, %address, promised = %core.promised(), "replica serves");
        Ok((Serving { core, workers, outputs: Vec::new(), scrub_at: Instant::now() + SCRUB_EVERY }, address))
    }

    fn serve(&mut self, reactor: &mut Reactor, stop: &Stop) -> Result<(), ReplicaError> {
        let mut events = Vec::new();
        while !stop.is_asked() {
            reactor.wait(self.deadline(), &mut events).map_err(ReplicaError::Wait)?;
            events.drain(..).try_for_each(|event| self.on_event(event, reactor))?;
            self.mind(reactor)?;
        }
        Ok(())
    }

    /// Waits for the last sync; the folder is free afterwards.
    fn end(self) -> Result<(), ReplicaError> {
        let Serving { core, workers, .. } = self;
        drop(core);
        workers.end().map_err(ReplicaError::Dead)
    }

    /// When `mind` is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        match self.core.has_work() {
            true => Some(Instant::now()),
            false => self.core.can_scrub().then_some(self.scrub_at),
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

    /// A piece of the work that can wait.
    pub fn mind(&mut self, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        if self.core.has_work() {
            return self.feed(Input::Work, reactor);
        }
        let now = Instant::now();
        if now < self.scrub_at {
            return Ok(());
        }
        self.scrub_at = now + SCRUB_EVERY;
        self.feed(Input::Scrub, reactor)
    }

    fn on_arrived(&mut self, link: LinkId, reactor: &mut Reactor) -> Result<(), ReplicaError> {
        loop {
            match reactor.next_frame(link) {
                Ok(Some(frame)) => self.feed(Input::Frame(link, frame), reactor)?,
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
