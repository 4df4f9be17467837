//! What the acts play on: one cluster for all of them, and what they share.

use std::path::{Path, PathBuf};

use anyhow::Context;
use midflight_agent::image::{ImageName, Layout, Program, pack_for_this_boot};

use super::next::{Absent, Next};
use crate::{cluster::Temporary, command::version, session::Session};

pub(super) struct Stage<'s> {
    session: &'s Session,
    pub(super) cluster: Temporary,
    next: Next,
}

impl<'s> Stage<'s> {
    pub(super) fn new(session: &'s Session, cluster: Temporary, next: Option<PathBuf>) -> Stage<'s> {
        Stage { session, cluster, next: Next::new(next) }
    }

    /// The next version of this program, built at the first call if nobody brought one. An act that cannot have it is
    /// skipped with this reason.
    pub(super) async fn next(&self) -> anyhow::Result<Result<&Path, &Absent>> {
        self.next.find(self.session).await
    }

    /// Publishes a program as an image of this name.
    pub(super) async fn publish(&self, program: &Path, image: &str) -> anyhow::Result<()> {
        let (layout, program) = (Layout::at(self.cluster.folder().registry()), program.to_owned());
        let image: ImageName = image.parse().context("name an image")?;
        let engine = version::engine_of(&program).await.ok();
        let pack = move || pack_for_this_boot(&layout, &[image], Program { binary: &program, engine });
        let packed = self.cluster.block(pack).await?;
        packed.map(drop).context("publish an image")
    }

    /// What the metrics of the API say of a number of ours.
    pub(super) async fn counted(&self, metric: &str) -> anyhow::Result<usize> {
        let client = self.cluster.client().await?;
        let request = http::Request::get("/metrics").body(Vec::new()).context("ask for the metrics")?;
        let metrics = client.request_text(request).await.context("read the metrics")?;
        let mut lines =
            metrics.lines().filter_map(|line| line.strip_prefix("midflight_")?.strip_prefix(metric));
        let count = lines.find_map(|rest| rest.strip_prefix(' ')?.parse().ok());
        count.with_context(|| format!("the metrics do not tell of {metric}"))
    }
}
