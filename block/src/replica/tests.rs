//! A replica between its engine and a disk whose cache can be emptied: the kernel's own
//! reading ahead may be done before anyone looks.

use bytes::Bytes;

use super::{
    core::{Input, Output, Replica},
    disk::Disk,
    layers::SyncPlan,
    memory::MemoryDisk,
    promise::PromiseFile,
    store::Store,
};
use crate::{
    blocks::{BLOCK_BITS, Blocks, Run},
    epoch::Epoch,
    extent::Extent,
    net::reactor::LinkId,
    wire::{
        Frame, Header, Kind, SOON, Status,
        hello::{Hello, VERSIONS},
        layout::Step,
        members::{Missing, Promised},
        past::Past,
    },
};

const ENGINE: LinkId = LinkId::from_bits(1);
const NEXT_ENGINE: LinkId = LinkId::from_bits(2);
const BLOCK: u32 = 1 << BLOCK_BITS;
const BLOCKS: u64 = 64;
const EPOCH: Epoch = Epoch::of_term(1);

struct Bench {
    disk: MemoryDisk,
    promise: PromiseFile<MemoryDisk>,
    core: Replica<MemoryDisk>,
    /// Fetches that were asked for and are not carried out.
    fetches: Vec<u64>,
    /// Departures of other copies that are not durable yet.
    departures: Vec<u64>,
    /// Whether syncs take long: one is under way until `finish_sync`.
    is_slow: bool,
    syncing: Option<SyncPlan<MemoryDisk>>,
}

impl Bench {
    /// A replica that has promised to an engine.
    fn new() -> Bench {
        let disk = MemoryDisk::default();
        let promise = PromiseFile::open(disk.clone()).unwrap();
        let size = BLOCKS * u64::from(BLOCK);
        let store = Store::open(&disk, size, 1).unwrap();
        let core = Replica::new("v".into(), store, promise.standing(), 1);
        let mut bench = Bench::of(disk, promise, core);
        let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 7, size, epoch: EPOCH };
        bench.ask(Frame::with(Header::new(Kind::Hello, 0, EPOCH), hello.encode()));
        bench.ask(Frame::bare(Header::new(Kind::Promise, 0, EPOCH)));
        bench
    }

    fn of(disk: MemoryDisk, promise: PromiseFile<MemoryDisk>, core: Replica<MemoryDisk>) -> Bench {
        let (fetches, departures) = (Vec::new(), Vec::new());
        Bench { disk, promise, core, fetches, departures, is_slow: false, syncing: None }
    }

    fn ask(&mut self, frame: Frame) -> Vec<Frame> {
        self.feed(Input::Frame(ENGINE, frame))
    }

    /// What the replica answers by and by. Whatever waits for the disk is done at once, but for fetches and
    /// departures.
    fn feed(&mut self, input: Input) -> Vec<Frame> {
        let (mut inputs, mut answers) = (vec![input], Vec::new());
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.core.apply(input, &mut out);
            for output in out {
                match output {
                    Output::Send(_, frame) => answers.push(frame),
                    Output::Persist(standing) => {
                        self.promise.store(standing).unwrap();
                        inputs.push(Input::Persisted(standing));
                    }
                    Output::Sync => {
                        let plan = self.core.sync_plan().unwrap();
                        if self.is_slow {
                            assert!(self.syncing.replace(plan).is_none(), "one at a time");
                            continue;
                        }
                        inputs.push(Input::Synced(plan.carry_out(&self.disk).unwrap()));
                    }
                    Output::SyncIntent => {
                        self.disk.sync(&self.core.store().intent_file()).unwrap();
                        inputs.push(Input::IntentSynced);
                    }
                    Output::Fetch(number) => self.fetches.push(number),
                    Output::SyncAbsent(key) => self.departures.push(key),
                    Output::Close(_) | Output::Die(_) => panic!("{output:?}"),
                }
            }
        }
        answers
    }

    /// The sync under way ends.
    fn finish_sync(&mut self) -> Vec<Frame> {
        let carried = self.syncing.take().expect("one is under way").carry_out(&self.disk).unwrap();
        self.feed(Input::Synced(carried))
    }

    fn step(&mut self, tag: u64, step: &Step) -> Vec<Frame> {
        self.ask(Frame::with(Header::new(Kind::Step, tag, EPOCH), step.encode()))
    }

    /// Does all the work on the layers there is; writes go on, and nothing is synced where they are carried out.
    fn works_beside_writes(&mut self) {
        let mut syncs = 0;
        while self.core.store().has_work() || self.syncing.is_some() {
            let before = self.disk.syncs();
            if self.core.has_work() {
                self.feed(Input::Work);
            }
            let block = syncs % BLOCKS;
            assert_eq!(tags(&self.write(block, 7)), [(block, Status::Ok)]);
            assert_eq!(self.disk.syncs(), before, "nobody waits for the disk here");
            self.carry_out_fetches();
            if self.syncing.is_some() {
                syncs += 1;
                assert_eq!(tags(&self.finish_sync()), []);
            }
        }
        assert!(syncs > 0);
    }

    fn carry_out_fetches(&mut self) -> Vec<Frame> {
        let fetches = std::mem::take(&mut self.fetches);
        let carry_out = |number| {
            self.core.fetch_plan(number).carry_out(&self.disk);
            self.feed(Input::Fetched(number))
        };
        fetches.into_iter().flat_map(carry_out).collect()
    }

    fn write(&mut self, block: u64, fill: u8) -> Vec<Frame> {
        let payload = Bytes::from(vec![fill; BLOCK as usize]);
        self.ask(Frame::with(Header { extent: of(block), ..Header::new(Kind::Write, block, EPOCH) }, payload))
    }

    fn read(&mut self, block: u64) -> Vec<Frame> {
        self.ask(Frame::bare(Header { extent: of(block), ..Header::new(Kind::Read, block, EPOCH) }))
    }

    fn freeze(&mut self) {
        let step = Step::Freeze { name: "s".into(), head: 9 };
        self.ask(Frame::with(Header::new(Kind::Step, 0, EPOCH), step.encode()));
    }
}

fn of(block: u64) -> Extent {
    Extent::new(block << BLOCK_BITS, BLOCK).unwrap()
}

fn tags(answers: &[Frame]) -> Vec<(u64, Status)> {
    answers.iter().map(|frame| (frame.header.tag, frame.header.status)).collect()
}

/// Nobody waits for the note that another copy has left, or is whole again, but whoever asked for it; and what is written meanwhile is in it.
#[test]
fn writes_go_on_while_the_departure_and_the_return_of_another_copy_are_noted() {
    let mut bench = Bench::new();
    let missing = |blocks: &[u64]| {
        let mut set = Blocks::default();
        blocks.iter().for_each(|first| set.insert_all(Run { first: *first, count: 1 }));
        Missing { replica: 5, from: 3, blocks: set }
    };
    let depart =
        |tag, blocks: &[u64]| Frame::with(Header::new(Kind::Depart, tag, EPOCH), missing(blocks).encode());
    assert_eq!(tags(&bench.ask(depart(70, &[1]))), [], "it is not durable yet");
    assert_eq!(tags(&bench.write(3, 2)), [(3, Status::Ok)]);
    assert_eq!(tags(&bench.ask(depart(71, &[9]))), []);
    assert_eq!(bench.departures, [5, 5]);
    assert_eq!(tags(&bench.feed(Input::AbsentSynced(5))), [(70, Status::Ok)], "each by its own sync");
    assert_eq!(tags(&bench.feed(Input::AbsentSynced(5))), [(71, Status::Ok)]);
    assert_eq!(bench.core.store().absent.get(5), Some((3, missing(&[1, 3, 9]).blocks)));
    let syncs = bench.disk.syncs();
    let whole = Frame::with(Header::new(Kind::Forget, 74, EPOCH), missing(&[]).encode());
    assert_eq!(tags(&bench.ask(whole)), [], "nor that it is whole again");
    assert_eq!((bench.disk.syncs(), bench.core.store().absent.get(5)), (syncs, None));
    assert_eq!(tags(&bench.feed(Input::AbsentSynced(5))), [(74, Status::Ok)]);
    bench.ask(depart(72, &[]));
    bench.ask(depart(73, &[]));
    bench.core.apply(Input::Closed(ENGINE), &mut Vec::new());
    assert_eq!(tags(&bench.feed(Input::AbsentSynced(5))), [], "whoever asked is gone");
    assert_eq!(tags(&bench.feed(Input::AbsentSynced(5))), []);
    assert!(bench.core.is_quiet());
}

#[test]
fn a_read_that_waits_for_the_disk_holds_up_nobody() {
    let mut bench = Bench::new();
    (0..BLOCKS).for_each(|block| assert_eq!(tags(&bench.write(block, 1)), [(block, Status::Ok)]));
    assert_eq!(bench.read(5)[0].payload, [1; BLOCK as usize][..], "what is in memory is given at once");
    bench.disk.chill();
    assert_eq!(tags(&bench.read(40)), [], "it waits for the disk");
    assert_eq!(tags(&bench.write(3, 2)), [(3, Status::Ok)]);
    assert_eq!(bench.read(3)[0].payload, [2; BLOCK as usize][..]);
    let late = bench.carry_out_fetches();
    assert_eq!(tags(&late), [(40, Status::Ok)]);
    assert!(late[0].intact() && late[0].payload == [1; BLOCK as usize][..]);
    assert_eq!(tags(&bench.read(40)), [(40, Status::Ok)], "now it is in memory");
}

#[test]
fn snapshots_and_work_on_layers_are_fetched_too() {
    let mut bench = Bench::new();
    (0..BLOCKS).for_each(|block| drop(bench.write(block, 1)));
    bench.freeze();
    bench.write(2, 2);
    bench.disk.chill();
    let past = Past { snapshot: 0, since: None };
    let header = Header { extent: of(2), ..Header::new(Kind::Past, 2, EPOCH) };
    assert_eq!(tags(&bench.ask(Frame::with(header, past.encode()))), []);
    assert_eq!(tags(&bench.read(50)), [], "it is in the frozen layer");
    let late = bench.carry_out_fetches();
    assert_eq!(tags(&late), [(2, Status::Ok), (50, Status::Ok)]);
    assert!(late.iter().all(|frame| frame.payload == [1; BLOCK as usize][..]));
    bench.disk.chill();
    let mut fetched = 0;
    while bench.core.store().has_work() {
        bench.feed(Input::Work);
        fetched += bench.fetches.len();
        assert!(!bench.core.has_work() || bench.fetches.is_empty(), "one piece at a time");
        bench.carry_out_fetches();
    }
    assert!(fetched > 0, "the layer was not in memory");
    assert_eq!(bench.read(50)[0].payload, [1; BLOCK as usize][..]);
}

#[test]
fn writes_go_on_while_layers_are_sealed_removed_and_merged() {
    let mut bench = Bench::new();
    (0..BLOCKS).for_each(|block| drop(bench.write(block, 1)));
    bench.freeze();
    bench.write(60, 2);
    bench.is_slow = true;
    bench.works_beside_writes();

    // The answer waits for the disk, and nobody else does.
    let before = bench.disk.syncs();
    let removal = Step::Remove { id: 0 };
    assert_eq!(tags(&bench.step(80, &removal)), []);
    assert_eq!(tags(&bench.write(3, 3)), [(3, Status::Ok)]);
    assert_eq!(bench.disk.syncs(), before);
    assert_eq!(tags(&bench.step(81, &removal)), [], "one after another");
    assert_eq!(tags(&bench.write(4, 4)), [(4, Status::Ok)]);
    assert_eq!(tags(&bench.finish_sync()), [(80, Status::Ok), (81, Status::Ok)]);
    bench.works_beside_writes();
    assert_eq!(bench.core.store().layout().snapshots, []);
    for (block, fill) in [(0, 7), (3, 3), (4, 4), (59, 1), (60, 2)] {
        assert_eq!(bench.read(block)[0].payload, [fill; BLOCK as usize][..], "block {block}");
    }
    let names: Vec<String> = bench.disk.names().unwrap();
    assert!(!names.contains(&"layer-0000000000000000.img".to_owned()), "its room is given back: {names:?}");
}

/// It copies layers by their places: none may come or go once it has been told of them.
#[test]
fn an_engine_hears_which_layers_there_are_when_what_the_one_before_has_begun_is_over() {
    let mut bench = Bench::new();
    bench.write(3, 1);
    bench.freeze();
    bench.is_slow = true;
    bench.works_beside_writes();
    assert_eq!(tags(&bench.step(80, &Step::Remove { id: 0 })), []);

    let epoch = EPOCH.next_term();
    let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 8, size: 0, epoch };
    bench.feed(Input::Frame(NEXT_ENGINE, Frame::with(Header::new(Kind::Hello, 0, epoch), hello.encode())));
    let promise = Frame::bare(Header::new(Kind::Promise, 81, epoch));
    assert_eq!(tags(&bench.feed(Input::Frame(NEXT_ENGINE, promise))), []);

    let answers = bench.finish_sync();
    let is_promise = |answer: &&Frame| (answer.header.tag, answer.header.status) == (81, Status::Ok);
    let answer = answers.iter().find(is_promise).expect("the one before is told another thing");
    let promised = Promised::decode(&answer.payload).expect("a promise");
    assert_eq!(promised.layout.snapshots, []);
    assert_eq!(promised.layout, bench.core.store().layout());
}

/// Where there is no room to change the list of layers, work on them is tried again later, and whoever asked is told.
#[test]
fn a_full_disk_puts_off_changes_of_the_layers() {
    let mut bench = Bench::new();
    bench.write(3, 1);
    bench.freeze();
    bench.is_slow = true;
    while bench.syncing.is_none() {
        bench.feed(Input::Work);
    }
    bench.disk.set_full(true);
    assert_eq!(tags(&bench.finish_sync()), []);
    assert!(bench.core.store().has_work() && !bench.core.has_work(), "it is put off");
    assert_eq!(tags(&bench.step(80, &Step::Remove { id: 0 })), []);
    assert_eq!(tags(&bench.finish_sync()), [(80, Status::NoSpace)]);
    assert_eq!(bench.core.store().layout().snapshots.len(), 1);
    bench.disk.set_full(false);
    bench.feed(Input::Scrub);
    bench.works_beside_writes();
    assert_eq!(tags(&bench.step(81, &Step::Remove { id: 0 })), []);
    assert_eq!(tags(&bench.finish_sync()), [(81, Status::Ok)]);
    assert_eq!(bench.core.store().layout().snapshots, []);
}

/// The copy in a folder, opened by another process in this run of the machine.
fn opened(disk: &MemoryDisk, boot: u64) -> Store<MemoryDisk> {
    Store::open(disk, BLOCKS * u64::from(BLOCK), boot).unwrap()
}

fn first_byte(store: &Store<MemoryDisk>, block: u64) -> u8 {
    store.read(of(block)).unwrap()[0]
}

/// All that is left of a freeze that was announced, after a flush, is a note that nobody syncs.
#[test]
fn an_announced_freeze_waits_for_no_disk_and_survives_its_process() {
    let mut bench = Bench::new();
    let step = Step::Freeze { name: "s".into(), head: 9 };
    let flush = Frame::bare(Header::new(Kind::Flush, 70, EPOCH));
    let freeze = |tag, flags| {
        let header = Header { flags, ..Header::new(Kind::Step, tag, EPOCH) };
        Frame::with(header, step.encode())
    };
    assert_eq!(tags(&bench.write(3, 1)), [(3, Status::Ok)]);
    bench.is_slow = true;
    let announced = Frame::with(Header::new(Kind::Ping, 71, EPOCH), step.encode());
    assert_eq!(tags(&bench.ask(announced.clone())), [], "its files are on their way to the disk");
    assert_eq!(tags(&bench.finish_sync()), [(71, Status::Ok)]);
    assert_eq!(tags(&bench.ask(announced)), [(71, Status::Ok)], "they are there");
    bench.ask(flush.clone());
    assert_eq!(tags(&bench.finish_sync()), [(70, Status::Ok)]);

    let before = bench.disk.syncs();
    assert_eq!(tags(&bench.ask(freeze(72, SOON))), [(72, Status::Ok)]);
    assert_eq!(tags(&bench.write(3, 2)), [(3, Status::Ok)]);
    assert_eq!(bench.disk.syncs(), before, "nobody has waited for the disk");
    let names = |store: &Store<MemoryDisk>| store.layout().snapshots.len();
    let killed = opened(&bench.disk.copy(), 1);
    assert_eq!((names(&killed), first_byte(&killed, 3)), (1, 2), "a killed process loses nothing");
    let dark = bench.disk.copy();
    dark.lose_power(|| false);
    let dark = opened(&dark, 2);
    assert_eq!((names(&dark), first_byte(&dark, 3)), (0, 1), "what was flushed is there");
    bench.ask(flush);
    bench.finish_sync();
    assert_eq!(tags(&bench.finish_sync()), [(70, Status::Ok)]);
    let dark = bench.disk.copy();
    dark.lose_power(|| false);
    let dark = opened(&dark, 2);
    assert_eq!((names(&dark), first_byte(&dark, 3)), (1, 2));

    // Whoever does not say that it flushes is answered when all is durable.
    let again = Step::Freeze { name: "t".into(), head: 10 };
    assert_eq!(tags(&bench.step(73, &again)), []);
    assert_eq!(tags(&bench.finish_sync()), [(73, Status::Ok)]);
}

/// Between the announcement of a freeze and the freeze no work begins whose sync it would have to wait for. It goes on when the
/// freeze is made, when whoever announced it is gone, and when another engine has the volume.
#[test]
fn work_on_layers_makes_way_for_a_freeze_that_is_announced() {
    let ends: [fn(&mut Bench); 3] = [
        |bench| drop(bench.step(72, &Step::Freeze { name: "t".into(), head: 10 })),
        |bench| drop(bench.feed(Input::Closed(ENGINE))),
        |bench| drop(bench.ask(Frame::bare(Header::new(Kind::Promise, 73, EPOCH)))),
    ];
    for end in ends {
        let mut bench = Bench::new();
        bench.write(3, 1);
        bench.freeze();
        assert!(bench.core.has_work());
        let step = Step::Freeze { name: "t".into(), head: 10 };
        bench.ask(Frame::with(Header::new(Kind::Ping, 71, EPOCH), step.encode()));
        assert!(bench.core.store().has_work() && !bench.core.has_work());
        end(&mut bench);
        assert!(bench.core.has_work());
    }
}

#[test]
fn a_flush_of_what_is_durable_waits_for_no_disk() {
    let mut bench = Bench::new();
    let flush = |bench: &mut Bench| {
        let before = bench.disk.syncs();
        let flush = Frame::bare(Header::new(Kind::Flush, 70, EPOCH));
        assert_eq!(tags(&bench.ask(flush)), [(70, Status::Ok)]);
        bench.disk.syncs() > before
    };
    assert!(flush(&mut bench), "what processes before have left nobody knows");
    assert!(!flush(&mut bench));
    bench.write(3, 1);
    assert!(flush(&mut bench) && !flush(&mut bench));
    bench.freeze();
    assert!(!flush(&mut bench));
    bench.write(3, 2);
    assert!(flush(&mut bench) && !flush(&mut bench));
}

/// After the promise has moved on, nobody gets what was asked before.
#[test]
fn a_read_that_waited_is_refused_when_its_engine_was_fenced_out_meanwhile() {
    let mut bench = Bench::new();
    (0..BLOCKS).for_each(|block| drop(bench.write(block, 1)));
    bench.disk.chill();
    assert_eq!(tags(&bench.read(40)), []);
    let next = LinkId::from_bits(2);
    let epoch = EPOCH.next_term();
    let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 8, size: 0, epoch };
    bench.feed(Input::Frame(next, Frame::with(Header::new(Kind::Hello, 0, epoch), hello.encode())));
    bench.feed(Input::Frame(next, Frame::bare(Header::new(Kind::Promise, 0, epoch))));
    assert_eq!(tags(&bench.carry_out_fetches()), [(40, Status::Fenced)]);
    assert_eq!(tags(&bench.read(1)), [(1, Status::Fenced)]);
}

#[test]
fn what_nobody_could_be_answered_is_refused() {
    let mut bench = Bench::new();
    let header = |kind, extent| Header { extent, ..Header::new(kind, 4, EPOCH) };
    let huge = Extent::new(0, u32::MAX).unwrap();
    let past = Past { snapshot: 0, since: None }.encode();
    #[rustfmt::skip]
    let cases = [
        ("past the end",           Frame::bare(header(Kind::Read, of(BLOCKS)))),
        ("more than a frame has",  Frame::with(header(Kind::Past, huge), past)),
        ("less than it says",      Frame::bare(header(Kind::Write, of(0)))),
        ("no layer",               Frame::bare(header(Kind::Layer, Extent::EMPTY))),
    ];
    for (name, frame) in cases {
        assert_eq!(tags(&bench.ask(frame)), [(4, Status::Invalid)], "{name}");
    }
}

/// What a replica promises that is opened again in this run of the machine.
fn promised_after(bench: Bench, boot: u64) -> Promised {
    let Bench { disk, promise, .. } = bench;
    let store = Store::open(&disk, BLOCKS * u64::from(BLOCK), boot).unwrap();
    let core = Replica::new("v".into(), store, promise.standing(), boot);
    let mut bench = Bench::of(disk, promise, core);
    let epoch = EPOCH.next_term();
    let hello = Hello { versions: VERSIONS, volume: "v".into(), sender: 8, size: 0, epoch };
    bench.ask(Frame::with(Header::new(Kind::Hello, 0, epoch), hello.encode()));
    let answers = bench.ask(Frame::bare(Header::new(Kind::Promise, 0, epoch)));
    Promised::decode(&answers[0].payload).expect("a promise")
}

#[test]
fn a_start_of_the_machine_since_it_served_is_a_loss_of_power_and_a_start_of_the_process_is_none() {
    let served = |writes: bool| {
        let mut bench = Bench::new();
        let extent = Extent::new(1, 0).unwrap();
        bench.ask(Frame::bare(Header { extent, ..Header::new(Kind::Standing, 0, EPOCH) }));
        if writes {
            assert_eq!(tags(&bench.write(3, 1)), [(3, Status::Ok)]);
        }
        bench
    };
    #[rustfmt::skip]
    let cases = [
        ("the process was killed",             true,  1, false, false),
        ("the machine was started anew",       true,  2, true,  true),
        ("it was, and nothing was under way",  false, 2, true,  false),
    ];
    for (name, writes, boot, lost_power, lacks) in cases {
        let promised = promised_after(served(writes), boot);
        assert_eq!(promised.lost_power, lost_power, "{name}");
        assert_eq!(promised.regions.is_empty(), !writes, "{name}: where copies may differ");
        assert_eq!(promised.lacks(1), lacks, "{name}");
    }
}
