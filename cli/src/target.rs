//! Finds the API a command speaks to.
//!
//! What was named on the command line wins: a kubeconfig, then a folder. Otherwise a context is one of
//! kubectl's own kubeconfig, which is also asked when we run as its plugin; else it is the cluster in the
//! folder where clusters are by default.

use std::{error::Error, path::Path};

use anyhow::Context;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    args::Invocation,
    failure::{Failure, Report},
    folder::Folder,
    output::quoted,
    process::{Record, Role},
    session::Session,
};

pub(crate) async fn client(session: &Session) -> anyhow::Result<Client> {
    let config = config(session).await?;
    Client::try_from(config).context("make a client from the kubeconfig")
}

/// A client of the admin of the cluster in a folder.
pub(crate) async fn client_of(folder: &Folder) -> anyhow::Result<Client> {
    let config = read(&folder.kubeconfig(), &KubeConfigOptions::default()).await?;
    Client::try_from(config).context("make a client")
}

/// Whether another cluster than the one in a folder is meant.
pub(crate) fn is_elsewhere(session: &Session) -> bool {
    let global = &session.global;
    let named = global.kubeconfig.is_some() || global.context.is_some();
    global.dir.is_none() && (named || session.invocation == Invocation::KubectlPlugin)
}

/// An API that did not do what it was asked and may do so later; whether it would refuse is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Silence {
    #[error("the API does not answer: {0}")]
    Away(String),
    /// It answers, and has too much to do or cannot do its work.
    #[error("the API cannot do this now: {0}")]
    Busy(String),
}

/// What an API refused, in its own words and no others; or that it did not answer.
pub(crate) fn refusal(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if matches!(status.code, 429 | 503 | 504) => {
            Silence::Busy(status.message.clone()).into()
        }
        kube::Error::Api(status) => anyhow::anyhow!(status.message.clone()),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
            Silence::Away(innermost(&error)).into()
        }
        other => other.into(),
    }
}

/// The cause of all causes: what the system said.
fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Why the API gave no answer, if that is what went wrong.
pub(crate) fn silence(error: &anyhow::Error) -> Option<&Silence> {
    error.chain().find_map(|cause| cause.downcast_ref::<Silence>())
}

/// What is told of an error; of an API that does not answer also where it should be, and how to bring it back.
pub(crate) fn report(session: &Session, error: &anyhow::Error) -> Report {
    let report = Report::of(error);
    let Some(silence) = silence(error).filter(|_| report.try_this.is_none()) else { return report };
    let mut chain = report.chain;
    let address = session.block_on(config(session)).map(|config| config.cluster_url.to_string());
    if let (Some(last), Ok(address)) = (chain.last_mut(), address) {
        let address = address.trim_end_matches('/');
        *last = match silence {
            Silence::Away(why) => format!("no API answers at {address}: {why}"),
            Silence::Busy(why) => format!("the API at {address} cannot do this now: {why}"),
        };
    }
    let try_this = match silence {
        Silence::Away(_) => way_back(session),
        Silence::Busy(_) => "try again in a moment; `midflight status` says how it is".to_owned(),
    };
    Report { chain, try_this: Some(try_this), exit: report.exit }
}

/// What to try where no API answers.
fn way_back(session: &Session) -> String {
    let elsewhere = "check --kubeconfig and --context, and that this cluster can be reached";
    let Ok(folder) = session.folder() else { return elsewhere.to_owned() };
    if is_elsewhere(session) || session.global.kubeconfig.is_some() {
        return elsewhere.to_owned();
    }
    match Record::alive(&folder.run(), &Role::Control) {
        Ok(Some((_, alive))) => format!(
            "its control plane runs (pid {}); {} says what it does",
            alive.pid,
            folder.log(&Role::Control).display()
        ),
        Ok(None) | Err(_) => {
            let folder = folder.root().display().to_string();
            format!("start it with `midflight up --detach --dir {}`", quoted(&folder))
        }
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
    read(&file, &options).await
}

async fn read(file: &Path, options: &KubeConfigOptions) -> anyhow::Result<Config> {
    let reading = || format!("read {}", file.display());
    let kubeconfig = Kubeconfig::read_from(file).with_context(reading)?;
    Config::from_custom_kubeconfig(kubeconfig, options).await.with_context(reading)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answered(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, ..Status::failure("it says so", "Reason") }))
    }

    #[test]
    fn tells_a_refusal_from_an_api_that_is_away() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let closed = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        #[rustfmt::skip]
        let cases = [
            ("refused",    answered(403),                                   None),
            ("no such",    answered(404),                                   None),
            ("no writes",  answered(503),                                   Some(Silence::Busy("it says so".into()))),
            ("overloaded", answered(429),                                   Some(Silence::Busy("it says so".into()))),
            ("nobody",     kube::Error::Service(Box::new(refused)),         Some(Silence::Away("connection refused".into()))),
            ("ended",      kube::Error::ReadEvents(closed),                 Some(Silence::Away("connection reset".into()))),
        ];
        for (case, error, expected) in cases {
            let told: anyhow::Result<()> = Err(refusal(error));
            let told = told.context("look at a volume").unwrap_err();
            assert_eq!(silence(&told), expected.as_ref(), "{case}");
        }
    }
}
