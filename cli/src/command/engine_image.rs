//! `midflight engine-image`: brings the engine of an image to a node. Started in the pods of an EngineImage.
//!
//! The one invariant: the binary that instance managers find is whole, whenever they look.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use midflight_agent::image::same_file;

use super::version;

/// This program, in whatever image it is.
const SELF: &str = "/proc/self/exe";

/// Put this binary where the instance managers of a node find it, and say what it is
#[derive(Debug, Args)]
pub(crate) struct EngineImage {
    /// Folder of the node
    #[arg(long)]
    node: PathBuf,
    /// Where to put it, below the folder of the node
    #[arg(long)]
    binary: PathBuf,
}

impl EngineImage {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let target = self.node.join(&self.binary);
        put(&self.node, &target).with_context(|| format!("put the engine at {}", target.display()))?;
        let about = serde_json::to_string(&version::about()).context("encode what this binary is")?;
        let mut out = std::io::stdout().lock();
        std::io::Write::write_all(&mut out, format!("{about}\n").as_bytes())
            .context("say what this binary is")
    }
}

/// Shares the file with the node's image where it can, since it is large.
fn put(node: &Path, target: &Path) -> anyhow::Result<()> {
    let own = fs::metadata(SELF)?;
    if fs::metadata(target).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
        return Ok(());
    }
    let folder = target.parent().context("it has no folder")?;
    let name = target.file_name().and_then(|name| name.to_str()).context("it has no name")?;
    fs::create_dir_all(folder)?;
    let unfinished = target.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_file(&unfinished)?;
    }
    let shared = same_file(node, name, &own).is_some_and(|file| fs::hard_link(file, &unfinished).is_ok());
    if !shared {
        fs::copy(SELF, &unfinished)?;
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
    }
    Ok(fs::rename(&unfinished, target)?)
}
