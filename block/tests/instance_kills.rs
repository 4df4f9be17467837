//! Instance managers under verified I/O, killed with SIGKILL at random moments: with the engine and
//! the replicas that are in them (v2), or without those and then they too (v1). Engines move
//! from one to the other meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod chance;
mod nodes;

use std::{
    thread,
    time::{Duration, Instant},
};

use chance::Dice;
use midflight_block::instance::proto;
use nodes::Nodes;
use rustix::process::{Pid, Signal};
use tonic::Status;

const NODES: usize = 3;
const MENDED_WITHIN: Duration = Duration::from_secs(150);

#[test]
fn nothing_is_lost_when_instance_managers_are_killed_with_all_that_is_in_them() {
    kill_at_random("", 10);
}

#[test]
fn nothing_is_lost_when_instance_managers_and_their_processes_are_killed() {
    kill_at_random("old", 10);
}

fn kill_at_random(binary: &'static str, kills: u64) {
    let (seed, kills) = (chance::seed(), chance::kills(kills));
    let mut nodes = Nodes::start(NODES as u8);
    nodes.create_replicas(binary);
    let epoch = nodes.next_term();
    let engine = nodes.create_engine(0, binary, epoch, &nodes.members());
    let load = nodes::load(nodes.attach(&engine));
    let mut chaos = Chaos { dice: Dice::of(seed), nodes, binary, at: 0, epoch };
    for _ in 0..kills {
        chaos.disturb();
    }
    chaos.nodes.wait_until_whole();
    let report = load.judge();
    assert!(report.writes > kills, "seed {seed}: {report:?}");
    assert!(chaos.nodes.copies_are_equal(), "seed {seed}");
}

/// What a coordinator knows, and chance.
struct Chaos {
    dice: Dice,
    nodes: Nodes,
    binary: &'static str,
    /// The node of the engine, and its epoch.
    at: usize,
    epoch: u64,
}

impl Chaos {
    fn disturb(&mut self) {
        self.dice.linger(Duration::from_millis(40));
        let node = self.dice.roll(NODES as u64) as usize;
        match self.dice.roll(6) {
            0..=1 => self.nodes.nodes[node].process.kill(),
            2 => self.nodes.nodes.iter_mut().for_each(|node| node.process.kill()),
            3 => self.kill_processes(node),
            _ => self.move_engine(node),
        }
        self.persist("mend", Chaos::mend);
    }

    /// Kills what an instance manager has started, and itself.
    fn kill_processes(&mut self, node: usize) {
        let processes = self.nodes.list(node).into_iter().map(|instance| instance.pid);
        for pid in processes.filter_map(|pid| Pid::from_raw(i32::try_from(pid).unwrap())) {
            // It may have ended meanwhile; nobody else has its pid so soon.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.nodes.nodes[node].process.kill();
    }

    /// Gives the volume to an engine of another node, under a term that is taken once; someone's instance
    /// manager is killed meanwhile.
    fn move_engine(&mut self, to: usize) {
        let victim = self.dice.roll(NODES as u64) as usize;
        let after = self.dice.moment(Duration::from_millis(60));
        let killer = chance::kill_later(self.nodes.nodes[victim].process.pid(), after);
        self.at = to;
        self.epoch = self.nodes.next_term();
        let before_kill = self.mend().and_then(|engine| self.nodes.switch_at(to, &engine));
        killer.join().expect("it only kills");
        if before_kill.is_err() {
            self.persist("move", |chaos| {
                let engine = chaos.mend()?;
                chaos.nodes.switch_at(to, &engine)
            });
        }
    }

    /// What a supervisor and a coordinator do all the time: starts what has ended, and asks for what is to be.
    fn mend(&mut self) -> Result<proto::Instance, Status> {
        for node in 0..NODES {
            if self.nodes.nodes[node].process.has_ended().unwrap() {
                self.nodes.restart(node);
            }
        }
        for node in 0..NODES {
            self.nodes.try_create_replica(node, self.binary, self.epoch)?;
        }
        self.nodes.try_create_engine(self.at, self.binary, self.epoch, &self.nodes.members())
    }

    fn persist<T>(&mut self, what: &str, mut act: impl FnMut(&mut Chaos) -> Result<T, Status>) {
        let began = Instant::now();
        while let Err(why) = act(self) {
            assert!(began.elapsed() < MENDED_WITHIN, "never {what}: {why}\n{}", self.nodes.last_words());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
