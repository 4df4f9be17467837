//! Lists: a consistent view, whole or page by page.
//!
//! Items are sent as the store holds them; what is held while a client reads
//! slowly are references into one snapshot.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode};

use super::body::Body;
use super::call::Call;
use super::filter::Filter;
use super::item;
use super::negotiate::{Encoding, Form};
use super::page::Token;
use super::query::{ListOptions, Start};
use super::respond;
use crate::error::{ApiError, Cause, Reason};
use crate::present::{ListMeta, list_envelope, partial_metadata, partial_metadata_list_envelope};
use crate::served::{Here, Served};
use crate::store::{Entry, Snapshot, Version};

/// Items are gathered into pieces of about this size.
const PIECE: usize = 64 * 1024;

/// Objects are brought into the version of the request in batches of this many.
pub(crate) const BATCH: usize = 256;

/// The objects of one page, and how to go on.
pub(crate) struct Page {
    pub(crate) items: Vec<Here>,
    pub(crate) meta: ListMeta,
}

pub(crate) async fn list(call: &Call, options: &ListOptions) -> Result<Response<Body>, ApiError> {
    let filter = Filter::parse(&call.served, call.namespace.as_deref(), options)?;
    check_include(call)?;
    let page = page(call, options, &filter).await?;
    Ok(show(call, page))
}

fn check_include(call: &Call) -> Result<(), ApiError> {
    match call.query.get("includeObject") {
        Some(other)
            if call.accept.form == Form::Table && !["None", "Metadata", "Object"].contains(&other) =>
        {
            let message = format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            );
            Err(ApiError::new(Reason::BadRequest, message))
        }
        _ => Ok(()),
    }
}

/// The objects a list request means.
pub(crate) async fn page(call: &Call, options: &ListOptions, filter: &Filter) -> Result<Page, ApiError> {
    let token = options.continue_from.as_deref().map(Token::decode).transpose()?;
    let snapshot = snapshot(call, options, token.as_ref())?;
    let after = token.as_ref().map(|token| (token.namespace.as_deref(), token.name.as_str()));
    // The real server answers "any version" from its cache, whole.
    let limit = options.limit.filter(|_| options.start != Start::Any).unwrap_or(usize::MAX);
    let named = |entry: &Entry<'_>| filter.names(entry.name);
    let mut entries = snapshot.entries(filter.namespace.as_deref(), after).filter(named);
    let mut items = Vec::new();
    let (mut last, mut remaining) = (None, 0);
    while remaining == 0 {
        let batch: Vec<Entry<'_>> = entries.by_ref().take(limit.saturating_add(1).min(BATCH)).collect();
        if batch.is_empty() {
            break;
        }
        let stored = batch.iter().map(|entry| entry.stored.clone()).collect();
        let found = batch.iter().zip(call.served.all_here(stored).await?);
        for (entry, here) in found.filter(|(_, here)| filter.selects(&call.served, here)) {
            if items.len() < limit {
                items.push(here);
                last = Some(*entry);
            } else {
                remaining += 1;
            }
        }
    }
    let mut meta = ListMeta { resource_version: snapshot.version().to_string(), ..ListMeta::default() };
    if let (1.., Some(last)) = (remaining, last) {
        if filter.takes_all() {
            meta.remaining = Some((remaining + entries.count()) as u64);
        }
        let (namespace, name) = (last.namespace.map(str::to_owned), last.name.to_owned());
        meta.continue_token = Some(Token { version: snapshot.version(), namespace, name }.encode());
        call.server.store.retain(&snapshot);
    }
    Ok(Page { items, meta })
}

fn snapshot(call: &Call, options: &ListOptions, token: Option<&Token>) -> Result<Snapshot, ApiError> {
    let (store, resource) = (&call.server.store, call.served.stored_under());
    if let Some(token) = token {
        return at(call, token.version).ok_or_else(|| {
            let message = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.";
            ApiError::new(Reason::Expired, message)
        });
    }
    match options.start {
        Start::Newest | Start::Any => Ok(store.snapshot(resource)),
        Start::NotOlderThan(version) => {
            let current = store.snapshot(resource);
            if version > current.version() { Err(too_large(version, current.version())) } else { Ok(current) }
        }
        Start::Exact(version) if version > store.version() => Err(too_large(version, store.version())),
        Start::Exact(version) => at(call, version).ok_or_else(|| {
            let message = "The resourceVersion for the provided list is too old.";
            ApiError::new(Reason::Expired, message)
        }),
    }
}

fn at(call: &Call, version: Version) -> Option<Snapshot> {
    let (store, resource) = (&call.server.store, call.served.stored_under());
    let current = store.snapshot(resource);
    if current.version() == version { Some(current) } else { store.snapshot_at(resource, version) }
}

/// 504 for a version that is yet to come.
pub(crate) fn too_large(wanted: Version, current: Version) -> ApiError {
    let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
    let cause = Cause {
        reason: "ResourceVersionTooLarge",
        message: "Too large resource version".into(),
        field: String::new(),
    };
    let mut error = ApiError::new(Reason::Timeout, message).because(vec![cause]);
    error.retry_after = Some(1);
    error
}

/// A page in the form the client asked for.
pub(crate) fn show(call: &Call, page: Page) -> Response<Body> {
    let whole = |page: Page| {
        let (head, tail) = list_envelope(call.served.kind(), &call.served.version().name, &page.meta);
        pieces(call.served.clone(), page.items, &head, tail)
    };
    match (call.accept.form, call.accept.encoding) {
        (Form::Whole, Encoding::Json) if !call.pretty => {
            let json = HeaderValue::from_static("application/json");
            respond::with_body(StatusCode::OK, json, whole(page))
        }
        (Form::Table, _) => {
            let objects: Vec<_> = page.items.iter().map(|item| call.served.object(item)).collect();
            respond::encoded(call, StatusCode::OK, &call.table().list(&objects, &page.meta))
        }
        (form, _) => {
            let (head, tail) = match form {
                Form::Metadata => partial_metadata_list_envelope(&page.meta),
                Form::Whole | Form::Table => {
                    list_envelope(call.served.kind(), &call.served.version().name, &page.meta)
                }
            };
            let mut list: serde_json::Value =
                serde_json::from_str(&format!("{head}{tail}")).expect("an empty list");
            let objects = page.items.iter().map(|item| call.served.object(item));
            list["items"] = match form {
                Form::Metadata => objects.map(|object| partial_metadata(&object)).collect(),
                Form::Whole | Form::Table if call.served.kind().built_in => {
                    objects.map(item::strip).collect()
                }
                Form::Whole | Form::Table => objects.collect(),
            };
            respond::encoded(call, StatusCode::OK, &list)
        }
    }
}

fn pieces(served: Arc<Served>, items: Vec<Here>, head: &str, tail: &'static str) -> Body {
    let mut buffer = BytesMut::from(head.as_bytes());
    let mut items = items.into_iter();
    let (mut first, mut ended) = (true, false);
    let next = move || -> Option<Bytes> {
        while !ended && buffer.len() < PIECE {
            match items.next() {
                Some(item) => {
                    if !first {
                        buffer.extend_from_slice(b",");
                    }
                    first = false;
                    match served.kind().built_in {
                        true => item::push(&served.bytes(&item), &mut buffer),
                        false => buffer.extend_from_slice(&served.bytes(&item)),
                    }
                }
                None => {
                    ended = true;
                    buffer.extend_from_slice(tail.as_bytes());
                }
            }
        }
        (!buffer.is_empty()).then(|| buffer.split().freeze())
    };
    Body::pieces(std::iter::from_fn(next))
}
