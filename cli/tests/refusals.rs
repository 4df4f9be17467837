//! What `up` and `down` refuse: each with its reason and advice, and nothing damaged.

mod support;

use std::{fs, net::TcpListener};

use support::{BINARY, Sandbox, files_below, text};

#[test]
fn a_second_up_on_the_same_folder() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    let control = sandbox.running("control");
    let refused = sandbox.fails(2, &["up"]);
    assert!(refused.contains("already up") && refused.contains("midflight down"), "{refused}");
    assert_eq!(sandbox.running("control"), control);
    assert!(sandbox.fails(2, &["serve"]).contains("control already runs"));
}

#[test]
fn a_busy_port() {
    let sandbox = Sandbox::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let refused = sandbox.fails(1, &["up", "--detach", "--listen", &address]);
    assert!(refused.contains(&address) && refused.contains("--listen"), "{refused}");
    assert!(sandbox.pid("control").is_none());
    sandbox.ok(&["up", "--detach"]);
}

#[test]
fn another_address_while_it_runs() {
    let sandbox = Sandbox::new();
    let status = sandbox.json(&["up", "--detach", "--nodes", "1"]);
    let address = status["api"].as_str().unwrap().trim_start_matches("https://").to_owned();
    let kill = |role: &str| support::kill(sandbox.running(role));
    for node_died in [false, true] {
        if node_died {
            kill("node-1");
        }
        let refused = sandbox.fails(2, &["up", "--detach", "--listen", "127.0.0.9:7443"]);
        assert!(refused.contains(&address) && refused.contains("127.0.0.9:7443"), "{refused}");
        assert!(refused.contains("leave --listen out") && refused.contains("midflight down"), "{refused}");
    }
    sandbox.ok(&["up", "--detach", "--listen", &address]);
    sandbox.running("node-1");
}

#[test]
fn a_folder_that_cannot_be_written() {
    let sandbox = Sandbox::new();
    for impossible in ["/proc/midflight", "/dev/null/midflight"] {
        let refused = sandbox.fails(1, &["up", "--detach", "--dir", impossible]);
        assert!(refused.contains(impossible) && refused.contains("--dir"), "{refused}");
    }
}

#[test]
fn a_folder_too_deep() {
    let sandbox = Sandbox::new();
    let deep = sandbox.dir().join("d".repeat(80));
    let refused = sandbox.fails(2, &["up", "--detach", "--dir", deep.to_str().unwrap()]);
    assert!(refused.contains("107"), "{refused}");
    assert!(!sandbox.dir().exists());
}

#[test]
fn a_store_that_was_lost() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    let (store, aside) = (sandbox.dir().join("store.redb"), sandbox.dir().with_file_name("aside"));
    fs::rename(&store, &aside).unwrap();
    let refused = sandbox.fails(1, &["up", "--detach"]);
    assert!(refused.contains("is missing") && refused.contains("nothing was changed"), "{refused}");
    assert!(!store.exists());
    fs::rename(&aside, &store).unwrap();
    sandbox.ok(&["up", "--detach"]);
}

#[test]
fn a_damaged_store() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    let store = sandbox.dir().join("store.redb");
    let good = fs::read(&store).unwrap();
    fs::write(&store, b"this is not a store").unwrap();
    let refused = sandbox.fails(1, &["up", "--detach"]);
    assert!(refused.contains("damaged") && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(fs::read(&store).unwrap(), b"this is not a store");
    fs::write(&store, good).unwrap();
    sandbox.ok(&["up", "--detach"]);
}

#[test]
fn a_journal_of_another_store() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    let journal = sandbox.dir().join("store.redb.journal");
    fs::write(&journal, b"the newest writes of another store").unwrap();
    let refused = sandbox.fails(1, &["up", "--detach"]);
    assert!(refused.contains("store.redb.journal") && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(fs::read(&journal).unwrap(), b"the newest writes of another store");
    fs::remove_file(&journal).unwrap();
    sandbox.ok(&["up", "--detach"]);
}

#[test]
fn a_folder_of_a_newer_version() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    let marker = sandbox.dir().join("midflight.json");
    let text = fs::read_to_string(&marker).unwrap().replace("\"format\": 1", "\"format\": 99");
    fs::write(&marker, &text).unwrap();
    let before = files_below(&sandbox.dir());
    let refused = sandbox.fails(1, &["up", "--detach"]);
    assert!(refused.contains("format 99"), "{refused}");
    assert_eq!(files_below(&sandbox.dir()), before);
    fs::write(&marker, text.replace("99", "1")).unwrap();
}

#[test]
fn a_store_of_a_newer_version() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    let store = sandbox.dir().join("store.redb");
    let good = fs::read(&store).unwrap();
    let database = redb::Database::open(&store).unwrap();
    let write = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, &[u8]>::new("meta");
    write.open_table(meta).unwrap().insert("format", &99_u64.to_le_bytes()[..]).unwrap();
    write.commit().unwrap();
    drop(database);
    let newer = fs::read(&store).unwrap();
    let refused = sandbox.fails(1, &["up", "--detach"]);
    assert!(refused.contains("99") && refused.contains("newer midflight"), "{refused}");
    assert!(fs::read(&store).unwrap() == newer, "the store was touched");
    fs::write(&store, good).unwrap();
    sandbox.ok(&["up", "--detach"]);
}

#[test]
fn a_purge_of_what_is_not_ours() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.dir()).unwrap();
    fs::write(sandbox.dir().join("thesis.tex"), b"precious").unwrap();
    let before = files_below(&sandbox.dir());
    assert!(sandbox.fails(2, &["down", "--purge"]).contains("not made by midflight"));
    assert!(sandbox.fails(2, &["up", "--detach"]).contains("thesis.tex"));
    assert_eq!(files_below(&sandbox.dir()), before);
}

#[test]
fn a_folder_with_nothing_but_a_link_for_backups_is_taken() {
    let sandbox = Sandbox::new();
    let elsewhere = sandbox.dir().with_file_name("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("precious"), b"of another cluster").unwrap();
    fs::create_dir(sandbox.dir()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, sandbox.dir().join("backups")).unwrap();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down", "--purge", "--purge-backups"]);
    assert!(!sandbox.dir().exists());
    assert_eq!(fs::read(elsewhere.join("precious")).unwrap(), b"of another cluster");
    assert_eq!(sandbox.run(&["down", "--purge-backups"]).status.code(), Some(2), "only with --purge");
}

#[test]
fn a_command_line_that_makes_no_sense() {
    let sandbox = Sandbox::new();
    for arguments in
        [&["fly"][..], &["up", "--nodes", "0"], &["up", "--nodes", "254"], &["status", "-o", "xml"]]
    {
        assert_eq!(sandbox.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn speaks_plainly_without_a_cluster() {
    let sandbox = Sandbox::new();
    let version = sandbox.json(&["version"]);
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(sandbox.ok(&["completion", "bash"]).contains("midflight"));
    assert!(sandbox.ok(&["crds"]).contains("kind: CustomResourceDefinition"));
    let help = std::process::Command::new(BINARY).arg("--help").output().unwrap();
    assert!(text(&help.stdout).contains("Exit codes"));
}
