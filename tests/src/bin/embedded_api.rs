//! The embedded API server alone, as a process that a test can kill.
//!
//! `embedded_api FOLDER ADDRESS HISTORY`: serves the store in the folder and
//! writes its kubeconfig there; keeps that many events for watchers.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use midflight_tests::server;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("which folder?")?);
    let address = arguments.next().context("which address?")?.parse::<SocketAddr>()?;
    let history = arguments.next().context("how much history?")?.parse::<usize>()?;
    let (_server, listening) =
        server::open(&folder, address, |config| config.store.history_events = history).await?;
    listening.serve().await;
    Ok(())
}
