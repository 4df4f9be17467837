//! Webhooks for admission and conversion over HTTPS that a test can configure and read.
//!
//! What it answers is decided by the path it is called at, so that one server
//! serves every scenario at once.

mod conversion;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A running webhook server. It stops with the runtime that started it.
pub struct Webhook {
    /// `https://127.0.0.1:PORT`; a path below it says how it answers.
    pub url: String,
    /// What goes into `clientConfig.caBundle`.
    pub ca_bundle: String,
}

impl Webhook {
    /// Starts it on a free loopback port with a certificate of its own authority.
    pub async fn start() -> anyhow::Result<Self> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &authority)?;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls))));
        Ok(Webhook { url, ca_bundle: BASE64.encode(authority.pem()) })
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) {
    while let Ok((socket, _)) = listener.accept().await {
        let tls = tls.clone();
        tokio::spawn(async move {
            if let Ok(stream) = tls.accept(socket).await {
                let service = service_fn(answer);
                let http = hyper::server::conn::http1::Builder::new();
                // A caller that hangs up is the caller's business.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            }
        });
    }
}

/// `/allow`, `/deny`, `/deny-code`, `/warn`, `/echo`, `/status-500`, `/garbage`, `/slow`; `/convert` and what
/// begins so is asked for conversions.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|whole| whole.to_bytes()).unwrap_or_default();
    let review = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let uid = &review["request"]["uid"];
    if let Some(manner) = path.strip_prefix("/convert") {
        return Ok(reply(StatusCode::OK, &conversion::answer(&review, manner).to_string()));
    }
    let verdict = match path.as_str() {
        "/allow" => json!({"uid": uid, "allowed": true}),
        "/deny" => json!({"uid": uid, "allowed": false, "status": {"message": "not on my watch"}}),
        "/deny-code" => {
            json!({"uid": uid, "allowed": false, "status": {"message": "come back later", "code": 409, "reason": "Conflict"}})
        }
        "/deny-bare" => json!({"uid": uid, "allowed": false}),
        // The object `probe` tells whether the hook is asked at all.
        "/warn" if review["request"]["name"] == "probe" => json!({"uid": uid, "allowed": false}),
        "/warn" => json!({"uid": uid, "allowed": true, "warnings": ["this will be frowned upon"]}),
        "/wrong-uid" => json!({"uid": "somebody-else", "allowed": true}),
        "/echo" => json!({"uid": uid, "allowed": false, "status": {"message": describe(&review)}}),
        "/status-500" => return Ok(reply(StatusCode::INTERNAL_SERVER_ERROR, "out of order")),
        "/garbage" => return Ok(reply(StatusCode::OK, "this is no JSON")),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            json!({"uid": uid, "allowed": true})
        }
        _ => return Ok(reply(StatusCode::NOT_FOUND, "no such behaviour")),
    };
    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": verdict});
    Ok(reply(StatusCode::OK, &answer.to_string()))
}

/// The review without what differs from run to run, so that a refusal can carry it to the test.
fn describe(review: &Value) -> String {
    let mut request = review["request"].clone();
    let mut has = serde_json::Map::new();
    if let Some(fields) = request.as_object_mut() {
        for volatile in ["uid", "userInfo", "object", "oldObject"] {
            if let Some(value) = fields.remove(volatile) {
                has.insert(volatile.to_owned(), json!(!value.is_null()));
            }
        }
    }
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "request": request, "has": has})
        .to_string()
}

fn reply(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
