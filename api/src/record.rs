//! The record of a volume: the one authority on who may write to it.
//!
//! Whoever changes it sends the resourceVersion it has read, under its own
//! term. What replicas store of it are hints.
//!
//! The invariant: the term and the member version only grow, and a replica that
//! missed a write is never again in service without a rebuild. The rules below hold it
//! at the API, whoever writes.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::epoch::Term;
use crate::names::{EngineName, Id, NodeName, ReplicaName};
use crate::wire::{rule, words};

words! {
    /// What a replica may be used for, as the record has it.
    pub enum MemberMode {
        /// In service: it has every acknowledged write.
        ReadWrite = "rw",
        /// Takes writes while it is rebuilt.
        WriteOnly = "wo",
        /// Out of service: it may have missed writes.
        #[default]
        Error = "err",
    }
}

words! {
    /// How far a change of the engine is.
    ///
    /// ```text
    /// preparing ──▶ switching ──▶ done
    ///     └─▶ aborted    └──▶ switching, back, under the next term
    /// ```
    pub enum OperationPhase {
        /// The new engine is started and connected; nothing has changed yet.
        #[default]
        Preparing = "preparing",
        /// The new engine has the term; whoever finds this goes forward.
        Switching = "switching",
        /// The new engine serves.
        Done = "done",
        /// The new engine was given up before it had the term.
        Aborted = "aborted",
    }
}

/// The record of the volume of the same name: who may write to it. Kept by instance managers, not by hand.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "midflight.dev",
    version = "v1alpha1",
    kind = "VolumeRecord",
    plural = "volumerecords",
    shortname = "vrec",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    doc = "The record of the volume of the same name: who may write to it. Kept by instance managers, not by hand."
)]
#[kube(
    printcolumn = r#"{"name":"Term","type":"integer","description":"Rises each time the volume changes hands","jsonPath":".spec.term"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Engine","type":"string","description":"Engine that may write","jsonPath":".spec.engine.name"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Node","type":"string","description":"Node of that engine","jsonPath":".spec.engine.nodeID"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Members","type":"integer","description":"Version of the members","priority":1,"jsonPath":".spec.memberVersion"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Operation","type":"string","description":"How far a change of the engine is","jsonPath":".spec.operation.phase"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[schemars(extend("x-kubernetes-validations" = [
    rule("self.term >= oldSelf.term", "the term of a volume never goes down; read the record again, another engine has the volume"),
    rule("self.term > oldSelf.term || (has(self.engine) ? [self.engine] : []) == (has(oldSelf.engine) ? [oldSelf.engine] : [])",
         "another engine needs a higher term; raise it in the same write"),
    rule("self.memberVersion >= oldSelf.memberVersion", "memberVersion never goes down; read the record again"),
    rule("self.memberVersion > oldSelf.memberVersion || (has(self.members) ? self.members : []) == (has(oldSelf.members) ? oldSelf.members : [])",
         "a change of members needs a higher memberVersion; raise it in the same write"),
    rule("!has(oldSelf.members) || !oldSelf.members.exists(m, m.mode == 'rw') || (has(self.members) && self.members.exists(m, m.mode == 'rw'))",
         "the last member in service holds the newest data and cannot leave; put another in service first"),
    rule("!has(oldSelf.members) || !oldSelf.members.exists(m, m.mode == 'rw') || !has(self.members) || self.members.all(m, m.mode != 'rw' || oldSelf.members.exists(o, o.replica == m.replica && o.mode != 'err') || (self.term > oldSelf.term && has(self.salvaged) && self.salvaged == m.replica && (!has(oldSelf.salvaged) || oldSelf.salvaged != self.salvaged)))",
         "a replica that was out of service may have missed writes; make it wo, rebuild it, then make it rw"),
]))]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecordSpec {
    /// Rises each time another engine, or the same one after a loss, is to have the volume.
    pub term: Term,
    /// Engine that may write in this term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EngineSeat")]
    pub engine: Option<EngineSeat>,
    /// Frontend from which that engine takes requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FrontendSeat")]
    pub frontend: Option<FrontendSeat>,
    /// Replicas of the volume and what each may be used for.
    #[serde(default)]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["replica"]))]
    pub members: Vec<Member>,
    /// Rises with every change of `members`.
    #[schemars(range(min = 0))]
    pub member_version: i64,
    /// Change of the engine that goes on or was the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Operation")]
    pub operation: Option<Operation>,
    /// Replica put into service with older data, as somebody asked for it and none with all data was left; empty once it serves.
    #[serde(default, skip_serializing_if = "ReplicaName::is_empty")]
    pub salvaged: ReplicaName,
}

/// An engine and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EngineSeat {
    /// Name of the Engine.
    #[schemars(length(min = 1))]
    pub name: EngineName,
    /// Node it runs on; that node's token may change this record.
    #[serde(rename = "nodeID")]
    #[schemars(length(min = 1))]
    pub node_id: NodeName,
}

/// A frontend and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrontendSeat {
    /// Changes with every attachment. An engine refuses a frontend with another one.
    #[serde(rename = "attachID")]
    #[schemars(length(min = 1))]
    pub attach_id: Id,
    /// Node the volume is attached to; that node's token may change this record.
    #[serde(rename = "nodeID")]
    #[schemars(length(min = 1))]
    pub node_id: NodeName,
}

/// A replica and what it may be used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// Name of the Replica.
    #[schemars(length(min = 1))]
    pub replica: ReplicaName,
    /// Node it is on; that node's token may change this record.
    #[serde(rename = "nodeID")]
    #[schemars(length(min = 1))]
    pub node_id: NodeName,
    /// What it may be used for.
    pub mode: MemberMode,
}

/// A change of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Chosen by whoever begins it. Steps of the same operation may be repeated.
    #[schemars(length(min = 1))]
    pub id: Id,
    /// How far it is.
    pub phase: OperationPhase,
    /// Engine that had the volume when it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EngineSeat")]
    pub from: Option<EngineSeat>,
    /// Engine that is to have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EngineSeat")]
    pub to: Option<EngineSeat>,
}

/// Where a record names nodes, as JSON pointers in which `*` is every element
/// of a list. The token of a node may change the records that name it.
pub const NODES_OF_RECORD: &[&str] = &[
    "/spec/engine/nodeID",
    "/spec/frontend/nodeID",
    "/spec/members/*/nodeID",
    "/spec/operation/from/nodeID",
    "/spec/operation/to/nodeID",
];

impl VolumeRecordSpec {
    /// Whether the token of this node may change the record.
    pub fn names(&self, node: &NodeName) -> bool {
        let operation =
            self.operation.iter().flat_map(|operation| operation.from.iter().chain(&operation.to));
        let engines = self.engine.iter().chain(operation).map(|seat| &seat.node_id);
        let frontend = self.frontend.iter().map(|seat| &seat.node_id);
        let members = self.members.iter().map(|member| &member.node_id);
        engines.chain(frontend).chain(members).any(|named| named == node)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_is_named_exactly_where_the_pointers_say() {
        let seat = |node: &str| json!({ "name": "e", "nodeID": node });
        let record = json!({
            "term": 1, "memberVersion": 1, "engine": seat("a"),
            "frontend": { "attachID": "x", "nodeID": "b" },
            "members": [{ "replica": "r", "nodeID": "c", "mode": "rw" }, { "replica": "s", "nodeID": "d", "mode": "wo" }],
            "operation": { "id": "o", "phase": "switching", "from": seat("e"), "to": seat("f") },
        });
        let mut pointed = Vec::new();
        for pointer in NODES_OF_RECORD {
            let steps: Vec<&str> = pointer.trim_start_matches("/spec/").split('/').collect();
            follow(&record, &steps, &mut pointed);
        }
        assert_eq!(pointed, ["a", "b", "c", "d", "e", "f"]);
        let spec: VolumeRecordSpec = serde_json::from_value(record).unwrap();
        assert!(pointed.into_iter().all(|node| spec.names(&node.into())));
        assert!(!spec.names(&"g".into()));
    }

    fn follow(value: &Value, steps: &[&str], found: &mut Vec<String>) {
        match steps {
            [] => found.extend(value.as_str().map(str::to_owned)),
            ["*", rest @ ..] => {
                value.as_array().into_iter().flatten().for_each(|one| follow(one, rest, found));
            }
            [step, rest @ ..] => follow(&value[*step], rest, found),
        }
    }

    #[test]
    fn a_member_in_error_says_so() {
        let member = Member { replica: "r".into(), node_id: "n".into(), mode: MemberMode::Error };
        assert_eq!(serde_json::to_value(member).unwrap()["mode"], "err");
    }
}
