//! What is installed on a real Kubernetes is accepted by one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use midflight_api::fluid::DRIVER;
use midflight_tests::place;
use serde_json::Value;
use tokio::process::Command;

fn objects() -> Vec<Value> {
    let yaml = std::fs::read_to_string(place::workspace().join("deploy/csi.yaml")).unwrap();
    serde_saphyr::from_multiple(&yaml).unwrap()
}

fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Kubelet finds the plugin by its name and its socket; both are said more than once.
#[test]
fn the_plugin_is_found_where_kubelet_looks() {
    let objects = objects();
    assert_eq!(one(&objects, "CSIDriver")["metadata"]["name"], DRIVER);
    let socket = format!("/var/lib/kubelet/csi-plugins/{DRIVER}/csi.sock");
    let pod = &one(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let said = |container: usize, argument: String| {
        let arguments = pod["containers"][container]["args"].as_array().unwrap();
        assert!(arguments.iter().any(|one| *one == argument.as_str()), "{argument}: {arguments:?}");
    };
    said(0, format!("--socket={socket}"));
    said(1, format!("--kubelet-registration-path={socket}"));
    let volumes = pod["volumes"].as_array().unwrap();
    for mount in
        pod["containers"].as_array().unwrap().iter().flat_map(|one| one["volumeMounts"].as_array().unwrap())
    {
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
}

#[tokio::test]
async fn a_real_api_server_accepts_it() {
    let (Some(judge), Some(kubectl)) = (place::judge(), place::kubectl()) else {
        return place::skip("the real control plane is not there: run dev/kubernetes test");
    };
    let mut apply = Command::new(kubectl);
    apply.arg("--kubeconfig").arg(judge).args(["apply", "--dry-run=server", "--validate=strict", "-f"]);
    let answer =
        apply.arg(place::workspace().join("deploy/csi.yaml")).kill_on_drop(true).output().await.unwrap();
    let (said, refused) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
    assert!(answer.status.success(), "{said}{refused}");
    assert_eq!(said.lines().count(), objects().len(), "{said}");
}
