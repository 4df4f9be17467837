//! Upgrades of a dataset's daemon during which a process is killed, at every step; of all pairs a few are drawn.
//!
//! `MIDFLIGHT_MOUNT_KILLS=all` takes all of them, `MIDFLIGHT_SEED` draws the same again. The CSI plugin of a node is in its agent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "whoever repeats a failed run needs its seed")]

mod support;

use std::fs;

use serde_json::json;
use support::{
    datasets::{Cluster, make_dataset, skipped, wanted},
    kill,
};

const NODE: &str = "node-1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Control,
    /// With the plugin in it.
    Agent,
    Daemon,
}

const VICTIMS: [Victim; 3] = [Victim::Control, Victim::Agent, Victim::Daemon];

/// After what the victim is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A workload was asked for.
    Asked,
    /// The node is labelled: the volume is being staged.
    Labelled,
    /// The workload works.
    Published,
    /// Another image was asked for.
    Changed,
    /// The workload was told to end.
    Ending,
    /// It has ended: the volume was unstaged, the old daemon is going.
    Unstaged,
    /// The next workload was asked for meanwhile.
    Next,
}

const STEPS: [Step; 7] =
    [Step::Asked, Step::Labelled, Step::Published, Step::Changed, Step::Ending, Step::Unstaged, Step::Next];

/// All pairs, or one for every victim.
fn drawn() -> Vec<(Victim, Step)> {
    let all = |victim: Victim| STEPS.map(|step| (victim, step));
    if std::env::var("MIDFLIGHT_MOUNT_KILLS").is_ok_and(|which| which == "all") {
        return VICTIMS.into_iter().flat_map(all).collect();
    }
    let clock = || jiff::Timestamp::now().as_second().unsigned_abs();
    let seed: u64 =
        std::env::var("MIDFLIGHT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(clock);
    println!("MIDFLIGHT_SEED={seed}");
    let draw = |(number, victim): (usize, Victim)| {
        let step = (seed as usize / STEPS.len().pow(u32::try_from(number).unwrap())) % STEPS.len();
        all(victim)[step]
    };
    VICTIMS.into_iter().enumerate().map(draw).collect()
}

fn strike(cluster: &Cluster, victim: Victim) {
    match victim {
        Victim::Control | Victim::Agent => {
            let role = if victim == Victim::Control { "control" } else { NODE };
            kill(cluster.sandbox.running(role));
            cluster.sandbox.ok(&["up", "--detach"]);
        }
        Victim::Daemon => cluster.daemon_processes(NODE).into_iter().for_each(kill),
    }
}

/// From one image to another, with a workload before and one after.
fn upgrade(cluster: &Cluster, tag: &str, struck: (Victim, Step)) {
    let (victim, at) = struck;
    let after = |step: Step| {
        if step == at {
            strike(cluster, victim);
        }
    };
    // Whoever has files open when their daemon is killed loses them; what comes after must work again.
    let expect_well = || match victim {
        Victim::Control | Victim::Agent => cluster.expect_no_error(NODE),
        Victim::Daemon => cluster.expect_progress(NODE),
    };
    let image = format!("daemon:{tag}");
    cluster.create_workload(NODE);
    after(Step::Asked);
    cluster.eventually("the node is labelled", || cluster.labelled(NODE));
    after(Step::Labelled);
    cluster.eventually("the workload counts", || cluster.turns(NODE) > 3);
    after(Step::Published);
    expect_well();
    cluster.change_fuse(&json!({ "imageTag": tag }));
    after(Step::Changed);
    cluster.eventually("the claim asks for the new image", || wanted(cluster) == image);
    expect_well();
    assert_ne!(cluster.image(NODE), image, "the daemon is in use");
    cluster.delete_workload(NODE);
    after(Step::Ending);
    cluster.await_end(NODE);
    after(Step::Unstaged);
    cluster.create_workload(NODE);
    after(Step::Next);
    cluster.eventually("the next workload counts", || cluster.turns(NODE) > 3);
    expect_well();
    assert_eq!(cluster.image(NODE), image);
    cluster.eventually("the daemon has told its image", || cluster.reported(NODE) == image);
    cluster.expect_program(NODE, &image);
    cluster.delete_workload(NODE);
    cluster.await_end(NODE);
}

/// What is left on a node on which nobody uses the dataset, whose daemon waits for the next one.
fn expect_nothing_left(cluster: &Cluster, mounts: usize) {
    assert_eq!(cluster.mounts(NODE).len(), mounts, "{:?}", cluster.mounts(NODE));
    cluster.eventually("one daemon is left", || cluster.daemon_processes(NODE).len() == 1);
    let below = |folder: &str| match fs::read_dir(cluster.node(NODE).join(folder)) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    for folder in ["volumes", "csi/volumes", "csi/leaving"] {
        assert_eq!(below(folder), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn an_upgrade_is_finished_whoever_is_killed_meanwhile() {
    if skipped() {
        return;
    }
    let cluster = Cluster::up(1);
    make_dataset(&cluster);
    cluster.start_workload(NODE);
    cluster.end_workload(NODE);
    let mounts = cluster.mounts(NODE).len();
    for (number, struck) in drawn().into_iter().enumerate() {
        println!("{struck:?}");
        let tag = if number % 2 == 0 { "v2" } else { "v1" };
        upgrade(&cluster, tag, struck);
        expect_nothing_left(&cluster, mounts);
    }
    cluster.sandbox.ok(&["down"]);
    assert_eq!(cluster.mounts(NODE), Vec::<String>::new());
    assert_eq!(cluster.daemon_processes(NODE), Vec::<i32>::new());
}
