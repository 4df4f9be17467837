//! Everything that people do with kubectl, against a cluster that is up and a real one.
//!
//! What is done stands in `tests/kubectl`: `script.sh` for both, `cluster.sh`
//! for what only `midflight up` makes.

#![expect(clippy::unwrap_used, reason = "a test that cannot start its script has failed")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use midflight_tests::cluster::Cluster;
use midflight_tests::place;
use tokio::process::Command;
use tokio::time::timeout;

/// The script takes well under a minute; beyond this it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

async fn run_script(script: &str, kubectl: &Path, kubeconfig: &Path, least: usize) {
    let folder = tempfile::tempdir().unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubectl");
    let mut command = Command::new("bash");
    command.arg(scripts.join(script)).current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
    command.env("KUBECTL", kubectl).env("KUBECONFIG", kubeconfig).env("HOME", folder.path());
    command.env("EXAMPLES", place::workspace().join("examples"));
    let output = timeout(PATIENCE, command.output()).await.expect("the script ends").unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let checks = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(checks >= least, "only {checks} checks:\n{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_with_a_cluster_that_is_up() {
    let Some(kubectl) = place::kubectl() else {
        return place::skip("kubectl: dev/kubernetes build makes one");
    };
    let cluster = Cluster::up(2).await.unwrap();
    run_script("script.sh", &kubectl, &cluster.kubeconfig(), 80).await;
    run_script("cluster.sh", &kubectl, &cluster.kubeconfig(), 15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_is_true_of_a_real_server() {
    let (Some(kubectl), Some(kubeconfig)) = (place::kubectl(), place::judge()) else {
        return place::skip(
            "kubectl against the real server: set MIDFLIGHT_JUDGE_KUBECONFIG (dev/kubernetes test does)",
        );
    };
    run_script("script.sh", &kubectl, &kubeconfig, 80).await;
}
