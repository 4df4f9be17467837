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
    /// At the server's next save; a run asks for one where it matters.
    NextSave,
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
    /// What the machine has left for it.
    pub free_bytes: Option<u64>,
    pub durability: Durability,
    /// Raised by the server itself, e.g. out of space.
    pub alarms: Vec<String>,
}

/// Why a run of this size would not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortage {
    #[error("the database holds {used} bytes of a quota of {quota}, and the run needs {needed} more")]
    Quota { used: u64, quota: u64, needed: u64 },

    #[error("{free} bytes are free, and the run needs {needed}")]
    Free { free: u64, needed: u64 },

    #[error("the server has raised an alarm: {0}")]
    Alarm(String),
}

impl Facts {
    /// Whether `needed` more bytes fit.
    pub fn room_for(&self, needed: u64) -> Result<(), Shortage> {
        if let Some(alarm) = self.alarms.first() {
            return Err(Shortage::Alarm(alarm.clone()));
        }
        if let (Some(used), Some(quota)) = (self.database_bytes, self.quota_bytes)
            && used.saturating_add(needed) > quota
        {
            return Err(Shortage::Quota { used, quota, needed });
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
            server: "s".into(),
            database_bytes: used,
            quota_bytes: quota,
            free_bytes: free,
            durability: Durability::EachWrite,
            alarms: alarms.iter().map(|&alarm| alarm.to_owned()).collect(),
        };
        #[rustfmt::skip]
        let cases = [
            ("nothing known",  facts(None, None, None, &[]),             Ok(())),
            ("fits exactly",   facts(Some(90), Some(100), Some(10), &[]), Ok(())),
            ("over the quota", facts(Some(91), Some(100), None, &[]),     Err(Shortage::Quota { used: 91, quota: 100, needed: 10 })),
            ("disk too small", facts(None, None, Some(9), &[]),           Err(Shortage::Free { free: 9, needed: 10 })),
            ("already full",   facts(None, None, None, &["NOSPACE"]),     Err(Shortage::Alarm("NOSPACE".into()))),
        ];
        for (name, facts, expected) in cases {
            assert_eq!(facts.room_for(10), expected, "{name}");
        }
    }
}
