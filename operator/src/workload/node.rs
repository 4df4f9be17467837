//! Calls nodes lost whose agents are not heard of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_plan::node_life::{self, Action, Observed};

use crate::controller::{Controller, Key, News, Next, Objects, Operator, Tone, TurnError, Wake};

const LEASES: &str = "kube-node-lease";
const UNKNOWN: &str = "Unknown";

pub(crate) struct NodeLife {
    nodes: Objects<Node>,
    leases: Objects<Lease>,
    /// The newest renewal of each node, and when it was seen first. Whoever begins anew sees it then.
    renewals: Mutex<HashMap<String, (Timestamp, Timestamp)>>,
}

pub(crate) struct Look {
    node: Arc<Node>,
    observed: Observed,
}

impl NodeLife {
    pub(crate) fn new(operator: &mut Operator) -> NodeLife {
        NodeLife { nodes: operator.objects(), leases: operator.objects(), renewals: Mutex::default() }
    }

    /// When this renewal was seen first.
    fn seen(&self, node: &str, renewed: Timestamp, now: Timestamp) -> Timestamp {
        let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        let known = renewals.entry(node.to_owned()).or_insert((renewed, now));
        if known.0 != renewed {
            *known = (renewed, now);
        }
        known.1
    }

    fn forget(&self, node: &str) {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

impl Controller for NodeLife {
    const NAME: &'static str = "node-life";
    type Key = Key;
    type Seen = Look;
    type Decision = Action;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.nodes, |node| vec![Key::of(node)]);
        wake.on(&self.leases, |lease| match lease.namespace().as_deref() {
            Some(LEASES) => vec![Key::new("", &lease.name_any())],
            _ => Vec::new(),
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(node) = self.nodes.get(key)? else {
            self.forget(&key.name);
            return Ok(None);
        };
        let now = Timestamp::now();
        let lease = self.leases.get(&Key::new(LEASES, &key.name))?;
        let lease = lease.and_then(|lease| {
            let spec = lease.spec.as_ref()?;
            let holds = SignedDuration::from_secs(spec.lease_duration_seconds?.into());
            let renewed = spec.renew_time.as_ref()?.0;
            Some(node_life::Lease { renewed, seen: self.seen(&key.name, renewed, now), holds })
        });
        let status = node.status.as_ref();
        let ready = status.and_then(|status| {
            status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")
        });
        let lost = ready.is_some_and(|ready| ready.status == UNKNOWN);
        let observed = Observed { now, lease, lost };
        Ok(Some(Look { node, observed }))
    }

    fn decide(seen: &Look) -> Action {
        node_life::decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Action) -> Result<(), TurnError> {
        if *decision != Action::CallLost {
            return Ok(());
        }
        let now = Time(seen.observed.now);
        let write = self.nodes.report(&mut seen.node, |node| {
            let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
            for condition in conditions.iter_mut().filter(|condition| condition.status != UNKNOWN) {
                condition.status = UNKNOWN.into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("its agent has not been heard of for longer than its lease".into());
                condition.last_transition_time = Some(now.clone());
            }
        });
        write.await?;
        let note = "the agent has not been heard of for longer than its lease";
        let news = News { by: Self::NAME, tone: Tone::Warning, reason: "NodeNotReady", note };
        self.nodes.tell(&seen.node, &news).await;
        Ok(())
    }

    async fn act(&self, seen: Look, decision: Action) -> Result<Next, TurnError> {
        match decision {
            Action::LookAt(at) => {
                let wait = seen.observed.now.duration_until(at);
                Ok(Next::After(wait.try_into().unwrap_or_default()))
            }
            Action::CallLost | Action::Nothing => Ok(Next::OnChange),
        }
    }
}
