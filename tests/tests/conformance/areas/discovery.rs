//! What a client learns before its first request: groups, resources, schemas, version, health.

use serde_json::json;

use crate::fixtures::definition;
use crate::scenario::{Caller, Scenario, delete, get, post, scenario, steps};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("the core versions", steps![get("/api").focus(&["/kind", "/versions"])]),
        scenario("the groups", steps![get("/apis").focus(&["/kind", "/apiVersion"])]),
        scenario("one group", steps![
            get("/apis/conformance.midflight.dev"),
            get("/apis/nowhere.midflight.dev").is(404),
            get("/apis/nowhere.midflight.dev/v1").is(404),
            get("/apis/conformance.midflight.dev/v7").is(404),
        ]),
        scenario("the resources of a group version", steps![
            get("/apis/conformance.midflight.dev/v1"),
            get("/apis/conformance.midflight.dev/v1beta1").focus(&["/groupVersion", "/resources/0/name"]),
        ]),
        scenario("resources of the core group", steps![
            get("/api/v1").focus(&["/kind", "/groupVersion"]),
        ]),
        scenario("aggregated discovery repeats its media type", steps![
            get("/apis").accept(AGGREGATED).focus(&["/kind", "/apiVersion"]),
            get("/api").accept(AGGREGATED).focus(&["/kind", "/apiVersion"]),
        ]),
        scenario("a new kind shows up in discovery and goes again", steps![
            post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("{ns}.midflight.dev", "things", "Thing", json!({"type": "object"}))).status_only(),
            get("/apis/{ns}.midflight.dev/v1").eventually(),
            delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.{ns}.midflight.dev").status_only(),
            get("/apis/{ns}.midflight.dev/v1").is(404).eventually(),
        ]),
        scenario("openapi v3 has an index", steps![
            get("/openapi/v3").focus(&["/kind"]),
        ]),
        scenario("openapi v3 describes a kind", steps![
            get("/openapi/v3/apis/conformance.midflight.dev/v1").eventually().focus(&[
                "/components/schemas/dev.midflight.conformance.v1.Gadget/description",
                "/components/schemas/dev.midflight.conformance.v1.Gadget/x-kubernetes-group-version-kind",
                "/components/schemas/dev.midflight.conformance.v1.Gadget/properties/spec/properties/size",
                "/components/schemas/dev.midflight.conformance.v1.Gadget/properties/spec/properties/ports",
                "/paths/~1apis~1conformance.midflight.dev~1v1~1namespaces~1{namespace}~1gadgets~1{name}/patch/x-kubernetes-group-version-kind",
                "/paths/~1apis~1conformance.midflight.dev~1v1~1namespaces~1{namespace}~1gadgets~1{name}/patch/x-kubernetes-action"]),
            get("/openapi/v3/apis/nowhere.midflight.dev/v1").is(404).focus(&["/none"]),
        ]),
        scenario("version and health", steps![
            get("/version").focus(&["/major"]),
            get("/healthz"),
            get("/livez"),
            get("/readyz"),
        ]),
        scenario("discovery is for everybody who is known", steps![
            get("/apis/conformance.midflight.dev").by(Caller::Viewer),
            get("/version").by(Caller::Viewer).focus(&["/major"]),
        ]),
    ]
}
