//! `midflight image`: the images of the embedded cluster, and those that nodes have before they are needed.

mod prepull;
mod rm;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use midflight_agent::image::{ImageName, Layout, PackError, Published, pack};
use serde::Serialize;

use crate::{
    failure::Failure,
    folder::Folder,
    output::{Answer, Paint, duration, size, table},
    session::Session,
};

/// Make, list and remove images of the embedded cluster
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Image {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Pack(Pack),
    Ls(Ls),
    Rm(rm::Rm),
    /// Show which nodes have the images that they will need
    Prepull,
}

/// Make an image of a binary and publish it
#[derive(Debug, Args)]
struct Pack {
    /// Name of the image; without a host it is the cluster's own
    #[arg(long, value_name = "NAME:TAG", required = true)]
    tag: Vec<ImageName>,
    /// Program to put into it [default: this very binary]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// List the images that are published
#[derive(Debug, Args)]
struct Ls {}

impl Image {
    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        let layout = || registry_of(&session.folder()?);
        match self.action {
            Action::Pack(pack) => pack.run(session, &layout()?),
            Action::Ls(Ls {}) => session.answer(&Listed { images: layout()?.images()? }),
            Action::Rm(rm) => rm.run(session, &layout()?),
            Action::Prepull => session.block_on(prepull::run(session)),
        }
    }
}

impl Pack {
    fn run(self, session: &Session, layout: &Layout) -> anyhow::Result<()> {
        if let Some(foreign) = self.tag.iter().find(|image| !image.is_local()) {
            return Err(Failure::usage(
                format!("{foreign} belongs to another registry"),
                format!(
                    "leave the host out: --tag {}:{}",
                    foreign.repository(),
                    foreign.tag().unwrap_or("latest")
                ),
            ));
        }
        if let Some(untagged) = self.tag.iter().find(|image| image.tag().is_none()) {
            return Err(Failure::usage(
                format!("{untagged} is named by its digest, which is not known before it is packed"),
                format!("give it a tag: --tag {}:v1", untagged.repository()),
            ));
        }
        let binary = match self.binary {
            Some(binary) => binary,
            None => std::env::current_exe().context("find our own binary")?,
        };
        let images = pack(layout, &self.tag, &binary).map_err(explain)?;
        session.answer(&Listed { images })
    }
}

fn registry_of(folder: &Folder) -> anyhow::Result<Layout> {
    if folder.marker()?.is_none() {
        return Err(Failure::usage(
            format!("there is no cluster in {}", folder.root().display()),
            "start one with `midflight up`, or name its folder with --dir",
        ));
    }
    Ok(Layout::at(folder.registry()))
}

fn explain(error: PackError) -> anyhow::Error {
    match error {
        PackError::NotAProgram { .. } => {
            Failure::usage(error.to_string(), "name an executable file with --binary PATH")
        }
        PackError::Changed { .. } => Failure::error(error.to_string(), "pack it again once it is finished"),
        PackError::Read { path, source } => Failure::usage(
            format!("read {}: {source}", path.display()),
            "name an executable file with --binary PATH",
        ),
        PackError::Publish { .. } => error.into(),
    }
}

/// What `pack` and `ls` answer.
#[derive(Debug, Serialize)]
struct Listed {
    images: Vec<Published>,
}

impl Answer for Listed {
    fn to_table(&self, _: Paint) -> String {
        let now = Timestamp::now();
        let rows = self.images.iter().map(|published| {
            let age = published.published_at.map(|at| duration(now.duration_since(at).as_secs()));
            [
                published.image.to_string(),
                published.digest.short().to_owned(),
                size(published.size_bytes),
                age.unwrap_or_else(|| "unknown".to_owned()),
            ]
        });
        table(["IMAGE", "DIGEST", "SIZE", "AGE"], rows)
    }
}
