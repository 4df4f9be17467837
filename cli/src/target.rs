//! Finds the API a command speaks to.
//!
//! What was named on the command line wins: a kubeconfig, then a folder. Otherwise a context is one of
//! kubectl's own kubeconfig, which is also asked when we run as its plugin; else it is the cluster in the
//! folder where clusters are by default.

use anyhow::Context;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{args::Invocation, failure::Failure, session::Session};

pub(crate) async fn client(session: &Session) -> anyhow::Result<Client> {
    let config = config(session).await?;
    Client::try_from(config).context("make a client from the kubeconfig")
}

/// Whether another cluster than the one in a folder is meant.
pub(crate) fn is_elsewhere(session: &Session) -> bool {
    let global = &session.global;
    let named = global.kubeconfig.is_some() || global.context.is_some();
    global.dir.is_none() && (named || session.invocation == Invocation::KubectlPlugin)
}

/// What an API refused, in its own words and no others.
pub(crate) fn refusal(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!(status.message.clone()),
        other => other.into(),
    }
}

pub(crate) async fn config(session: &Session) -> anyhow::Result<Config> {
    let global = &session.global;
    let options = KubeConfigOptions { context: global.context.clone(), ..Default::default() };
    let file = match (&global.kubeconfig, &global.dir, &global.context, session.invocation) {
        (Some(path), _, _, _) => path.clone(),
        (None, Some(_), _, _) | (None, None, None, Invocation::Itself) => {
            let folder = session.folder()?;
            let path = folder.kubeconfig();
            if !path.exists() {
                return Err(Failure::error(
                    format!("there is no cluster in {}", folder.root().display()),
                    "start one with `midflight up`, or name a cluster with --kubeconfig",
                ));
            }
            path
        }
        (None, None, Some(_), _) | (None, None, None, Invocation::KubectlPlugin) => {
            return Config::from_kubeconfig(&options).await.context("read kubectl's own kubeconfig");
        }
    };
    let reading = || format!("read {}", file.display());
    let kubeconfig = Kubeconfig::read_from(&file).with_context(reading)?;
    Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(reading)
}
