//! Servers that answer well, badly, or not at all.

use std::convert::Infallible;

use http::{HeaderMap, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioExecutor;
use prost::Message;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

fn target(port: u16) -> Target {
    let container = json!({ "name": "c", "ports": [{ "name": "web", "containerPort": port }] });
    Target {
        address: "127.0.0.1".parse().unwrap(),
        room: "/nowhere".into(),
        container: serde_json::from_value(container).unwrap(),
    }
}

/// Answers every connection with these bytes.
async fn server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

async fn asked(probe: Value, port: u16) -> Result<(), String> {
    ask(&serde_json::from_value(probe).unwrap(), &target(port)).await
}

#[tokio::test]
async fn http_and_tcp_answers_are_judged() {
    let well = server("HTTP/1.1 204 No Content\r\n\r\n").await;
    let sick = server("HTTP/1.1 503 Busy\r\ncontent-length: 8\r\n\r\ntoo busy").await;
    let get = |port: Value| json!({ "httpGet": { "path": "/healthz", "port": port } });
    assert_eq!(asked(get(json!(well)), 0).await, Ok(()));
    assert_eq!(asked(get(json!("web")), well).await, Ok(()));
    assert_eq!(asked(get(json!(sick)), 0).await, Err("HTTP status 503: too busy".into()));
    assert!(asked(get(json!("other")), well).await.unwrap_err().contains("no such port"));
    assert_eq!(asked(json!({ "tcpSocket": { "port": well } }), 0).await, Ok(()));
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert!(asked(json!({ "tcpSocket": { "port": free } }), 0).await.unwrap_err().starts_with("connect to"));
}

#[tokio::test]
async fn silence_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let probe = json!({ "httpGet": { "port": port }, "timeoutSeconds": 1 });
    assert_eq!(asked(probe, 0).await, Err("no answer within 1s".into()));
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

/// How many processes have this argument.
fn with_argument(argument: &str) -> usize {
    let lines = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())).count()
}

#[tokio::test]
async fn who_is_not_waited_for_ends_with_all_that_it_has_started() {
    let seconds = format!("86400.{}", std::process::id());
    let script = format!("sleep {seconds} | cat");
    let mut run = Box::pin(judge(shell(&script)));
    let begun = async {
        while with_argument(&seconds) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = &mut run => panic!("{ended:?}"),
        () = begun => {}
    }
    drop(run);
    let gone = async {
        while with_argument(&seconds) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), gone).await.expect("nothing is left of it");
}

#[tokio::test]
async fn only_the_beginning_of_what_a_program_says_is_kept_and_all_of_it_is_read() {
    assert_eq!(judge(shell("exit 0")).await, Ok(()));
    assert_eq!(judge(shell("echo no such luck; exit 7")).await, Err("exit status: 7: no such luck".into()));
    assert_eq!(judge(shell("exec /no/such/program 2>&-")).await, Err("exit status: 127".into()));
    let said = judge(shell("head -c 10000000 /dev/zero | tr '\\0' x && exit 3")).await.unwrap_err();
    assert_eq!(said, format!("exit status: 3: {}", "x".repeat(SHOWN_BYTES)));
}

/// What a gRPC server says of its services: `web` serves, `sick` does not, others it does not know.
async fn health(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // Messages come after one byte of flags and four of length.
    let asked = HealthCheckRequest::decode(&body[5..]).unwrap();
    let status = match asked.service.as_str() {
        "" | "web" if path == "/grpc.health.v1.Health/Check" => Some(1),
        "sick" => Some(2),
        _ => None,
    };
    let message = status.map(|status| HealthCheckResponse { status }.encode_to_vec()).unwrap_or_default();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let answer = Response::builder().header("content-type", "application/grpc");
    Ok(match status {
        Some(_) => answer.body(Full::new(Bytes::from(framed))).unwrap(),
        None => answer.header("grpc-status", "5").body(Full::default()).unwrap(),
    })
}

async fn grpc_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let answer = service_fn(async |request| {
                    let ended = async {
                        Some(Ok(HeaderMap::from_iter([(
                            "grpc-status".parse().unwrap(),
                            "0".parse().unwrap(),
                        )])))
                    };
                    health(request).await.map(|answer| answer.map(|body| body.with_trailers(ended)))
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn what_a_grpc_server_says_of_a_service_is_judged() {
    let port = grpc_server().await;
    let probe = |service: &str| json!({ "grpc": { "port": port, "service": service } });
    assert_eq!(asked(json!({ "grpc": { "port": port } }), 0).await, Ok(()));
    assert_eq!(asked(probe("web"), 0).await, Ok(()));
    assert_eq!(asked(probe("sick"), 0).await, Err("the service is in state 2, not serving".into()));
    assert!(asked(probe("other"), 0).await.unwrap_err().starts_with("NotFound"));
    let http_only = server("HTTP/1.1 204 No Content\r\n\r\n").await;
    asked(json!({ "grpc": { "port": http_only } }), 0).await.unwrap_err();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert!(asked(json!({ "grpc": { "port": free } }), 0).await.unwrap_err().starts_with("connect: "));
}

#[test]
fn a_silent_probe_has_the_defaults_of_kubernetes() {
    let seconds = Duration::from_secs;
    let pace = Pace::of(&Probe::default());
    assert_eq!((pace.delay, pace.period, pace.patience), (seconds(0), seconds(10), seconds(1)));
    assert_eq!(pace.thresholds, Thresholds { success: 1, failure: 3 });
}
