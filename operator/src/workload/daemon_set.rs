//! DaemonSets: one pod on every node that the set is for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use midflight_plan::daemon_set::{self as plan, Action, Counts, Observed, Plan, Strategy};
use midflight_plan::placement::{self, Host};
use sha2::{Digest, Sha256};

use super::wishes::{node, wishes};
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};

/// Says of a pod from which template it was made.
const REVISION: &str = "controller-revision-hash";

/// How long pods stay whose node is gone: an agent that lives registers it again within the time of a lease.
const STAYS_FOR: SignedDuration = SignedDuration::from_secs(60);

pub(crate) struct DaemonSets {
    sets: Objects<DaemonSet>,
    pods: Objects<Pod>,
    by_owner: Index<Pod>,
    nodes: Objects<Node>,
    /// Since when nodes of pods were seen to be gone. Whoever begins anew waits once more.
    gone: Mutex<HashMap<String, Timestamp>>,
}

pub(crate) struct Look {
    set: Arc<DaemonSet>,
    pods: BTreeMap<String, Arc<Pod>>,
    observed: Observed,
    /// When a pod that is ready becomes available, or one has stayed long enough.
    look_at: Option<Timestamp>,
}

impl DaemonSets {
    pub(crate) fn new(operator: &mut Operator) -> DaemonSets {
        let pods: Objects<Pod> = operator.objects();
        let by_owner = pods.index(|pod| owner(pod).map(|owner| owner.uid.clone()).into_iter().collect());
        DaemonSets {
            sets: operator.objects(),
            by_owner,
            pods,
            nodes: operator.objects(),
            gone: Mutex::default(),
        }
    }

    /// Nodes of these pods that are gone since a moment, each with when that is over.
    fn gone(
        &self,
        pods: &[Arc<Pod>],
        nodes: &[placement::Node],
        now: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        let mut since = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|gone, _| !nodes.iter().any(|node| node.name == *gone));
        let of = |pod: &Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let away = pods.iter().filter_map(of).filter(|name| !nodes.iter().any(|node| node.name == *name));
        let until = away.map(|node| {
            let since = *since.entry(node.clone()).or_insert(now);
            (node, since.saturating_add(STAYS_FOR).unwrap_or(Timestamp::MAX))
        });
        until.filter(|(_, until)| *until > now).collect()
    }
}

/// The set that a pod belongs to.
fn owner(pod: &Pod) -> Option<&OwnerReference> {
    let mut owners = pod.owner_references().iter();
    owners.find(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet")
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemon-set";
    type Key = Key;
    type Seen = Look;
    type Decision = Plan;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.sets, |set| vec![Key::of(set)]);
        wake.on(&self.pods, |pod| {
            let namespace = pod.namespace().unwrap_or_default();
            owner(pod).map(|owner| Key::new(&namespace, &owner.name)).into_iter().collect()
        });
        let sets = self.sets.clone();
        wake.on(&self.nodes, move |_| {
            sets.all().unwrap_or_default().iter().map(|set| Key::of(&**set)).collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(set) = self.sets.get(key)? else { return Ok(None) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let template = set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
        let wishes = wishes(&template, true);
        let nodes: Vec<placement::Node> = self.nodes.all()?.iter().map(|object| node(object, 0)).collect();
        let those = |host: Host| -> BTreeSet<String> {
            let those = nodes.iter().filter(|node| placement::host(node, &wishes) == host);
            those.map(|node| node.name.clone()).collect()
        };
        let wanted = those(Host::Takes);
        let own = self.pods.by(self.by_owner, &set.uid().unwrap_or_default())?;
        let settle = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or_default();
        let (settle, now) = (SignedDuration::from_secs(settle.into()), Timestamp::now());
        let mut pods: Vec<Arc<Pod>> = own.into_iter().collect();
        pods.sort_by_key(|pod| (pod.creation_timestamp().map(|time| time.0), pod.name_any()));
        let settles = pods.iter().filter_map(|pod| ready_since(pod)?.checked_add(settle).ok());
        let gone = self.gone(&pods, &nodes, now);
        let look_at = settles.filter(|at| *at > now).chain(gone.values().copied()).min();
        let observed = Observed {
            revision: revision(&set),
            strategy: strategy(&set, wanted.len()),
            nodes: wanted,
            keep: those(Host::Keeps),
            gone: gone.into_keys().collect(),
            pods: pods.iter().map(|pod| seen(pod, settle, now)).collect(),
        };
        let pods = pods.into_iter().map(|pod| (pod.name_any(), pod)).collect();
        Ok(Some(Look { set, pods, observed, look_at }))
    }

    fn decide(seen: &Look) -> Plan {
        plan::decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Plan) -> Result<(), TurnError> {
        let generation = seen.set.metadata.generation;
        let counts = decision.counts;
        let write = self.sets.report(&mut seen.set, |set| {
            let status = set.status.get_or_insert_default();
            tell(status, counts);
            status.observed_generation = generation;
        });
        Ok(write.await?)
    }

    async fn act(&self, seen: Look, decision: Plan) -> Result<Next, TurnError> {
        for action in decision.actions {
            match action {
                Action::Create { node } => {
                    self.pods.create(&pod(&seen.set, &seen.observed.revision, &node)).await?;
                }
                Action::Delete { pod } => {
                    if let Some(pod) = seen.pods.get(&pod) {
                        self.pods.delete(pod).await?;
                    }
                }
            }
        }
        Ok(match seen.look_at {
            Some(at) => Next::After(Timestamp::now().duration_until(at).try_into().unwrap_or_default()),
            None => Next::OnChange,
        })
    }
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0))
}

fn seen(pod: &Pod, settle: SignedDuration, now: Timestamp) -> plan::Pod {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ready = ready_since(pod);
    let settled = |since: Timestamp| since.checked_add(settle).is_ok_and(|at| at <= now);
    plan::Pod {
        name: pod.name_any(),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        revision: pod.labels().get(REVISION).cloned().unwrap_or_default(),
        ready: ready.is_some(),
        available: ready.is_some_and(settled),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        ended: matches!(phase, Some("Succeeded" | "Failed")),
    }
}

fn strategy(set: &DaemonSet, nodes: usize) -> Strategy {
    let wanted = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if wanted.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete")) {
        return Strategy::OnDelete;
    }
    let limit = wanted.and_then(|strategy| strategy.rolling_update.as_ref()?.max_unavailable.as_ref());
    let count = match limit {
        Some(IntOrString::Int(count)) => usize::try_from(*count).unwrap_or_default(),
        Some(IntOrString::String(share)) => {
            let percent = share.trim_end_matches('%').parse::<usize>().unwrap_or_default();
            (nodes * percent).div_ceil(100)
        }
        None => 1,
    };
    Strategy::RollingUpdate { max_unavailable: count.max(1) }
}

/// The same template has the same revision, whoever asks.
pub(crate) fn revision(set: &DaemonSet) -> String {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let text = serde_json::to_vec(&template).expect("a template that was read can be written");
    Sha256::digest(&text).iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

fn tell(status: &mut DaemonSetStatus, counts: Counts) {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    status.desired_number_scheduled = number(counts.desired);
    status.current_number_scheduled = number(counts.current);
    status.number_misscheduled = number(counts.misscheduled);
    status.number_ready = number(counts.ready);
    status.updated_number_scheduled = Some(number(counts.updated));
    status.number_available = Some(number(counts.available)).filter(|count| *count > 0);
    let missing = counts.desired.saturating_sub(counts.available);
    status.number_unavailable = Some(number(missing)).filter(|count| *count > 0);
}

/// A pod of the set for a node. Its name is decided by set, template, node and what was there before, so that a turn
/// whose answer was lost makes no second one.
fn pod(set: &DaemonSet, revision: &str, node: &str) -> Pod {
    let spec = set.spec.clone().unwrap_or_default();
    let template = spec.template.metadata.unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    labels.insert(REVISION.into(), revision.into());
    labels.insert("pod-template-generation".into(), set.metadata.generation.unwrap_or_default().to_string());
    let unique = Sha256::digest(format!("{node} {revision} {}", set.uid().unwrap_or_default()));
    let unique: String = unique.iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    let stem: String = set.name_any().chars().take(200).collect();
    let mut inner = spec.template.spec.unwrap_or_default();
    inner.node_name = Some(node.to_owned());
    tolerate(&mut inner);
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("{stem}-{unique}")),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: template.annotations,
            owner_references: set.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(inner),
        status: None,
    }
}

/// What every pod of a DaemonSet lives with, as Kubernetes writes it into them.
fn tolerate(spec: &mut PodSpec) {
    let all = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    let tolerations = spec.tolerations.get_or_insert_default();
    tolerations.extend(all.map(|(key, effect)| Toleration {
        key: Some(format!("node.kubernetes.io/{key}")),
        operator: Some("Exists".into()),
        effect: Some(effect.into()),
        ..Toleration::default()
    }));
}
