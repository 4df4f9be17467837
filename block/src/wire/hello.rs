//! How two processes agree on what they may say to each other.
//!
//! Invariant: a connection is used only when both version ranges overlap and the
//! peer serves the volume it was asked for; a refusal names both sides.

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;

/// Versions of the conversation this build can hold. Version 2 has compact frames and
/// the step that makes an upgrade final.
pub const VERSIONS: Versions = match cfg!(feature = "next") {
    false => Versions { oldest: 1, newest: 1, features: Features::NONE },
    true => Versions { oldest: 1, newest: 2, features: Features::COMPACT },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub oldest: u16,
    pub newest: u16,
    /// What is used where both sides have it.
    #[serde(default)]
    pub features: Features,
}

/// A set of things that a build can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Features(u64);

impl Features {
    pub const NONE: Features = Features(0);
    /// Reads frames without payload and extent in their short form.
    pub const COMPACT: Features = Features(1);

    pub const fn and(self, theirs: Features) -> Features {
        Features(self.0 & theirs.0)
    }

    pub const fn has(self, all: Features) -> bool {
        self.0 & all.0 == all.0
    }
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

    /// What the sender of a greeting and this build both can do.
    pub fn shared_features(payload: &[u8]) -> Features {
        #[derive(Deserialize)]
        struct Greeting {
            versions: Versions,
        }
        let theirs = serde_json::from_slice::<Greeting>(payload);
        theirs.map_or(Features::NONE, |greeting| VERSIONS.features.and(greeting.versions.features))
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
        let range = |oldest, newest| Versions { oldest, newest, features: Features::NONE };
        let (old, new) = (range(1, 2), range(3, 4));
        assert_eq!(old.agree(range(2, 9)), Ok(2));
        assert_eq!(
            old.agree(new).unwrap_err().to_string(),
            "wire versions 1-2 here and 3-4 there do not overlap"
        );
    }

    #[test]
    fn a_greeting_from_before_features_has_none() {
        let old: Versions = serde_json::from_str(r#"{"oldest":1,"newest":1}"#).unwrap();
        assert_eq!(old.features, Features::NONE);
        let some = Features::COMPACT;
        assert!(some.and(some).has(some) && !some.and(old.features).has(some));
        assert_eq!(Hello::shared_features(b"not a greeting"), Features::NONE);
    }
}
