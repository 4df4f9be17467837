//! A cloud in Dragonflow's own keys moves to the generation layout, and back.

use crate::{
    cloud::{Cloud, DRAGONFLOW, EXAMPLES, GENERATION, KINDS},
    examples::is_queens,
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
