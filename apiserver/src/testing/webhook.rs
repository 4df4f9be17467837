//! A webhook behind real HTTPS on loopback.

use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::tls::Certificates;

/// A webhook that stops with the runtime that started it.
pub(crate) struct Webhook {
    pub(crate) url: String,
    pub(crate) ca_bundle: String,
    _folder: tempfile::TempDir,
}

impl Webhook {
    /// Answers each question with what `answer` makes of it; never, if that is nothing.
    pub(crate) async fn start(answer: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Webhook {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::open(folder.path(), &[], std::time::SystemTime::now()).unwrap();
        let acceptor = TlsAcceptor::from(certificates.server_config().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}/hook", listener.local_addr().unwrap().port());
        let ca_bundle = base64::engine::general_purpose::STANDARD.encode(certificates.ca_pem());
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                        let answer = answer.clone();
                        async move {
                            let bytes = request.into_body().collect().await.unwrap().to_bytes();
                            let review: Value = serde_json::from_slice(&bytes).unwrap();
                            let Some(answer) = answer(&review) else {
                                return std::future::pending().await;
                            };
                            let body = Full::new(Bytes::from(answer.to_string()));
                            Ok::<_, Infallible>(http::Response::new(body))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(tls), service)
                        .await;
                });
            }
        });
        Webhook { url, ca_bundle, _folder: folder }
    }
}
