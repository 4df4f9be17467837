//! Asks registries for content: the cluster's own with the node's token, others as anybody.
//!
//! The one invariant: the node's token goes to the cluster's own registry and to nobody else.

use std::fmt;

use http::{
    HeaderMap, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE},
};
use http_body_util::{BodyExt, Limited};
use kube::{Client, Config, client::Body};
use serde::Deserialize;

use super::ImageName;

/// Manifests and tokens are small.
const MOST_BYTES: usize = 4 << 20;
/// How often a registry may send us elsewhere.
const MOST_REDIRECTS: usize = 5;
/// The kinds of manifest that can be read.
pub(super) const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// Why a registry did not answer with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("reach the registry {host}")]
    Reach { host: String, source: Box<kube::Error> },
    #[error("the registry {host} has no {what}")]
    NotFound { host: String, what: String },
    #[error("the registry {host} answered {status} for {what}")]
    Refused { host: String, what: String, status: StatusCode },
    #[error("the registry {host} does not let us in: {why}")]
    Access { host: String, why: String },
    #[error("read the answer of the registry {host}")]
    Broken { host: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// The registry of one image, and what opens it.
pub(super) struct Remote {
    host: String,
    repository: String,
    client: Client,
    token: Option<String>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)
    }
}

impl Remote {
    pub(super) fn of(image: &ImageName, cluster: &Client) -> Result<Remote, RemoteError> {
        let host = image.host().to_owned();
        let client = if image.is_local() { cluster.clone() } else { client_of(&host, &base(&host))? };
        Ok(Remote { host, repository: image.repository().to_owned(), client, token: None })
    }

    /// A manifest by tag or digest, as its bytes.
    pub(super) async fn manifest(&mut self, reference: &str) -> Result<Vec<u8>, RemoteError> {
        let what = format!("{}:{reference}", self.repository);
        let path = format!("/v2/{}/manifests/{reference}", self.repository);
        let answer = self.get(&path, &what).await?;
        self.collect(answer).await
    }

    /// Content by digest, whole.
    pub(super) async fn small(&mut self, digest: &str) -> Result<Vec<u8>, RemoteError> {
        let answer = self.blob(digest).await?;
        self.collect(answer).await
    }

    /// Content by digest, to be read bit by bit.
    pub(super) async fn blob(&mut self, digest: &str) -> Result<Response<Body>, RemoteError> {
        self.get(&format!("/v2/{}/blobs/{digest}", self.repository), digest).await
    }

    async fn collect(&self, answer: Response<Body>) -> Result<Vec<u8>, RemoteError> {
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|source| RemoteError::Broken { host: self.host.clone(), source })?;
        Ok(body.to_bytes().to_vec())
    }

    async fn get(&mut self, path: &str, what: &str) -> Result<Response<Body>, RemoteError> {
        let mut answer = self.ask(path).await?;
        if answer.status() == StatusCode::UNAUTHORIZED && self.token.is_none() && self.host != super::LOCAL {
            self.token = Some(self.fetch_token(answer.headers()).await?);
            answer = self.ask(path).await?;
        }
        for _ in 0..MOST_REDIRECTS {
            let Some(elsewhere) = redirect(&answer) else { break };
            answer = follow(&self.host, &elsewhere).await?;
        }
        let (host, what) = (self.host.clone(), what.to_owned());
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::NOT_FOUND => Err(RemoteError::NotFound { host, what }),
            status => Err(RemoteError::Refused { host, what, status }),
        }
    }

    async fn ask(&self, path: &str) -> Result<Response<Body>, RemoteError> {
        let mut headers = vec![(ACCEPT, HeaderValue::from_static(MANIFESTS))];
        if let Some(token) = self.token.as_ref().and_then(|token| format!("Bearer {token}").parse().ok()) {
            headers.push((AUTHORIZATION, token));
        }
        send(&self.client, &self.host, path, headers).await
    }

    /// What everybody gets who asks for it, as the registry's refusal says.
    async fn fetch_token(&self, refusal: &HeaderMap) -> Result<String, RemoteError> {
        let access = |why: &str| RemoteError::Access { host: self.host.clone(), why: why.to_owned() };
        let header = refusal.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let challenge = header.and_then(Challenge::parse).ok_or_else(|| access("it asks for a password"))?;
        let uri = challenge.uri(&self.repository).ok_or_else(|| access("it names no place for tokens"))?;
        let client =
            client_of(&self.host, &origin(&uri).ok_or_else(|| access("it names no host for tokens"))?)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let answer = send(&client, &self.host, path, Vec::new()).await?;
        if answer.status() != StatusCode::OK {
            return Err(access("it gives no token to anybody"));
        }
        let body = self.collect(answer).await?;
        let token: Token = serde_json::from_slice(&body).map_err(|_| access("its token cannot be read"))?;
        token.token.or(token.access_token).ok_or_else(|| access("its token is empty"))
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Where a registry gives tokens.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    realm: String,
    service: Option<String>,
}

impl Challenge {
    fn parse(header: &str) -> Option<Challenge> {
        let fields = header.strip_prefix("Bearer ")?;
        let field = |name: &str| {
            let start = fields.find(&format!("{name}=\""))? + name.len() + 2;
            let rest = &fields[start..];
            Some(rest[..rest.find('"')?].to_owned())
        };
        Some(Challenge { realm: field("realm")?, service: field("service") })
    }

    fn uri(&self, repository: &str) -> Option<Uri> {
        let service = self.service.as_ref().map(|service| format!("service={service}&")).unwrap_or_default();
        format!("{}?{service}scope=repository:{repository}:pull", self.realm).parse().ok()
    }
}

fn redirect(answer: &Response<Body>) -> Option<Uri> {
    let moved = answer.status().is_redirection();
    answer.headers().get(LOCATION).filter(|_| moved)?.to_str().ok()?.parse().ok()
}

async fn follow(host: &str, to: &Uri) -> Result<Response<Body>, RemoteError> {
    let nowhere = || RemoteError::Access { host: host.to_owned(), why: format!("it sends us to {to}") };
    let client = client_of(host, &origin(to).ok_or_else(nowhere)?)?;
    send(&client, host, to.path_and_query().map_or("/", |path| path.as_str()), Vec::new()).await
}

async fn send(
    client: &Client,
    host: &str,
    path: &str,
    headers: Vec<(HeaderName, HeaderValue)>,
) -> Result<Response<Body>, RemoteError> {
    let mut request = Request::get(path)
        .body(Body::empty())
        .map_err(|source| RemoteError::Broken { host: host.to_owned(), source: Box::new(source) })?;
    request.headers_mut().extend(headers.into_iter().map(|(name, value)| (Some(name), value)));
    let sent = client.send(request).await;
    sent.map_err(|source| RemoteError::Reach { host: host.to_owned(), source: Box::new(source) })
}

/// Registries of this machine are asked in the clear, all others are not.
fn base(host: &str) -> String {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let here = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let real = if host == "docker.io" { "registry-1.docker.io" } else { host };
    if here { format!("http://{host}") } else { format!("https://{real}") }
}

fn origin(uri: &Uri) -> Option<String> {
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

fn client_of(host: &str, base: &str) -> Result<Client, RemoteError> {
    let unreachable =
        |source: kube::Error| RemoteError::Reach { host: host.to_owned(), source: Box::new(source) };
    let access = |why: String| RemoteError::Access { host: host.to_owned(), why };
    let uri: Uri = base.parse().map_err(|_| access(format!("{base} is no address")))?;
    Client::try_from(Config::new(uri)).map_err(unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_asked_over_tls_unless_they_are_here() {
        for (host, expected) in [
            ("quay.io", "https://quay.io"),
            ("docker.io", "https://registry-1.docker.io"),
            ("localhost:5000", "http://localhost:5000"),
            ("127.0.0.1:5000", "http://127.0.0.1:5000"),
            ("192.0.2.1:5000", "https://192.0.2.1:5000"),
        ] {
            assert_eq!(base(host), expected);
        }
    }

    #[test]
    fn a_refusal_says_where_tokens_are() {
        let header = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="x""#;
        let challenge = Challenge::parse(header).unwrap();
        assert_eq!(
            challenge.uri("team/app").unwrap().to_string(),
            "https://auth.example/token?service=registry.example&scope=repository:team/app:pull"
        );
        assert_eq!(Challenge::parse("Basic realm=\"x\""), None);
    }
}
