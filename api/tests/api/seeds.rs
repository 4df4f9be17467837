//! What the seeds say of the API, and the page that follows every point of them.
//!
//! The invariant: a field or state that a seed names is in our schemas, and
//! `docs/seeds.md` names only files and tests that exist.

use serde_json::Value;

use crate::support::{self, schema_of};

/// Fields that seeds 001, 003 and 004 name, with their types.
#[rustfmt::skip]
const FIELDS: &[(&str, &str, &str)] = &[
    ("Image", "spec.instanceManagerImage", "string"),
    ("Image", "status.ownerID", "string"),
    ("Image", "status.state", "string"),
    ("Image", "status.nodeDeploymentMap.*", "boolean"),
    ("Setting", "value", "string"),
    ("JuiceFSRuntime", "spec.fuse.updateStrategy", "string"),
    ("JuiceFSRuntime", "spec.fuse.image", "string"),
    ("JuiceFSRuntime", "spec.fuse.imageTag", "string"),
    ("DataEngineUpgradeManager", "spec.dataEngine", "string"),
    ("DataEngineUpgradeManager", "spec.nodes.[]", "string"),
    ("DataEngineUpgradeManager", "status.ownerID", "string"),
    ("DataEngineUpgradeManager", "status.instanceManagerImage", "string"),
    ("DataEngineUpgradeManager", "status.state", "string"),
    ("DataEngineUpgradeManager", "status.message", "string"),
    ("DataEngineUpgradeManager", "status.upgradingNode", "string"),
    ("DataEngineUpgradeManager", "status.upgradeNodes.*", "object"),
    ("NodeDataEngineUpgrade", "spec.nodeID", "string"),
    ("NodeDataEngineUpgrade", "spec.dataEngine", "string"),
    ("NodeDataEngineUpgrade", "spec.instanceManagerImage", "string"),
    ("NodeDataEngineUpgrade", "spec.dataEngineUpgradeManager", "string"),
    ("NodeDataEngineUpgrade", "status.ownerID", "string"),
    ("NodeDataEngineUpgrade", "status.volumes.*", "object"),
    ("NodeDataEngineUpgrade", "status.state", "string"),
    ("NodeDataEngineUpgrade", "status.message", "string"),
    ("Node", "spec.dataEngineUpgradeRequested", "boolean"),
    ("Volume", "spec.targetNodeID", "string"),
    ("Volume", "status.currentTargetNodeID", "string"),
    ("Engine", "spec.targetNodeID", "string"),
    ("Engine", "status.targetIP", "string"),
    ("Engine", "status.storageTargetIP", "string"),
    ("Engine", "status.targetPort", "integer"),
    ("Engine", "status.currentTargetNodeID", "string"),
    ("Engine", "status.targetInstanceReplacementCreated", "boolean"),
    ("InstanceManager", "status.instanceEngines.*.status.standbyTargetPortStart", "integer"),
    ("InstanceManager", "status.instanceEngines.*.status.standbyTargetPortEnd", "integer"),
];

/// Values that seeds name, by field.
#[rustfmt::skip]
const STATES: &[(&str, &str, &[&str])] = &[
    ("Image", "status.state", &["deploying", "deployed", "error", "unknown"]),
    ("JuiceFSRuntime", "spec.fuse.updateStrategy", &["OnDelete", "OnIdle"]),
    ("DataEngineUpgradeManager", "status.state", &["undefined", "initializing", "upgrading", "completed", "error"]),
    ("NodeDataEngineUpgrade", "status.state", &[
        "undefined", "initializing", "failing-replicas", "switching-over", "upgrading-instance-manager",
        "switching-back", "rebuilding-replica", "finalizing", "completed",
    ]),
    ("Engine", "status.currentState", &["suspended"]),
    ("Volume", "status.robustness", &["healthy", "degraded"]),
    ("Volume", "status.state", &["attached", "detached"]),
    ("InstanceManager", "status.currentState", &["stopped", "running"]),
];

#[test]
fn every_field_of_a_seed_is_in_the_schema() {
    for (kind, path, kind_of_value) in FIELDS {
        assert_eq!(field(kind, path)["type"], *kind_of_value, "{kind} {path}");
    }
}

#[test]
fn every_state_of_a_seed_is_a_value() {
    for (kind, path, states) in STATES {
        let values =
            field(kind, path)["enum"].as_array().unwrap_or_else(|| panic!("{kind} {path} has no values"));
        for state in *states {
            assert!(values.iter().any(|value| value == state), "{kind} {path} lacks {state}");
        }
    }
}

#[test]
fn the_page_of_the_seeds_names_what_exists() {
    let page = support::read("docs/seeds.md");
    let rows: Vec<Vec<&str>> = page.lines().filter_map(row).collect();
    assert!(rows.len() >= 150, "only {} points", rows.len());
    let mut wrong = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let [id, _, files, tests] = row[..] else {
            wrong.push(format!("a point with {} columns: {row:?}", row.len()));
            continue;
        };
        if rows[..index].iter().any(|earlier| earlier[0] == id) {
            wrong.push(format!("{id} stands there twice"));
        }
        wrong.extend(
            named(files)
                .filter(|file| !support::root().join(file).exists())
                .map(|file| format!("{id}: no {file}")),
        );
        wrong.extend(
            named(tests).filter(|test| !test_exists(test)).map(|test| format!("{id}: no test {test}")),
        );
        for cell in [files, tests] {
            if cell != "open" && named(cell).next().is_none() {
                wrong.push(format!("{id}: neither open nor a name: {cell:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The cells of a line that is a point of a seed, such as `| 004.12 | … | … | … |`.
fn row(line: &str) -> Option<Vec<&str>> {
    let cells: Vec<&str> =
        line.strip_prefix("| 00")?.strip_suffix(" |")?.split(" | ").map(str::trim).collect();
    cells[0].contains('.').then_some(cells)
}

/// The names between back-ticks.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether `FILE::FUNCTION` is there.
fn test_exists(test: &str) -> bool {
    let Some((file, function)) = test.rsplit_once("::") else { return false };
    std::fs::read_to_string(support::root().join(file))
        .is_ok_and(|text| text.contains(&format!("fn {function}(")))
}

fn field(kind: &str, path: &str) -> &'static Value {
    path.split('.').fold(schema_of(kind), |schema, step| match step {
        "[]" => &schema["items"],
        "*" => &schema["additionalProperties"],
        name => &schema["properties"][name],
    })
}
