//! A replica at work: the core between an epoll loop and a folder.
//!
//! Reads and writes are done in the loop (the page cache answers faster than a
//! thread can be woken); what waits for the disk is done on one thread beside it.
//!
//! Invariant: when a sync or a promise fails, serving ends; it never goes on with a
//! disk that has lied.

use std::{
    io,
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::Instant,
};

use super::{
    core::{Input, Output, Replica},
    disk::{Disk, Folder, TakeFolder},
    layers::SyncPlan,
    promise::{BadPromise, PromiseFile, Standing},
    store::Store,
};
use crate::{
    net::{
        address::{Address, Listener},
        reactor::{Door, Event, LinkId, Reactor, Waker},
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

/// Why a replica does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error(transparent)]
    Folder(#[from] TakeFolder),
    #[error(transparent)]
    Promise(#[from] BadPromise),
    #[error("open the copy of volume {volume}")]
    Store { volume: String, source: io::Error },
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

enum Job<D: Disk> {
    Persist(Standing),
    Sync(SyncPlan<D>),
    SyncIntent(D::File),
}

enum Done {
    Input(Input),
    Failed(String),
}

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
    jobs: Sender<Job<Folder>>,
    done: Receiver<Done>,
    outputs: Vec<Output>,
    worker: JoinHandle<()>,
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
        let listen = |source| ReplicaError::Listen { address: args.listen.clone(), source };
        let listener = Listener::bind(&args.listen).map_err(listen)?;
        let address = listener.address(&args.listen).map_err(listen)?;
        reactor.open_door(door, listener).map_err(listen)?;

        let core = Replica::new(args.volume.clone(), store, promise.standing(), boot);
        let (jobs, queue) = channel();
        let (finished, done) = channel();
        let waker = reactor.waker();
        let worker = thread::spawn(move || work(&folder, promise, &queue, &finished, &waker));
        tracing::info!(volume = args.volume, %address, promised = %core.promised(), "replica serves");
        Ok((Serving { core, jobs, done, outputs: Vec::new(), worker }, address))
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
        let Serving { core, jobs, done, worker, .. } = self;
        drop((core, jobs, done));
        worker.join().map_err(|_| ReplicaError::Dead("the thread that syncs panicked".into()))
    }

    /// When `mind` is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        self.core.has_work().then(Instant::now)
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
        match self.core.has_work() {
            true => self.feed(Input::Work, reactor),
            false => Ok(()),
        }
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
        while let Ok(done) = self.done.try_recv() {
            match done {
                Done::Input(input) => self.feed(input, reactor)?,
                Done::Failed(why) => return Err(ReplicaError::Dead(why)),
            }
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
                Output::Persist(standing) => self.hand_over(Job::Persist(standing))?,
                Output::SyncIntent => self.hand_over(Job::SyncIntent(self.core.store().intent_file()))?,
                Output::Sync => {
                    let plan =
                        self.core.sync_plan().map_err(|error| ReplicaError::Dead(error.to_string()))?;
                    self.hand_over(Job::Sync(plan))?;
                }
                Output::Die(why) => return Err(ReplicaError::Dead(why)),
            }
        }
        self.outputs = outputs;
        Ok(())
    }

    fn hand_over(&self, job: Job<Folder>) -> Result<(), ReplicaError> {
        self.jobs.send(job).map_err(|_| ReplicaError::Dead("the thread that syncs is gone".into()))
    }
}

fn work<D: Disk>(
    disk: &D,
    mut promise: PromiseFile<D>,
    queue: &Receiver<Job<D>>,
    finished: &Sender<Done>,
    waker: &Waker,
) {
    for job in queue {
        let (result, input) = match job {
            Job::Persist(standing) => (promise.store(standing), Input::Persisted(standing)),
            Job::SyncIntent(file) => (disk.sync(&file), Input::IntentSynced),
            Job::Sync(plan) => (plan.carry_out(disk), Input::Synced),
        };
        let done = match result {
            Ok(()) => Done::Input(input),
            Err(error) => Done::Failed(error.to_string()),
        };
        if finished.send(done).is_err() {
            return;
        }
        waker.wake();
    }
}
