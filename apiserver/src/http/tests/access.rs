//! Who gets in, what the limits refuse, and the paths beside resources.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use serde_json::{Value, json};

use crate::auth::Identity;
use crate::http::{Annex, Body};
use crate::limits::Limits;
use crate::testing::{Answer, Api, GADGETS, JSON, gadget};

#[tokio::test]
async fn roles_get_what_is_theirs() {
    let admin = Api::with_gadgets().await;
    admin.post(GADGETS, gadget("g1", 1)).await.ok();
    admin
        .post("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}))
        .await
        .ok();
    let viewer = admin.acting_as(Identity::viewer("eve"));
    let node = admin.acting_as(Identity::node("n1"));

    viewer.get(&format!("{GADGETS}/g1")).await.ok();
    let refused = viewer.post(GADGETS, gadget("g2", 1)).await;
    assert_eq!((refused.code, refused.reason()), (403, "Forbidden"));
    assert_eq!(
        refused.message(),
        r#"gadgets.example.com is forbidden: User "eve" cannot create resource "gadgets" in API group "example.com" in the namespace "default""#
    );
    let status = json!({"status": {"phase": "Running"}});
    node.merge("/api/v1/nodes/n1/status", status.clone()).await.ok();
    assert_eq!(node.merge("/api/v1/nodes/n2/status", status).await.code, 403);
    assert_eq!(node.get("/api/v1/pods").await.code, 403);
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.ok();
    let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}});
    assert_eq!(node.post("/api/v1/nodes", other).await.code, 403, "the name is checked in the body too");
}

#[tokio::test]
async fn tokens_open_the_door() {
    let api = Api::open().await;
    let token = api.server.issue_token(Identity::viewer("eve")).unwrap();
    let ask = async |header: Option<String>, path: &str| -> Answer {
        let mut request = Request::get(path);
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let response = crate::http::answer(&api.server.shared, None, request).await;
        let code = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { code, headers, body }
    };
    assert_eq!(ask(Some(format!("Bearer {token}")), "/api/v1/nodes").await.code, 200);
    let wrong = ask(Some("Bearer nonsense".into()), "/api/v1/nodes").await;
    assert_eq!((wrong.code, wrong.message()), (401, "Unauthorized"));
    assert_eq!(ask(None, "/api/v1/nodes").await.code, 401);
    assert_eq!(ask(None, "/metrics").await.code, 401);
    assert_eq!(ask(None, "/readyz").await.code, 200);
    let mine = Some(format!("Bearer {token}"));
    let closed = ask(mine, "/debug").await;
    assert_eq!(closed.message(), r#"forbidden: User "eve" cannot get path "/debug""#);
}

#[tokio::test]
async fn limits_answer_with_a_status() {
    let limits =
        Limits { body_bytes: 2000, json_depth: 8, uri_bytes: 300, watches_per_user: 1, ..Limits::default() };
    let api = Api::with_limits(limits).await;
    let configmaps = "/api/v1/namespaces/default/configmaps";
    let large = json!({"metadata": {"name": "a"}, "data": {"x": "y".repeat(2000)}});
    let answer = api.post(configmaps, large).await;
    assert_eq!((answer.code, answer.reason()), (413, "RequestEntityTooLarge"));

    let deep = (0..20).fold(json!(1), |inner, _| json!([inner]));
    let answer = api.post(configmaps, json!({"metadata": {"name": "a"}, "data": deep})).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    let answer =
        api.ask(Method::GET, &format!("{configmaps}?x={}", "y".repeat(400)), JSON, Value::Null).await;
    assert_eq!(answer.code, 413);

    let open = |api: &Api| {
        let request = Request::get("/api/v1/nodes?watch=1").body(Full::<Bytes>::default()).unwrap();
        let service = api.server.service(Identity::admin("admin"));
        async move { tower::Service::call(&mut service.clone(), request).await.unwrap() }
    };
    let first = open(&api).await;
    let second = open(&api).await;
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 429));
    assert_eq!(second.headers()["retry-after"], "1");
    drop(first);
    assert_eq!(open(&api).await.status(), 200, "a watch that is dropped makes room");
}

#[tokio::test]
async fn a_node_watches_no_pod_of_another_by_its_name() {
    let admin = Api::open().await;
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
        admin.post("/api/v1/namespaces/default/pods", pod).await.ok();
    }
    let node = admin.acting_as(Identity::node("n1"));
    let path = |name: &str, selector: &str| {
        format!("/api/v1/watch/namespaces/default/pods/{name}?timeoutSeconds=1&fieldSelector={selector}")
    };
    let both = |name: &str| format!("metadata.name%3D{name},spec.nodeName%3Dn1");
    assert_eq!(node.watch(&path("mine", &both("mine"))).await.len(), 1);
    assert!(node.watch(&path("theirs", &both("theirs"))).await.is_empty());
    #[rustfmt::skip]
    let refused = [
        (&node,  path("theirs", ""),                      403),
        (&node,  path("theirs", "spec.nodeName%3Dn2"),    403),
        (&node,  path("theirs", "spec.nodeName%3Dn1"),    400),
        (&node,  path("theirs", &both("mine")),           400),
        (&admin, path("mine", "metadata.name%3Dtheirs"),  400),
    ];
    for (who, path, code) in refused {
        let answer = who.get(&path).await;
        assert_eq!(answer.code, code, "{path} {}", answer.body);
        if code == 400 {
            assert_eq!(answer.message(), "fieldSelector metadata.name doesn't match requested name");
        }
    }
    assert_eq!(admin.watch(&path("theirs", "")).await.len(), 1);
}

#[tokio::test]
async fn requests_beyond_those_in_flight_are_refused_and_watches_are_not() {
    let api = Api::with_limits(Limits { requests_in_flight: 2, ..Limits::default() }).await;
    let configmaps = "/api/v1/namespaces/default/configmaps";
    let begin = || {
        let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let mut service = api.server.service(Identity::admin("admin"));
        tower::Service::call(&mut service, Request::post(configmaps).body(body).unwrap())
    };
    let mut under_way = [begin(), begin()];
    for request in &mut under_way {
        assert!(futures::poll!(request).is_pending());
    }
    let refused = api.get(configmaps).await;
    assert_eq!(
        (refused.code, refused.reason(), &refused.body["kind"]),
        (429, "TooManyRequests", &json!("Status"))
    );
    assert_eq!(refused.message(), "Too many requests, please try again later.");
    assert_eq!(
        (&refused.headers["retry-after"], &refused.body["details"]["retryAfterSeconds"]),
        (&"1".parse().unwrap(), &json!(1))
    );
    assert_eq!(api.get("/readyz").await.code, 429, "all that is no watch counts");
    let watch = Request::get(format!("{configmaps}?watch=1")).body(Full::default()).unwrap();
    assert_eq!(api.send(watch).await.status(), 200);
    drop(under_way);
    api.get(configmaps).await.ok();
}

#[tokio::test]
async fn a_kind_that_is_gone_is_not_counted_any_more() {
    let api = Api::with_gadgets().await;
    api.post(GADGETS, gadget("g1", 1)).await.ok();
    let line = "apiserver_storage_objects{resource=\"gadgets.example.com\"}";
    assert!(api.get("/metrics").await.body.as_str().unwrap().contains(line));
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.com";
    api.delete(definition, Value::Null).await.ok();
    api.until("/metrics", |answer| !answer.body.as_str().unwrap().contains(line)).await;
}

#[tokio::test]
async fn bodies_under_way_share_a_budget() {
    let api = Api::with_limits(Limits { bodies_bytes: 1000, ..Limits::default() }).await;
    let configmaps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"x": "y".repeat(300)}});

    // Most of the budget arrives, and then nothing for as long as the request is looked at.
    let begun = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b' '; 800])))]);
    let stalled = StreamBody::new(begun.chain(futures::stream::pending()));
    let mut service = api.server.service(Identity::admin("admin"));
    let mut slow = tower::Service::call(&mut service, Request::post(configmaps).body(stalled).unwrap());
    assert!(futures::poll!(&mut slow).is_pending());

    let refused = api.post(configmaps, map("a")).await;
    assert_eq!((refused.code, refused.reason()), (429, "TooManyRequests"));
    assert_eq!(
        (&refused.body["kind"], &refused.headers["retry-after"]),
        (&json!("Status"), &"1".parse().unwrap())
    );
    let metrics = api.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("apiserver_requests_rejected_total 1\n"), "{metrics}");

    drop(slow);
    for name in ["a", "b", "c", "d"] {
        api.post(configmaps, map(name)).await.ok();
    }
}

#[tokio::test]
async fn unknown_resources_are_counted_as_one() {
    let api = Api::with_gadgets().await;
    let eve = api.acting_as(Identity::viewer("eve"));
    for number in 0..1000 {
        assert_eq!(api.get(&format!("/apis/example.com/v1/toys{number}")).await.code, 404);
        assert_eq!(eve.post(&format!("/api/v1/toys{number}"), json!({})).await.code, 403);
    }
    assert_eq!(eve.post(GADGETS, gadget("g1", 1)).await.code, 403);
    api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.ok();
    let metrics = api.get("/metrics").await.body;
    let lines: Vec<&str> = metrics.as_str().unwrap().lines().collect();
    let expected = [
        r#"apiserver_request_total{verb="list",resource="",code="404"} 1000"#,
        r#"apiserver_request_total{verb="create",resource="",code="403"} 1000"#,
        r#"apiserver_request_total{verb="create",resource="gadgets",code="403"} 1"#,
        r#"apiserver_request_total{verb="create",resource="selfsubjectreviews",code="201"} 1"#,
    ];
    for line in expected {
        assert!(lines.contains(&line), "{line}\nis not in\n{}", lines.join("\n"));
    }
    assert!(!lines.iter().any(|line| line.contains("toys")));
}

#[tokio::test]
async fn paths_beside_resources_answer() {
    let api = Api::with_gadgets().await;
    for path in ["/livez", "/healthz", "/readyz"] {
        let answer = api.get(path).await;
        assert_eq!((answer.code, answer.body), (200, json!("ok")), "{path}");
    }
    assert!(api.get("/readyz?verbose").await.body.as_str().unwrap().contains("[+]store ok"));
    assert_eq!(api.get("/version").await.ok()["major"], "1");
    assert!(api.get("/metrics").await.body.as_str().unwrap().contains("apiserver_request_total"));
    assert_eq!(api.get("/api").await.ok()["versions"], json!(["v1"]));
    let groups = api.get("/apis").await.ok();
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "example.com"));
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = api.get_as("/apis", aggregated).await;
    assert!(all.headers["content-type"].to_str().unwrap().contains("as=APIGroupDiscoveryList"));
    let resources = api.get("/apis/example.com/v1").await.ok();
    let names: Vec<&str> =
        resources["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"gadgets") && names.contains(&"gadgets/status"), "{names:?}");
    let index = api.get("/openapi/v3").await.ok();
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = api.get(&url).await;
    let tag = document.headers["etag"].clone();
    assert!(document.ok()["components"]["schemas"].as_object().unwrap().len() > 1);
    let known = Request::get(&url).header("if-none-match", tag).body(Full::default()).unwrap();
    assert_eq!(api.answer(known).await.code, 304);

    #[rustfmt::skip]
    let nothing = [
        (Method::GET,    "/nope",                                          404),
        (Method::GET,    "/apis/none.org/v1",                              404),
        (Method::GET,    "/apis/example.com/v1/toys",                      404),
        (Method::GET,    "/openapi/v1",                                    404),
        (Method::GET,    "/apis/example.com/v1/namespaces/default/gadgets/a/b", 404),
        (Method::POST,   "/version",                                       405),
        (Method::PUT,    GADGETS,                                          405),
        (Method::POST,   "/apis/example.com/v1/gadgets",                   404),
        (Method::HEAD,   GADGETS,                                          200),
        (Method::OPTIONS, GADGETS,                                         204),
    ];
    for (method, path, code) in nothing {
        let answer = api.ask(method.clone(), path, JSON, Value::Null).await;
        assert_eq!(answer.code, code, "{method} {path} {}", answer.body);
    }
}

#[derive(Debug)]
struct Echo;

impl Annex for Echo {
    fn prefix(&self) -> &str {
        "/echo/"
    }

    fn answer<'a>(&'a self, method: &'a Method, path: &'a str) -> BoxFuture<'a, Response<Body>> {
        let text = json!(format!("{method} {path}")).to_string();
        Box::pin(async { Response::new(Body::full(text)) })
    }
}

#[tokio::test]
async fn an_annex_answers_those_who_are_known() {
    let api = Api::configured(|config| config.annexes = vec![Arc::new(Echo)]).await;
    for identity in [Identity::admin("a"), Identity::viewer("v"), Identity::node("n")] {
        let answer = api.acting_as(identity).ask(Method::PUT, "/echo/a%20b?q=1", JSON, Value::Null).await;
        assert_eq!((answer.code, answer.body), (200, json!("PUT /echo/a b")));
    }
    assert_eq!(api.acting_as(Identity::anonymous()).get("/echo/a").await.code, 403);
    let request = Request::get("/echo/a").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(crate::http::answer(&api.server.shared, None, request).await.status(), 401, "no token");
    assert_eq!(api.get("/echo").await.code, 404);
}

#[tokio::test]
async fn an_admin_may_act_as_somebody_else_and_nobody_else_may() {
    let api = Api::open().await;
    let ask = async |who: Identity, path: &str, headers: &[(&str, &str)]| {
        let token = api.server.issue_token(who).unwrap();
        let mut request = Request::get(path).header("authorization", format!("Bearer {token}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        crate::http::answer(&api.server.shared, None, request).await.status().as_u16()
    };
    let (nodes, secrets) = ("/api/v1/nodes", "/api/v1/secrets");
    let (eve, viewers) = (("impersonate-user", "eve"), ("impersonate-group", "system:viewers"));
    let masters = ("impersonate-group", "system:masters");
    let admin = || Identity::admin("root");
    assert_eq!(ask(admin(), nodes, &[]).await, 200);
    assert_eq!(ask(admin(), nodes, &[eve]).await, 403, "eve by herself is nobody");
    assert_eq!(ask(admin(), nodes, &[eve, viewers]).await, 200);
    assert_eq!(ask(admin(), secrets, &[eve, viewers]).await, 403, "viewers see no secrets");
    assert_eq!(ask(admin(), secrets, &[eve, viewers, masters]).await, 200);
    assert_eq!(ask(admin(), nodes, &[("impersonate-user", "system:anonymous"), masters]).await, 403);
    for without_user in [viewers, ("impersonate-uid", "u"), ("impersonate-extra-scopes", "all")] {
        assert_eq!(ask(admin(), nodes, &[without_user]).await, 400, "{without_user:?}");
    }
    assert_eq!(ask(Identity::viewer("eve"), nodes, &[("impersonate-user", "root"), masters]).await, 403);
}

#[tokio::test]
async fn reviews_are_answered() {
    let api = Api::open().await;
    let me = api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.ok();
    assert_eq!(me["status"]["userInfo"]["username"], "admin");
    let viewer = api.acting_as(Identity::viewer("eve"));
    let question = json!({"spec": {"resourceAttributes": {"verb": "delete", "resource": "pods", "namespace": "default"}}});
    let answer = viewer.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question).await.ok();
    assert_eq!(answer["status"]["allowed"], false);
}
