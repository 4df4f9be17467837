//! The historical changes of Dragonflow on whole clouds: upgraded, verified, rolled back to the same
//! bytes, upgraded again, made final. On every database and layout.

use std::{collections::BTreeSet, path::Path, time::Instant};

use serde_json::Value;

use crate::{
    cloud::{Cloud, DRAGONFLOW, EXAMPLES, GENERATION, KINDS, Kind, mode},
    dump::Live,
    random,
};

/// What the release says, read from the bytes that a server gave to a client of its own.
pub(crate) fn is_queens(live: &Live, ports: usize, what: &str) {
    let objects = |of: &'static str| {
        live.iter()
            .filter(move |((table, _), _)| table == of)
            .map(|(_, value)| serde_json::from_slice::<Value>(value).unwrap())
    };
    assert_eq!(objects("lport").count(), ports, "{what}: no port is lost");
    assert_eq!(objects("ovsport").count(), 0, "{what}: the table has another name");
    assert_eq!(objects("schemamigrationlog").count(), 9, "{what}");
    #[rustfmt::skip]
    let gone = [
        ("lport", "chassis"), ("lport", "remote_vtep"), ("lport", "extra_dhcp_options"),
        ("lswitch", "subnets"), ("floatingip", "name"), ("floatingip", "unique_key"),
        ("switch_port", "ofport"), ("switch_port", "peer_bridge"),
    ];
    for (table, field) in gone {
        assert!(objects(table).all(|object| object.get(field).is_none()), "{what}: {table} has {field}");
    }
    let subnets: BTreeSet<String> =
        objects("lsubnet").map(|subnet| subnet["id"].as_str().unwrap().to_owned()).collect();
    assert!(!subnets.is_empty(), "{what}");
    for port in objects("lport") {
        for subnet in port["subnets"].as_array().unwrap() {
            assert!(subnets.contains(subnet.as_str().unwrap()), "{what}: {port}");
        }
    }
}

/// There, back, there again, and for good. Gives how long the first apply took, and its memory in MiB.
fn there_and_back(cloud: &Cloud, ports: usize) -> (f64, u64) {
    let what = format!("{cloud:?}, {ports} ports");
    let before = cloud.dump();
    before.assert_settled(&what);

    let (migrations, models) = (format!("{EXAMPLES}/migrations"), format!("{EXAMPLES}/models/queens.toml"));
    let began = Instant::now();
    let mut run = cloud.begin(&mut cloud.command(&["apply", "--path", &migrations, "--models", &models]));
    let (code, said, memory) = run.end_measured();
    let took = began.elapsed().as_secs_f64();
    assert_eq!(code, Some(0), "{what}: {said}");
    let upgraded = cloud.dump();
    is_queens(&upgraded.live(), ports, &what);

    cloud.on_store(&["rollback"]);
    cloud.dump().assert_same(&before, &what);

    cloud.with_examples(&["apply", "--no-backup"]);
    assert!(cloud.dump().live_but_log() == upgraded.live_but_log(), "{what}: the same again");
    cloud.on_store(&["finalize"]);
    let last = cloud.dump();
    assert!(last.live_but_log() == upgraded.live_but_log(), "{what}: the same for good");
    last.assert_settled(&what);
    assert_eq!(cloud.with_examples(&["apply"])["result"], "nothing", "{what}");
    cloud.refused(3, &["rollback"]);
    (took, memory)
}

fn on_every_layout(kind: Kind, ports: usize) {
    for layout in [DRAGONFLOW, GENERATION] {
        let Some(cloud) = Cloud::on(kind, layout, ports) else { return };
        let (took, memory) = there_and_back(&cloud, ports);
        println!("{cloud:?}, {ports} ports: applied in {took:.1} s with at most {memory} MiB");
    }
}

#[test]
fn a_thousand_ports_in_a_file() {
    on_every_layout(Kind::Embedded, 1000);
}

#[test]
fn a_thousand_ports_in_etcd() {
    on_every_layout(Kind::Etcd, 1000);
}

#[test]
fn a_thousand_ports_in_redis() {
    on_every_layout(Kind::Redis, 1000);
}

/// On one of the databases, another each time.
#[test]
fn ten_thousand_ports() {
    let seed = random::seed();
    let kind = KINDS[(seed % 3) as usize];
    let layout = [DRAGONFLOW, GENERATION][(seed / 3 % 2) as usize];
    let Some(cloud) = Cloud::on(kind, layout, 10_000) else { return };
    let (took, memory) = there_and_back(&cloud, 10_000);
    println!("{cloud:?}, 10,000 ports: applied in {took:.1} s with at most {memory} MiB");
}

fn hundred_thousand() -> usize {
    std::env::var("MIDFLIGHT_PORTS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

#[test]
#[ignore = "takes minutes; dev/soak migrations runs it"]
fn a_hundred_thousand_ports_in_a_file() {
    on_every_layout(Kind::Embedded, hundred_thousand());
}

#[test]
#[ignore = "takes minutes; dev/soak migrations runs it"]
fn a_hundred_thousand_ports_in_etcd() {
    on_every_layout(Kind::Etcd, hundred_thousand());
}

#[test]
#[ignore = "takes minutes; dev/soak migrations runs it"]
fn a_hundred_thousand_ports_in_redis() {
    on_every_layout(Kind::Redis, hundred_thousand());
}

#[test]
fn the_examples_pass_lint_and_the_plan_tells_what_they_do() {
    let cloud = Cloud::new(GENERATION, 300);
    let lint = cloud.on_store(&["lint", "--path", &format!("{EXAMPLES}/migrations")]);
    assert_eq!((&lint["problems"], &lint["tried"]), (&Value::Array(vec![]), &9.into()));
    let before = cloud.dump();

    let plan = cloud.with_examples(&["plan", "--out", "plan.json"]);
    assert_eq!(plan["migrations"].as_array().unwrap().len(), 9);
    assert_eq!((&plan["violations"], &plan["refusedBecause"]), (&0.into(), &Value::Array(vec![])));
    assert!(plan["destructive"].to_string().contains("floatingip: field \\\"name\\\" is gone"), "{plan:#}");
    assert_eq!(mode(&cloud.path("plan.json")), 0o600);
    cloud.dump().assert_same(&before, "a plan changes nothing");

    let applied = cloud.with_examples(&["apply", "--plan", "plan.json"]);
    assert_eq!(applied["result"], "applied");
    assert_eq!(mode(Path::new(&cloud.path(applied["backup"].as_str().unwrap()))), 0o600);
    assert_eq!(cloud.on_store(&["history"]).as_array().unwrap().len(), 9);
}
