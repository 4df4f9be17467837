//! What Kubernetes' objects say of where pods may run, in the words of `plan`.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, PodSpec};
use kube::ResourceExt;
use midflight_plan::placement::{self, Effect, Operator, Requirement, Taint, Toleration, Wishes};

/// What a node takes if it does not say.
const ROOM: usize = 110;

pub(super) fn wishes(spec: &PodSpec, insists: bool) -> Wishes {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|selector| selector.node_selector_terms.as_slice()).unwrap_or_default();
    let terms = terms.iter().map(|term| {
        let labels = term.match_expressions.iter().flatten().map(|one| requirement(one, false));
        let fields = term.match_fields.iter().flatten().map(|one| requirement(one, true));
        labels.chain(fields).collect()
    });
    let tolerations = spec.tolerations.iter().flatten().map(|toleration| Toleration {
        key: toleration.key.clone().filter(|key| !key.is_empty()),
        value: match toleration.operator.as_deref() {
            Some("Exists") => None,
            _ => Some(toleration.value.clone().unwrap_or_default()),
        },
        effect: toleration.effect.as_deref().and_then(effect),
    });
    Wishes {
        selector: spec.node_selector.clone().unwrap_or_default(),
        terms: terms.collect(),
        tolerations: tolerations.collect(),
        insists,
    }
}

fn requirement(one: &NodeSelectorRequirement, is_field: bool) -> Requirement {
    let operator = match one.operator.as_str() {
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        // The API lets through no other.
        _ => Operator::In,
    };
    Requirement {
        label: (!is_field).then(|| one.key.clone()),
        operator,
        values: one.values.clone().unwrap_or_default(),
    }
}

fn effect(name: &str) -> Option<Effect> {
    match name {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

pub(super) fn node(node: &Node, pods: usize) -> placement::Node {
    let spec = node.spec.as_ref();
    let taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten()).filter_map(|taint| {
        let value = taint.value.clone().unwrap_or_default();
        Some(Taint { key: taint.key.clone(), value, effect: effect(&taint.effect)? })
    });
    let status = node.status.as_ref();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let room = status.and_then(|status| status.allocatable.as_ref()?.get("pods")?.0.parse().ok());
    placement::Node {
        name: node.name_any(),
        labels: node.labels().clone(),
        taints: taints.collect(),
        ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        cordoned: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
        room: room.unwrap_or(ROOM),
        pods,
    }
}
