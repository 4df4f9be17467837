//! One HTTPS request to a webhook, within its time.
//!
//! The one invariant: it ends, with an answer of bounded size or with the reason why there is none.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::lifecycle::text;

/// A Service has no network behind it here, so that only `clientConfig.url` leads anywhere.
const NO_SERVICES: &str = "no network leads to Services here: use clientConfig.url";

/// How long a webhook may take and how much it may say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) seconds: u64,
    pub(crate) answer_bytes: usize,
}

/// Sends the question to where `clientConfig` says and returns the answer; the error says what went wrong.
pub(crate) async fn post(config: &Value, question: &Value, bounds: Bounds) -> Result<Value, String> {
    post_from(&MACHINE, config, question, bounds).await
}

/// The same, from a machine that trusts these.
async fn post_from(
    machine: &[CertificateDer<'static>],
    config: &Value,
    question: &Value,
    bounds: Bounds,
) -> Result<Value, String> {
    let shown = |url: &str| format!("Post \"{url}?timeout={}s\"", bounds.seconds);
    if let Some(service) = config.get("service").filter(|service| service.is_object()) {
        return Err(format!("{}: {}", shown(&service_url(service)), NO_SERVICES));
    }
    let target = Target::parse(config, machine)?;
    let shown = shown(&target.url);
    let exchange =
        tokio::time::timeout(Duration::from_secs(bounds.seconds), exchange(&target, question, bounds));
    let (code, answer) = match exchange.await {
        Ok(outcome) => outcome.map_err(|reason| format!("{shown}: {reason}"))?,
        Err(_) => return Err(format!("{shown}: context deadline exceeded")),
    };
    if code != StatusCode::OK {
        return Err(
            "an error on the server (\"unknown\") has prevented the request from succeeding".to_owned()
        );
    }
    serde_json::from_slice(&answer).map_err(|error| format!("the answer is not JSON: {error}"))
}

/// Where a webhook listens and whom to trust there.
struct Target {
    url: String,
    host: String,
    port: u16,
    path: String,
    tls: TlsConnector,
}

impl Target {
    fn parse(config: &Value, machine: &[CertificateDer<'static>]) -> Result<Target, String> {
        let url = text(config, "/url");
        let uri: Uri = url.parse().map_err(|error| format!("clientConfig.url {url:?}: {error}"))?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("clientConfig.url {url:?}: the scheme must be https"));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let path = uri.path().to_owned();
        let tls = connector(roots(text(config, "/caBundle"), machine)?)?;
        Ok(Target { url: url.to_owned(), host, port: uri.port_u16().unwrap_or(443), path, tls })
    }
}

fn service_url(service: &Value) -> String {
    let (name, namespace, path) =
        (text(service, "/name"), text(service, "/namespace"), text(service, "/path"));
    let port = service["port"].as_u64().unwrap_or(443);
    format!("https://{name}.{namespace}.svc:{port}{path}")
}

/// Whether a `caBundle` can be used to trust anyone; an empty one leaves it to the machine's authorities.
pub(crate) fn trusts_someone(ca_bundle: &str) -> bool {
    ca_bundle.is_empty() || roots(ca_bundle, &[]).is_ok()
}

/// Read when the first webhook without a `caBundle` is asked.
static MACHINE: LazyLock<Vec<CertificateDer<'static>>> =
    LazyLock::new(|| rustls_native_certs::load_native_certs().certs);

fn roots(ca_bundle: &str, machine: &[CertificateDer<'static>]) -> Result<rustls::RootCertStore, String> {
    let mut roots = rustls::RootCertStore::empty();
    if ca_bundle.is_empty() {
        // A machine may keep some that nobody can read; the others count.
        roots.add_parsable_certificates(machine.iter().cloned());
        return match roots.is_empty() {
            true => Err("clientConfig.caBundle is empty, and this machine trusts no authority".into()),
            false => Ok(roots),
        };
    }
    let pem = base64::engine::general_purpose::STANDARD
        .decode(ca_bundle)
        .map_err(|error| format!("clientConfig.caBundle is not base64: {error}"))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate =
            certificate.map_err(|error| format!("clientConfig.caBundle is not PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("clientConfig.caBundle: {error}"))?;
    }
    if roots.is_empty() {
        return Err("clientConfig.caBundle must hold the certificate to trust".into());
    }
    Ok(roots)
}

fn connector(roots: rustls::RootCertStore) -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn exchange(target: &Target, question: &Value, bounds: Bounds) -> Result<(StatusCode, Bytes), String> {
    let stream =
        TcpStream::connect((target.host.as_str(), target.port)).await.map_err(|error| error.to_string())?;
    let name = ServerName::try_from(target.host.clone()).map_err(|error| error.to_string())?;
    let tls = target.tls.connect(name, stream).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(|error| error.to_string())?;
    let body = serde_json::to_vec(question).expect("a Value always serializes");
    let request = Request::post(format!("{}?timeout={}s", target.path, bounds.seconds))
        .header(HOST, format!("{}:{}", target.host, target.port))
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let answered = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let code = response.status();
        let body = Limited::new(response.into_body(), bounds.answer_bytes).collect().await;
        Ok((code, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    // The connection must be driven while the answer is awaited; whichever ends first decides.
    tokio::select! {
        answer = answered => answer,
        ended = connection => Err(ended.err().map_or("the connection ended".to_owned(), |error| error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Webhook;

    #[tokio::test]
    async fn an_empty_bundle_trusts_whom_the_machine_trusts() {
        let webhook = Webhook::start(|_| Some(json!({"heard": true}))).await;
        let pem = base64::engine::general_purpose::STANDARD.decode(&webhook.ca_bundle).unwrap();
        let its_own: Vec<_> = CertificateDer::pem_slice_iter(&pem).map(Result::unwrap).collect();
        let bounds = Bounds { seconds: 10, answer_bytes: 1000 };
        let (named, unnamed) =
            (json!({"url": webhook.url, "caBundle": webhook.ca_bundle}), json!({"url": webhook.url}));
        let asked = async |machine: &[_], config| post_from(machine, config, &json!({}), bounds).await;
        assert_eq!(asked(&its_own, &unnamed).await, Ok(json!({"heard": true})));
        assert_eq!(asked(&[], &named).await, Ok(json!({"heard": true})));
        let nobody = asked(&[], &unnamed).await.unwrap_err();
        assert!(nobody.ends_with("this machine trusts no authority"), "{nobody}");
        assert!(trusts_someone("") && !trusts_someone("bm90aGluZw=="));
    }
}
