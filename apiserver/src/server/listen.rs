//! Accepts connections over TLS and answers what comes over them, HTTP/1.1 or 2.
//!
//! The invariant: a client that is slow to shake hands, to send or to read
//! loses its connection; it never holds anything for ever.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::stall::StallGuard;
use super::streams::Streams;
use super::{SHUTDOWN_TIME, Shared};
use crate::http::{answer, text};
use crate::tls::TlsError;

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("set up TLS")]
    Tls(#[from] TlsError),
}

/// A server with an address, not yet answering.
pub struct Listening {
    shared: Arc<Shared>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    address: SocketAddr,
}

impl Listening {
    pub(super) async fn bind(shared: Arc<Shared>, wanted: SocketAddr) -> Result<Listening, BindError> {
        let failed = |source| BindError::Listen { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let acceptor = TlsAcceptor::from(shared.certificates.server_config()?);
        Ok(Listening { shared, listener, acceptor, address })
    }

    /// The address in use, with the port the kernel chose if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the server is shut down.
    pub async fn serve(self) {
        let Listening { shared, listener, acceptor, .. } = self;
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(shared.limits.connections));
        let builder = Arc::new(builder(&shared));
        loop {
            let accepted = tokio::select! {
                () = shared.stopping.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: wait for some to be given back.
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::warn!(limit = shared.limits.connections, "refused a connection: too many are open");
                continue;
            };
            let connection =
                Connection { shared: shared.clone(), acceptor: acceptor.clone(), builder: builder.clone() };
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                connection.run(stream, watcher).await;
                drop(place);
            });
        }
        drop(listener);
        if tokio::time::timeout(SHUTDOWN_TIME, graceful.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }
}

fn builder(shared: &Shared) -> Builder<TokioExecutor> {
    let limits = &shared.limits;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read_time)
        .max_buf_size(limits.header_bytes.max(16 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits.header_bytes as u32)
        .max_concurrent_streams(250)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    builder
}

/// HTTP/1.1 wants every request to say whom it is for; HTTP/2 has another way to.
fn lacks_host(request: &hyper::Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST)
}

struct Connection {
    shared: Arc<Shared>,
    acceptor: TlsAcceptor,
    builder: Arc<Builder<TokioExecutor>>,
}

impl Connection {
    async fn run(self, stream: TcpStream, watcher: hyper_util::server::graceful::Watcher) {
        // Answers are small and awaited; without this each could wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let guarded = StallGuard::new(stream, self.shared.limits.write_stall);
        let tls = match tokio::time::timeout(HANDSHAKE_TIME, self.acceptor.accept(guarded)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        };
        let shared = self.shared;
        let streams = Streams::new(shared.limits.write_stall);
        let answers = streams.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (shared, answers) = (shared.clone(), answers.clone());
            async move {
                if lacks_host(&request) {
                    let message = "400 Bad Request: missing required Host header";
                    let refusal = text(StatusCode::BAD_REQUEST, message);
                    return Ok::<_, Infallible>(refusal.map(|body| answers.watched(body)));
                }
                Ok(answer(&shared, None, request).await.map(|body| answers.watched(body)))
            }
        });
        let connection = self.builder.serve_connection(TokioIo::new(tls), service).into_owned();
        tokio::select! {
            ended = watcher.watch(connection) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
            }
            () = streams.too_many_stalled() => {
                tracing::debug!("ended a connection: its client takes nothing of many answers");
            }
        }
    }
}
