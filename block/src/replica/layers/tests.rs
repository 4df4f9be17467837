//! Layers against a model: what a read must give, after every step, whatever the
//! machine does.

use proptest::prelude::*;

use super::{
    super::{disk::Folder, memory::MemoryDisk},
    *,
};
use crate::{extent::Extent, wire::layout::Step};

const BLOCKS: u64 = 6;
const SIZE: u64 = BLOCKS * BLOCK + 100;

fn extent(offset: u64, length: u64) -> Extent {
    Extent::new(offset, length as u32).unwrap()
}

/// Something that happens to a copy.
#[derive(Debug, Clone)]
enum Act {
    Write {
        offset: u64,
        length: u64,
        fill: u8,
    },
    Clear {
        offset: u64,
        length: u64,
    },
    Flush,
    Freeze,
    /// A freeze that is durable only with the next act that syncs, announced before or not.
    Soon {
        announced: bool,
    },
    Remove(usize),
    Revert(usize),
    Expand(u64),
    Work(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0..SIZE - 1, 1..2 * BLOCK, 1..255u8).prop_map(|(offset, length, fill)| Act::Write { offset, length, fill }),
        1 => (0..SIZE - 1, 1..2 * BLOCK).prop_map(|(offset, length)| Act::Clear { offset, length }),
        2 => Just(Act::Flush),
        1 => Just(Act::Freeze),
        2 => any::<bool>().prop_map(|announced| Act::Soon { announced }),
        1 => (0..4usize).prop_map(Act::Remove),
        1 => (0..4usize).prop_map(Act::Revert),
        1 => (1..3 * BLOCK).prop_map(Act::Expand),
        3 => (1..12u8).prop_map(Act::Work),
    ]
}

/// What the volume and its snapshots must be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    live: Vec<u8>,
    snapshots: Vec<(u64, Vec<u8>)>,
    head: u64,
    ids: u64,
}

impl Model {
    fn new() -> Model {
        Model { live: vec![0; SIZE as usize], snapshots: Vec::new(), head: 0, ids: 0 }
    }

    fn cut(&self, offset: u64, length: u64) -> u64 {
        length.min(self.live.len() as u64 - offset)
    }

    /// The step that an act stands for, if it is one.
    fn step(&mut self, act: &Act) -> Option<Step> {
        self.ids += 1;
        match act {
            Act::Freeze | Act::Soon { .. } => {
                Some(Step::Freeze { name: format!("s{}", self.ids), head: self.ids })
            }
            Act::Remove(at) => self.snapshots.get(*at).map(|(id, _)| Step::Remove { id: *id }),
            Act::Revert(at) => {
                self.snapshots.get(*at).map(|(id, _)| Step::Revert { id: *id, head: self.ids })
            }
            Act::Expand(more) => Some(Step::Expand { size: self.live.len() as u64 + more }),
            Act::Write { .. } | Act::Clear { .. } | Act::Flush | Act::Work(_) => None,
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Freeze { head, .. } => {
                self.snapshots.push((self.head, self.live.clone()));
                self.head = *head;
            }
            Step::Remove { id } => self.snapshots.retain(|(known, _)| known != id),
            Step::Revert { id, head } => {
                let at = self.snapshots.iter().position(|(known, _)| known == id).unwrap();
                self.snapshots.truncate(at + 1);
                let size = self.live.len();
                self.live = self.snapshots[at].1.clone();
                self.live.resize(size, 0);
                self.head = *head;
            }
            Step::Expand { size } => self.live.resize(*size as usize, 0),
            Step::Finalize { .. } => {}
        }
    }

    fn check(&self, layers: &Layers<MemoryDisk>) {
        let layout = layers.layout();
        assert_eq!((layout.size, layout.head), (self.live.len() as u64, self.head));
        let ids: Vec<u64> = layout.snapshots.iter().map(|snapshot| snapshot.id).collect();
        assert_eq!(ids, self.snapshots.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        assert!(layers.read(extent(0, layout.size)).unwrap() == self.live, "the volume differs");
        for (place, (id, expected)) in self.snapshots.iter().enumerate() {
            let found = layers.read_snapshot(place, extent(0, layout.size)).unwrap();
            assert!(found[..expected.len()] == expected[..], "snapshot {id} differs");
            assert!(found[expected.len()..].iter().all(|byte| *byte == 0), "snapshot {id} has grown");
        }
    }
}

fn sync<D: Disk>(layers: &mut Layers<D>, disk: &D, flushes: bool) -> io::Result<()> {
    let carried = layers.sync_plan(flushes)?.carry_out(disk)?;
    layers.synced(carried);
    Ok(())
}

/// A piece of work, and the sync that it may want.
fn work<D: Disk>(layers: &mut Layers<D>, disk: &D) -> io::Result<()> {
    match layers.work(Patience::Wait)? {
        Worked::WantsSync => sync(layers, disk, false),
        Worked::Piece => Ok(()),
    }
}

fn perform(
    layers: &mut Layers<MemoryDisk>,
    disk: &MemoryDisk,
    model: &mut Model,
    act: &Act,
) -> io::Result<()> {
    if layers.is_committing() && !matches!(act, Act::Write { .. } | Act::Clear { .. }) {
        sync(layers, disk, false)?;
    }
    if let Some(step) = model.step(act) {
        match act {
            Act::Soon { announced } => {
                if *announced && layers.prepare(&step)? {
                    sync(layers, disk, false)?;
                }
                assert!(layers.begin_step(&step)?);
            }
            _ => layers.take_step(&step)?,
        }
        model.apply(&step);
        return Ok(());
    }
    match act {
        Act::Write { offset, length, fill } => {
            let length = model.cut(*offset, *length);
            layers.write(*offset, &vec![*fill; length as usize])?;
            model.live[*offset as usize..(offset + length) as usize].fill(*fill);
        }
        Act::Clear { offset, length } => {
            let length = model.cut(*offset, *length);
            layers.clear(*offset, length)?;
            model.live[*offset as usize..(offset + length) as usize].fill(0);
        }
        Act::Flush => sync(layers, disk, true)?,
        Act::Work(pieces) => {
            for _ in 0..*pieces {
                work(layers, disk)?;
            }
        }
        Act::Freeze | Act::Soon { .. } | Act::Remove(_) | Act::Revert(_) | Act::Expand(_) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn layers_read_as_the_model_says_also_when_opened_again(acts in proptest::collection::vec(act(), 1..40)) {
        let disk = MemoryDisk::default();
        let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
        let mut model = Model::new();
        for act in &acts {
            perform(&mut layers, &disk, &mut model, act).unwrap();
            model.check(&layers);
        }
        // The process is killed; the machine runs on.
        let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
        model.check(&layers);
        while layers.has_work() {
            work(&mut layers, &disk).unwrap();
        }
        model.check(&layers);
        layers.sync_plan(true).unwrap().carry_out(&disk).unwrap();
        model.check(&Layers::open(&disk, SIZE, 2).unwrap());
    }

    /// The machine stops at every change in turn. Process killed: all that was
    /// acknowledged is there. Power lost: all that was flushed is, and every block is
    /// what it was then or became since.
    #[test]
    fn a_crash_at_any_change_loses_nothing_that_must_stay(
        acts in proptest::collection::vec(act(), 1..14), stop in 0..400u64, power: bool, seed: u64,
    ) {
        let disk = MemoryDisk::default();
        let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
        let mut model = Model::new();
        let mut flushed = model.clone();
        let mut since: Vec<Model> = vec![model.clone()];
        disk.stop_after(stop);
        for act in &acts {
            let mut next = model.clone();
            let result = perform(&mut layers, &disk, &mut next, act);
            let mut attempted = model.clone();
            if result.is_ok() {
                attempted = next.clone();
            } else if let Some(step) = model.clone().step(act) {
                attempted.apply(&step);
            } else if let Act::Write { offset, length, fill } = act {
                let length = model.cut(*offset, *length);
                attempted.live[*offset as usize..(offset + length) as usize].fill(*fill);
            } else if let Act::Clear { offset, length } = act {
                let length = model.cut(*offset, *length);
                attempted.live[*offset as usize..(offset + length) as usize].fill(0);
            }
            since.push(attempted);
            if result.is_err() {
                break;
            }
            // A new head begins with everything below it on disk, also when it is not yet known there.
            let before = std::mem::replace(&mut model, next);
            let is_new = before.head != model.head;
            if is_new && matches!(act, Act::Soon { .. }) {
                flushed = before.clone();
                since = vec![before, model.clone()];
            } else if is_new || matches!(act, Act::Flush) {
                flushed = model.clone();
                since = vec![model.clone()];
            }
        }
        drop(layers);
        disk.go_on();
        let mut dice = seed | 1;
        if !power {
            since.drain(..since.len() - 1);
        }
        if power {
            disk.lose_power(|| {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                dice % 2 == 0
            });
        }
        let mut layers = Layers::open(&disk, SIZE, if power { 2 } else { 1 }).unwrap();
        for _ in 0..2 {
            judge(&layers, &since, if power { &flushed } else { &model });
            while layers.has_work() {
                work(&mut layers, &disk).unwrap();
            }
        }
    }

    /// A bit turned over in any file is found out when it is read, or before.
    #[test]
    fn a_flipped_bit_is_never_served(acts in proptest::collection::vec(act(), 4..20), pick: prop::sample::Index, bit: u64) {
        let disk = MemoryDisk::default();
        let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
        let mut model = Model::new();
        for act in acts.iter().chain([&Act::Freeze]) {
            perform(&mut layers, &disk, &mut model, act).unwrap();
        }
        while layers.has_work() {
            work(&mut layers, &disk).unwrap();
        }
        layers.sync_plan(true).unwrap().carry_out(&disk).unwrap();
        drop(layers);
        let names: Vec<String> = disk.names().unwrap();
        let name = &names[pick.index(names.len())];
        let bits = disk.size(&name.clone()).unwrap() * 8;
        prop_assume!(bits > 0);
        disk.flip(name, bit % bits);
        // Nor when it was found and noted before.
        for round in 0..2 {
            let Ok(mut layers) = Layers::open(&disk, SIZE, 1) else { return Ok(()) };
            let live = layers.read(extent(0, model.live.len() as u64));
            prop_assert!(live.is_err() || live.unwrap() == model.live, "{name} {} in round {round}", bit % bits);
            for (place, (id, expected)) in model.snapshots.iter().enumerate() {
                let found = layers.read_snapshot(place, extent(0, expected.len() as u64));
                prop_assert!(found.is_err() || found.unwrap() == *expected, "{name} snapshot {id} in round {round}");
            }
            layers.note_damage().unwrap();
        }
    }
}

/// The layout is one that was reached or attempted; every sector of the volume is
/// as some state since `least` has it, and no snapshot differs.
fn judge(layers: &Layers<MemoryDisk>, since: &[Model], least: &Model) {
    let layout = layers.layout();
    let fits = |model: &&Model| {
        model.head == layout.head
            && model.live.len() as u64 == layout.size
            && model
                .snapshots
                .iter()
                .map(|(id, _)| *id)
                .eq(layout.snapshots.iter().map(|snapshot| snapshot.id))
    };
    let states: Vec<&Model> = since.iter().chain([least]).filter(fits).collect();
    assert!(!states.is_empty(), "the layout was never asked for: {layout:?}");
    let live = layers.read(extent(0, layout.size)).unwrap();
    let all: Vec<&Model> = since.iter().chain([least]).filter(|model| model.head == layout.head).collect();
    for (number, sector) in live.chunks(512).enumerate() {
        let at = number * 512;
        let possible = |model: &&Model| {
            let mut then = model.live.clone();
            then.resize(live.len().max(then.len()), 0);
            then[at..at + sector.len()] == *sector
        };
        assert!(all.iter().any(possible), "sector {number} was never so: {:?}", &sector[..4]);
    }
    for (place, (id, expected)) in states[0].snapshots.iter().enumerate() {
        let found = layers.read_snapshot(place, extent(0, expected.len() as u64)).unwrap();
        assert!(found == *expected, "snapshot {id} differs");
    }
}

/// What is found damaged while the chain is being changed is noted when it has been.
#[test]
fn damage_that_is_found_during_a_change_is_noted_after_it() {
    let disk = MemoryDisk::default();
    let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
    for head in [1, 2] {
        layers.write(0, &[head; BLOCK as usize]).unwrap();
        layers.take_step(&Step::Freeze { name: format!("s{head}"), head: head.into() }).unwrap();
        while head == 1 && layers.has_work() {
            work(&mut layers, &disk).unwrap();
        }
    }
    while layers.work(Patience::Wait).unwrap() != Worked::WantsSync {}
    let plan = layers.sync_plan(false).unwrap();
    disk.flip(&file_name(0, "img"), 5);
    assert!(layers.read_snapshot(0, extent(0, BLOCK)).is_err());
    layers.note_damage().unwrap();
    assert_eq!(layers.damage(), None, "the chain has one change at a time");
    layers.synced(plan.carry_out(&disk).unwrap());
    layers.note_damage().unwrap();
    assert!(layers.damage().is_some_and(|what| what.contains("s1")), "{:?}", layers.damage());
    drop(layers);
    let layers = Layers::open(&disk, SIZE, 1).unwrap();
    assert!(layers.damage().is_some_and(|what| what.contains("s1")), "{:?}", layers.damage());
}

/// No layer below the head is missing, so none says that something is still to come.
#[test]
fn a_copy_of_the_whole_head_that_was_interrupted_begins_anew() {
    let cases = [("the others have another head", 7, false), ("something in the head is damaged", 0, true)];
    for (name, head, broken) in cases {
        let disk = MemoryDisk::default();
        let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
        layers.write(0, &[1; BLOCK as usize]).unwrap();
        sync(&mut layers, &disk, true).unwrap();
        let chain = Chain { broken, ..layers.chain.now().clone() };
        layers.chain.store(chain).unwrap();
        let wanted = Layout { size: SIZE, snapshots: Vec::new(), head };
        for _ in 0..2 {
            assert_eq!(layers.adopt(&wanted).unwrap(), Some(0), "{name}");
            assert_eq!((layers.is_whole(), layers.is_filling()), (false, true), "{name}");
            drop(layers);
            layers = Layers::open(&disk, SIZE, 1).unwrap();
            assert_eq!((layers.is_whole(), layers.is_filling()), (false, true), "{name}, opened again");
        }
        // Another process goes on with the copy; what has come stays.
        layers.write(0, &[2; BLOCK as usize]).unwrap();
        sync(&mut layers, &disk, true).unwrap();
        assert!(!layers.is_whole(), "{name}: nobody has said that this was all");
        layers.filled().unwrap();
        for _ in 0..2 {
            assert_eq!((layers.is_whole(), layers.is_filling()), (true, false), "{name}");
            assert_eq!(layers.adopt(&wanted).unwrap(), None, "{name}");
            let found = layers.read(extent(0, BLOCK)).unwrap();
            assert!(found.iter().all(|byte| *byte == 2), "{name}");
            drop(layers);
            layers = Layers::open(&disk, SIZE, 1).unwrap();
        }
    }
}

#[test]
fn the_oldest_format_is_written_until_the_upgrade_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Folder::take(dir.path()).unwrap();
    let mut layers = Layers::open(&disk, SIZE, 1).unwrap();
    let format = || std::fs::read(dir.path().join("layers")).unwrap()[8];
    layers.take_step(&Step::Freeze { name: "s".into(), head: 7 }).unwrap();
    assert_eq!((format(), layers.volume()), (1, None));
    for _ in 0..2 {
        layers.take_step(&Step::Finalize { volume: "v".into() }).unwrap();
        assert_eq!(u32::from(format()), *FORMATS.end());
    }
    drop(layers);
    let named = (*FORMATS.end() > 1).then_some("v");
    assert_eq!(Layers::open(&disk, SIZE, 1).unwrap().volume(), named);
}

#[test]
fn what_layers_take_is_told_without_owning_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Folder::take(dir.path()).unwrap();
    assert!(taken(dir.path()).is_err(), "there is no copy yet");
    let mut layers = Layers::open(&disk, 1 << 20, 1).unwrap();
    let bytes = |dir: &std::path::Path| -> Vec<(Option<String>, u64)> {
        taken(dir).unwrap().into_iter().map(|layer| (layer.snapshot, layer.bytes)).collect()
    };
    assert_eq!(bytes(dir.path()), [(None, 0)]);
    layers.write(0, &[1; 8 * BLOCK as usize]).unwrap();
    layers.take_step(&Step::Freeze { name: "s".into(), head: 7 }).unwrap();
    layers.write(0, &[2; BLOCK as usize]).unwrap();
    let (frozen, head) = (Some("s".to_owned()), None);
    assert_eq!(bytes(dir.path()), [(frozen, 8 * BLOCK), (head, BLOCK)]);
}
