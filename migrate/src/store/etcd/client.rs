//! Calls to etcd: connection, TLS, authentication, and what an error means.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream;
use http::uri::PathAndQuery;
use prost::Message;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::{ExposeSecret, SecretString};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::super::reach;
use super::super::url::Server;
use super::super::{Options, StoreError};
use super::wire;
use crate::with_causes;

/// A reply may hold a page of large values.
const LARGEST_REPLY: usize = 1 << 30;

/// How the words of an error begin that is one of the connection, not of the server.
const UNREACHED: &str = "etcd at ";

#[derive(Debug)]
pub(super) struct Client {
    /// The addresses, for people.
    hosts: String,
    tls: bool,
    channel: Channel,
    account: Option<(String, SecretString)>,
    token: Mutex<Option<String>>,
}

impl Client {
    pub(super) fn new(server: &Server, options: &Options) -> Result<Client, StoreError> {
        let tls = if server.tls { Some(tls(options)?) } else { None };
        let mut endpoints = Vec::new();
        for host in &server.hosts {
            endpoints.push(endpoint(host, tls.as_ref(), options.timeout)?);
        }
        let channel = match endpoints.as_slice() {
            [one] => one.connect_lazy(),
            _ => Channel::balance_list(endpoints.into_iter()),
        };
        let name = options.username.clone().or_else(|| server.username.clone());
        let word = options.password.clone().or_else(|| server.password.clone());
        let account = match (name, word) {
            (Some(name), Some(word)) => Some((name, word)),
            (Some(name), None) => Some((name, SecretString::from(String::new()))),
            (None, _) => None,
        };
        let (hosts, tls) = (server.hosts.join(","), server.tls);
        Ok(Client { hosts, tls, channel, account, token: Mutex::default() })
    }

    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.call_signed(path, request).await.map_err(|status| self.in_words(status))
    }

    async fn call_signed<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.ensure_token().await?;
        match self.unary(path, request.clone()).await {
            // Tokens live for some minutes only.
            Err(status) if self.account.is_some() && status.code() == Code::Unauthenticated => {
                self.set_token(None);
                self.ensure_token().await?;
                self.unary(path, request).await
            }
            answer => answer,
        }
    }

    /// A failure of the connection names the server and what may be wrong with the address.
    fn in_words(&self, status: Status) -> Status {
        let Some(source) = std::error::Error::source(&status) else { return status };
        let words = format!("{UNREACHED}{}: {}", self.hosts, with_causes(source));
        let unreached = reach::explained(&words, "etcd", self.tls);
        let code = if unreached.for_good { Code::FailedPrecondition } else { status.code() };
        Status::new(code, unreached.words)
    }

    /// Keeps a lease alive once; gives the seconds it has left, zero if it is gone.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<i64, Status> {
        self.keep_alive_once(lease).await.map_err(|status| self.in_words(status))
    }

    async fn keep_alive_once(&self, lease: i64) -> Result<i64, Status> {
        self.ensure_token().await?;
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<wire::LeaseRequest, wire::LeaseKeepAliveResponse>::default();
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let once = stream::iter([wire::LeaseRequest { id: lease }]);
        let mut answers = grpc.streaming(self.signed(once)?, path, codec).await?.into_inner();
        let answer = answers.message().await?;
        answer
            .map(|answer| answer.ttl)
            .ok_or_else(|| Status::unavailable("the server ended the call without an answer"))
    }

    async fn unary<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(self.signed(request)?, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_REPLY);
        grpc.ready().await.map_err(|error| {
            let mut status = Status::unavailable("not connected");
            status.set_source(std::sync::Arc::new(error));
            status
        })?;
        Ok(grpc)
    }

    fn signed<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        if let Some(token) = self.token.lock().unwrap_or_else(PoisonError::into_inner).as_deref() {
            let value = MetadataValue::try_from(token).map_err(|_| Status::internal("token is no header"))?;
            request.metadata_mut().insert("token", value);
        }
        Ok(request)
    }

    fn set_token(&self, token: Option<String>) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    async fn ensure_token(&self) -> Result<(), Status> {
        let Some((name, word)) = &self.account else { return Ok(()) };
        if self.token.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let request =
            wire::AuthenticateRequest { name: name.clone(), password: word.expose_secret().to_owned() };
        let answer: wire::AuthenticateResponse =
            self.unary("/etcdserverpb.Auth/Authenticate", request).await?;
        self.set_token(Some(answer.token));
        Ok(())
    }
}

fn endpoint(host: &str, tls: Option<&ClientTlsConfig>, timeout: Duration) -> Result<Endpoint, StoreError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let failed = |error: tonic::transport::Error| StoreError::refused(format!("connect to {host}"), &error);
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(failed)?
        .connect_timeout(timeout)
        .timeout(timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(timeout)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20);
    match tls {
        Some(tls) => endpoint.tls_config(tls.clone()).map_err(failed),
        None => Ok(endpoint),
    }
}

fn tls(options: &Options) -> Result<ClientTlsConfig, StoreError> {
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|source| StoreError::Open { path: path.to_owned(), source: source.into() })
    };
    let mut tls = match &options.ca {
        Some(ca) => {
            let pem = read(ca)?;
            if CertificateDer::pem_slice_iter(&pem).flatten().next().is_none() {
                return Err(StoreError::refused(ca.display().to_string(), &"it holds no certificate"));
            }
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
        }
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &options.identity {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}

/// Whether there was no connection, rather than a server that does not serve yet.
pub(super) fn is_unreached(error: &StoreError) -> bool {
    matches!(error, StoreError::Lost { source, .. } if source.to_string().starts_with(UNREACHED))
}

/// Whether the server said no, or said nothing.
pub(super) fn failed(doing: impl Into<String>, status: &Status) -> StoreError {
    match status.code() {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss
        // The revision being read was compacted away: reading again begins at a newer one.
        | Code::OutOfRange => StoreError::lost(doing, status.message()),
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Unauthenticated => StoreError::refused(doing, &status.message()),
    }
}
