//! How a block is found in the layers and read, at once if it is in memory.
//!
//! Invariant: a read that does not wait either gives what one that waits would give
//! at the same moment, or says `WouldBlock`; damage is never given for data.

use std::io;

use bytes::{Bytes, BytesMut};

use super::{BLOCK, Frozen, Layers, bits::damaged, blocks, sums::sum};
use crate::{blocks::Blocks, extent::Extent, replica::disk::Disk};

/// What of the layers is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The volume as clients see it.
    Live,
    /// What one layer has, by its place in the layout.
    Layer(usize),
    /// The volume as it was at a snapshot, by its place in the layout.
    Snapshot(usize),
}

/// Whether a read may wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    Wait,
    /// What is not in memory is `WouldBlock`. Maps are the exception: a sector of one speaks of
    /// 16 MiB and stays in memory once it was looked at.
    InMemory,
}

impl Patience {
    pub(super) fn read<D: Disk>(
        self,
        disk: &D,
        file: &D::File,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        match self {
            Patience::Wait => disk.read_at(file, buffer, offset),
            Patience::InMemory => disk.read_cached(file, buffer, offset),
        }
    }
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Head,
    Frozen(usize),
    /// Beyond the end of the layers below: zeroes.
    Nowhere,
}

/// Layers that are looked through, newest first.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) head: bool,
    /// From the first to before the second.
    pub(super) frozen: (usize, usize),
}

/// Ranges of files that a read needs in memory.
#[derive(Debug, Clone)]
pub struct Fetch<D: Disk> {
    ranges: Vec<(D::File, u64, u64)>,
}

impl<D: Disk> Default for Fetch<D> {
    fn default() -> Fetch<D> {
        Fetch { ranges: Vec::new() }
    }
}

const FETCHED_AT_ONCE: u64 = 256 << 10;

impl<D: Disk> Fetch<D> {
    /// Waits until the disk has given all of it. Whoever reads it afterwards meets the
    /// errors that are met here.
    pub fn carry_out(&self, disk: &D) {
        for (file, offset, length) in &self.ranges {
            let mut scratch = vec![0; FETCHED_AT_ONCE.min(*length) as usize];
            for at in (*offset..offset + length).step_by(FETCHED_AT_ONCE as usize) {
                let part = (offset + length - at).min(FETCHED_AT_ONCE) as usize;
                if disk.read_at(file, &mut scratch[..part], at).is_err() {
                    return;
                }
            }
        }
    }
}

impl<D: Disk> Layers<D> {
    pub(super) fn live(&self) -> View {
        View { head: true, frozen: (0, self.frozen.len()) }
    }

    /// What the snapshot at this place of the layout has and those below have not;
    /// one past the last is the head.
    pub(super) fn own(&self, place: usize) -> View {
        let kept = self.chain.now().kept();
        let above = |place: usize| kept.get(place).map_or(self.frozen.len(), |at| at + 1);
        let from = place.checked_sub(1).map_or(0, above);
        View { head: place >= kept.len(), frozen: (from, above(place)) }
    }

    fn view(&self, sight: Sight) -> View {
        match sight {
            Sight::Live => self.live(),
            Sight::Layer(place) => self.own(place),
            Sight::Snapshot(place) => {
                let own = self.own(place);
                View { frozen: (0, own.frozen.1), ..own }
            }
        }
    }

    pub(super) fn place(&self, block: u64, view: View) -> io::Result<Place> {
        if view.head {
            match &self.head.map {
                Some(map) if !map.live.has(block)? => {}
                Some(_) | None => return Ok(Place::Head),
            }
        }
        for at in (view.frozen.0..view.frozen.1).rev() {
            if self.frozen[at].has(block)? {
                return Ok(Place::Frozen(at));
            }
        }
        Ok(Place::Nowhere)
    }

    /// Cuts a range into parts, each of which is in one place.
    fn each_part(
        &self,
        view: View,
        (offset, end): (u64, u64),
        mut act: impl FnMut(Place, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        if view.head && self.head.map.is_none() {
            return act(Place::Head, offset, end);
        }
        let mut at = offset;
        while at < end {
            let first = at / BLOCK;
            let place = self.place(first, view)?;
            let mut until = first + 1;
            while until * BLOCK < end && self.place(until, view)? == place {
                until += 1;
            }
            let stop = end.min(until * BLOCK);
            act(place, at, stop)?;
            at = stop;
        }
        Ok(())
    }

    /// What a client reads.
    pub fn read(&self, extent: Extent) -> io::Result<Bytes> {
        self.look(Sight::Live, extent, Patience::Wait)
    }

    /// What the volume was at a snapshot, by its place in the layout.
    pub fn read_snapshot(&self, place: usize, extent: Extent) -> io::Result<Bytes> {
        self.look(Sight::Snapshot(place), extent, Patience::Wait)
    }

    pub fn look(&self, sight: Sight, extent: Extent, patience: Patience) -> io::Result<Bytes> {
        let mut buffer = BytesMut::zeroed(extent.length() as usize);
        self.read_view(self.view(sight), extent.offset(), &mut buffer, patience)?;
        Ok(buffer.freeze())
    }

    /// What has to be in memory so that a look does not wait.
    pub fn fetch(&self, sight: Sight, extent: Extent) -> io::Result<Fetch<D>> {
        let mut fetch = Fetch::default();
        self.each_part(self.view(sight), (extent.offset(), extent.end()), |place, from, to| {
            match place {
                Place::Head => fetch.ranges.push((self.head.image.clone(), from, to - from)),
                Place::Frozen(layer) => self.fetch_blocks(layer, (from / BLOCK, blocks(to)), &mut fetch),
                Place::Nowhere => {}
            }
            Ok(())
        })?;
        Ok(fetch)
    }

    /// Blocks of a frozen layer from one to before another, and their checksums.
    pub(super) fn fetch_blocks(&self, layer: usize, (first, end): (u64, u64), fetch: &mut Fetch<D>) {
        let layer = &self.frozen[layer];
        let (start, stop) = (first * BLOCK, (end * BLOCK).min(layer.size));
        fetch.ranges.push((layer.image.clone(), start, stop.saturating_sub(start)));
        fetch.ranges.extend(layer.sums.as_ref().map(|sums| sums.range(first, end)));
    }

    /// The place of a snapshot in the layout, if there is one of that name.
    pub fn place_of(&self, snapshot: u64) -> Option<usize> {
        self.layout().snapshots.iter().position(|there| there.id == snapshot)
    }

    /// Blocks in which a snapshot may differ from an older one; without that, all that it
    /// may have. None when either is not here.
    pub fn changes(&self, snapshot: u64, since: Option<u64>) -> io::Result<Option<Blocks>> {
        let from = match since {
            None => Some(0),
            Some(since) => self.place_of(since).map(|place| place + 1),
        };
        let (Some(from), Some(until)) = (from, self.place_of(snapshot)) else { return Ok(None) };
        let mut changes = Blocks::default();
        for place in from..=until {
            changes.extend(&self.blocks_of(place)?);
        }
        Ok(Some(changes))
    }

    pub(super) fn read_view(
        &self,
        view: View,
        offset: u64,
        buffer: &mut [u8],
        patience: Patience,
    ) -> io::Result<()> {
        self.each_part(view, (offset, offset + buffer.len() as u64), |place, from, to| {
            let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            match place {
                Place::Head => patience.read(&self.disk, &self.head.image, part, from),
                Place::Frozen(layer) => self.read_frozen(layer, from, part, patience),
                Place::Nowhere => {
                    part.fill(0);
                    Ok(())
                }
            }
        })
    }

    /// Reads whole blocks of a frozen layer, checks them, and gives what was asked.
    fn read_frozen(&self, layer: usize, offset: u64, part: &mut [u8], patience: Patience) -> io::Result<()> {
        let first = offset / BLOCK;
        let count = blocks(offset + part.len() as u64) - first;
        let whole = self.read_blocks(layer, (first, count), patience)?;
        let skip = (offset - first * BLOCK) as usize;
        part.copy_from_slice(&whole[skip..skip + part.len()]);
        Ok(())
    }

    /// Whole blocks of a frozen layer. What is found damaged is remembered; see `note_damage`.
    pub(super) fn read_blocks(
        &self,
        layer: usize,
        (first, count): (u64, u64),
        patience: Patience,
    ) -> io::Result<Vec<u8>> {
        self.frozen[layer].read_blocks(&self.disk, (first, count), patience).inspect_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                self.found_damage.set(Some(layer));
            }
        })
    }
}

impl<D: Disk> Frozen<D> {
    /// Whole blocks, zeroes beyond the end, checked when the layer is sealed.
    fn read_blocks(&self, disk: &D, (first, count): (u64, u64), patience: Patience) -> io::Result<Vec<u8>> {
        let mut whole = vec![0; (count * BLOCK) as usize];
        let there = self.size.saturating_sub(first * BLOCK).min(count * BLOCK) as usize;
        patience.read(disk, &self.image, &mut whole[..there], first * BLOCK)?;
        if let Some(sums) = &self.sums {
            let expected = sums.get(first, blocks(there as u64) as usize, patience)?;
            for ((block, data), expected) in (first..).zip(whole.chunks(BLOCK as usize)).zip(expected) {
                if sum(data) != expected {
                    return Err(damaged(format!("block {block} of a frozen layer is damaged")));
                }
            }
        }
        Ok(whole)
    }
}
