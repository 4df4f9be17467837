use std::path::PathBuf;

use k8s_openapi::api::coordination::v1::Lease;

use super::*;
use crate::image::Neighbours;

fn config() -> Config {
    Config {
        name: "node-1".into(),
        address: [127, 0, 0, 2].into(),
        kubeconfig: PathBuf::new(),
        data: PathBuf::new(),
        run: "/run".into(),
        backups: PathBuf::new(),
        neighbours: Neighbours::below(PathBuf::new(), PathBuf::new()),
        version: "1.2.3".into(),
    }
}

fn machine() -> Machine {
    Machine {
        cpus: 2,
        memory_bytes: 4 << 30,
        disk_bytes: 1 << 30,
        kernel: "6.1".into(),
        os_image: "Debian".into(),
        machine_id: "m".into(),
        boot_id: "b".into(),
    }
}

const WELL: Health = Health { memory_short: false, disk_short: false };
const FULL: Health = Health { memory_short: false, disk_short: true };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn reported(health: Health, since: &Since, now: Timestamp) -> Node {
    serde_json::from_value(status(&config(), &machine(), (health, &[]), since, now)).unwrap()
}

#[test]
fn what_is_written_is_what_kubernetes_understands() {
    let node: Node = serde_json::from_value(node(&config(), "{}")).unwrap();
    assert_eq!(node.metadata.labels.unwrap()["kubernetes.io/hostname"], "node-1");
    let lease: Lease = serde_json::from_value(lease(&config(), "uid-1", at(0))).unwrap();
    assert_eq!(lease.spec.unwrap().renew_time.unwrap().0, at(0));
    let status = reported(WELL, &Since::new(), at(0)).status.unwrap();
    assert_eq!(status.capacity.unwrap()["memory"].0, "4194304Ki");
    assert_eq!(status.node_info.unwrap().kubelet_version, "midflight-1.2.3");
}

#[test]
fn a_condition_keeps_its_time_until_it_changes() {
    let first = reported(WELL, &Since::new(), at(0));
    let second = reported(FULL, &since(&first), at(60));
    let third = reported(FULL, &since(&second), at(120));
    let times = since(&third);
    assert_eq!(times["Ready"], ("True".into(), at(0)));
    assert_eq!(times["DiskPressure"], ("True".into(), at(60)));
}
