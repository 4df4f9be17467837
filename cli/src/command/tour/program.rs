//! The acts of the tour, in order. A new act is a new row and a new file.

use std::{future::Future, pin::Pin};

use serde::Serialize;

use super::{
    control_plane, durable_writes, engine_switch, engine_upgrade, migration, mount_upgrade, node_loss,
    node_upgrade, stage::Stage,
};
use crate::output::Paint;

/// How an act ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// What was measured, one thing each.
    Shown(Vec<String>),
    /// What it would need is not here.
    Skipped(String),
    Failed(String),
}

impl Outcome {
    pub(super) fn to_text(&self, paint: Paint) -> String {
        match self {
            Outcome::Shown(lines) => {
                let line = |line: &String| format!("  {} {line}", paint.good("✓"));
                lines.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            Outcome::Skipped(why) => format!("  - skipped: {why}"),
            Outcome::Failed(why) => format!("  {} {why}", paint.bad("✗")),
        }
    }
}

type Played<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Outcome>> + 'a>>;

/// Something the tour shows.
pub(super) struct Act {
    pub(super) title: &'static str,
    /// What happens, in a line.
    pub(super) about: &'static str,
    /// The command that shows the same, if there is one.
    pub(super) command: Option<&'static str>,
    /// Whether the tour ends if this act fails.
    pub(super) needed_by_others: bool,
    pub(super) play: for<'a> fn(&'a Stage<'a>) -> Played<'a>,
}

pub(super) const PROGRAM: &[Act] = &[
    Act {
        title: "A Kubernetes API in one process",
        about: "Starts the control plane and three nodes in an empty folder.",
        command: Some("midflight up --nodes 3 && kubectl get nodes,crds"),
        needed_by_others: true,
        play: |stage| Box::pin(control_plane::play(stage)),
    },
    Act {
        title: "What was acknowledged survives kill -9",
        about: "Writes objects, kills the control plane in the middle, starts it again and counts.",
        command: Some("kubectl get configmaps --watch"),
        needed_by_others: false,
        play: |stage| Box::pin(durable_writes::play(stage)),
    },
    Act {
        title: "A volume outlives a node",
        about: "Three replicas on three nodes, one client that never stops; all processes of a node are killed.",
        command: Some(
            "midflight volume create vol-1 --size 64Mi && midflight volume attach vol-1 --node node-1",
        ),
        needed_by_others: false,
        play: |stage| Box::pin(node_loss::play(stage)),
    },
    Act {
        title: "A volume changes its engine under load",
        about: "Three replicas, one client that never stops; the engine process is exchanged again and again.",
        command: None,
        needed_by_others: false,
        play: |stage| Box::pin(engine_switch::play(stage)),
    },
    Act {
        title: "Volumes move to the engine of the next version",
        about: "Six volumes, three of them with a client that never stops; two may move at once.",
        command: Some(
            "midflight plan engine-upgrade --to engine:next && midflight upgrade engines --to engine:next --wait",
        ),
        needed_by_others: false,
        play: |stage| Box::pin(engine_upgrade::play(stage)),
    },
    Act {
        title: "Three nodes get a new data engine while they serve",
        about: "A volume on each node, each with a client that never stops; every instance manager is replaced by the next version's.",
        command: Some(
            "midflight plan node-upgrade && midflight upgrade nodes --to instance-manager:next --wait",
        ),
        needed_by_others: false,
        play: |stage| Box::pin(node_upgrade::play(stage)),
    },
    Act {
        title: "A FUSE client is replaced when nobody uses it",
        about: "A workload works on a mounted dataset while the image of its daemon changes; it ends, the next one comes.",
        command: Some("kubectl patch juicefsruntime library … && midflight mount show library"),
        needed_by_others: false,
        play: |stage| Box::pin(mount_upgrade::play(stage)),
    },
    Act {
        title: "A database changes its schema, all or nothing",
        about: "Nine historical migrations on a cloud of 1,000 ports: plan, apply, roll back, apply again, finalize.",
        command: Some("midflight migrate plan|apply|rollback|finalize"),
        needed_by_others: false,
        play: |stage| Box::pin(migration::play(stage)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_read_well() {
        let plain = Paint { on: false };
        assert_eq!(Outcome::Shown(vec!["a".into(), "b".into()]).to_text(plain), "  ✓ a\n  ✓ b");
        assert_eq!(Outcome::Skipped("no".into()).to_text(plain), "  - skipped: no");
        assert_eq!(Outcome::Failed("no".into()).to_text(plain), "  ✗ no");
    }
}
