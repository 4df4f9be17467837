//! Nodes of a test in network namespaces of their own, with links between them that can be cut. Needs root.
//!
//! A link that is cut loses everything in silence, as a broken switch does: nobody is told that a connection has ended.
//!
//! The one invariant: dropping it takes every namespace and every link away.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A hardware address that nobody has.
const NOBODY: &str = "02:00:00:00:00:fe";
/// Several networks of one process are told apart by this.
static MADE: AtomicU8 = AtomicU8::new(0);

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The API server and the controllers.
    Control,
    Node(u8),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Control => f.write_str("control"),
            End::Node(number) => write!(f, "node-{number}"),
        }
    }
}

/// A switch with a node on each of its ports.
pub struct Network {
    name: String,
    nodes: u8,
    subnet: [u8; 3],
    folder: TempDir,
    relay: Option<JoinHandle<()>>,
}

impl Network {
    /// Connects so many nodes with each other and with the server of a kubeconfig.
    pub async fn of(nodes: u8, kubeconfig: &Path) -> anyhow::Result<Network> {
        let process = std::process::id();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let [.., high, low] = process.to_be_bytes();
        let mut network = Network {
            name: format!("mf{process:x}.{number:x}"),
            nodes,
            subnet: [10, high, low.wrapping_add(number)],
            folder: TempDir::with_prefix("mf-net.")?,
            relay: None,
        };
        network.make()?;
        network.relay_to(kubeconfig).await?;
        Ok(network)
    }

    fn make(&self) -> anyhow::Result<()> {
        let switch = &self.name;
        ip(&["link", "add", switch, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}/24", self.address(End::Control)), "dev", switch])?;
        ip(&["link", "set", switch, "up"])?;
        for number in 1..=self.nodes {
            let (space, port) = (self.space(number), format!("{switch}.{number}"));
            ip(&["netns", "add", &space])?;
            ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
            ip(&["link", "set", &port, "master", switch, "up"])?;
            let address = format!("{}/24", self.address(End::Node(number)));
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
            for device in ["lo", "eth0"] {
                ip(&["-n", &space, "link", "set", device, "up"])?;
            }
        }
        Ok(())
    }

    /// Lets nodes reach a server that listens on loopback, and writes a kubeconfig for them.
    async fn relay_to(&mut self, kubeconfig: &Path) -> anyhow::Result<()> {
        let mut config: Value = serde_json::from_slice(&std::fs::read(kubeconfig)?)?;
        let cluster = &mut config["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().and_then(|url| url.strip_prefix("https://"));
        let server: SocketAddr = server.context("a kubeconfig has a server")?.parse()?;
        let listener = TcpListener::bind((self.address(End::Control), 0)).await?;
        cluster["server"] = json!(format!("https://{}", listener.local_addr()?));
        cluster["tls-server-name"] = json!(server.ip().to_string());
        std::fs::write(self.kubeconfig(), serde_json::to_vec(&config)?)?;
        self.relay = Some(tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut to = TcpStream::connect(server).await?;
                    copy_bidirectional(&mut from, &mut to).await
                });
            }
        }));
        Ok(())
    }

    /// What nodes reach the API with.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub fn address(&self, end: End) -> IpAddr {
        let [a, b, c] = self.subnet;
        let last = match end {
            End::Control => 1,
            End::Node(number) => number + 1,
        };
        Ipv4Addr::new(a, b, c, last).into()
    }

    /// The namespace of a node.
    fn space(&self, number: u8) -> String {
        format!("{}-{number}", self.name)
    }

    /// Runs a program on a node: the command becomes that program.
    pub fn command(&self, number: u8, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(number))).arg("--").arg(program);
        command
    }

    /// Lets nothing through between two ends, in either direction.
    pub fn cut(&self, one: End, other: End) -> anyhow::Result<()> {
        for (here, far) in [(one, other), (other, one)] {
            self.neighbour(here, &["replace", &self.address(far).to_string(), "lladdr", NOBODY])?;
        }
        Ok(())
    }

    /// Lets everything through again.
    pub fn mend(&self, one: End, other: End) -> anyhow::Result<()> {
        for (here, far) in [(one, other), (other, one)] {
            self.neighbour(here, &["del", &self.address(far).to_string()])?;
        }
        Ok(())
    }

    /// Changes what an end takes for the hardware address of another.
    fn neighbour(&self, here: End, words: &[&str]) -> anyhow::Result<()> {
        let space = match here {
            End::Control => None,
            End::Node(number) => Some(self.space(number)),
        };
        let within: Vec<&str> = space.iter().flat_map(|space| ["-n", space]).collect();
        let device = if space.is_none() { self.name.as_str() } else { "eth0" };
        ip(&[&within[..], &["neigh"], words, &["dev", device]].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(relay) = &self.relay {
            relay.abort();
        }
        // What was never made, because making the network failed, cannot be taken away.
        for number in 1..=self.nodes {
            let _ = ip(&["netns", "del", &self.space(number)]);
        }
        let _ = ip(&["link", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("run ip")?;
    ensure!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
