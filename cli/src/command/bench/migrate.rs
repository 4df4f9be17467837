//! `midflight bench migrate`: a whole migration beside the raw rates of the same client.
//!
//! The peer is what nobody can beat with this client and this server: reading everything twice (once to
//! migrate it, once to verify it) and writing everything once.

mod server;

use std::{
    fs,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use midflight_migrate::{
    backup,
    migration::Native,
    northbound::Verdict,
    record::{RowKey, Snapshot, Table},
    run::{Changed, Database, Event, Settings, Tool},
    store::{self, Layout, Options, Reading, RunNumber, Space, Url},
    worker::Worker,
};
use serde::Serialize;

use self::server::{Kind, Server};
use super::{
    conditions::Conditions,
    figure::{Better, Figure, show},
};
use crate::{
    output::{Answer, Paint},
    session::Session,
};

const TABLE: &str = "bench";
/// Bytes of a row's value.
const ROW: usize = 300;

/// Measure a migration of every row, beside raw reading and writing with the same client
#[derive(Debug, Args)]
pub(crate) struct MigrateBench {
    /// Rows in the database
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// Which database; etcd and redis-server are started from PATH
    #[arg(long, default_value = "embedded")]
    store: Kind,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    conditions: Conditions,
    objects: usize,
    figures: Vec<Figure>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        format!("{}, {} rows of {ROW} bytes\n\n{}", self.conditions, self.objects, show(&self.figures))
    }
}

static NATIVE: Native = Native {
    id: "bench.native",
    release: "bench",
    description: "adds a field to every row",
    proposed_at: "2026-01-01T00:00:00Z",
    after: &[],
    replaces: &[],
    tables: &[TABLE],
    max_removed: Some(0),
    revision: 1,
    migration: |rows| {
        rows.edit_all(&Table::new(TABLE), |_, row| {
            row.insert("native".to_owned(), true.into());
            Verdict::Keep
        })?;
        Ok(())
    },
};

impl MigrateBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let conditions = Conditions::before();
        let server = Server::start(self.store, folder.path()).await?;
        let rows = rows(self.objects);
        session.say("raw reading and writing …");
        let raw = raw(&server.address, &rows).await?;
        session.say("the same rows as a database …");
        let source = Url::Embedded { path: "bench".into() };
        let seed = folder.path().join("seed.backup");
        backup::write(&seed, &rows, backup::Header::new(&source, "bench", Timestamp::now()))?;
        drop(rows);
        let settings = settings(&server.address, folder.path());
        {
            let database = Database::open(tool(Vec::new())?, settings.clone()).await?;
            database.restore(&seed, &|_| {}).await?;
            database.finalize(&|_| {}).await?;
        }
        session.say("native migration …");
        let (native, _, switch) = apply(vec![&NATIVE], settings.clone()).await?;
        session.say("jq migration …");
        fs::create_dir_all(folder.path().join("migrations/jq"))?;
        fs::write(folder.path().join("migrations/jq/migration.toml"), JQ)?;
        let settings = Settings { paths: vec![folder.path().join("migrations")], ..settings };
        let (_, jq, _) = apply(vec![&NATIVE], settings).await?;
        let least = 2.0 * raw.read.as_secs_f64() + raw.write.as_secs_f64();
        let objects = self.objects as f64;
        let lower =
            |name, unit, ours: f64, peer: &[f64]| Figure::new(name, unit, Better::Lower, &[ours], peer);
        let figures = [
            lower("native apply, beside 2 raw reads + 1 raw write", "s", native.as_secs_f64(), &[least]),
            lower("raw read", "s", raw.read.as_secs_f64(), &[]),
            lower("raw write", "s", raw.write.as_secs_f64(), &[]),
            lower("the switch", "ms", switch, &[]),
            lower("most memory of the tool", "MiB", most_memory_mib()?, &[]),
            Figure::new("jq, in worker processes", "1/s", Better::Higher, &[objects / jq.as_secs_f64()], &[]),
        ];
        session.answer(&Measured {
            conditions: conditions.after(),
            objects: self.objects,
            figures: figures.into_iter().flatten().collect(),
        })
    }
}

const JQ: &str = r#"
id = "bench.jq"
release = "bench"
description = "adds a field to every row"
proposed_at = "2026-01-02T00:00:00Z"
tables = ["bench"]
[jq]
bench = '.jq = true'
"#;

fn rows(count: usize) -> Snapshot {
    let mut rows = Snapshot::default();
    let table = Table::new(TABLE);
    for number in 0..count {
        let id = format!("{:032x}", (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        let start = format!(r#"{{"id":"{id}","number":{number},"padding":""#);
        let padding = ROW.saturating_sub(start.len() + 2);
        rows.put(&table, RowKey::untopical(&id), Bytes::from(format!("{start}{:x<padding$}\"}}", "")));
    }
    rows
}

struct Raw {
    read: Duration,
    write: Duration,
}

/// Writes and reads everything once, with the batches and the requests on their way that a run uses.
async fn raw(address: &str, rows: &Snapshot) -> anyhow::Result<Raw> {
    let url: Url = address.parse()?;
    let store = store::open(&url, Layout::Generation, &Options::default()).await?;
    let held = store::hold(&store, "bench", Duration::from_secs(30)).await?;
    let scratch = Space::Undo(RunNumber::FIRST);
    let limits = store.limits();
    let began = Instant::now();
    let fence = held.fence();
    let writer = store.as_ref();
    stream::iter(store::pack(store::puts(scratch, rows), limits))
        .map(|batch| async move { writer.commit(fence, &batch).await.map(drop) })
        .buffer_unordered(limits.in_flight)
        .try_collect::<()>()
        .await?;
    store.flush().await?;
    let write = began.elapsed();
    let began = Instant::now();
    let (found, _) = store::collect(store.as_ref(), scratch, Reading::Once).await?;
    let read = began.elapsed();
    anyhow::ensure!(found.len() == rows.len(), "{} of {} rows came back", found.len(), rows.len());
    store::clear(store.as_ref(), fence, scratch).await?;
    held.release(store.as_ref()).await?;
    Ok(Raw { read, write })
}

fn settings(address: &str, folder: &Path) -> Settings {
    Settings {
        layout: Layout::Generation,
        create: true,
        no_backup: true,
        answer_seconds: 60,
        backups: folder.join("backups"),
        ..Settings::of(address)
    }
}

fn tool(compiled_in: Vec<&'static Native>) -> anyhow::Result<Tool> {
    let program = std::env::current_exe().context("find our own program")?;
    let worker = Worker::new(program, &["migrate", "worker"]);
    Ok(Tool { version: env!("CARGO_PKG_VERSION"), compiled_in, worker })
}

/// How long the whole run took, its last migration alone, and the switch in milliseconds.
async fn apply(
    compiled_in: Vec<&'static Native>,
    settings: Settings,
) -> anyhow::Result<(Duration, Duration, f64)> {
    let database = Database::open(tool(compiled_in)?, settings).await?;
    let last = Mutex::new(Duration::ZERO);
    let tell = |event| {
        if let (Event::Migrated { milliseconds, .. }, Ok(mut last)) = (event, last.lock()) {
            *last = Duration::from_millis(milliseconds.max(1));
        }
    };
    let began = Instant::now();
    let changed = database.apply(None, &tell).await?;
    let whole = began.elapsed();
    database.finalize(&|_| {}).await?;
    let last = *last.lock().map_err(|_| anyhow::anyhow!("a listener panicked"))?;
    match changed {
        Changed::Applied { switch_microseconds, .. } => {
            Ok((whole, last, switch_microseconds as f64 / 1000.0))
        }
        other => anyhow::bail!("nothing was applied: {other:?}"),
    }
}

fn most_memory_mib() -> anyhow::Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("look at our own memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse::<f64>().ok());
    Ok(kib.context("no VmHWM")? / 1024.0)
}
