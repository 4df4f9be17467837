//! `midflight bench migrate`: a whole migration beside the raw rates of the same client.
//!
//! The peer is what nobody can beat with this client and this server: reading everything twice (once to
//! migrate it, once to verify it) and writing everything once. It is measured before and after, so that a
//! machine or a server that becomes slower meanwhile does not favour either side. Each part is a process of its
//! own: its memory is its own, and none starts with caches that another has filled.

pub(super) mod child;
mod once;
mod raw;
mod server;

use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use jiff::Timestamp;
use midflight_migrate::{
    backup,
    record::{RowKey, Snapshot, Table},
    run::{Database, Settings},
    store::Url,
};
use serde::Serialize;

use self::{
    child::Part,
    once::{Taken, settings},
    raw::Raw,
    server::{Kind, Server},
};
use super::conditions::Conditions;
use crate::{
    command::migrate::tool,
    output::{Answer, Paint, table},
    session::Session,
};

/// The table of ports, as the examples call it.
const TABLE: &str = "lport";
/// Bytes of a row's value.
const ROW: usize = 300;

/// Measure a migration of every row, beside raw reading and writing with the same client
///
/// Each database is started from PATH with its usual settings (Redis with a log that is synced every second), and is
/// gone afterwards. The migration makes its backup while it stages, as `midflight migrate apply` does.
#[derive(Debug, Args)]
pub(crate) struct MigrateBench {
    /// Rows in the database
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// Which databases, one after another
    #[arg(long, value_delimiter = ',', default_value = "embedded,etcd,redis")]
    databases: Vec<Kind>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    objects: usize,
    row_bytes: usize,
    databases: Vec<OfDatabase>,
}

/// What was measured on one database.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OfDatabase {
    database: Kind,
    conditions: Conditions,
    raw_read_per_second: f64,
    raw_write_per_second: f64,
    /// Two raw reads and one raw write.
    raw_seconds: f64,
    /// Of the whole run, backup included.
    ratio: f64,
    /// With the lightest filter.
    jq_per_second: f64,
    /// With the port-binding migration of the examples.
    binding_per_second: f64,
    native: Taken,
    jq: Taken,
    binding: Taken,
}

impl MigrateBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut databases = Vec::new();
        for database in self.databases {
            let measured = measure(database, self.objects, session);
            databases.push(measured.await.with_context(|| format!("measure {database}"))?);
        }
        session.answer(&Measured { objects: self.objects, row_bytes: ROW, databases })
    }
}

async fn measure(database: Kind, objects: usize, session: &Session) -> anyhow::Result<OfDatabase> {
    let conditions = Conditions::before();
    let folder = tempfile::tempdir().context("make a folder")?;
    let place = folder.path();
    let server = Server::start(database, place).await?;
    let address = &server.address;
    let rows = place.join("rows.backup");
    let source = Url::Embedded { path: "bench".into() };
    backup::write(&rows, &make_rows(objects), backup::Header::new(&source, "bench", Timestamp::now()))?;
    session.say(format!("{database}: raw writing and reading …"));
    let mut raw: Vec<Raw> = vec![child::run(Part::Raw, address, place, &rows).await?];
    session.say(format!("{database}: the same rows as a database …"));
    seed(address, &rows).await?;
    session.say(format!("{database}: native migration …"));
    let native: Taken = child::run(Part::Native, address, place, &rows).await?;
    session.say(format!("{database}: raw writing and reading again …"));
    raw.push(child::run(Part::Raw, address, place, &rows).await?);
    session.say(format!("{database}: jq migration …"));
    let jq: Taken = child::run(Part::Jq, address, place, &rows).await?;
    session.say(format!("{database}: the port-binding migration …"));
    let binding: Taken = child::run(Part::Binding, address, place, &rows).await?;

    let mean = |of: fn(&Raw) -> f64| raw.iter().map(of).sum::<f64>() / raw.len() as f64;
    let (read, write) = (mean(|raw| raw.read_seconds), mean(|raw| raw.write_seconds));
    let raw_seconds = 2.0 * read + write;
    Ok(OfDatabase {
        database,
        conditions: conditions.after(),
        raw_read_per_second: objects as f64 / read,
        raw_write_per_second: objects as f64 / write,
        raw_seconds,
        ratio: native.apply_seconds / raw_seconds,
        jq_per_second: objects as f64 / jq.migration_seconds,
        binding_per_second: objects as f64 / binding.migration_seconds,
        native,
        jq,
        binding,
    })
}

fn make_rows(count: usize) -> Snapshot {
    let mut rows = Snapshot::default();
    let table = Table::new(TABLE);
    for number in 0..count {
        let id = format!("{:032x}", (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        let (chassis, remote) = match number % 16 {
            0 => (format!("192.0.2.{}", number % 250), true),
            _ => (format!("compute-{}", number % 1000), false),
        };
        let start = format!(
            r#"{{"chassis":"{chassis}","id":"{id}","number":{number},"remote_vtep":{remote},"padding":""#
        );
        let padding = ROW.saturating_sub(start.len() + 2);
        rows.put(&table, RowKey::untopical(&id), Bytes::from(format!("{start}{:x<padding$}\"}}", "")));
    }
    rows
}

/// Makes the rows the live ones of a database.
async fn seed(address: &str, rows: &Path) -> anyhow::Result<()> {
    let settings = Settings { no_backup: true, ..settings(address) };
    let database = Database::open(tool()?, settings).await?;
    database.restore(rows, &|_| {}).await?;
    database.finalize(&|_| {}).await?;
    Ok(())
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        let mut text = format!("{} rows of {} bytes\n", self.objects, self.row_bytes);
        for database in &self.databases {
            text += &format!("\n{}: {}\n{}", database.database, database.conditions, database.to_table());
        }
        text
    }
}

impl OfDatabase {
    fn to_table(&self) -> String {
        let row = |name: &str, value: String, goal: &str| [name.to_owned(), value, goal.to_owned()];
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        let mut rows = vec![
            row("raw read", format!("{:.0}/s", self.raw_read_per_second), ""),
            row("raw write", format!("{:.0}/s", self.raw_write_per_second), ""),
            row("2 raw reads + 1 raw write", seconds(self.raw_seconds), ""),
            row("native apply", seconds(self.native.apply_seconds), ""),
        ];
        let phases = self.native.phases.iter();
        rows.extend(phases.map(|phase| row(&format!("  {}", phase.name), seconds(phase.seconds), "")));
        rows.extend(
            self.native.back_up_seconds.map(|took| row("  (back up, while staging)", seconds(took), "")),
        );
        rows.extend([
            row("native apply / raw", format!("{:.2}", self.ratio), "1.3"),
            row("the switch", format!("{:.2} ms", self.native.switch_ms), "10 ms"),
            row("most memory", format!("{:.0} MiB", self.native.peak_mib), "2048 MiB"),
            row("clean up (finalize)", seconds(self.native.clean_up_seconds), ""),
            row("jq filter that adds a field", format!("{:.0}/s", self.jq_per_second), "80000/s"),
            row("jq filter of port-binding", format!("{:.0}/s", self.binding_per_second), "80000/s"),
            row("most memory with jq, workers apart", format!("{:.0} MiB", self.jq.peak_mib), ""),
        ]);
        table(["MEASURE", "VALUE", "GOAL"], rows)
    }
}
