//! Waits until a volume is as it was asked to be.

use std::time::Duration;

use clap::Args;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use midflight_api::Size;
use midflight_api::longhorn::{Engine, NAMESPACE, VOLUME_LABEL, Volume};
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
pub(super) enum Goal {
    State(&'static str),
    /// It has the size that it should have; one that is detached grows when it is next attached.
    Grown,
    /// It holds the backup that it was made from; a standby the newest.
    Restored,
    /// It follows no backup any more.
    Activated,
    Gone,
}

impl Goal {
    async fn is_reached(self, volume: Option<&Volume>, volumes: &Api<Volume>) -> anyhow::Result<bool> {
        let status = volume.and_then(|volume| volume.status.as_ref());
        let is = |state: &str| status.is_some_and(|status| status.state.as_str() == state);
        Ok(match (self, volume) {
            (Goal::State(state), _) => is(state),
            (Goal::Grown, Some(volume)) => is("detached") || size(volume, volumes).await? >= volume.spec.size,
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
        })
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
    pub(super) async fn wait(self, volumes: &Api<Volume>, name: &str, goal: Goal) -> anyhow::Result<()> {
        let hint = format!("`midflight volume show {name}` tells how it is; it goes on by itself");
        let look = async || {
            let volume = volumes.get_opt(name).await.map_err(target::refusal)?;
            Ok(match goal.is_reached(volume.as_ref(), volumes).await? {
                true => Progress::Done,
                false => Progress::Waits(why(volume.as_ref())),
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

/// What its engine says of its size.
async fn size(volume: &Volume, volumes: &Api<Volume>) -> anyhow::Result<Size> {
    let engines: Api<Engine> = Api::namespaced(volumes.clone().into_client(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("{VOLUME_LABEL}={}", volume.name_any()));
    let engines = engines.list(&of_volume).await.map_err(target::refusal)?;
    let sizes = engines.iter().filter_map(|engine| Some(engine.status.as_ref()?.current_size));
    Ok(sizes.max().unwrap_or_default())
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
