//! Waits until a volume is as it was asked to be.

use std::time::Duration;

use clap::Args;
use kube::api::Api;
use midflight_api::longhorn::Volume;
use tokio::time::{Instant, sleep};

use crate::{
    failure::{Exit, Failure},
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
    Grown,
    Gone,
}

impl Goal {
    fn is_reached(self, volume: Option<&Volume>) -> bool {
        let status = volume.and_then(|volume| volume.status.as_ref());
        match self {
            Goal::State(state) => status.is_some_and(|status| status.state.as_str() == state),
            Goal::Grown => status.is_some_and(|status| !status.expansion_required),
            Goal::Gone => volume.is_none(),
        }
    }
}

impl Patience {
    pub(super) async fn wait(self, volumes: &Api<Volume>, name: &str, goal: Goal) -> anyhow::Result<()> {
        if !self.wait {
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        loop {
            let volume = volumes.get_opt(name).await.map_err(target::refusal)?;
            if goal.is_reached(volume.as_ref()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Failure::with(
                    Exit::TimedOut,
                    format!(
                        "volume {name} was not there within {} s: {}",
                        self.timeout,
                        why(volume.as_ref())
                    ),
                    format!("`midflight volume show {name}` tells how it is; it goes on by itself"),
                ));
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// What a volume waits for, in its own words.
pub(super) fn why(volume: Option<&Volume>) -> String {
    let Some(status) = volume.and_then(|volume| volume.status.as_ref()) else {
        return "no controller has looked at it yet".into();
    };
    let waits = status.conditions.get("Settled").map(|condition| condition.message.to_string());
    waits.filter(|text| !text.is_empty()).unwrap_or_else(|| format!("it is {}", status.state))
}
