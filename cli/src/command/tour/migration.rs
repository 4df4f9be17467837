//! Act: a small cloud moves to a new schema, back, and forward again.
//!
//! The migrations are the historical changes of Dragonflow, run by the real worker processes.

use std::{fs, path::Path};

use anyhow::Context;
use jiff::Timestamp;
use midflight_migrate::{
    backup,
    record::Snapshot,
    run::{Changed, Database, Settings, Tool},
    sample::{self, Topics},
    store::{Layout, Url},
    worker::Worker,
};

use super::{program::Outcome, stage::Stage};

const PORTS: usize = 1_000;

/// Brings an example migration along in the binary.
macro_rules! example {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!(
                "../../../../examples/migrations/dragonflow/migrations/",
                $name,
                "/migration.toml"
            )),
        )
    };
}

const MIGRATIONS: [(&str, &str); 9] = [
    example!("dhcp-options-by-tag"),
    example!("port-binding"),
    example!("dhcp-params"),
    example!("subnet-dhcp-fields"),
    example!("subnet-table"),
    example!("floatingip-name"),
    example!("floatingip-key"),
    example!("ovsport-peer-bridge"),
    example!("switch-port"),
];
const MODELS: &str = include_str!("../../../../examples/migrations/dragonflow/models/queens.toml");

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let room = stage.cluster.room("migration");
    let tool = Tool {
        version: env!("CARGO_PKG_VERSION"),
        compiled_in: Vec::new(),
        worker: Worker::new(&stage.cluster.starter.program, &["migrate", "worker"]),
    };
    let cloud = sample::cloud(PORTS, 1, Topics::InKeys);
    let settings = prepare(&room, &cloud)?;
    let database = Database::open(tool, settings).await?;
    let silent = |_| {};
    database.restore(&room.join("cloud.backup"), &silent).await?;
    database.finalize(&silent).await?;

    let plan = database.plan(&silent).await?;
    anyhow::ensure!(plan.refused_because.is_empty(), "{:?}", plan.refused_because);
    let changed: u64 = plan.tables.values().map(|table| table.added + table.changed + table.removed).sum();
    let (switch, rows_after) = applied(database.apply(None, &silent).await?)?;
    database.rollback(&silent).await?;
    let back = room.join("back.backup");
    database.backup(&back, &silent).await?;
    anyhow::ensure!(backup::read(&back)?.1 == cloud, "the rollback did not give the same bytes back");
    applied(database.apply(None, &silent).await?)?;
    database.finalize(&silent).await?;
    let log = database.history(&silent).await?;
    anyhow::ensure!(log.len() == MIGRATIONS.len(), "{} entries in the log", log.len());
    let again = database.apply(None, &silent).await?;
    anyhow::ensure!(matches!(again, Changed::Nothing { .. }), "something was pending: {again:?}");
    Ok(Outcome::Shown(vec![
        format!(
            "planned on {} rows of a cloud: {} migrations, {changed} rows to change, {} rules broken",
            cloud.len(),
            plan.migrations.len(),
            plan.violations
        ),
        format!("applied: {rows_after} rows, live by one switch of {:.2} ms", switch as f64 / 1000.0),
        format!("rolled back: all {} rows are what they were, byte for byte", cloud.len()),
        format!("applied again and made final; the log has {} entries", log.len()),
    ]))
}

fn prepare(room: &Path, cloud: &Snapshot) -> anyhow::Result<Settings> {
    let migrations = room.join("migrations");
    for (name, text) in MIGRATIONS {
        let folder = migrations.join(name);
        fs::create_dir_all(&folder).context("make a folder for the migrations")?;
        fs::write(folder.join("migration.toml"), text).context("write a migration")?;
    }
    let models = room.join("queens.toml");
    fs::write(&models, MODELS).context("write the models")?;
    let source = Url::Embedded { path: "sample".into() };
    let header = backup::Header::new(&source, env!("CARGO_PKG_VERSION"), Timestamp::now());
    backup::write(&room.join("cloud.backup"), cloud, header)?;
    Ok(Settings {
        layout: Layout::Generation,
        create: true,
        paths: vec![migrations],
        models: Some(models),
        backups: room.join("backups"),
        ..Settings::of(format!("embedded:{}", room.join("cloud.redb").display()))
    })
}

/// How long the switch took, and how many rows there are.
fn applied(changed: Changed) -> anyhow::Result<(u64, u64)> {
    match changed {
        Changed::Applied { switch_microseconds, rows_after, .. } => Ok((switch_microseconds, rows_after)),
        other => anyhow::bail!("nothing was applied: {other:?}"),
    }
}
