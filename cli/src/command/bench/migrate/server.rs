//! A database server of our own for a measurement, gone afterwards.

use std::{
    fmt,
    net::{TcpListener, TcpStream},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use tokio::process::{Child, Command};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which database is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Kind {
    Embedded,
    Etcd,
    Redis,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Embedded => "embedded",
            Kind::Etcd => "etcd",
            Kind::Redis => "Redis",
        })
    }
}

/// A running server, where the database has one. Killed when dropped.
pub(super) struct Server {
    pub(super) address: String,
    _child: Option<Child>,
}

impl Server {
    pub(super) async fn start(kind: Kind, folder: &Path) -> anyhow::Result<Server> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let place = folder.display();
        let (program, arguments, address) = match kind {
            Kind::Embedded => {
                let address = format!("embedded:{place}/bench.redb");
                return Ok(Server { address, _child: None });
            }
            Kind::Etcd => {
                let (client, peer) = (format!("http://127.0.0.1:{port}"), "http://127.0.0.1:0");
                let arguments = format!(
                    "--data-dir {place}/etcd --quota-backend-bytes 8589934592 --logger zap --log-level error \
                     --listen-client-urls {client} --advertise-client-urls {client} --listen-peer-urls {peer}"
                );
                ("etcd", arguments, format!("etcd://127.0.0.1:{port}/bench"))
            }
            Kind::Redis => {
                let arguments = format!(
                    "--port {port} --bind 127.0.0.1 --dir {place} --save  --appendonly yes --appendfsync everysec \
                     --auto-aof-rewrite-percentage 0"
                );
                ("redis-server", arguments, format!("redis://127.0.0.1:{port}/0?root=bench"))
            }
        };
        let mut child = Command::new(program)
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {program}; is it installed?"))?;
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = child.try_wait()? {
                anyhow::bail!("{program} ended at once ({status})");
            }
            anyhow::ensure!(began.elapsed() < PATIENCE, "{program} does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Server { address, _child: Some(child) })
    }
}
