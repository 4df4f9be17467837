//! Watches: events as lines of JSON, for as long as the client asked.
//!
//! ```text
//! initial objects ──▶ (end-of-initial bookmark) ──▶ events ⇄ bookmarks ──▶ end
//! ```
//!
//! A stream holds a position in the store's history and one piece to send, so
//! a slow reader costs nothing until its position has left the history; then it
//! gets an ERROR event with code 410 and lists anew.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode};
use tokio::time::{Instant, sleep_until};

use super::body::Body;
use super::call::Call;
use super::event::{Shown, Writer};
use super::filter::Filter;
use super::list::{BATCH, too_large};
use super::negotiate::Encoding;
use super::query::{ListOptions, Start};
use super::respond;
use crate::error::{ApiError, Reason};
use crate::select::FieldSelector;
use crate::served::{Here, Served};
use crate::store::{Entry, Event, Snapshot, Stored, TooOld, Version, Watch};

/// How often a client learns how far the watch has come, though nothing happens.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A last bookmark comes this long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
const DEFAULT_LIFE: Duration = Duration::from_secs(40 * 60);
/// Whoever asks for more gets this.
const LONGEST_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
const PIECE: usize = 64 * 1024;

pub(crate) fn watch(call: Call, options: &ListOptions) -> Result<Response<Body>, ApiError> {
    if call.accept.encoding != Encoding::Json {
        return Err(ApiError::new(
            Reason::NotAcceptable,
            "only the following media types are accepted: application/json",
        ));
    }
    let filter = Filter::parse(&call.served, call.namespace.as_deref(), options)?;
    let began = Instant::now();
    let ends = began + options.timeout.unwrap_or(DEFAULT_LIFE).min(LONGEST_LIFE);
    let start = begin(&call, options)?;
    let last_bookmark =
        (options.bookmarks && ends - began > BOOKMARK_BEFORE_END).then(|| ends - BOOKMARK_BEFORE_END);
    let stream = Stream {
        writer: Writer::new(&call),
        end_of_initial: start.end_of_initial,
        initial: start.initial.map(|snapshot| (snapshot, None)),
        position: start.position,
        pending: None,
        filter,
        ends,
        bookmark_at: options.bookmarks.then(|| began + BOOKMARK_EVERY),
        last_bookmark,
        ended: false,
        call,
    };
    let pieces = futures::stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((piece, stream))
    });
    let json = HeaderValue::from_static("application/json");
    Ok(respond::with_body(StatusCode::OK, json, Body::stream(pieces)))
}

/// The selector of a watch on one name. One that was given stays, because the watch may have been allowed for
/// its sake; as on the real server it must ask for the same name.
pub(crate) fn selector_of(name: &str, options: &ListOptions, served: &Served) -> Result<String, ApiError> {
    let given = FieldSelector::parse(&options.field_selector, served.kind(), served.version())?;
    match given.required("metadata.name") {
        None if given.is_empty() => Ok(FieldSelector::name(name).to_string()),
        Some(required) if required == name => Ok(options.field_selector.clone()),
        Some(_) | None => {
            let message = "fieldSelector metadata.name doesn't match requested name";
            Err(ApiError::new(Reason::BadRequest, message))
        }
    }
}

/// Where a watch starts.
struct Beginning {
    initial: Option<Snapshot>,
    end_of_initial: bool,
    position: Position,
}

enum Position {
    At(Box<Watch>),
    /// The version asked for has left the history.
    Lost(TooOld),
}

fn begin(call: &Call, options: &ListOptions) -> Result<Beginning, ApiError> {
    let (store, resource) = (&call.server.store, call.served.stored_under());
    let from = |version: Version| match store.watch(resource, version) {
        Ok(watch) => Position::At(Box::new(watch)),
        Err(too_old) => Position::Lost(too_old),
    };
    let with_state = || {
        let snapshot = store.snapshot(resource);
        let position = from(snapshot.version());
        Beginning {
            initial: Some(snapshot),
            end_of_initial: options.initial_events && options.bookmarks,
            position,
        }
    };
    let declined = call.query.get("sendInitialEvents").is_some() && !options.initial_events;
    match options.start {
        Start::NotOlderThan(version) | Start::Exact(version) if options.initial_events => {
            if version > store.version() {
                Err(too_large(version, store.version()))
            } else {
                Ok(with_state())
            }
        }
        Start::NotOlderThan(version) | Start::Exact(version) => {
            Ok(Beginning { initial: None, end_of_initial: false, position: from(version) })
        }
        Start::Newest | Start::Any if declined => {
            Ok(Beginning { initial: None, end_of_initial: false, position: from(store.version()) })
        }
        Start::Newest | Start::Any => Ok(with_state()),
    }
}

/// Namespace and name of the object that was sent last.
type Sent = (Option<String>, String);

struct Stream {
    call: Call,
    filter: Filter,
    writer: Writer,
    /// What is left to send of the state at the start: after which object to go on.
    initial: Option<(Snapshot, Option<Sent>)>,
    end_of_initial: bool,
    position: Position,
    /// What has happened and is yet to be shown.
    pending: Option<Arc<Event>>,
    ends: Instant,
    bookmark_at: Option<Instant>,
    last_bookmark: Option<Instant>,
    ended: bool,
}

impl Stream {
    /// The next piece to send; `None` when the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        let mut piece = BytesMut::new();
        if self.ended {
            return None;
        }
        let (retired, stopping) = (self.call.served.retired(), self.call.server.stopping.clone());
        loop {
            // Looked at before what is at hand, of which there may always be more.
            if stopping.is_cancelled() || Instant::now() >= self.ends {
                return None;
            }
            // What is at hand may still have to be asked of a webhook.
            let outcome = tokio::select! {
                biased;
                outcome = self.at_hand(&mut piece) => outcome,
                () = retired.cancelled() => return None,
                () = stopping.cancelled() => return None,
            };
            match outcome {
                Ok(()) if piece.is_empty() => {}
                Ok(()) => return Some(piece.freeze()),
                Err(error) => return Some(self.failed(&error, piece)),
            }
            let Position::At(watch) = &mut self.position else { return None };
            let wake =
                [self.bookmark_at, self.last_bookmark].into_iter().flatten().min().unwrap_or(self.ends);
            let happened = tokio::select! {
                biased;
                () = retired.cancelled() => return None,
                () = stopping.cancelled() => return None,
                event = watch.next() => Some(event),
                () = sleep_until(wake.min(self.ends)) => None,
            };
            match happened {
                Some(Ok(event)) => self.pending = Some(event),
                Some(Err(too_old)) => return Some(self.failed(&expired(too_old), piece)),
                None if Instant::now() >= self.ends => return None,
                None => {
                    self.bookmark(&mut piece);
                    return Some(piece.freeze());
                }
            }
        }
    }

    /// Puts what there is to send without waiting for anything to happen into the piece.
    async fn at_hand(&mut self, piece: &mut BytesMut) -> Result<(), ApiError> {
        self.initial_objects(piece).await?;
        while self.initial.is_none() && piece.len() < PIECE {
            let event = match (self.pending.take(), &mut self.position) {
                (Some(event), _) => Some(event),
                (None, Position::At(watch)) => watch.try_next().map_err(expired)?,
                (None, Position::Lost(too_old)) => return Err(expired(*too_old)),
            };
            match event {
                Some(event) => self.event(&event, piece).await?,
                None => break,
            }
        }
        Ok(())
    }

    /// Puts objects of the starting state into the piece, and its end if it is reached.
    async fn initial_objects(&mut self, piece: &mut BytesMut) -> Result<(), ApiError> {
        let Some((snapshot, after)) = &mut self.initial else { return Ok(()) };
        let served = &self.call.served;
        while piece.len() < PIECE {
            let from = after.as_ref().map(|(namespace, name)| (namespace.as_deref(), name.as_str()));
            let entries = snapshot.entries(self.filter.namespace.as_deref(), from);
            let mut size = piece.len();
            let room = |entry: &Entry<'_>| {
                let had_room = size < PIECE;
                size += entry.stored.bytes.len();
                had_room
            };
            let entries = entries.filter(|entry| self.filter.names(entry.name));
            let batch: Vec<Entry<'_>> = entries.take_while(room).take(BATCH).collect();
            let Some(last) = batch.last() else {
                let version = snapshot.version();
                self.initial = None;
                if self.end_of_initial {
                    self.writer.bookmark(&self.call, version, true, piece);
                }
                break;
            };
            let stored = batch.iter().map(|entry| entry.stored.clone()).collect();
            for here in served.all_here(stored).await? {
                if self.filter.selects(served, &here) {
                    self.writer.write(&self.call, Shown::Added, &here, piece);
                }
            }
            *after = Some((last.namespace.map(str::to_owned), last.name.to_owned()));
        }
        Ok(())
    }

    /// Shows an event as it looks through the filter: an object that starts to
    /// match is added, one that stops to match is deleted.
    async fn event(&mut self, event: &Event, piece: &mut BytesMut) -> Result<(), ApiError> {
        if !self.filter.places(&event.key) {
            return Ok(());
        }
        let (call, filter, version) = (&self.call, &self.filter, event.version);
        let served = &call.served;
        let before = match &event.before {
            // Where everything is shown, nobody looks at what was.
            Some(_) if filter.takes_all() => Before::Shown(None),
            Some(old) => match served.here(old).await? {
                here if filter.selects(served, &here) => Before::Shown(Some(here)),
                _ => Before::Hidden,
            },
            None => Before::Hidden,
        };
        let after = match &event.after {
            Some(new) => Some(served.here(new).await?).filter(|here| filter.selects(served, here)),
            None => None,
        };
        match (before, after) {
            (Before::Hidden, Some(new)) => self.writer.write(call, Shown::Added, &new, piece),
            (Before::Shown(_), Some(new)) => self.writer.write(call, Shown::Modified, &new, piece),
            (Before::Shown(_), None) if event.after.is_none() => {
                let last = Arc::new(Stored { version, bytes: event.last.clone() });
                self.writer.write(call, Shown::Deleted, &served.here(&last).await?, piece);
            }
            (Before::Shown(Some(old)), None) => {
                let mut object = served.object(&old);
                object["metadata"]["resourceVersion"] = version.to_string().into();
                self.writer.write(call, Shown::Deleted, &Here::ready(&object, version), piece);
            }
            (Before::Shown(None) | Before::Hidden, None) => {}
        }
        Ok(())
    }

    fn bookmark(&mut self, piece: &mut BytesMut) {
        let now = Instant::now();
        if self.last_bookmark.is_some_and(|at| at <= now) {
            self.last_bookmark = None;
        }
        self.bookmark_at = self.bookmark_at.map(|_| now + BOOKMARK_EVERY).filter(|next| *next < self.ends);
        if let Position::At(watch) = &self.position {
            self.writer.bookmark(&self.call, watch.position(), false, piece);
        }
    }

    /// A failure the way clients understand it: an event inside the stream, then its end.
    fn failed(&mut self, error: &ApiError, mut piece: BytesMut) -> Bytes {
        self.ended = true;
        piece.put_slice(br#"{"type":"ERROR","object":"#);
        piece.put_slice(&respond::to_bytes(&error.to_status()));
        piece.put_slice(b"}\n");
        piece.freeze()
    }
}

/// Whether a watch has shown the object that an event changes.
enum Before {
    /// With the object, where a selector had to look at it.
    Shown(Option<Here>),
    Hidden,
}

/// 410: the client must list anew.
fn expired(too_old: TooOld) -> ApiError {
    ApiError::new(Reason::Expired, too_old.to_string())
}
