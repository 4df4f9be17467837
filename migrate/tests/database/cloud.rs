//! Our database as a step of a cloud upgrade, after a part of that upgrade was killed.

use std::sync::Mutex;
use std::time::Duration;

use midflight_migrate::cloud::OurDatabase;
use midflight_migrate::run::{Event, InCloud, Settings, Tool};
use midflight_migrate::worker::Worker;

use crate::world::servers;

#[tokio::test(flavor = "multi_thread")]
async fn the_next_start_waits_for_the_lock_of_the_one_that_was_killed() {
    for world in servers() {
        // Nobody renews or frees it: its holder is dead.
        world.open().await.lock("the killed one", Duration::from_secs(2)).await.unwrap();
        let tool = Tool { version: "test", compiled_in: vec![], worker: Worker::new("/bin/false", &[]) };
        let settings = Settings { layout: world.layout, ..Settings::of(world.address()) };
        let told = Mutex::new(vec![]);
        let tell = |event: Event| {
            if let Event::Warning { text } = event {
                told.lock().unwrap().push(text);
            }
        };
        let step = InCloud::new(tool, settings, "upgrade", &tell);
        assert_eq!(step.apply().await.unwrap(), "no migration is pending", "{world:?}");
        let told = told.lock().unwrap();
        assert!(told.iter().any(|text| text.contains("the killed one")), "{world:?}: {told:?}");
    }
}
