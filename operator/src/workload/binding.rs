//! Puts pods that have no node on one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use midflight_plan::placement::{self, Nowhere, Wishes};

use super::wishes::{node, wishes};
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};

/// Said by pods that wait for a node.
const UNBOUND: &str = "";
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub(crate) struct Binding {
    pods: Objects<Pod>,
    by_node: Index<Pod>,
    nodes: Objects<Node>,
}

pub(crate) struct Look {
    pod: Arc<Pod>,
    wishes: Wishes,
    nodes: Vec<placement::Node>,
}

impl Binding {
    pub(crate) fn new(operator: &mut Operator) -> Binding {
        let pods: Objects<Pod> = operator.objects();
        let by_node = pods.index(|pod| vec![node_of(pod).to_owned()]);
        Binding { by_node, pods, nodes: operator.objects() }
    }
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or(UNBOUND)
}

/// It has ended, and takes no room.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl Controller for Binding {
    const NAME: &'static str = "binding";
    // One at a time, so that each sees where the one before went.
    const WORKERS: usize = 1;
    type Key = Key;
    type Seen = Look;
    type Decision = Result<String, Nowhere>;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.pods, |pod| if node_of(pod) == UNBOUND { vec![Key::of(pod)] } else { Vec::new() });
        let (pods, by_node) = (self.pods.clone(), self.by_node);
        wake.on(&self.nodes, move |_| {
            // Those that nothing fits may fit now.
            let waiting = pods.by(by_node, UNBOUND).unwrap_or_default();
            waiting.iter().map(|pod| Key::of(&**pod)).collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(pod) = self.pods.get(key)? else { return Ok(None) };
        let spec = pod.spec.as_ref();
        let ours = spec
            .and_then(|spec| spec.scheduler_name.as_deref())
            .is_none_or(|name| name == "default-scheduler");
        if node_of(&pod) != UNBOUND || pod.metadata.deletion_timestamp.is_some() || !ours {
            return Ok(None);
        }
        let mut nodes = Vec::new();
        for object in self.nodes.all()? {
            let name = object.metadata.name.clone().unwrap_or_default();
            let bound = self.pods.by(self.by_node, &name)?;
            nodes.push(node(&object, bound.iter().filter(|pod| !is_over(pod)).count()));
        }
        let wishes = spec.map(|spec| wishes(spec, false)).unwrap_or_default();
        Ok(Some(Look { pod, wishes, nodes }))
    }

    fn decide(seen: &Look) -> Result<String, Nowhere> {
        placement::choose(&seen.nodes, &seen.wishes).map(|node| node.name.clone())
    }

    async fn report(&self, seen: &mut Look, decision: &Result<String, Nowhere>) -> Result<(), TurnError> {
        let Err(nowhere) = decision else { return Ok(()) };
        let message = nowhere.to_string();
        let said = |condition: &PodCondition| {
            condition.type_ == "PodScheduled" && condition.message.as_ref() == Some(&message)
        };
        let status = seen.pod.status.as_ref();
        if status.is_some_and(|status| status.conditions.iter().flatten().any(said)) {
            return Ok(());
        }
        let condition = PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some("Unschedulable".into()),
            message: Some(message.clone()),
            last_transition_time: Some(Time(Timestamp::now())),
            ..PodCondition::default()
        };
        let write = self.pods.report(&mut seen.pod, |pod| {
            let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
            conditions.retain(|other| other.type_ != condition.type_);
            conditions.push(condition);
        });
        Ok(write.await?)
    }

    async fn act(&self, seen: Look, decision: Result<String, Nowhere>) -> Result<Next, TurnError> {
        match decision {
            Ok(node) => {
                self.pods.bind(&seen.pod, &node).await?;
                Ok(Next::OnChange)
            }
            // A node may have become free while our view of the pods was behind.
            Err(_) => Ok(Next::After(LOOK_AGAIN)),
        }
    }
}
