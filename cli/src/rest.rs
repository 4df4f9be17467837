//! Memory that only work needs is given back whenever the process has come to rest.
//!
//! Starting takes most: code that runs once stays mapped, and what was allocated and freed stays with the
//! allocator. The invariant: only pages that the kernel can read again from the program's own file are let go.

#![allow(unsafe_code)]

use std::{fs, io, mem::MaybeUninit, thread, time::Duration};

use rustix::{
    mm::{Advice, madvise},
    time::{ClockId, clock_gettime},
};
use tracing::debug;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Using less of the CPU than this between two looks is rest.
const REST: Duration = Duration::from_millis(10);
/// After so much of it, whatever comes to rest next is something new.
const WORK: Duration = Duration::from_millis(20);
/// Each brings in at least a page, and of code that was let go mostly sixteen.
const FAULTS: u64 = 32;
/// The longest that is waited, in looks, where what rests needs little and needs it again and again.
const MOST_PATIENCE: u32 = 64;

/// Watches over the process for as long as it lives, from a thread that wakes nobody else: whatever a look touches stays.
pub(crate) fn give_back_at_rest() {
    let watching = thread::Builder::new().name("rest".into()).spawn(|| {
        let mut watch = Watch::default();
        loop {
            thread::sleep(LOOK_EVERY);
            if watch.look(used()) {
                give_back();
                watch.given_back(used());
            }
        }
    });
    if let Err(error) = watching {
        debug!(%error, "no memory is given back");
    }
}

/// What the process has used since it began.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    cpu: Duration,
    faults: u64,
}

/// Decides when memory is given back. What comes back at once, because somebody works a little now and then, is let
/// be for longer and longer.
#[derive(Debug, Default)]
struct Watch {
    last: Used,
    given_back: Used,
    looks: u32,
    patience: u32,
}

impl Watch {
    fn look(&mut self, now: Used) -> bool {
        let rests = now.cpu - self.last.cpu < REST;
        self.last = now;
        self.looks += 1;
        if now.cpu - self.given_back.cpu > WORK {
            self.patience = 0;
        }
        rests && self.looks > self.patience && now.faults - self.given_back.faults > FAULTS
    }

    /// Giving back is no work of the process.
    fn given_back(&mut self, now: Used) {
        (self.last, self.given_back, self.looks) = (now, now, 0);
        self.patience = (self.patience * 2).clamp(1, MOST_PATIENCE);
    }
}

fn used() -> Used {
    let cpu = clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes no more than the structure it is given, for which all zeros are a value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    Used { cpu, faults: u64::try_from(usage.ru_minflt).unwrap_or_default() }
}

fn give_back() {
    // SAFETY: the call takes no pointer and may be made from any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    if let Err(error) = let_go_of_code() {
        debug!(%error, "the program's code stays in memory");
    }
}

fn let_go_of_code() -> io::Result<()> {
    let program = fs::read_link("/proc/self/exe")?;
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    for mapping in unchanged_mappings(&smaps, &program.to_string_lossy()) {
        // SAFETY: the program's own segments stay where they are for as long as it runs. This one cannot be written and
        // holds no page of its own, so that what the next access finds is what was there.
        unsafe { madvise(mapping.start as *mut _, mapping.end - mapping.start, Advice::LinuxDontNeed) }?;
    }
    Ok(())
}

/// The parts of a program's file that are mapped read-only and of which no page differs from the file.
fn unchanged_mappings(smaps: &str, program: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        if let Some(anonymous) = line.strip_prefix("Anonymous:") {
            if anonymous.trim() == "0 kB" {
                found.extend(candidate.take());
            }
        } else if let Some(range) = range_of(line) {
            let read_only = line.split_whitespace().nth(1).is_some_and(|rights| !rights.contains('w'));
            candidate = (read_only && line.ends_with(program)).then_some(range);
        }
    }
    found
}

fn range_of(header: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = header.split_whitespace().next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_file_still_holds_is_let_go() {
        let smaps = "\
1000-2000 r--p 00000000 08:01 7 /bin/midflight
Rss:                   4 kB
Anonymous:             0 kB
2000-5000 r-xp 00001000 08:01 7 /bin/midflight
Anonymous:             0 kB
5000-6000 r--p 00004000 08:01 7 /bin/midflight
Anonymous:             4 kB
6000-7000 rw-p 00005000 08:01 7 /bin/midflight
Anonymous:             0 kB
8000-9000 r-xp 00000000 08:01 9 /lib/libc.so.6
Anonymous:             0 kB
9000-a000 rw-p 00000000 00:00 0
Anonymous:             0 kB
";
        assert_eq!(unchanged_mappings(smaps, "/bin/midflight"), [0x1000..0x2000, 0x2000..0x5000]);
    }

    #[test]
    fn it_is_given_back_at_rest_and_when_it_came_back_later_and_later() {
        let mut watch = Watch::default();
        let mut now = Used::default();
        let mut after = |cpu_ms: u64, faults: u64| {
            now.cpu += Duration::from_millis(cpu_ms);
            now.faults += faults;
            let due = watch.look(now);
            if due {
                watch.given_back(now);
            }
            due
        };
        assert!(!after(300, 5_000), "it starts");
        assert!(after(3, 0), "it has come to rest");
        assert!(!after(1, 10), "hardly anything came back");
        assert!(after(1, 100), "much came back with little work");
        let waited = (1..).find(|_| after(1, 100)).unwrap();
        assert!(waited > 1, "what is needed again is let be for longer");
        let longest = (0..10).map(|_| (1_u32..).find(|_| after(0, 100)).unwrap()).max();
        assert_eq!(longest, Some(MOST_PATIENCE + 1));
        assert!(!after(500, 100), "it works");
        assert!(after(0, 0), "what comes to rest after work is something new");
        assert!((0..1_000).all(|_| !after(1, 0)), "nothing came back");
    }

    #[test]
    fn the_program_goes_on_after_its_code_was_let_go() {
        let resident = || crate::memory::resident_bytes(std::process::id().cast_signed()).unwrap();
        let before = resident();
        give_back();
        let after = resident();
        assert!(after < before, "{after} bytes are resident after {before}");
    }
}
