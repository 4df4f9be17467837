//! A Redis that keeps no log, killed with -9 after each write of a run: it forgets all that it did not
//! save. Nothing is lost of what a run has reported, and what it has not is the old or the new.

use std::sync::{Arc, Mutex};

use midflight_migrate::commit::{self, State};
use midflight_migrate::store::Layout;

use crate::crash::{Doing, Scene, act};
use crate::foreign;
use crate::server::Server;
use crate::world::{Kind, World};
use crate::wrapped::{Event, Wrapped};

fn restart(server: &Arc<Mutex<Server>>) -> impl Fn() + Send + Sync + 'static {
    let server = server.clone();
    move || {
        let mut server = server.lock().unwrap();
        server.kill();
        server.start_again();
    }
}

/// `knows_lock`: the server happened to save when the run had just begun, so that it still knows the
/// lock when it has forgotten the rest.
async fn forgets_after_each_write(layout: Layout, knows_lock: bool, step: usize) {
    let no_log = ["--appendonly", "no"];
    let Some(mut world) = World::with(Kind::Redis, layout, &no_log) else { return };
    let server = Arc::new(Mutex::new(world.server.take().unwrap()));
    let mut scene = Scene::new(world).await;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let first = number("MIDFLIGHT_SEED").unwrap_or(0) % step;
    for doing in [Doing::Apply, Doing::RollBack, Doing::Finalize] {
        for at in (first..).step_by(step) {
            let what = format!("{layout:?}, {doing:?}, write {at}, knows the lock: {knows_lock}");
            scene.set(!matches!(doing, Doing::Apply)).await;
            if knows_lock {
                scene.store.flush().await.unwrap();
            }
            let forget = restart(&server);
            let store = Wrapped::new(&scene.store, at, Event::Afterwards(Box::new(forget)));
            let result = act(doing, &store, &scene.fence, &scene.new).await;
            let reached = store.reached();
            if result.is_ok() {
                // What was reported survives the next death too.
                restart(&server)();
            }

            scene.store = scene.world.open().await;
            // A lock of long ago may be back with what was saved then; its lease ends like any other.
            foreign::redis(server.lock().unwrap().port, &["DEL", "{midflight}:meta:lock"]);
            scene.start_again().await;
            scene.session().recover().await.unwrap();
            let (rows, state) = (scene.rows().await, commit::state(&*scene.store).await.unwrap());
            let applied = matches!(state, State::Applied(_));
            match (&result, doing) {
                (Ok(()), Doing::Apply) => assert!(rows == scene.new && applied, "{what}"),
                (Ok(()), Doing::RollBack) => assert!(rows == scene.old && !applied, "{what}"),
                (Ok(()), Doing::Finalize) => assert!(rows == scene.new && !applied, "{what}"),
                (Err(_), _) => assert!(rows == scene.old || rows == scene.new, "{what}: a mixture"),
            }
            scene.check_whole(&what).await;
            if !reached {
                assert!(result.is_ok(), "{what}: {result:?}");
                break;
            }
        }
    }
}

/// Every ninth write, from where the seed says; all of them in the soak.
fn step() -> usize {
    if std::env::var_os("MIDFLIGHT_ALL_DEATHS").is_some() { 1 } else { 9 }
}

#[tokio::test]
async fn forgets_with_dragonflow_keys() {
    for knows_lock in [false, true] {
        forgets_after_each_write(Layout::Dragonflow, knows_lock, step()).await;
    }
}

#[tokio::test]
async fn forgets_with_generations() {
    for knows_lock in [false, true] {
        forgets_after_each_write(Layout::Generation, knows_lock, step()).await;
    }
}
