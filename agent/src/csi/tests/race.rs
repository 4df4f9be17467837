//! Calls that come at the same time, in every order that chance makes.

use tonic::Code;

use super::world::{VOLUME, World};

const ROUNDS: usize = 30;

/// Whoever comes first: a workload is never bound to a daemon that is sent away, and one that is bound keeps its daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_and_an_unstage_never_both_win() {
    let Some(world) = World::new().await else { return };
    for round in 0..ROUNDS {
        let (old, new) = (format!("fuse:{round}"), format!("fuse:{}", round + 1));
        world.want(&old).await;
        world.stage().await.unwrap();
        world.daemon_comes(&old);
        world.want(&new).await;
        // Another volume of the same daemon in every second round: what is counted then are its workloads.
        let other = if round % 2 == 0 { VOLUME } else { "other" };
        if other != VOLUME {
            world.stage_as(other, &[]).await.unwrap();
        }
        let (published, unstaged) =
            tokio::join!(world.publish_as(other, "one", super::Mode::MultiNodeMultiWriter), world.unstage(),);
        let is_sent_away = !world.labelled().await;
        assert!(
            !(published.is_ok() && is_sent_away),
            "round {round}: bound to a daemon that goes: {unstaged:?}"
        );
        match published {
            Ok(()) => assert_eq!(std::fs::read(world.path("one/served-by")).unwrap(), old.as_bytes()),
            Err(code) => assert!(
                matches!(code, Code::FailedPrecondition | Code::Unavailable | Code::Aborted),
                "round {round}: {code:?}"
            ),
        }
        world.unpublish_as(other, "one").await.unwrap();
        for volume in [VOLUME, other] {
            world.unstage_as(volume, "staging").await.unwrap();
        }
        assert!(!world.labelled().await, "round {round}: the upgrade was missed");
        world.daemon_goes();
        assert_eq!(world.mounts(), 0, "round {round}");
    }
    world.end().await;
}
