//! Reads what a container said, from its log files.
//!
//! The one invariant: of a log that is followed nothing is left out and nothing is said twice, also where the file is
//! exchanged meanwhile, as long as the reader keeps up with it.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;

use super::observe;
use crate::container::{Room, State, log::Line};

/// How often a log that is followed is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which part of a log is wanted, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) follow: bool,
    /// Of the run before the newest.
    pub(super) previous: bool,
    pub(super) since: Option<Timestamp>,
    pub(super) timestamps: bool,
    pub(super) tail_lines: Option<usize>,
    pub(super) limit_bytes: Option<usize>,
}

impl Wanted {
    /// From the query of a request; what cannot be understood is named.
    pub(super) fn parse(query: &str, now: Timestamp) -> Result<Wanted, String> {
        let mut wanted = Wanted::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace("%3A", ":").replace("%3a", ":").replace("%2B", "+");
            let bad = || format!("{name}: {value:?} is not understood");
            let flag = !matches!(value.as_str(), "0" | "f" | "F" | "false" | "False" | "FALSE");
            let number = || value.parse::<usize>().map_err(|_| bad());
            match name {
                "follow" => wanted.follow = flag,
                "previous" => wanted.previous = flag,
                "timestamps" => wanted.timestamps = flag,
                "tailLines" => wanted.tail_lines = Some(number()?),
                "limitBytes" => wanted.limit_bytes = Some(number()?),
                "sinceTime" => wanted.since = Some(value.parse().map_err(|_| bad())?),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).map_err(|_| bad())?;
                    wanted.since = now.checked_sub(SignedDuration::from_secs(seconds)).ok();
                }
                _ => return Err(format!("{name} is not known")),
            }
        }
        Ok(wanted)
    }
}

/// The room of the run whose log is wanted.
pub(super) fn room(pod: &Path, container: &str, previous: bool) -> Option<Room> {
    let newest = observe::newest(pod, container).ok()??;
    if !previous {
        return Some(newest.room);
    }
    let earlier = newest.blueprint.attempt.checked_sub(1)?;
    let room = observe::room(pod, container, earlier);
    room.log().exists().then_some(room)
}

/// Sends a log until its end, or until nobody listens.
pub(super) fn send(room: &Room, wanted: &Wanted, to: mpsc::Sender<Bytes>) -> io::Result<()> {
    let files: Vec<PathBuf> = [room.log().with_extension("1"), room.log()].into();
    let mut skip = 0;
    if let Some(tail) = wanted.tail_lines {
        let mut lines = 0_usize;
        for file in &files {
            each_line(open(file)?, |line| {
                lines += usize::from(line.whole && wanted.has(line));
                true
            })?;
        }
        skip = lines.saturating_sub(tail);
    }
    let mut outlet = Outlet { wanted, skip, left: wanted.limit_bytes, to };
    if let [old, _] = &files[..]
        && !each_line(open(old)?, |line| outlet.put(line))?
    {
        return Ok(());
    }
    follow(room, &mut outlet)
}

/// Reads the file that is being written, and those that take its place.
fn follow(room: &Room, outlet: &mut Outlet<'_>) -> io::Result<()> {
    let Some(mut reader) = open(&room.log())? else { return Ok(()) };
    let mut partial = Vec::new();
    loop {
        // Looked at before the file is: what ends now has written all of it.
        let over = !outlet.wanted.follow || !matches!(room.state(), Ok(State::Running { .. }));
        let exchanged = is_exchanged(&reader, &room.log());
        while reader.read_until(b'\n', &mut partial)? > 0 {
            let Some(line) = partial.strip_suffix(b"\n") else { break };
            if Line::parse(line).is_some_and(|line| !outlet.put(&line)) {
                return Ok(());
            }
            partial.clear();
        }
        match () {
            () if exchanged => match open(&room.log())? {
                // A line that was torn in the old file does not go on in the new one.
                Some(next) => {
                    partial.clear();
                    reader = next;
                }
                None => return Ok(()),
            },
            () if over || outlet.to.is_closed() => return Ok(()),
            () => thread::sleep(LOOK_EVERY),
        }
    }
}

fn is_exchanged(reader: &BufReader<File>, path: &Path) -> bool {
    let (open, named) = (reader.get_ref().metadata(), fs::metadata(path));
    matches!((open, named), (Ok(open), Ok(named)) if open.ino() != named.ino())
}

fn open(path: &Path) -> io::Result<Option<BufReader<File>>> {
    match File::open(path) {
        Ok(file) => Ok(Some(BufReader::new(file))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// False if the listener has heard enough.
fn each_line(
    reader: Option<BufReader<File>>,
    mut listener: impl FnMut(&Line<'_>) -> bool,
) -> io::Result<bool> {
    let Some(mut reader) = reader else { return Ok(true) };
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if Line::parse(text).is_some_and(|line| !listener(&line)) {
            return Ok(false);
        }
        line.clear();
    }
    Ok(true)
}

impl Wanted {
    fn has(&self, line: &Line<'_>) -> bool {
        self.since.is_none_or(|since| line.at.parse::<Timestamp>().is_ok_and(|at| at >= since))
    }
}

/// Where lines go.
struct Outlet<'a> {
    wanted: &'a Wanted,
    /// Lines to leave out at the beginning.
    skip: usize,
    /// Bytes that may still be sent.
    left: Option<usize>,
    to: mpsc::Sender<Bytes>,
}

impl Outlet<'_> {
    /// False if no more is wanted.
    fn put(&mut self, line: &Line<'_>) -> bool {
        if !self.wanted.has(line) {
            return true;
        }
        if self.skip > 0 {
            self.skip -= usize::from(line.whole);
            return true;
        }
        let mut text = Vec::new();
        if self.wanted.timestamps {
            text.extend_from_slice(line.at.as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(line.text);
        if line.whole {
            text.push(b'\n');
        }
        if let Some(left) = &mut self.left {
            text.truncate(*left);
            *left -= text.len();
        }
        self.to.blocking_send(text.into()).is_ok() && self.left != Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: [&str; 2], query: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::at(folder.path());
        fs::write(folder.path().join("log.1"), files[0]).unwrap();
        fs::write(folder.path().join("log"), files[1]).unwrap();
        let wanted = Wanted::parse(query, Timestamp::now()).unwrap();
        let (to, mut from) = mpsc::channel(100);
        send(&room, &wanted, to).unwrap();
        let mut text = Vec::new();
        while let Some(piece) = from.blocking_recv() {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_wanted_part_is_read() {
        const OLD: &str = "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stderr F two\n";
        const NEW: &str = "2026-01-01T00:00:03Z stdout P thr\n2026-01-01T00:00:03Z stdout F ee\n2026-01-01T00:00:04Z stdout F \n";
        #[rustfmt::skip]
        let cases = [
            ("",                                 "one\ntwo\nthree\n\n"),
            ("tailLines=2",                      "three\n\n"),
            ("tailLines=0",                      ""),
            ("sinceTime=2026-01-01T00%3A00%3A02Z&tailLines=9", "two\nthree\n\n"),
            ("limitBytes=5",                     "one\nt"),
            ("timestamps=true&limitBytes=25",    "2026-01-01T00:00:01Z one\n"),
            ("follow=true&tailLines=1",          "\n"),
        ];
        for (query, expected) in cases {
            assert_eq!(read([OLD, NEW], query), expected, "{query}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for query in ["tailLines=x", "sinceTime=never", "colour=red"] {
            let refused = Wanted::parse(query, Timestamp::now()).unwrap_err();
            assert!(refused.starts_with(query.split('=').next().unwrap()), "{refused}");
        }
    }
}
