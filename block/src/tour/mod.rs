//! A whole data plane on one machine: replicas, engines and a frontend, each a
//! process of its own, with a volume that changes engines under a client.
//!
//! Invariant: dropping a `Plane` leaves no process behind.

mod frontends;
pub mod managed;
pub mod process;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use process::{Process, StartError};
use serde::{Deserialize, Serialize};

use crate::{
    caller::{ControlError, EngineControl, FrontendControl},
    check::workload::{Report, Workload, WorkloadError},
    engine,
    epoch::Epoch,
    extent::Extent,
    frontend::control::{Answer, Command, Switched},
    instance::order::OrderError,
    net::address::Address,
    record::{Attachment, Record, RecordError, RecordStore, file::FileRecord},
    replica::{disk::Folder, serve::boot, store::Store},
};

/// What to build.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Binary that knows the roles `replica`, `engine` and `frontend`.
    pub binary: PathBuf,
    pub folder: PathBuf,
    pub volume: String,
    pub size: u64,
    pub replicas: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum TourError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("use {}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("kill the engine of an instance manager and wait for the next")]
    Engine { source: io::Error },
    #[error("replace the frontend")]
    Frontend { source: io::Error },
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("order something of an instance manager: {}", .0.message())]
    Refused(#[from] Box<tonic::Status>),
    #[error("{name} is {state}: {why}")]
    NotRunning { name: String, state: &'static str, why: String },
    #[error("the client's thread ended without a report")]
    NoReport,
    #[error("not every copy is in service after {within:?}: {record:?}")]
    NotWhole { within: Duration, record: Record },
}

/// Running processes of one volume.
#[derive(Debug)]
pub struct Plane {
    layout: Layout,
    /// The process of each copy, unless it is the engine's.
    replicas: Vec<Option<Process>>,
    /// Where each copy can be reached.
    addresses: Vec<Address>,
    engine: Process,
    keeper: Process,
    frontend: Process,
    control: FrontendControl,
    record: FileRecord,
    attachment: Attachment,
    epoch: Epoch,
    /// How long the frontend may take to switch over.
    switch_within: Duration,
}

impl Plane {
    /// Starts everything and offers the volume on its NBD socket.
    pub fn start(layout: Layout) -> Result<Plane, TourError> {
        Plane::start_serving(layout, None)
    }

    /// The same, with the first copy in the engine's own process.
    pub fn start_with_local(layout: Layout) -> Result<Plane, TourError> {
        Plane::start_serving(layout, Some(0))
    }

    fn start_serving(layout: Layout, local: Option<usize>) -> Result<Plane, TourError> {
        let folder = &layout.folder;
        std::fs::create_dir_all(folder)
            .map_err(|source| TourError::Folder { path: folder.clone(), source })?;
        let (mut replicas, mut addresses) = (Vec::new(), Vec::new());
        for number in 0..layout.replicas {
            let process = match local {
                Some(local) if local == number => None,
                _ => Some(start_replica(&layout, number, &node_address(number))?),
            };
            addresses
                .push(process.as_ref().map_or(node_address(number), |process| process.address().clone()));
            replicas.push(process);
        }
        let mut record = FileRecord::at(&record_path(&layout));
        record.create(&Record::new((0..layout.replicas).map(replica_name)))?;
        let attachment = Attachment::fresh();
        let epoch = Epoch::of_term(record.attach(attachment)?.term);
        let engine = start_engine(&layout, &mut addresses, local, epoch)?;
        let keeper = frontends::start_keeper(&layout)?;
        let frontend = frontends::start_frontend(&layout)?;
        let control = FrontendControl::connect(frontend.address())?;
        let mut plane = Plane {
            layout,
            replicas,
            addresses,
            engine,
            keeper,
            frontend,
            control,
            record,
            attachment,
            epoch,
            switch_within: SWITCH_WITHIN,
        };
        plane.reach_frontend()?;
        Ok(plane)
    }

    /// Waits for switch-overs for as long as this: copies that may differ are made equal in their pause.
    pub fn await_switches(&mut self, within: Duration) -> Result<(), TourError> {
        self.switch_within = within;
        Ok(self.control.wait_at_most(within).map_err(ControlError::from)?)
    }

    /// Where clients connect.
    pub fn socket(&self) -> PathBuf {
        socket(&self.layout)
    }

    pub fn replica_folder(&self, number: usize) -> PathBuf {
        replica_folder(&self.layout, number)
    }

    pub fn engine(&mut self) -> &mut Process {
        &mut self.engine
    }

    pub fn frontend(&mut self) -> &mut Process {
        &mut self.frontend
    }

    /// The process that serves a copy.
    pub fn replica(&mut self, number: usize) -> &mut Process {
        self.replicas[number].as_mut().unwrap_or(&mut self.engine)
    }

    /// The copy in the engine's process.
    fn local(&self) -> Option<usize> {
        self.replicas.iter().position(Option::is_none)
    }

    /// Moves the volume to a new engine process; the old one is stopped.
    pub fn switch(&mut self, drain_within: Duration) -> Result<Switched, TourError> {
        self.switch_keeping_old(drain_within).map(|(switched, _)| switched)
    }

    /// Moves the volume to a new engine process and gives the old one back, unless it
    /// goes on for the sake of a copy.
    pub fn switch_keeping_old(
        &mut self,
        drain_within: Duration,
    ) -> Result<(Switched, Option<Process>), TourError> {
        let successor = self.start_successor()?;
        self.switch_to(successor, drain_within)
    }

    /// Gives the volume's next term to a new engine process, which the frontend does not know yet.
    pub fn start_successor(&mut self) -> Result<Process, TourError> {
        self.start_successor_serving(None)
    }

    /// Moves the volume to a new engine process that serves one of the copies itself;
    /// the process that served it so far is killed.
    pub fn switch_to_copy(&mut self, number: usize, drain_within: Duration) -> Result<Switched, TourError> {
        self.replica(number).kill();
        let successor = self.start_successor_serving(Some(number))?;
        self.move_to(successor, Some(number), drain_within).map(|(switched, _)| switched)
    }

    fn start_successor_serving(&mut self, local: Option<usize>) -> Result<Process, TourError> {
        let epoch = Epoch::of_term(self.record.take_term()?.term);
        let successor = start_engine(&self.layout, &mut self.addresses, local, epoch)?;
        self.epoch = epoch;
        Ok(successor)
    }

    /// Moves the volume to an engine from `start_successor` and gives the old one back.
    pub fn switch_to(
        &mut self,
        successor: Process,
        drain_within: Duration,
    ) -> Result<(Switched, Option<Process>), TourError> {
        self.move_to(successor, None, drain_within)
    }

    fn move_to(
        &mut self,
        successor: Process,
        local: Option<usize>,
        drain_within: Duration,
    ) -> Result<(Switched, Option<Process>), TourError> {
        let answer = self.control.call(&Command::Switch {
            volume: self.layout.volume.clone(),
            engine: successor.address().to_string(),
            drain_within_ms: drain_within.as_millis() as u64,
        })?;
        let old = std::mem::replace(&mut self.engine, successor);
        let old = match self.local() {
            Some(number) => {
                self.replicas[number] = Some(old);
                None
            }
            None => Some(old),
        };
        if let Some(number) = local {
            self.replicas[number] = None;
        }
        match answer {
            Answer::Switched(switched) => Ok((switched, old)),
            other => Err(ControlError::Refused(format!("{other:?}")).into()),
        }
    }

    /// Starts the engine anew under its next incarnation, as a supervisor does
    /// when it finds it dead; the frontend finds it by itself.
    pub fn restart_engine(&mut self) -> Result<(), TourError> {
        self.engine.kill();
        self.epoch = self.epoch.next_incarnation().unwrap_or(self.epoch.next_term());
        let address = self.engine.address().clone();
        let local = self.local();
        self.engine = start_engine_at(&self.layout, &mut self.addresses, local, (self.epoch, &address))?;
        Ok(())
    }

    /// After a switch-over that came to nothing, or that nobody knows the end of:
    /// the record has moved on, so the volume goes forward to yet another engine, which
    /// gets more time than the one before: copies may have to be made equal.
    pub fn go_forward(&mut self, drain_within: Duration) -> Result<(), TourError> {
        let mut within = self.switch_within;
        for _ in 1..MOST_ATTEMPTS {
            match self.switch(drain_within) {
                Err(TourError::Control(_)) => {
                    self.tend_frontend()?;
                    within = (2 * within).min(LONGEST_SWITCH);
                    self.control.wait_at_most(within).map_err(ControlError::from)?;
                }
                result => {
                    self.control.wait_at_most(self.switch_within).map_err(ControlError::from)?;
                    return result.map(|_| ());
                }
            }
        }
        self.switch(drain_within).map(|_| ())
    }

    /// What a supervisor does all the time: starts an engine, a keeper or a frontend that has ended anew.
    pub fn tend(&mut self) -> Result<(), TourError> {
        let ended = |source| TourError::Folder { path: self.layout.binary.clone(), source };
        if self.engine.has_ended().map_err(ended)? {
            self.restart_engine()?;
        }
        self.tend_frontend()
    }

    /// Starts a replica's process anew where it was.
    pub fn restart_replica(&mut self, number: usize) -> Result<(), TourError> {
        match &mut self.replicas[number] {
            Some(process) => {
                process.kill();
                *process = start_replica(&self.layout, number, &self.addresses[number])?;
                Ok(())
            }
            None => self.restart_engine(),
        }
    }

    /// Puts another process, of another binary if one is given, in the place of a replica's, which keeps its connections.
    pub fn replace_replica(&mut self, number: usize, binary: Option<&Path>) -> Result<(), TourError> {
        let layout =
            Layout { binary: binary.unwrap_or(&self.layout.binary).to_owned(), ..self.layout.clone() };
        let ended = |source| TourError::Folder { path: replica_folder(&self.layout, number), source };
        let Some(old) = &mut self.replicas[number] else { return self.restart_engine() };
        let arguments = replica_arguments(&layout, number, &self.addresses[number]);
        let arguments = arguments.into_iter().chain(["--take-over".to_owned()]);
        let successor = Process::start(&layout.binary, "replica", arguments, &log(&layout))?;
        let status = old.wait_for_end(SWITCH_WITHIN).map_err(ended)?;
        *old = successor;
        match status.success() {
            true => Ok(()),
            false => Err(ended(io::Error::other(status.to_string()))),
        }
    }

    /// Asks something of the engine that serves now. What it refuses for the moment is
    /// asked again for a while.
    pub fn command(
        &mut self,
        command: &engine::control::Command,
    ) -> Result<engine::control::Answer, TourError> {
        let began = Instant::now();
        loop {
            let answer =
                EngineControl::connect(self.engine.address()).and_then(|mut engine| engine.call(command));
            match answer {
                Err(_) if began.elapsed() < SWITCH_WITHIN => {
                    self.tend()?;
                    thread::sleep(LOOK_AGAIN);
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// What the volume's record says.
    pub fn record(&mut self) -> Result<Record, TourError> {
        Ok(self.record.read()?.1)
    }

    /// Waits until every copy is in service, starting engines anew that end.
    pub fn wait_until_whole(&mut self, within: Duration) -> Result<(), TourError> {
        let began = Instant::now();
        loop {
            self.tend()?;
            let record = self.record()?;
            if record.in_service() == self.layout.replicas {
                return Ok(());
            }
            if began.elapsed() > within {
                return Err(TourError::NotWhole { within, record });
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Stops a client's volume and all processes.
    pub fn stop(mut self) -> Result<Layout, TourError> {
        self.control.call(&Command::Detach { volume: self.layout.volume.clone() })?;
        Ok(self.layout)
    }
}

/// Where the processes say what they do.
fn log(layout: &Layout) -> PathBuf {
    layout.folder.join("processes.log")
}

fn socket(layout: &Layout) -> PathBuf {
    layout.folder.join("nbd.sock")
}

pub fn replica_folder(layout: &Layout, number: usize) -> PathBuf {
    layout.folder.join(replica_name(number))
}

fn record_path(layout: &Layout) -> PathBuf {
    layout.folder.join("volume.record")
}

fn replica_name(number: usize) -> String {
    format!("replica-{number}")
}

/// Every node has a loopback address of its own; the kernel chooses the port, and
/// no outgoing connection takes it away while a replica is started anew.
fn node_address(number: usize) -> Address {
    let node = 2 + u8::try_from(number).expect("a volume has few replicas");
    Address::Tcp((std::net::Ipv4Addr::new(127, 0, 0, node), 0).into())
}

fn replica_arguments(layout: &Layout, number: usize, listen: &Address) -> Vec<String> {
    vec![
        format!("--folder={}", replica_folder(layout, number).display()),
        format!("--volume={}", layout.volume),
        format!("--size={}", layout.size),
        format!("--listen={listen}"),
    ]
}

fn start_replica(layout: &Layout, number: usize, listen: &Address) -> Result<Process, StartError> {
    Process::start(&layout.binary, "replica", replica_arguments(layout, number, listen), &log(layout))
}

fn start_engine(
    layout: &Layout,
    replicas: &mut [Address],
    local: Option<usize>,
    epoch: Epoch,
) -> Result<Process, StartError> {
    let name = format!("engine-{}.sock", epoch.term());
    start_engine_at(layout, replicas, local, (epoch, &Address::Unix(layout.folder.join(name))))
}

/// Starts an engine; where it serves a copy itself, it says where others reach that one.
fn start_engine_at(
    layout: &Layout,
    replicas: &mut [Address],
    local: Option<usize>,
    (epoch, address): (Epoch, &Address),
) -> Result<Process, StartError> {
    let mut arguments = vec![
        format!("--volume={}", layout.volume),
        format!("--term={}", epoch.term()),
        format!("--incarnation={}", epoch.incarnation()),
        format!("--record={}", record_path(layout).display()),
        format!("--listen={address}"),
    ];
    for (number, address) in replicas.iter().enumerate() {
        let name = replica_name(number);
        arguments.push(format!("--permit={name}"));
        if local == Some(number) {
            arguments.push(format!("--local={name}={}", replica_folder(layout, number).display()));
            arguments.push(format!("--local-size={}", layout.size));
            arguments.push(format!("--local-listen={address}"));
        } else {
            arguments.push(format!("--replica={name}={address}"));
        }
    }
    let mut process = Process::start(&layout.binary, "engine", arguments, &log(layout))?;
    if let Some(number) = local {
        let start = |source| StartError::Start { program: layout.binary.display().to_string(), source };
        replicas[number] = process.second_address().map_err(start)?;
    }
    Ok(process)
}

/// What the tour has to tell of the block engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    pub switches: Vec<Switched>,
    /// What the client saw, and what was read back and judged.
    pub client: Report,
    /// Whether all replicas held the same bytes at the end.
    pub replicas_equal: bool,
}

impl Told {
    pub fn worst_pause(&self) -> Duration {
        let pauses = self.switches.iter().map(|switched| switched.longest_wait_us.max(switched.pause_us));
        Duration::from_micros(pauses.max().unwrap_or(0))
    }

    /// No error, nothing lost, all copies alike.
    pub fn is_clean(&self) -> bool {
        self.client.is_clean() && self.replicas_equal
    }
}

/// Runs a volume under load through a number of switch-overs and judges it.
pub fn switch_under_load(layout: Layout, switches: usize) -> Result<Told, TourError> {
    let mut plane = Plane::start(layout)?;
    let stop = Arc::new(AtomicBool::new(false));
    let workload = Workload {
        socket: plane.socket(),
        volume: plane.layout.volume.clone(),
        depth: 16,
        blocks: 0,
        seed: 7,
        connects_again_within: None,
    };
    let client = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || workload.run(Duration::from_secs(600), &stop))
    };
    let mut told = Vec::new();
    for _ in 0..switches {
        thread::sleep(BETWEEN_SWITCHES);
        told.push(plane.switch(DRAIN_WITHIN)?);
    }
    stop.store(true, Ordering::Relaxed);
    let client = client.join().map_err(|_| TourError::NoReport)??;
    let layout = plane.stop()?;
    let replicas_equal = replicas_equal(&layout)?;
    Ok(Told { switches: told, client, replicas_equal })
}

/// Switch-overs tried before a volume is given up.
const MOST_ATTEMPTS: usize = 10;
/// Longest time a switch-over may take before another is tried.
const SWITCH_WITHIN: Duration = Duration::from_secs(3);
const LONGEST_SWITCH: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const BETWEEN_SWITCHES: Duration = Duration::from_millis(100);
pub const DRAIN_WITHIN: Duration = Duration::from_millis(20);

/// Whether all copies hold the same bytes. Nobody may be writing.
pub fn replicas_equal(layout: &Layout) -> Result<bool, TourError> {
    let open = |number| {
        let path = replica_folder(layout, number);
        let fail = |source| TourError::Folder { path: path.clone(), source };
        let folder = Folder::take(&path).map_err(|error| fail(io::Error::other(error)))?;
        Store::open(&folder, layout.size, boot()).map_err(fail)
    };
    let first = open(0)?;
    for number in 1..layout.replicas {
        let alike = alike(&first, &open(number)?);
        let path = replica_folder(layout, number);
        if !alike.map_err(|source| TourError::Folder { path, source })? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether two copies have the same snapshots and hold the same in each, and now.
fn alike(one: &Store<Folder>, other: &Store<Folder>) -> io::Result<bool> {
    if one.layout() != other.layout() {
        return Ok(false);
    }
    for offset in (0..one.size()).step_by(COMPARED_AT_ONCE as usize) {
        let length = (one.size() - offset).min(COMPARED_AT_ONCE) as u32;
        let extent = Extent::new(offset, length).expect("inside the volume");
        for place in 0..one.layout().snapshots.len() {
            if one.layers().read_snapshot(place, extent)? != other.layers().read_snapshot(place, extent)? {
                return Ok(false);
            }
        }
        if one.read(extent)? != other.read(extent)? {
            return Ok(false);
        }
    }
    Ok(true)
}

const COMPARED_AT_ONCE: u64 = 1 << 20;
