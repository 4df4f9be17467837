//! What a container says, line by line, in the form that Kubernetes' runtimes keep it.
//!
//! ```text
//! 2026-01-02T03:04:05.123456789Z stdout F a whole line
//! 2026-01-02T03:04:05.123456790Z stderr P the beginning of a very long line
//! ```
//!
//! The one invariant: whatever the disk does, what is said is read until its end, or whoever says it would be killed by the closed
//! pipe. Lines of one stream are in the order in which they were said, each on a line of its own; where some could not be written,
//! the next one that can be says so.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// Longer lines are written in parts.
const LONGEST_LINE: u64 = 16 << 10;
/// A file that has grown to this becomes the old one, and the one before that goes.
const LARGEST_FILE: u64 = 10 << 20;

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    written: Mutex<Written>,
}

/// The file that is written.
#[derive(Debug)]
struct Written {
    file: File,
    length: u64,
    /// It ends in the midst of a line.
    is_torn: bool,
    /// Lines since the last one that could be written, and why the first of them could not.
    missing: Option<(u64, io::Error)>,
}

impl Log {
    pub(super) fn open(path: PathBuf) -> io::Result<Log> {
        let file = append(&path)?;
        let length = file.metadata()?.len();
        let written = Written { file, length, is_torn: false, missing: None };
        Ok(Log { path, written: Mutex::new(written) })
    }

    /// Writes down what a stream says until it ends. A line that cannot be written is left out; an error is one of the stream.
    pub(super) fn copy(&self, stream: &str, said: impl Read) -> io::Result<()> {
        let mut said = BufReader::new(said);
        let mut line = Vec::new();
        loop {
            line.clear();
            if said.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let whole = line.last() == Some(&b'\n') || said.fill_buf()?.is_empty();
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            self.note(stream, if whole { "F" } else { "P" }, &line);
        }
    }

    fn note(&self, stream: &str, tag: &str, line: &[u8]) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.write(&self.path, stream, tag, line) {
            Ok(()) => written.missing = None,
            Err(why) => written.missing.get_or_insert((0, why)).0 += 1,
        }
    }
}

impl Written {
    fn write(&mut self, path: &Path, stream: &str, tag: &str, line: &[u8]) -> io::Result<()> {
        if self.length > LARGEST_FILE {
            self.give_way(path)?;
        }
        let head = |tag: &str| format!("{:.9} {stream} {tag} ", Timestamp::now()).into_bytes();
        let mut text = if self.is_torn { vec![b'\n'] } else { Vec::new() };
        if let Some((lines, why)) = &self.missing {
            text.extend(head("F"));
            text.extend(
                format!("[lines that could not be written are missing here: {lines}; {why}]\n").bytes(),
            );
        }
        text.extend(head(tag));
        text.extend_from_slice(line);
        text.push(b'\n');
        let mut rest = &text[..];
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    rest = &rest[taken..];
                    self.length += taken as u64;
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes the file the old one, and begins a new one. One of which only the first was done is taken up there.
    fn give_way(&mut self, path: &Path) -> io::Result<()> {
        match fs::rename(path, path.with_extension("1")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.file = append(path)?;
        (self.length, self.is_torn) = (0, false);
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// One line of a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    pub at: &'a str,
    /// Whether the line ends here.
    pub whole: bool,
    pub text: &'a [u8],
}

impl<'a> Line<'a> {
    /// From a line without its end; what has another form is nobody's line.
    pub fn parse(line: &'a [u8]) -> Option<Line<'a>> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let at = std::str::from_utf8(parts.next()?).ok()?;
        let (_stream, tag, text) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Line { at, whole: tag == b"F", text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(said: &[u8]) -> Vec<(bool, Vec<u8>)> {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::open(folder.path().join("log")).unwrap();
        log.copy("stdout", said).unwrap();
        let text = fs::read(folder.path().join("log")).unwrap();
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        lines
            .map(|line| {
                let line = Line::parse(line.strip_suffix(b"\n").unwrap()).unwrap();
                assert!(line.at.parse::<Timestamp>().is_ok());
                (line.whole, line.text.to_vec())
            })
            .collect()
    }

    #[test]
    fn every_line_is_kept_with_its_time() {
        let long = vec![b'x'; 40_000];
        assert_eq!(
            logged(b"one\n\n two"),
            [(true, b"one".to_vec()), (true, vec![]), (true, b" two".to_vec())]
        );
        let parts = logged(&[&long[..], b"\n"].concat());
        assert_eq!(parts.iter().map(|(whole, _)| *whole).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(parts.into_iter().flat_map(|(_, text)| text).collect::<Vec<_>>(), long);
        assert!(logged(b"").is_empty());
    }

    /// Says line after line, and counts what was taken of it.
    struct Speaker<'a> {
        lines: usize,
        taken: &'a mut usize,
    }

    impl Read for Speaker<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if *self.taken == self.lines {
                return Ok(0);
            }
            *self.taken += 1;
            into[..5].copy_from_slice(b"line\n");
            Ok(5)
        }
    }

    #[test]
    fn a_full_disk_costs_lines_and_not_the_one_who_says_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::open(path.clone()).unwrap();
        log.copy("stdout", &b"before\n"[..]).unwrap();
        let full = File::options().append(true).open("/dev/full").unwrap();
        let real = std::mem::replace(&mut log.written.lock().unwrap().file, full);
        let mut taken = 0;
        log.copy("stdout", Speaker { lines: 300, taken: &mut taken }).unwrap();
        assert_eq!(taken, 300, "it says all that it has to say");
        // As far as there was room.
        append(&path).unwrap().write_all(b"2026-01-02T03:04:05.123456789Z stdout F li").unwrap();
        let mut written = log.written.lock().unwrap();
        (written.file, written.is_torn) = (real, true);
        drop(written);
        log.copy("stdout", &b"after\nlater\n"[..]).unwrap();
        let text = fs::read(&path).unwrap();
        let lines: Vec<String> = text
            .split_inclusive(|byte| *byte == b'\n')
            .map(|line| Line::parse(line.strip_suffix(b"\n").unwrap()).unwrap())
            .map(|line| String::from_utf8(line.text.to_vec()).unwrap())
            .collect();
        let missing =
            "[lines that could not be written are missing here: 300; No space left on device (os error 28)]";
        assert_eq!(lines, ["before", "li", missing, "after", "later"]);
    }

    #[test]
    fn a_new_file_that_could_not_be_begun_is_begun_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::open(path.clone()).unwrap();
        log.written.lock().unwrap().length = LARGEST_FILE + 1;
        fs::rename(&path, path.with_extension("1")).unwrap();
        log.copy("stdout", &b"on\n"[..]).unwrap();
        assert!(fs::read(&path).unwrap().ends_with(b" stdout F on\n"));
    }

    #[test]
    fn a_full_file_gives_way_to_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::open(folder.path().join("log")).unwrap();
        let line = [vec![b'y'; 10_000], b"\n".to_vec()].concat();
        for _ in 0..1100 {
            log.copy("stderr", &line[..]).unwrap();
        }
        let length = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(length("log.1") > LARGEST_FILE && length("log") < LARGEST_FILE);
    }
}
