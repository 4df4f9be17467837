//! What the acts play on: one cluster for all of them, and what they share.

use std::path::{Path, PathBuf};

use super::next::{Absent, Next};
use crate::{cluster::Temporary, session::Session};

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
}
