//! The conformance suite: one set of scenarios, told to the embedded server and to a real one.
//!
//! The real server is the truth: its answers are the golden files. A difference
//! of the embedded one is a defect of the embedded one, unless the step says
//! `embedded` and why.
//!
//! Run by cargo; arguments choose scenarios by a part of their name.

#![expect(
    clippy::needless_pass_by_value,
    reason = "a scenario reads better without an ampersand at every body"
)]

mod areas;
mod fixtures;
mod golden;
mod normal;
mod report;
mod run;
mod scenario;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use midflight_tests::endpoint::Endpoint;
use midflight_tests::kinds;
use midflight_tests::place;
use midflight_tests::server::Embedded;
use midflight_tests::webhook::Webhook;

use crate::report::{Report, Server};
use crate::run::Stage;

/// Events that the embedded server keeps: more than the scenarios under way make, fewer than all of them.
const HISTORY: usize = 300;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be built");
    match runtime.block_on(judge_all()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            report::line(&format!("conformance: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn judge_all() -> anyhow::Result<bool> {
    let chosen = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect::<Vec<_>>();
    golden::check_the_comparison()?;
    let recording = std::env::var_os("MIDFLIGHT_RECORD").is_some();
    let mut report = Report::new(chosen, recording);

    if !recording {
        let server = Embedded::start_with(|config| config.store.history_events = HISTORY).await?;
        let stage = Arc::new(embedded(&server).await.context("prepare the embedded server")?);
        report.server(&stage).await?;
        server.stop().await;
    }
    match place::judge() {
        Some(kubeconfig) => {
            let stage = Arc::new(real(&kubeconfig).await.context("reach the real server")?);
            report.server(&stage).await?;
        }
        None => place::skip(
            "conformance of the real server: set MIDFLIGHT_JUDGE_KUBECONFIG (dev/kubernetes test does)",
        ),
    }
    Ok(report.finish())
}

/// The embedded server, in this process.
///
/// It has been there for longer than its history reaches, as the real one has.
async fn embedded(server: &Embedded) -> anyhow::Result<Stage> {
    kinds::install(&server.admin).await?;
    let probe = format!("/apis/{}/v1/namespaces/default/gadgets/probe", kinds::GROUP);
    for count in 0..=HISTORY {
        let patch = serde_json::json!({"spec": {"big": count}}).to_string().into_bytes();
        let request = http::Request::patch(&probe).header("Content-Type", "application/merge-patch+json");
        let answer = server.admin.call(request.body(patch)?).await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.text);
    }
    stage(Server::Embedded, server.admin.clone(), server.viewer.clone()).await
}

/// The real server, with the users that `dev/kubernetes` made.
async fn real(kubeconfig: &std::path::Path) -> anyhow::Result<Stage> {
    let admin = Endpoint::from_kubeconfig(kubeconfig).await?;
    let beside = kubeconfig.with_file_name("viewer.kubeconfig");
    let viewer = Endpoint::from_kubeconfig(&beside).await?;
    stage(Server::Real, admin, viewer).await
}

async fn stage(server: Server, admin: Endpoint, viewer: Endpoint) -> anyhow::Result<Stage> {
    let (nobody, stranger) = (admin.with_token(None)?, admin.with_token(Some("not-a-token"))?);
    let webhook = Webhook::start().await?;
    Ok(Stage { admin, viewer, nobody, stranger, webhook, server })
}
