//! The registry of the embedded cluster: serves the images in its folder beside the API, our own among them.
//!
//! The one invariant: nothing here decides what a registry answers; it only carries it.

use std::{path::PathBuf, thread};

use futures::{StreamExt, future::BoxFuture};
use http::{
    Method, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue},
};
use midflight_agent::image::{
    ImageName, Layout, pack_for_this_boot,
    registry::{self, Answer, PREFIX},
};
use midflight_api::settings::{Format, TABLE};
use midflight_apiserver::http::{Annex, Body};
use serde_json::Value;
use tokio_util::io::ReaderStream;
use tracing::{info, warn};

const JSON: &str = "application/json";
/// How much of an image is in memory for one client.
const PIECE_BYTES: usize = 256 << 10;
/// What serves volumes to clients; no setting names it.
const FRONTEND: &str = concat!("midflight.local/frontend:v", env!("CARGO_PKG_VERSION"));

/// The images in a folder, for clients.
#[derive(Debug)]
pub(crate) struct Registry {
    layout: Layout,
}

impl Registry {
    pub(crate) fn at(folder: PathBuf) -> Registry {
        Registry { layout: Layout::at(folder) }
    }
}

impl Annex for Registry {
    fn prefix(&self) -> &str {
        PREFIX
    }

    fn answer<'a>(&'a self, method: &'a Method, path: &'a str) -> BoxFuture<'a, Response<Body>> {
        let (layout, path) = (self.layout.clone(), path.to_owned());
        let reads = matches!(*method, Method::GET | Method::HEAD);
        Box::pin(async move {
            let answered = tokio::task::spawn_blocking(move || registry::answer(&layout, reads, &path)).await;
            respond(answered.expect("answering does not panic"))
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

/// Publishes this very binary as the images that the settings name by default, and as the frontend. It takes a moment and nobody waits for
/// it; a start that is cut short leaves it to the next.
pub(crate) fn publish_own_images(folder: PathBuf) {
    thread::spawn(move || {
        let named = TABLE.iter().filter(|setting| setting.format == Format::Image);
        let named = named.map(|setting| setting.default).chain([FRONTEND]);
        let images: Vec<ImageName> = named.filter_map(|name| name.parse().ok()).collect();
        let published = std::env::current_exe()
            .map_err(anyhow::Error::from)
            .and_then(|binary| Ok(pack_for_this_boot(&Layout::at(folder), &images, &binary)?));
        match published {
            Ok(published) => info!(images = published.len(), "published this binary"),
            Err(error) => warn!(error = format!("{error:#}"), "could not publish this binary as an image"),
        }
    });
}
