//! The registry of the embedded cluster: serves the images in its folder beside the API, our own among them.
//!
//! The one invariant: nothing here decides what a registry answers; it only carries it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture};
use http::{
    Method, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue},
};
use midflight_agent::image::{
    ImageName, Layout, Program, of_another, pack_for_this_boot,
    registry::{self, Answer, PREFIX},
};
use midflight_api::settings::{Format, TABLE};
use midflight_apiserver::http::{Annex, Body};
use serde_json::Value;
use tokio::{sync::watch, time::timeout};
use tokio_util::io::ReaderStream;
use tracing::{info, warn};

use crate::command::version;

const JSON: &str = "application/json";
/// How much of an image is in memory for one client.
const PIECE_BYTES: usize = 256 << 10;
/// What serves volumes to clients; no setting names it.
const FRONTEND: &str = concat!("midflight.local/frontend:v", env!("CARGO_PKG_VERSION"));

/// The longest that a client waits for our own images; then it is told what there is.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(20);

/// The images in a folder, for clients. Who asks for what is not there at the start of a cluster waits until our own are.
#[derive(Debug)]
pub(crate) struct Registry {
    layout: Layout,
    published: watch::Sender<bool>,
}

impl Registry {
    pub(crate) fn at(folder: PathBuf) -> Registry {
        Registry { layout: Layout::at(folder), published: watch::Sender::new(false) }
    }

    /// Publishes this very binary as the images that the settings name by default, and as the frontend. It takes a moment
    /// and the start does not wait for it; one that is cut short leaves it to the next. A name that leads to another build stays
    /// with that: nodes keep what they pulled under it, and those that pull later would run something else.
    pub(crate) fn publish_own_images(self: &Arc<Self>) {
        let registry = Arc::clone(self);
        thread::spawn(move || {
            match publish(&registry.layout) {
                Ok(images) => info!(images, "published this binary"),
                Err(error) => {
                    warn!(error = format!("{error:#}"), "could not publish this binary as an image");
                }
            }
            registry.published.send_replace(true);
        });
    }

    async fn look(&self, reads: bool, path: &str) -> Answer {
        let (layout, path) = (self.layout.clone(), path.to_owned());
        let answered = tokio::task::spawn_blocking(move || registry::answer(&layout, reads, &path)).await;
        answered.expect("answering does not panic")
    }
}

fn publish(layout: &Layout) -> anyhow::Result<usize> {
    let kept = of_another_build(layout)?;
    for image in &kept {
        warn!(%image, "stays with another build than this one");
    }
    let images: Vec<ImageName> = own_images().into_iter().filter(|image| !kept.contains(image)).collect();
    match images.is_empty() {
        true => Ok(0),
        false => Ok(pack_for_this_boot(layout, &images, own_program(&std::env::current_exe()?))?.len()),
    }
}

/// Names of our own images that lead to another build than this one.
pub(crate) fn of_another_build(layout: &Layout) -> anyhow::Result<Vec<ImageName>> {
    Ok(of_another(layout, &own_images(), own_program(&std::env::current_exe()?))?)
}

fn own_program(binary: &Path) -> Program<'_> {
    Program { binary, engine: Some(version::own_engine()) }
}

fn own_images() -> Vec<ImageName> {
    let named = TABLE.iter().filter(|setting| setting.format == Format::Image);
    let named = named.map(|setting| setting.default).chain([FRONTEND]);
    named.filter_map(|name| name.parse().ok()).collect()
}

impl Annex for Registry {
    fn prefix(&self) -> &str {
        PREFIX
    }

    fn answer<'a>(&'a self, method: &'a Method, path: &'a str) -> BoxFuture<'a, Response<Body>> {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        Box::pin(async move {
            let mut answer = self.look(reads, path).await;
            if reads && matches!(answer, Answer::Refused(_)) && !*self.published.borrow() {
                // Whether they are there by then or not: it is told what there is.
                let mut published = self.published.subscribe();
                let _ = timeout(PUBLISHED_WITHIN, published.wait_for(|published| *published)).await;
                answer = self.look(reads, path).await;
            }
            respond(answer)
        })
    }
}

fn respond(answer: Answer) -> Response<Body> {
    match answer {
        Answer::Json(value) => json(StatusCode::OK, &value),
        Answer::Refused(refusal) => {
            let status = StatusCode::from_u16(refusal.status()).expect("it is a status of HTTP");
            json(status, &refusal.to_json())
        }
        Answer::Content { media_type, digest, size_bytes, file } => {
            let pieces = ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIECE_BYTES);
            // A body that ends early is noticed by its length.
            let pieces = pieces
                .take_while(|piece| std::future::ready(piece.is_ok()))
                .filter_map(async |piece| piece.ok());
            let mut response = Response::new(Body::stream(pieces));
            let headers = response.headers_mut();
            let plain = |text: String| HeaderValue::from_str(&text).expect("it is plain text");
            headers.insert(CONTENT_TYPE, plain(media_type.to_string()));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(size_bytes));
            headers.insert(HeaderName::from_static("docker-content-digest"), plain(digest.to_string()));
            response
        }
    }
}

fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response.headers_mut().insert(
        HeaderName::from_static("docker-distribution-api-version"),
        HeaderValue::from_static("registry/2.0"),
    );
    response
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn who_asks_before_our_images_are_there_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::at(folder.path().join("registry"));
        let path = format!("{PREFIX}engine/manifests/v9");
        let mut early = registry.answer(&Method::GET, &path);
        assert!(timeout(Duration::from_millis(100), &mut early).await.is_err(), "it waits");

        let binary = folder.path().join("binary");
        std::fs::write(&binary, "of this boot").unwrap();
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        let name = ["midflight.local/engine:v9".parse().unwrap()];
        pack_for_this_boot(&registry.layout, &name, Program::any(&binary)).unwrap();
        registry.published.send_replace(true);
        assert_eq!(early.await.status(), StatusCode::OK);
        let none = registry.answer(&Method::GET, "/v2/nothing/manifests/v9").await;
        assert_eq!(none.status(), StatusCode::NOT_FOUND, "nobody waits for what never comes");
    }
}
