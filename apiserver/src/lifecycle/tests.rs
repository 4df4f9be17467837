//! Deletion as a table, and the invariant of the module as a property.

use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::builtin::{builtin_kinds, kind_from_crd};
use crate::kind::Kind;
use crate::served::Served;
use crate::store::Version;
use crate::testing::gadget_definition;

fn gadgets() -> Served {
    first_version(kind_from_crd(&gadget_definition()).unwrap())
}

fn built_in(kind: &str) -> Served {
    let kind = builtin_kinds().into_iter().find(|one| one.kind == kind).unwrap();
    first_version(kind)
}

fn first_version(kind: Kind) -> Served {
    Served::versions(&Arc::new(kind), Version::new(0)).remove(0)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn deletion_removes_marks_or_leaves() {
    use Propagation::{Background, Foreground, Orphan};
    let gadget = gadgets();
    let plain = json!({"metadata": {"name": "g", "generation": 1}});
    let held = json!({"metadata": {"name": "g", "generation": 1, "finalizers": ["a/b"]}});
    let leaving = json!({"metadata": {"name": "g", "generation": 2, "finalizers": ["a/b"],
        "deletionTimestamp": "1970-01-01T00:00:01Z", "deletionGracePeriodSeconds": 0}});
    #[rustfmt::skip]
    let cases = [
        ("plain",            &plain,   None,             "gone",   vec![]),
        ("background",       &plain,   Some(Background), "gone",   vec![]),
        ("foreground",       &plain,   Some(Foreground), "marked", vec!["foregroundDeletion"]),
        ("orphan",           &plain,   Some(Orphan),     "marked", vec!["orphan"]),
        ("held",             &held,    None,             "marked", vec!["a/b"]),
        ("held, foreground", &held,    Some(Foreground), "marked", vec!["a/b", "foregroundDeletion"]),
        ("leaving",          &leaving, None,             "as is",  vec![]),
        ("leaving, orphan",  &leaving, Some(Orphan),     "marked", vec!["a/b", "orphan"]),
    ];
    for (name, live, propagation, expected, holders) in cases {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        match decide_deletion(&gadget, live, &options, at(100)).unwrap() {
            Deletion::Gone(_) => assert_eq!(expected, "gone", "{name}"),
            Deletion::AsItIs => assert_eq!(expected, "as is", "{name}"),
            Deletion::Marked(object) => {
                assert_eq!(expected, "marked", "{name}");
                assert_eq!(finalizers(&object), holders, "{name}");
                assert_eq!(object["metadata"]["generation"], 2, "{name}");
            }
        }
    }
}

#[test]
fn pods_get_time_to_stop() {
    let pod = built_in("Pod");
    let bound =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 20}});
    let with = |grace_seconds| DeleteOptions { grace_seconds, ..DeleteOptions::default() };
    let decide = |live: &Value, grace| decide_deletion(&pod, live, &with(grace), at(100)).unwrap();
    let Deletion::Marked(stopping) = decide(&bound, None) else {
        panic!("a bound pod is not removed at once")
    };
    assert_eq!(stopping["metadata"]["deletionGracePeriodSeconds"], 20);
    assert_eq!(stopping["metadata"]["deletionTimestamp"], "1970-01-01T00:02:00Z");
    assert_eq!(decide(&stopping, None), Deletion::AsItIs);
    assert_eq!(decide(&stopping, Some(30)), Deletion::AsItIs, "only a shorter time may be given");
    let Deletion::Marked(sooner) = decide(&stopping, Some(5)) else { panic!("still running") };
    assert_eq!(sooner["metadata"]["deletionTimestamp"], "1970-01-01T00:01:45Z");
    assert!(matches!(decide(&stopping, Some(0)), Deletion::Gone(_)));
    let unbound = json!({"metadata": {"name": "p"}, "spec": {}});
    assert!(matches!(decide(&unbound, None), Deletion::Gone(_)));
}

#[test]
fn a_grace_period_beyond_the_calendar_ends_with_it() {
    let pod = built_in("Pod");
    let patient = |seconds: i64| json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": seconds}});
    let with = |grace_seconds| DeleteOptions { grace_seconds, ..DeleteOptions::default() };
    let marked = |live: &Value, grace, now| match decide_deletion(&pod, live, &with(grace), at(now)).unwrap()
    {
        Deletion::Marked(object) => object["metadata"].clone(),
        other => panic!("a bound pod is given its time, not {other:?}"),
    };
    let last = rfc3339(Timestamp::MAX);
    #[rustfmt::skip]
    let cases = [
        ("of the pod",      marked(&patient(i64::MAX), None, 100),       i64::MAX),
        ("of the request",  marked(&patient(30), Some(i64::MAX), 100),   i64::MAX),
        ("a bit too long",  marked(&patient(253_402_300_800), None, 100), 253_402_300_800),
    ];
    for (name, metadata, seconds) in cases {
        assert_eq!(
            (&metadata["deletionTimestamp"], &metadata["deletionGracePeriodSeconds"]),
            (&json!(last), &json!(seconds)),
            "{name}"
        );
        let stopping = json!({"metadata": metadata, "spec": {"nodeName": "n"}});
        let sooner = marked(&stopping, Some(5), 200);
        assert_eq!(
            sooner["deletionTimestamp"], "1970-01-01T00:03:25Z",
            "{name}: counted from now, when it was asked is lost"
        );
    }
}

fn naming(now: Timestamp) -> Naming<'static> {
    Naming { namespace: Some("default"), name: Some("g"), uid: "u-1", suffix: "abcde", now }
}

fn stored() -> Value {
    let mut object = json!({"metadata": {"name": "g"}, "spec": {"size": 1}});
    for_create(&gadgets(), &mut object, naming(at(100))).unwrap();
    object["metadata"]["resourceVersion"] = json!("7");
    object
}

#[test]
fn generated_names_are_cut_to_fit() {
    let long = "x".repeat(100);
    for (base, expected) in
        [("a-", "a-abcde".to_owned()), (long.as_str(), format!("{}abcde", "x".repeat(58)))]
    {
        let mut object = json!({"metadata": {"generateName": base}});
        let unnamed = Naming { name: None, ..naming(at(1)) };
        for_create(&gadgets(), &mut object, unnamed).unwrap();
        assert_eq!(object["metadata"]["name"], json!(expected));
    }
}

proptest! {
    #[test]
    fn what_the_server_sets_never_changes_by_a_write(
        uid in proptest::option::of("[a-z]{3}"),
        created in proptest::option::of("20[0-9]{2}"),
        deleted in proptest::option::of("20[0-9]{2}"),
        generation in proptest::option::of(0..100i64),
        size in 0..5i64,
        status_part in any::<bool>(),
    ) {
        let live = stored();
        let mut new = json!({"metadata": {"name": "g"}, "spec": {"size": size}, "status": {"phase": "x"}});
        let time = |year: Option<String>| year.map(|year| format!("{year}-01-01T00:00:00Z"));
        let (created, deleted) = (time(created), time(deleted));
        let refusable = uid.is_some() || deleted.is_some();
        let sent = [("creationTimestamp", created), ("deletionTimestamp", deleted), ("uid", uid)];
        for (field, value) in sent {
            if let Some(value) = value {
                new["metadata"][field] = json!(value);
            }
        }
        if let Some(generation) = generation {
            new["metadata"]["generation"] = json!(generation);
        }
        let part = if status_part { Part::Status } else { Part::Main };
        for_update(&gadgets(), &live, &mut new, part, naming(at(200))).unwrap();
        let refused = !crate::builtin::validate(gadgets().kind(), &new, Some(&live)).is_empty();
        prop_assert_eq!(refused, refusable && !status_part);
        if !refused {
            for field in ["uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"] {
                prop_assert_eq!(&new["metadata"][field], &live["metadata"][field]);
            }
            let changed = !status_part && size != 1;
            prop_assert_eq!(&new["metadata"]["generation"], &json!(if changed { 2 } else { 1 }));
            prop_assert_eq!(new.get("status").is_some(), status_part);
        }
    }
}
