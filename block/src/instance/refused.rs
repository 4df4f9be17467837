//! Why an instance manager does not do what it is asked.
//!
//! Invariant: a refusal changes nothing, and names both sides where two disagree.

use std::io;

use super::names::Name;
use crate::{caller::ControlError, epoch::Epoch};

#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("volume {volume} is at epoch {known} here, the command has {asked}")]
    StaleEpoch { volume: Name, asked: Epoch, known: Epoch },
    #[error("{name} has epoch {known} here, the command is for {asked}")]
    OtherEpoch { name: Name, asked: Epoch, known: Epoch },
    #[error("{name} belongs to volume {here}, the command is for {asked}")]
    OtherVolume { name: Name, asked: Name, here: Name },
    #[error("{name} was created at this epoch with other particulars: {what}")]
    Different { name: Name, what: &'static str },
    #[error("there is no {what} here")]
    NotFound { what: String },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Busy(String),
    #[error("{doing}: {why}")]
    Failed { doing: String, why: String },
}

impl Refused {
    pub(super) fn failed(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Refused {
        let doing = doing.into();
        move |error| Refused::Failed { doing, why: error.to_string() }
    }
}

impl From<ControlError> for Refused {
    fn from(error: ControlError) -> Refused {
        match error {
            ControlError::Busy(why) => Refused::Busy(why),
            ControlError::Refused(why) => Refused::Invalid(why),
            ControlError::Io(error) => Refused::Failed {
                doing: "talk to the process that serves the volume".into(),
                why: error.to_string(),
            },
            ControlError::Frame(_) | ControlError::Json(_) => Refused::Failed {
                doing: "understand the process that serves the volume".into(),
                why: error.to_string(),
            },
        }
    }
}
