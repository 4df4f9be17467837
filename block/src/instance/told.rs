//! What an instance manager answered, for people and for programs.
//!
//! Invariant: both are shown the same.

use serde::Serialize;

use super::{names::Kind, proto};
use crate::{backup::command as backup, engine::control::Flaw, epoch::Epoch};

/// What an instance manager answered.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Told {
    Version(Version),
    Instances(Vec<Shown>),
    Instance(Shown),
    Event(Event),
    Status(EngineStatus),
    Switched(Switched),
    Backup(backup::Told),
    Done { done: bool },
}

#[derive(Debug, Clone, Serialize)]
pub struct Range {
    pub(super) oldest: u32,
    pub(super) newest: u32,
}

#[derive(Debug, Clone, Serialize)]
pub struct Version {
    pub(super) version: String,
    pub(super) api: Range,
    pub(super) wire: Range,
    pub(super) disk: Range,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    kind: Kind,
    name: String,
    volume: String,
    epoch: String,
    state: String,
    address: String,
    binary: String,
    pid: u32,
    restarts: u64,
    suspended: bool,
    why: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub(super) change: &'static str,
    pub(super) instance: Option<Shown>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineStatus {
    pub(super) epoch: String,
    pub(super) serving: bool,
    pub(super) suspended: bool,
    pub(super) size: u64,
    pub(super) snapshots: Vec<String>,
    pub(super) in_service: u32,
    pub(super) members: u32,
    pub(super) attached: bool,
    pub(super) copied_bytes: u64,
    pub(super) waits_for: Vec<String>,
    pub(super) trouble: String,
    pub(super) damaged: Vec<Flaw>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Switched {
    pub(super) epoch: String,
    pub(super) pause_us: u64,
    pub(super) longest_wait_us: u64,
    pub(super) replayed: u64,
    pub(super) drained: bool,
}

fn in_words(flaw: &Flaw) -> String {
    let end = if flaw.repaired { ", and was copied anew" } else { "" };
    format!("{}: {}{end}", flaw.replica, flaw.what)
}

impl From<proto::Instance> for Shown {
    fn from(instance: proto::Instance) -> Shown {
        let kind = match instance.kind() {
            proto::Kind::Engine => Kind::Engine,
            proto::Kind::Replica | proto::Kind::Unspecified => Kind::Replica,
        };
        let state = instance.state().as_str_name().trim_start_matches("STATE_").to_lowercase();
        Shown {
            kind,
            state,
            name: instance.name,
            volume: instance.volume,
            epoch: Epoch::from_bits(instance.epoch).to_string(),
            address: instance.address,
            binary: instance.binary,
            pid: instance.pid,
            restarts: instance.restarts,
            suspended: instance.suspended,
            why: instance.why,
        }
    }
}

impl Shown {
    const HEADER: [&str; 7] = ["KIND", "NAME", "VOLUME", "EPOCH", "STATE", "ADDRESS", "WHY"];

    fn row(&self) -> [String; 7] {
        let cells = [&self.name, &self.volume, &self.epoch, &self.state, &self.address, &self.why];
        let [name, volume, epoch, state, address, why] = cells.map(Clone::clone);
        [self.kind.to_string(), name, volume, epoch, state, address, why]
    }
}

impl Told {
    /// For people: rows of cells, the first one the header.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let header = || vec![Shown::HEADER.map(str::to_owned).to_vec()];
        let pairs = |pairs: Vec<(&str, String)>| {
            pairs.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
        };
        let range = |range: &Range| format!("{}-{}", range.oldest, range.newest);
        match self {
            Told::Instances(all) => {
                header().into_iter().chain(all.iter().map(|shown| shown.row().to_vec())).collect()
            }
            Told::Instance(shown) => header().into_iter().chain([shown.row().to_vec()]).collect(),
            Told::Event(event) => {
                let row = event.instance.as_ref().map(|shown| shown.row().to_vec()).unwrap_or_default();
                vec![[vec![event.change.to_owned()], row].concat()]
            }
            Told::Version(version) => pairs(vec![
                ("version", version.version.clone()),
                ("api", range(&version.api)),
                ("wire", range(&version.wire)),
                ("disk", range(&version.disk)),
            ]),
            Told::Status(status) => pairs(vec![
                ("epoch", status.epoch.clone()),
                ("serving", status.serving.to_string()),
                ("suspended", status.suspended.to_string()),
                ("size", status.size.to_string()),
                ("snapshots", status.snapshots.join(" ")),
                ("in service", format!("{} of {}", status.in_service, status.members)),
                ("attached", status.attached.to_string()),
                ("copied", format!("{} bytes", status.copied_bytes)),
                ("waits for", status.waits_for.join(" ")),
                ("trouble", status.trouble.clone()),
                ("damaged", status.damaged.iter().map(in_words).collect::<Vec<_>>().join("; ")),
            ]),
            Told::Switched(switched) => pairs(vec![
                ("epoch", switched.epoch.clone()),
                ("pause", format!("{} us", switched.pause_us)),
                ("longest wait", format!("{} us", switched.longest_wait_us)),
                ("replayed", switched.replayed.to_string()),
                ("drained", switched.drained.to_string()),
            ]),
            Told::Backup(told) => told.rows(),
            Told::Done { .. } => vec![vec!["done".into()]],
        }
    }
}
