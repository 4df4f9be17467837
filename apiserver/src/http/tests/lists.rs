//! Lists: selectors, pages, versions, forms.

use serde_json::{Value, json};

use crate::store::StoreOptions;
use crate::testing::{Api, GADGETS, gadget};

async fn with_labelled(count: usize) -> Api {
    let api = Api::with_gadgets().await;
    for number in 0..count {
        let mut object = gadget(&format!("g{number:03}"), (number % 10) as i64);
        object["metadata"]["labels"] = json!({"odd": (number % 2 == 1).to_string()});
        api.post(GADGETS, object).await.ok();
    }
    api
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn selectors_choose() {
    let api = with_labelled(4).await;
    #[rustfmt::skip]
    let cases = [
        ("",                                            vec!["g000", "g001", "g002", "g003"]),
        ("labelSelector=odd%3Dtrue",                    vec!["g001", "g003"]),
        ("labelSelector=odd%20notin%20(true)",          vec!["g000", "g002"]),
        ("fieldSelector=metadata.name%3Dg002",          vec!["g002"]),
        ("fieldSelector=metadata.name!%3Dg002&labelSelector=odd%3Dfalse", vec!["g000"]),
        ("fieldSelector=metadata.namespace%3Dother",    vec![]),
        ("&limit=500&",                                 vec!["g000", "g001", "g002", "g003"]),
    ];
    for (query, expected) in cases {
        let list = api.get(&format!("/apis/example.com/v1/gadgets?{query}")).await.ok();
        assert_eq!(names(&list), expected, "{query}");
        assert_eq!(list["kind"], "GadgetList");
        assert!(list["metadata"]["resourceVersion"].is_string());
    }
    let unknown = api.get(&format!("{GADGETS}?fieldSelector=spec.size%3D1")).await;
    assert_eq!((unknown.code, unknown.message()), (400, "field label not supported: spec.size"));
    assert_eq!(api.get(&format!("{GADGETS}?labelSelector=a%20b")).await.code, 400);
}

#[tokio::test]
async fn pages_show_one_moment() {
    let api = with_labelled(5).await;
    let first = api.get(&format!("{GADGETS}?limit=2")).await.ok();
    assert_eq!(names(&first), ["g000", "g001"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();

    api.delete(&format!("{GADGETS}/g002"), Value::Null).await.ok();
    api.post(GADGETS, gadget("g0025", 1)).await.ok();
    let second = api.get(&format!("{GADGETS}?limit=2&continue={token}")).await.ok();
    assert_eq!(names(&second), ["g002", "g003"], "as it was when the first page was read");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap().to_owned();
    let last = api.get(&format!("{GADGETS}?limit=2&continue={token}")).await.ok();
    assert_eq!(names(&last), ["g004"]);
    assert_eq!(last["metadata"].get("continue"), None);

    let exact = api.get(&format!("{GADGETS}?limit=2&continue={token}&resourceVersion=3")).await;
    assert_eq!(exact.code, 400);
    assert_eq!(api.get(&format!("{GADGETS}?limit=2&continue=nonsense")).await.code, 400);
    let selected = api.get(&format!("{GADGETS}?limit=1&labelSelector=odd%3Dtrue")).await.ok();
    assert_eq!(selected["metadata"].get("remainingItemCount"), None, "unknown under a selector");
}

#[tokio::test]
async fn a_page_of_a_moment_that_is_gone_is_expired() {
    let gone = async |api: &Api, token: &str| {
        let answer = api.get(&format!("{GADGETS}?limit=1&continue={token}")).await;
        // A client that gets 410 lists anew; any other code it would repeat for ever.
        assert_eq!((answer.code, answer.reason()), (410, "Expired"), "{}", answer.body);
        assert_eq!((&answer.body["kind"], &answer.body["code"]), (&json!("Status"), &json!(410)));
        assert!(answer.message().contains("You must start a new list"), "{}", answer.message());
    };
    let first_page = async |api: &Api| {
        let page = api.get(&format!("{GADGETS}?limit=1")).await.ok();
        page["metadata"]["continue"].as_str().unwrap().to_owned()
    };
    let api = with_labelled(3).await;
    let most = StoreOptions::default().retained_snapshots;
    let oldest = first_page(&api).await;
    for number in 0..=most {
        api.merge(&format!("{GADGETS}/g000"), json!({"metadata": {"labels": {"n": number.to_string()}}}))
            .await
            .ok();
        first_page(&api).await;
    }
    gone(&api, &oldest).await;

    let before = first_page(&api).await;
    api.post(GADGETS, gadget("g1", 1)).await.ok();
    gone(&api.reopen().await, &before).await;
}

#[tokio::test]
async fn versions_are_honoured() {
    let api = with_labelled(1).await;
    let current = api.get(GADGETS).await.ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let number: u64 = current.parse().unwrap();
    #[rustfmt::skip]
    let cases = [
        ("resourceVersion=0".to_owned(),                                          200, ""),
        (format!("resourceVersion={current}"),                                    200, ""),
        (format!("resourceVersion={current}&resourceVersionMatch=Exact"),         200, ""),
        (format!("resourceVersion={}", number + 1000),                            504, "Too large resource version"),
        ("resourceVersion=1&resourceVersionMatch=Exact".to_owned(),               410, "too old"),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(),               422, "forbidden"),
        ("resourceVersionMatch=Exact".to_owned(),                                 422, "forbidden unless resourceVersion is provided"),
        ("resourceVersion=1&resourceVersionMatch=Sometimes".to_owned(),           422, "Unsupported value"),
        ("resourceVersion=x".to_owned(),                                          400, "invalid resource version"),
        ("limit=-1".to_owned(),                                                   422, "limit"),
    ];
    for (query, code, message) in cases {
        let answer = api.get(&format!("{GADGETS}?{query}")).await;
        assert_eq!(answer.code, code, "{query}: {}", answer.body);
        assert!(answer.message().contains(message), "{query}: {}", answer.message());
    }
}

#[tokio::test]
async fn lists_come_in_every_form() {
    let api = with_labelled(2).await;
    let table =
        api.get_as(GADGETS, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").await.ok();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][1]["cells"][0], "g001");
    assert_eq!(table["rows"][1]["cells"][1], 1);
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let partial = api.get_as(GADGETS, metadata).await.ok();
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert_eq!(partial["items"][0].get("spec"), None);
    let one = api
        .get_as(&format!("{GADGETS}/g001"), "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
        .await
        .ok();
    assert_eq!((&one["kind"], one.get("spec")), (&json!("PartialObjectMetadata"), None));
    let yaml = api.get_as(&format!("{GADGETS}/g001"), "application/yaml").await;
    assert!(yaml.body.as_str().unwrap().contains("kind: Gadget"), "{}", yaml.body);
    assert_eq!(api.get_as(GADGETS, "text/html").await.code, 406);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let api = with_labelled(6).await;
    let deleted = api.delete(&format!("{GADGETS}?labelSelector=odd%3Dtrue"), Value::Null).await.ok();
    assert_eq!(names(&deleted), ["g001", "g003", "g005"]);
    assert_eq!(names(&api.get(GADGETS).await.ok()), ["g000", "g002", "g004"]);
    api.delete(GADGETS, json!({"propagationPolicy": "Background"})).await.ok();
    assert_eq!(names(&api.get(GADGETS).await.ok()), Vec::<&str>::new());
}
