//! `midflight tour-workload`: what the pods of the tour do. It works on files until it is asked to end, then writes down
//! what it met.
//!
//! The one invariant: every record in its log says which one it is, so that whoever reads the log from elsewhere finds any
//! that is missing, stale or torn.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::cluster::Interrupts;

const RECORD_BYTES: usize = 4096;
/// Between two turns, so that a log has the size of a tour.
const PAUSE: Duration = Duration::from_millis(1);

/// Work on files of a folder until asked to end
#[derive(Debug, Args)]
pub(crate) struct TourWorkload {
    /// Folder to work in
    folder: PathBuf,
    /// What its files are called
    #[arg(long)]
    name: String,
}

/// What a workload met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Met {
    /// Records that were written and read back.
    pub(super) records: u64,
    pub(super) longest_turn_us: u64,
    /// The first thing that went wrong, after which it stopped.
    pub(super) trouble: Option<String>,
}

impl TourWorkload {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let mut working = spawn_blocking(move || work(&self.folder, &self.name, &told));
        tokio::select! {
            done = &mut working => return done.context("work")?,
            () = interrupts.next() => enough.store(true, Ordering::Relaxed),
        }
        working.await.context("work")?
    }
}

fn work(folder: &Path, name: &str, enough: &AtomicBool) -> anyhow::Result<()> {
    // Open from the first turn to the last: whoever takes its file system away breaks it.
    let log = File::options().read(true).write(true).create(true).truncate(true).open(log_in(folder, name));
    let log = log.context("open the log")?;
    let mut met = Met::default();
    while met.trouble.is_none() && !enough.load(Ordering::Relaxed) {
        let began = Instant::now();
        match turn(&log, folder, name, met.records) {
            Ok(()) => met.records += 1,
            Err(error) => met.trouble = Some(format!("at record {}: {error}", met.records)),
        }
        met.longest_turn_us = met.longest_turn_us.max(began.elapsed().as_micros() as u64);
        thread::sleep(PAUSE);
    }
    let told = serde_json::to_vec(&met).context("encode what was met")?;
    fs::write(met_in(folder, name), told).context("write down what was met")
}

/// Writes a record, reads an earlier one, and replaces a file as editors do.
fn turn(log: &File, folder: &Path, name: &str, number: u64) -> io::Result<()> {
    let at = |number: u64| number * RECORD_BYTES as u64;
    log.write_all_at(&record(number), at(number))?;
    let earlier = number.wrapping_mul(7919) % (number + 1);
    let mut seen = [0; RECORD_BYTES];
    log.read_exact_at(&mut seen, at(earlier))?;
    if seen != record(earlier) {
        return Err(io::Error::other(format!("record {earlier} is wrong")));
    }
    let (new, here) = (folder.join(format!("{name}.new")), folder.join(format!("{name}.now")));
    fs::write(&new, number.to_string())?;
    fs::rename(&new, &here)?;
    let seen = fs::read_to_string(&here)?;
    if seen == number.to_string() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} says {seen}", here.display())))
    }
}

/// Bytes that no other record has.
fn record(number: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (place, word) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&((number << 16) | place).to_le_bytes());
    }
    bytes
}

fn log_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}

fn met_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.met"))
}

/// How many records a workload has begun, seen from beside it.
pub(super) fn begun(folder: &Path, name: &str) -> u64 {
    fs::metadata(log_in(folder, name)).map_or(0, |log| log.len() / RECORD_BYTES as u64)
}

/// What a workload that has ended met; every record that it counted is looked for in the folder itself.
pub(super) fn judge(folder: &Path, name: &str) -> anyhow::Result<Met> {
    let told = fs::read(met_in(folder, name)).with_context(|| format!("{name} has not said what it met"))?;
    let met: Met = serde_json::from_slice(&told).context("understand what was met")?;
    if let Some(trouble) = &met.trouble {
        anyhow::bail!("{name} met trouble {trouble}");
    }
    let log = fs::read(log_in(folder, name)).with_context(|| format!("read the log of {name}"))?;
    let found = log.chunks(RECORD_BYTES).len() as u64;
    anyhow::ensure!(found == met.records, "{name} wrote {} records, {found} are there", met.records);
    for (number, found) in (0..).zip(log.chunks(RECORD_BYTES)) {
        anyhow::ensure!(found == record(number), "record {number} of {name} is wrong");
    }
    Ok(met)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload that has done so many turns.
    fn worked(turns: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let log = File::options().read(true).write(true).create_new(true).open(log_in(folder.path(), "w"));
        let log = log.unwrap();
        (0..turns).for_each(|number| turn(&log, folder.path(), "w", number).unwrap());
        let met = Met { records: turns, ..Met::default() };
        fs::write(met_in(folder.path(), "w"), serde_json::to_vec(&met).unwrap()).unwrap();
        folder
    }

    #[test]
    fn whatever_is_lost_is_found() {
        let log = |folder: &tempfile::TempDir| log_in(folder.path(), "w");
        let untouched = worked(9);
        assert_eq!((begun(untouched.path(), "w"), judge(untouched.path(), "w").unwrap().records), (9, 9));

        let shorter = worked(9);
        File::options().write(true).open(log(&shorter)).unwrap().set_len(8 * RECORD_BYTES as u64).unwrap();
        let stale = worked(9);
        let file = File::options().write(true).open(log(&stale)).unwrap();
        file.write_all_at(&record(3), 4 * RECORD_BYTES as u64).unwrap();
        let silent = worked(9);
        fs::remove_file(met_in(silent.path(), "w")).unwrap();
        for (folder, expected) in [
            (shorter, "w wrote 9 records, 8 are there"),
            (stale, "record 4 of w is wrong"),
            (silent, "w has not said what it met"),
        ] {
            assert_eq!(judge(folder.path(), "w").unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn it_works_until_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let enough = Arc::new(AtomicBool::new(false));
        let (told, place) = (Arc::clone(&enough), folder.path().to_owned());
        let working = thread::spawn(move || work(&place, "w", &told).unwrap());
        while begun(folder.path(), "w") < 3 {
            thread::yield_now();
        }
        enough.store(true, Ordering::Relaxed);
        working.join().unwrap();
        assert!(judge(folder.path(), "w").unwrap().records >= 3);
    }
}
