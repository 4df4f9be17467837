//! Gives back what an answer holds when its reader takes nothing for too long.
//!
//! On HTTP/2 one stream can stall while its connection lives, which the socket
//! does not tell. The invariant: an answer that was not asked for its next piece
//! for the given time holds nothing any more, and a connection with many of
//! those ends.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::http::Body;

/// Stalled answers that one connection may have. What the protocol keeps of each is a piece.
const MOST_STALLED: usize = 16;
/// What is no larger is handed to the protocol with the end of the stream: nothing is left to watch.
const SMALL: u64 = 16 * 1024;

/// The answers under way on one connection.
pub(super) struct Streams {
    patience: Duration,
    answers: Mutex<HashMap<u64, Arc<Mutex<Held>>>>,
    next: AtomicU64,
}

struct Held {
    /// Gone once the reader has stalled.
    body: Option<Body>,
    /// Since when the reader could have asked for the next piece; `None` while there is none.
    ready_since: Option<Instant>,
}

impl Streams {
    pub(super) fn new(patience: Duration) -> Arc<Streams> {
        Arc::new(Streams { patience, answers: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// The body, watched until it is dropped.
    pub(super) fn watched(self: &Arc<Self>, body: Body) -> Watched {
        let small = body.size_hint().upper().is_some_and(|size| size <= SMALL);
        let held = Arc::new(Mutex::new(Held { body: Some(body), ready_since: Some(Instant::now()) }));
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.answers).insert(id, held.clone());
        Watched { id, held, small, streams: self.clone() }
    }

    /// Empties answers that have stalled; returns when there are too many of them.
    pub(super) async fn too_many_stalled(&self) {
        let mut looks = interval(self.patience / 4);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = looks.tick().await;
            if self.empty_stalled(now) > MOST_STALLED {
                return;
            }
        }
    }

    /// How many answers are empty by now.
    fn empty_stalled(&self, now: Instant) -> usize {
        let answers: Vec<_> = lock(&self.answers).values().cloned().collect();
        let mut stalled = 0;
        for held in answers {
            let mut held = lock(&held);
            if held.ready_since.is_some_and(|since| now.saturating_duration_since(since) >= self.patience) {
                *held = Held { body: None, ready_since: None };
            }
            stalled += usize::from(held.body.is_none());
        }
        stalled
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why an answer ends in the middle.
#[derive(Debug, thiserror::Error)]
#[error("the client took nothing of the answer for too long")]
pub(super) struct Stalled;

/// An answer that is emptied when its reader stalls.
pub(super) struct Watched {
    id: u64,
    held: Arc<Mutex<Held>>,
    small: bool,
    streams: Arc<Streams>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.streams.answers).remove(&self.id);
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Stalled;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stalled>>> {
        let mut held = lock(&self.held);
        let Some(body) = &mut held.body else { return Poll::Ready(Some(Err(Stalled))) };
        let polled = Pin::new(body).poll_frame(context);
        held.ready_since = matches!(polled, Poll::Ready(Some(_))).then(Instant::now);
        polled.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
    }

    fn is_end_stream(&self) -> bool {
        // Of a large answer the end is sent apart, so that it is known when the rest has been taken.
        self.small && lock(&self.held).body.as_ref().is_some_and(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.held).body.as_ref().map(http_body::Body::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use http_body_util::{BodyExt, Empty};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper::{client, server};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    /// A connection on which `/large` is an endless answer that holds `memory`, and all else is small.
    async fn connect(memory: &Arc<()>) -> client::conn::http2::SendRequest<Empty<Bytes>> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (streams, memory) = (Streams::new(PATIENCE), memory.clone());
        tokio::spawn(async move {
            let answers = streams.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let memory = memory.clone();
                let body = match request.uri().path() {
                    "/large" => Body::pieces(std::iter::from_fn(move || {
                        let _held = &memory;
                        Some(Bytes::from_static(&[b'x'; 4096]))
                    })),
                    _ => Body::full("small"),
                };
                let answer = Response::new(answers.watched(body));
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(far), service);
            tokio::select! {
                ended = connection => drop(ended),
                () = streams.too_many_stalled() => {}
            }
        });
        let (sender, connection) = client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1024)
            .handshake(TokioIo::new(near))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    fn request(path: &str) -> Request<Empty<Bytes>> {
        Request::get(format!("http://test{path}")).body(Empty::new()).unwrap()
    }

    async fn until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            tokio::time::sleep(PATIENCE / 10).await;
        }
    }

    #[tokio::test]
    async fn a_stalled_stream_holds_nothing_and_the_others_go_on() {
        let memory = Arc::new(());
        let mut sender = connect(&memory).await;
        let unread = sender.send_request(request("/large")).await.unwrap();
        let held = Arc::strong_count(&memory);
        until("the stalled answer is emptied", || Arc::strong_count(&memory) < held).await;
        let other = sender.send_request(request("/small")).await.unwrap();
        assert_eq!(other.into_body().collect().await.unwrap().to_bytes(), "small");
        let rest = unread.into_body().collect().await;
        assert!(rest.is_err(), "whoever reads on learns that the answer is not whole");
    }

    #[tokio::test]
    async fn a_connection_with_many_stalled_streams_ends() {
        let memory = Arc::new(());
        let mut sender = connect(&memory).await;
        let mut unread = Vec::new();
        for _ in 0..=MOST_STALLED {
            unread.push(sender.send_request(request("/large")).await.unwrap());
        }
        until("the connection has ended", || sender.is_closed()).await;
        until("nothing is held", || Arc::strong_count(&memory) == 1).await;
    }
}
