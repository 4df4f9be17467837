//! The worker's own side.

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, setrlimit, wait,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::filter::{Answer, Filter, Row};
use super::wire::{self, Parts, ReadWire, Setup, flag, tag};

/// Answers are handed over at least this often, so that whoever waits sees life.
const LIFE_SIGN: Duration = Duration::from_millis(100);

/// Answers are handed over when they have come to this many bytes.
const FULL: usize = 128 << 10;

/// With any of these root may read the memory and environment of every process.
const TO_LOOK_INTO_OTHERS: [CapabilitySet; 3] =
    [CapabilitySet::SYS_PTRACE, CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN];

/// What a worker is told to be, besides `jq`.
pub(super) const WATCH: &str = "watch";
const EXEC: &str = "exec";

/// Runs as a worker until there is nothing more to do. `arguments` are those
/// that [`super::Worker`] adds to its own.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let mode = arguments.next();
    let outcome = die_with_parent().and_then(|()| match mode.as_deref().and_then(|mode| mode.to_str()) {
        Some("jq") => serve(&mut io::stdin().lock(), &mut io::stdout().lock()).map(|()| ExitCode::SUCCESS),
        Some(WATCH) => watch(),
        Some(EXEC) => Err(become_command(arguments)),
        _ => Err(io::Error::other("a worker is started by the tool itself")),
    });
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Whoever started the worker shows this; where that fails there is nobody to tell.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(127)
        }
    }
}

/// Ends with the process that started us, whatever a program is doing then.
fn die_with_parent() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Starts the command in a process below this one, and ends as it does. Whatever it left running, in whichever
/// session, falls to this process when its parent dies, and is ended before.
fn watch() -> io::Result<ExitCode> {
    set_child_subreaper(Some(getpid()))?;
    let mut all: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(mode) = all.iter_mut().find(|word| *word == WATCH) {
        *mode = EXEC.into();
    }
    let status = Command::new(std::env::current_exe()?).args(all).status()?;
    end_children();
    if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
        limit(Resource::Core, 0)?;
        kill_process(getpid(), signal)?;
    }
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Ends all children, and theirs as they fall to us.
fn end_children() {
    loop {
        for child in children(getpid()) {
            let _ = kill_process(child, Signal::KILL);
        }
        // An error says that there is none left.
        if wait(WaitOptions::empty()).is_err() {
            return;
        }
    }
}

/// The children of a process, as far as the kernel tells.
pub(super) fn children(of: Pid) -> Vec<Pid> {
    let of = of.as_raw_nonzero();
    let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Limits memory and processor time, gives up the right to look into other processes, then turns into the command.
/// Returns only when it cannot.
fn become_command(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let mut number = || arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let (Some(memory), Some(seconds)) = (number(), number()) else {
        return io::Error::other("a worker is started by the tool itself");
    };
    let Some(program) = arguments.next() else {
        return io::Error::other("no command was given");
    };
    for right in TO_LOOK_INTO_OTHERS {
        // Others than root never had it, and may not give it up.
        let _ = remove_capability_from_bounding_set(right);
    }
    // What a process has written to counts, not what its runtime reserves.
    if let Err(error) = limit(Resource::Data, memory).and_then(|()| limit(Resource::Cpu, seconds)) {
        return error;
    }
    let error = Command::new(&program).args(arguments).exec();
    io::Error::other(format!("cannot run {}: {error}", program.display()))
}

fn serve(input: &mut dyn Read, output: &mut dyn Write) -> io::Result<()> {
    let mut input = BufReader::with_capacity(256 << 10, input);
    let mut frame = vec![];
    input.append(&mut frame)?;
    let setup: Setup = serde_json::from_slice(&frame)?;
    limit(Resource::As, setup.memory)?;
    limit(Resource::Core, 0)?;
    let filters: Result<Vec<Filter>, String> =
        setup.filters.iter().map(|filter| Filter::compile(&filter.program)).collect();
    let filters = filters.map_err(io::Error::other)?;

    let mut answers = Answers { output, pending: Vec::with_capacity(FULL), sent: Instant::now() };
    loop {
        frame.clear();
        match input.append(&mut frame) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut parts = Parts(&frame);
        let which = parts.u32()?;
        let (filter, table) = (&filters[which], setup.filters[which].table.as_str());
        for _ in 0..parts.u32()? {
            let row = Row { table, topic: parts.text()?, id: parts.text()?, value: parts.bytes()? };
            answers.add(filter.run(row))?;
        }
        answers.send()?;
    }
}

struct Answers<'a> {
    output: &'a mut dyn Write,
    pending: Vec<u8>,
    sent: Instant,
}

impl Answers<'_> {
    fn add(&mut self, answer: Result<Answer, String>) -> io::Result<()> {
        let out = &mut self.pending;
        match answer {
            Ok(Answer::Keep) => out.push(tag::KEEP),
            Ok(Answer::Outputs(outputs)) => {
                out.push(tag::OUTPUTS);
                wire::put_u32(out, outputs.len());
                for output in outputs {
                    let names =
                        [(flag::TABLE, output.table), (flag::TOPIC, output.topic), (flag::ID, output.id)];
                    let flags = names.iter().filter(|(_, name)| name.is_some()).map(|(flag, _)| flag).sum();
                    out.push(flags);
                    for name in names.iter().filter_map(|(_, name)| name.as_ref()) {
                        wire::put_bytes(out, name.as_bytes());
                    }
                    wire::put_bytes(out, &output.value);
                }
            }
            Err(message) => {
                out.push(tag::FAILED);
                wire::put_bytes(out, message.as_bytes());
            }
        }
        if self.pending.len() >= FULL || self.sent.elapsed() >= LIFE_SIGN {
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        self.output.write_all(&self.pending)?;
        self.output.flush()?;
        self.pending.clear();
        self.sent = Instant::now();
        Ok(())
    }
}
