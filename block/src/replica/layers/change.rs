//! Changes of the layers: freeze, remove, revert, expand, and taking over the
//! layers of another copy.
//!
//! Invariant: every change is one new state of the chain; the files it needs are
//! durable before, the files it frees are removed after.

use std::io;

use super::{
    BLOCK, BitFile, Change, Frozen, Head, Layers, blocks,
    chain::{Chain, Draft, FORMATS, Link, NAMED_FORMAT, State},
    commit::Then,
    create_image, file_name, sweep,
};
use crate::{
    blocks::{BLOCK_BITS, Run},
    extent::Extent,
    replica::disk::Disk,
    wire::layout::{LONGEST_NAME, Layout, MOST_SNAPSHOTS, Snapshot, Step},
};

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl<D: Disk> Layers<D> {
    /// Begins a step that is durable only when the next sync has ended, if it is one of those; says whether. A freeze has
    /// its effect at once, for as long as the machine runs.
    pub fn begin_step(&mut self, step: &Step) -> io::Result<bool> {
        match step {
            Step::Remove { id } => {
                let Some(chain) = self.without(*id) else { return Ok(false) };
                self.task = None;
                self.asked = Some(Change::Asked { chain, frees: Vec::new(), then: Then::Nothing });
                Ok(true)
            }
            Step::Freeze { head, .. } if self.has_layer(*head) => Ok(false),
            Step::Freeze { name, head } => {
                let live = file_name(self.chain.now().head, "live");
                let draft = self.freeze(name, *head, Draft::put)?;
                self.asked = Some(Change::Put { draft, frees: vec![live] });
                Ok(true)
            }
            Step::Revert { .. } | Step::Expand { .. } | Step::Finalize { .. } => Ok(false),
        }
    }

    pub(super) fn has_layer(&self, id: u64) -> bool {
        let chain = self.chain.now();
        chain.head == id || chain.frozen.iter().any(|link| link.id == id)
    }

    /// Makes a step; one that was made already changes nothing. Durable when it returns.
    pub fn take_step(&mut self, step: &Step) -> io::Result<()> {
        let chain = self.chain.now().clone();
        let taken = |id: &u64| chain.frozen.iter().any(|link| link.id == *id);
        if let Step::Freeze { head, .. } | Step::Revert { head, .. } = step
            && taken(head)
        {
            return Err(refused("a layer has that name already"));
        }
        match step {
            Step::Freeze { head, .. } if chain.head == *head => Ok(()),
            Step::Freeze { name, head } => {
                self.freeze(name, *head, Draft::write)?;
                self.disk.remove_if_there(&file_name(chain.head, "live"))
            }
            Step::Remove { id } => self.remove(*id),
            Step::Revert { head, .. } if chain.head == *head => Ok(()),
            Step::Revert { id, head } => self.revert(chain, *id, *head),
            Step::Expand { size } => self.expand(chain, *size),
            Step::Finalize { volume } => self.finalize(chain, volume),
        }
    }

    /// Uses what the newest format has. One that is not newer has nothing to use.
    fn finalize(&mut self, mut chain: Chain, volume: &str) -> io::Result<()> {
        if *FORMATS.end() < NAMED_FORMAT || chain.volume.as_deref() == Some(volume) {
            return Ok(());
        }
        chain.volume = Some(volume.to_owned());
        self.chain.store(chain)
    }

    /// The head becomes a layer that does not change; it and the new head are durable before the chain says so.
    fn freeze(
        &mut self,
        name: &str,
        head: u64,
        write: fn(&Draft<D>, &D) -> io::Result<()>,
    ) -> io::Result<Draft<D>> {
        let mut chain = self.chain.now().clone();
        if chain.kept().len() >= MOST_SNAPSHOTS || name.is_empty() || name.len() > LONGEST_NAME {
            return Err(refused("no room for another snapshot, or its name is too long"));
        }
        if !self.head.is_synced() {
            self.head.sync_plan().carry_out(&self.disk).map(drop)?;
        }
        let (id, size) = (chain.head, chain.size);
        chain.frozen.push(Link::new(id, name.to_owned(), size, State::Frozen));
        chain.head = head;
        let fresh = match self.take_spare(head)? {
            Some(spare) => spare,
            None => Head::create(&self.disk, &chain, self.boot)?,
        };
        let draft = self.chain.draft(chain)?;
        write(&draft, &self.disk)?;
        self.chain.settle(draft.clone());
        let old = std::mem::replace(&mut self.head, fresh);
        let map = old.map.map(|map| map.durable.read_anew());
        self.frozen.push(Frozen { image: old.image, size, map, sums: None });
        Ok(draft)
    }

    fn remove(&mut self, id: u64) -> io::Result<()> {
        match self.without(id) {
            Some(chain) => {
                self.task = None;
                self.chain.store(chain)
            }
            None => Ok(()),
        }
    }

    /// The chain when a snapshot is on its way to the layer above it, if it is not yet.
    fn without(&self, id: u64) -> Option<Chain> {
        let mut chain = self.chain.now().clone();
        let link = chain.frozen.iter_mut().find(|link| link.id == id && !link.removing)?;
        link.removing = true;
        Some(chain)
    }

    fn revert(&mut self, mut chain: Chain, id: u64, head: u64) -> io::Result<()> {
        let at = chain.kept().into_iter().find(|at| chain.frozen[*at].id == id);
        let at = at.ok_or_else(|| refused("there is no such snapshot"))?;
        chain.frozen.truncate(at + 1);
        chain.head = head;
        let fresh = Head::create(&self.disk, &chain, self.boot)?;
        self.replace(chain, fresh)
    }

    /// Puts a chain in place that has a new head and fewer of the old layers.
    fn replace(&mut self, chain: Chain, head: Head<D>) -> io::Result<()> {
        self.task = None;
        // It is swept with the rest.
        self.spare = None;
        let kept = chain.frozen.len();
        self.chain.store(chain)?;
        self.head = head;
        self.frozen.truncate(kept);
        sweep(&self.disk, self.chain.now())
    }

    fn expand(&mut self, mut chain: Chain, size: u64) -> io::Result<()> {
        if size <= chain.size {
            return Ok(());
        }
        self.disk.resize(&self.head.image, size)?;
        self.disk.sync(&self.head.image)?;
        if let Some(map) = &mut self.head.map {
            map.live.grow(blocks(size))?;
            map.durable.grow(blocks(size))?;
            map.durable.sync()?;
        }
        chain.size = size;
        self.chain.store(chain)
    }

    /// Takes the layers of another copy over. Gives how many snapshots are here
    /// already, or `None` when even the head is the same layer and only what was
    /// written since must come. The others, and the head, are made empty.
    pub fn adopt(&mut self, wanted: &Layout) -> io::Result<Option<usize>> {
        let chain = self.chain.now().clone();
        if chain.is_whole()
            && let Some(steps) = self.layout().steps_to(wanted)
            && !steps.iter().any(|step| matches!(step, Step::Freeze { .. } | Step::Revert { .. }))
        {
            steps.iter().try_for_each(|step| self.take_step(step))?;
            return Ok(None);
        }
        let (kept, here) = (chain.kept(), self.layout());
        let is_here = |place: &usize| {
            let (at, from) = (kept[*place], place.checked_sub(1).map_or(0, |below| kept[below] + 1));
            let whole = |link: &Link| matches!(link.state, State::Frozen | State::Sealed);
            // The same layer frozen at another moment holds other bytes: its successor tells them apart.
            let same = chain.frozen[at].id == wanted.snapshots[*place].id
                && here.above(*place) == wanted.above(*place);
            same && chain.frozen[from..=at].iter().all(whole)
        };
        let common = (0..kept.len().min(wanted.snapshots.len())).take_while(is_here).count();
        let mut next = chain.clone();
        next.frozen.truncate(common.checked_sub(1).map_or(0, |last| kept[last] + 1));
        next.broken = false;
        next.adopting = false;
        next.filling = true;
        next.size = wanted.size;
        self.take_over(next, &wanted.snapshots[common..], wanted)?;
        Ok(Some(common))
    }

    fn take_over(&mut self, mut chain: Chain, missing: &[Snapshot], wanted: &Layout) -> io::Result<()> {
        // Layers may come back under names that are in use here: until all is in
        // place, nothing above what is kept counts.
        self.task = None;
        self.frozen.truncate(chain.frozen.len());
        self.chain.store(Chain { adopting: true, ..chain.clone() })?;
        for snapshot in missing {
            let image = create_image(&self.disk, snapshot.id, chain.size)?;
            let map = match chain.frozen.is_empty() {
                true => None,
                false => {
                    let name = file_name(snapshot.id, "map");
                    let map = BitFile::create(&self.disk, &name, blocks(chain.size), 0)?;
                    map.sync()?;
                    Some(map)
                }
            };
            let (id, name, size) = (snapshot.id, snapshot.name.clone(), chain.size);
            chain.frozen.push(Link::new(id, name, size, State::Filling));
            self.frozen.push(Frozen { image, size, map, sums: None });
        }
        chain.head = wanted.head;
        let head = Head::create(&self.disk, &chain, self.boot)?;
        self.replace(chain, head)
    }

    /// Writes to a layer that is being copied, by its place in the layout; no data
    /// means zeroes.
    pub fn fill(&mut self, place: usize, extent: Extent, data: Option<&[u8]>) -> io::Result<()> {
        let at = self.chain.now().kept().get(place).copied();
        let filling = at.filter(|at| self.chain.now().frozen[*at].state == State::Filling);
        let layer = &self.frozen[filling.ok_or_else(|| refused("that layer is not being copied"))?];
        if let Some(data) = data {
            self.disk.write_at(&layer.image, data, extent.offset())?;
        }
        if let Some(map) = &layer.map {
            map.set(Run::touched(extent.offset(), u64::from(extent.length()), BLOCK_BITS))?;
        }
        Ok(())
    }

    /// Whether layers, or the whole head, are being copied from another copy.
    pub fn is_filling(&self) -> bool {
        let chain = self.chain.now();
        chain.filling || chain.frozen.iter().any(|link| link.state == State::Filling)
    }

    /// Everything that was to be copied has been, and what was copied to the head was flushed. Durable when it returns.
    pub fn filled(&mut self) -> io::Result<()> {
        let mut chain = self.chain.now().clone();
        let filling: Vec<usize> =
            (0..chain.frozen.len()).filter(|at| chain.frozen[*at].state == State::Filling).collect();
        if filling.is_empty() && !chain.filling {
            return Ok(());
        }
        chain.filling = false;
        for at in filling {
            self.disk.sync(&self.frozen[at].image)?;
            self.frozen[at].map.iter().try_for_each(BitFile::sync)?;
            chain.frozen[at].state = State::Frozen;
        }
        self.chain.store(chain)
    }

    /// Notes durably in which layer a read has met damage, so that it is copied
    /// anew from another replica. While the chain is being changed, that is first.
    pub fn note_damage(&mut self) -> io::Result<()> {
        if self.is_committing() {
            return Ok(());
        }
        let Some(mut at) = self.found_damage.take() else { return Ok(()) };
        let mut chain = self.chain.now().clone();
        loop {
            match chain.frozen.get_mut(at) {
                Some(link) => {
                    link.damage();
                    if !link.removing {
                        break;
                    }
                }
                None => {
                    chain.broken = true;
                    break;
                }
            }
            at += 1;
        }
        self.task = None;
        self.chain.store(chain)
    }

    /// What was found damaged and has not been copied anew yet, in words.
    pub fn damage(&self) -> Option<String> {
        let chain = self.chain.now();
        let damaged = chain.frozen.iter().filter(|link| link.state == State::Damaged && !link.removing);
        let names: Vec<&str> = damaged.map(|link| link.name.as_str()).collect();
        match (names.as_slice(), chain.broken) {
            ([], false) => None,
            ([], true) => Some("what the volume holds beyond its snapshots is damaged".to_owned()),
            (names, _) => Some(format!("what it keeps of snapshot {} is damaged", names.join(", "))),
        }
    }

    pub fn is_whole(&self) -> bool {
        self.chain.now().is_whole()
    }

    pub(super) fn length_of(&self, at: usize) -> u64 {
        self.frozen[at].size.div_ceil(BLOCK)
    }
}
