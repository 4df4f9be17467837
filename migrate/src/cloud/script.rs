//! What a run does, as its journal keeps it: the stages, and the file and database that they came from.
//!
//! The one invariant: no password of the upgrade file is part of it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    file::Upgrade,
    stage::{Stage, stages},
};
use crate::{hex::hex, store::Url};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Script {
    pub upgrade: String,
    /// Of the file's text.
    pub digest: String,
    pub at_once: usize,
    /// Our own database without its password, and its layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    pub stages: Vec<Stage>,
}

impl Script {
    pub fn of(upgrade: &Upgrade, text: &[u8]) -> Script {
        let database = upgrade.migrate.as_ref().map(|settings| match settings.url() {
            Ok(Url::Embedded { path }) => {
                let path = std::path::absolute(&path).unwrap_or(path);
                format!("{} ({:?} layout)", Url::Embedded { path }, settings.layout)
            }
            Ok(url) => format!("{url} ({:?} layout)", settings.layout),
            // The first step that needs it says what is wrong with it.
            Err(_) => "an address that is none".to_owned(),
        });
        Script {
            upgrade: upgrade.name.clone(),
            digest: hex(&Sha256::digest(text)),
            at_once: upgrade.at_once,
            database,
            stages: stages(upgrade),
        }
    }
}
