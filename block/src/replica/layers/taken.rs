//! How much room the layers of a copy take on its disk, as whoever does not own the folder sees it.
//!
//! Invariant: nothing is written, and no lock is needed: the owner may change the layers meanwhile.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use super::{chain, file_name};

/// Bytes of a block in the count of the file system.
const UNIT: u64 = 512;

/// What the data of a layer takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The snapshot that it is; nothing for the head.
    pub snapshot: Option<String>,
    pub bytes: u64,
}

/// Whether a folder holds a copy, of whatever build.
pub fn is_there(folder: &Path) -> bool {
    match fs::metadata(folder.join(chain::FILE)) {
        Ok(data) => data.len() > 0,
        // Whoever opens it says what is wrong.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The layers of a copy, oldest first. One that is on its way to the layer above counts with that one.
pub fn taken(folder: &Path) -> io::Result<Vec<Taken>> {
    let chain = chain::peek(folder)?;
    let size = |id: u64| match fs::metadata(folder.join(file_name(id, "img"))) {
        Ok(data) => Ok(data.blocks() * UNIT),
        // It was merged or thrown away since the list was read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    let (mut layers, mut moving) = (Vec::new(), 0);
    for link in &chain.frozen {
        let bytes = moving + size(link.id)?;
        moving = if link.removing { bytes } else { 0 };
        if !link.removing {
            layers.push(Taken { snapshot: Some(link.name.clone()), bytes });
        }
    }
    layers.push(Taken { snapshot: None, bytes: moving + size(chain.head)? });
    Ok(layers)
}
