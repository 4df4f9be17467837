//! What servers do not promise by themselves, or do not tell: noticed beforehand, and made up for.

use serde_json::{Value, json};

use crate::{
    cloud::{Cloud, DRAGONFLOW, GENERATION, Kind},
    foreign, random,
    support::{self, text},
};

/// Killed with -9 as soon as a command has said that it is done, whatever the server's settings: what was
/// reported is there when it is started again.
#[test]
fn redis_killed_right_after_a_command() {
    #[rustfmt::skip]
    let cases = [
        (&["--appendfsync", "always"][..],   ""),
        (&["--appendfsync", "everysec"][..], "syncs its log once a second"),
        (&["--appendfsync", "no"][..],       "never syncs its log"),
        (&["--appendonly", "no"][..],        "keeps no log"),
    ];
    let seed = random::seed() as usize;
    for (number, (settings, caveat)) in cases.into_iter().enumerate() {
        let layout = [DRAGONFLOW, GENERATION][(seed >> number) % 2];
        let Some(mut cloud) = Cloud::with(Kind::Redis, layout, 100, settings) else { return };
        let what = format!("{cloud:?}, {settings:?}");
        let before = cloud.dump();
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        let told = cloud.on_store(&["check", "--watch", "0"])["caveats"].to_string();
        assert_eq!(told == "[]", caveat.is_empty(), "{what}: {told}");
        assert!(told.contains(caveat), "{what}: {told}");
        let plan = cloud.on_store(&["plan", "--path", "own"]);
        assert!(plan["warnings"].to_string().contains(caveat), "{what}: {plan}");

        let kill = |cloud: &mut Cloud| {
            let server = cloud.server.as_mut().unwrap();
            server.kill();
            server.start_again();
            support::eventually("it has loaded", || cloud.run(&["status"]).status.success());
        };
        cloud.ok(&["apply", "--path", "own", "--no-backup", "--lock-for", "1"]);
        kill(&mut cloud);
        let marked = |value: &Vec<u8>| serde_json::from_slice::<Value>(value).unwrap()["mark"] == 1;
        let live = cloud.dump().live();
        let mut ports = live.iter().filter(|((table, _), _)| table == "lport");
        assert!(ports.all(|(_, value)| marked(value)), "{what}: the switch is forgotten");
        // It may have saved itself while the lock was held.
        let back = cloud.insist(&["rollback"]);
        assert!(back.status.success(), "{what}: {}", text(&back.stderr));
        kill(&mut cloud);
        cloud.dump().assert_same(&before, &what);
    }
}

/// It may read and write all keys, and nothing else.
#[test]
fn an_etcd_user_without_rights_over_the_server() {
    let Some(cloud) = Cloud::on(Kind::Etcd, GENERATION, 100) else { return };
    let port = cloud.server.as_ref().unwrap().port;
    let all = json!({ "permType": "READWRITE", "key": "AA==", "range_end": "AA==" });
    for (path, body) in [
        ("user/add", json!({ "name": "root", "password": "s3cret" })),
        ("role/add", json!({ "name": "root" })),
        ("user/grant", json!({ "user": "root", "role": "root" })),
        ("user/add", json!({ "name": "clerk", "password": "pencil" })),
        ("role/add", json!({ "name": "keys" })),
        ("role/grant", json!({ "name": "keys", "perm": all })),
        ("user/grant", json!({ "user": "clerk", "role": "keys" })),
        ("enable", json!({})),
    ] {
        let answer = foreign::post(port, &format!("/v3/auth/{path}"), &body);
        assert!(answer.get("error").is_none(), "{path}: {answer}");
    }
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    let store = format!("etcd://clerk:pencil@127.0.0.1:{port}");
    for act in [
        &["check", "--watch", "0"][..],
        &["plan", "--path", "own"],
        &["apply", "--path", "own"],
        &["rollback"],
        &["status"],
    ] {
        let output = cloud.command(act).args(["--store", &store]).output().unwrap();
        assert!(output.status.success(), "{act:?}: {}", text(&output.stderr));
    }
}

/// etcd before 3.6 does not tell its quota. The usual one is assumed, and the operator may know better.
#[test]
fn an_etcd_that_does_not_tell_its_quota() {
    let Some(cloud) = Cloud::on(Kind::Etcd, DRAGONFLOW, 100) else { return };
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    let server = cloud.on_store(&["status"])["server"].clone();
    if server["quotaIsAssumed"].is_null() {
        println!("this server tells its quota: {server}");
        return;
    }
    assert_eq!(server["quotaBytes"], 2_u64 << 30, "{server}");
    let said = cloud.refused(3, &["apply", "--path", "own", "--quota-bytes", "1000"]);
    assert!(said.contains("of a quota of 1000") && said.contains("--allow-shortage"), "{said}");
    cloud.ok(&["apply", "--path", "own", "--quota-bytes", "8589934592"]);
}
