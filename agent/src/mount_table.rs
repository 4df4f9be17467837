//! The kernel's table of mounts, as this process or another sees it.
//!
//! Invariant: a place is told by its own bytes, whatever they are: a mount whose name is no text hides no other.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Also tells whoever polls it when it has changed.
pub(crate) const TABLE: &str = "/proc/self/mountinfo";

/// One line of the table. What is mounted on something comes after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) id: u64,
    /// The mount that it is mounted on.
    pub(crate) parent: u64,
    /// Major and minor number of the file system.
    pub(crate) device: String,
    pub(crate) at: PathBuf,
    /// What is forbidden there, and the like; with commas between.
    pub(crate) options: String,
    /// Whether what is mounted below it is seen by others too.
    pub(crate) is_shared: bool,
    /// Mounts whose changes it shows: its own group, and the one it follows.
    pub(crate) groups: Vec<u64>,
    /// What the file system calls itself.
    pub(crate) kind: String,
}

pub(crate) fn read() -> io::Result<Vec<Line>> {
    fs::read(TABLE).map(|table| parse(&table))
}

/// The table of another process, which may have mounts of its own.
pub(crate) fn read_of(process: &Path) -> io::Result<Vec<Line>> {
    fs::read(process.join("mountinfo")).map(|table| parse(&table))
}

/// A place as the table has it: links on the way are resolved, and what is at the place itself is not looked at, for
/// it may hang.
pub(crate) fn as_listed(at: &Path) -> PathBuf {
    let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else { return at.to_owned() };
    // What is not there is not in the table either.
    fs::canonicalize(folder).map_or_else(|_| at.to_owned(), |folder| folder.join(name))
}

fn parse(table: &[u8]) -> Vec<Line> {
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `ID PARENT DEVICE ROOT PLACE OPTIONS [shared:N ...] - TYPE SOURCE OPTIONS`
fn line(line: &[u8]) -> Option<Line> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
    let mut words = line.split(|byte| *byte == b' ');
    let (id, parent) = (number(words.next()?)?, number(words.next()?)?);
    let device = text(words.next()?);
    let at = unescaped(words.nth(1)?);
    let options = text(words.next()?);
    let optional: Vec<&[u8]> = words.by_ref().take_while(|word| *word != b"-").collect();
    let is_shared = optional.iter().any(|word| word.starts_with(b"shared:"));
    let group = |word: &&[u8]| {
        word.strip_prefix(b"shared:").or_else(|| word.strip_prefix(b"master:")).and_then(number)
    };
    let groups = optional.iter().filter_map(group).collect();
    let kind = text(words.next().unwrap_or_default());
    Some(Line { id, parent, device, at, options, is_shared, groups, kind })
}

/// Blanks and the like are octal in the table.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.get(..3).and_then(|code| std::str::from_utf8(code).ok());
        match (*first, code.and_then(|code| u8::from_str_radix(code, 8).ok())) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            (byte, _) => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_table_is_read() {
        let table = b"22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
            98 27 0:51 / /mnt/\xff\xfe rw - tmpfs shared:1 rw\n\
            36 35\n\
            99 98 0:52 /sub /mnt/with\\040blank\\134 rw,noatime shared:3 master:7 propagate_from:2 - fuse.midflight midflight rw\n";
        let odd = PathBuf::from(OsString::from_vec(b"/mnt/\xff\xfe".into()));
        let expected = [
            ((22, 27), "0:20", "/sys".into(), "rw,nosuid", vec![7], "sysfs"),
            ((98, 27), "0:51", odd, "rw", vec![], "tmpfs"),
            ((99, 98), "0:52", "/mnt/with blank\\".into(), "rw,noatime", vec![3, 7], "fuse.midflight"),
        ];
        let read = parse(table);
        let read: Vec<_> = read
            .iter()
            .map(|line| {
                let Line { id, parent, device, at, options, groups, kind, .. } = line;
                let number = (*id, *parent);
                (number, device.as_str(), at.clone(), options.as_str(), groups.clone(), kind.as_str())
            })
            .collect();
        assert_eq!(read, expected);
        assert_eq!(parse(table).iter().map(|line| line.is_shared).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn links_on_the_way_are_resolved_and_the_last_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(real.join("real")).unwrap();
        symlink(real.join("real"), real.join("link")).unwrap();
        #[rustfmt::skip]
        let cases = [
            (real.join("real/mount"),    real.join("real/mount")),
            (real.join("link/mount"),    real.join("real/mount")),
            (real.join("link"),          real.join("link")),
            (real.join("none/mount"),    real.join("none/mount")),
            (PathBuf::from("/"),         PathBuf::from("/")),
        ];
        for (at, expected) in cases {
            assert_eq!(as_listed(&at), expected);
        }
    }
}
