//! Tells whether a migration still is what it was when it ran.
//!
//! The one invariant: what does not change what a migration does (comments,
//! spaces, line ends, the order of tables) does not change its checksum.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use jaq_core::load::Lexer;
use jaq_core::load::lex::{StrPart, Tok, Token};
use sha2::{Digest, Sha256};

use super::manifest::{Header, Manifest, Program};
use super::native::Native;

/// Says by which rules a checksum was made. A log entry keeps it, so a tool
/// with other rules knows that it cannot compare.
pub const CHECKSUM_VERSION: u32 = 1;

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
        Checksum(self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
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
            for word in command {
                let Some(text) = script(&manifest.folder, word)? else { continue };
                let text = lines(&text);
                parts.add("file", &text);
                source.push_str(&format!("file {word}:\n{text}\n"));
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

/// The file in the migration's own folder that a word of its command names.
fn script(folder: &Path, word: &str) -> Result<Option<String>, (PathBuf, io::Error)> {
    let path = folder.join(word);
    let ours = Path::new(word).is_relative() && path.is_file();
    if !ours {
        return Ok(None);
    }
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) => Err((path, error)),
    }
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
}
