//! Writes the folder of a new migration, ready to be filled in.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::manifest::{FILE, is_identity, is_table};

/// What a new migration starts from.
#[derive(Debug, Clone)]
pub struct Scaffold<'a> {
    pub id: &'a str,
    pub release: &'a str,
    pub description: &'a str,
    pub tables: &'a [String],
    pub kind: Kind,
    /// When it was proposed: now.
    pub now: Timestamp,
}

/// How the new migration does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Jq,
    Exec,
}

/// Why no folder was written.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    #[error("{id:?} may hold only letters, digits, '.', '_' and '-'")]
    Id { id: String },

    #[error("{table:?} cannot be the name of a table")]
    Table { table: String },

    #[error("name at least one table")]
    NoTable,

    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Makes the folder `NAME` in `path`, where NAME is the last part of the id.
/// A folder that is there already is left alone.
pub fn scaffold(path: &Path, new: &Scaffold<'_>) -> Result<PathBuf, ScaffoldError> {
    if !is_identity(new.id) {
        return Err(ScaffoldError::Id { id: new.id.to_owned() });
    }
    if new.tables.is_empty() {
        return Err(ScaffoldError::NoTable);
    }
    if let Some(table) = new.tables.iter().find(|table| !is_table(table)) {
        return Err(ScaffoldError::Table { table: table.clone() });
    }
    let name = new.id.rsplit('.').find(|part| !part.is_empty()).unwrap_or(new.id).replace('_', "-");
    let folder = path.join(name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ScaffoldError::Write { path, source }
    };
    fs::create_dir_all(path).map_err(failed(path))?;
    fs::create_dir(&folder).map_err(failed(&folder))?;
    let example =
        new.tables.iter().map(|table| format!("  \"{table}\": [\n    {{\"id\": \"example\"}}\n  ]"));
    let example = format!("{{\n{}\n}}\n", example.collect::<Vec<_>>().join(",\n"));
    for (name, text) in [(FILE, manifest(new)), ("before.json", example.clone()), ("after.json", example)] {
        let path = folder.join(name);
        let mut file = fs::File::create_new(&path).map_err(failed(&path))?;
        file.write_all(text.as_bytes()).map_err(failed(&path))?;
    }
    Ok(folder)
}

fn manifest(new: &Scaffold<'_>) -> String {
    // JSON strings and lists of strings are TOML as well.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let program = match new.kind {
        Kind::Jq => {
            let filters = new.tables.iter().map(|table| format!("{table} = '''\n.\n'''\n"));
            format!(
                "# One filter per table, run on each object. `empty` removes it; into(\"table\") sends it elsewhere.\n\
                 [jq]\n{}",
                filters.collect::<String>()
            )
        }
        Kind::Exec => "# Each row comes as a line {\"table\": …, \"topic\": …, \"id\": …, \"object\": {…}}. Write such a line for\n\
             # each row to put, and one with \"remove\": true instead of the object for each to remove. Others stay.\n\
             [exec]\ncommand = [\"jq\", \"-c\", \"empty\"]\ntimeout_seconds = 600\n"
            .to_owned(),
    };
    format!(
        "id = {}\nrelease = {}\ndescription = {}\nproposed_at = \"{}\"\nafter = []\ntables = {}\n\
         # The most rows it may remove.\nmax_removed = 0\n\n{program}",
        quote(new.id),
        quote(new.release),
        quote(new.description),
        Timestamp::from_second(new.now.as_second()).unwrap_or(new.now),
        serde_json::Value::from(new.tables.to_vec()),
    )
}
