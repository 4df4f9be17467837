//! An API that takes no change of a volume: that is told, it keeps no other from its turn, and it is over when it is mended.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::*;

const RULES: &str = "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations";

/// Changes the rules of all volumes, and waits until they hold for this one.
async fn rule(fleet: &Fleet, change: Value, refuses: bool) {
    let definitions: Api<CustomResourceDefinition> = Api::all(fleet.client());
    let change = Patch::Json::<()>(serde_json::from_value(json!([change])).unwrap());
    definitions.patch("volumes.longhorn.io", &PatchParams::default(), &change).await.unwrap();
    let volumes: Api<Volume> = fleet.api();
    let probe = Patch::Merge(json!({ "spec": { "image": NEW } }));
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let holds = timeout(PATIENCE, async {
        while volumes.patch("a-refused", &dry, &probe).await.is_err() != refuses {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(holds.await.is_ok(), "the rule is not there");
}

#[tokio::test]
async fn what_the_api_refuses_is_told_and_keeps_no_other_from_its_turn() {
    let mut fleet = Fleet::open().await;
    fleet.volume("a-refused", "node-1", json!({})).await;
    fleet.volume("b-next", "node-1", json!({})).await;
    fleet.volume("c-last", "node-1", json!({})).await;
    let says = "self.metadata.name != 'a-refused' || self.spec.image == oldSelf.spec.image";
    let add = json!({ "op": "add", "path": RULES, "value": [{ "rule": says, "message": "not this one" }] });
    rule(&fleet, add, true).await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("the others move", |all| done(&all["b-next"]) && done(&all["c-last"])).await;
    fleet.until_told("a-refused", &["EngineUpgradeWaits"]).await;
    let events: Api<Event> = fleet.api();
    let of = ListParams::default().fields("involvedObject.name=a-refused");
    let note = events.list(&of).await.unwrap().items[0].message.clone().unwrap_or_default();
    assert!(note.starts_with("not upgraded (ChangeRefused)") && note.contains("not this one"), "{note}");
    assert!(runs(&fleet.seen.lock().unwrap().volumes["a-refused"], OLD));

    rule(&fleet, json!({ "op": "remove", "path": RULES }), false).await;
    fleet.until("it moves when it may", |all| done(&all["a-refused"])).await;
    assert_eq!(fleet.seen.lock().unwrap().most, 1);
    fleet.close().await;
}
