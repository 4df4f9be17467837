//! All instances of an instance manager, and the rules by which they come and go.
//!
//! Invariant: no command whose term is below the highest that was ever accepted for
//! its volume changes anything; that term is on disk before the command is carried out.
//! A volume that has the name of one that is gone begins anew, as its record shows.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::fs::FlockOperation;
use tokio::sync::broadcast;

use super::{
    life::{Instance, Start, State, Told, View, World},
    names::{Key, Kind, Name},
    process::Process,
    refused::Refused,
    spec::{Particulars, Spec},
    works::Works,
};
use crate::{
    epoch::Epoch,
    replica::layers::{self, Taken},
};

/// Who a command is for.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) key: Key,
    pub(super) volume: Name,
    pub(super) epoch: Epoch,
}

#[derive(Debug)]
pub(super) struct Registry {
    world: Arc<World>,
    instances: Mutex<BTreeMap<Key, Arc<Instance>>>,
    /// One command at a time for each instance.
    turns: Mutex<HashMap<Key, Arc<Mutex<()>>>>,
    floors: Mutex<HashMap<Name, Epoch>>,
    /// Backups that are made or restored.
    works: Works,
    /// Held as long as this process lives: one instance manager per folder.
    place: File,
}

/// An instance is up, or has failed, in much less.
const STARTS_WITHIN: Duration = Duration::from_secs(15);
/// Longest path of a Unix socket.
const LONGEST_SOCKET: usize = 107;

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Takes the folder, and what is left in it from an instance manager before.
    pub(super) fn open(world: World, folder: &Path) -> io::Result<Registry> {
        let place = File::open(folder)?;
        rustix::fs::flock(&place, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => {
                io::Error::new(io::ErrorKind::AddrInUse, "another instance manager has the folder")
            }
            error => error.into(),
        })?;
        let world = Arc::new(world);
        let mut instances = BTreeMap::new();
        for spec in world.shelf.load()? {
            let key = spec.key();
            let instance = take_up(&world, spec)?;
            instances.insert(key, instance);
        }
        Ok(Registry {
            world,
            instances: Mutex::new(instances),
            turns: Mutex::default(),
            floors: Mutex::default(),
            works: Works::default(),
            place,
        })
    }

    pub(super) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(super) fn works(&self) -> &Works {
        &self.works
    }

    pub(super) fn list(&self) -> Vec<View> {
        held(&self.instances).values().map(|instance| instance.view()).collect()
    }

    /// What each copy on this node takes on its disk, by layers.
    pub(super) fn copies(&self) -> io::Result<Vec<(String, Vec<Taken>)>> {
        let taken = |path: PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let layers = layers::taken(&path).unwrap_or_else(|error| {
                tracing::debug!(replica = name, %error, "what it takes is not known");
                Vec::new()
            });
            (name, layers)
        };
        Ok(self.world.shelf.copies()?.into_iter().map(taken).collect())
    }

    pub(super) fn disk_free(&self) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(&self.place)?;
        Ok(disk.f_bavail * disk.f_frsize)
    }

    /// The engines that are here, in whatever state.
    pub(super) fn engines(&self) -> Vec<Arc<Instance>> {
        let all = held(&self.instances);
        all.iter()
            .filter(|(key, _)| key.kind == Kind::Engine)
            .map(|(_, instance)| Arc::clone(instance))
            .collect()
    }

    /// Everything there is, and what changes from now on.
    pub(super) fn watch(&self) -> (Vec<View>, broadcast::Receiver<Told>) {
        let changes = self.world.told.subscribe();
        (self.list(), changes)
    }

    fn find(&self, key: &Key) -> Option<Arc<Instance>> {
        held(&self.instances).get(key).cloned()
    }

    fn turn(&self, key: &Key) -> Arc<Mutex<()>> {
        Arc::clone(held(&self.turns).entry(key.clone()).or_default())
    }

    /// The highest term that was accepted for a volume.
    fn floor(&self, floors: &mut HashMap<Name, Epoch>, volume: &Name) -> Result<Epoch, Refused> {
        if let Some(known) = floors.get(volume) {
            return Ok(*known);
        }
        let known = self.world.shelf.floor(volume).map_err(Refused::failed("read the volume's epoch"))?;
        floors.insert(volume.clone(), known);
        Ok(known)
    }

    /// Accepts a command's epoch, or refuses the command.
    pub(super) fn admit(&self, volume: &Name, asked: Epoch) -> Result<(), Refused> {
        if asked.term() == 0 {
            return Err(Refused::Invalid(format!("epoch {asked} has no term")));
        }
        let before = self.floor(&mut held(&self.floors), volume)?;
        if asked.term() == before.term() {
            return Ok(());
        }
        // The record may be far away: commands for other volumes do not wait for it.
        let recorded = self.world.term(volume);
        // A term that nobody was given would lock everyone out.
        if let Some(term) = recorded.filter(|term| before.term() < asked.term() && *term < asked.term()) {
            return Err(Refused::Invalid(format!("the record is at term {term}, the command at {asked}")));
        }
        // Terms of a record only grow: one below what was accepted here is of another volume, that has the
        // name of one that is gone.
        let is_another = recorded.is_some_and(|term| asked.term() <= term && term < before.term());
        let mut floors = held(&self.floors);
        let known = self.floor(&mut floors, volume)?;
        if asked.term() < known.term() && !(is_another && known == before) {
            return Err(Refused::StaleEpoch { volume: volume.clone(), asked, known });
        }
        if asked.term() != known.term() {
            let floor = Epoch::of_term(asked.term());
            let noted = self.world.shelf.note_floor(volume, floor);
            noted.map_err(Refused::failed("note the volume's epoch"))?;
            floors.insert(volume.clone(), floor);
        }
        Ok(())
    }

    pub(super) fn create(&self, wanted: Spec) -> Result<View, Refused> {
        let key = wanted.key();
        self.check(&wanted)?;
        self.admit(&wanted.volume, wanted.epoch)?;
        let turn = self.turn(&key);
        let _turn = held(&turn);
        let Some(instance) = self.find(&key) else { return self.start(wanted, Start::New) };
        let before = instance.view();
        match self.compare(&before, &wanted)? {
            Known::Same => Ok(instance.settled(STARTS_WITHIN)),
            Known::Later => {
                let noted = instance.alter(false, |spec| spec.epoch = wanted.epoch);
                noted.map_err(Refused::failed("note the epoch"))?;
                Ok(instance.settled(STARTS_WITHIN))
            }
            Known::Successor => {
                let wanted = Spec { address: before.spec.address, ..wanted };
                let replaced = instance.replace(wanted.clone());
                match replaced.map_err(Refused::failed(format!("replace the process of {key}")))? {
                    Some(view) => Ok(view),
                    // Builds too far apart: it comes back by copying what it misses meanwhile.
                    None => self.start_after(&instance, wanted),
                }
            }
            Known::Outdated => {
                // Engines were told where a replica is; to an engine the frontend is sent.
                let address = before.spec.address.filter(|_| key.kind == Kind::Replica);
                self.start_after(&instance, Spec { address, ..wanted })
            }
            Known::Ended => {
                instance.end();
                let (address, epoch) = (before.spec.address, before.spec.epoch.max(wanted.epoch));
                let ahead = before.spec.ahead.max(epoch);
                self.start(Spec { address, epoch, ahead, ..wanted }, Start::Again)
            }
        }
    }

    fn start_after(&self, old: &Instance, wanted: Spec) -> Result<View, Refused> {
        old.end();
        self.start(wanted, Start::New)
    }

    fn start(&self, spec: Spec, start: Start) -> Result<View, Refused> {
        let key = spec.key();
        let instance =
            Instance::begin(&self.world, spec, start).map_err(Refused::failed(format!("start {key}")))?;
        held(&self.instances).insert(key.clone(), Arc::clone(&instance));
        let view = instance.settled(STARTS_WITHIN);
        match view.state {
            State::Running => Ok(view),
            State::Fenced | State::Failed | State::Lost => {
                Err(Refused::Failed { doing: format!("start {key}"), why: view.why })
            }
            State::Starting => Err(Refused::Busy(format!("{key} is still starting"))),
        }
    }

    fn compare(&self, view: &View, wanted: &Spec) -> Result<Known, Refused> {
        let here = &view.spec;
        if here.volume != wanted.volume {
            let (asked, here) = (wanted.volume.clone(), here.volume.clone());
            return Err(Refused::OtherVolume { name: wanted.name.clone(), asked, here });
        }
        let known = here.epoch;
        if wanted.epoch.term() < known.term() {
            return Err(Refused::StaleEpoch { volume: here.volume.clone(), asked: wanted.epoch, known });
        }
        let later = wanted.epoch.term() > known.term();
        let differs = here.differs_from(wanted);
        match (view.state, wanted.key().kind) {
            (_, Kind::Engine) if later => Ok(Known::Outdated),
            (State::Running, Kind::Replica) if later && here.may_be_followed_by(wanted) => {
                Ok(Known::Successor)
            }
            (_, Kind::Replica) if later && differs.is_some() => Ok(Known::Outdated),
            (State::Starting | State::Running, _) => match differs {
                Some(what) => Err(Refused::Different { name: wanted.name.clone(), what }),
                None if later => Ok(Known::Later),
                None => Ok(Known::Same),
            },
            (State::Lost | State::Failed | State::Fenced, _) => Ok(Known::Ended),
        }
    }

    /// Whether an order can be carried out at all.
    fn check(&self, wanted: &Spec) -> Result<(), Refused> {
        let refuse = |why: String| Err(Refused::Invalid(why));
        match &wanted.particulars {
            Particulars::Replica { size: 0, .. } => return refuse("a replica needs a size".into()),
            Particulars::Engine { members, .. } if members.is_empty() => {
                return refuse("an engine needs replicas".into());
            }
            Particulars::Engine { members, .. } if members.len() > crate::engine::members::MOST => {
                return refuse(format!("a volume has at most {} replicas", crate::engine::members::MOST));
            }
            Particulars::Replica { .. } | Particulars::Engine { .. } => {}
        }
        let socket = self.world.shelf.socket(&wanted.name);
        if socket.as_os_str().len() > LONGEST_SOCKET {
            return refuse(format!("{} is too long for a socket", socket.display()));
        }
        match &wanted.binary {
            Some(binary) => self.check_binary(binary),
            None => Ok(()),
        }
    }

    fn check_binary(&self, binary: &Path) -> Result<(), Refused> {
        let Some(root) = &self.world.binaries else {
            return Err(Refused::Invalid("this instance manager was given no folder of binaries".into()));
        };
        let plain = binary.components().all(|part| matches!(part, Component::Normal(_)));
        let inside = || -> io::Result<bool> {
            let (root, full) = (fs::canonicalize(root)?, fs::canonicalize(root.join(binary))?);
            Ok(full.starts_with(root) && full.is_file())
        };
        match plain && binary.components().next().is_some() && inside().unwrap_or(false) {
            true => Ok(()),
            false => Err(Refused::Invalid(format!("{binary:?} is no binary in {}", root.display()))),
        }
    }

    pub(super) fn delete(&self, target: &Target, remove_data: bool) -> Result<(), Refused> {
        self.admit(&target.volume, target.epoch)?;
        let turn = self.turn(&target.key);
        let _turn = held(&turn);
        if let Some(instance) = self.find(&target.key) {
            let here = instance.view().spec;
            if here.volume != target.volume {
                let (name, asked) = (target.key.name.clone(), target.volume.clone());
                return Err(Refused::OtherVolume { name, asked, here: here.volume });
            }
            if here.epoch.term() > target.epoch.term() {
                let (asked, known) = (target.epoch, here.epoch);
                return Err(Refused::StaleEpoch { volume: here.volume, asked, known });
            }
            instance.end();
            instance.forget().map_err(Refused::failed(format!("forget {}", target.key)))?;
            held(&self.instances).remove(&target.key);
        }
        match (remove_data, target.key.kind) {
            (true, Kind::Replica) => remove_folder(&self.world.shelf.copy(&target.key.name)),
            (true, Kind::Engine) | (false, _) => Ok(()),
        }
    }

    /// Carries a command out on an engine that is here, under its turn.
    pub(super) fn on_engine<T>(
        &self,
        target: &Target,
        command: impl FnOnce(&Arc<Instance>, &View) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        self.admit(&target.volume, target.epoch)?;
        let turn = self.turn(&target.key);
        let _turn = held(&turn);
        let Some(instance) = self.find(&target.key) else {
            return Err(Refused::NotFound { what: target.key.to_string() });
        };
        let view = instance.view();
        let (name, here) = (target.key.name.clone(), view.spec.volume.clone());
        if here != target.volume {
            return Err(Refused::OtherVolume { name, asked: target.volume.clone(), here });
        }
        if view.spec.epoch.term() != target.epoch.term() {
            return Err(Refused::OtherEpoch { name, asked: target.epoch, known: view.spec.epoch });
        }
        command(&instance, &view)
    }

    /// Ends what lives in this process; processes of their own live on.
    pub(super) fn close(&self) {
        for view in self.list() {
            tracing::warn!(
                instance = %view.spec.key(), volume = %view.spec.volume, epoch = %view.spec.epoch,
                state = ?view.state, pid = view.pid, "still held"
            );
        }
        let all: Vec<Arc<Instance>> = held(&self.instances).values().cloned().collect();
        all.iter()
            .filter(|instance| instance.view().spec.binary.is_none())
            .for_each(|instance| instance.end());
    }
}

/// What is known of an instance that is asked for again.
enum Known {
    Same,
    /// The same, and its volume has moved on.
    Later,
    /// A process of another binary is to take its place while it serves.
    Successor,
    /// The volume has moved on and it has to follow.
    Outdated,
    /// It does not run.
    Ended,
}

/// Goes on with an instance from before: a process that lives is minded, one that died
/// is started again, and what was in the process itself is gone.
fn take_up(world: &Arc<World>, spec: Spec) -> io::Result<Arc<Instance>> {
    if spec.binary.is_none() {
        return Ok(Instance::lost(world, spec));
    }
    match Process::find(&world.shelf.place(&spec.key()))? {
        None => Instance::begin(world, spec, Start::Again),
        Some(process) => {
            let instance = Instance::begin(world, spec, Start::TakenUp(process))?;
            // It has said long ago where it listens; whoever asks now is to see it as it is.
            instance.settled(STARTS_WITHIN);
            Ok(instance)
        }
    }
}

fn remove_folder(path: &Path) -> Result<(), Refused> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Refused::failed(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
