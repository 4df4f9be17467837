//! Files that are whole or absent, and readable by their owner alone.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use anyhow::Context;

use crate::failure::Failure;

const UNFINISHED: &str = "unfinished";

/// Replaces a file in one step: after a crash it has its old content or the new one.
pub(crate) fn write_atomically(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let unfinished = path.with_extension(UNFINISHED);
    let write = || -> io::Result<()> {
        let _ = fs::remove_file(&unfinished);
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        File::open(parent)?.sync_all()
    };
    write().map_err(|error| explain(error, path)).with_context(|| format!("write {}", path.display()))
}

/// Whether a file is what a crash left of `write_atomically`.
pub(crate) fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == UNFINISHED)
}

/// Makes a folder with mode 0700 and all that is missing above it.
pub(crate) fn create_private_dir(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| explain(error, path)).with_context(|| format!("create folder {}", path.display()))
}

/// Gives a folder that was there already mode 0700.
pub(crate) fn make_private(path: &Path) -> anyhow::Result<()> {
    let made = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
    made.map_err(|error| explain(error, path)).with_context(|| format!("make {} private", path.display()))
}

fn explain(error: io::Error, path: &Path) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "choose a folder you may write to with --dir"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
            "choose another folder with --dir: something that is no folder is in the way"
        }
        _ => return error.into(),
    };
    Failure::error(format!("{}: {error}", path.display()), advice)
}
