//! Who one is and what one may do: 401, 403 and the reviews that tell beforehand.

use serde_json::{Value, json};

use crate::fixtures::{config_map, core, gadget, gadgets};
use crate::scenario::{Call, Caller, Scenario, delete, get, merge, post, scenario, steps};

const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const MAY: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn may(attributes: Value) -> Value {
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}})
}

/// As `kubectl --as USER` sends it.
fn acting_as(user: &'static str, call: Call) -> Call {
    call.header("Impersonate-User", user)
}

/// In the groups of those who may look and not touch: of the one server, and of the other.
fn among_viewers(call: Call) -> Call {
    call.header("Impersonate-Group", "system:viewers").header("Impersonate-Group", "judge:viewers")
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let who = || json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    vec![
        scenario("without a token nobody is served", steps![
            get(gadgets("")).by(Caller::Nobody).is(401),
            get("/api").by(Caller::Nobody).is(401),
            post(gadgets(""), gadget("g1", json!({}))).by(Caller::Nobody).is(401),
        ]),
        scenario("a wrong token is no token", steps![
            get(gadgets("")).by(Caller::Stranger).is(401),
            get("/version").by(Caller::Stranger).is(401),
        ]),
        scenario("a viewer reads", steps![
            post(core("configmaps", ""), config_map("c1", json!({}))).status_only(),
            get(core("configmaps", "c1")).by(Caller::Viewer).status_only(),
            get(core("configmaps", "")).by(Caller::Viewer).status_only(),
        ]),
        scenario("a viewer does not write", steps![
            post(core("configmaps", ""), config_map("c1", json!({}))).by(Caller::Viewer).is(403),
            merge(core("configmaps", "c1"), json!({})).by(Caller::Viewer).is(403),
            delete(core("configmaps", "c1")).by(Caller::Viewer).is(403),
            delete(core("configmaps", "")).by(Caller::Viewer).is(403),
            get(core("secrets", "s1")).by(Caller::Viewer).is(403),
            merge(core("pods", "p1/status"), json!({})).by(Caller::Viewer).is(403),
            post("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}-v"}})).by(Caller::Viewer).is(403),
        ]),
        scenario("who am I", steps![
            post(WHO, who()).focus(&["/kind", "/status/userInfo/groups"]),
            post(WHO, who()).by(Caller::Viewer).focus(&["/kind", "/status/userInfo/username"]),
        ]),
        scenario("may I", steps![
            post(MAY, may(json!({"verb": "create", "resource": "configmaps", "namespace": "{ns}"}))).focus(&["/kind", "/status/allowed"]),
            post(MAY, may(json!({"verb": "*", "resource": "*", "group": "*"}))).focus(&["/status/allowed"]),
            post(MAY, may(json!({"verb": "get", "resource": "configmaps", "namespace": "{ns}"}))).by(Caller::Viewer).focus(&["/status/allowed"]),
            post(MAY, may(json!({"verb": "create", "resource": "configmaps", "namespace": "{ns}"}))).by(Caller::Viewer).focus(&["/status/allowed"]),
            post(MAY, json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}})).by(Caller::Viewer).focus(&["/status/allowed"]),
            post(MAY, json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}})).is(422),
        ]),
        scenario("an admin acts as somebody else", steps![
            acting_as("eve", post(WHO, who())).focus(&["/kind", "/status/userInfo/username", "/status/userInfo/groups"]),
            acting_as("eve", post(WHO, who())).header("Impersonate-Group", "a").header("Impersonate-Group", "b").focus(&["/status/userInfo/groups"]),
            acting_as("system:anonymous", get(core("configmaps", ""))).is(403),
            acting_as("eve", get(core("configmaps", ""))).is(403),
            acting_as("eve", post(core("configmaps", ""), config_map("c1", json!({})))).is(403),
            acting_as("eve", post(MAY, may(json!({"verb": "get", "resource": "configmaps", "namespace": "{ns}"})))).focus(&["/status/allowed"]),
        ]),
        scenario("an admin acts as one who looks", steps![
            post(core("configmaps", ""), config_map("c1", json!({}))).status_only(),
            among_viewers(acting_as("eve", get(core("configmaps", "c1")))).status_only(),
            among_viewers(acting_as("eve", delete(core("configmaps", "c1")))).is(403),
            among_viewers(acting_as("eve", post(MAY, may(json!({"verb": "get", "resource": "configmaps", "namespace": "{ns}"}))))).focus(&["/status/allowed"]),
            acting_as("eve", delete(core("configmaps", "c1"))).header("Impersonate-Group", "system:masters").status_only(),
        ]),
        scenario("who may not act as others", steps![
            acting_as("admin", get(core("configmaps", ""))).by(Caller::Viewer).is(403).focus(&["/kind", "/reason", "/code"]),
            acting_as("admin", get(core("configmaps", ""))).by(Caller::Nobody).is(401),
            get(core("configmaps", "")).header("Impersonate-Group", "system:masters").is(400).focus(&["/kind", "/reason", "/code"]),
            get(core("configmaps", "")).header("Impersonate-Uid", "u").is(400).focus(&["/kind", "/reason", "/code"]),
            get(core("configmaps", "")).header("Impersonate-Extra-scopes", "all").is(400).focus(&["/kind", "/reason", "/code"]),
        ]),
    ]
}
