//! An upgrade of a cloud made of files, with real commands, cut off at every entry of its journal.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use tempfile::TempDir;

use super::*;
use crate::cloud::journal::TaskId;

/// Two nodes; each command writes into `world`, one line per effect.
const FILE: &str = r#"
name = "pike-to-queens"
settle_seconds = 1

[nodes]
controller-1 = { ADDRESS = "192.0.2.1" }
compute-1 = {}

[groups]
computes = ["compute-1"]

[[preflight]]
name = "room"
check = "test -d $WORLD"

[[services]]
name = "agent"
stop = "rm -f $WORLD/$MIDFLIGHT_NODE.agent"
start = "echo $(cat $WORLD/$MIDFLIGHT_NODE.code) > $WORLD/$MIDFLIGHT_NODE.agent"
stopped = "test ! -e $WORLD/$MIDFLIGHT_NODE.agent"
started = "test -e $WORLD/$MIDFLIGHT_NODE.agent"

[[services]]
name = "server"
nodes = ["controller-1"]
stop = "rm -f $WORLD/server"
start = "test -e $WORLD/compute-1.agent && cat $WORLD/controller-1.code > $WORLD/server"

[[updates]]
name = "packages"
apply = "echo new > $WORLD/$MIDFLIGHT_NODE.code"
undo = "echo old > $WORLD/$MIDFLIGHT_NODE.code"

[[databases]]
name = "neutron"
apply = "echo new > $WORLD/neutron"
undo = "echo old > $WORLD/neutron"
check = "grep -q new $WORLD/neutron"

[migrate]
store = "embedded:unused"
"#;

/// Our database as a file, so that it survives a run that is cut off.
struct World {
    folder: TempDir,
    refuse: AtomicBool,
    calls: Mutex<Vec<&'static str>>,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let world = World { folder, refuse: AtomicBool::new(false), calls: Mutex::default() };
        for (name, text) in OLD {
            std::fs::write(world.path(name), format!("{text}\n")).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn state(&self) -> Vec<(String, String)> {
        let mut state: Vec<_> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_type().unwrap().is_file())
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with("journal"))
            .map(|entry| {
                let text = std::fs::read_to_string(entry.path()).unwrap().trim().to_owned();
                (entry.file_name().to_string_lossy().into_owned(), text)
            })
            .collect();
        state.sort();
        state
    }

    fn file(&self) -> String {
        FILE.replace("$WORLD", self.folder.path().to_str().unwrap())
    }

    fn stages(&self, file: &str) -> Vec<Stage> {
        script(file).stages
    }

    /// Opens or begins, and runs to the end or to an error.
    async fn run(&self, file: &str, events: &mut Vec<Event>) -> Result<Outcome, RunError> {
        let path = self.path("journal");
        let journal = match Journal::open(&path)? {
            Some(journal) => journal,
            None => Journal::begin(&path, script(file))?,
        };
        let mut tell = |event: &Event| events.push(event.clone());
        Runner { journal, database: Some(self), start_anyway: false, tell: &mut tell }.run().await
    }
}

fn script(file: &str) -> Script {
    let upgrade = Upgrade::parse(file, Path::new("upgrade.toml")).unwrap();
    Script::of(&upgrade, file.as_bytes())
}

#[rustfmt::skip]
const OLD: [(&str, &str); 7] = [
    ("compute-1.agent", "old"), ("compute-1.code", "old"), ("controller-1.agent", "old"),
    ("controller-1.code", "old"), ("neutron", "old"), ("ours", "old"), ("server", "old"),
];

fn all(text: &str) -> Vec<(String, String)> {
    OLD.iter().map(|(name, _)| ((*name).to_owned(), text.to_owned())).collect()
}

#[async_trait(?Send)]
impl OurDatabase for World {
    async fn rehearse(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        self.calls.lock().unwrap().push("rehearse");
        Ok("would migrate".to_owned())
    }

    async fn apply(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        self.calls.lock().unwrap().push("apply");
        if self.refuse.load(Ordering::Relaxed) {
            return Err("a rule is violated".into());
        }
        std::fs::write(self.path("ours"), "new\n")?;
        Ok("migrated".to_owned())
    }

    async fn way_back(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.calls.lock().unwrap().push("way back");
        if self.path("written").exists() {
            return Err("rows were written since".into());
        }
        Ok(())
    }

    async fn rollback(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        self.calls.lock().unwrap().push("rollback");
        std::fs::write(self.path("ours"), "old\n")?;
        Ok("rolled back".to_owned())
    }
}

#[test]
fn stages_are_in_the_order_of_the_seed() {
    let world = World::new();
    let names: Vec<String> = world.stages(&world.file()).into_iter().map(|stage| stage.name).collect();
    #[rustfmt::skip]
    assert_eq!(names, [
        "check room", "rehearse the migrations", "stop server", "stop agent", "update packages",
        "migrate database neutron", "migrate the database", "start agent", "start server",
    ]);
}

/// The networking of ports goes on unless the operator's own commands end it.
#[test]
fn nothing_runs_on_a_node_but_the_commands_of_the_file() {
    let world = World::new();
    let file = world.file();
    let mut on_nodes = 0;
    for task in world.stages(&file).into_iter().flat_map(|stage| stage.tasks) {
        let commands = match task.work {
            Work::Commands(commands) => commands,
            Work::Rehearse | Work::Migrate => {
                assert_eq!(task.node, None, "our own work is done where the upgrade is run");
                continue;
            }
        };
        on_nodes += usize::from(task.node.is_some());
        let Commands { apply, applied, undo, undone, .. } = commands;
        for command in [Some(apply), applied, undo, undone].into_iter().flatten() {
            assert!(file.contains(&format!("= \"{command}\"")), "{command} is not in the file");
        }
    }
    assert_eq!(on_nodes, 8, "agent and packages on both, server on one, each way");
}

#[tokio::test]
async fn upgrades_everything() {
    let world = World::new();
    let mut events = Vec::new();
    let outcome = world.run(&world.file(), &mut events).await.unwrap();
    assert_eq!(outcome, Outcome::Complete);
    assert_eq!(world.state(), all("new"));
    assert_eq!(*world.calls.lock().unwrap(), ["rehearse", "apply"]);
    let nodes = events.iter().filter(|e| matches!(e, Event::Done { task, .. } if task.starts_with("update")));
    assert_eq!(nodes.count(), 2);
}

/// New configuration comes behind the new code and before anything starts, and goes back with it.
#[tokio::test]
async fn configuration_is_an_update_of_its_own() {
    let world = World::new();
    let node = format!("{}/$MIDFLIGHT_NODE", world.folder.path().display());
    let configuration = format!(
        "[[updates]]\nname = \"configuration\"\napply = \"grep -q new {node}.code && echo new > {node}.conf\"\n\
         undo = \"grep -q new {node}.code && echo old > {node}.conf\"\n\n[[databases]]"
    );
    let file = world.file().replace("[[databases]]", &configuration);
    for node in ["controller-1", "compute-1"] {
        std::fs::write(world.path(&format!("{node}.conf")), "old\n").unwrap();
    }
    let names: Vec<String> = world.stages(&file).into_iter().map(|stage| stage.name).collect();
    let at = |name: &str| names.iter().position(|stage| stage == name).unwrap();
    assert_eq!(at("update configuration"), at("update packages") + 1, "{names:?}");
    assert!(at("update configuration") < at("migrate database neutron"), "{names:?}");

    world.refuse.store(true, Ordering::Relaxed);
    let outcome = world.run(&file, &mut Vec::new()).await.unwrap();
    assert!(matches!(outcome, Outcome::WentBack { .. }), "{outcome:?}");
    assert!(world.state().iter().all(|(_, text)| text == "old"), "{:?}", world.state());
    world.refuse.store(false, Ordering::Relaxed);
    std::fs::remove_file(world.path("journal")).unwrap();
    assert_eq!(world.run(&file, &mut Vec::new()).await.unwrap(), Outcome::Complete);
    assert!(world.state().iter().all(|(_, text)| text == "new"), "{:?}", world.state());
}

#[tokio::test]
async fn a_failure_anywhere_is_undone_in_reverse() {
    // The command that fails, and what becomes of the world.
    let broken = [
        ("stop agent", "rm -f $WORLD/$MIDFLIGHT_NODE.agent", "exit 7"),
        ("update packages", "echo new > $WORLD/$MIDFLIGHT_NODE.code", "echo no room >&2; exit 1"),
        ("migrate database neutron", "echo new > $WORLD/neutron", "echo new > $WORLD/neutron; exit 1"),
        (
            "start server",
            "test -e $WORLD/compute-1.agent && cat $WORLD/controller-1.code > $WORLD/server",
            "grep -q old $WORLD/controller-1.code && echo old > $WORLD/server",
        ),
    ];
    for (name, command, instead) in broken {
        let world = World::new();
        let expand = |text: &str| text.replace("$WORLD", world.folder.path().to_str().unwrap());
        let file = world.file().replace(&expand(command), &expand(instead));
        assert_ne!(file, world.file(), "{name}");
        let outcome = world.run(&file, &mut Vec::new()).await.unwrap();
        let Outcome::WentBack { why, left } = outcome else { panic!("{name}: {outcome:?}") };
        assert!(why.starts_with(name), "{name}: {why}");
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(world.state(), all("old"), "{name}");
    }
}

#[tokio::test]
async fn a_refused_migration_takes_packages_and_configuration_back() {
    let world = World::new();
    world.refuse.store(true, Ordering::Relaxed);
    let outcome = world.run(&world.file(), &mut Vec::new()).await.unwrap();
    assert!(
        matches!(&outcome, Outcome::WentBack { why, .. } if why.contains("a rule is violated")),
        "{outcome:?}"
    );
    assert_eq!(world.state(), all("old"));
}

#[tokio::test]
async fn without_an_undo_services_stay_stopped_until_the_operator_says_so() {
    let world = World::new();
    world.refuse.store(true, Ordering::Relaxed);
    let undo = format!("undo = \"echo old > {}/neutron\"", world.folder.path().display());
    let file = world.file().replace(&undo, "");
    assert_ne!(file, world.file());
    let error = world.run(&file, &mut Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("migrate database neutron; the services stay stopped"), "{error}");
    assert!(!world.path("server").exists() && !world.path("compute-1.agent").exists());

    let journal = Journal::open(&world.path("journal")).unwrap().unwrap();
    std::fs::write(world.path("neutron"), "old\n").unwrap();
    let runner = Runner { journal, database: Some(&world), start_anyway: true, tell: &mut |_| {} };
    let outcome = runner.run().await.unwrap();
    assert!(matches!(outcome, Outcome::WentBack { left, .. } if left == ["migrate database neutron"]));
    assert_eq!(world.state(), all("old"));
}

/// Cuts the journal after every entry, forward and back, and lets the next run finish.
#[tokio::test]
async fn a_run_that_was_cut_off_anywhere_is_finished_by_the_next() {
    for refuse in [false, true] {
        let whole = World::new();
        whole.refuse.store(refuse, Ordering::Relaxed);
        whole.run(&whole.file(), &mut Vec::new()).await.unwrap();
        let lines = std::fs::read_to_string(whole.path("journal")).unwrap().lines().count();
        assert!(lines > 20, "{lines}");
        for kept in 0..lines {
            let world = World::new();
            world.refuse.store(refuse, Ordering::Relaxed);
            world.run(&world.file(), &mut Vec::new()).await.unwrap();
            // Effects go on to the end while the journal ends early, with half a line: the worst crash.
            let text = std::fs::read_to_string(world.path("journal")).unwrap();
            let mut cut: String = text.lines().take(kept).map(|line| format!("{line}\n")).collect();
            cut += "{\"at\":\"20";
            std::fs::write(world.path("journal"), cut).unwrap();
            let outcome = world.run(&world.file(), &mut Vec::new()).await.unwrap();
            let expected = if refuse { "old" } else { "new" };
            assert_eq!(matches!(outcome, Outcome::Complete), !refuse, "cut after {kept}");
            assert_eq!(world.state(), all(expected), "cut after {kept}");
        }
    }
}

#[tokio::test]
async fn what_was_done_before_is_not_undone() {
    let world = World::new();
    std::fs::write(world.path("neutron"), "new\n").unwrap();
    world.refuse.store(true, Ordering::Relaxed);
    let mut events = Vec::new();
    world.run(&world.file(), &mut events).await.unwrap();
    assert!(events.contains(&Event::WasSo { task: "migrate database neutron".to_owned() }), "{events:?}");
    assert_eq!(std::fs::read_to_string(world.path("neutron")).unwrap(), "new\n");
}

#[tokio::test]
async fn two_runs_at_once_are_refused() {
    let world = World::new();
    let _first = Journal::begin(&world.path("journal"), script(&world.file())).unwrap();
    let second = Journal::open(&world.path("journal"));
    assert!(matches!(second, Err(JournalError::Busy { .. })), "{second:?}");
}

#[tokio::test]
async fn a_command_that_hangs_is_stopped_with_all_it_started() {
    let world = World::new();
    let hang =
        format!("echo $$ > {0}/hung; sleep 600 & echo $! >> {0}/hung; wait", world.folder.path().display());
    let file = world.file().replace(&format!("rm -f {}/server", world.folder.path().display()), &hang);
    let file = file.replace("settle_seconds = 1", "settle_seconds = 1\ntimeout_seconds = 1");
    let outcome = world.run(&file, &mut Vec::new()).await.unwrap();
    assert!(
        matches!(&outcome, Outcome::WentBack { why, .. } if why.contains("did not end within 1s")),
        "{outcome:?}"
    );
    for pid in std::fs::read_to_string(world.path("hung")).unwrap().lines() {
        // A process that was killed and not yet reaped has no command line.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(command.is_empty(), "{pid} runs on");
    }
}

#[test]
fn refuses_files_that_make_no_sense() {
    #[rustfmt::skip]
    let cases = [
        ("no name",        "name = \"\"",                                                        "name: is empty"),
        ("unknown field",  "name = \"a\"\nnodez = 1",                                            "not an upgrade file"),
        ("no nodes",       "name = \"a\"\n[[updates]]\nname = \"p\"\napply = \"x\"",             "nodes: name at least one"),
        ("stray node",     "name = \"a\"\n[nodes]\nn = {}\n[[updates]]\nname = \"p\"\nnodes = [\"m\"]\napply = \"x\"", "updates: p: m is neither"),
        ("stray in group", "name = \"a\"\n[nodes]\nn = {}\n[groups]\ng = [\"m\"]",               "groups: g names m"),
        ("group is node",  "name = \"a\"\n[nodes]\nn = {}\n[groups]\nn = [\"n\"]",               "also the name of a node"),
        ("twice",          "name = \"a\"\n[[databases]]\nname = \"d\"\napply = \"x\"\n[[databases]]\nname = \"d\"\napply = \"x\"", "d is named twice"),
        ("variable",       "name = \"a\"\n[nodes]\nn = { \"a b\" = \"c\" }",                     "cannot name a variable"),
        ("no address",     "name = \"a\"\n[migrate]\nstore = \"redis//:hunter2@h\"",               "migrate: the store's address: begins with none"),
        ("no lock",        "name = \"a\"\n[migrate]\nstore = \"etcd://h\"\nlock_seconds = 0",      "lock_seconds is 0"),
        ("no time",        "name = \"a\"\ntimeout_seconds = 0",                                 "timeout_seconds: 0 is not between"),
        ("for ever",       "name = \"a\"\nsettle_seconds = 9000000000000000000",                "settle_seconds: 9000000000000000000"),
        ("of a part",      "name = \"a\"\n[[databases]]\nname = \"d\"\napply = \"x\"\ntimeout_seconds = 2592001", "timeout_seconds: 2592001"),
    ];
    for (name, text, expected) in cases {
        let error = Upgrade::parse(text, Path::new("u.toml")).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{name}: {error}");
    }
}

#[test]
fn a_damaged_journal_is_refused_and_a_torn_line_is_not() {
    let world = World::new();
    let path = world.path("journal");
    let mut journal = Journal::begin(&path, script(&world.file())).unwrap();
    journal.write(&Entry::WasSo { task: TaskId { stage: 0, task: 0 } }).unwrap();
    drop(journal);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{{\"torn")).unwrap();
    let read = Journal::open(&path).unwrap().unwrap();
    assert_eq!(read.progress().tasks[0][0], TaskState::WasSo);
    drop(read);
    std::fs::write(&path, format!("{whole}no json\n")).unwrap();
    assert!(matches!(Journal::open(&path), Err(JournalError::Damaged { line: 3, .. })));
    let cut_in_a_letter = &"{\"why\":\"zurück".as_bytes()[..12];
    assert!(std::str::from_utf8(cut_in_a_letter).is_err());
    std::fs::write(&path, [whole.as_bytes(), cut_in_a_letter].concat()).unwrap();
    let read = Journal::open(&path).unwrap().unwrap();
    assert_eq!(read.progress().tasks[0][0], TaskState::WasSo);
    drop(read);
    std::fs::write(&path, [whole.as_bytes(), cut_in_a_letter, b"\n"].concat()).unwrap();
    assert!(matches!(Journal::open(&path), Err(JournalError::Damaged { line: 3, .. })));
}

/// Three stages: one that only looks, one with an undo, one without.
#[test]
fn decides_one_stage_at_a_time() {
    let stage = |kind, undo: Option<&str>| Stage {
        name: format!("{kind:?}"),
        kind,
        tasks: vec![Task {
            node: None,
            environment: Default::default(),
            work: Work::Commands(Commands {
                apply: "x".into(),
                applied: None,
                undo: undo.map(str::to_owned),
                undone: None,
                timeout: std::time::Duration::ZERO,
                settle: std::time::Duration::ZERO,
            }),
        }],
    };
    let stages = [stage(Kind::Preflight, None), stage(Kind::Stop, Some("u")), stage(Kind::Database, None)];
    let at = |stage| vec![TaskId { stage, task: 0 }];
    let apply = |stage| Next::Do { way: Way::Apply, tasks: at(stage) };
    let undo = |stage| Next::Do { way: Way::Undo, tasks: at(stage) };
    let failed = || TaskState::Failed { why: String::new() };
    let applying = || TaskState::Applying { attempt: String::new() };
    let stuck = Next::Stuck(Stuck::Left { names: vec!["Database".into()] });
    use TaskState::{Applied, Left, Undone, Untouched, WasSo};
    #[rustfmt::skip]
    let cases = [
        ("new",               false, [Untouched, Untouched, Untouched],  apply(0)),
        ("looked",            false, [Applied, Untouched, Untouched],    apply(1)),
        ("cut off",           false, [Applied, applying(), Untouched],   apply(1)),
        ("was so",            false, [Applied, WasSo, Untouched],        apply(2)),
        ("done",              false, [Applied, WasSo, Applied],          Next::Complete),
        ("forward again",     false, [Applied, Undone, Left],            apply(1)),
        ("failed first",      true,  [failed(), Untouched, Untouched],   Next::WentBack { left: vec![] }),
        ("failed stop",       true,  [Applied, failed(), Untouched],     undo(1)),
        ("failed, no undo",   true,  [Applied, Applied, failed()],       Next::Leave { tasks: at(2) }),
        ("left in place",     true,  [Applied, Applied, Left],           stuck),
        ("never was ours",    true,  [Applied, WasSo, Untouched],        Next::WentBack { left: vec![] }),
        ("back",              true,  [Applied, Undone, Left],            Next::WentBack { left: at(2) }),
    ];
    for (name, back, states, expected) in cases {
        let mut progress = Progress::new(&stages);
        progress.tasks = states.into_iter().map(|state| vec![state]).collect();
        if back {
            progress.direction = Direction::Back { why: String::new() };
        }
        assert_eq!(next(&stages, &progress, false), expected, "{name}");
    }
}

#[test]
fn no_mistake_in_a_file_shows_a_password_in_it() {
    #[rustfmt::skip]
    let mistakes = [
        ("not closed",   "name = 'x'\n[migrate]\nstore = \"redis://:hunter2@h\n"),
        ("wrong type",   "name = 'x'\nat_once = 'redis://:hunter2@h'\n"),
        ("wrong place",  "name = 'x'\nmigrate = 'redis://:hunter2@h'\n"),
        ("a list",       "name = 'x'\n[migrate]\nstore = ['redis://:hunter2@h']\n"),
        ("twice",        "name = 'x'\n[migrate]\nstore = 'redis://:hunter2@h'\nstore = 'redis://:hunter2@h'\n"),
        ("two problems", "name = 'x'\n[migrate]\nlayout = 'hunter2'\nstore = 'redis://:hunter2@h'\n"),
    ];
    for (name, text) in mistakes {
        let error = Upgrade::parse(text, Path::new("upgrade.toml")).expect_err(name);
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            shown += &format!("{cause} {cause:?}");
            source = cause.source();
        }
        assert!(!shown.contains("hunter2"), "{name}: {shown}");
    }
}

/// A wrong `start` and a wrong `undo`: the services are stopped, and only the file can be mended.
#[tokio::test]
async fn a_mended_file_leads_out_of_a_wrong_command() {
    let world = World::new();
    let undo = format!("undo = \"echo old > {}/neutron\"", world.folder.path().display());
    let start = format!("cat {}/controller-1.code", world.folder.path().display());
    let wrong = world.file().replace(&undo, "undo = \"exit 3\"").replace(&start, "exit 1; cat");
    let error = world.run(&wrong, &mut Vec::new()).await.unwrap_err();
    assert!(matches!(&error, RunError::UndoFailed { task, .. } if task.contains("neutron")), "{error}");
    assert!(!world.path("server").exists());

    let mended = script(&world.file());
    let mut journal = Journal::open(&world.path("journal")).unwrap().unwrap();
    let changes = changes(journal.script(), &mended).unwrap();
    let parts: Vec<_> = changes.iter().map(|change| (change.step.as_str(), change.part)).collect();
    #[rustfmt::skip]
    assert_eq!(parts, [
        ("stop server", "undone by"), ("migrate database neutron", "undone by"), ("start server", "command"),
    ]);
    assert!(changes[1].to_string().contains("- exit 3\n    + echo old >"), "{}", changes[1]);
    journal.write(&Entry::Mended(mended)).unwrap();
    drop(journal);
    let outcome = world.run(&wrong, &mut Vec::new()).await.unwrap();
    assert!(matches!(outcome, Outcome::WentBack { .. }), "{outcome:?}");
    assert_eq!(world.state(), all("old"));
}

#[test]
fn a_file_with_other_steps_is_another_upgrade() {
    let world = World::new();
    let before = script(&world.file());
    #[rustfmt::skip]
    let cases = [
        ("comment",  "settle_seconds = 1",           "settle_seconds = 1 # second",         None),
        ("command",  "test -d",                      "test -e",                             None),
        ("step",     "name = \"neutron\"",           "name = \"nova\"",                     Some("step 6 was \"migrate database neutron\"")),
        ("nodes",    "compute-1 = {}",               "compute-1 = {}\ncompute-2 = {}",      Some("stop agent runs on other nodes")),
        ("database", "embedded:unused",              "embedded:other",                      Some("another database")),
        ("less",     "[migrate]",                    "rehearse = false\n[migrate]",         Some("step 2 was")),
    ];
    for (name, old, new, expected) in cases {
        let file = world.file().replacen(old, new, 1);
        assert_ne!(file, world.file(), "{name}");
        let file = match name {
            // Stands before all tables.
            "less" => format!("rehearse = false\n{}", world.file()),
            _ => file,
        };
        let found = changes(&before, &script(&file)).map_err(|other| other.to_string());
        match (found, expected) {
            (Ok(_), None) => {}
            (Err(why), Some(expected)) => assert!(why.contains(expected), "{name}: {why}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn what_cannot_go_back_is_found_out_before_services_are_stopped() {
    let world = World::new();
    world.run(&world.file(), &mut Vec::new()).await.unwrap();
    std::fs::write(world.path("written"), "").unwrap();
    let before = world.state();
    let journal = Journal::open(&world.path("journal")).unwrap().unwrap();
    let mut runner = Runner { journal, database: Some(&world), start_anyway: false, tell: &mut |_| {} };
    let error = runner.turn_back("the operator asked for it".to_owned()).await.unwrap_err();
    assert!(error.to_string().contains("rows were written since"), "{error}");
    drop(runner);
    assert_eq!(world.state(), before);
    // Nothing was begun, so the upgrade is as complete as it was.
    let outcome = world.run(&world.file(), &mut Vec::new()).await.unwrap();
    assert_eq!(outcome, Outcome::Complete);
}
