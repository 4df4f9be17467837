//! How a command ends badly: what was being done, why it failed, what to try, and the exit code.
//!
//! A `Failure` is the root of an error chain; the contexts above it say what
//! was being done. It crosses process borders as a `Report`, so that `up` can
//! repeat the words of the process that failed.

use std::{fmt, process::ExitCode};

use serde::{Deserialize, Serialize};

/// Exit codes are part of the interface: 0 ok, 1 error, 2 usage, 3 blocked, 4 timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Exit {
    Error,
    Usage,
    Blocked,
    TimedOut,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Error => 1,
            Exit::Usage => 2,
            Exit::Blocked => 3,
            Exit::TimedOut => 4,
        })
    }
}

/// An error with advice.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) try_this: String,
    pub(crate) exit: Exit,
}

impl Failure {
    pub(crate) fn with(exit: Exit, why: impl Into<String>, try_this: impl Into<String>) -> anyhow::Error {
        Failure { why: why.into(), try_this: try_this.into(), exit }.into()
    }

    pub(crate) fn error(why: impl Into<String>, try_this: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::Error, why, try_this)
    }

    pub(crate) fn usage(why: impl Into<String>, try_this: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::Usage, why, try_this)
    }
}

/// A whole error chain as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Outermost first.
    pub(crate) chain: Vec<String>,
    pub(crate) try_this: Option<String>,
    pub(crate) exit: Exit,
}

impl Report {
    pub(crate) fn of(error: &anyhow::Error) -> Report {
        if let Some(report) = error.chain().find_map(|cause| cause.downcast_ref::<Report>()) {
            let above = error.chain().map(ToString::to_string).take_while(|text| *text != report.to_string());
            let chain = above.chain(report.chain.iter().cloned()).collect();
            return Report { chain, ..report.clone() };
        }
        let mut chain = words(error);
        // Some libraries repeat their source in their own text.
        chain.dedup_by(|inner, outer| outer.ends_with(inner.as_str()));
        let failure = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
        Report {
            chain,
            try_this: failure.map(|failure| failure.try_this.clone()),
            exit: failure.map_or(Exit::Error, |failure| failure.exit),
        }
    }
}

/// The words of each cause, outermost first. kube adds a debug dump to what the API answered, so that is told by itself.
fn words(error: &anyhow::Error) -> Vec<String> {
    let mut chain = Vec::new();
    for cause in error.chain() {
        let boxed = cause.downcast_ref::<Box<kube::Error>>().map(|error| &**error);
        if let Some(kube::Error::Api(status)) = cause.downcast_ref::<kube::Error>().or(boxed) {
            chain.push(status.message.clone());
            break;
        }
        chain.push(cause.to_string());
    }
    chain
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain.join(": "))
    }
}

impl std::error::Error for Report {}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn failed() -> anyhow::Error {
        let failed: anyhow::Result<()> = Err(Failure::usage("it runs already", "midflight down"));
        failed.context("start control").unwrap_err()
    }

    #[test]
    fn keeps_the_chain_the_advice_and_the_code() {
        let report = Report::of(&failed());
        assert_eq!(report.to_string(), "start control: it runs already");
        assert_eq!(report.try_this.as_deref(), Some("midflight down"));
        assert_eq!(report.exit, Exit::Usage);
    }

    #[test]
    fn survives_the_way_from_one_process_to_another() {
        let wire = serde_json::to_string(&Report::of(&failed())).unwrap();
        let arrived: Report = serde_json::from_str(&wire).unwrap();
        let again: anyhow::Result<()> = Err(arrived.into());
        let report = Report::of(&again.context("bring up the cluster").unwrap_err());
        assert_eq!(report.to_string(), "bring up the cluster: start control: it runs already");
        assert_eq!(report.exit, Exit::Usage);
    }

    #[test]
    fn what_the_api_answered_is_told_once_and_in_its_own_words() {
        let refused = || {
            let status = kube::core::Status::failure("volumes \"a\" is forbidden", "Forbidden");
            kube::Error::Api(Box::new(status))
        };
        #[derive(Debug, thiserror::Error)]
        #[error("make the setting x")]
        struct Made {
            source: Box<kube::Error>,
        }
        let plain: anyhow::Result<()> = Err(refused().into());
        let within: anyhow::Result<()> = Err(Made { source: Box::new(refused()) }.into());
        let [plain, within] =
            [plain, within].map(|told| Report::of(&told.context("do it").unwrap_err()).to_string());
        assert_eq!(plain, "do it: volumes \"a\" is forbidden");
        assert_eq!(within, "do it: make the setting x: volumes \"a\" is forbidden");
    }

    #[test]
    fn an_error_without_advice_is_a_plain_error() {
        let report = Report::of(&anyhow::anyhow!("disk on fire"));
        assert_eq!((report.exit, report.try_this), (Exit::Error, None));
    }
}
