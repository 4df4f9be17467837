//! What a container says, line by line, in the form that Kubernetes' runtimes keep it.
//!
//! ```text
//! 2026-01-02T03:04:05.123456789Z stdout F a whole line
//! 2026-01-02T03:04:05.123456790Z stderr P the beginning of a very long line
//! ```
//!
//! The one invariant: lines of one stream are in the order in which they were said, and a file ends at a line's end.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// Longer lines are written in parts.
const LONGEST_LINE: u64 = 16 << 10;
/// A file that has grown to this becomes the old one, and the one before that goes.
const LARGEST_FILE: u64 = 10 << 20;

/// The file that is written, and how long it is.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: Mutex<(File, u64)>,
}

impl Log {
    pub(super) fn open(path: PathBuf) -> io::Result<Log> {
        let file = append(&path)?;
        let length = file.metadata()?.len();
        Ok(Log { path, file: Mutex::new((file, length)) })
    }

    /// Writes down what a stream says until it ends.
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
            self.write(stream, if whole { "F" } else { "P" }, &line)?;
        }
    }

    fn write(&self, stream: &str, tag: &str, line: &[u8]) -> io::Result<()> {
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = format!("{:.9} {stream} {tag} ", Timestamp::now()).into_bytes();
        text.extend_from_slice(line);
        text.push(b'\n');
        if held.1 > LARGEST_FILE {
            fs::rename(&self.path, self.path.with_extension("1"))?;
            *held = (append(&self.path)?, 0);
        }
        held.0.write_all(&text)?;
        held.1 += text.len() as u64;
        Ok(())
    }
}

fn append(path: &PathBuf) -> io::Result<File> {
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
