//! The kinds the server has, built in or learnt from CustomResourceDefinitions.
//!
//! The invariant: a definition is in force from the moment its write is
//! acknowledged, and a newer one is never replaced by an older one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

use crate::builtin::builtin_kinds;
use crate::kind::{Kind, ResourceId};
use crate::served::Served;
use crate::store::Version;

/// Where CustomResourceDefinitions themselves are stored.
pub(crate) fn definitions() -> ResourceId {
    ResourceId { group: "apiextensions.k8s.io".into(), plural: "customresourcedefinitions".into() }
}

/// All kinds; readers take one consistent catalogue and never wait.
#[derive(Debug)]
pub(crate) struct Registry {
    current: ArcSwap<Catalogue>,
    built_in: Vec<Arc<Served>>,
    writer: Mutex<()>,
    changed: watch::Sender<()>,
}

/// A definition that is in force.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) kind: Kind,
    /// Of its `spec`; an equal one means that nothing changes for clients.
    pub(crate) fingerprint: u64,
}

/// The kinds at one moment.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    /// By `group/version/plural`.
    served: HashMap<String, Arc<Served>>,
    kinds: Vec<Arc<Kind>>,
    /// Kinds in the version they are stored in, whether that is served or not.
    stored: HashMap<ResourceId, Arc<Served>>,
    /// Definitions by name, with the version of their last write.
    learnt: BTreeMap<String, Learnt>,
    /// Rises with each change, so that what is derived from a catalogue can be cached.
    pub(crate) edition: u64,
}

#[derive(Debug, Clone)]
struct Learnt {
    written: Version,
    /// As discovery tells of it; `None` once the definition is gone, or while its names are not accepted.
    kind: Option<Arc<Kind>>,
    fingerprint: u64,
    served: Vec<Arc<Served>>,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        let built_in =
            builtin_kinds().into_iter().flat_map(|kind| serve(&Arc::new(kind), Version::new(0))).collect();
        let registry = Registry {
            current: ArcSwap::default(),
            built_in,
            writer: Mutex::new(()),
            changed: watch::channel(()).0,
        };
        registry.current.store(Arc::new(Catalogue::assemble(&registry.built_in, BTreeMap::new(), 0)));
        registry
    }

    pub(crate) fn load(&self) -> Guard<Arc<Catalogue>> {
        self.current.load()
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        self.current.load().served.get(&path(group, version, plural)).cloned()
    }

    /// Takes over a definition, or with `None` forgets it, as of a write at `written`.
    pub(crate) fn learn(&self, name: &str, definition: Option<Definition>, written: Version) {
        let _one_at_a_time = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.current.load_full();
        let before = old.learnt.get(name);
        if before.is_some_and(|before| before.written >= written) {
            return;
        }
        let same = before.is_some_and(|before| {
            before.kind.is_some() && definition.as_ref().is_some_and(|d| d.fingerprint == before.fingerprint)
        });
        let entry = match (before, definition) {
            (Some(before), Some(definition)) if same => {
                Learnt { written, kind: Some(Arc::new(definition.kind)), ..before.clone() }
            }
            (_, definition) => Learnt::new(definition, written),
        };
        let mut learnt = old.learnt.clone();
        learnt.insert(name.to_owned(), entry);
        self.current.store(Arc::new(Catalogue::assemble(&self.built_in, learnt, old.edition + 1)));
        if !same && let Some(before) = before {
            before.served.iter().for_each(|served| served.retire());
        }
        self.changed.send_replace(());
    }

    /// Changes after each change of the catalogue.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

impl Learnt {
    fn new(definition: Option<Definition>, written: Version) -> Learnt {
        let Some(Definition { kind, fingerprint }) = definition else {
            return Learnt { written, kind: None, fingerprint: 0, served: Vec::new() };
        };
        let kind = Arc::new(kind);
        Learnt { written, served: serve(&kind, written), kind: Some(kind), fingerprint }
    }
}

fn serve(kind: &Arc<Kind>, since: Version) -> Vec<Arc<Served>> {
    Served::versions(kind, since).into_iter().map(Arc::new).collect()
}

impl Catalogue {
    fn assemble(built_in: &[Arc<Served>], learnt: BTreeMap<String, Learnt>, edition: u64) -> Catalogue {
        let mut catalogue = Catalogue { edition, ..Catalogue::default() };
        for served in built_in {
            catalogue.add(served);
            catalogue.kinds.push(served.kind().clone());
        }
        for entry in learnt.values() {
            entry.served.iter().for_each(|served| catalogue.add(served));
            catalogue.kinds.extend(entry.kind.clone());
        }
        catalogue.learnt = learnt;
        catalogue
    }

    fn add(&mut self, served: &Arc<Served>) {
        let (kind, version) = (served.kind().clone(), served.version());
        if version.storage {
            self.stored.insert(kind.resource.clone(), served.clone());
        }
        if version.served {
            let path = path(&kind.resource.group, &version.name, &kind.resource.plural);
            self.served.insert(path, served.clone());
        }
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter().map(|kind| &**kind)
    }

    /// Whether the definition of a resource is being deleted.
    pub(crate) fn is_terminating(&self, resource: &ResourceId) -> bool {
        let learnt = self.learnt.get(&format!("{}.{}", resource.plural, resource.group));
        learnt.and_then(|learnt| learnt.kind.as_ref()).is_some_and(|kind| kind.terminating)
    }

    /// The kind stored under a resource, in its storage version.
    pub(crate) fn stored(&self, resource: &ResourceId) -> Option<Arc<Served>> {
        self.stored.get(resource).cloned()
    }

    /// Resources with objects of their own; views of others are left out.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &ResourceId> {
        self.kinds.iter().filter(|kind| kind.view_of.is_none()).map(|kind| &kind.resource)
    }

    /// The kind that an ownerReference's `apiVersion` and `kind` mean.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.kinds().find(|k| &*k.resource.group == group && k.kind == kind && k.version(version).is_some())
    }
}

fn path(group: &str, version: &str, plural: &str) -> String {
    let mut path = String::with_capacity(group.len() + version.len() + plural.len() + 2);
    for (index, part) in [group, version, plural].into_iter().enumerate() {
        if index > 0 {
            path.push('/');
        }
        path.push_str(part);
    }
    path
}
