//! What the kernel knows, and the descriptor of each.
//!
//! Invariant: a node lives as long as the kernel counts on it, and one object of the
//! folder is one node, whatever names lead to it. A number never comes back for
//! something else.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use midflight_handover::kernel::ROOT;
use rustix::fs::{FileType, Stat};

use crate::wire::call::NodeId;

/// Most descriptors that are kept open to contents; the longest unused is closed first.
const MOST_OPEN: usize = 1024;

/// A file, a folder or a link, wherever its names are.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) kind: FileType,
    /// Keeps the object, also when its last name is gone.
    anchor: Arc<OwnedFd>,
    object: Object,
    data: Mutex<Option<Data>>,
    /// Held while the folder's one position is used.
    pub(super) listing: Mutex<()>,
}

/// A descriptor to contents.
#[derive(Debug, Clone)]
pub(super) struct Data {
    pub(super) descriptor: Arc<OwnedFd>,
    pub(super) writable: bool,
}

/// Names an object of the folder as long as someone holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Object {
    device: u64,
    inode: u64,
}

impl Object {
    fn of(stat: &Stat) -> Object {
        Object { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl Node {
    fn new(id: NodeId, anchor: Arc<OwnedFd>, stat: &Stat, data: Option<Data>) -> Node {
        Node {
            id,
            kind: FileType::from_raw_mode(stat.st_mode),
            anchor,
            object: Object::of(stat),
            data: Mutex::new(data),
            listing: Mutex::new(()),
        }
    }

    pub(super) fn anchor(&self) -> BorrowedFd<'_> {
        self.anchor.as_fd()
    }

    pub(super) fn data(&self) -> MutexGuard<'_, Option<Data>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    /// How often the kernel was told of it and has not forgotten.
    lookups: u64,
}

#[derive(Debug)]
struct Table {
    known: HashMap<NodeId, Known>,
    by_object: HashMap<Object, NodeId>,
    next: u64,
}

/// Told when the kernel remembers more than there are descriptors for.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// From how many nodes on.
    pub(crate) from: usize,
    told: AtomicBool,
    /// Readable once told.
    wake: Arc<OwnedFd>,
}

impl Crowd {
    pub(crate) fn new(from: usize, wake: Arc<OwnedFd>) -> Crowd {
        Crowd { from, told: AtomicBool::new(false), wake }
    }

    fn count(&self, nodes: usize) {
        if nodes >= self.from && !self.told.swap(true, Ordering::AcqRel) {
            // Full means that it is readable already.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was told since this was last asked.
    pub(crate) fn take(&self) -> bool {
        self.told.swap(false, Ordering::AcqRel)
    }
}

#[derive(Debug)]
pub(super) struct Nodes {
    table: RwLock<Table>,
    crowd: Arc<Crowd>,
    /// Nodes whose contents are open, in the order of opening.
    opened: Mutex<VecDeque<Weak<Node>>>,
}

impl Nodes {
    pub(super) fn new(root: OwnedFd, stat: &Stat, crowd: Arc<Crowd>) -> Nodes {
        let node = Arc::new(Node::new(NodeId(ROOT), Arc::new(root), stat, None));
        let by_object = HashMap::from([(node.object, node.id)]);
        // The kernel never forgets the root.
        let known = HashMap::from([(node.id, Known { node, lookups: u64::MAX })]);
        let table = Table { known, by_object, next: ROOT + 1 };
        Nodes { table: RwLock::new(table), crowd, opened: Mutex::default() }
    }

    pub(super) fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.known.get(&id).map(|known| Arc::clone(&known.node))
    }

    /// The node of an object that the kernel is about to be told of.
    pub(super) fn remember(&self, anchor: OwnedFd, stat: &Stat) -> Arc<Node> {
        self.insert(Arc::new(anchor), stat, false)
    }

    /// The same, by a descriptor that also reads and writes.
    pub(super) fn remember_open(&self, descriptor: OwnedFd, stat: &Stat) -> Arc<Node> {
        self.insert(Arc::new(descriptor), stat, true)
    }

    fn insert(&self, anchor: Arc<OwnedFd>, stat: &Stat, open: bool) -> Arc<Node> {
        let object = Object::of(stat);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Table { known, by_object, next } = &mut *table;
        if let Some(known) = by_object.get(&object).and_then(|id| known.get_mut(id)) {
            known.lookups = known.lookups.saturating_add(1);
            return Arc::clone(&known.node);
        }
        let id = NodeId(*next);
        *next += 1;
        let data = open.then(|| Data { descriptor: Arc::clone(&anchor), writable: true });
        let node = Arc::new(Node::new(id, anchor, stat, data));
        by_object.insert(object, id);
        known.insert(id, Known { node: Arc::clone(&node), lookups: 1 });
        self.crowd.count(known.len());
        drop(table);
        if open {
            self.opened(&node);
        }
        node
    }

    /// Notes that a node's contents are open, and closes those of another if there are too many.
    pub(super) fn opened(&self, node: &Arc<Node>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.push_back(Arc::downgrade(node));
        if opened.len() <= MOST_OPEN {
            return;
        }
        let oldest = opened.pop_front();
        drop(opened);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade())
            && !Arc::ptr_eq(&oldest, node)
        {
            *oldest.data() = None;
        }
    }

    /// The kernel was told of a node that often less.
    pub(super) fn forget(&self, id: NodeId, count: u64) {
        if id == NodeId(ROOT) {
            return;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Table { known, by_object, .. } = &mut *table;
        let Some(held) = known.get_mut(&id) else { return };
        held.lookups = held.lookups.saturating_sub(count);
        if held.lookups > 0 {
            return;
        }
        let gone = known.remove(&id);
        if let Some(gone) = &gone {
            by_object.remove(&gone.node.object);
        }
        // Closing may take long: the last user of a big file frees its blocks.
        drop(table);
        drop(gone);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.table.read().unwrap().known.len()
    }
}
