//! Asks a container how it is, in the ways that Kubernetes knows, and runs its hooks.
//!
//! The one invariant: every question has an answer within its time; none is a failure, and ends what was run to find it.

use std::{net::IpAddr, path::Path, process::Stdio, time::Duration};

use http::{Request, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{
        Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use midflight_plan::pod::Thresholds;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::TcpStream,
    process::Command,
    time::timeout,
};

use crate::container::{COMMAND, MARK};

/// How much of an answer is shown.
const SHOWN_BYTES: usize = 1024;
const MOST_BYTES: usize = 64 << 10;

/// When and how often to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) delay: Duration,
    pub(super) period: Duration,
    pub(super) patience: Duration,
    pub(super) thresholds: Thresholds,
}

impl Pace {
    /// Kubernetes' defaults where the probe is silent.
    pub(super) fn of(probe: &Probe) -> Pace {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1)
        };
        Pace {
            delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            patience: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            thresholds: Thresholds {
                success: count(probe.success_threshold, 1),
                failure: count(probe.failure_threshold, 3),
            },
        }
    }
}

/// Whom to ask.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) address: IpAddr,
    /// The room of the container's attempt.
    pub(super) room: std::path::PathBuf,
    /// Its ports by name.
    pub(super) container: Container,
}

/// Asks once; an error says what the container answered.
pub(super) async fn ask(probe: &Probe, target: &Target) -> Result<(), String> {
    let patience = Pace::of(probe).patience;
    let asked = async {
        if let Some(exec) = &probe.exec {
            return run(exec, &target.room).await;
        }
        if let Some(get) = &probe.http_get {
            return http_get(get, target).await;
        }
        if let Some(socket) = &probe.tcp_socket {
            return tcp(socket, target).await;
        }
        match &probe.grpc {
            Some(grpc) => self::grpc(grpc, target).await,
            None => Ok(()),
        }
    };
    timeout(patience, asked).await.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")))
}

/// Runs a hook of the container's life.
pub(super) async fn hook(handler: &LifecycleHandler, target: &Target) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        return run(exec, &target.room).await;
    }
    if let Some(get) = &handler.http_get {
        return http_get(get, target).await;
    }
    if let Some(socket) = &handler.tcp_socket {
        return tcp(socket, target).await;
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default())).await;
    }
    Ok(())
}

async fn run(exec: &ExecAction, room: &Path) -> Result<(), String> {
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, "enter"]).arg(room).arg("--").args(exec.command.iter().flatten());
    // From its first moment on it is known as one of the container's, and ends with that at the latest.
    command.env(MARK, room);
    judge(command).await
}

/// Runs a program to its end, and says what it said if that was bad. Whoever does not wait so long ends it, and all that it has
/// started; what a program has left behind that ended by itself stays.
async fn judge(mut command: Command) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = command.process_group(0).kill_on_drop(true).spawn();
    let mut child = spawned.map_err(|error| format!("run it: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // Dropped before the child is, whose end nobody has asked for until then: the id of the group is its.
    let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let (out, err) = tokio::join!(beginning(out), beginning(err));
    let ended = child.wait().await;
    std::mem::forget(group);
    let status = ended.map_err(|error| format!("wait for it: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let said = shown(&[out, err].concat());
    Err(if said.is_empty() { status.to_string() } else { format!("{status}: {said}") })
}

/// The processes of a program that has not ended: they end when this is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // One that is gone already is what we want.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// As much of what a program says as is shown. The rest is read, too, or the program would wait or be killed.
async fn beginning(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        // What cannot be read is not shown.
        let _ = (&mut from).take(SHOWN_BYTES as u64).read_to_end(&mut kept).await;
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    kept
}

async fn tcp(socket: &TCPSocketAction, target: &Target) -> Result<(), String> {
    connect(socket.host.as_deref(), &socket.port, target).await.map(drop)
}

async fn http_get(get: &HTTPGetAction, target: &Target) -> Result<(), String> {
    if get.scheme.as_deref().is_some_and(|scheme| !scheme.eq_ignore_ascii_case("http")) {
        return Err("nodes of this cluster ask over HTTP only".to_owned());
    }
    let stream = connect(get.host.as_deref(), &get.port, target).await?;
    let failed = |error: hyper::Error| format!("ask over HTTP: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let serving = tokio::spawn(connection);
    let mut request = Request::get(get.path.as_deref().unwrap_or("/"))
        .header(HOST, target.address.to_string())
        .header("User-Agent", "kube-probe/1.33");
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(failed)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        Ok::<_, String>((status, body.map(|body| body.to_bytes()).unwrap_or_default()))
    };
    let answered = answered.await;
    serving.abort();
    match answered? {
        (status, _) if (200..400).contains(&status.as_u16()) => Ok(()),
        (status, body) => Err(format!("HTTP status {}: {}", status.as_u16(), shown(&body))),
    }
}

async fn connect(host: Option<&str>, port: &IntOrString, target: &Target) -> Result<TcpStream, String> {
    let port = match port {
        IntOrString::Int(port) => u16::try_from(*port).ok(),
        IntOrString::String(name) => {
            let ports = target.container.ports.iter().flatten();
            let named = ports.into_iter().find(|port| port.name.as_deref() == Some(name.as_str()));
            named.and_then(|port| u16::try_from(port.container_port).ok())
        }
    };
    let port = port.ok_or_else(|| "the container has no such port".to_owned())?;
    let address = target.address.to_string();
    let host = host.filter(|host| !host.is_empty()).unwrap_or(&address);
    TcpStream::connect((host, port)).await.map_err(|error| format!("connect to {host}:{port}: {error}"))
}

/// What gRPC's health service is asked and answers.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

async fn grpc(action: &GRPCAction, target: &Target) -> Result<(), String> {
    const SERVING: i32 = 1;
    let address = format!("http://{}:{}", target.address, action.port);
    let endpoint = tonic::transport::Endpoint::from_shared(address).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| format!("connect: {}", crate::chain(&error)))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| crate::chain(&error))?;
    let question = HealthCheckRequest { service: action.service.clone().unwrap_or_default() };
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let answer = client.unary(tonic::Request::new(question), path, codec).await;
    match answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?.into_inner().status {
        SERVING => Ok(()),
        other => Err(format!("the service is in state {other}, not serving")),
    }
}

fn shown(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(&said[..said.len().min(SHOWN_BYTES)]);
    text.trim().to_owned()
}

#[cfg(test)]
mod tests;
