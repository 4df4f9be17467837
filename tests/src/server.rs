//! An embedded API server for one test: in this process, or as a child that can be killed.
//!
//! Both are spoken to over TLS like any other server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Request;
use midflight_apiserver::auth::Identity;
use midflight_apiserver::{ApiServer, Config, Listening};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::endpoint::Endpoint;

/// A running server in this process. Its folder goes with it.
pub struct Embedded {
    pub admin: Endpoint,
    pub viewer: Endpoint,
    folder: TempDir,
    server: ApiServer,
}

impl Embedded {
    /// Starts one on a free loopback port, in a new folder.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(|_| {}).await
    }

    /// The same, with a chance to change how it is opened.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("mf-api.")?;
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (server, listening) = open(folder.path(), any_port, change).await?;
        tokio::spawn(listening.serve());
        let admin = Endpoint::from_kubeconfig(&folder.path().join("kubeconfig")).await?;
        let viewer = Endpoint::from_kubeconfig(&folder.path().join("viewer.kubeconfig")).await?;
        Ok(Embedded { admin, viewer, folder, server })
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A client of this process, in the name of another administrator.
    pub fn client_as(&self, user: &str) -> kube::Client {
        kube::Client::new(self.server.service(Identity::admin(user)), "default")
    }

    /// Ends watches and background work.
    pub async fn stop(self) {
        self.server.shutdown().await;
    }
}

/// Opens the store in the folder, listens, and writes `kubeconfig` and `viewer.kubeconfig` there.
pub async fn open(
    folder: &Path,
    address: SocketAddr,
    change: impl FnOnce(&mut Config),
) -> anyhow::Result<(ApiServer, Listening)> {
    let mut config = Config::new(folder.join("store"));
    change(&mut config);
    let server = ApiServer::open(config).await.context("open the server")?;
    let listening = server.bind(address).await?;
    for (name, identity) in
        [("kubeconfig", Identity::admin("admin")), ("viewer.kubeconfig", Identity::viewer("viewer"))]
    {
        let path = folder.join(name);
        if !path.exists() {
            let token = server.issue_token(identity)?;
            write_kubeconfig(&path, listening.address(), server.ca_pem(), &token)?;
        }
    }
    Ok((server, listening))
}

/// Writes a kubeconfig that only its owner can read.
fn write_kubeconfig(path: &Path, address: SocketAddr, ca_pem: &str, token: &str) -> anyhow::Result<()> {
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "embedded",
        "clusters": [{"name": "embedded", "cluster": {
            "server": format!("https://{address}"), "certificate-authority-data": BASE64.encode(ca_pem)}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "user", "namespace": "default"}}],
    });
    let unfinished = path.with_extension("new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    serde_json::to_writer_pretty(&mut file, &text)?;
    fs::rename(unfinished, path)?;
    Ok(())
}

/// A server in a process of its own, always at the same address.
pub struct Killable {
    program: PathBuf,
    folder: TempDir,
    address: SocketAddr,
    history: usize,
    child: Child,
}

impl Killable {
    /// Starts `embedded_api` (its path is cargo's `CARGO_BIN_EXE_embedded_api`) and waits until it serves.
    pub async fn start(program: &str, history: usize) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("mf-api.")?;
        let address = lasting_address()?;
        let child = launch(program.as_ref(), folder.path(), address, history)?;
        let mut server = Killable { program: program.into(), folder, address, history, child };
        server.await_ready().await?;
        Ok(server)
    }

    /// Ends the process without a word, as a power cut would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again on the same store and port.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.child = launch(&self.program, self.folder.path(), self.address, self.history)?;
        self.await_ready().await
    }

    /// The most memory that the living process ever had resident.
    pub fn peak_mib(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
    }

    pub async fn endpoint(&self) -> anyhow::Result<Endpoint> {
        Endpoint::from_kubeconfig(&self.folder.path().join("kubeconfig")).await
    }

    async fn await_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(150);
        loop {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the server ended: {status}");
            }
            if let Ok(endpoint) = self.endpoint().await
                && let Ok(answer) = endpoint.call(Request::get("/readyz").body(Vec::new())?).await
                && answer.status == 200
            {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the server is not ready after 30 s");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A free address that stays free while its server is dead: its port is below those the kernel gives to
/// outgoing connections, such as those of clients that retry. Tests that run at once look at different ports.
fn lasting_address() -> anyhow::Result<SocketAddr> {
    static ASKED: AtomicU16 = AtomicU16::new(0);
    let turn = ASKED.fetch_add(1, Ordering::Relaxed) % 7;
    let ports = 20_000 + std::process::id() as u16 % 4_000 + turn..32_000;
    let free = ports.step_by(7).find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    Ok(free.context("no port is free")?.local_addr()?)
}

fn launch(program: &Path, folder: &Path, address: SocketAddr, history: usize) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.arg(folder).arg(address.to_string()).arg(history.to_string()).stdin(Stdio::null());
    command.spawn().with_context(|| format!("start {}", program.display()))
}

impl Drop for Killable {
    fn drop(&mut self) {
        // It may be dead already; that is what it is for.
        let _ = self.kill();
    }
}
