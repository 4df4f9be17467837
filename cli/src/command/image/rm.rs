//! `midflight image rm`: takes images out of the registry.
//!
//! The invariant: without `--force` nothing is removed that the cluster still uses, nor while nobody can tell.

use clap::Args;
use midflight_agent::image::{ImageName, Layout};

use super::users;
use crate::{failure::Failure, session::Session};

/// Take an image out of the registry; nodes that have it keep it
#[derive(Debug, Args)]
pub(super) struct Rm {
    /// Names of the images
    #[arg(value_name = "NAME:TAG", required = true)]
    images: Vec<ImageName>,
    /// Remove them although the cluster uses them, or is down
    #[arg(long)]
    force: bool,
}

impl Rm {
    pub(super) fn run(self, session: &Session, layout: &Layout) -> anyhow::Result<()> {
        if !self.force {
            let help = "let them have another image first, or remove it all the same with --force";
            users::check(session, &self.images, help)?;
        }
        for image in self.images {
            if !layout.remove(&image)? {
                return Err(Failure::usage(
                    format!("{image} is not published"),
                    "`midflight image ls` shows what is",
                ));
            }
            session.say(format_args!("removed {image}"));
        }
        Ok(())
    }
}
