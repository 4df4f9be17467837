//! Runs the areas, several scenarios at once, and counts what passed, in the words of cargo's own tests.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use midflight_tests::kinds;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::areas;
use crate::golden::{self, Golden};
use crate::run::{self, Stage};
use crate::scenario::{Scenario, Step};

/// Scenarios under way at the same time.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Embedded,
    Real,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Embedded => "embedded",
            Server::Real => "real",
        }
    }
}

pub(crate) struct Report {
    chosen: Vec<String>,
    recording: bool,
    passed: usize,
    failed: Vec<String>,
}

impl Report {
    pub(crate) fn new(chosen: Vec<String>, recording: bool) -> Self {
        Report { chosen, recording, passed: 0, failed: Vec::new() }
    }

    /// Tells every chosen scenario to that server.
    pub(crate) async fn server(&mut self, stage: &Arc<Stage>) -> anyhow::Result<()> {
        kinds::install(&stage.admin).await?;
        for (area, scenarios) in areas::all() {
            let scenarios =
                scenarios.into_iter().filter(|story| self.is_chosen(area, story)).collect::<Vec<_>>();
            self.area(stage, area, scenarios).await?;
        }
        Ok(())
    }

    fn is_chosen(&self, area: &str, story: &Scenario) -> bool {
        let name = format!("{area}: {}", story.name);
        self.chosen.is_empty() || self.chosen.iter().any(|part| name.contains(part.as_str()))
    }

    async fn area(&mut self, stage: &Arc<Stage>, area: &str, scenarios: Vec<Scenario>) -> anyhow::Result<()> {
        let server = stage.server;
        let mut golden = golden::read(area);
        let recording = self.recording && server == Server::Real;
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = JoinSet::new();
        for story in scenarios {
            let (stage, slots) = (stage.clone(), slots.clone());
            running.spawn(async move {
                let _slot = slots.acquire_owned().await;
                let records = run::tell(&stage, &story, &namespace()).await;
                (story, records)
            });
        }
        while let Some(done) = running.join_next().await {
            let (story, records) = done?;
            let name = format!("{}: {area}: {}", server.name(), story.name);
            let faults = match records {
                Err(error) => vec![format!("{error:#}")],
                Ok(records) if recording => {
                    golden.insert(story.name.to_owned(), records);
                    Vec::new()
                }
                Ok(records) => hold(server, &story, &golden, &records),
            };
            self.count(&name, &faults);
        }
        if recording {
            golden::write(area, &golden)?;
        }
        Ok(())
    }

    fn count(&mut self, name: &str, faults: &[String]) {
        if faults.is_empty() {
            self.passed += 1;
            line(&format!("test {name} ... ok"));
        } else {
            line(&format!("test {name} ... FAILED\n    {}", faults.join("\n    ")));
            self.failed.push(name.to_owned());
        }
    }

    /// The last word; whether all is well.
    pub(crate) fn finish(mut self) -> bool {
        self.failed.sort();
        for name in &self.failed {
            line(&format!("failed: {name}"));
        }
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        line(&format!("\ntest result: {verdict}. {} passed; {} failed", self.passed, self.failed.len()));
        self.failed.is_empty()
    }
}

/// Where the records are not what the golden file has.
fn hold(server: Server, story: &Scenario, golden: &Golden, records: &[Value]) -> Vec<String> {
    let Some(wanted) = golden.get(story.name) else {
        return vec![
            "not in the golden file: record it from the real server (MIDFLIGHT_RECORD=1)".to_owned(),
        ];
    };
    if wanted.len() != records.len() {
        return vec![format!(
            "{} records in the golden file, {} steps: record it again",
            wanted.len(),
            records.len()
        )];
    }
    let steps = story.steps.iter().zip(wanted.iter().zip(records));
    steps
        .enumerate()
        .flat_map(|(index, (step, (wanted, got)))| {
            let differs =
                server == Server::Embedded && matches!(step, Step::Call(call) if call.differs.is_some());
            let found = if differs { Vec::new() } else { golden::differences(wanted, got) };
            found.into_iter().map(move |fault| format!("step {index}{fault}"))
        })
        .collect()
}

/// A name that no other scenario of this or an earlier run has.
fn namespace() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(NEXT.fetch_add(1, Ordering::Relaxed));
    format!("scn{:012x}", hasher.finish() & 0xffff_ffff_ffff)
}

#[expect(clippy::print_stdout, reason = "this is the output of a test program")]
pub(crate) fn line(text: &str) {
    println!("{text}");
}
