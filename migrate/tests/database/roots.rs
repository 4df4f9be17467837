//! Dragonflow's rows belong to no root, so a run under another root would have another lock and other journals for them.

use midflight_migrate::commit::{self, CommitError};
use midflight_migrate::run::{Database, Settings, Tool};
use midflight_migrate::store::{Layout, Options, Url};
use midflight_migrate::worker::Worker;

use crate::world::{Kind, Open, TTL, World, old};

#[tokio::test(flavor = "multi_thread")]
async fn etcd_refuses_rows_that_another_root_works_on() {
    refuses_another_root(Kind::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_refuses_rows_that_another_root_works_on() {
    refuses_another_root(Kind::Redis).await;
}

async fn refuses_another_root(kind: Kind) {
    let Some(world) = World::new(kind, Layout::Dragonflow) else { return };
    let url: Url = world.address().parse().unwrap();
    let under = async |root: &str| world.open_at(&url.with_root(root), &Options::default()).await;
    let seen_from =
        async |root: &str| commit::snapshot(&*under(root).await).await.map(|taken| taken.snapshot);

    // A lock alone: its first run has just begun. Also a root within ours is another one.
    for root in ["nb", "midflight/nb"] {
        let other = under(root).await;
        let fence = other.lock("somebody", TTL).await.unwrap();
        let refused = seen_from("midflight").await.unwrap_err();
        assert!(
            matches!(&refused, CommitError::OtherRoot { root: found } if found == root),
            "{kind:?}: {refused}"
        );
        other.unlock(&fence).await.unwrap();
        seen_from("midflight").await.unwrap();
    }

    // And a run note, whatever it says.
    let open = Open::holding(&world, &old(&world)).await;
    open.store.unlock(&open.fence).await.unwrap();
    assert_eq!(seen_from("midflight").await.unwrap(), old(&world));
    for root in ["nb", "midflight/nb"] {
        let refused = seen_from(root).await.unwrap_err();
        assert!(
            matches!(&refused, CommitError::OtherRoot { root } if root == "midflight"),
            "{kind:?}: {refused}"
        );
    }
    let tool = Tool { version: "test", compiled_in: vec![], worker: Worker::new("/bin/false", &[]) };
    let database = Database::open(tool, Settings::of(url.with_root("nb").to_string())).await.unwrap();
    let refused = database.status(&|_| {}).await.unwrap_err();
    let told = format!("name the database as {url}");
    assert!(refused.is_refusal() && refused.to_string().contains(&told), "{kind:?}: {refused}");

    // Generations lie under their root, and are no business of another.
    let world = world.seen_as(Layout::Generation);
    let generations = world.open_at(&url.with_root("gen"), &Options::default()).await;
    let generations = Open::lock(generations).await;
    generations.apply(&old(&world)).await.unwrap();
    let world = world.seen_as(Layout::Dragonflow);
    let plain = world.open_at(&url, &Options::default()).await;
    commit::snapshot(&*plain).await.unwrap();
}
