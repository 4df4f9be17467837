//! Tells whether a migration still is what it was when it ran.
//!
//! The one invariant: what does not change what a migration does (comments,
//! spaces, line ends, the order of tables) does not change its checksum.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use jaq_core::load::Lexer;
use jaq_core::load::lex::{StrPart, Tok, Token};
use sha2::{Digest, Sha256};

use super::fixture::{AFTER, BEFORE};
use super::manifest::{FILE, Header, Manifest, Program};
use super::native::Native;
use crate::hex::hex;

/// Says by which rules a checksum was made. A log entry keeps it, so a tool
/// with other rules knows that it cannot compare.
pub const CHECKSUM_VERSION: u32 = 1;

/// The longest text of a file that goes into the log; of a longer one its digest does.
const KEPT: usize = 64 << 10;

/// SHA-256 over the normalised migration, in hexadecimal.
#[derive(Clone, PartialEq, Eq)]
pub struct Checksum(String);

impl Checksum {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Collects what counts. Every part has its length before it, so that no two
/// different migrations run together into the same bytes.
struct Parts(Sha256);

impl Parts {
    fn new(header: &Header) -> Parts {
        let mut parts = Parts(Sha256::new());
        parts.add("id", &header.id);
        let mut tables: Vec<&str> = header.tables.iter().map(|table| table.as_str()).collect();
        tables.sort_unstable();
        for table in tables {
            parts.add("table", table);
        }
        parts
    }

    fn add(&mut self, name: &str, value: &str) {
        for text in [name, value] {
            self.0.update((text.len() as u64).to_le_bytes());
            self.0.update(text.as_bytes());
        }
    }

    fn finish(self) -> Checksum {
        Checksum(hex(&self.0.finalize()))
    }
}

/// The text for the log and the checksum, or the file that could not be read.
pub(super) fn of_manifest(manifest: &Manifest) -> Result<(String, Checksum), (PathBuf, io::Error)> {
    let mut parts = Parts::new(&manifest.header);
    let mut source = tables(&manifest.header);
    match &manifest.program {
        Program::Jq { filters, .. } => {
            for (table, filter) in filters {
                parts.add("jq", table.as_str());
                parts.add("filter", &tokens(filter));
                source.push_str(&format!("jq {table}:\n{}\n", lines(filter)));
            }
        }
        Program::Exec { command, .. } => {
            for word in command {
                parts.add("exec", word);
            }
            source.push_str(&format!("exec {command:?}\n"));
            for (name, bytes) in files(&manifest.folder)? {
                parts.add("file", &name);
                match String::from_utf8(bytes) {
                    Ok(text) => {
                        let text = lines(&text);
                        parts.add("text", &text);
                        if text.len() <= KEPT {
                            source.push_str(&format!("file {name}:\n{text}\n"));
                            continue;
                        }
                        source.push_str(&format!(
                            "file {name}: sha256 {}\n",
                            hex(&Sha256::digest(text.as_bytes()))
                        ));
                    }
                    Err(binary) => {
                        let digest = hex(&Sha256::digest(binary.as_bytes()));
                        parts.add("bytes", &digest);
                        source.push_str(&format!("file {name}: sha256 {digest}\n"));
                    }
                }
            }
        }
    }
    Ok((source, parts.finish()))
}

pub(super) fn of_native(native: &Native, header: &Header) -> (String, Checksum) {
    let mut parts = Parts::new(header);
    let revision = native.revision.to_string();
    parts.add("native", &revision);
    (format!("{}compiled in, revision {revision}\n", tables(header)), parts.finish())
}

fn tables(header: &Header) -> String {
    let names: Vec<&str> = header.tables.iter().map(|table| table.as_str()).collect();
    format!("tables {}\n", names.join(", "))
}

/// What a command may use of its own folder: every file below it, by name, but for the manifest, the fixtures and
/// what programs and editors leave there by themselves.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, (PathBuf, io::Error)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        let failed = |error| (at.clone(), error);
        for entry in std::fs::read_dir(&at).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            let last = path.file_name().map(|last| last.to_string_lossy().into_owned()).unwrap_or_default();
            let left = last.starts_with('.') || last.ends_with('~') || last == "__pycache__";
            if left || [FILE, BEFORE, AFTER].contains(&name.as_str()) {
                continue;
            }
            let kind = std::fs::metadata(&path).map_err(|error| (path.clone(), error))?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let bytes = std::fs::read(&path).map_err(|error| (path, error))?;
                found.insert(name, bytes);
            }
        }
    }
    Ok(found)
}

/// Without what editors change by themselves: line ends, spaces before them,
/// empty lines at the end.
fn lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// A jq program as its tokens, one space apart. One that has no tokens was
/// refused when it was loaded.
fn tokens(filter: &str) -> String {
    let mut out = String::new();
    match Lexer::new(filter).lex() {
        Ok(tokens) => tokens.iter().for_each(|token| write_token(&mut out, token)),
        Err(_) => out.push_str(filter),
    }
    out
}

fn write_token(out: &mut String, Token(text, kind): &Token<&str>) {
    match kind {
        Tok::Word | Tok::Var | Tok::Fmt | Tok::Num | Tok::Sym => {
            out.push_str(text);
            out.push(' ');
        }
        Tok::Block(inner) => {
            out.push_str(&text[..1]);
            out.push(' ');
            inner.iter().for_each(|token| write_token(out, token));
        }
        Tok::Str(parts) => {
            out.push('"');
            for part in parts {
                match part {
                    StrPart::Str(text) => out.push_str(text),
                    StrPart::Char(character) => out.extend(character.escape_default()),
                    StrPart::Term(term) => {
                        out.push('\\');
                        write_token(out, term);
                    }
                }
            }
            out.push_str("\" ");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(filter: &str, tables: &str) -> Checksum {
        let text = format!(
            "id = 'a'\nrelease = 'r'\ndescription = ''\nproposed_at = '2018-01-01T00:00:00Z'\n\
             tables = {tables}\n[jq]\nlport = '''\n{filter}'''\n"
        );
        let manifest = Manifest::parse(Path::new("a/migration.toml"), &text).unwrap();
        of_manifest(&manifest).unwrap().1
    }

    #[test]
    fn only_what_counts_changes_it() {
        let base = checksum(r#".a = "x y" | del(.b)"#, "['lport', 'chassis']");
        #[rustfmt::skip]
        let cases = [
            ("spaces",       ".a  =  \"x y\"\n | del( .b )",       "['lport', 'chassis']", true),
            ("line ends",    ".a = \"x y\" |\r\ndel(.b)\r\n",      "['lport', 'chassis']", true),
            ("comment",      "# why\n.a = \"x y\" | del(.b) # so", "['lport', 'chassis']", true),
            ("table order",  r#".a = "x y" | del(.b)"#,            "['chassis', 'lport']", true),
            ("other field",  r#".a = "x y" | del(.c)"#,            "['lport', 'chassis']", false),
            ("in a string",  r#".a = "x  y" | del(.b)"#,           "['lport', 'chassis']", false),
            ("fewer tables", r#".a = "x y" | del(.b)"#,            "['lport']",            false),
        ];
        for (name, filter, tables, same) in cases {
            assert_eq!(checksum(filter, tables) == base, same, "{name}");
        }
    }

    #[test]
    fn a_command_is_all_that_lies_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        std::fs::create_dir_all(own.join("lib")).unwrap();
        let put = |name: &str, bytes: &[u8]| std::fs::write(own.join(name), bytes).unwrap();
        let text = "id = 'a'\nrelease = 'r'\ndescription = ''\nproposed_at = '2018-01-01T00:00:00Z'\n\
                    tables = ['lport']\n[exec]\ncommand = ['./run', '../secret']\n";
        put("run", b"#!/bin/sh\ncat\n");
        put("lib/helper.py", b"x = 1\n");
        put("tool.bin", &[0xff, 0x20, 0x0a]);
        std::fs::write(folder.path().join("secret"), "not ours").unwrap();
        let sum = || {
            let manifest = Manifest::parse(&own.join("migration.toml"), text).unwrap();
            of_manifest(&manifest).unwrap()
        };
        let (source, base) = sum();
        assert!(source.contains("x = 1") && !source.contains("not ours"), "{source}");
        #[rustfmt::skip]
        let cases: [(&str, &str, &[u8], bool); 8] = [
            ("the script",     "run",           b"#!/bin/sh\ntac\n",      false),
            ("its line ends",  "run",           b"#!/bin/sh\r\ncat  \r\n", true),
            ("a helper",       "lib/helper.py", b"x = 2\n",               false),
            ("binary",         "tool.bin",      &[0xfe, 0x20, 0x0a],      false),
            ("binary, spaces", "tool.bin",      &[0xff, 0x0a],            false),
            ("one more",       "more.py",       b"",                      false),
            ("fixture",        "before.json",   b"{}",                    true),
            ("editor's copy",  "run~",          b"old",                   true),
        ];
        for (what, name, bytes, same) in cases {
            let before = std::fs::read(own.join(name)).ok();
            put(name, bytes);
            assert_eq!(sum().1 == base, same, "{what}");
            match before {
                Some(before) => put(name, &before),
                None => std::fs::remove_file(own.join(name)).unwrap(),
            }
        }
        put("large.txt", "line\n".repeat(1 << 20).as_bytes());
        assert!(sum().0.len() < 4096, "the log holds no text of 5 MiB");
    }
}
