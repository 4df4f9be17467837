//! What the built-in kinds do beyond their schema, as far as Midflight relies on it.

use serde_json::{Value, json};

use crate::fixtures::{config_map, core, definition, namespaced, under};
use crate::scenario::{Scenario, delete, get, merge, post, put, scenario, steps, strategic};

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "p"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}})
}

fn labelled(name: &str) -> Value {
    let mut map = config_map(name, json!({"kind": "text", "apiVersion": "{\"kind\":\"x\"}"}));
    map["metadata"]["labels"] = json!({"listed": "yes"});
    map
}

fn typed(kind: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s1"}, "type": kind, "data": data})
}

fn nodes(rest: &str) -> String {
    under("/api/v1/nodes", rest)
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let set = || json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"nodeSelector": {"none": "such"}, "containers": [{"name": "a", "image": "a:1"}]}}}});
    let sets = |rest: &str| namespaced("apps/v1", "daemonsets", rest);
    let names = &["/items/0/metadata/name", "/items/1/metadata/name"];
    vec![
        scenario("a pod begins pending", steps![
            post(core("pods", ""), pod("p1")).focus(&["/metadata/name", "/spec/containers/0/name", "/spec/containers/0/image", "/spec/restartPolicy", "/status/phase"]),
            get(core("pods", "p1")).focus(&["/status/phase", "/spec/nodeName"]),
        ]),
        scenario("pods are found by node and phase", steps![
            post(core("pods", ""), pod("p1")).status_only(),
            merge(core("pods", "p1/status"), json!({"status": {"phase": "Running"}})).focus(&["/status/phase"]),
            get(core("pods", "?fieldSelector=status.phase%3DRunning")).focus(names),
            get(core("pods", "?fieldSelector=spec.nodeName%3Dnone")).focus(names),
            get(core("pods", "?fieldSelector=spec.nodeName%3D")).focus(names),
            get(core("pods", "?fieldSelector=spec.nope%3D1")).is(400),
        ]),
        scenario("a pod without a node goes at once", steps![
            post(core("pods", ""), pod("p1")).status_only(),
            delete(core("pods", "p1")).focus(&["/kind", "/metadata/name"]),
            get(core("pods", "p1")).is(404).eventually(),
        ]),
        scenario("a pod on a node is asked to leave first", steps![
            post(core("pods", ""), {
                let mut pod = pod("p1");
                pod["spec"]["nodeName"] = json!("nowhere");
                pod
            }).status_only(),
            delete(core("pods", "p1?gracePeriodSeconds=60")).focus(&["/kind", "/metadata/deletionGracePeriodSeconds"]),
            get(core("pods", "p1")).focus(&["/metadata/deletionGracePeriodSeconds"]),
            delete(core("pods", "p1?gracePeriodSeconds=0")).focus(&["/kind"]),
            get(core("pods", "p1")).is(404).eventually(),
        ]),
        scenario("a pod's containers do not change, their images do", steps![
            post(core("pods", ""), pod("p1")).status_only(),
            strategic(core("pods", "p1"), json!({"spec": {"containers": [{"name": "a", "image": "a:2"}]}})).focus(&["/spec/containers/0/image"]),
            merge(core("pods", "p1"), json!({"spec": {"hostname": "other"}})).is(422).focus(&["/reason", "/details/name", "/details/kind"]),
        ]),
        scenario("a pod needs a container", steps![
            post(core("pods", ""), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1"}, "spec": {"containers": []}})).is(422),
            post(core("pods", ""), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1"}, "spec": {"containers": [{"image": "a:1"}]}})).is(422).focus(&["/reason"]),
        ]),
        scenario("a pod is bound to a node", steps![
            post(core("pods", ""), pod("p1")).status_only(),
            post(core("pods", "p1/binding"), json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p1"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}})),
            get(core("pods", "p1")).focus(&["/spec/nodeName"]),
            delete(core("pods", "p1?gracePeriodSeconds=0")).status_only(),
        ]),
        scenario("a node with its status", steps![
            post(nodes(""), json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{ns}", "labels": {"kind": "hollow"}}, "spec": {"unschedulable": true}})).focus(&["/metadata/name", "/spec/unschedulable"]),
            strategic(nodes("{ns}/status"), json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Tested"}]}})).focus(&["/status/conditions/0/type", "/status/conditions/0/status"]),
            strategic(nodes("{ns}/status"), json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "False"}]}})).focus(&["/status/conditions"]),
            strategic(nodes("{ns}"), json!({"spec": {"unschedulable": null}})).focus(&["/spec/unschedulable"]),
            delete(nodes("{ns}")).focus(&["/kind", "/status"]),
        ]),
        scenario("a daemon set counts generations", steps![
            post(sets(""), set()).focus(&["/metadata/generation", "/spec/updateStrategy/type", "/spec/selector"]),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}})).focus(&["/metadata/generation"]),
            merge(sets("d1"), json!({"metadata": {"labels": {"x": "y"}}})).focus(&["/metadata/generation"]),
            merge(sets("d1"), json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}})).is(422).focus(&["/reason", "/details/kind"]),
        ]),
        scenario("a daemon set needs a selector that fits its template", steps![
            post(sets(""), json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"}, "spec": {
                "selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}}})).is(422).focus(&["/reason", "/details/causes/0/field"]),
        ]),
        scenario("a config map that is immutable", steps![
            post(core("configmaps", ""), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1"}, "immutable": true, "data": {"a": "1"}})),
            merge(core("configmaps", "c1"), json!({"data": {"a": "2"}})).is(422),
            merge(core("configmaps", "c1"), json!({"metadata": {"labels": {"x": "y"}}})),
        ]),
        scenario("keys of a config map", steps![
            post(core("configmaps", ""), config_map("c1", json!({"bad key": "1"}))).is(422),
            post(core("configmaps", ""), config_map("c1", json!({"a": 1}))).is(400),
            post(core("configmaps", ""), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1"}, "binaryData": {"a": "AQI="}})),
        ]),
        scenario("a secret takes plain text and gives it back encoded", steps![
            post(core("secrets", ""), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s1"}, "stringData": {"a": "hello"}, "data": {"b": "d29ybGQ="}})),
            put(core("secrets", "s1"), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s1"}, "type": "kubernetes.io/tls"})).is(422),
            post(core("secrets", ""), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s2"}, "data": {"b": "not base64!"}})).is(400),
        ]),
        scenario("a claim and a volume", steps![
            post(core("persistentvolumeclaims", ""), json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c1"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}})).focus(&["/spec/accessModes", "/spec/resources", "/status/phase"]),
            post("/api/v1/persistentvolumes", json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "{ns}"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "{ns}",
                "csi": {"driver": "driver.midflight.dev", "volumeHandle": "v"}}})).focus(&["/spec/csi", "/spec/capacity", "/spec/persistentVolumeReclaimPolicy"]),
            delete("/api/v1/persistentvolumes/{ns}").status_only(),
        ]),
        scenario("items of a list do not say what they are", steps![
            post(core("configmaps", ""), labelled("c1")).status_only(),
            post(core("configmaps", ""), labelled("c2")).status_only(),
            get(core("configmaps", "?labelSelector=listed")),
            get(core("configmaps", "?labelSelector=listed&limit=1")).without(&["/metadata"]),
            delete(core("configmaps", "?labelSelector=listed")),
        ]),
        scenario("nobody owns what is always there", steps![
            post(core("pods", ""), pod("p1")).focus(&["/metadata/managedFields"]),
            post(sets(""), set()).focus(&["/metadata/managedFields"]),
            post(core("persistentvolumeclaims", ""), json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c1"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}})).focus(&["/metadata/managedFields"]),
            post("/api/v1/persistentvolumes", json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "{ns}"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "{ns}",
                "csi": {"driver": "driver.midflight.dev", "volumeHandle": "v"}}})).focus(&["/metadata/managedFields"]),
            delete("/api/v1/persistentvolumes/{ns}").status_only(),
            post(nodes(""), json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{ns}", "labels": {"a": "b"}}, "spec": {"unschedulable": true}})).focus(&["/metadata/managedFields"]),
            delete(nodes("{ns}")).status_only(),
            post("/apis/storage.k8s.io/v1/storageclasses", json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "{ns}"},
                "provisioner": "driver.midflight.dev", "parameters": {"a": "b"}})).focus(&["/metadata/managedFields"]),
            delete("/apis/storage.k8s.io/v1/storageclasses/{ns}").status_only(),
            post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("{ns}.midflight.dev", "things", "Thing", json!({"type": "object"}))).focus(&["/metadata/managedFields"]),
            delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.{ns}.midflight.dev").status_only(),
        ]),
        scenario("a secret has what its type needs", steps![
            post(core("secrets", ""), typed("kubernetes.io/basic-auth", json!({}))).is(422),
            post(core("secrets", ""), typed("kubernetes.io/ssh-auth", json!({"ssh-privatekey": ""}))).is(422),
            post(core("secrets", ""), typed("kubernetes.io/dockerconfigjson", json!({}))).is(422),
            post(core("secrets", ""), typed("kubernetes.io/dockercfg", json!({".dockercfg": "e30="}))).status_only(),
            post(core("secrets", ""), typed("kubernetes.io/service-account-token", json!({}))).is(422),
        ]),
        scenario("a daemon set counts its templates", steps![
            post(sets(""), set()).focus(&["/metadata/annotations", "/metadata/generation"]),
            put(sets("d1"), set()).focus(&["/metadata/annotations", "/metadata/generation"]),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}})).focus(&["/metadata/annotations", "/metadata/generation"]),
            merge(sets("d1"), json!({"spec": {"minReadySeconds": 1}})).focus(&["/metadata/annotations", "/metadata/generation"]),
        ]),
        scenario("fields of a wrong type are refused", steps![
            post(sets(""), json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"}, "spec": "text"})).is(400),
            post(sets(""), json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"}, "spec": {"template": {"spec": 5}}})).is(400),
            post(core("pods", ""), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1"}, "spec": {"containers": {"name": "a"}}})).is(400),
            post(core("secrets", ""), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s1"}, "stringData": {"a": 1}})).is(400),
        ]),
    ]
}
