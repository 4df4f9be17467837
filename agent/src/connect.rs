//! Finds the API from the node's kubeconfig.

use std::path::Path;

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// What can go wrong on the way to a client; all of it may pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("read the node's kubeconfig")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    #[error("make a client from the node's kubeconfig")]
    Client(#[source] Box<kube::Error>),
}

pub(crate) async fn connect(kubeconfig: &Path) -> Result<Client, ConnectError> {
    let file = Kubeconfig::read_from(kubeconfig).map_err(ConnectError::Kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).await.map_err(ConnectError::Kubeconfig)?;
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}
