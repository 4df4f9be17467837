//! What a server says of itself before anything is written to it.

use serde::Serialize;

/// When a write survives the loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Durability {
    /// As soon as it is acknowledged.
    EachWrite,
    /// About a second after it was acknowledged; a run waits that long where it matters.
    WithinASecond,
    /// When the machine gets to it; a run has the log written anew where it matters.
    SomeTime,
    /// At the server's next save; a run asks for one where it matters.
    NextSave,
}

impl Durability {
    /// What an operator should know of it.
    fn caveat(self) -> Option<&'static str> {
        match self {
            Durability::EachWrite => None,
            Durability::WithinASecond => Some(
                "the server syncs its log once a second: the run waits for that before and after the switch, but \
                 what services write in the last second before a crash of the machine is lost",
            ),
            Durability::SomeTime => Some(
                "the server never syncs its log (appendfsync no): the run has it written anew before and after the \
                 switch, but what services write in the last half minute before a crash of the machine is lost",
            ),
            Durability::NextSave => Some(
                "the server keeps no log: the run asks for a save before and after the switch, but what services \
                 write after the last save is lost when the server ends",
            ),
        }
    }
}

/// What the pre-flight check looks at. Absent where the server does not say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Program and version, e.g. `etcd 3.4.23`.
    pub server: String,
    pub database_bytes: Option<u64>,
    /// What the database may grow to.
    pub quota_bytes: Option<u64>,
    /// The server does not tell its quota; this is the usual one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub quota_is_assumed: bool,
    /// What the machine has left for it.
    pub free_bytes: Option<u64>,
    pub durability: Durability,
    /// Raised by the server itself, e.g. out of space.
    pub alarms: Vec<String>,
    /// What it does not tell, or not to this user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
}

/// Why a run of this size would not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortage {
    #[error("the database holds {used} bytes of a quota of {quota}, and the run needs {needed} more")]
    Quota { used: u64, quota: u64, needed: u64 },

    #[error(
        "the server does not tell its quota; of the usual {quota} bytes {used} are used, and the run needs {needed} \
         more; if it has another quota: --quota-bytes"
    )]
    AssumedQuota { used: u64, quota: u64, needed: u64 },

    #[error("{free} bytes are free, and the run needs {needed}")]
    Free { free: u64, needed: u64 },

    #[error("the server has raised an alarm: {0}")]
    Alarm(String),
}

impl Facts {
    /// A server of which no more is known.
    pub(crate) fn of(server: impl Into<String>, durability: Durability) -> Facts {
        Facts {
            server: server.into(),
            database_bytes: None,
            quota_bytes: None,
            quota_is_assumed: false,
            free_bytes: None,
            durability,
            alarms: vec![],
            untold: vec![],
        }
    }

    /// With the quota that the operator knows of.
    pub fn with_quota(self, told: Option<u64>) -> Facts {
        match told {
            Some(bytes) => Facts { quota_bytes: Some(bytes), quota_is_assumed: false, ..self },
            None => self,
        }
    }

    /// What an operator should know before a run, and need not do anything about.
    pub fn caveats(&self) -> Vec<String> {
        let durability = self.durability.caveat().map(str::to_owned);
        self.untold.iter().cloned().chain(durability).collect()
    }

    /// Whether `needed` more bytes fit.
    pub fn room_for(&self, needed: u64) -> Result<(), Shortage> {
        if let Some(alarm) = self.alarms.first() {
            return Err(Shortage::Alarm(alarm.clone()));
        }
        if let (Some(used), Some(quota)) = (self.database_bytes, self.quota_bytes)
            && used.saturating_add(needed) > quota
        {
            return Err(if self.quota_is_assumed {
                Shortage::AssumedQuota { used, quota, needed }
            } else {
                Shortage::Quota { used, quota, needed }
            });
        }
        match self.free_bytes {
            Some(free) if free < needed => Err(Shortage::Free { free, needed }),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_does_not_fit() {
        let facts = |used, quota, free, alarms: &[&str]| Facts {
            database_bytes: used,
            quota_bytes: quota,
            free_bytes: free,
            alarms: alarms.iter().map(|&alarm| alarm.to_owned()).collect(),
            ..Facts::of("s", Durability::EachWrite)
        };
        let assumed = |facts| Facts { quota_is_assumed: true, ..facts };
        #[rustfmt::skip]
        let cases = [
            ("nothing known",  facts(None, None, None, &[]),             Ok(())),
            ("fits exactly",   facts(Some(90), Some(100), Some(10), &[]), Ok(())),
            ("over the quota", facts(Some(91), Some(100), None, &[]),     Err(Shortage::Quota { used: 91, quota: 100, needed: 10 })),
            ("over what is assumed", assumed(facts(Some(91), Some(100), None, &[])), Err(Shortage::AssumedQuota { used: 91, quota: 100, needed: 10 })),
            ("told by the operator", assumed(facts(Some(91), Some(100), None, &[])).with_quota(Some(200)), Ok(())),
            ("told to be smaller",   assumed(facts(Some(91), Some(200), None, &[])).with_quota(Some(100)), Err(Shortage::Quota { used: 91, quota: 100, needed: 10 })),
            ("disk too small", facts(None, None, Some(9), &[]),           Err(Shortage::Free { free: 9, needed: 10 })),
            ("already full",   facts(None, None, None, &["NOSPACE"]),     Err(Shortage::Alarm("NOSPACE".into()))),
        ];
        for (name, facts, expected) in cases {
            assert_eq!(facts.room_for(10), expected, "{name}");
        }
    }
}
