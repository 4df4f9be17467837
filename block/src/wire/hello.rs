//! How two processes agree on what they may say to each other.
//!
//! Invariant: a connection is used only when both version ranges overlap and the
//! peer serves the volume it was asked for; a refusal names both sides.

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;

/// Versions of the conversation this build can hold.
pub const VERSIONS: Versions = Versions { oldest: 1, newest: 1 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub oldest: u16,
    pub newest: u16,
}

impl Versions {
    /// The newest version both sides know.
    pub fn agree(self, theirs: Versions) -> Result<u16, NoCommonVersion> {
        let newest = self.newest.min(theirs.newest);
        if newest < self.oldest.max(theirs.oldest) {
            return Err(NoCommonVersion { ours: self, theirs });
        }
        Ok(newest)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wire versions {}-{} here and {}-{} there do not overlap", ours.oldest, ours.newest, theirs.oldest, theirs.newest)]
pub struct NoCommonVersion {
    pub ours: Versions,
    pub theirs: Versions,
}

/// The payload of the first frame in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub versions: Versions,
    pub volume: String,
    /// Names the sending process for as long as it lives. A connection that
    /// comes back with the same epoch must come from the same process. A frontend
    /// gives its attachment instead, which its successors share.
    pub sender: u64,
    /// Size in bytes; 0 from who does not know it.
    pub size: u64,
    /// A replica's promise, an engine's own epoch, a frontend's last one.
    pub epoch: Epoch,
}

/// Why a greeting is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum BadHello {
    #[error("greeting is not readable")]
    Unreadable(#[from] serde_json::Error),
    #[error("asked for volume {asked}, this is {here}")]
    OtherVolume { asked: String, here: String },
    #[error(transparent)]
    Versions(#[from] NoCommonVersion),
}

impl Hello {
    pub fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec(self).expect("a hello holds only plain fields").into()
    }

    /// Reads a peer's greeting and checks that it means `volume`.
    pub fn accept(payload: &[u8], volume: &str) -> Result<Hello, BadHello> {
        let hello: Hello = serde_json::from_slice(payload)?;
        if hello.volume != volume {
            return Err(BadHello::OtherVolume { asked: hello.volume, here: volume.to_owned() });
        }
        VERSIONS.agree(hello.versions)?;
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_do_not_overlap_are_refused_by_name() {
        let old = Versions { oldest: 1, newest: 2 };
        let new = Versions { oldest: 3, newest: 4 };
        assert_eq!(old.agree(Versions { oldest: 2, newest: 9 }), Ok(2));
        assert_eq!(
            old.agree(new).unwrap_err().to_string(),
            "wire versions 1-2 here and 3-4 there do not overlap"
        );
    }
}
