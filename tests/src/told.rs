//! Listens to what a server tells a client of one resource, and judges whether it is one story.
//!
//! The client is any of kube's: lists in pages, watches from where they end, lists again when it is too late.
//! A story has no gap if every page of a list shows the same moment, a watch goes on where the list or the watch
//! before it ended, and no object skips a generation. Whoever writes must change each spec once per request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::client::{Body, DynBody};
use serde_json::Value;
use tower::{BoxError, Layer, Service};

/// What was told so far; clones listen to the same story.
#[derive(Debug, Clone, Default)]
pub struct Told(Arc<Mutex<Story>>);

impl Told {
    /// What the story has come to.
    pub fn so_far(&self) -> Story {
        self.with(|story| story.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&mut Story) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a client knows, having been told this much.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// Version and generation by name.
    pub known: BTreeMap<String, (u64, i64)>,
    /// Everything up to here was told.
    pub until: u64,
    /// Lists that were told in more than one page.
    pub paged: usize,
    /// How often a version or a page was asked for that is gone (410).
    pub expired: usize,
    /// What does not fit together.
    pub faults: Vec<String>,
    list: Option<List>,
}

/// A list of which more pages are to come.
#[derive(Debug, Clone)]
struct List {
    version: u64,
    known: BTreeMap<String, (u64, i64)>,
}

impl Story {
    /// A page came; `goes_on` says that it was asked for with a token of the page before.
    fn page(&mut self, goes_on: bool, page: &Value) {
        let version = number(&page["metadata"]["resourceVersion"]);
        let begun = self.list.take().filter(|_| goes_on);
        self.paged += usize::from(begun.is_some());
        let mut list = begun.unwrap_or_else(|| List { version, known: BTreeMap::new() });
        if version != list.version {
            self.faults.push(format!("a list at {} goes on at {version}", list.version));
        }
        for object in page["items"].as_array().into_iter().flatten() {
            let (name, state) = state(object);
            if state.0 > version {
                self.faults.push(format!("{name} of version {} is in a list at {version}", state.0));
            }
            if list.known.last_key_value().is_some_and(|(last, _)| *last >= name) {
                self.faults.push(format!("{name} comes after a later name"));
            }
            list.known.insert(name, state);
        }
        match page["metadata"]["continue"].as_str() {
            Some(_) => self.list = Some(list),
            None => self.listed(list),
        }
    }

    fn listed(&mut self, list: List) {
        if list.version < self.until {
            self.faults.push(format!("a list at {} after {} was told", list.version, self.until));
        }
        for (name, now) in &list.known {
            if let Some(before) = self.known.get(name).filter(|before| *before > now) {
                self.faults.push(format!("{name} went from {before:?} back to {now:?}"));
            }
        }
        (self.known, self.until) = (list.known, list.version);
    }

    /// A watch begins.
    fn watch(&mut self, from: u64) {
        if from != self.until {
            self.faults.push(format!("a watch from {from}, and {} was told", self.until));
        }
    }

    fn event(&mut self, event: &Value) {
        let object = &event["object"];
        if event["type"] == "ERROR" {
            self.refused(number(&object["code"]));
            return;
        }
        let (name, now) = state(object);
        let before = self.known.get(&name).copied();
        if now.0 <= self.until && event["type"] != "BOOKMARK" {
            self.faults.push(format!("{name} at {} after {} was told", now.0, self.until));
        }
        self.until = self.until.max(now.0);
        let fits = match (event["type"].as_str(), before) {
            (Some("BOOKMARK"), _) => return,
            (Some("ADDED"), None) => now.1 == 1,
            (Some("MODIFIED"), Some(before)) => now.1 == before.1 || now.1 == before.1 + 1,
            (Some("DELETED"), Some(before)) => now.1 == before.1 || now.1 == before.1 + 1,
            _ => false,
        };
        if !fits {
            self.faults.push(format!("{} {name}: {now:?} after {before:?}", event["type"]));
        }
        match event["type"] == "DELETED" {
            true => self.known.remove(&name),
            false => self.known.insert(name, now),
        };
    }

    fn refused(&mut self, code: u64) {
        self.expired += usize::from(code == 410);
        self.list = None;
    }
}

fn number(text: &Value) -> u64 {
    text.as_u64().or_else(|| text.as_str()?.parse().ok()).unwrap_or_default()
}

fn state(object: &Value) -> (String, (u64, i64)) {
    let metadata = &object["metadata"];
    let generation = metadata["generation"].as_i64().unwrap_or_default();
    (
        metadata["name"].as_str().unwrap_or_default().to_owned(),
        (number(&metadata["resourceVersion"]), generation),
    )
}

fn asked<'a>(uri: &'a Uri, parameter: &str) -> Option<&'a str> {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == parameter).map(|(_, value)| value).filter(|value| !value.is_empty())
}

impl<S> Layer<S> for Told {
    type Service = Listening<S>;

    fn layer(&self, inner: S) -> Listening<S> {
        Listening { inner, told: self.clone() }
    }
}

type Overheard = UnsyncBoxBody<Bytes, BoxError>;

/// A client's way to its server, overheard.
pub struct Listening<S> {
    inner: S,
    told: Told,
}

impl<S> Service<Request<Body>> for Listening<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Overheard>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Overheard>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri().clone();
        let (answering, told) = (self.inner.call(request), self.told.clone());
        async move { told.overhear(&uri, answering.await?).await }.boxed()
    }
}

impl Told {
    async fn overhear(
        self,
        uri: &Uri,
        answer: Response<Box<DynBody>>,
    ) -> Result<Response<Overheard>, BoxError> {
        let (parts, body) = answer.into_parts();
        let code = parts.status.as_u16();
        if code == 200 && asked(uri, "watch").is_some() {
            let from = asked(uri, "resourceVersion").and_then(|from| from.parse().ok()).unwrap_or_default();
            self.with(|story| story.watch(from));
            let mut rest = Vec::new();
            let body = body.map_frame(move |frame| {
                if let Some(data) = frame.data_ref() {
                    self.events(&mut rest, data);
                }
                frame
            });
            return Ok(Response::from_parts(parts, body.boxed_unsync()));
        }
        let bytes = body.collect().await?.to_bytes();
        let page = serde_json::from_slice(&bytes).unwrap_or_default();
        self.with(|story| match code {
            200 => story.page(asked(uri, "continue").is_some(), &page),
            code => story.refused(code.into()),
        });
        let body = Full::new(bytes).map_err(|never| match never {});
        Ok(Response::from_parts(parts, body.boxed_unsync()))
    }

    /// Takes the whole lines out of what has come.
    fn events(&self, rest: &mut Vec<u8>, data: &Bytes) {
        rest.extend_from_slice(data);
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let event = serde_json::from_slice(&line).unwrap_or_default();
            self.with(|story| story.event(&event));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, version: u64, generation: i64) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": version.to_string(), "generation": generation}})
    }

    fn page(version: u64, items: &[Value], goes_on: bool) -> Value {
        let token = goes_on.then_some("t");
        json!({"metadata": {"resourceVersion": version.to_string(), "continue": token}, "items": items})
    }

    fn event(kind: &str, object: &Value) -> Value {
        json!({"type": kind, "object": object})
    }

    type Tell = fn(&mut Story);

    /// Tells of `a` and `b` in two pages at version 5, then what comes.
    fn after(more: impl FnOnce(&mut Story)) -> Story {
        let mut story = Story::default();
        story.page(false, &page(5, &[object("a", 3, 1)], true));
        story.page(true, &page(5, &[object("b", 4, 2)], false));
        story.watch(5);
        more(&mut story);
        story
    }

    #[test]
    fn a_story_without_gaps_is_believed() {
        let story = after(|story| {
            story.event(&event("MODIFIED", &object("a", 6, 2)));
            story.event(&event("ADDED", &object("c", 7, 1)));
            story.event(&event("DELETED", &object("b", 8, 2)));
            story.event(&event("BOOKMARK", &object("", 8, 0)));
            story.event(&event("ERROR", &json!({"code": 410})));
            story.page(false, &page(9, &[object("a", 6, 2), object("c", 9, 2)], false));
            story.watch(9);
        });
        assert_eq!(story.faults, Vec::<String>::new());
        assert_eq!((story.paged, story.expired, story.until), (1, 1, 9));
    }

    #[test]
    fn what_does_not_fit_is_a_fault() {
        #[rustfmt::skip]
        let cases: [(&str, Tell); 9] = [
            ("an event was left out",   |story| story.event(&event("MODIFIED", &object("a", 7, 3)))),
            ("a creation was left out", |story| story.event(&event("MODIFIED", &object("c", 7, 2)))),
            ("a removal was left out",  |story| story.event(&event("ADDED", &object("a", 7, 1)))),
            ("an event came twice",     |story| story.event(&event("MODIFIED", &object("a", 5, 1)))),
            ("a watch began too late",  |story| story.watch(6)),
            ("pages of two moments",    |story| {
                story.page(false, &page(6, &[object("a", 3, 1)], true));
                story.page(true, &page(7, &[object("b", 7, 3)], false));
            }),
            ("a page of later",         |story| story.page(false, &page(6, &[object("a", 7, 2)], false))),
            ("a page came twice",       |story| {
                story.page(false, &page(6, &[object("a", 3, 1)], true));
                story.page(true, &page(6, &[object("a", 3, 1)], false));
            }),
            ("a list of earlier",       |story| story.page(false, &page(4, &[object("b", 4, 2)], false))),
        ];
        for (name, tell) in cases {
            assert_eq!(after(tell).faults.len(), 1, "{name}: {:?}", after(tell).faults);
        }
    }
}
