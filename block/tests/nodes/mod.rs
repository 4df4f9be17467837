//! Instance managers of several nodes on one machine, with a frontend and a client
//! that judges.
//!
//! Invariant: when a `Nodes` is dropped no process of it is left.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says why and fails")]

#[path = "../load/mod.rs"]
mod load;

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

pub(crate) use load::Load;
use midflight_block::{
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
    tour::{Layout, process::Process, replicas_equal},
};
use tokio::runtime::Runtime;

pub(crate) const SIZE: u64 = 8 << 20;
const WITHIN: Duration = Duration::from_secs(150);

/// The volume of this test. No two tests have the same: an address that one has left may
/// be another's next, and then whoever still looks there is told that this is another volume.
pub(crate) fn volume() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    thread_local!(static OWN: String = format!("vol-{}", LAST.fetch_add(1, Ordering::Relaxed)));
    OWN.with(Clone::clone)
}

pub(crate) fn mfblock() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_mfblock"))
}

pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) folder: PathBuf,
}

pub(crate) struct Nodes {
    pub(crate) runtime: Runtime,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) secret: Secret,
    pub(crate) nodes: Vec<Node>,
    frontends: Vec<Process>,
    pub(crate) record: FileRecord,
    members: Members,
}

/// Where the replicas of a volume are, in the words of a request.
pub(crate) type Members = Vec<proto::Member>;

impl Nodes {
    /// Starts the instance managers; the binary of this build is there for v1 as `old`.
    pub(crate) fn start(count: u8) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("records")).unwrap();
        std::fs::create_dir_all(root.join("binaries")).unwrap();
        std::fs::copy(mfblock(), root.join("binaries/old")).unwrap();
        std::fs::write(root.join("secret"), "a secret of the cluster".replace(' ', "-")).unwrap();
        std::fs::set_permissions(root.join("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let secret = Secret::load(&root.join("secret")).unwrap();
        let record = FileRecord::at(&root.join(format!("records/{}.record", volume())));
        let runtime = Runtime::new().unwrap();
        let mut nodes = Nodes {
            runtime,
            secret,
            nodes: Vec::new(),
            frontends: Vec::new(),
            record,
            folder,
            members: Vec::new(),
        };
        for number in 0..count {
            let folder = nodes.root().join(format!("node-{number}"));
            let process = nodes.start_manager(&folder, &format!("127.0.0.{}:0", number + 2));
            nodes.nodes.push(Node { process, folder });
        }
        nodes
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    fn frontend(&self) -> String {
        format!("unix:{}", self.root().join("frontend.sock").display())
    }

    fn start_manager(&self, folder: &Path, listen: &str) -> Process {
        let path = |name: &str| self.root().join(name).display().to_string();
        let arguments = [
            format!("--folder={}", folder.display()),
            format!("--listen={listen}"),
            format!("--secret={}", path("secret")),
            format!("--records={}", path("records")),
            format!("--binaries={}", path("binaries")),
            format!("--frontend={}", self.frontend()),
        ];
        Process::start(&mfblock(), "instance-manager", arguments, &self.root().join("log")).unwrap()
    }

    /// Starts an instance manager anew where it was.
    pub(crate) fn restart(&mut self, node: usize) {
        self.nodes[node].process.kill();
        let (folder, listen) =
            (self.nodes[node].folder.clone(), self.nodes[node].process.address().to_string());
        self.nodes[node].process = self.start_manager(&folder, &listen);
    }

    pub(crate) fn orders(&self, node: usize) -> Orders {
        let Address::Tcp(at) = self.nodes[node].process.address() else { panic!("gRPC is over TCP") };
        let _inside = self.runtime.enter();
        orders(*at, &self.secret).unwrap()
    }

    /// The epoch of the next engine.
    pub(crate) fn next_term(&mut self) -> u64 {
        Epoch::of_term(self.record.take_term().unwrap().term).bits()
    }

    /// Makes the record and starts a replica on every node.
    pub(crate) fn create_replicas(&mut self, binary: &str) -> Members {
        let count = self.nodes.len();
        self.record.create(&Record::new((0..count).map(|number| format!("r-{number}")))).unwrap();
        let epoch = self.next_term();
        self.members = (0..count).map(|number| self.create_replica(number, binary, epoch)).collect();
        self.members()
    }

    pub(crate) fn members(&self) -> Members {
        self.members.clone()
    }

    pub(crate) fn create_replica(&self, node: usize, binary: &str, epoch: u64) -> proto::Member {
        let made = self.try_create_replica(node, binary, epoch).unwrap();
        assert_eq!(made.state(), proto::State::Running, "{made:?}");
        proto::Member { name: made.name, address: made.address }
    }

    pub(crate) fn try_create_replica(
        &self,
        node: usize,
        binary: &str,
        epoch: u64,
    ) -> Result<proto::Instance, tonic::Status> {
        let mut orders = self.orders(node);
        let request = replica(node, binary, epoch);
        self.runtime.block_on(orders.create(request)).map(tonic::Response::into_inner)
    }

    pub(crate) fn create_engine(
        &self,
        node: usize,
        binary: &str,
        epoch: u64,
        members: &Members,
    ) -> proto::Instance {
        let made = self.try_create_engine(node, binary, epoch, members).unwrap();
        assert_eq!(made.state(), proto::State::Running, "{made:?}");
        made
    }

    pub(crate) fn try_create_engine(
        &self,
        node: usize,
        binary: &str,
        epoch: u64,
        members: &Members,
    ) -> Result<proto::Instance, tonic::Status> {
        let mut orders = self.orders(node);
        let request = engine(node, binary, epoch, members);
        self.runtime.block_on(orders.create(request)).map(tonic::Response::into_inner)
    }

    /// Offers the volume on the NBD socket of the frontend, which is started the first time.
    pub(crate) fn attach(&mut self, engine: &proto::Instance) -> PathBuf {
        if self.frontends.is_empty() {
            self.start_frontend();
        }
        let socket = self.root().join("nbd.sock");
        let (volume, engine) = (volume(), engine.address.clone());
        let command = Command::Attach { volume, size: SIZE, socket: socket.clone(), engine };
        FrontendControl::connect(self.frontends[0].address()).unwrap().call(&command).unwrap();
        socket
    }

    pub(crate) fn start_frontend(&mut self) {
        let keeper = self.root().join("keeper.sock").display().to_string();
        let log = self.root().join("log");
        let keeping = Process::start(&mfblock(), "keeper", ["--listen", &keeper], &log).unwrap();
        let arguments = ["--control", &self.frontend(), "--keeper", &keeper];
        let frontend = Process::start(&mfblock(), "frontend", arguments, &log).unwrap();
        self.frontends.extend([frontend, keeping]);
    }

    /// Takes the volume from its frontend.
    pub(crate) fn detach(&self) {
        let mut control = FrontendControl::connect(self.frontends[0].address()).unwrap();
        control.call(&Command::Detach { volume: volume() }).unwrap();
    }

    /// Asks this node's frontend to go over to an engine.
    pub(crate) fn switch(
        &self,
        engine: &proto::Instance,
    ) -> Result<proto::SwitchOverResponse, tonic::Status> {
        self.switch_at(0, engine)
    }

    pub(crate) fn switch_at(
        &self,
        node: usize,
        engine: &proto::Instance,
    ) -> Result<proto::SwitchOverResponse, tonic::Status> {
        let mut orders = self.orders(node);
        let request = proto::SwitchOverRequest {
            volume: volume(),
            epoch: engine.epoch,
            engine: engine.address.clone(),
            drain_within_ms: 100,
            within_ms: 5000,
        };
        let switched = self.runtime.block_on(orders.switch_over(request));
        if let Err(why) = &switched {
            println!("not switched: {why}\n{}", self.last_words());
        }
        switched.map(tonic::Response::into_inner)
    }

    pub(crate) fn list(&self, node: usize) -> Vec<proto::Instance> {
        let mut orders = self.orders(node);
        self.runtime.block_on(orders.list(proto::ListRequest {})).unwrap().into_inner().instances
    }

    pub(crate) fn find(&self, node: usize, name: &str) -> proto::Instance {
        let mut all = self.list(node).into_iter();
        all.find(|instance| instance.name == name).unwrap_or_else(|| panic!("no {name} on node {node}"))
    }

    /// Gives a command again while the answer is that it cannot be done just now.
    pub(crate) fn patiently<T>(
        &self,
        mut give: impl FnMut(&Nodes) -> Result<T, tonic::Status>,
    ) -> Result<T, tonic::Status> {
        let began = Instant::now();
        loop {
            match give(self) {
                Err(status) if status.code() == tonic::Code::Unavailable && began.elapsed() < WITHIN => {
                    thread::sleep(Duration::from_millis(5));
                }
                answer => return answer,
            }
        }
    }

    pub(crate) fn wait_until(&mut self, what: &str, is: impl Fn(&mut Nodes) -> bool) {
        let began = Instant::now();
        while !is(self) {
            assert!(began.elapsed() < WITHIN, "never: {what}\n{}", self.last_words());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn wait_until_whole(&mut self) {
        let count = self.nodes.len();
        self.wait_until("every copy is in service", |nodes| {
            nodes.record.read().is_ok_and(|(_, record)| record.in_service() == count)
        });
    }

    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.root().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Ends everything and compares the copies.
    pub(crate) fn copies_are_equal(mut self) -> bool {
        self.end();
        let copies = self.root().join("copies");
        std::fs::create_dir_all(&copies).unwrap();
        for (number, node) in self.nodes.iter().enumerate() {
            let copy = node.folder.join(format!("replicas/r-{number}"));
            std::os::unix::fs::symlink(copy, copies.join(format!("replica-{number}"))).unwrap();
        }
        let replicas = self.nodes.len();
        let layout = Layout { binary: mfblock(), folder: copies, volume: volume(), size: SIZE, replicas };
        replicas_equal(&layout).unwrap()
    }

    fn end(&mut self) {
        self.frontends.iter_mut().for_each(Process::kill);
        for node in &mut self.nodes {
            node.process.kill();
            end_all(&node.folder).expect("what was started can be ended");
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn replica(node: usize, binary: &str, epoch: u64) -> proto::CreateRequest {
    proto::CreateRequest {
        kind: proto::Kind::Replica.into(),
        name: format!("r-{node}"),
        volume: volume(),
        epoch,
        binary: binary.into(),
        size: SIZE,
        ..Default::default()
    }
}

/// Every replica is rebuilt when it returns.
pub(crate) fn engine(node: usize, binary: &str, epoch: u64, members: &Members) -> proto::CreateRequest {
    proto::CreateRequest {
        kind: proto::Kind::Engine.into(),
        name: format!("e-{node}"),
        volume: volume(),
        epoch,
        binary: binary.into(),
        members: members.clone(),
        permitted: members.iter().map(|member| member.name.clone()).collect(),
        remote: true,
        ..Default::default()
    }
}

pub(crate) fn target(name: &str, epoch: u64) -> proto::EngineRequest {
    proto::EngineRequest { name: name.into(), volume: volume(), epoch }
}

/// Keeps the volume busy.
pub(crate) fn load(socket: PathBuf) -> Load {
    Load::on(socket, volume(), 11)
}

/// Lets the load run for a while, so that requests are under way when the next thing happens.
pub(crate) fn soon() {
    thread::sleep(Duration::from_millis(100));
}
