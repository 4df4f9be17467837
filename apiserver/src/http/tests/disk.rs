//! What clients are told when the disk fails under the server, and what is there afterwards.

use std::collections::BTreeSet;
use std::path::Path;

use futures::future::join_all;

use crate::store::{Fickle, open_on};
use crate::testing::{Api, GADGETS, gadget, gadget_definition};

async fn serve(disk: &Fickle, mark: &Path) -> Api {
    let api = Api::on(open_on(disk, mark).unwrap()).await;
    if api.get(GADGETS).await.code == 404 {
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        api.post(definitions, gadget_definition()).await.ok();
    }
    api
}

async fn names(api: &Api) -> BTreeSet<String> {
    let list = api.get(GADGETS).await.ok();
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Many clients write while syncs begin to fail, before the store has filled its journal and after it. Whoever was told of
/// success finds the object after a loss of power, whoever was not was told why, and reads go on.
#[tokio::test]
async fn a_sync_that_fails_is_told_to_every_client_whose_write_it_was() {
    for writes_before in [0, 5, 200] {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("store");
        let disk = Fickle::formatted();
        let api = serve(&disk, &mark).await;
        let mut acknowledged = BTreeSet::new();
        for index in 0..writes_before {
            api.post(GADGETS, gadget(&format!("before-{index}"), 1)).await.ok();
            acknowledged.insert(format!("before-{index}"));
        }
        disk.set_sync_fails(true);
        let write = async |index: usize| {
            let name = format!("late-{index}");
            (api.post(GADGETS, gadget(&name, 1)).await, name)
        };
        for (answer, name) in join_all((0..16).map(write)).await {
            assert_eq!(
                (answer.code, answer.reason()),
                (503, "ServiceUnavailable"),
                "{name}: {}",
                answer.body
            );
            assert!(answer.message().contains("a sync failed"), "{}", answer.message());
        }
        // The disk says that it is well again; what it holds is not known all the same.
        disk.set_sync_fails(false);
        let (answer, _) = write(99).await;
        assert!(answer.code == 503 && answer.message().contains("restart"), "{}", answer.body);
        assert_eq!(names(&api).await, acknowledged, "what may not be durable is not shown");
        assert_ne!(api.get("/readyz").await.code, 200);

        let mut odd = false;
        for survivors in ["none", "all", "some"] {
            let survives = || {
                odd = !odd;
                survivors == "all" || (survivors == "some" && odd)
            };
            let found = serve(&disk.after_power_loss(survives), &folder.path().join(survivors)).await;
            let there = names(&found).await;
            assert!(acknowledged.is_subset(&there), "{survivors}: {there:?} lacks some of {acknowledged:?}");
            found.post(GADGETS, gadget("afterwards", 1)).await.ok();
        }
    }
}
