//! Waits until a volume is as it was asked to be.

use std::time::Duration;

use clap::Args;
use kube::api::{Api, ListParams};
use midflight_api::Size;
use midflight_api::longhorn::{Engine, NAMESPACE, VOLUME_LABEL, Volume, VolumeState};
use tokio::time::{Instant, sleep};

use crate::{
    failure::{Exit, Failure},
    lookout::Lookout,
    target,
};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whether and how long to wait.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Patience {
    /// Wait until it is done
    #[arg(long)]
    wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 120, requires = "wait")]
    timeout: u64,
}

/// How a volume should be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal<'a> {
    /// This node has it, and no other.
    AttachedTo(&'a str),
    Detached,
    /// It has the size that it should have.
    Grown,
    /// It holds the backup that it was made from; a standby the newest.
    Restored,
    /// It follows no backup any more.
    Activated,
    Gone,
}

impl Goal<'_> {
    /// `size` is that of its copies; nothing where none were made yet, or where it was not asked for.
    fn is_reached(self, volume: Option<&Volume>, size: Option<Size>) -> bool {
        let status = volume.and_then(|volume| volume.status.as_ref());
        let is = |state: VolumeState| status.is_some_and(|status| status.state == state);
        match (self, volume) {
            (Goal::AttachedTo(node), _) => {
                is(VolumeState::Attached) && status.is_some_and(|status| status.current_node_id == node)
            }
            (Goal::Detached, _) => is(VolumeState::Detached),
            // One that is detached is brought up where no client reaches it; one that was never attached gets the size with its copies.
            (Goal::Grown, Some(volume)) => match size {
                Some(size) => size >= volume.spec.size,
                None => is(VolumeState::Detached),
            },
            (Goal::Grown, None) => false,
            (Goal::Restored, _) => {
                status.is_some_and(|status| status.restore_initiated && !status.restore_required)
            }
            (Goal::Activated, Some(volume)) => {
                !volume.spec.standby
                    && status.is_some_and(|status| !status.is_standby && !status.restore_required)
            }
            (Goal::Activated, None) => false,
            (Goal::Gone, volume) => volume.is_none(),
        }
    }

    /// Why it is not reached, where the volume itself does not say it.
    fn why(self, volume: Option<&Volume>, size: Option<Size>) -> String {
        let status = volume.and_then(|volume| volume.status.as_ref());
        let attached_to = status.map(|status| &status.current_node_id).filter(|node| !node.is_empty());
        match (self, attached_to, size) {
            (Goal::AttachedTo(node), Some(other), _) if other != node => {
                format!("{other} has it: {}", why(volume))
            }
            (Goal::Grown, _, Some(size)) => format!("it has {} bytes: {}", size.bytes(), why(volume)),
            (
                Goal::AttachedTo(_)
                | Goal::Detached
                | Goal::Grown
                | Goal::Restored
                | Goal::Activated
                | Goal::Gone,
                _,
                _,
            ) => why(volume),
        }
    }
}

/// How far something is that is waited for.
#[derive(Debug)]
pub(super) enum Progress {
    Done,
    /// What it waits for, in its own words.
    Waits(String),
}

impl Patience {
    /// Waits until a volume is so.
    pub(super) async fn wait(self, volumes: &Api<Volume>, name: &str, goal: Goal<'_>) -> anyhow::Result<()> {
        let hint = format!("`midflight volume show {name}` tells how it is; it goes on by itself");
        let look = async || {
            let volume = volumes.get_opt(name).await.map_err(target::refusal)?;
            let size = match goal {
                Goal::Grown => size(name, volumes).await?,
                Goal::AttachedTo(_) | Goal::Detached | Goal::Restored | Goal::Activated | Goal::Gone => None,
            };
            Ok(match goal.is_reached(volume.as_ref(), size) {
                true => Progress::Done,
                false => Progress::Waits(goal.why(volume.as_ref(), size)),
            })
        };
        self.until(&format!("volume {name}"), &hint, look).await
    }

    /// Looks again until it is done.
    pub(super) async fn until(
        self,
        what: &str,
        hint: &str,
        look: impl AsyncFn() -> anyhow::Result<Progress>,
    ) -> anyhow::Result<()> {
        if !self.wait {
            return Ok(());
        }
        let mut lookout = Lookout::until(Instant::now() + Duration::from_secs(self.timeout));
        loop {
            let Progress::Waits(why) = lookout.look(&look).await? else { return Ok(()) };
            if lookout.is_over() {
                let late = format!("{what} was not there within {} s: {why}", self.timeout);
                return Err(Failure::with(Exit::TimedOut, late, hint));
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// What its engine says of its size, or said last; nothing before it was first attached.
async fn size(volume: &str, volumes: &Api<Volume>) -> anyhow::Result<Option<Size>> {
    let engines: Api<Engine> = Api::namespaced(volumes.clone().into_client(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("{VOLUME_LABEL}={volume}"));
    let engines = engines.list(&of_volume).await.map_err(target::refusal)?;
    let sizes = engines.iter().filter_map(|engine| Some(engine.status.as_ref()?.current_size));
    Ok(sizes.filter(|size| size.bytes() > 0).max())
}

/// What a volume waits for, in its own words.
pub(super) fn why(volume: Option<&Volume>) -> String {
    let Some(status) = volume.and_then(|volume| volume.status.as_ref()) else {
        return "no controller has looked at it yet".into();
    };
    let message = |kind: &str| {
        let text = status.conditions.get(kind).map(|condition| condition.message.to_string());
        text.filter(|text| !text.is_empty())
    };
    let waits = message("Restore").or_else(|| message("Settled"));
    waits.filter(|text| !text.is_empty()).unwrap_or_else(|| format!("it is {}", status.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Size = Size::from_bytes(4096);
    const LARGE: Size = Size::from_bytes(8192);

    fn volume(state: VolumeState, node: &str) -> Volume {
        let mut volume = Volume::new("vol-1", Default::default());
        volume.spec.size = LARGE;
        let status = volume.status.get_or_insert_default();
        (status.state, status.current_node_id) = (state, node.into());
        volume
    }

    #[test]
    fn a_goal_is_reached_when_all_of_it_is_so() {
        use VolumeState::{Attached, Attaching, Detached};
        let to = Goal::AttachedTo("node-2");
        #[rustfmt::skip]
        let cases = [
            ("attached",                  to,             volume(Attached, "node-2"),  None,        true),
            ("attached elsewhere",        to,             volume(Attached, "node-1"),  None,        false),
            ("on its way",                to,             volume(Attaching, "node-2"), None,        false),
            ("detached",                  Goal::Detached, volume(Detached, ""),        None,        true),
            ("grown",                     Goal::Grown,    volume(Attached, "node-2"),  Some(LARGE), true),
            ("not grown",                 Goal::Grown,    volume(Attached, "node-2"),  Some(SMALL), false),
            ("detached and not grown",    Goal::Grown,    volume(Detached, ""),        Some(SMALL), false),
            ("detached and grown",        Goal::Grown,    volume(Detached, ""),        Some(LARGE), true),
            ("never attached",            Goal::Grown,    volume(Detached, ""),        None,        true),
            ("attached for the first time", Goal::Grown,  volume(Attaching, "node-2"), None,        false),
        ];
        for (case, goal, volume, size, expected) in cases {
            assert_eq!(goal.is_reached(Some(&volume), size), expected, "{case}");
        }
        assert!(Goal::Gone.is_reached(None, None) && !Goal::Grown.is_reached(None, None));
    }

    #[test]
    fn whoever_waits_for_a_node_is_told_which_one_has_the_volume() {
        let told =
            |node: &str| Goal::AttachedTo("node-2").why(Some(&volume(VolumeState::Attached, node)), None);
        assert_eq!(told("node-1"), "node-1 has it: it is attached");
        assert_eq!(told("node-2"), "it is attached");
    }
}
