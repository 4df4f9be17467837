//! Connections cut, answers lost, servers killed and full disks, in the middle of a run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midflight_migrate::commit::{self, Phase, RunNote, RunRecord, Session, State};
use midflight_migrate::record::{RowKey, Snapshot};
use midflight_migrate::store::{Generation, Layout, Options, Reading, Space, Store, collect};

use serde_json::json;

use crate::foreign;
use crate::proxy::Proxy;
use crate::world::{Kind, Open, World, at_once, new, of, old, put, servers, topic};
use crate::wrapped::{Event, Wrapped};

type Disturb = Arc<dyn Fn() + Send + Sync>;

/// Applies through `far`, with a disturbance before each write in turn (of every `step`), and
/// looks through `open` at what came of it.
async fn disturbed(world: &World, open: &Open, far: &Arc<dyn Store>, disturb: &Disturb, step: usize) {
    let (old, new) = (old(world), new(world));
    let mut succeeded = 0;
    for at in (0..).step_by(step) {
        let what = format!("{world:?}, write {at}");
        let disturb = disturb.clone();
        let event = Event::Meanwhile(Box::new(move || {
            disturb();
            Box::pin(std::future::ready(()))
        }));
        let store = Wrapped::new(far, at, event);
        let session = Session::new(&store, &open.fence, &|_| {});
        let taken = commit::snapshot(&store).await.unwrap();
        let result = session.apply(&taken, &new, RunNote::default()).await;
        let reached = store.reached();

        open.session().recover().await.unwrap();
        let rows = open.rows().await;
        match &result {
            Ok(_) => assert_eq!(rows, new, "{what}"),
            Err(error) => assert!(rows == old || rows == new, "{what}: {error}"),
        }
        succeeded += usize::from(result.is_ok());
        if let State::Applied(_) = commit::state(&*open.store).await.unwrap() {
            open.session().rollback().await.unwrap();
        }
        assert_eq!(open.rows().await, old, "{what}");
        if !reached {
            assert!(succeeded > 1, "{world:?}: runs go on after a disturbance");
            return;
        }
    }
}

fn quick() -> Options {
    Options { timeout: Duration::from_secs(3), ..Options::default() }
}

#[tokio::test]
async fn a_connection_that_is_cut_at_any_write() {
    at_once(servers(), |world| async move {
        let open = Open::holding(&world, &old(&world)).await;
        let proxy = Proxy::to(world.port()).await;
        let far = world.open_at(&world.through(proxy.port), &quick()).await;
        disturbed(&world, &open, &far, &(Arc::new(proxy.cut()) as Disturb), 1).await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_lost_at_any_write() {
    at_once(servers(), |world| async move {
        let open = Open::holding(&world, &old(&world)).await;
        let proxy = Proxy::to(world.port()).await;
        let far = world.open_at(&world.through(proxy.port), &quick()).await;
        disturbed(&world, &open, &far, &(Arc::new(proxy.lose_answer()) as Disturb), 1).await;
    })
    .await;
}

/// Every third write; all of them in the soak.
#[tokio::test]
async fn a_server_that_is_killed_at_any_write() {
    let step = if std::env::var_os("MIDFLIGHT_ALL_DEATHS").is_some() { 1 } else { 3 };
    for mut world in servers() {
        let open = Open::holding(&world, &old(&world)).await;
        let server = Arc::new(Mutex::new(world.server.take().unwrap()));
        let disturb: Disturb = Arc::new(move || {
            let mut server = server.lock().unwrap();
            server.kill();
            server.start_again();
        });
        let store = open.store.clone();
        disturbed(&world, &open, &store, &disturb, step).await;
    }
}

/// What takes deletions only can be got out of, wherever it began: of a run that is not committed nothing is left that
/// takes room.
#[tokio::test]
async fn a_server_that_is_full_from_any_write_on() {
    at_once(servers(), |world| async move {
        let (old, new) = (old(&world), new(&world));
        let open = Open::holding(&world, &old).await;
        for at in 0.. {
            let what = format!("{world:?}, write {at}");
            let store = Wrapped::new(&open.store, at, Event::Full);
            let session = Session::new(&store, &open.fence, &|_| {});
            let taken = commit::snapshot(&store).await.unwrap();
            let result = session.apply(&taken, &new, RunNote::default()).await;
            assert_eq!(result.is_err(), store.reached(), "{what}: {result:?}");
            if let State::Interrupted(record) = commit::state(&*open.store).await.unwrap()
                && record.phase == Phase::Staging
            {
                for space in staged(&record) {
                    let (left, _) = collect(&*open.store, space, Reading::Once).await.unwrap();
                    assert_eq!(left, Snapshot::default(), "{what}: {space}");
                }
            }
            open.session().recover().await.unwrap();
            let rows = open.rows().await;
            assert!(rows == old || rows == new, "{what}");
            if let State::Applied(_) = commit::state(&*open.store).await.unwrap() {
                open.session().rollback().await.unwrap();
            }
            assert_eq!(open.rows().await, old, "{what}");
            if result.is_ok() {
                return;
            }
        }
    })
    .await;
}

/// Where a run keeps what is not live.
fn staged(record: &RunRecord) -> Vec<Space> {
    let run = record.run;
    let mut staged = vec![Space::Journal(run), Space::Undo(run), Space::Seal(run)];
    if record.layout == Layout::Generation {
        staged.push(Space::Generation(Generation::of(run)));
    }
    staged
}

fn bulky(world: &World, rows: usize, size: usize) -> Snapshot {
    let mut bulk = Snapshot::default();
    for number in 0..rows {
        put(&mut bulk, "lport", RowKey::new(topic(world), &number.to_string()), &"x".repeat(size));
    }
    bulk
}

#[tokio::test]
async fn a_full_redis_keeps_the_old_rows_and_is_cleaned_up() {
    for layout in [Layout::Dragonflow, Layout::Generation] {
        let limits = ["--maxmemory", "12mb", "--maxmemory-policy", "noeviction"];
        let Some(world) = World::with(Kind::Redis, layout, &limits) else { return };
        let old = old(&world);
        let open = Open::holding(&world, &old).await;
        let error = open.apply(&bulky(&world, 4000, 10_000)).await.unwrap_err();
        assert!(error.to_string().contains("OOM"), "{world:?}: {error}");
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Settled(_)), "{world:?}");
        assert_eq!(open.rows().await, old, "{world:?}");
        open.apply(&new(&world)).await.unwrap();
    }
}

#[tokio::test]
async fn a_full_etcd_keeps_the_old_rows_and_says_so() {
    for layout in [Layout::Dragonflow, Layout::Generation] {
        let quota = 16 << 20;
        let limits = ["--quota-backend-bytes", &quota.to_string()];
        let Some(world) = World::with(Kind::Etcd, layout, &limits) else { return };
        let old = old(&world);
        let open = Open::holding(&world, &old).await;
        let error = open.apply(&bulky(&world, 4000, 10_000)).await.unwrap_err();
        assert!(error.to_string().contains("space exceeded"), "{world:?}: {error}");
        assert_eq!(open.rows().await, old, "{world:?}");
        let facts = open.store.facts().await.unwrap();
        assert!(facts.alarms.iter().any(|alarm| alarm.starts_with("NOSPACE")), "{world:?}: {facts:?}");

        // What the runbook says, and nothing else is done by hand.
        make_room(world.port(), quota);
        open.session().recover().await.unwrap();
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Settled(_)), "{world:?}");
        assert_eq!(open.rows().await, old, "{world:?}");
        make_room(world.port(), quota);
        open.apply(&new(&world)).await.unwrap();
        assert_eq!(open.rows().await, new(&world), "{world:?}");
    }
}

/// Compacts, defragments and disarms, and again if that was not enough, as an operator of etcd does.
fn make_room(port: u16, quota: u64) {
    const TRIES: usize = 5;
    let refused: Vec<_> = (0..TRIES).map_while(|_| try_to_make_room(port, quota).err()).collect();
    assert!(refused.len() < TRIES, "{refused:#?}");
}

fn try_to_make_room(port: u16, quota: u64) -> Result<(), String> {
    let ask = |path: &str, body| foreign::try_post(port, path, &body);
    let status = ask("/v3/maintenance/status", json!({}))?;
    // Refused where an earlier try has done it; the size tells.
    let _ = ask("/v3/kv/compaction", json!({"revision": status["header"]["revision"], "physical": true}));
    ask("/v3/maintenance/defragment", json!({}))?;
    let alarms = || ask("/v3/maintenance/alarm", json!({"action": "GET"}));
    for alarm in alarms()?["alarms"].as_array().into_iter().flatten() {
        let (member, alarm) = (&alarm["memberID"], &alarm["alarm"]);
        let disarm = json!({"action": "DEACTIVATE", "memberID": member, "alarm": alarm});
        ask("/v3/maintenance/alarm", disarm)?;
    }
    let (status, alarms) = (ask("/v3/maintenance/status", json!({}))?, alarms()?);
    let size: u64 = status["dbSize"].as_str().unwrap().parse().unwrap();
    if size < quota / 2 && alarms["alarms"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    Err(format!("{size} of {quota} bytes are in use, and alarms stand: {alarms}"))
}

/// A run waits for its server; given up in the meantime, it is recovered afterwards.
#[tokio::test]
async fn a_run_that_was_given_up_while_its_server_was_away() {
    at_once(of(&[Kind::Redis]), |mut world| async move {
        let old = old(&world);
        let open = Open::holding(&world, &old).await;
        let taken = commit::snapshot(&*open.store).await.unwrap();
        world.server.as_mut().unwrap().kill();
        let session = open.session();
        let apply = session.apply(&taken, &old, RunNote::default());
        assert!(
            tokio::time::timeout(Duration::from_secs(5), apply).await.is_err(),
            "{world:?}: it has patience for a while"
        );
        world.server.as_mut().unwrap().start_again();
        open.session().recover().await.unwrap();
        assert_eq!(open.rows().await, old, "{world:?}");
        open.apply(&new(&world)).await.unwrap();
    })
    .await;
}
