//! Events in their two views, and leases.

use serde_json::json;

use crate::fixtures::{core, namespaced};
use crate::scenario::{Scenario, apply, delete, get, merge, post, put, scenario, steps};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let old = || json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e1"},
        "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": "c1", "namespace": "{ns}", "uid": "u-1"},
        "reason": "Tested", "message": "it works", "type": "Normal", "count": 2,
        "firstTimestamp": "2020-01-01T00:00:00Z", "lastTimestamp": "2020-01-02T00:00:00Z", "source": {"component": "tester", "host": "h"}});
    let new = || json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e2"},
        "regarding": {"apiVersion": "v1", "kind": "ConfigMap", "name": "c1", "namespace": "{ns}"},
        "reason": "Tested", "note": "it works", "type": "Warning", "action": "Testing",
        "eventTime": "2020-01-01T00:00:00.000000Z", "reportingController": "midflight.dev/tester", "reportingInstance": "t-1"});
    let events_v1 = |rest: &str| namespaced("events.k8s.io/v1", "events", rest);
    let leases = |rest: &str| namespaced("coordination.k8s.io/v1", "leases", rest);
    let lease = |spec: serde_json::Value| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l1"}, "spec": spec});
    let names = &["/items/0/metadata/name", "/items/1/metadata/name"];
    vec![
        scenario("an old event in the new view", steps![
            post(core("events", ""), old()),
            get(events_v1("e1")).without(&["/metadata/managedFields"]),
        ]),
        scenario("a new event in the old view", steps![
            post(events_v1(""), new()),
            get(core("events", "e2")).without(&["/metadata/managedFields"]),
        ]),
        scenario("events are found by what they speak of", steps![
            post(core("events", ""), old()).status_only(),
            post(events_v1(""), new()).status_only(),
            get(core("events", "?fieldSelector=involvedObject.name%3Dc1,involvedObject.kind%3DConfigMap")).focus(names),
            get(core("events", "?fieldSelector=involvedObject.uid%3Du-1")).focus(names),
            get(core("events", "?fieldSelector=type%3DWarning")).focus(names),
            get(core("events", "?fieldSelector=reason!%3DTested")).focus(names),
            get(events_v1("?fieldSelector=regarding.name%3Dc1")).focus(names),
            get(core("events", "?fieldSelector=message%3Dx")).is(400),
        ]),
        scenario("an event is counted on", steps![
            post(events_v1(""), new()).status_only(),
            merge(events_v1("e2"), json!({"series": {"count": 2, "lastObservedTime": "2020-01-01T01:00:00.000000Z"}})).without(&["/metadata/managedFields"]),
            delete(core("events", "e2")),
        ]),
        scenario("a new event needs its fields", steps![
            post(events_v1(""), json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e3"}})).is(422),
            post(core("events", ""), json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e3"},
                "involvedObject": {"kind": "ConfigMap", "name": "c1", "namespace": "elsewhere"}})).is(422),
        ]),
        scenario("a lease is taken and renewed", steps![
            post(leases(""), lease(json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z", "acquireTime": "2020-01-01T00:00:00.000000Z", "leaseTransitions": 0}))).save("l"),
            put(leases("l1"), json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l1", "resourceVersion": "{l:/metadata/resourceVersion}"}, "spec": {"holderIdentity": "b"}})),
            put(leases("l1"), json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l1", "resourceVersion": "{l:/metadata/resourceVersion}"}, "spec": {"holderIdentity": "c"}})).is(409),
            apply(leases("l1?fieldManager=d&force=true"), lease(json!({"holderIdentity": "d"}))),
            delete(leases("l1")),
        ]),
        scenario("a lease is validated", steps![
            post(leases(""), lease(json!({"leaseDurationSeconds": 0}))).is(422),
            post(leases(""), lease(json!({"leaseDurationSeconds": "long"}))).is(400),
            post(leases(""), lease(json!({"leaseTransitions": -1}))).is(422),
        ]),
        scenario("an event that says when it happened says who tells it and why", steps![
            post(core("events", ""), json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e4"}, "eventTime": "2020-01-01T00:00:00.000000Z",
                "involvedObject": {"kind": "ConfigMap", "name": "c1", "namespace": "{ns}"}})).is(422),
            post(events_v1(""), json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e4"}, "eventTime": "2020-01-01T00:00:00.000000Z",
                "type": "Odd", "reportingController": "no spaces", "deprecatedCount": 3})).is(422),
        ]),
    ]
}
