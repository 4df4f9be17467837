//! Connections to Redis: TLS, authentication, and what an error means.

use std::path::Path;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError, ServerErrorKind};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::super::reach;
use super::super::url::Server;
use super::super::{Options, StoreError};
use crate::with_causes;

/// Makes connections to one server.
pub(super) struct Dialer {
    host: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    database: i64,
    username: Option<String>,
    password: Option<SecretString>,
    timeout: std::time::Duration,
}

impl Dialer {
    pub(super) fn new(server: &Server, options: &Options) -> Result<Dialer, StoreError> {
        let host = server.hosts.first().cloned().unwrap_or_default();
        let tls = if server.tls { Some((tls(options)?, server_name(&host)?)) } else { None };
        Ok(Dialer {
            host,
            tls,
            database: server.database,
            username: options.username.clone().or_else(|| server.username.clone()),
            password: options.password.clone().or_else(|| server.password.clone()),
            timeout: options.timeout,
        })
    }

    pub(super) async fn dial(&self) -> Result<MultiplexedConnection, StoreError> {
        let doing = || format!("connect to Redis at {}", self.host);
        match tokio::time::timeout(self.timeout, self.connect()).await {
            Ok(connection) => connection,
            Err(_) => {
                let words = format!("no answer within {} s", self.timeout.as_secs());
                Err(StoreError::lost(doing(), reach::explained(&words, "redis", self.tls.is_some()).words))
            }
        }
    }

    fn unreached(&self, words: &str) -> StoreError {
        let doing = format!("connect to Redis at {}", self.host);
        let unreached = reach::explained(words, "redis", self.tls.is_some());
        if unreached.for_good {
            StoreError::refused(doing, &unreached.words)
        } else {
            StoreError::lost(doing, unreached.words)
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let doing = || format!("connect to Redis at {}", self.host);
        let lost = |error: std::io::Error| self.unreached(&with_causes(&error));
        let stream = TcpStream::connect(&self.host).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let mut info = RedisConnectionInfo::default().set_db(self.database).set_skip_set_lib_name();
        if let Some(name) = &self.username {
            info = info.set_username(name);
        }
        if let Some(word) = &self.password {
            info = info.set_password(word.expose_secret());
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.timeout));
        let refused = |error: RedisError| match failed(doing(), error) {
            StoreError::Lost { source, .. } => self.unreached(&with_causes(source.as_ref())),
            other => other,
        };
        // The driver of a connection ends with its last handle.
        match &self.tls {
            None => {
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&info, stream, config).await.map_err(refused)?;
                tokio::spawn(driver);
                Ok(connection)
            }
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(lost)?;
                let (mut connection, driver) =
                    MultiplexedConnection::new_with_config(&info, stream, config).await.map_err(refused)?;
                tokio::spawn(driver);
                // In TLS 1.3 the server looks at our certificate after we are done, and says so with its first answer.
                redis::cmd("PING").exec_async(&mut connection).await.map_err(refused)?;
                Ok(connection)
            }
        }
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, StoreError> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    ServerName::try_from(name.to_owned())
        .map_err(|error| StoreError::refused(format!("connect to {host} over TLS"), &error))
}

fn tls(options: &Options) -> Result<TlsConnector, StoreError> {
    let open = |path: &Path, source: rustls::pki_types::pem::Error| StoreError::Open {
        path: path.to_owned(),
        source: source.into(),
    };
    let certificates = |path: &Path| {
        CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| open(path, error))
    };
    let refused = |error: rustls::Error| StoreError::refused("set up TLS", &error);
    let mut roots = RootCertStore::empty();
    match &options.ca {
        Some(path) => {
            let trusted = certificates(path)?;
            if trusted.is_empty() {
                return Err(StoreError::refused(path.display().to_string(), &"it holds no certificate"));
            }
            for certificate in trusted {
                roots.add(certificate).map_err(refused)?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_root_certificates(roots);
    let config = match &options.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| open(key, error))?;
            builder.with_client_auth_cert(certificates(certificate)?, private).map_err(refused)?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Whether the server said no, or said nothing.
pub(super) fn failed(doing: impl Into<String>, error: RedisError) -> StoreError {
    let silent = match error.kind() {
        ErrorKind::Io
        | ErrorKind::Parse
        | ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::TryAgain) => true,
        _ => error.is_io_error() || error.is_timeout() || error.is_connection_dropped(),
    };
    if silent { StoreError::lost(doing, error) } else { StoreError::refused(doing, &error) }
}
