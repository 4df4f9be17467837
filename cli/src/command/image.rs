//! `midflight image`: the images of the embedded cluster, and those that nodes have before they are needed.

mod prepull;
mod rm;
mod users;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use midflight_agent::image::{ImageName, Layout, PackError, Program, Published, of_another, pack};
use midflight_api::settings;
use midflight_plan::storage::engine_image::Ranges;
use serde::Serialize;

use crate::{
    command::version,
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
    /// Publish it although the cluster uses another image that has this name now, or is down
    #[arg(long)]
    force: bool,
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
        let binary = match &self.binary {
            // A name without a folder is a file here, not a program of the PATH.
            Some(binary) => std::path::absolute(binary).context("find the binary")?,
            None => std::env::current_exe().context("find our own binary")?,
        };
        let engine = match self.tag.iter().find(|image| runs_engines(image)) {
            _ if self.binary.is_none() => Some(version::own_engine()),
            Some(image) => Some(session.block_on(engine_of(image, &binary))?),
            // It may be any program, which may do anything when it is started.
            None => None,
        };
        let program = Program { binary: &binary, engine };
        if !self.force {
            let taken = of_another(layout, &self.tag, program).map_err(explain)?;
            // Nodes that pull it later would run something else than those that have it.
            let help = "give it a tag of its own, or publish it all the same with --force";
            if !taken.is_empty() {
                users::check(session, &taken, help)?;
            }
        }
        let images = pack(layout, &self.tag, program).map_err(explain)?;
        session.answer(&Listed { images })
    }
}

/// Whether engines or instance managers are started from images of this name: the settings call theirs so.
fn runs_engines(image: &ImageName) -> bool {
    let names = ["default-engine-image", "default-instance-manager-image"];
    let defaults = names.into_iter().filter_map(settings::find);
    let mut defaults = defaults.filter_map(|setting| setting.default.parse::<ImageName>().ok());
    defaults.any(|default| default.repository() == image.repository())
}

/// What the engines of a program speak. Nodes would get what is packed by this name as an engine, and find out one by one that it is none.
async fn engine_of(image: &ImageName, binary: &Path) -> anyhow::Result<Ranges> {
    version::engine_of(binary).await.map_err(|cannot| {
        Failure::usage(
            format!(
                "{} is neither an engine nor an instance manager, as {image} has to be: {cannot:#}",
                binary.display()
            ),
            "name a build of midflight with --binary PATH, or give the image another name with --tag",
        )
    })
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
