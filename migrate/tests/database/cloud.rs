//! Our database as a step of a cloud upgrade, after a part of that upgrade was killed.

use std::sync::Mutex;
use std::time::Duration;

use midflight_migrate::cloud::OurDatabase;
use midflight_migrate::migration::Native;
use midflight_migrate::run::{Event, InCloud, Settings, Tool};
use midflight_migrate::worker::Worker;

use crate::world::servers;

static NOTHING: Native = Native {
    id: "nothing",
    release: "r",
    description: "changes nothing",
    proposed_at: "2018-01-01T00:00:00Z",
    after: &[],
    replaces: &[],
    tables: &["thing"],
    max_removed: None,
    revision: 1,
    fixtures: None,
    migration: |_| Ok(()),
};

#[tokio::test(flavor = "multi_thread")]
async fn the_next_start_waits_for_the_lock_of_the_one_that_was_killed() {
    for world in servers() {
        // Nobody renews or frees it: its holder is dead.
        world.open().await.lock("the killed one", Duration::from_secs(2)).await.unwrap();
        let tool =
            Tool { version: "test", compiled_in: vec![&NOTHING], worker: Worker::new("/bin/false", &[]) };
        let settings = Settings { layout: world.layout, no_backup: true, ..Settings::of(world.address()) };
        let told = Mutex::new(vec![]);
        let tell = |event: Event| {
            if let Event::Warning { text } = event {
                told.lock().unwrap().push(text);
            }
        };
        let step = InCloud::new(tool, settings, "upgrade", &tell);
        let applied = step.apply().await.unwrap();
        assert!(applied.starts_with("run 1: 1 migrations"), "{world:?}: {applied}");
        let told = told.lock().unwrap();
        assert!(told.iter().any(|text| text.contains("the killed one")), "{world:?}: {told:?}");
    }
}
