//! The driver of etcd.
//!
//! Rows are read at one pinned revision, in pages with a bounded end. Every write is a
//! transaction that compares the revision at which our lock was created, so a run that has lost
//! its lease writes nothing more, however late it wakes up.

mod client;
mod facts;
mod keys;
mod pages;
mod watch;
mod wire;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;

use super::url::Server;
use super::{
    Batch, Cleared, Facts, Fence, Guard, Layout, Limits, Note, Op, Options, OtherRoots, Outcome, Reading,
    Revision, Row, Sink, Space, Store, StoreError, roots,
};
use crate::record::{RowKey, Snapshot, Table};
use client::{Client, failed, is_unreached};
use facts::{allowed, facts_of};
use keys::{Keys, Last};
use pages::{Pager, Seen};
use wire::{Compare, Request, RequestOp, Response};

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
/// How long a server that refuses connections may be one that is just being started.
const JUST_STARTED: Duration = Duration::from_secs(2);
/// The largest value in a request of 1.5 MiB, with room for its key and the lock's.
const LARGEST_VALUE: usize = (3 << 19) - (4 << 10);

#[derive(Debug)]
pub(super) struct Etcd {
    client: Client,
    keys: Keys,
    layout: Layout,
    /// Where the keys of spaces lay at their last guarded reading.
    maps: Mutex<HashMap<Space, Vec<Page>>>,
    /// How far the deletion of spaces has come.
    clearing: Mutex<HashMap<Space, Vec<Pager>>>,
}

/// A range of keys, and how many there were.
#[derive(Debug, Clone)]
struct Page {
    range: Range<Vec<u8>>,
    keys: i64,
}

impl Etcd {
    pub(super) async fn open(server: &Server, layout: Layout, options: &Options) -> Result<Etcd, StoreError> {
        let etcd = Etcd {
            client: Client::new(server, options)?,
            keys: Keys::new(&server.root),
            layout,
            maps: Mutex::default(),
            clearing: Mutex::default(),
        };
        etcd.reach(options.timeout).await?;
        Ok(etcd)
    }

    /// Waits for a first answer, so that a wrong address is told at once. A server that is just being
    /// started refuses connections for a moment, and then takes a while to serve.
    async fn reach(&self, within: Duration) -> Result<(), StoreError> {
        let began = Instant::now();
        let mut last = None;
        loop {
            let left = within.saturating_sub(began.elapsed());
            let error = match tokio::time::timeout(left, self.note(Note::Run)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => {
                    let reason = format!("no answer within {} s", within.as_secs());
                    return Err(last.unwrap_or_else(|| StoreError::lost("connect to etcd", reason)));
                }
            };
            let patience = if is_unreached(&error) { JUST_STARTED } else { within };
            if !error.is_transient() || began.elapsed() >= patience {
                return Err(error);
            }
            last = Some(error);
            tokio::time::sleep(JUST_STARTED / 20).await;
        }
    }

    async fn range(
        &self,
        doing: &str,
        request: wire::RangeRequest,
    ) -> Result<wire::RangeResponse, StoreError> {
        self.client.call(RANGE, request).await.map_err(|status| failed(doing, &status))
    }

    async fn transact(
        &self,
        doing: &str,
        request: wire::TxnRequest,
    ) -> Result<wire::TxnResponse, StoreError> {
        self.client.call(TXN, request).await.map_err(|status| failed(doing, &status))
    }

    fn fenced(&self, fence: &Fence) -> Compare {
        Compare::created_at(self.keys.lock(), fence.number as i64)
    }

    fn holds(&self, note: Note, is: Option<&Bytes>) -> Compare {
        match is {
            Some(value) => Compare::holds(self.keys.note(note), value.clone()),
            None => Compare::created_at(self.keys.note(note), 0),
        }
    }

    /// What a refused transaction asks for, to tell a lost lock from a guard that did not hold.
    fn look_at_lock(&self) -> Vec<RequestOp> {
        vec![op(Request::Range(wire::RangeRequest { key: self.keys.lock(), ..Default::default() }))]
    }

    fn still_ours(&self, fence: &Fence, answer: &wire::TxnResponse) -> bool {
        let Some(Response::Range(found)) =
            answer.responses.first().and_then(|answer| answer.response.as_ref())
        else {
            return false;
        };
        found.kvs.first().is_some_and(|lock| lock.value == lock_value(fence))
    }

    fn request_of(&self, op: &Op<'_>, prev_kv: bool) -> RequestOp {
        let key = self.keys.place(op.place());
        self::op(match op {
            Op::Put { value, .. } => {
                Request::Put(wire::PutRequest { key, value: (*value).clone(), lease: 0, prev_kv })
            }
            Op::Remove { .. } => {
                Request::DeleteRange(wire::DeleteRangeRequest { key, range_end: Bytes::new() })
            }
        })
    }

    async fn keys_within(&self, ranges: Vec<Range<Vec<u8>>>) -> Result<Vec<Bytes>, StoreError> {
        let mut keys = Vec::new();
        for mut pager in ranges.into_iter().map(Pager::new) {
            while let Some(page) = pager.page() {
                let request = wire::RangeRequest {
                    key: page.start.clone().into(),
                    range_end: page.end.clone().into(),
                    limit: pager.limit() as i64,
                    keys_only: true,
                    ..Default::default()
                };
                let answer = self.range("look for other roots", request).await?;
                pager.took(page, seen(&answer));
                keys.extend(answer.kvs.into_iter().map(|pair| pair.key));
            }
        }
        Ok(keys)
    }

    fn maps(&self) -> MutexGuard<'_, HashMap<Space, Vec<Page>>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clearing(&self) -> MutexGuard<'_, HashMap<Space, Vec<Pager>>> {
        self.clearing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for Etcd {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn limits(&self) -> Limits {
        Limits { ops: 128, bytes: 1 << 20, value: LARGEST_VALUE, in_flight: 8 }
    }

    fn refuses(&self, table: &Table, key: &RowKey) -> Option<&'static str> {
        match self.layout {
            Layout::Dragonflow => self.keys.refuses(table, key),
            Layout::Generation => None,
        }
    }

    async fn facts(&self) -> Result<Facts, StoreError> {
        let status = self.client.call("/etcdserverpb.Maintenance/Status", wire::StatusRequest {}).await;
        let alarms = self.client.call("/etcdserverpb.Maintenance/Alarm", wire::AlarmRequest {}).await;
        Ok(facts_of(allowed(status)?, allowed(alarms)?.as_ref()))
    }

    async fn read(
        &self,
        space: Space,
        reading: Reading,
        sink: &mut Sink<'_>,
    ) -> Result<Revision, StoreError> {
        let doing = format!("read {space}");
        let (mut revision, mut map) = (0, Vec::new());
        let mut last = Last::default();
        let ask = |pager: &Pager, page: &Range<Vec<u8>>, revision| {
            let request = wire::RangeRequest {
                key: page.start.clone().into(),
                range_end: page.end.clone().into(),
                limit: pager.limit() as i64,
                revision,
                ..Default::default()
            };
            self.range(&doing, request)
        };
        for range in self.keys.ranges(space) {
            let mut pager = Pager::new(range);
            let Some(mut page) = pager.page() else { continue };
            let mut answer = ask(&pager, &page, revision).await?;
            loop {
                if revision == 0 {
                    revision = answer.header.as_ref().map_or(0, |header| header.revision);
                }
                let range = pager.took(page, seen(&answer));
                if reading == Reading::Guarded {
                    map.push(Page { range, keys: answer.kvs.len() as i64 });
                }
                let hand_on = async {
                    let row = |pair: wire::KeyValue| self.keys.row(space, &pair.key, pair.value, &mut last);
                    sink(answer.kvs.into_iter().filter_map(row).collect::<Vec<Row>>());
                };
                let Some(next) = pager.page() else {
                    hand_on.await;
                    break;
                };
                // The server works on the next page while these rows are used.
                let (asked, ()) = tokio::join!(biased; ask(&pager, &next, revision), hand_on);
                (answer, page) = (asked?, next);
            }
        }
        if reading == Reading::Guarded {
            self.maps().insert(space, map);
        }
        Ok(Revision(revision as u64))
    }

    async fn confirm(&self, space: Space, since: Revision) -> Result<Option<Revision>, StoreError> {
        self.unchanged(space, since, None).await
    }

    async fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError> {
        let request = wire::RangeRequest { key: self.keys.note(note), ..Default::default() };
        let answer = self.range(&format!("read the {} note", note.name()), request).await?;
        Ok(answer.kvs.into_iter().next().map(|pair| pair.value))
    }

    async fn other_roots(&self, plain: &Snapshot) -> Result<OtherRoots, StoreError> {
        let mut found = OtherRoots::new();
        for (table, rows) in plain.tables() {
            let looks_like_one = |id: &str| id.ends_with("meta/run") || id.ends_with("meta/lock");
            for (key, value) in rows.iter().filter(|(key, _)| looks_like_one(&key.id)) {
                if let Some((root, trace)) = keys::trace(&format!("{table}/{}", key.id)) {
                    roots::note(&mut found, root, trace, value.clone());
                }
            }
        }
        for key in self.keys_within(self.keys.unused()).await? {
            let key = String::from_utf8_lossy(&key).into_owned();
            if let Some((root, trace)) = keys::trace(&key[1..]) {
                let request = wire::RangeRequest { key: key.clone().into(), ..Default::default() };
                let answer = self.range("look for other roots", request).await?;
                for pair in answer.kvs {
                    roots::note(&mut found, root, trace, pair.value);
                }
            }
        }
        Ok(found)
    }

    async fn commit(&self, fence: &Fence, batch: &Batch<'_>) -> Result<Outcome, StoreError> {
        let mut compare = vec![self.fenced(fence)];
        let mut since = None;
        for guard in &batch.guards {
            match guard {
                Guard::Note { note, is } => compare.push(self.holds(*note, is.as_ref())),
                Guard::Unchanged { space, since: at } => since = Some((*space, *at)),
            }
        }
        let request = wire::TxnRequest {
            compare,
            success: batch.ops.iter().map(|op| self.request_of(op, since.is_some())).collect(),
            failure: self.look_at_lock(),
        };
        let answer = self.transact("write a batch", request).await?;
        if !answer.succeeded {
            let ours = self.still_ours(fence, &answer);
            return if ours { Ok(Outcome::Conflict) } else { Err(StoreError::FencedOut) };
        }
        match since {
            Some((space, since)) => self.confirm_commit(fence, batch, (space, since), &answer).await,
            None => Ok(Outcome::Done),
        }
    }

    async fn clear_some(
        &self,
        fence: &Fence,
        run: Option<&Bytes>,
        space: Space,
    ) -> Result<Cleared, StoreError> {
        let begin = || self.keys.ranges(space).into_iter().map(Pager::new).collect();
        // Taken out: after an error the deletion begins anew.
        let mut pagers: Vec<Pager> = self.clearing().remove(&space).unwrap_or_else(begin);
        let doing = format!("delete {space}");
        while let Some(pager) = pagers.last_mut() {
            let Some(page) = pager.page() else {
                pagers.pop();
                continue;
            };
            let request = wire::RangeRequest {
                key: page.start.clone().into(),
                range_end: page.end.clone().into(),
                limit: pager.limit() as i64,
                keys_only: true,
                ..Default::default()
            };
            let answer = self.range(&doing, request).await?;
            let covered = pager.took(page, seen(&answer));
            if answer.kvs.is_empty() {
                continue;
            }
            let delete =
                wire::DeleteRangeRequest { key: covered.start.into(), range_end: covered.end.into() };
            let request = wire::TxnRequest {
                compare: vec![self.fenced(fence), self.holds(Note::Run, run)],
                success: vec![op(Request::DeleteRange(delete))],
                failure: self.look_at_lock(),
            };
            let answer = self.transact(&doing, request).await?;
            if !answer.succeeded {
                let ours = self.still_ours(fence, &answer);
                return if ours { Ok(Cleared::Conflict) } else { Err(StoreError::FencedOut) };
            }
            self.clearing().insert(space, pagers);
            return Ok(Cleared::Some);
        }
        Ok(Cleared::All)
    }

    async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn lock(&self, owner: &str, ttl: Duration) -> Result<Fence, StoreError> {
        let doing = "take the lock";
        let seconds = ttl.as_millis().div_ceil(1000).max(1) as i64;
        let lease: wire::LeaseGrantResponse = self
            .client
            .call("/etcdserverpb.Lease/LeaseGrant", wire::LeaseGrantRequest { ttl: seconds })
            .await
            .map_err(|status| failed(doing, &status))?;
        let mut fence = Fence { number: 0, lease: lease.id, owner: Arc::from(owner), ttl };
        let put = wire::PutRequest {
            key: self.keys.lock(),
            value: lock_value(&fence),
            lease: lease.id,
            prev_kv: false,
        };
        let request = wire::TxnRequest {
            compare: vec![Compare::created_at(self.keys.lock(), 0)],
            success: vec![op(Request::Put(put))],
            failure: self.look_at_lock(),
        };
        let answer = match self.transact(doing, request).await {
            Ok(answer) => answer,
            Err(error) => {
                let _ = self.unlock(&fence).await;
                return Err(error);
            }
        };
        if !answer.succeeded {
            self.unlock(&fence).await?;
            return Err(StoreError::Busy { owner: owner_of(&answer) });
        }
        fence.number = answer.header.map_or(0, |header| header.revision as u64);
        Ok(fence)
    }

    async fn renew(&self, fence: &Fence) -> Result<(), StoreError> {
        let left =
            self.client.keep_alive(fence.lease).await.map_err(|status| failed("renew the lock", &status))?;
        if left > 0 { Ok(()) } else { Err(StoreError::FencedOut) }
    }

    async fn unlock(&self, fence: &Fence) -> Result<(), StoreError> {
        let request = wire::LeaseRequest { id: fence.lease };
        let answer: Result<wire::LeaseRevokeResponse, _> =
            self.client.call("/etcdserverpb.Lease/LeaseRevoke", request).await;
        match answer {
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(failed("free the lock", &status)),
            Ok(_) => Ok(()),
        }
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn seen(answer: &wire::RangeResponse) -> Seen<'_> {
    let ends = answer.kvs.first().zip(answer.kvs.last());
    Seen {
        keys: answer.kvs.len(),
        bytes: answer.kvs.iter().map(|pair| pair.key.len() + pair.value.len()).sum(),
        ends: ends.map(|(first, last)| (first.key.as_ref(), last.key.as_ref())),
        more: answer.more,
    }
}

/// The lease makes the value differ for every taking.
fn lock_value(fence: &Fence) -> Bytes {
    format!("{:x} {}", fence.lease, fence.owner).into()
}

fn owner_of(answer: &wire::TxnResponse) -> String {
    let found = match answer.responses.first().and_then(|answer| answer.response.as_ref()) {
        Some(Response::Range(found)) => found.kvs.first(),
        Some(Response::Put(_) | Response::DeleteRange(_)) | None => None,
    };
    let text = found.map(|pair| String::from_utf8_lossy(&pair.value).into_owned()).unwrap_or_default();
    text.split_once(' ').map_or_else(|| "another run".to_owned(), |(_, owner)| owner.to_owned())
}
