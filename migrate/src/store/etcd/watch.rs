//! Notices writers that did not stop.
//!
//! etcd can compare single keys in a transaction, but not a million of them in a moment. So the
//! keys are looked through before a guarded batch; and if any revision lies between that look and
//! the batch, once more behind it, as of the batch's own revision. A batch that turns out to have
//! come after a foreign write is taken back.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::super::{Batch, Fence, Op, Outcome, Revision, Space, StoreError};
use super::wire::{self, Compare, Request, Response};
use super::{Etcd, Page, op};

/// Asks for the newest revision.
const NEWEST: i64 = 0;
/// Pages looked at together: the server reads them on several cores.
const LOOKS_AT_ONCE: usize = 4;

impl Etcd {
    /// Whether the space holds at `at` (now, if none) what it held at `since`; if so, the
    /// revision at which it was looked through.
    pub(super) async fn unchanged(
        &self,
        space: Space,
        since: Revision,
        at: Option<i64>,
    ) -> Result<Option<Revision>, StoreError> {
        let Some(map) = self.maps().get(&space).cloned() else { return Ok(None) };
        let mut pages = map.into_iter();
        let revision = match (at, pages.next()) {
            (Some(at), Some(first)) => self.page_is_same(space, first, since, at).await?,
            (None, Some(first)) => self.page_is_same(space, first, since, NEWEST).await?,
            (_, None) => return Ok(None),
        };
        let Some(revision) = revision else { return Ok(None) };
        let mut looks = stream::iter(pages)
            .map(|page| self.page_is_same(space, page, since, revision))
            .buffer_unordered(LOOKS_AT_ONCE);
        while let Some(same) = looks.try_next().await? {
            if same.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Revision(revision as u64)))
    }

    /// The revision at which the page was looked at, unless a key of it came, changed or went.
    async fn page_is_same(
        &self,
        space: Space,
        page: Page,
        since: Revision,
        at: i64,
    ) -> Result<Option<i64>, StoreError> {
        let request = wire::RangeRequest {
            key: page.range.start.into(),
            range_end: page.range.end.into(),
            revision: at,
            keys_only: true,
            min_mod_revision: since.0 as i64 + 1,
            limit: 0,
        };
        let answer = self.range(&format!("look for changes of {space}"), request).await?;
        let same = answer.kvs.is_empty() && answer.count == page.keys;
        let newest = answer.header.as_ref().map_or(0, |header| header.revision);
        Ok(same.then_some(if at == NEWEST { newest } else { at }))
    }

    /// Makes sure that nothing was written between the look and the batch.
    pub(super) async fn confirm_commit(
        &self,
        fence: &Fence,
        batch: &Batch<'_>,
        (space, since): (Space, Revision),
        answer: &wire::TxnResponse,
    ) -> Result<Outcome, StoreError> {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        if revision as u64 == since.0 + 1 {
            return Ok(Outcome::Done);
        }
        if self.unchanged(space, since, Some(revision)).await?.is_some() {
            return Ok(Outcome::Done);
        }
        let mut compare = vec![self.fenced(fence)];
        let mut success = Vec::new();
        for (written, done) in batch.ops.iter().zip(&answer.responses) {
            let Op::Put { place, .. } = written else { continue };
            let key = self.keys.place(*place);
            compare.push(Compare::changed_at(key.clone(), revision));
            let before = match &done.response {
                Some(Response::Put(put)) => put.prev_kv.as_ref().map(|pair| pair.value.clone()),
                Some(Response::Range(_) | Response::DeleteRange(_)) | None => None,
            };
            success.push(op(match before {
                Some(value) => Request::Put(wire::PutRequest { key, value, lease: 0, prev_kv: false }),
                None => Request::DeleteRange(wire::DeleteRangeRequest { key, range_end: Bytes::new() }),
            }));
        }
        let request = wire::TxnRequest { compare, success, failure: vec![] };
        if self.transact("take a batch back", request).await?.succeeded {
            Ok(Outcome::Conflict)
        } else {
            Err(StoreError::FencedOut)
        }
    }
}
