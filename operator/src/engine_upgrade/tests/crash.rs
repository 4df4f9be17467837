//! The controller is ended around every one of its writes, in every way, and another goes on.

use kube::api::DeleteParams;

use super::*;
use crate::write::{Cut, Moment};

const MOMENTS: [Moment; 3] = [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged];
/// What becomes of the volumes of a round: two arrive, one after the other; an engine fails; somebody asks one back; somebody asks
/// for one.
const VOLUMES: [(&str, &str); 5] =
    [("a", "node-1"), ("b", "node-1"), ("broken", "node-2"), ("undone", "node-2"), ("mine", "node-3")];

/// Engines and people: what they do when a volume is asked for an image, by the name of the volume.
async fn meanwhile(volumes: Api<Volume>) {
    let events = volumes.watch(&WatchParams::default().timeout(290), "0").await.unwrap();
    let act = async |volume: Volume| {
        let (name, parameters) = (volume.name_any(), PatchParams::default());
        let is_noticed = Attempt::of(volume.annotations()).is_some();
        let arrived = json!({ "status": { "currentImage": volume.spec.image } });
        let failed =
            json!({ "status": { "engineChange": { "state": "failed", "image": volume.spec.image } } });
        let written = match name.split('-').next().unwrap_or_default() {
            "broken" => volumes.patch_status(&name, &parameters, &Patch::Merge(failed)).await,
            "undone" => {
                let back = Patch::Merge(json!({ "spec": { "image": OLD } }));
                volumes.patch(&name, &parameters, &back).await
            }
            "mine" if !is_noticed => return,
            _ => {
                sleep(Duration::from_millis(20)).await;
                volumes.patch_status(&name, &parameters, &Patch::Merge(arrived)).await
            }
        };
        // The round may be over.
        if let Err(error) = written {
            assert!(matches!(&error, kube::Error::Api(status) if status.is_not_found()), "{name}: {error}");
        }
    };
    let each = async |event: WatchEvent<Volume>| {
        if let WatchEvent::Added(volume) | WatchEvent::Modified(volume) = event
            && volume.is_upgrading()
        {
            act(volume).await;
        }
        Ok(())
    };
    events.try_for_each_concurrent(None, each).await.unwrap();
}

impl Fleet {
    async fn begin_round(&self, round: &str) {
        for (stem, node) in VOLUMES {
            let status = if stem == "a" { attached(node) } else { json!({}) };
            self.volume_on(&[node], &format!("{stem}-{round}"), node, status).await;
        }
        let volumes: Api<Volume> = self.api();
        let by_hand = Patch::Merge(json!({ "spec": { "image": NEW } }));
        volumes.patch(&format!("mine-{round}"), &PatchParams::default(), &by_hand).await.unwrap();
    }

    async fn end_round(&self) {
        let (volumes, replicas): (Api<Volume>, Api<Replica>) = (self.api(), self.api());
        let (now, all) = (DeleteParams::default(), ListParams::default());
        volumes.delete_collection(&now, &all).await.unwrap();
        replicas.delete_collection(&now, &all).await.unwrap();
        self.until("the volumes are gone", BTreeMap::is_empty).await;
    }
}

fn is_over(all: &BTreeMap<String, Volume>, round: &str) -> bool {
    VOLUMES.iter().all(|(stem, _)| {
        all.get(&format!("{stem}-{round}")).is_some_and(|volume| match *stem {
            "broken" | "undone" => runs(volume, OLD) && failed(volume),
            _ => done(volume),
        })
    })
}

#[tokio::test]
async fn the_controller_may_end_around_every_write() {
    let mut fleet = Fleet::open().await;
    fleet.set(LIMIT, "1").await;
    fleet.set("automatic-engine-upgrade-failure-threshold", "0").await;
    fleet.tasks.0.push(tokio::spawn(meanwhile(fleet.api())).abort_handle());
    for write in 0.. {
        let mut issued = 0;
        for (number, moment) in MOMENTS.into_iter().enumerate() {
            let round = format!("{write}-{number}");
            fleet.begin_round(&round).await;
            let writer = Arc::new(Writer::with_cut(fleet.client(), Cut { write, moment }));
            let (first, client) = (Arc::clone(&writer), fleet.client());
            let controllers = tokio::spawn(async move {
                run_engine_upgrades(first, Figures::default()).await;
                run_engine_upgrades(Arc::new(Writer::new(client)), Figures::default()).await;
            });
            fleet.until(&format!("write {write}, {moment:?}"), |all| is_over(all, &round)).await;
            assert_eq!(fleet.seen.lock().unwrap().most, 1, "write {write}, {moment:?}");
            controllers.abort();
            issued = issued.max(writer.issued());
            fleet.end_round().await;
        }
        if issued <= write {
            assert!(write >= 12, "only {write} writes were cut");
            break;
        }
    }
    fleet.close().await;
}
