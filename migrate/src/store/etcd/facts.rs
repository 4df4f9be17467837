//! What an etcd server says of itself, and what it does not say.

use tonic::{Code, Status};

use super::super::{Durability, Facts, StoreError};
use super::client::failed;
use super::wire::{AlarmMember, AlarmResponse, StatusResponse};

/// The quota of a server that was given none. Before 3.6 servers do not tell theirs.
const USUAL_QUOTA: u64 = 2 << 30;

/// The answer, unless this user may not ask.
pub(super) fn allowed<T>(answer: Result<T, Status>) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unimplemented) => Ok(None),
        Err(status) => Err(failed("ask etcd for its state", &status)),
    }
}

pub(super) fn facts_of(status: Option<StatusResponse>, alarms: Option<&AlarmResponse>) -> Facts {
    let mut untold = Vec::new();
    if status.is_none() || alarms.is_none() {
        untold.push(
            "this user may not ask etcd how full it is: whether the run fits into its quota is not known, and a full \
             etcd takes no more writes from anybody"
                .to_owned(),
        );
    }
    let size = status.as_ref().map(|status| u64::try_from(status.db_size).unwrap_or(0));
    let told = status.as_ref().and_then(|status| u64::try_from(status.db_size_quota).ok());
    let (quota_bytes, quota_is_assumed) = match (told.filter(|&told| told > 0), size) {
        (Some(told), _) => (Some(told), false),
        (None, Some(size)) if size < USUAL_QUOTA => (Some(USUAL_QUOTA), true),
        (None, Some(_)) => {
            untold.push(
                "this etcd does not tell its quota, which is more than the usual one: whether the run fits is not \
                 known (--quota-bytes)"
                    .to_owned(),
            );
            (None, false)
        }
        (None, None) => (None, false),
    };
    let version = status.map_or_else(|| "of unknown version".to_owned(), |status| status.version);
    Facts {
        server: format!("etcd {version}"),
        database_bytes: size,
        quota_bytes,
        quota_is_assumed,
        free_bytes: None,
        durability: Durability::EachWrite,
        alarms: alarms.iter().flat_map(|alarms| alarms.alarms.iter().map(name)).collect(),
        untold,
    }
}

fn name(member: &AlarmMember) -> String {
    match member.alarm {
        1 => "NOSPACE: the quota is used up; compact, defragment and disarm it".to_owned(),
        2 => "CORRUPT: members of the cluster hold different data".to_owned(),
        other => format!("number {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_is_not_taken_for_a_fact() {
        let status =
            |size, quota| Some(StatusResponse { db_size: size, db_size_quota: quota, version: "3".into() });
        let large = 3 << 30;
        #[rustfmt::skip]
        let cases = [
            ("told",            status(10, 100),   (Some(100), false),         0),
            ("not told, small", status(10, 0),     (Some(USUAL_QUOTA), true),  0),
            ("not told, large", status(large, 0),  (None, false),              1),
            ("not allowed",     None,              (None, false),              1),
        ];
        for (name, status, quota, untold) in cases {
            let facts = facts_of(status, Some(&AlarmResponse::default()));
            assert_eq!((facts.quota_bytes, facts.quota_is_assumed), quota, "{name}");
            assert_eq!(facts.untold.len(), untold, "{name}");
            assert_eq!(facts.room_for(1 << 40).is_ok(), quota.0.is_none(), "{name}");
        }
    }

    #[test]
    fn only_a_refusal_of_the_question_is_let_pass() {
        assert!(allowed(Ok(1)).unwrap() == Some(1));
        assert!(allowed::<u8>(Err(Status::permission_denied("no"))).unwrap().is_none());
        assert!(allowed::<u8>(Err(Status::unavailable("away"))).is_err());
    }
}
