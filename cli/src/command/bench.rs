//! `midflight bench`: figures, side by side with peers in the same run.

pub(crate) mod api;
mod figure;

use clap::{Args, Subcommand};

use crate::session::Session;

/// Measure, side by side with a peer
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    Api(api::ApiBench),
}

impl Bench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.subject {
            Subject::Api(api) => api.run(session).await,
        }
    }
}
