//! Reads all objects of a kind.
//!
//! The invariant: lists are read page by page, so that no cluster is too large for one answer.

use std::fmt::Debug;

use anyhow::Context;
use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;

use crate::target::refusal;

const PAGE: u32 = 1000;

/// All objects; nothing where the API does not serve the kind.
pub(crate) async fn all<K>(api: Api<K>) -> anyhow::Result<Option<Vec<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut page = ListParams::default().limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let list = match api.list(&page).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
            list => list.map_err(refusal).with_context(|| format!("list {}", K::plural(&())))?,
        };
        objects.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(Some(objects)),
        }
    }
}
