//! What a server is told when it is opened, and why that may fail.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::auth::{NodeRule, TokenError};
use crate::http::{Annex, Nodes};
use crate::limits::Limits;
use crate::store::{self, StoreOptions};
use crate::tls::TlsError;

/// How to open a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds `store.redb`, `tokens.json` and `tls/`; made if it is not there.
    pub directory: PathBuf,
    /// Names and addresses under which clients reach the server, beyond
    /// `localhost`, `127.0.0.1` and `::1`.
    pub names: Vec<String>,
    pub limits: Limits,
    /// What node tokens may do beyond what every Kubernetes node may.
    pub node_rules: Vec<NodeRule>,
    pub store: StoreOptions,
    /// What is served beside the API, each below a path of its own.
    pub annexes: Vec<Arc<dyn Annex>>,
    /// The way to what runs on nodes; without it there are no logs.
    pub nodes: Option<Arc<dyn Nodes>>,
    /// What others in this process count; `/metrics` has it beside the server's own.
    pub figures: Option<Arc<Registry>>,
}

impl Config {
    /// The defaults, for a folder.
    pub fn new(directory: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            names: Vec::new(),
            limits: Limits::default(),
            node_rules: Vec::new(),
            store: StoreOptions::default(),
            annexes: Vec::new(),
            nodes: None,
            figures: None,
        }
    }
}

/// Why a server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("make the folder {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("open the store")]
    Store(#[from] store::OpenError),
    #[error("open the tokens")]
    Tokens(#[from] TokenError),
    #[error("set up TLS")]
    Tls(#[from] TlsError),
    #[error("make the namespaces that every cluster has")]
    Namespaces(#[source] store::WriteError),
    #[error("judge the names of the definitions")]
    Definitions(#[source] store::WriteError),
}
