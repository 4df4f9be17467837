//! Bytes to a server and bytes back, for requests that no HTTP client would send.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long a server may think about what it was sent.
const PATIENCE: Duration = Duration::from_secs(150);

/// Where to connect and what to trust.
#[derive(Clone)]
pub struct Wire {
    address: String,
    tls: TlsConnector,
}

/// An answer, taken apart no further than needed.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

impl Wire {
    pub fn new(address: &str, authorities: &[Vec<u8>]) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(CertificateDer::from(authority.clone()))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Wire { address: address.to_owned(), tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Sends the bytes on a new connection and reads until the server closes it.
    pub async fn exchange(&self, bytes: &[u8]) -> anyhow::Result<Reply> {
        self.open().await?.exchange_in_two(bytes, std::future::ready(()), &[]).await
    }

    /// A new connection, on which nothing was sent yet.
    pub async fn open(&self) -> anyhow::Result<Open> {
        let socket = TcpStream::connect(&self.address).await?;
        let host = self.address.rsplit_once(':').context("the address has a port")?.0.to_owned();
        Ok(Open(self.tls.connect(ServerName::try_from(host)?, socket).await?))
    }
}

/// A connection for one exchange.
pub struct Open(TlsStream<TcpStream>);

impl Open {
    /// Sends the bytes, the rest of them when that may be sent, and reads until the server closes it.
    pub async fn exchange_in_two(
        mut self,
        first: &[u8],
        may_end: impl Future<Output = ()>,
        rest: &[u8],
    ) -> anyhow::Result<Reply> {
        let (mut receive, mut send) = tokio::io::split(&mut self.0);
        let mut answer = Vec::new();
        let reading = async {
            // A server that has seen enough closes early, also without a farewell.
            let _ = receive.read_to_end(&mut answer).await;
        };
        let writing = async {
            let _ = send.write_all(first).await;
            let _ = send.flush().await;
            may_end.await;
            let _ = send.write_all(rest).await;
            let _ = send.flush().await;
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(reading, writing) })
            .await
            .context("no answer came")?;
        parse(&answer)
    }
}

fn parse(answer: &[u8]) -> anyhow::Result<Reply> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no head in the answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).context("no status")?;
    let body = &answer[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_vec() };
    Ok(Reply { status, body: String::from_utf8_lossy(&body).into_owned() })
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..end]);
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let start = end + 2;
        if size == 0 || rest.len() < start + size + 2 {
            break;
        }
        whole.extend_from_slice(&rest[start..start + size]);
        rest = &rest[start + size + 2..];
    }
    whole
}
