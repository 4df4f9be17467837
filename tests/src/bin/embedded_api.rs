//! The embedded API server alone, as a process that a test can kill.
//!
//! `embedded_api FOLDER ADDRESS HISTORY`: serves the store in the folder and
//! writes its kubeconfig there; keeps that many events for watchers. It waits
//! for requests that arrive slowly for as long as a busy machine may need.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use midflight_tests::server;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("which folder?")?);
    let address = arguments.next().context("which address?")?.parse::<SocketAddr>()?;
    let history = arguments.next().context("how much history?")?.parse::<usize>()?;
    let (_server, listening) = server::open(&folder, address, |config| {
        config.store.history_events = history;
        config.limits.read_time = Duration::from_secs(600);
    })
    .await?;
    listening.serve().await;
    Ok(())
}
