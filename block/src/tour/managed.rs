//! A data plane of instance managers, one on each node: with a replica inside and the
//! engine inside the first (v2), or with a process of its own for each of them (v1).
//!
//! Invariant: dropping it leaves no process behind.

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use tokio::runtime::Runtime;

use super::{Layout, TourError, frontends, log, node_address, process::Process, replica_name, socket};
use crate::{
    caller::FrontendControl,
    epoch::Epoch,
    frontend::control::Command,
    instance::{
        Secret, end_all,
        order::{Orders, orders},
        proto,
    },
    net::address::Address,
    record::{Record, RecordStore, file::FileRecord},
};

const SECRET: &str = "a-secret-of-this-plane-alone";
/// The program of v1 instances, below the folder of binaries.
const PROGRAM: &str = "program";
const ENGINE: &str = "engine";
const BACK_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Managed {
    layout: Layout,
    managers: Vec<Process>,
    // Both hold the volume for its client as long as the plane is there.
    _keeper: Process,
    _frontend: Process,
    runtime: Runtime,
    secret: Secret,
    members: Vec<proto::Member>,
    /// Of each instance; none lives in the instance manager.
    program: &'static str,
    epoch: u64,
}

fn folder_of(layout: &Layout, node: usize) -> PathBuf {
    layout.folder.join(format!("node-{node}"))
}

fn start_manager(layout: &Layout, node: usize, listen: &Address) -> Result<Process, TourError> {
    let path = |name: &str| layout.folder.join(name).display().to_string();
    let arguments = [
        format!("--folder={}", folder_of(layout, node).display()),
        format!("--listen={listen}"),
        format!("--secret={}", path("secret")),
        format!("--records={}", path("records")),
        format!("--binaries={}", path("binaries")),
    ];
    Ok(Process::start(&layout.binary, "instance-manager", arguments, &log(layout))?)
}

fn write_secret(path: &Path) -> io::Result<()> {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(SECRET.as_bytes())
}

impl Managed {
    /// Starts everything and offers the volume on its NBD socket.
    pub fn start(layout: Layout) -> Result<Managed, TourError> {
        Managed::start_with(layout, "")
    }

    /// The same with a process for the engine and for each replica, which instance managers start and mind.
    pub fn start_with_processes(layout: Layout) -> Result<Managed, TourError> {
        let binaries = layout.folder.join("binaries");
        let copied = std::fs::create_dir_all(&binaries)
            .and_then(|()| std::fs::copy(&layout.binary, binaries.join(PROGRAM)));
        copied.map_err(|source| TourError::Folder { path: binaries, source })?;
        Managed::start_with(layout, PROGRAM)
    }

    fn start_with(layout: Layout, program: &'static str) -> Result<Managed, TourError> {
        let failed = |path: PathBuf| move |source| TourError::Folder { path, source };
        let (records, secret) = (layout.folder.join("records"), layout.folder.join("secret"));
        std::fs::create_dir_all(&records).map_err(failed(records.clone()))?;
        write_secret(&secret).map_err(failed(secret.clone()))?;
        let mut record = FileRecord::at(&records.join(format!("{}.record", layout.volume)));
        record.create(&Record::new((0..layout.replicas).map(replica_name)))?;
        let epoch = Epoch::of_term(record.take_term()?.term).bits();
        let managers = (0..layout.replicas).map(|node| start_manager(&layout, node, &node_address(node)));
        let managers = managers.collect::<Result<Vec<_>, _>>()?;
        let keeper = frontends::start_keeper(&layout)?;
        let frontend = frontends::start_frontend(&layout)?;
        let runtime = Runtime::new().map_err(failed(layout.folder.clone()))?;
        let secret = Secret::load(&secret).map_err(failed(secret.clone()))?;
        let mut plane = Managed {
            layout,
            managers,
            _keeper: keeper,
            _frontend: frontend,
            runtime,
            secret,
            members: Vec::new(),
            program,
            epoch,
        };
        for node in 0..plane.layout.replicas {
            let made = plane.create_replica(node)?;
            plane.members.push(proto::Member { name: made.name, address: made.address });
        }
        let engine = plane.create_engine()?;
        let mut control = FrontendControl::connect(plane._frontend.address())?;
        control.call(&Command::Attach {
            volume: plane.layout.volume.clone(),
            size: plane.layout.size,
            socket: plane.socket(),
            engine: engine.address,
        })?;
        Ok(plane)
    }

    /// Where clients connect.
    pub fn socket(&self) -> PathBuf {
        socket(&self.layout)
    }

    fn orders(&self, node: usize) -> Result<Orders, TourError> {
        let at: SocketAddr = match self.managers[node].address() {
            Address::Tcp(at) => *at,
            Address::Unix(path) => {
                let source = io::Error::other("an instance manager listens on TCP");
                return Err(TourError::Folder { path: path.clone(), source });
            }
        };
        let _inside = self.runtime.enter();
        Ok(orders(at, &self.secret)?)
    }

    fn create(&self, node: usize, request: proto::CreateRequest) -> Result<proto::Instance, TourError> {
        let mut orders = self.orders(node)?;
        let made = self.runtime.block_on(orders.create(request)).map_err(Box::new)?.into_inner();
        match made.state() {
            proto::State::Running => Ok(made),
            state => {
                Err(TourError::NotRunning { name: made.name, state: state.as_str_name(), why: made.why })
            }
        }
    }

    fn create_replica(&self, node: usize) -> Result<proto::Instance, TourError> {
        self.create(
            node,
            proto::CreateRequest {
                kind: proto::Kind::Replica.into(),
                name: replica_name(node),
                volume: self.layout.volume.clone(),
                epoch: self.epoch,
                binary: self.program.into(),
                size: self.layout.size,
                ..proto::CreateRequest::default()
            },
        )
    }

    fn create_engine(&self) -> Result<proto::Instance, TourError> {
        self.create(
            0,
            proto::CreateRequest {
                kind: proto::Kind::Engine.into(),
                name: ENGINE.into(),
                volume: self.layout.volume.clone(),
                epoch: self.epoch,
                binary: self.program.into(),
                members: self.members.clone(),
                permitted: self.members.iter().map(|member| member.name.clone()).collect(),
                ..proto::CreateRequest::default()
            },
        )
    }

    /// Kills the instance manager with the engine inside and starts it again, as a supervisor does; then
    /// creates what was in it, as a coordinator does.
    pub fn kill_manager(&mut self) -> Result<(), TourError> {
        let address = self.managers[0].address().clone();
        self.managers[0].kill();
        self.managers[0] = start_manager(&self.layout, 0, &address)?;
        self.create_replica(0)?;
        self.create_engine()?;
        Ok(())
    }

    /// Kills the engine's own process and waits until its instance manager has started it again.
    pub fn kill_engine(&mut self) -> Result<(), TourError> {
        let failed = |source| TourError::Engine { source };
        let before = self.engine()?;
        let pid = i32::try_from(before.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed(io::Error::other("it has no process of its own")))?;
        rustix::process::kill_process(pid, Signal::KILL).map_err(|error| failed(error.into()))?;
        let until = Instant::now() + BACK_WITHIN;
        loop {
            let now = self.engine()?;
            if now.restarts > before.restarts && now.state() == proto::State::Running {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(failed(io::Error::new(io::ErrorKind::TimedOut, now.why)));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn engine(&self) -> Result<proto::Instance, TourError> {
        let mut orders = self.orders(0)?;
        let listed = self.runtime.block_on(orders.list(proto::ListRequest {})).map_err(Box::new)?;
        let mut instances = listed.into_inner().instances.into_iter();
        let engine = instances.find(|instance| instance.name == ENGINE);
        engine.ok_or_else(|| TourError::Engine {
            source: io::Error::new(io::ErrorKind::NotFound, "its instance manager does not know it"),
        })
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.managers.iter_mut().for_each(Process::kill);
        for node in 0..self.layout.replicas {
            if let Err(error) = end_all(&folder_of(&self.layout, node)) {
                tracing::error!(node, %error, "end what an instance manager had started");
            }
        }
    }
}
