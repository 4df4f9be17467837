//! The file that makes a folder ours, with what must be the same at every start.

use std::{fs, io, net::SocketAddr, path::Path};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::write_atomically;
use crate::failure::Failure;

/// The layout of the folder this binary knows.
const FORMAT: u32 = 1;

/// The content of `midflight.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Marker {
    pub(crate) format: u32,
    /// How many nodes the cluster has.
    pub(crate) nodes: u8,
    /// Where the API listened last; a restart takes the same port, so that clients find it again.
    pub(crate) listen: Option<SocketAddr>,
}

impl Marker {
    pub(crate) fn new() -> Marker {
        Marker { format: FORMAT, nodes: 0, listen: None }
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Option<Marker>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let unreadable = || {
            Failure::error(
                format!("{} is not readable as the marker of a folder", path.display()),
                "restore it from a copy, or use another --dir; nothing was changed",
            )
        };
        let format = serde_json::from_slice::<serde_json::Value>(&text)
            .ok()
            .and_then(|marker| marker["format"].as_u64())
            .ok_or_else(unreadable)?;
        if format > u64::from(FORMAT) {
            return Err(Failure::error(
                format!("{} has format {format}, and this midflight knows up to {FORMAT}", path.display()),
                "use the newer midflight that made the folder, or another --dir; nothing was changed",
            ));
        }
        serde_json::from_slice(&text).map(Some).map_err(|_| unreadable())
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self).context("encode the folder's marker")?;
        write_atomically(path, &text, 0o600)
    }
}
