//! A cloud in Dragonflow's own keys moves to the generation layout, and back.

use crate::{
    cloud::{Cloud, DRAGONFLOW, EXAMPLES, GENERATION, KINDS, SERVERS},
    examples::is_queens,
    support::text,
};

#[test]
fn keys_of_dragonflow_become_the_first_generation() {
    let migrations = format!("{EXAMPLES}/migrations");
    let apply = ["apply", "--adopt", "--no-backup", "--path", &migrations];
    for kind in KINDS {
        let Some(mut cloud) = Cloud::on(kind, DRAGONFLOW, 100) else { continue };
        let said = cloud.run(&apply);
        assert_eq!(said.status.code(), Some(2), "{cloud:?}: only generations can take over");
        let keys = cloud.dump();
        cloud.layout = GENERATION;
        let before = cloud.dump();

        let plan = cloud.on_store(&["plan", "--adopt", "--path", &migrations]);
        assert!(
            plan["automatic"].to_string().contains("rows of Dragonflow's own keys are taken over"),
            "{plan:#}"
        );
        cloud.dump().assert_same(&before, "a plan changes nothing");
        cloud.ok(&apply);
        is_queens(&cloud.dump().live(), 100, &format!("{cloud:?}"));
        cloud.ok(&["rollback"]);
        cloud.dump().assert_same(&before, &format!("{cloud:?}: back to Dragonflow's keys"));

        cloud.ok(&apply);
        cloud.ok(&["finalize"]);
        assert_eq!(cloud.on_store(&apply)["result"], "nothing", "{cloud:?}: adopted once");
        is_queens(&cloud.dump().live(), 100, &format!("{cloud:?}"));
        cloud.layout = DRAGONFLOW;
        assert!(cloud.dump().live() == keys.live(), "{cloud:?}: the old keys are still there");
        let said = cloud.refused(3, &["apply", "--path", &migrations]);
        assert!(said.contains("--layout generation"), "{cloud:?}: {said}");
    }
}

/// A cloud that no run has touched yet, looked at in the wrong layout: its rows are not there, but neither are they gone.
#[test]
fn an_untouched_cloud_is_not_taken_for_an_empty_one() {
    for kind in SERVERS {
        let Some(mut cloud) = Cloud::empty(kind, DRAGONFLOW, &[]) else { continue };
        cloud.scribble("registry", "pod", "{}");
        cloud.layout = GENERATION;
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        let neighbour = cloud.run(&["plan", "--path", "own"]);
        assert!(neighbour.status.success(), "{cloud:?}: {}", text(&neighbour.stderr));
        assert!(text(&neighbour.stderr).contains("keys (1 of registry)"), "{cloud:?}: told all the same");

        cloud.layout = DRAGONFLOW;
        cloud.scribble("lport", "a", "{\"id\": \"a\"}");
        cloud.layout = GENERATION;
        let refused = |cloud: &Cloud| {
            for act in
                [&["plan", "--path", "own"][..], &["apply", "--path", "own"], &["baseline", "--path", "own"]]
            {
                let said = cloud.refused(3, act);
                assert!(said.contains("Dragonflow's own keys (1 of lport)"), "{cloud:?} {act:?}: {said}");
                assert!(
                    said.contains("--layout dragonflow") && said.contains("--adopt"),
                    "{cloud:?}: {said}"
                );
            }
        };
        refused(&cloud);
        cloud.refused(3, &["backup", "empty.backup"]);
        assert!(!cloud.path("empty.backup").exists(), "{cloud:?}: no backup of nothing");
        assert!(text(&cloud.run(&["status"]).stderr).contains("keys (2 of lport, registry)"), "{cloud:?}");

        cloud.ok(&["apply", "--adopt", "--path", "own"]);
        cloud.ok(&["rollback"]);
        refused(&cloud);
    }
}

/// A cloud that was made with the newest release: nothing to run, only to take over.
#[test]
fn a_baseline_can_take_over_too() {
    let mut cloud = Cloud::new(DRAGONFLOW, 50);
    let keys = cloud.dump().live();
    cloud.layout = GENERATION;
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    cloud.ok(&["baseline", "--adopt", "--path", "own"]);
    let same = |cloud: &Cloud| cloud.dump().live_but_log() == keys;
    assert!(same(&cloud), "the rows are as they were");
    assert_eq!(cloud.on_store(&["apply", "--path", "own"])["result"], "nothing");
}
