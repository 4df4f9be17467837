//! Servers killed, connections cut and leases lost while a command is at work.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    cloud::{Cloud, DRAGONFLOW, GENERATION, Kind, SERVERS},
    dump::Live,
    proxy::Proxy,
    random::{self, Random},
    support::{self, text},
};

const APPLY: &[&str] =
    &["apply", "--path", "own", "--no-backup", "--lock-for", "5", "--answer-within", "2", "-o", "json"];

fn prepared(kind: Kind, layout: &'static str) -> Option<Cloud> {
    let cloud = Cloud::on(kind, layout, 300)?;
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    Some(cloud)
}

/// What the cloud is after an undisturbed run, and how long that takes.
fn undisturbed(cloud: &Cloud) -> (Live, Duration) {
    let began = Instant::now();
    cloud.ok(APPLY);
    let (took, new) = (began.elapsed(), cloud.dump().live_but_log());
    cloud.ok(&["rollback"]);
    (new, took)
}

/// Disturbs a run several times at random moments. However it ends, the next one makes it whole, and the
/// way back leads to the same bytes.
fn disturbed(cloud: &mut Cloud, store: &str, times: u64, random: &mut Random, disturb: impl Fn(&mut Cloud)) {
    let (new, takes) = undisturbed(cloud);
    let before = cloud.dump();
    let old = before.live_but_log();
    let mut moments: Vec<Duration> = (0..times).map(|_| random.moment(takes)).collect();
    moments.sort();
    let what = format!("{cloud:?}, disturbed after {moments:?}");

    let mut run = cloud.begin(cloud.command(APPLY).args(["--store", store]));
    let began = Instant::now();
    for moment in moments {
        std::thread::sleep(moment.saturating_sub(began.elapsed()));
        disturb(cloud);
    }
    let (code, said) = run.end();
    support::eventually("the server answers again", || cloud.run(&["status"]).status.success());
    let seen = cloud.dump().live_but_log();
    match code {
        Some(0) => assert!(seen == new, "{what}: it says it is done: {said}"),
        Some(1 | 3) => assert!(seen == old || seen == new, "{what}: a mixture: {said}"),
        other => panic!("{what}: ended with {other:?}: {said}"),
    }
    let again = cloud.insist(APPLY);
    assert!(again.status.success(), "{what}, and again: {}", text(&again.stderr));
    assert!(cloud.dump().live_but_log() == new, "{what}, and again");
    cloud.ok(&["rollback"]);
    cloud.dump().assert_same(&before, &what);
    cloud.dump().assert_settled(&what);
}

#[test]
fn a_server_killed_in_the_middle() {
    let seed = random::seed();
    for kind in SERVERS {
        for layout in [DRAGONFLOW, GENERATION] {
            let Some(mut cloud) = prepared(kind, layout) else { continue };
            let mut random = Random::of(seed, &format!("killed {cloud:?}"));
            let store = cloud.store();
            disturbed(&mut cloud, &store, 2, &mut random, |cloud| {
                let server = cloud.server.as_mut().unwrap();
                server.kill();
                server.start_again();
            });
        }
    }
}

#[test]
fn a_connection_cut_in_the_middle() {
    let seed = random::seed();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for kind in SERVERS {
        for layout in [DRAGONFLOW, GENERATION] {
            let Some(mut cloud) = prepared(kind, layout) else { continue };
            let mut random = Random::of(seed, &format!("cut {cloud:?}"));
            let proxy = runtime.block_on(Proxy::to(cloud.server.as_ref().unwrap().port));
            let store = cloud.through(proxy.port);
            let cut = proxy.cut();
            disturbed(&mut cloud, &store, 4, &mut random, |_| cut());
        }
    }
}

/// A run sleeps past the end of its lease, and another one does the work meanwhile. When the first wakes up
/// it writes nothing, whether the other's work still stands or was taken back.
#[test]
fn a_run_that_wakes_up_after_its_lease() {
    for kind in SERVERS {
        for (layout, back) in [(DRAGONFLOW, true), (GENERATION, true), (GENERATION, false)] {
            let Some(cloud) = Cloud::on(kind, layout, 100) else { continue };
            let slow = "[exec]\ncommand = [\"/bin/sh\", \"-c\", \"touch began; sleep 1; cat > /dev/null\"]";
            cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
            cloud.migration("slow", 2, "lport", slow);
            let apply = ["apply", "--path", "own", "--no-backup", "--lock-for", "1"];
            let mut first = cloud.begin(&mut cloud.command(&apply));
            let began = cloud.path("own/slow/began");
            support::eventually("the first run is at work", || began.exists());
            first.signal(Signal::STOP);

            let second = cloud.insist(&apply);
            assert!(second.status.success(), "{cloud:?}: {}", text(&second.stderr));
            if back {
                cloud.ok(&["rollback"]);
            }
            let done = cloud.dump();
            first.signal(Signal::CONT);
            let (code, said) = first.end();
            let (expected, why) =
                if back { (1, "the lock was lost") } else { (3, "neither final nor rolled back") };
            assert_eq!(code, Some(expected), "{cloud:?}: {said}");
            assert!(said.contains(why), "{cloud:?}: {said}");
            cloud.dump().assert_same(&done, &format!("{cloud:?}: the one that woke up wrote"));
        }
    }
}
