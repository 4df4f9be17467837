//! Compares each Longhorn and Fluid kind with upstream's own definition.
//!
//! The invariant: every field that we define is upstream's, with upstream's
//! type, unless it stands in [`ADDED`] with the seed it comes from or the reason for it.

use crate::support::ours;
use crate::upstream::{definitions, fixtures_are_there};
use midflight_api::{System, system_of};
use serde_json::Value;

/// Fields, enum values (`=`) and columns (`#`) that upstream does not have. Each names its seed; one that no seed
/// asks for gives the reason it is needed instead.
#[rustfmt::skip]
const ADDED: &[(&str, &str, &str)] = &[
    ("Volume",                   "spec.targetNodeID",                          "seed 004"),
    ("Volume",                   "status.currentTargetNodeID",                 "seed 004"),
    ("Volume",                   "spec.frontend=nbd",                          "DESIGN 4"),
    ("Volume",                   "status.engineChange",                        "the pause of an upgrade, which upstream does not measure"),
    ("Volume",                   "status.targetMove",                          "the pause of a move, which upstream does not measure"),
    ("Engine",                   "status.rebuiltBytes",                        "what a rebuild copied, which upstream does not say"),
    ("Engine",                   "spec.targetNodeID",                          "seed 004, InstanceSpec"),
    ("Engine",                   "spec.frontend=nbd",                          "DESIGN 4"),
    ("Engine",                   "status.targetIP",                            "seed 004, InstanceStatus"),
    ("Engine",                   "status.storageTargetIP",                     "seed 004, InstanceStatus"),
    ("Engine",                   "status.targetPort",                          "seed 004, InstanceStatus"),
    ("Engine",                   "status.currentTargetNodeID",                 "seed 004, InstanceStatus"),
    ("Engine",                   "status.targetInstanceReplacementCreated",    "seed 004, InstanceStatus"),
    ("Replica",                  "spec.targetNodeID",                          "seed 004, InstanceSpec"),
    ("Replica",                  "status.targetIP",                            "seed 004, InstanceStatus"),
    ("Replica",                  "status.storageTargetIP",                     "seed 004, InstanceStatus"),
    ("Replica",                  "status.targetPort",                          "seed 004, InstanceStatus"),
    ("Replica",                  "status.currentTargetNodeID",                 "seed 004, InstanceStatus"),
    ("Replica",                  "status.targetInstanceReplacementCreated",    "seed 004, InstanceStatus"),
    ("InstanceManager",          "status.instanceEngines.*.status.standbyTargetPortStart",  "seed 004, InstanceProcessStatus"),
    ("InstanceManager",          "status.instanceEngines.*.status.standbyTargetPortEnd",    "seed 004, InstanceProcessStatus"),
    ("InstanceManager",          "status.instanceReplicas.*.status.standbyTargetPortStart", "seed 004, InstanceProcessStatus"),
    ("InstanceManager",          "status.instanceReplicas.*.status.standbyTargetPortEnd",   "seed 004, InstanceProcessStatus"),
    ("InstanceManager",          "status.instanceEngines.*.spec.binary",       "which image a v1 process is of"),
    ("InstanceManager",          "status.instanceReplicas.*.spec.binary",      "which image a v1 process is of"),
    ("InstanceManager",          "status.instanceEngines.*.status.restarts",   "an engine that ends again and again"),
    ("InstanceManager",          "status.instanceReplicas.*.status.restarts",  "an engine that ends again and again"),
    ("InstanceManager",          "status.dataFormatVersion",                   "whether copies can be read after an upgrade; an EngineImage has it"),
    ("InstanceManager",          "status.dataFormatMinVersion",                "whether copies can be read after an upgrade; an EngineImage has it"),
    ("Node",                     "spec.dataEngineUpgradeRequested",            "seed 004"),
    ("DataEngineUpgradeManager", "spec.paused",                                "pause, which upstream lacks"),
    ("DataEngineUpgradeManager", "spec.maxParallelNodes",                      "nodes in parallel, which upstream lacks"),
    ("DataEngineUpgradeManager", "spec.dataEngine=v1",                         "refused by a rule that says what to do"),
    ("DataEngineUpgradeManager", "status.observedGeneration",                  "kstatus"),
    ("DataEngineUpgradeManager", "status.conditions",                          "kstatus"),
    ("DataEngineUpgradeManager", "status.since",                               "deadlines, which upstream lacks"),
    ("DataEngineUpgradeManager", "status.upgradeNodes.*.failures",             "retries, which upstream lacks"),
    ("DataEngineUpgradeManager", "status.upgradeNodes.*.retryAt",              "retries, which upstream lacks"),
    ("DataEngineUpgradeManager", "status.upgradeNodes.*.startedAt",            "how long a node takes"),
    ("DataEngineUpgradeManager", "status.upgradeNodes.*.completedAt",          "how long a node takes"),
    ("DataEngineUpgradeManager", "status.upgradeNodes.*.longestPauseUs",       "the pause of clients, which upstream does not measure"),
    ("DataEngineUpgradeManager", "status.longestPauseUs",                      "the pause of clients, which upstream does not measure"),
    ("DataEngineUpgradeManager", "#Paused",                                    "pause, which upstream lacks"),
    ("NodeDataEngineUpgrade",    "spec.dataEngine=v1",                         "refused by a rule that says what to do"),
    ("NodeDataEngineUpgrade",    "status.observedGeneration",                  "kstatus"),
    ("NodeDataEngineUpgrade",    "status.conditions",                          "kstatus"),
    ("NodeDataEngineUpgrade",    "status.since",                               "deadlines, which upstream lacks"),
    ("NodeDataEngineUpgrade",    "status.failure",                             "the way back, which upstream lacks"),
    ("NodeDataEngineUpgrade",    "status.previousImage",                       "the way back, which upstream lacks"),
    ("NodeDataEngineUpgrade",    "status.returnedFrom",                        "where the way back began"),
    ("NodeDataEngineUpgrade",    "status.volumes.*.temporaryNodeID",           "where each volume is served meanwhile"),
    ("NodeDataEngineUpgrade",    "status.volumes.*.pauseUs",                   "the pause of clients, which upstream does not measure"),
    ("NodeDataEngineUpgrade",    "status.volumes.*.longestWaitUs",             "the pause of clients, which upstream does not measure"),
    ("NodeDataEngineUpgrade",    "status.volumes.*.rebuiltBytes",              "what was copied to its replica, which upstream does not say"),
    ("NodeDataEngineUpgrade",    "status.volumes.*.rebuiltBeforeBytes",        "where that count begins"),
    ("JuiceFSRuntime",           "spec.fuse.updateStrategy",                   "seed 003"),
];

/// Kinds that no release of upstream has.
#[rustfmt::skip]
const OURS_ALONE: &[(&str, &str)] = &[
    ("Image",        "seed 001"),
    ("VolumeRecord", "DESIGN 6"),
];

/// The file that has upstream's definition of a kind.
fn fixture_of(kind: &str) -> &'static str {
    match kind {
        "Dataset" | "JuiceFSRuntime" => "fluid-crds.yaml",
        "DataEngineUpgradeManager" | "NodeDataEngineUpgrade" => "longhorn-crds-pr3282-dataengineupgrade.yaml",
        _ => "longhorn-crds.yaml",
    }
}

#[test]
fn every_kind_is_upstreams() {
    if !fixtures_are_there() {
        return;
    }
    let mut differences = Differences::default();
    for our in ours() {
        let kind = our["spec"]["names"]["kind"].as_str().unwrap();
        if OURS_ALONE.iter().any(|(alone, _)| *alone == kind) {
            continue;
        }
        let fixture = definitions(fixture_of(kind));
        let their = fixture.iter().find(|their| their["metadata"]["name"] == our["metadata"]["name"]);
        let their = their.unwrap_or_else(|| panic!("{} has no {kind}", fixture_of(kind)));
        differences.of_kind(kind, our, their);
    }
    for (kind, path, reason) in ADDED {
        if !differences.used.contains(&(kind.to_string(), path.to_string())) {
            differences.found.push(format!("{kind} {path}: listed as added ({reason}), but it is not"));
        }
    }
    assert!(differences.found.is_empty(), "{}", differences.found.join("\n"));
}

#[test]
fn a_kind_is_a_systems_exactly_if_a_release_of_it_has_it() {
    if !fixtures_are_there() {
        return;
    }
    let releases = [("longhorn-crds.yaml", System::Longhorn), ("fluid-crds.yaml", System::Fluid)];
    for our in ours() {
        let name = our["metadata"]["name"].as_str().unwrap();
        let has = |fixture: &str| definitions(fixture).iter().any(|their| their["metadata"]["name"] == name);
        let system = releases.iter().find(|(fixture, _)| has(fixture)).map(|(_, system)| *system);
        assert_eq!(system_of(name), system, "{name}");
    }
}

#[derive(Default)]
struct Differences {
    kind: String,
    found: Vec<String>,
    used: Vec<(String, String)>,
}

impl Differences {
    fn of_kind(&mut self, kind: &str, our: &Value, their: &Value) {
        self.kind = kind.into();
        self.equal("scope", &our["spec"]["scope"], &their["spec"]["scope"]);
        self.equal("names", &our["spec"]["names"], &their["spec"]["names"]);
        let version = our["spec"]["versions"][0]["name"].as_str().unwrap();
        let theirs = their["spec"]["versions"].as_array().unwrap();
        let theirs = theirs.iter().find(|their| their["name"] == version).expect("upstream has our version");
        let ours = &our["spec"]["versions"][0];
        self.equal("storage", &ours["storage"], &theirs["storage"]);
        self.equal("subresources", &ours["subresources"], &theirs["subresources"]);
        self.columns(ours, theirs);
        self.schema(
            "",
            &schema_without_metadata(&ours["schema"]["openAPIV3Schema"]),
            &theirs["schema"]["openAPIV3Schema"],
        );
    }

    fn columns(&mut self, ours: &Value, theirs: &Value) {
        let ours = ours["additionalPrinterColumns"].as_array().unwrap();
        let shared: Vec<&Value> = ours
            .iter()
            .filter(|column| !self.added(&format!("#{}", column["name"].as_str().unwrap())))
            .collect();
        let theirs: Vec<&Value> = theirs["additionalPrinterColumns"].as_array().unwrap().iter().collect();
        if shared != theirs {
            self.found.push(format!("{} columns: ours {shared:#?}, upstream's {theirs:#?}", self.kind));
        }
    }

    fn schema(&mut self, path: &str, our: &Value, their: &Value) {
        self.equal(&format!("{path} type"), &our["type"], &their["type"]);
        // Upstream writes int64 on its strings of digits, which an API server warns of as unrecognised.
        if !their["format"].is_null() && their["type"] != "string" {
            self.equal(&format!("{path} format"), &our["format"], &their["format"]);
        }
        if their["format"] == "date-time" {
            self.equal(&format!("{path} format"), &our["format"], &their["format"]);
        }
        if their["nullable"] == true {
            self.equal(&format!("{path} nullable"), &our["nullable"], &their["nullable"]);
        }
        if let (Some(ours), Some(theirs)) = (our["enum"].as_array(), their["enum"].as_array()) {
            for value in ours.iter().filter(|value| !theirs.contains(value)) {
                let value = value.as_str().unwrap();
                if !self.added(&format!("{path}={value}")) {
                    self.found
                        .push(format!("{} {path}: upstream does not have the value {value:?}", self.kind));
                }
            }
        }
        for (name, field) in our["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match their["properties"].get(name) {
                Some(theirs) => self.schema(&path, field, theirs),
                None if self.added(&path) => {}
                None => self.found.push(format!("{} {path}: upstream does not have it", self.kind)),
            }
        }
        for (step, inner) in [("items", "[]"), ("additionalProperties", "*")] {
            if !our[step].is_null() {
                self.schema(&format!("{path}.{inner}"), &our[step], &their[step]);
            }
        }
    }

    fn equal(&mut self, what: &str, our: &Value, their: &Value) {
        if our != their {
            self.found.push(format!("{} {what}: ours {our}, upstream's {their}", self.kind));
        }
    }

    fn added(&mut self, path: &str) -> bool {
        let listed = ADDED.iter().any(|(kind, added, _)| *kind == self.kind && *added == path);
        if listed {
            self.used.push((self.kind.clone(), path.into()));
        }
        listed
    }
}

fn schema_without_metadata(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| !["apiVersion", "kind", "metadata"].contains(&name.as_str()));
    }
    schema
}
