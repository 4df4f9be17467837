//! `midflight bench api`: the embedded API server under load, beside a real one if there is one.
//!
//! Both sides get the same requests from the same client, in turns within one
//! run, so that the noise of the machine falls on both.

mod load;
mod side;
mod watchers;

use std::{path::PathBuf, time::Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use self::side::Side;
use super::{
    conditions::Conditions,
    figure::{Better, Figure, show},
};
use crate::{
    cluster::{Interrupts, Temporary},
    failure::Failure,
    output::{Answer, Paint},
    process::Role,
    session::Session,
};

/// Measure the embedded API server
///
/// Starts one in a temporary folder. With --peer, the same load goes to that API server in the same run; it gets a
/// namespace and a kind for that, which are removed afterwards.
#[derive(Debug, Args)]
pub(crate) struct ApiBench {
    /// Kubeconfig of an API server to measure beside ours
    #[arg(long, value_name = "KUBECONFIG")]
    peer: Option<PathBuf>,
    /// Processes whose memory counts for the peer [default: the one that listens on its port]
    #[arg(long, value_name = "PID", requires = "peer")]
    peer_pid: Vec<i32>,
    /// How long the peer took from its start until it was ready
    #[arg(long, value_name = "MS", requires = "peer")]
    peer_ready_ms: Option<f64>,
    /// Objects to list and to hold in memory
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// How often each load is repeated; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    figures: Vec<Figure>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        format!("{}\n\n{}", self.conditions, show(&self.figures))
    }
}

impl ApiBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let cluster = Temporary::build(session, 0)?;
        let measured = tokio::select! {
            measured = self.measure(session, &cluster) => measured,
            () = interrupts.next() => Err(Failure::error("interrupted", "start it again any time")),
        };
        cluster.clear().await.context("clean up after the measurement")?;
        session.answer(&measured?)
    }

    async fn measure(&self, session: &Session, cluster: &Temporary) -> anyhow::Result<Measured> {
        let conditions = Conditions::before();
        let began = Instant::now();
        let control = cluster.starter.start(&Role::Control).await?;
        let ready_ms = began.elapsed().as_secs_f64() * 1000.0;
        let ours = Side::new("midflight", cluster.client().await?, vec![control.pid]).await?;
        let peer = match &self.peer {
            Some(kubeconfig) => Some(Side::of_peer(kubeconfig, &self.peer_pid).await?),
            None => None,
        };
        let mut figures: Vec<Figure> =
            Figure::new("ready", "ms", Better::Lower, &[ready_ms], self.peer_ready_ms.as_slice())
                .into_iter()
                .collect();
        let sides: Vec<&Side> = std::iter::once(&ours).chain(&peer).collect();
        let measured = load::measure(session, &sides, self.objects, self.rounds).await;
        for side in &sides {
            side.clear().await?;
        }
        figures.extend(measured?);
        Ok(Measured { conditions: conditions.after(), figures })
    }
}
