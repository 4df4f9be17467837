//! Brings Midflight's own store to what this version expects, before it is served.
//!
//! The store is migrated as any database is: what is pending runs on a copy in memory, with an entry in
//! the log for each, and the differences are written in one commit. Tables are resources
//! (`volumes.longhorn.io`), topics are namespaces, ids are names.
//!
//! The one invariant: the store holds the old objects, or the new ones together with the log that says so.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;
use jiff::Timestamp;
use midflight_apiserver::{
    kind::ResourceId,
    store::{Body, Change, Key, Offline, OpenError, Version},
};
use midflight_migrate::{
    diff,
    migration::{self, Allowed, Context, Migration, Native, OrderError, log},
    record::{RowKey, Snapshot, Table},
    worker::Worker,
};
use serde_json::Value;
use tracing::info;

use crate::{failure::Failure, folder::STORE_BEFORE};

/// Every change of our own format, compiled in. None was needed yet.
pub(crate) const MIGRATIONS: &[&Native] = &[];

/// Runs what is pending on the store at `path`; gives the ids. A store that is new has nothing to be
/// changed: everything counts as applied.
pub(crate) fn bring_up_to_date(path: &Path, compiled_in: &[&'static Native]) -> anyhow::Result<Vec<String>> {
    let fresh = !path.exists();
    if fresh && compiled_in.is_empty() {
        return Ok(Vec::new());
    }
    let mut store = match Offline::open_or_create(path) {
        Ok(store) => store,
        // Told better when the server opens it.
        Err(error) if !fresh => return refused_later(&error),
        Err(error) => return Err(anyhow::Error::new(error).context("make the API's store")),
    };
    let available = migration::load_for_resources(compiled_in).context("load our own migrations")?;
    let (before, versions) = snapshot(&store);
    let pending = pending(&available, &before)?;
    if pending.is_empty() {
        return Ok(Vec::new());
    }
    let mut after = before.clone();
    if fresh {
        for migration in &pending {
            log::write(&mut after, &log::Entry::of(migration, Timestamp::now(), env!("CARGO_PKG_VERSION")));
        }
    } else {
        let worker = Worker::new("", &[]);
        let context = Context {
            worker: &worker,
            tool_version: env!("CARGO_PKG_VERSION"),
            clock: &Timestamp::now,
            progress: &|_| {},
        };
        migration::run(&pending, &mut after, &context).context("bring the API's store up to date")?;
        drop(store);
        keep_copy(path, &pending[0].header.id)?;
        store = Offline::open_or_create(path).context("open the API's store again")?;
    }
    store
        .write(changes(&before, &after, &versions)?)
        .context("write what our own migrations changed; all of it or nothing is in the store")?;
    let ids: Vec<String> = pending.iter().map(|migration| migration.header.id.clone()).collect();
    info!(?ids, fresh, "the store is up to date");
    Ok(ids)
}

/// Copies the store as it is before a change, so that the program of before can be gone back to.
fn keep_copy(path: &Path, id: &str) -> anyhow::Result<()> {
    let kept = path.with_file_name(format!("{STORE_BEFORE}{id}"));
    let copied = fs::copy(path, &kept).and_then(|_| fs::File::open(&kept)?.sync_all());
    copied.with_context(|| format!("copy the API's store to {} before it is changed", kept.display()))
}

/// A store that cannot be opened is refused by the server itself, with advice.
fn refused_later(error: &OpenError) -> anyhow::Result<Vec<String>> {
    info!(%error, "our own migrations are not looked at");
    Ok(Vec::new())
}

fn pending<'a>(available: &'a [Migration], before: &Snapshot) -> anyhow::Result<Vec<&'a Migration>> {
    let headers: Vec<_> = available.iter().map(|migration| migration.header.clone()).collect();
    let entries = log::read(before).context("read the log of our own migrations")?;
    let applied: Vec<_> = entries.iter().map(log::Entry::applied).collect();
    let order = migration::pending(&headers, &applied, Allowed::default()).map_err(|error| match &error {
        OrderError::NewerDatabase { id, .. } => Failure::error(
            format!("the API's store was written by a newer version: {id} is applied to it"),
            "use the newer midflight that wrote it, or another --dir; nothing was changed",
        ),
        _ => anyhow::Error::new(error).context("order our own migrations"),
    })?;
    Ok(order.into_iter().map(|index| &available[index]).collect())
}

type Versions = BTreeMap<(Table, RowKey), Version>;

fn snapshot(store: &Offline) -> (Snapshot, Versions) {
    let (mut rows, mut versions) = (Snapshot::default(), Versions::new());
    for (key, stored) in store.records() {
        let (table, row) =
            (table(&key.resource), RowKey::new(key.namespace.as_deref().unwrap_or(""), &key.name));
        rows.put(&table, row.clone(), stored.bytes.clone());
        versions.insert((table, row), stored.version);
    }
    (rows, versions)
}

fn changes(before: &Snapshot, after: &Snapshot, versions: &Versions) -> anyhow::Result<Vec<Change>> {
    let body = |bytes: &[u8]| -> anyhow::Result<Body> {
        Ok(Body::new(&serde_json::from_slice::<Value>(bytes).context("read an object")?))
    };
    let mut changes = Vec::new();
    for (table, row, change) in diff::changes(before, after) {
        let key = key(table, row);
        let expected = versions.get(&(table.clone(), row.clone())).copied();
        changes.push(match (change, expected) {
            (diff::Change::Added { after }, _) => Change::Create { key, body: body(after)? },
            (diff::Change::Changed { after, .. }, Some(expected)) => {
                Change::Replace { key, body: body(after)?, expected }
            }
            (diff::Change::Removed { before }, Some(expected)) => {
                Change::Delete { key, last: body(before)?, expected }
            }
            (diff::Change::Changed { .. } | diff::Change::Removed { .. }, None) => {
                anyhow::bail!("{table} {row} has no version")
            }
        });
    }
    Ok(changes)
}

fn table(resource: &ResourceId) -> Table {
    let ResourceId { group, plural } = resource;
    if group.is_empty() { Table::new(plural) } else { Table::new(format!("{plural}.{group}")) }
}

fn key(table: &Table, row: &RowKey) -> Key {
    let (plural, group) = table.as_str().split_once('.').unwrap_or((table.as_str(), ""));
    let resource = ResourceId { group: group.into(), plural: plural.into() };
    Key::new(resource, Some(&*row.topic).filter(|topic| !topic.is_empty()), &row.id)
}

#[cfg(test)]
mod tests {
    use midflight_apiserver::{ApiServer, Config};
    use midflight_migrate::northbound::Verdict;
    use serde_json::json;

    use super::*;

    static RENAME: Native = Native {
        id: "midflight.store.rename",
        release: "0.2",
        description: "colour becomes paint",
        proposed_at: "2026-11-16T00:00:00Z",
        after: &[],
        replaces: &[],
        tables: &["configmaps", "volumes.longhorn.io"],
        max_removed: Some(0),
        revision: 1,
        fixtures: None,
        migration: |rows| {
            for (table, part) in [("configmaps", "data"), ("volumes.longhorn.io", "spec")] {
                rows.edit_each(&Table::new(table), |_, object| {
                    if let Some(part) = object.get_mut(part).and_then(Value::as_object_mut)
                        && let Some(colour) = part.remove("colour")
                    {
                        part.insert("paint".to_owned(), colour);
                    }
                    Verdict::Keep
                })?;
            }
            Ok(())
        },
    };

    static FAILS: Native = Native {
        id: "midflight.store.fails",
        proposed_at: "2026-11-17T00:00:00Z",
        migration: |_| Err("no".into()),
        ..RENAME
    };

    /// Of a kind of every cluster, and of one that is learnt from a CRD.
    fn keys() -> [Key; 2] {
        let key = |group: &str, plural: &str| {
            let resource = ResourceId { group: group.into(), plural: plural.into() };
            Key::new(resource, Some("default"), "a")
        };
        [key("", "configmaps"), key("longhorn.io", "volumes")]
    }

    fn old_store(path: &Path) {
        let metadata = json!({"name": "a", "namespace": "default"});
        let objects = [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"colour": "red"}}),
            json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": metadata,
                "spec": {"colour": "red"}}),
        ];
        let made = keys().into_iter().zip(objects);
        let made = made.map(|(key, object)| Change::Create { key, body: Body::new(&object) });
        Offline::open_or_create(path).unwrap().write(made.collect()).unwrap();
    }

    /// What both objects hold.
    fn held(path: &Path) -> Value {
        let store = Offline::open(path).unwrap();
        let held = keys().map(|wanted| {
            let (_, found) = store.records().find(|(key, _)| *key == wanted).unwrap();
            let object = serde_json::from_slice::<Value>(&found.bytes).unwrap();
            object.get("data").or(object.get("spec")).unwrap().clone()
        });
        assert_eq!(held[0], held[1]);
        held[0].clone()
    }

    #[tokio::test]
    async fn runs_once_with_a_log_and_is_served_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        old_store(&path);
        assert_eq!(bring_up_to_date(&path, &[&RENAME]).unwrap(), ["midflight.store.rename"]);
        assert_eq!(held(&path), json!({"paint": "red"}));
        assert_eq!(
            held(&folder.path().join("store.redb.before-midflight.store.rename")),
            json!({"colour": "red"})
        );
        assert_eq!(bring_up_to_date(&path, &[&RENAME]).unwrap(), Vec::<String>::new());
        let server = ApiServer::open(Config::new(folder.path())).await.unwrap();
        server.shutdown().await;
    }

    #[test]
    fn a_failure_leaves_the_store_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        old_store(&path);
        let version = Offline::open(&path).unwrap().version();
        assert!(bring_up_to_date(&path, &[&RENAME, &FAILS]).is_err());
        assert_eq!(held(&path), json!({"colour": "red"}));
        assert_eq!(Offline::open(&path).unwrap().version(), version);
    }

    #[test]
    fn a_new_store_counts_as_up_to_date() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        assert_eq!(bring_up_to_date(&path, &[&FAILS]).unwrap(), ["midflight.store.fails"]);
        assert_eq!(bring_up_to_date(&path, &[&FAILS]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_store_of_a_newer_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        old_store(&path);
        bring_up_to_date(&path, &[&RENAME]).unwrap();
        let error = bring_up_to_date(&path, &[]).unwrap_err();
        assert!(error.to_string().contains("newer version: midflight.store.rename"), "{error}");
        assert_eq!(held(&path), json!({"paint": "red"}));
    }
}
