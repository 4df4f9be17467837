//! What a run needs to know, from the command line or from an upgrade file.
//!
//! The one invariant: a password is never part of anything that is shown.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use crate::{
    migration::{Allowed, MODELS},
    store::{self, Layout},
};

/// Folders that packages drop their migrations into; used where they hold something.
pub const USUAL_PATHS: [&str; 2] = ["/usr/lib/midflight/migrations.d", "/etc/midflight/migrations.d"];

/// Everything about one database and the migrations for it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where the database is. May hold a password.
    pub store: String,
    #[serde(default = "default_layout")]
    pub layout: Layout,
    /// Takes Dragonflow's own keys over into the generation layout.
    #[serde(default)]
    pub adopt: bool,
    /// Makes the file of an embedded store where there is none; otherwise that is taken for a mistake.
    #[serde(default)]
    pub create: bool,
    /// Folders with migrations, besides the usual ones.
    #[serde(default)]
    pub paths: Vec<PathBuf>,
    /// The models that the data must have afterwards, where they do not lie beside the migrations.
    pub models: Option<PathBuf>,
    /// The models that the data has now, where they are not kept with the data yet.
    pub models_before: Option<PathBuf>,
    /// Folder in which a backup is made before rows are changed.
    #[serde(default = "default_backups")]
    pub backups: PathBuf,
    /// Makes none: a rollback is possible all the same, a restore is not.
    #[serde(default)]
    pub no_backup: bool,
    pub username: Option<String>,
    pub password_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Longest wait for one answer of the server.
    #[serde(default = "default_answer_seconds")]
    pub answer_seconds: u64,
    /// How long the lock of a run that died stays.
    #[serde(default = "default_lock_seconds")]
    pub lock_seconds: u64,
    /// How long `check` looks whether somebody writes.
    #[serde(default = "default_watch_seconds")]
    pub watch_seconds: u64,
    /// The server's quota, where it does not tell.
    pub quota_bytes: Option<u64>,
    #[serde(default)]
    pub accept: Accept,
    /// Rolls back also where that loses rows which were written since.
    #[serde(skip)]
    pub discard_writes: bool,
    /// The cloud upgrade that this is a step of, by the id of its journal. Its runs carry it, and it waits
    /// for the lock that a killed part of it has left.
    #[serde(skip)]
    pub part_of: Option<String>,
}

/// What the operator has looked at and lets pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accept {
    /// Migrations that are older than one already applied.
    pub out_of_order: bool,
    /// A log that names migrations which are not at hand.
    pub newer_database: bool,
    /// Applied migrations that were edited since.
    pub edited: bool,
    /// Services that say in the database that they run.
    pub live_services: bool,
    /// Results that violate their models.
    pub violations: bool,
    /// A server that says it has no room.
    pub shortage: bool,
    /// A restore that removes rows of tables nobody has named.
    pub removal: bool,
}

impl Accept {
    pub(crate) fn order(self) -> Allowed {
        Allowed { out_of_order: self.out_of_order, newer_database: self.newer_database }
    }
}

fn default_layout() -> Layout {
    Layout::Dragonflow
}

fn default_backups() -> PathBuf {
    "midflight-backups".into()
}

fn default_answer_seconds() -> u64 {
    10
}

fn default_lock_seconds() -> u64 {
    30
}

fn default_watch_seconds() -> u64 {
    2
}

/// The longest that a lock or an answer may take: a day.
const LONGEST_SECONDS: u64 = 86_400;

/// What is wrong with the settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the store's address")]
    Store { source: store::UrlError },

    #[error("read the password from {}", path.display())]
    Password { path: PathBuf, source: std::io::Error },

    #[error("only the generation layout can take keys over (--layout generation)")]
    AdoptInPlace,

    #[error("there is no database {}", path.display())]
    Absent { path: PathBuf },

    #[error("models are declared twice, in {} and {}; choose with --models", first.display(), second.display())]
    ModelsTwice { first: PathBuf, second: PathBuf },

    #[error("--ca, --cert and --key are for TLS, and the address is one without; use etcds:// or rediss://")]
    NoTls,

    #[error("a client certificate needs its key and the other way round")]
    HalfAnIdentity,

    #[error("{name} is {seconds}, and must be between 1 and {LONGEST_SECONDS}")]
    Seconds { name: &'static str, seconds: u64 },
}

impl Settings {
    /// The settings for a store, with everything else as usual.
    pub fn of(store: impl Into<String>) -> Settings {
        Settings {
            store: store.into(),
            layout: default_layout(),
            adopt: false,
            create: false,
            paths: Vec::new(),
            models: None,
            models_before: None,
            backups: default_backups(),
            no_backup: false,
            username: None,
            password_file: None,
            ca: None,
            certificate: None,
            key: None,
            answer_seconds: default_answer_seconds(),
            lock_seconds: default_lock_seconds(),
            watch_seconds: default_watch_seconds(),
            quota_bytes: None,
            accept: Accept::default(),
            discard_writes: false,
            part_of: None,
        }
    }

    /// Takes relative paths as seen from the folder of the file that named them.
    pub fn resolve(&mut self, folder: &Path) {
        let files = [
            &mut self.models,
            &mut self.models_before,
            &mut self.password_file,
            &mut self.ca,
            &mut self.certificate,
            &mut self.key,
        ];
        let folders = self.paths.iter_mut().chain([&mut self.backups]);
        for path in folders.chain(files.into_iter().flatten()) {
            *path = folder.join(&*path);
        }
        if let Some(path) = self.store.strip_prefix("embedded:") {
            self.store = format!("embedded:{}", folder.join(path.trim_start_matches("//")).display());
        }
    }

    pub fn url(&self) -> Result<store::Url, SettingsError> {
        self.store.parse().map_err(|source| SettingsError::Store { source })
    }

    pub(crate) fn refuse_adoption_in_place(&self) -> Result<(), SettingsError> {
        match self.layout {
            Layout::Dragonflow if self.adopt => Err(SettingsError::AdoptInPlace),
            Layout::Dragonflow | Layout::Generation => Ok(()),
        }
    }

    /// A path that was mistyped must not become an empty database.
    pub(crate) fn refuse_absent(&self, url: &store::Url) -> Result<(), SettingsError> {
        match url {
            store::Url::Embedded { path } if !self.create && !path.exists() => {
                Err(SettingsError::Absent { path: path.clone() })
            }
            store::Url::Embedded { .. } | store::Url::Etcd(_) | store::Url::Redis(_) => Ok(()),
        }
    }

    /// No time at all, and times that no clock can count to, are mistakes.
    pub(crate) fn refuse_odd_times(&self) -> Result<(), SettingsError> {
        let times = [("answer_seconds", self.answer_seconds), ("lock_seconds", self.lock_seconds)];
        match times.into_iter().find(|(_, seconds)| !(1..=LONGEST_SECONDS).contains(seconds)) {
            Some((name, seconds)) => Err(SettingsError::Seconds { name, seconds }),
            None => Ok(()),
        }
    }

    /// What was given to make a connection safe must not be passed over.
    pub(crate) fn refuse_unused_tls(&self, url: &store::Url) -> Result<(), SettingsError> {
        let given = self.ca.is_some() || self.certificate.is_some() || self.key.is_some();
        if given && !url.is_tls() { Err(SettingsError::NoTls) } else { Ok(()) }
    }

    pub(crate) fn options(&self) -> Result<store::Options, SettingsError> {
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(SettingsError::HalfAnIdentity),
        };
        let password = match &self.password_file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| SettingsError::Password { path: path.clone(), source })?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned().into())
            }
            None => None,
        };
        Ok(store::Options {
            ca: self.ca.clone(),
            identity,
            username: self.username.clone(),
            password,
            timeout: Duration::from_secs(self.answer_seconds),
        })
    }

    /// Where backups go, if any are made.
    pub(crate) fn backup_folder(&self) -> Option<PathBuf> {
        (!self.no_backup).then(|| self.backups.clone())
    }

    /// The models that the data must have afterwards: those named, else those beside the migrations.
    pub(crate) fn models_file(&self) -> Result<Option<PathBuf>, SettingsError> {
        if self.models.is_some() {
            return Ok(self.models.clone());
        }
        let mut found =
            self.search_path().into_iter().map(|path| path.join(MODELS)).filter(|path| path.exists());
        match (found.next(), found.next()) {
            (Some(first), Some(second)) => Err(SettingsError::ModelsTwice { first, second }),
            (first, _) => Ok(first),
        }
    }

    /// Where migrations are looked for.
    pub fn search_path(&self) -> Vec<PathBuf> {
        let usual = USUAL_PATHS.iter().map(PathBuf::from).filter(|path| is_used(path));
        usual.chain(self.paths.iter().cloned()).collect()
    }
}

/// A folder that is not there or empty has nothing to say. One that cannot be read may: to load it tells why.
fn is_used(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut found) => found.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Leaves the address out: it may hold a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("layout", &self.layout)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_the_file_that_names_them() {
        let mut settings: Settings = toml::from_str(
            "store = 'embedded:nb.redb'\npaths = ['m', '/abs']\nbackups = 'b'\nmodels_before = 'o'",
        )
        .unwrap();
        settings.resolve(Path::new("/etc/cloud"));
        assert_eq!(settings.store, "embedded:/etc/cloud/nb.redb");
        assert_eq!(settings.paths, [PathBuf::from("/etc/cloud/m"), PathBuf::from("/abs")]);
        assert_eq!(settings.backups, PathBuf::from("/etc/cloud/b"));
        assert_eq!(settings.models_before, Some(PathBuf::from("/etc/cloud/o")));
    }

    #[test]
    fn a_password_is_not_shown() {
        let settings = Settings::of("redis://:hunter2@h");
        assert!(!format!("{settings:?} {:?}", settings.url()).contains("hunter2"));
        let wrong = Settings::of("http://:hunter2@h").url().unwrap_err();
        assert!(!format!("{wrong:?}").contains("hunter2"));
    }

    #[test]
    fn models_lie_beside_the_migrations_unless_named() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let paths = vec![one.path().to_owned(), two.path().to_owned()];
        let settings = Settings { paths, ..Settings::of("embedded:a") };
        assert_eq!(settings.models_file().unwrap(), None);
        std::fs::write(two.path().join(MODELS), "").unwrap();
        assert_eq!(settings.models_file().unwrap(), Some(two.path().join(MODELS)));
        std::fs::write(one.path().join(MODELS), "").unwrap();
        assert!(matches!(settings.models_file(), Err(SettingsError::ModelsTwice { .. })));
        let named = Settings { models: Some("queens.toml".into()), ..settings };
        assert_eq!(named.models_file().unwrap(), Some("queens.toml".into()));
    }

    #[test]
    fn a_usual_folder_is_passed_over_only_where_it_has_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::create_dir(path("empty")).unwrap();
        std::fs::create_dir_all(path("filled/migration")).unwrap();
        std::fs::write(path("unreadable"), "no folder at all").unwrap();
        for (name, used) in [("absent", false), ("empty", false), ("filled", true), ("unreadable", true)] {
            assert_eq!(is_used(&path(name)), used, "{name}");
        }
    }

    #[test]
    fn odd_times_are_refused() {
        for (seconds, fits) in [(0, false), (1, true), (86_400, true), (u64::MAX, false)] {
            let settings = Settings { lock_seconds: seconds, ..Settings::of("embedded:a") };
            assert_eq!(settings.refuse_odd_times().is_ok(), fits, "{seconds}");
        }
    }

    #[test]
    fn half_an_identity_is_refused() {
        let settings = Settings { key: Some("k".into()), ..Settings::of("etcds://h") };
        assert!(matches!(settings.options(), Err(SettingsError::HalfAnIdentity)));
    }
}
