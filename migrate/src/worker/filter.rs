//! Runs one jq filter on one row.
//!
//! What comes out says where it goes: an object stays in the table and topic of
//! the row it came from, under the id it carries; `into("table")` and
//! `into("table"; "topic")` send it elsewhere; `empty` removes the row.
//!
//! The one invariant: a filter sees its row and nothing else. No clock, no
//! environment, no other input: what `plan` showed is what `apply` does.

use std::fmt;

use jaq_core::data::JustLut;
use jaq_core::load::{self, Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Vars, unwrap_valr};
use jaq_json::{Num, Val};
use serde_json::Value;

use crate::json::{self, MAX_ROW};

type Data = JustLut<Val>;

/// The most that all outputs of one row may have together.
const MAX_OUTPUT: usize = 48 << 20;

/// Functions that would make two runs differ, or speak to the outside.
const IMPURE: [&str; 8] =
    ["env", "now", "localtime", "strflocaltime", "halt", "halt_error", "debug_empty", "stderr_empty"];

/// Definitions that need one of those.
const IMPURE_DEFINITIONS: [&str; 4] = ["halt", "halt_error", "debug", "stderr"];

const PRELUDE: &str = "def into($table): [$table, .]; def into($table; $topic): [$table, $topic, .];";

/// Where a filter stands, besides the object: `$table`, `$topic`, `$id`.
const VARIABLES: [&str; 3] = ["$table", "$topic", "$id"];

/// A compiled jq filter.
pub struct Filter {
    filter: jaq_core::Filter<Data>,
    /// Which of [`VARIABLES`] the program speaks of.
    used: [bool; 3],
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").finish_non_exhaustive()
    }
}

/// The row a filter is run on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub table: &'a str,
    pub topic: &'a str,
    pub id: &'a str,
    pub value: &'a [u8],
}

/// One row that a filter gave out. What is not named is as in the source row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub table: Option<String>,
    pub topic: Option<String>,
    pub id: Option<String>,
    pub value: Vec<u8>,
}

impl Output {
    fn is_in_place(&self) -> bool {
        self.table.is_none() && self.topic.is_none() && self.id.is_none()
    }
}

/// What becomes of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Keep,
    Outputs(Vec<Output>),
}

impl Filter {
    /// Compiles a program, or says where it is wrong.
    pub fn compile(program: &str) -> Result<Filter, String> {
        let pure = |name: &str| !IMPURE.contains(&name);
        let ours = load::parse(PRELUDE, |parser| parser.defs()).expect("the prelude is jq");
        let definitions = jaq_core::defs()
            .chain(jaq_std::defs())
            .chain(jaq_json::defs())
            .filter(|definition| !IMPURE_DEFINITIONS.contains(&definition.name))
            .chain(ours);
        let functions =
            jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs()).filter(|(name, ..)| pure(name));
        let used = VARIABLES.map(|name| program.contains(name));
        let variables = VARIABLES.into_iter().zip(used).filter(|(_, used)| *used).map(|(name, _)| name);

        let arena = Arena::default();
        let modules = Loader::new(definitions)
            .load(&arena, File { code: program, path: () })
            .map_err(|errors| syntax(program, errors))?;
        let filter = Compiler::default()
            .with_funs(functions)
            .with_global_vars(variables)
            .compile(modules)
            .map_err(|errors| undefined(program, errors))?;
        Ok(Filter { filter, used })
    }

    /// What becomes of `row`, or why the filter cannot say.
    pub(super) fn run(&self, row: Row<'_>) -> Result<Answer, String> {
        if row.value.len() > MAX_ROW {
            return Err(format!("{} bytes, and {MAX_ROW} is the most a row may have", row.value.len()));
        }
        let before: Val = serde_json::from_slice(row.value).map_err(|error| format!("not JSON: {error}"))?;
        let had_id = match &before {
            Val::Arr(_) => return Err("a row that is an array cannot be told from a destination".to_owned()),
            Val::Obj(object) => object.contains_key(&Val::utf8_str("id")),
            _ => false,
        };
        let fraction = has_fraction(&before);
        let names = [row.table, row.topic, row.id].into_iter().zip(self.used);
        let variables = names.filter(|(_, used)| *used).map(|(name, _)| Val::from(name.to_owned()));
        let context = Ctx::<Data>::new(&self.filter.lut, Vars::new(variables));

        // Written down before the filter takes the only copy, which it can then edit in place.
        let mut unchanged = Vec::with_capacity(row.value.len());
        write(&mut unchanged, &before)?;

        let mut outputs = vec![];
        let mut size = 0;
        let mut kept = false;
        for after in self.filter.id.run((context, before)).map(unwrap_valr) {
            let mut output = destination(after.map_err(|error| error.to_string())?, row, had_id)?;
            if output.is_in_place() && output.value == unchanged {
                // The object did not change, so neither do its bytes.
                output.value = row.value.to_vec();
                kept = true;
            } else if fraction {
                refuse_lost_digits(row.value, &output.value)?;
            }
            size += output.value.len();
            if size > MAX_OUTPUT {
                return Err(format!("more than {MAX_OUTPUT} bytes came out of one row"));
            }
            outputs.push(output);
        }
        Ok(if kept && outputs.len() == 1 { Answer::Keep } else { Answer::Outputs(outputs) })
    }
}

/// A number of the row that the output still holds must be the same there.
fn refuse_lost_digits(before: &[u8], after: &[u8]) -> Result<(), String> {
    let after: Value = serde_json::from_slice(after).map_err(|error| error.to_string())?;
    match json::inexact_in(before, &after) {
        Some(number) => Err(json::too_long(number)),
        None => Ok(()),
    }
}

/// Whether a number in it is kept as a double.
fn has_fraction(value: &Val) -> bool {
    match value {
        Val::Num(number) => matches!(number, Num::Float(_) | Num::Dec(_)),
        Val::Arr(items) => items.iter().any(has_fraction),
        Val::Obj(object) => object.values().any(has_fraction),
        Val::Null | Val::Bool(_) | Val::BStr(_) | Val::TStr(_) => false,
    }
}

/// Reads where an output is to go, and checks that it may be a row there.
fn destination(after: Val, row: Row<'_>, had_id: bool) -> Result<Output, String> {
    let (table, topic, value) = match after {
        Val::Arr(parts) => match parts.as_slice() {
            [table, value] => (Some(text(table)?), None, value.clone()),
            [table, topic, value] => (Some(text(table)?), Some(text(topic)?), value.clone()),
            _ => return Err("an array came out; a row is an object".to_owned()),
        },
        value => (None, None, value),
    };
    let stays = table.as_ref().is_none_or(|table| table == row.table);
    let id = match &value {
        Val::Obj(object) => match object.get(&Val::utf8_str("id")) {
            Some(id) => Some(text(id).map_err(|_| "the id of an object is a string".to_owned())?),
            None if stays && !had_id => None,
            None => return Err("an object came out without its id".to_owned()),
        },
        _ if stays && !had_id => None,
        other => return Err(format!("{} came out; a row is an object", kind(other))),
    };
    let mut bytes = vec![];
    write(&mut bytes, &value)?;
    if bytes.len() > MAX_ROW {
        return Err(format!("{} bytes came out, and {MAX_ROW} is the most a row may have", bytes.len()));
    }
    Ok(Output { table, topic, id: id.filter(|id| id != row.id), value: bytes })
}

fn text(value: &Val) -> Result<String, String> {
    match value {
        Val::TStr(bytes) => {
            String::from_utf8(bytes.to_vec()).map_err(|_| "a name that is not UTF-8".to_owned())
        }
        other => Err(format!("{} where a name belongs", kind(other))),
    }
}

fn kind(value: &Val) -> &'static str {
    match value {
        Val::Null => "null",
        Val::Bool(_) => "a boolean",
        Val::Num(_) => "a number",
        Val::BStr(_) | Val::TStr(_) => "a string",
        Val::Arr(_) => "an array",
        Val::Obj(_) => "an object",
    }
}

/// Appends the canonical form of a value (see [`crate::json`]).
fn write(out: &mut Vec<u8>, value: &Val) -> Result<(), String> {
    let plain = |out: &mut Vec<u8>, text: &str| out.extend_from_slice(text.as_bytes());
    match value {
        Val::Null => plain(out, "null"),
        Val::Bool(true) => plain(out, "true"),
        Val::Bool(false) => plain(out, "false"),
        Val::Num(number) => write_number(out, number)?,
        Val::TStr(bytes) => write_text(out, bytes)?,
        Val::BStr(_) => return Err("bytes that are not text came out".to_owned()),
        Val::Arr(items) => {
            let mut separator = b'[';
            for item in items.iter() {
                out.push(separator);
                write(out, item)?;
                separator = b',';
            }
            if items.is_empty() {
                out.push(b'[');
            }
            out.push(b']');
        }
        Val::Obj(object) => {
            let mut entries = Vec::with_capacity(object.len());
            for (key, value) in object.iter() {
                let Val::TStr(key) = key else {
                    return Err(format!("{} came out as a key", kind(key)));
                };
                entries.push((&key[..], value));
            }
            entries.sort_unstable_by_key(|(key, _)| *key);
            out.push(b'{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_text(out, key)?;
                out.push(b':');
                write(out, value)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

fn write_text(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "a string that is not UTF-8 came out".to_owned())?;
    json::write_text(out, text);
    Ok(())
}

fn write_number(out: &mut Vec<u8>, number: &Num) -> Result<(), String> {
    let float = match number {
        Num::Int(integer) => return serde_json::to_writer(out, integer).map_err(|error| error.to_string()),
        Num::BigInt(integer) => {
            out.extend_from_slice(integer.to_string().as_bytes());
            return Ok(());
        }
        Num::Float(float) => *float,
        Num::Dec(text) => text.parse().unwrap_or(f64::NAN),
    };
    if !float.is_finite() {
        return Err(format!("{float} came out, which JSON cannot hold"));
    }
    serde_json::to_writer(out, &float).map_err(|error| error.to_string())
}

fn syntax(program: &str, errors: load::Errors<&str, ()>) -> String {
    let at = |part: &str| line(program, part);
    let told = errors.into_iter().next().and_then(|(_, error)| match error {
        load::Error::Io(errors) => {
            errors.first().map(|(part, _)| format!("{}: modules cannot be loaded here", at(part)))
        }
        load::Error::Lex(errors) => {
            errors.first().map(|(expected, part)| format!("{}: expected {}", at(part), expected.as_str()))
        }
        load::Error::Parse(errors) => {
            errors.first().map(|(expected, part)| format!("{}: expected {}", at(part), expected.as_str()))
        }
    });
    told.unwrap_or_else(|| "not a jq program".to_owned())
}

fn undefined(program: &str, errors: jaq_core::compile::Errors<&str, ()>) -> String {
    let first = errors.into_iter().flat_map(|(_, errors)| errors).next();
    match first {
        Some((name, what)) if IMPURE.contains(&name) || IMPURE_DEFINITIONS.contains(&name) => {
            format!(
                "{}: {} {name} is not for migrations: two runs could differ",
                line(program, name),
                what.as_str()
            )
        }
        Some((name, what)) => format!("{}: there is no {} {name}", line(program, name), what.as_str()),
        None => "not a jq program".to_owned(),
    }
}

fn line(program: &str, part: &str) -> String {
    let start = load::span(program, part).start.min(program.len());
    let before = program.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count();
    let near: String =
        program.get(start..).unwrap_or("").chars().take_while(|c| *c != '\n').take(30).collect();
    format!("line {} at {near:?}", before + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, value: &str) -> Result<Answer, String> {
        let row = Row { table: "lport", topic: "t", id: "a", value: value.as_bytes() };
        Filter::compile(program)?.run(row)
    }

    fn output(value: &str) -> Output {
        Output { table: None, topic: None, id: None, value: value.as_bytes().to_vec() }
    }

    #[test]
    fn says_what_becomes_of_a_row() {
        let elsewhere =
            Output { table: Some("lsubnet".into()), id: Some("s".into()), ..output(r#"{"id":"s"}"#) };
        let topical = Output { topic: Some("u".into()), ..output(r#"{"id":"a"}"#) };
        let topical = Output { table: Some("lport".into()), ..topical };
        let renamed = Output { id: Some("b".into()), ..output(r#"{"id":"b"}"#) };
        #[rustfmt::skip]
        let cases = [
            ("same",          ".",                          r#"{ "id":"a" }"#,  Answer::Keep),
            ("set as it was", ".x = 1",                     r#"{"x":1, "id":"a"}"#, Answer::Keep),
            ("sorted",        ".b = 1 | .a = [1.50, \"ü\\n\"]", r#"{"id":"a"}"#, Answer::Outputs(vec![output(r#"{"a":[1.5,"ü\n"],"b":1,"id":"a"}"#)])),
            ("removed",       "empty",                      r#"{"id":"a"}"#,    Answer::Outputs(vec![])),
            ("renamed",       ".id = \"b\"",                r#"{"id":"a"}"#,    Answer::Outputs(vec![renamed])),
            ("split",         "., ({id: \"s\"} | into(\"lsubnet\"))", r#"{ "id":"a"}"#, Answer::Outputs(vec![output(r#"{ "id":"a"}"#), elsewhere])),
            ("topic",         "into($table; \"u\")",        r#"{"id":"a"}"#,    Answer::Outputs(vec![topical])),
            ("variables",     ".x = $topic + $id",          r#"{"id":"a"}"#,    Answer::Outputs(vec![output(r#"{"id":"a","x":"ta"}"#)])),
            ("counter",       ". + 1",                      "17",               Answer::Outputs(vec![output("18")])),
            ("float",         ".x = 1.0",                   r#"{"id":"a","x":1}"#, Answer::Outputs(vec![output(r#"{"id":"a","x":1.0}"#)])),
            ("empty list",    ".x = [] | .y = {}",          r#"{"id":"a"}"#,    Answer::Outputs(vec![output(r#"{"id":"a","x":[],"y":{}}"#)])),
            ("digits kept",   ".y = 1",                     r#"{"id":"a","x":[0.30000000000000004,18446744073709551615]}"#, Answer::Outputs(vec![output(r#"{"id":"a","x":[0.30000000000000004,18446744073709551615],"y":1}"#)])),
            ("left as it is", ".",                          r#"{"id":"a","x":18446744073709551617}"#, Answer::Keep),
            ("long one gone", "del(.x)",                    r#"{"id":"a","x":18446744073709551617}"#, Answer::Outputs(vec![output(r#"{"id":"a"}"#)])),
        ];
        for (name, program, value, expected) in cases {
            assert_eq!(run(program, value), Ok(expected), "{name}");
        }
    }

    #[test]
    fn refuses_what_cannot_be_a_row() {
        #[rustfmt::skip]
        let cases = [
            ("broken",       ".",             r#"{"id":"#,      "not JSON: EOF"),
            ("trailing",     ".",             r#"{"id":"a"} 1"#, "not JSON: trailing"),
            ("not a number", ".x = nan",      r#"{"id":"a"}"#,  "NaN came out"),
            ("no id",        "del(.id)",      r#"{"id":"a"}"#,  "without its id"),
            ("number id",    ".id = 7",       r#"{"id":"a"}"#,  "id of an object is a string"),
            ("a string",     "\"x\"",         r#"{"id":"a"}"#,  "a string came out"),
            ("an array",     "[.]",           r#"{"id":"a"}"#,  "an array came out"),
            ("its own error", "error(\"no\")", r#"{"id":"a"}"#, "no"),
            ("wrong type",   ".id + 1",       r#"{"id":"a"}"#,  "cannot calculate"),
            ("digits lost",  ".y = 1",        r#"{"id":"a","x":18446744073709551617}"#, "the number 18446744073709551617 has more digits"),
            ("moved along",  "{id: \"b\", x} | into(\"t\")", r#"{"id":"a","x":0.1000000000000000055}"#, "the number 0.1000000000000000055"),
        ];
        for (name, program, value, expected) in cases {
            let told = run(program, value).unwrap_err();
            assert!(told.contains(expected), "{name}: {told}");
        }
    }

    #[test]
    fn refuses_programs_that_are_not_pure_jq() {
        #[rustfmt::skip]
        let cases = [
            ("syntax",     ".a |",              "expected"),
            ("unknown",    "\nfrobnicate",      "line 2 at \"frobnicate\": there is no"),
            ("clock",      "now",               "not for migrations"),
            ("environment", "env",              "not for migrations"),
            ("halts",      "halt",              "not for migrations"),
            ("input",      "input",             "there is no"),
            ("modules",    "import \"a\" as a; .", "modules cannot be loaded"),
        ];
        for (name, program, expected) in cases {
            let told = Filter::compile(program).map(|_| ()).unwrap_err();
            assert!(told.contains(expected), "{name}: {told}");
        }
    }
}
