//! Which database, which migrations, and what the operator lets pass: the flags of every `migrate` command.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use midflight_migrate::{
    commit::CommitError,
    migration::LoadError,
    run::{Accept, Database, RunError, Settings, Tool},
    store::{Layout, StoreError},
    with_causes,
    worker::Worker,
};

use super::interrupt;
use crate::failure::{Exit, Failure};

/// Where the database is and how its rows lie.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database")]
pub(super) struct Place {
    /// etcd://HOST:PORT[,HOST:PORT][/ROOT], redis://HOST:PORT[/DB][?root=ROOT], embedded:FILE; etcds:// and rediss://
    /// over TLS. A user and password may stand before the host; as a flag all users of this machine see them (`ps`), so
    /// rather use the variable or --password-file
    #[arg(long, value_name = "URL", env = "MIDFLIGHT_STORE", hide_env_values = true)]
    store: String,
    /// How the rows lie in it
    #[arg(long, default_value = "dragonflow", env = "MIDFLIGHT_LAYOUT")]
    layout: LayoutName,
    /// User to log in as
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File that holds the password
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Certificate authority to trust, PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Longest wait for one answer of the server
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    answer_within: u64,
    /// How long the lock of a run that died stays
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    lock_for: u64,
}

/// A database, and the migrations for it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Migrations")]
pub(super) struct Target {
    #[command(flatten)]
    place: Place,
    /// Folder with migrations; may be given several times, besides /usr/lib/midflight/migrations.d and
    /// /etc/midflight/migrations.d
    #[arg(long, value_name = "DIR")]
    path: Vec<PathBuf>,
    /// The models that the data must have afterwards [default: models.toml in a folder with migrations, else those of
    /// the last run]
    #[arg(long, value_name = "FILE")]
    models: Option<PathBuf>,
    /// The models that the data has now; needed once, later they are kept with the data
    #[arg(long, value_name = "FILE")]
    models_before: Option<PathBuf>,
    /// Folder that commands of migrations find in MIDFLIGHT_SHARED, with what the migration of another database left
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// The quota of the server, where it does not tell (etcd before 3.6)
    #[arg(long, value_name = "BYTES")]
    quota_bytes: Option<u64>,
    #[command(flatten)]
    allow: Allow,
}

/// What was looked at and is let pass.
#[derive(Debug, Args)]
#[command(next_help_heading = "Let pass")]
struct Allow {
    /// Run migrations that are older than one already applied
    #[arg(long)]
    allow_out_of_order: bool,
    /// Go on though the log names migrations that are not at hand
    #[arg(long)]
    allow_newer_database: bool,
    /// Go on though an applied migration was edited since
    #[arg(long)]
    allow_edited: bool,
    /// Go on though a service says in the database that it runs
    #[arg(long)]
    allow_live_services: bool,
    /// Go on though the result breaks rules of its models
    #[arg(long)]
    allow_violations: bool,
    /// Go on though the server or the disk seems too small
    #[arg(long)]
    allow_shortage: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    /// Dragonflow's own keys, changed in place by a journal
    Dragonflow,
    /// Whole generations side by side, switched by one compare-and-swap
    Generation,
}

/// Where backups go.
#[derive(Debug, Args)]
pub(super) struct Backups {
    /// Folder for the backup of the old rows; nothing becomes live before it is whole
    #[arg(long, value_name = "DIR", default_value = "midflight-backups")]
    backups: PathBuf,
    /// Make no backup
    #[arg(long, conflicts_with = "backups")]
    no_backup: bool,
}

/// Whether keys of another layout are taken over.
#[derive(Debug, Args)]
pub(super) struct Adopt {
    /// Take Dragonflow's own keys over into the generation layout. They stay until you delete them, and `rollback` makes
    /// them count again
    #[arg(long)]
    adopt: bool,
}

impl Adopt {
    pub(super) fn in_settings(self, settings: Settings) -> Settings {
        Settings { adopt: self.adopt, ..settings }
    }
}

impl Place {
    fn settings(&self) -> Settings {
        Settings {
            layout: match self.layout {
                LayoutName::Dragonflow => Layout::Dragonflow,
                LayoutName::Generation => Layout::Generation,
            },
            username: self.user.clone(),
            password_file: self.password_file.clone(),
            ca: self.ca.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            answer_seconds: self.answer_within,
            lock_seconds: self.lock_for,
            ..Settings::of(self.store.clone())
        }
    }

    pub(super) async fn open(&self) -> anyhow::Result<Database> {
        self.open_as(|_| {}).await
    }

    /// With settings that are changed by the command.
    pub(super) async fn open_as(&self, change: impl FnOnce(&mut Settings)) -> anyhow::Result<Database> {
        let mut settings = self.settings();
        change(&mut settings);
        open(tool()?, settings).await
    }
}

impl Target {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            paths: self.path.clone(),
            models: self.models.clone(),
            models_before: self.models_before.clone(),
            quota_bytes: self.quota_bytes,
            accept: Accept {
                out_of_order: self.allow.allow_out_of_order,
                newer_database: self.allow.allow_newer_database,
                edited: self.allow.allow_edited,
                live_services: self.allow.allow_live_services,
                violations: self.allow.allow_violations,
                shortage: self.allow.allow_shortage,
                removal: false,
            },
            ..self.place.settings()
        }
    }

    pub(super) async fn open(&self) -> anyhow::Result<Database> {
        self.open_as(self.settings()).await
    }

    /// With settings that were changed by the command.
    pub(super) async fn open_as(&self, settings: Settings) -> anyhow::Result<Database> {
        let mut tool = tool()?;
        tool.worker.shared =
            self.shared.as_ref().map(std::path::absolute).transpose().context("find --shared")?;
        open(tool, settings).await
    }
}

async fn open(tool: Tool, settings: Settings) -> anyhow::Result<Database> {
    let opened = Database::open(tool, settings).await;
    let database = opened.map_err(|error| explain(&error)).context("open the database")?;
    interrupt::watch(&database).context("listen for signals")?;
    Ok(database)
}

impl Backups {
    pub(super) fn in_settings(self, settings: Settings) -> Settings {
        Settings { backups: self.backups, no_backup: self.no_backup, ..settings }
    }
}

/// This program: it brings no migrations of its own for the databases of others, and is its own worker.
pub(crate) fn tool() -> anyhow::Result<Tool> {
    let program = std::env::current_exe().context("find our own program")?;
    let worker = Worker::new(program, &["migrate", "worker"]);
    Ok(Tool { version: env!("CARGO_PKG_VERSION"), compiled_in: Vec::new(), worker })
}

/// What to try, and the exit code: what somebody can settle is refused (3), the rest has failed (1).
pub(super) fn explain(error: &RunError) -> anyhow::Error {
    Failure::with(exit(error), with_causes(error), advice(error))
}

const NOTHING_CHANGED: &str = "settle what is named and run it again; nothing was changed";
const MEND_FILES: &str =
    "mend what is named; `midflight migrate lint` tries migrations without a database; nothing was changed";
const MEND_DISK: &str = "check the file, its folder and the space on the disk; the database was not changed";
const NOT_REACHED: &str = "nothing was asked of it yet; see that it runs, and check the address, --ca, --cert, --key, \
    --user and --password-file";
const CUT_OFF: &str =
    "the database is as it was, or the next start completes it; `midflight migrate status` tells";

fn exit(error: &RunError) -> Exit {
    match error {
        refusal if refusal.is_refusal() => Exit::Blocked,
        RunError::Settings(_)
        | RunError::NoMigrations
        | RunError::Load(LoadError::Itself { .. } | LoadError::Empty { .. } | LoadError::List { .. }) => {
            Exit::Usage
        }
        RunError::Store(_)
        | RunError::Commit(_)
        | RunError::Load(_)
        | RunError::Log(_)
        | RunError::Order(_)
        | RunError::Newer { .. }
        | RunError::Migration(_)
        | RunError::Model(_)
        | RunError::StoredModels(_)
        | RunError::Automatic { .. }
        | RunError::Backup(_)
        | RunError::File { .. }
        | RunError::Refused { .. }
        | RunError::NotAPlan { .. }
        | RunError::Unknown { .. }
        | RunError::AlreadyApplied { .. } => Exit::Error,
    }
}

fn advice(error: &RunError) -> &'static str {
    match error {
        RunError::Settings(_) => {
            "check the flags that name the database; `midflight migrate status --help` lists them"
        }
        RunError::Store(error) => store_advice(error, NOT_REACHED),
        RunError::Commit(error) => commit_advice(error),
        RunError::Load(LoadError::Itself { .. } | LoadError::Empty { .. } | LoadError::List { .. })
        | RunError::NoMigrations => "name the folder in which the folders of the migrations lie with --path",
        RunError::Load(_)
        | RunError::Migration(_)
        | RunError::Model(_)
        | RunError::Automatic { .. }
        | RunError::NotAPlan { .. } => MEND_FILES,
        RunError::Unknown { .. } | RunError::AlreadyApplied { .. } => {
            "`midflight migrate status` lists what is pending"
        }
        RunError::Log(_) | RunError::StoredModels(_) => {
            "another version or another tool wrote that; use the version that did, or restore a backup"
        }
        RunError::Backup(_) | RunError::File { .. } => MEND_DISK,
        RunError::Order(_) | RunError::Newer { .. } | RunError::Refused { .. } => NOTHING_CHANGED,
    }
}

fn commit_advice(error: &CommitError) -> &'static str {
    match error {
        CommitError::Store(error) => store_advice(error, CUT_OFF),
        CommitError::StillOpen { .. } => "`midflight migrate finalize` if all is well, else `rollback`",
        CommitError::NothingTo { what: "roll back", phase: "finalized" } => {
            "what is final is not rolled back; `midflight migrate restore` of a backup made before it leads back"
        }
        CommitError::NothingTo { .. } | CommitError::NeverRun { .. } => {
            "nothing was changed; `midflight migrate status` shows where the database stands"
        }
        CommitError::Writers(_) | CommitError::Conflict => {
            "stop all services, see that `midflight migrate check` is content, and run it again; nothing was changed"
        }
        CommitError::Modified(_) => {
            "stay with the new data; or give up what was written: stop the services and add --discard-writes"
        }
        CommitError::OtherLayout { .. } | CommitError::PlainLayout { .. } => {
            "give the --layout that is named; nothing was changed"
        }
        CommitError::OtherRoot { .. } => "name the database with that root; nothing was changed",
        CommitError::Moving => "wait for the end of that run, then run it again; nothing was changed",
        CommitError::OldRowsGone { .. } => {
            "`midflight migrate restore` of a backup made before the run leads back"
        }
        CommitError::Backup(_) => MEND_DISK,
        CommitError::Forgotten { .. }
        | CommitError::Unfinished { .. }
        | CommitError::NotAsWritten { .. }
        | CommitError::Unsure { .. } => CUT_OFF,
        CommitError::Note { .. } => "use the version of midflight that ran last on this database",
    }
}

fn store_advice(error: &StoreError, lost: &'static str) -> &'static str {
    match error {
        StoreError::Lost { .. } => lost,
        StoreError::Busy { .. } => "wait for its end, then run it again; nothing was changed",
        StoreError::Refused { .. } => {
            "the database does not take that; check the address, --user and --password-file, and what that user may do"
        }
        StoreError::Open { .. } => "check that the file is there, is what it should be, and may be read",
        StoreError::Unnameable { .. } => "let the migration give the row another key; nothing was changed",
        StoreError::TooLarge { .. } => "let the migration make the row smaller; nothing was changed",
        StoreError::FencedOut | StoreError::Unreadable { .. } => CUT_OFF,
    }
}
