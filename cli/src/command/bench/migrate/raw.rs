//! Writes and reads everything once, with the batches and the requests on their way that a run uses.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use midflight_migrate::{
    backup,
    store::{self, Layout, Options, Reading, RunNumber, Space, Url},
};
use serde::{Deserialize, Serialize};

use crate::output::{Answer, Paint};

/// Where the rows go; nothing else has a run of this number while they are there.
const SCRATCH: Space = Space::Undo(RunNumber::FIRST);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Raw {
    pub(super) read_seconds: f64,
    pub(super) write_seconds: f64,
}

impl Answer for Raw {
    fn to_table(&self, _: Paint) -> String {
        format!("{self:?}\n")
    }
}

pub(super) async fn measure(address: &str, rows: &Path) -> anyhow::Result<Raw> {
    let (_, rows) = backup::read(rows)?;
    let url: Url = address.parse()?;
    let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
    let open = || store::open(&url, Layout::Generation, &options);

    let store = open().await?;
    let held = store::hold(&store, "bench", Duration::from_secs(30)).await?;
    let (writer, fence, limits) = (store.as_ref(), held.fence(), store.limits());
    let began = Instant::now();
    stream::iter(store::pack(store::puts(SCRATCH, &rows), limits))
        .map(|batch| async move { writer.commit(fence, &batch).await.map(drop) })
        .buffer_unordered(limits.in_flight)
        .try_collect::<()>()
        .await?;
    store.flush().await?;
    let write_seconds = began.elapsed().as_secs_f64();
    held.release(store.as_ref()).await?;
    // Opened anew: a run does not begin with a full cache either.
    drop(store);

    let store = open().await?;
    let began = Instant::now();
    let (found, _) = store::collect(store.as_ref(), SCRATCH, Reading::Once).await?;
    let read_seconds = began.elapsed().as_secs_f64();
    anyhow::ensure!(found.len() == rows.len(), "{} of {} rows came back", found.len(), rows.len());

    let held = store::hold(&store, "bench", Duration::from_secs(30)).await?;
    let run = store.note(store::Note::Run).await?;
    store::clear(store.as_ref(), held.fence(), run.as_ref(), SCRATCH).await?;
    store.flush().await?;
    held.release(store.as_ref()).await?;
    Ok(Raw { read_seconds, write_seconds })
}
