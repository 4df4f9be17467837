//! `midflight migrate plan`: the real run without the switch.

use std::{collections::BTreeSet, path::PathBuf};

use clap::Args;
use midflight_migrate::{diff::Sample, migration::log, run};
use serde_json::{Map, Value};

use super::{
    target::{Adopt, Target, explain},
    tell::{Teller, count, size},
};
use crate::{
    failure::{Exit, Failure},
    output::{Answer, Paint, table},
    session::Session,
};

/// Characters of a sample that are shown to people.
const SAMPLE: usize = 160;

/// Show what `apply` would do: the real run, without the switch
///
/// Exits with 3 if `apply` would be refused now.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// Also write the plan to this new file (mode 0600), for `apply --plan`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    adopt: Adopt,
    #[command(flatten)]
    target: Target,
}

impl Plan {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.target.open_as(self.adopt.in_settings(self.target.settings())).await?;
        let plan = database.plan(&|event| teller.tell(&event)).await.map_err(|error| explain(&error))?;
        if let Some(path) = &self.out {
            plan.write(path).map_err(|error| explain(&error))?;
        }
        session.answer(&Shown(&plan))?;
        if plan.refused_because.is_empty() {
            return Ok(());
        }
        Err(Failure::with(
            Exit::Blocked,
            format!("`apply` would be refused: {} named above", count(plan.refused_because.len(), "reason")),
            "settle what is named, and plan again; nothing was changed",
        ))
    }
}

#[derive(serde::Serialize)]
#[serde(transparent)]
struct Shown<'a>(&'a run::Plan);

impl Answer for Shown<'_> {
    fn to_table(&self, paint: Paint) -> String {
        let plan = self.0;
        let mut text = format!("{} ({})\n", plan.store, plan.server);
        if plan.is_empty() {
            text += &format!("Nothing is pending: {} applied.\n", count(plan.already_applied, "migration"));
        } else {
            text += &steps(plan, paint);
        }
        for (title, lines) in [
            ("Lost once it is final", &plan.destructive),
            ("Rules broken", &plan.violated),
            ("Warnings", &plan.warnings),
            ("Would be refused because", &plan.refused_because),
        ] {
            if !lines.is_empty() {
                text += &format!("\n{}\n", paint.bad(title));
                text += &lines.iter().map(|line| format!("  {line}\n")).collect::<String>();
            }
        }
        text
    }
}

fn steps(plan: &run::Plan, paint: Paint) -> String {
    let mut text = format!("\n{}\n", paint.bold("Steps"));
    for migration in &plan.migrations {
        text += &format!(
            "  {} ({}): {}\n    {} rows looked at, {} removed, {} ms\n",
            migration.id,
            migration.release,
            migration.description,
            migration.rows,
            migration.removed,
            migration.milliseconds
        );
    }
    for step in &plan.automatic {
        text += &format!("  automatic: {step}\n");
    }
    let rows = plan.tables.iter().filter(|(_, t)| t.added + t.changed + t.removed > 0).map(|(name, t)| {
        [
            name.to_string(),
            t.added.to_string(),
            t.changed.to_string(),
            t.removed.to_string(),
            t.unchanged.to_string(),
        ]
    });
    text += &format!("\n{}", table(["TABLE", "ADDED", "CHANGED", "REMOVED", "UNCHANGED"], rows));
    let samples: Vec<(&str, &Sample)> = plan
        .tables
        .iter()
        .filter(|(name, _)| !log::is_reserved(name))
        .flat_map(|(name, table)| table.samples.iter().map(|sample| (name.as_str(), sample)))
        .collect();
    if !samples.is_empty() {
        text += &format!("\n{}\n", paint.bold("Samples"));
        for (name, sample) in samples {
            text += &format!("  {name} {}\n", sample.row);
            for line in difference(sample) {
                text += &format!("    {line}\n");
            }
        }
    }
    let needs = &plan.needs;
    text + &format!(
        "\nTakes about {:.1} s; the server needs {} more until it is final, the backup at most {}.\n",
        needs.run_seconds_about,
        size(needs.server_bytes),
        size(needs.backup_bytes_at_most)
    )
}

/// What is another in a row: only the fields that differ, or the whole where it came, went or is no object.
fn difference(sample: &Sample) -> Vec<String> {
    let object = |text: &Option<String>| {
        text.as_deref().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
    };
    let mut lines = Vec::new();
    if let (Some(before), Some(after)) = (object(&sample.before), object(&sample.after)) {
        fields("", &before, &after, &mut lines);
    }
    if lines.is_empty() {
        let whole = [("-", &sample.before), ("+", &sample.after)];
        lines.extend(
            whole
                .iter()
                .filter_map(|(mark, value)| value.as_ref().map(|value| format!("{mark} {}", shorten(value)))),
        );
    }
    lines
}

fn fields(within: &str, before: &Map<String, Value>, after: &Map<String, Value>, lines: &mut Vec<String>) {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let path = format!("{within}{name}");
        match (before.get(name), after.get(name)) {
            (Some(was), Some(is)) if was == is => {}
            (Some(Value::Object(was)), Some(Value::Object(is))) => {
                fields(&format!("{path}."), was, is, lines);
            }
            (was, is) => {
                lines.extend(was.map(|value| format!("- {path}: {}", shorten(&value.to_string()))));
                lines.extend(is.map(|value| format!("+ {path}: {}", shorten(&value.to_string()))));
            }
        }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SAMPLE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_show_only_what_differs() {
        let text = |text: &str| Some(text.to_owned());
        #[rustfmt::skip]
        let cases = [
            ("added",   text(r#"{"id":"1","a":{"b":1}}"#), text(r#"{ "id": "1", "a": {"b": 1}, "label": "x" }"#), vec![r#"+ label: "x""#]),
            ("nested",  text(r#"{"id":"1","a":{"b":1}}"#), text(r#"{"id":"1","a":{"b":2}}"#),                    vec!["- a.b: 1", "+ a.b: 2"]),
            ("gone",    text(r#"{"id":"1","name":"x"}"#),  text(r#"{"id":"1"}"#),                                vec![r#"- name: "x""#]),
            ("row",     None,                              text(r#"{"id":"1"}"#),                                vec![r#"+ {"id":"1"}"#]),
            ("spaces",  text("{}"),                        text("{ }"),                                          vec!["- {}", "+ { }"]),
            ("counter", text("1"),                         text("2"),                                            vec!["- 1", "+ 2"]),
        ];
        for (name, before, after, expected) in cases {
            let sample = Sample { row: "r".to_owned(), before, after };
            assert_eq!(difference(&sample), expected, "{name}");
        }
    }
}
