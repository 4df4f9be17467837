//! Services that still run, and runs that are a step of a cloud upgrade.

use std::sync::Arc;

use async_trait::async_trait;

use super::{super::services::Clock, *};

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_says_it_runs_stops_a_run() {
    let sandbox = Sandbox::new(Layout::Dragonflow).await;
    let mut with_service = rows();
    let now = Timestamp::now().as_second();
    let value = format!(r#"{{"id":"s","binary":"df-local-controller","last_seen_up":{now}}}"#);
    with_service.put(&Table::new("service"), RowKey::untopical("s"), value.into());
    sandbox.seed(&with_service).await;
    let refused = sandbox.refused(BOTH).await;
    assert!(
        refused.contains("df-local-controller") && refused.contains("--allow-live-services"),
        "{refused}"
    );
    let checked = sandbox.open(BOTH).await.check(&|_| {}).await.unwrap();
    assert_eq!(checked.blocked_by.len(), 1, "{checked:?}");
}

/// Its hand moves only while somebody sleeps.
struct Hand(Mutex<Timestamp>);

#[async_trait]
impl Clock for Hand {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    async fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// Services write the time and do not take it out when they are stopped.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_waits_until_the_services_it_has_stopped_are_silent() {
    for (layout, said_ago, waited) in
        [(Layout::Dragonflow, 50, 10), (Layout::Generation, 0, 60), (Layout::Generation, -30, 60)]
    {
        let sandbox = Sandbox::new(layout).await;
        let mut with_service = rows();
        let now = Timestamp::now();
        let said = now.as_second() - said_ago;
        let value = format!(r#"{{"id":"s","binary":"df-local-controller","last_seen_up":{said}.25}}"#);
        with_service.put(&Table::new("service"), RowKey::untopical("s"), value.into());
        sandbox.seed(&with_service).await;
        let told = Mutex::new(0);
        let tell = |event: Event| {
            if let Event::Waiting { services, seconds } = event {
                assert!(services[0].contains("df-local-controller"), "{services:?}");
                *told.lock().unwrap() += seconds;
            }
        };
        let clock = Arc::new(Hand(Mutex::new(now)));
        let step = InCloud::new(Sandbox::tool(BOTH), sandbox.settings(), "one", &tell).with_clock(clock);
        step.apply().await.unwrap();
        assert_eq!(*told.lock().unwrap(), waited, "{layout:?}, {said_ago} s ago");
        assert_eq!(sandbox.open(&[]).await.history(&|_| {}).await.unwrap().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_names_what_its_file_can_let_pass() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    sandbox.apply(&[&RENAME]).await.unwrap();
    sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();
    for (migrations, named) in [(&[&EDITED, &DROP], "edited"), (&[&RENAME, &EARLY], "out_of_order")] {
        let step = InCloud::new(Sandbox::tool(migrations), sandbox.settings(), "one", &|_| {});
        for refused in [step.rehearse().await.unwrap_err(), step.apply().await.unwrap_err()] {
            let told = format!("`{named} = true` under [migrate.accept] of the upgrade file");
            assert!(
                refused.to_string().contains(&told) && !refused.to_string().contains("--allow"),
                "{refused}"
            );
        }
    }
}

/// A cloud upgrade takes back its own run and no other, and never takes a final one for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_upgrade_rolls_back_what_is_its_own() {
    for layout in LAYOUTS {
        let sandbox = Sandbox::new(layout).await;
        let step =
            |upgrade: &str| InCloud::new(Sandbox::tool(&[&RENAME]), sandbox.settings(), upgrade, &|_| {});
        let nothing = "this upgrade has no run that is live; there is nothing to roll back";
        assert_eq!(step("one").rollback().await.unwrap(), nothing, "the seed is another's");
        step("one").apply().await.unwrap();
        assert_eq!(step("two").rollback().await.unwrap(), nothing, "another's");
        assert_ne!(sandbox.rows().await, rows());
        step("one").rollback().await.unwrap();
        assert_eq!(sandbox.rows().await, rows(), "{layout:?}");
        assert_eq!(step("one").rollback().await.unwrap(), nothing, "done before");

        step("one").apply().await.unwrap();
        sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();
        let refused = step("one").rollback().await.unwrap_err().to_string();
        assert!(refused.contains("was made final"), "{refused}");
    }
}
