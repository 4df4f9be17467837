//! How results look: a table for people, JSON or YAML for programs.

use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

use crate::args::Format;

/// Something a command can answer with.
pub(crate) trait Answer: Serialize {
    /// For people. Ends with a line break.
    fn to_table(&self, paint: Paint) -> String;
}

pub(crate) fn write(
    out: &mut dyn Write,
    format: Format,
    answer: &impl Answer,
    paint: Paint,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => answer.to_table(paint),
        Format::Json => serde_json::to_string_pretty(answer).context("encode the result")? + "\n",
        Format::Yaml => serde_saphyr::to_string(answer).context("encode the result")?,
    };
    ignore_closed_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// `midflight crds | head` is no failure.
pub(crate) fn ignore_closed_pipe(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write the result to stdout"),
    }
}

/// A plain table without lines, as kubectl prints it.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let rows = std::iter::once(header.map(str::to_owned)).chain(rows);
    columns(&rows.map(Vec::from).collect::<Vec<_>>())
}

/// An answer of a part that says itself how it stands in rows.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct InRows<'a, T> {
    pub(crate) told: &'a T,
    #[serde(skip)]
    pub(crate) rows: Vec<Vec<String>>,
}

impl<T: Serialize> Answer for InRows<'_, T> {
    fn to_table(&self, _: Paint) -> String {
        columns(&self.rows)
    }
}

/// Rows of cells, each column as wide as its widest cell.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("   ").trim_end();
        text.push('\n');
    }
    text
}

/// A path as a shell reads it.
pub(crate) fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// The two largest units, as kubectl prints ages.
pub(crate) fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long something is expected to take.
pub(crate) fn about(seconds: u64) -> String {
    match i64::try_from(seconds).unwrap_or(i64::MAX) {
        0 => "less than a second".to_owned(),
        seconds => format!("about {}", duration(seconds)),
    }
}

/// A moment to the second; what is no moment stays as it is.
pub(crate) fn moment(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        Err(_) => text.to_owned(),
    }
}

/// A pause; one that was not measured is a dash.
pub(crate) fn milliseconds(us: i64) -> String {
    if us == 0 { "-".to_owned() } else { format!("{:.2} ms", us as f64 / 1000.0) }
}

/// Bytes in the largest unit that fits.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = bytes * 10 / unit;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// Colours, where someone can see them and does not mind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    pub(crate) on: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.with("31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Greeting {
        hello: &'static str,
    }

    impl Answer for Greeting {
        fn to_table(&self, paint: Paint) -> String {
            format!("hello {}\n", paint.good(self.hello))
        }
    }

    fn written(format: Format, on: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, format, &Greeting { hello: "world" }, Paint { on }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format_says_the_same() {
        assert_eq!(written(Format::Table, false), "hello world\n");
        assert_eq!(written(Format::Table, true), "hello \x1b[32mworld\x1b[0m\n");
        assert_eq!(written(Format::Json, true), "{\n  \"hello\": \"world\"\n}\n");
        assert_eq!(written(Format::Yaml, true), "hello: world\n");
    }

    #[test]
    fn tables_are_aligned_without_trailing_blanks() {
        let text = table(["NAME", "AGE"], [["a".into(), "1s".into()], ["longer".into(), "2m".into()]]);
        assert_eq!(text, "NAME     AGE\na        1s\nlonger   2m\n");
    }

    #[test]
    fn paths_can_be_pasted_into_a_shell() {
        for (path, text) in [("/a/b-c_1.d", "/a/b-c_1.d"), ("/a b", "'/a b'"), ("/it's", r"'/it'\''s'")] {
            assert_eq!(quoted(path), text);
        }
    }

    #[test]
    fn moments_are_told_to_the_second() {
        for (text, told) in [
            ("2026-11-17T10:00:00.123456789Z", "2026-11-17T10:00:00Z"),
            ("2026-11-17T10:00:00Z", "2026-11-17T10:00:00Z"),
            ("", ""),
        ] {
            assert_eq!(moment(text), told);
        }
    }

    #[test]
    fn durations_and_sizes_read_well() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (61, "1m1s"), (7260, "2h1m"), (90_000, "1d1h"), (-5, "0s")]
        {
            assert_eq!(duration(seconds), text);
        }
        for (bytes, text) in [(12, "12 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
