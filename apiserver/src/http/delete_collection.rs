//! Deletes every object that a list request means.

use bytes::Bytes;
use futures::StreamExt;
use http::Response;

use super::body::Body;
use super::call::Call;
use super::filter::Filter;
use super::handlers::{delete_options, remove};
use super::list;
use super::query::ListOptions;
use crate::error::{ApiError, Reason};
use crate::lifecycle::metadata_text;

/// Deletions under way at once: enough for the store to make few large commits of them.
const AT_ONCE: usize = 64;

pub(crate) async fn delete_collection(call: Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let options = delete_options(&call, body)?;
    let list_options = ListOptions::parse(&call.query)?;
    let filter = Filter::parse(&call.served, call.namespace.as_deref(), &list_options)?;
    let page = list::page(&call, &list_options, &filter).await?;
    let calls = page.items.iter().map(|item| {
        let object = call.served.object(item);
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        call.on(namespace, metadata_text(&object, "name"))
    });
    let calls: Vec<Call> = calls.collect();
    let removals = calls.into_iter().map(|one| {
        let options = options.clone();
        async move { remove(&one, &options).await.map(drop) }
    });
    let mut removals = futures::stream::iter(removals).buffer_unordered(AT_ONCE);
    while let Some(removed) = removals.next().await {
        match removed {
            Ok(()) => {}
            Err(error) if error.reason == Reason::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    drop(removals);
    Ok(list::show(&call, page))
}
