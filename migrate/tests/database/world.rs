//! A database of each kind and layout, and the rows that tests put there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use midflight_migrate::commit::{self, Applied, CommitError, RunNote, Session};
use midflight_migrate::record::{RowKey, Snapshot, Table};
use midflight_migrate::store::{self, Fence, Layout, Note, Options, Store, Url};
use tempfile::TempDir;

use crate::server::{Program, Server, folder};

/// Longer than any test: leases end in the tests that are about that, and nowhere else.
pub(crate) const TTL: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Embedded,
    Etcd,
    Redis,
}

/// One database. Servers end with it.
pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) layout: Layout,
    pub(crate) server: Option<Server>,
    url: Url,
    _folder: TempDir,
}

impl World {
    /// The same database by way of another port.
    pub(crate) fn through(&self, port: u16) -> Url {
        let scheme = if self.kind == Kind::Etcd { "etcd" } else { "redis" };
        format!("{scheme}://127.0.0.1:{port}").parse().unwrap()
    }

    pub(crate) fn new(kind: Kind, layout: Layout) -> Option<World> {
        World::with(kind, layout, &[])
    }

    /// The same database, taken for one of the other layout.
    pub(crate) fn seen_as(self, layout: Layout) -> World {
        World { layout, ..self }
    }

    /// With more arguments for the server.
    pub(crate) fn with(kind: Kind, layout: Layout, extra: &[&str]) -> Option<World> {
        let folder = folder();
        let (server, url) = match kind {
            Kind::Embedded => (None, format!("embedded:{}", folder.path().join("db").display())),
            Kind::Etcd => {
                let server = Server::start(Program::Etcd, extra)?;
                let url = format!("etcd://127.0.0.1:{}", server.port);
                (Some(server), url)
            }
            Kind::Redis => {
                let server = Server::start(Program::Redis, extra)?;
                let url = format!("redis://127.0.0.1:{}", server.port);
                (Some(server), url)
            }
        };
        Some(World { kind, layout, server, url: url.parse().unwrap(), _folder: folder })
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("a file has no server")
    }

    pub(crate) fn port(&self) -> u16 {
        self.server().port
    }

    pub(crate) fn address(&self) -> String {
        self.url.to_string()
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        self.open_at(&self.url, &Options::default()).await
    }

    /// Waits until the server answers: it listens before it serves.
    pub(crate) async fn open_at(&self, url: &Url, options: &Options) -> Arc<dyn Store> {
        let began = Instant::now();
        loop {
            let tried = match store::open(url, self.layout, options).await {
                Ok(store) => store.note(Note::Run).await.map(|_| store),
                Err(error) => Err(error),
            };
            match tried {
                Ok(store) => return store,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{self:?}: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.kind, self.layout)
    }
}

/// These kinds in both layouts, as far as this machine can run them.
pub(crate) fn of(kinds: &'static [Kind]) -> impl Iterator<Item = World> {
    let layouts = [Layout::Dragonflow, Layout::Generation];
    kinds.iter().flat_map(move |kind| layouts.into_iter().filter_map(move |layout| World::new(*kind, layout)))
}

pub(crate) fn worlds() -> impl Iterator<Item = World> {
    of(&[Kind::Embedded, Kind::Etcd, Kind::Redis])
}

pub(crate) fn servers() -> impl Iterator<Item = World> {
    of(&[Kind::Etcd, Kind::Redis])
}

/// Tries all of them at once: most of the time is spent waiting.
pub(crate) async fn at_once<Tried: Future<Output = ()>>(
    worlds: impl Iterator<Item = World>,
    test: impl Fn(World) -> Tried,
) {
    futures::future::join_all(worlds.map(test)).await;
}

/// An open database with its lock held.
pub(crate) struct Open {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) fence: Fence,
}

impl Open {
    pub(crate) async fn lock(store: Arc<dyn Store>) -> Open {
        let fence = store.lock("test", TTL).await.unwrap();
        Open { store, fence }
    }

    /// Opened and filled; the run that filled it is final.
    pub(crate) async fn holding(world: &World, rows: &Snapshot) -> Open {
        let open = Open::lock(world.open().await).await;
        open.apply(rows).await.unwrap();
        open.session().finalize().await.unwrap();
        open
    }

    pub(crate) fn session(&self) -> Session<'_> {
        Session::new(&*self.store, &self.fence, &|_| {})
    }

    pub(crate) async fn apply(&self, after: &Snapshot) -> Result<Applied, CommitError> {
        let taken = commit::snapshot(&*self.store).await?;
        self.session().apply(&taken, after, RunNote::default()).await
    }

    pub(crate) async fn rows(&self) -> Snapshot {
        commit::snapshot(&*self.store).await.unwrap().snapshot
    }
}

/// etcd keeps no topic in Dragonflow's keys, so its rows have none.
pub(crate) fn topic(world: &World) -> &'static str {
    match (world.kind, world.layout) {
        (Kind::Etcd, Layout::Dragonflow) => "",
        (Kind::Etcd, Layout::Generation) | (Kind::Embedded | Kind::Redis, _) => "topic-1",
    }
}

pub(crate) fn put(rows: &mut Snapshot, table: &str, key: RowKey, value: &str) {
    rows.put(&Table::new(table), key, Bytes::copy_from_slice(value.as_bytes()));
}

/// A small cloud, with a counter.
pub(crate) fn old(world: &World) -> Snapshot {
    let mut rows = Snapshot::default();
    for number in 0..7 {
        put(
            &mut rows,
            "lport",
            RowKey::new(topic(world), &format!("port-{number}")),
            &format!("{{\"old\":{number}}}"),
        );
    }
    put(&mut rows, "lswitch", RowKey::new(topic(world), "net"), "{}");
    put(&mut rows, "unique_key", RowKey::untopical("lport"), "17");
    rows
}

/// The same after a migration: rows changed, added and removed, one table gone and one new.
pub(crate) fn new(world: &World) -> Snapshot {
    let mut rows = Snapshot::default();
    for number in [0, 1, 2, 5, 6, 9] {
        let value = if number < 2 { "old" } else { "new" };
        put(
            &mut rows,
            "lport",
            RowKey::new(topic(world), &format!("port-{number}")),
            &format!("{{\"{value}\":{number}}}"),
        );
    }
    put(&mut rows, "lsubnet", RowKey::new(topic(world), "subnet"), "{}");
    put(&mut rows, "unique_key", RowKey::untopical("lport"), "18");
    rows
}
