//! A cluster whose pods are looked at.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use http::{Method, Request};
use serde_json::{Value, json};

use super::{Sandbox, eventually};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

pub(crate) struct Cluster {
    pub(crate) sandbox: Sandbox,
}

impl Cluster {
    pub(crate) fn up() -> Cluster {
        Cluster::of("1")
    }

    pub(crate) fn of(nodes: &str) -> Cluster {
        let sandbox = Sandbox::new();
        sandbox.ok(&["up", "--detach", "--nodes", nodes]);
        Cluster { sandbox }
    }

    pub(crate) fn pack(&self, image: &str, script: &str) {
        let path = self.sandbox.dir().with_file_name("script");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self.sandbox.ok(&["image", "pack", "--tag", image, "--binary", path.to_str().unwrap()]);
    }

    pub(crate) fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Value, String> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let answer = self.sandbox.call("kubeconfig", request.body(body.to_string().into_bytes()).unwrap())?;
        Ok(serde_json::from_str(&answer).unwrap())
    }

    pub(crate) fn create(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = json!("node-1");
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
        self.ask(Method::POST, PODS, &pod).unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        serde_json::from_str(&self.sandbox.get(&format!("{PODS}/{name}")).unwrap()).unwrap()
    }

    pub(crate) fn eventually(&self, what: &str, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(what, || {
                last = self.pod(name);
                holds(&last)
            });
        }));
        assert!(reached.is_ok(), "{what}: {:#}{}", last["status"], self.sandbox.logs());
        last
    }

    pub(crate) fn node(&self) -> PathBuf {
        self.sandbox.dir().join("nodes/node-1")
    }

    /// A file of the newest run of the pod's first container.
    pub(crate) fn file(&self, pod: &Value, name: &str) -> String {
        let container = pod["spec"]["containers"][0]["name"].as_str().unwrap();
        let runs = self.node().join("pods").join(pod["metadata"]["uid"].as_str().unwrap());
        let runs = runs.join("containers").join(container);
        let newest = fs::read_dir(runs).unwrap().flatten().map(|run| run.path()).max().unwrap();
        fs::read_to_string(newest.join(name)).unwrap_or_default()
    }

    pub(crate) fn pid(&self, pod: &Value) -> i32 {
        let main: Value = serde_json::from_str(&self.file(pod, "main.json")).unwrap();
        main["identity"]["pid"].as_i64().unwrap().try_into().unwrap()
    }
}

pub(crate) fn ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

pub(crate) fn condition<'a>(pod: &'a Value, kind: &str) -> &'a str {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).map_or("", |c| c["status"].as_str().unwrap())
}
