//! Memory that only work needs is given back whenever the process has come to rest.
//!
//! Starting takes most: code that runs once stays mapped, and what was allocated and freed stays with the
//! allocator. The invariant: only pages that the kernel can read again from the program's own file are let go.

#![allow(unsafe_code)]

use std::{convert::Infallible, fs, io, time::Duration};

use rustix::{
    mm::{Advice, madvise},
    time::{ClockId, clock_gettime},
};
use tokio::time::sleep;
use tracing::debug;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Using less of the CPU than this between two looks is rest.
const REST: Duration = Duration::from_millis(10);
/// So much work is worth giving back after.
const WORK: Duration = Duration::from_millis(20);

/// Watches over the process for as long as it lives.
pub(crate) async fn give_back_at_rest() -> Infallible {
    let mut given_back = Duration::ZERO;
    let mut last = Duration::ZERO;
    loop {
        let now = cpu_time();
        if now - last < REST && now - given_back > WORK {
            give_back();
            given_back = cpu_time();
        }
        last = now;
        sleep(LOOK_EVERY).await;
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
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
    fn the_program_goes_on_after_its_code_was_let_go() {
        let resident = || crate::memory::resident_bytes(std::process::id().cast_signed()).unwrap();
        let before = resident();
        give_back();
        let after = resident();
        assert!(after < before, "{after} bytes are resident after {before}");
    }
}
