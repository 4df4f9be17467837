//! The upgrade of all nodes.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use midflight_api::longhorn::{
    DataEngineUpgradeManager, FINALIZER, NodeDataEngineUpgrade, NodeDataEngineUpgradeSpec, UpgradeState,
};
use midflight_api::{ImageRef, NodeName};
use midflight_plan::node_upgrade::{
    Child, Order, Run, RunDecision, Stand, asks_for_volumes, decide_run, is_rival, message,
};

use super::cluster::Cluster;
use super::node::from_now;
use super::told::{self, Standing};
use crate::controller::{Controller, Key, News, Next, Objects, Operator, Tone, TurnError, Wake, WriteFailed};
use crate::figures::Figures;
use crate::write::WriteError;

/// Label of the upgrade of a node: the upgrade that it belongs to, and the node.
const MANAGER_LABEL: &str = "longhorn.io/data-engine-upgrade-manager";
const NODE_LABEL: &str = "longhornnode";
/// How often volumes are looked at that a node waits for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct NodeUpgradeRuns {
    runs: Objects<DataEngineUpgradeManager>,
    upgrades: Objects<NodeDataEngineUpgrade>,
    cluster: Cluster,
    figures: Figures,
}

pub(crate) struct Look {
    object: Arc<DataEngineUpgradeManager>,
    upgrades: Vec<Arc<NodeDataEngineUpgrade>>,
    observed: Run,
}

impl NodeUpgradeRuns {
    pub(crate) fn new(operator: &mut Operator) -> NodeUpgradeRuns {
        NodeUpgradeRuns {
            runs: operator.objects(),
            upgrades: operator.objects(),
            cluster: Cluster::new(operator),
            figures: operator.figures(),
        }
    }

    /// The upgrade of a node, which is kept until the node is back in service.
    fn upgrade_of(
        run: &DataEngineUpgradeManager,
        node: &NodeName,
        image: &ImageRef,
    ) -> NodeDataEngineUpgrade {
        let name = run.name_any();
        let labels = [(MANAGER_LABEL.into(), name.clone()), (NODE_LABEL.into(), node.to_string())];
        NodeDataEngineUpgrade {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{node}")),
                namespace: run.namespace(),
                labels: Some(labels.into()),
                finalizers: Some(vec![FINALIZER.into()]),
                owner_references: run.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: NodeDataEngineUpgradeSpec {
                node_id: node.clone(),
                data_engine: run.spec.data_engine,
                instance_manager_image: image.clone(),
                data_engine_upgrade_manager: name.into(),
            },
            status: None,
        }
    }

    /// Says of a node why its upgrade is not made.
    async fn note(&self, seen: &mut Look, node: &NodeName, failed: &WriteFailed) -> Result<(), TurnError> {
        let why = match failed.source.is_refusal() {
            true => format!("the API refuses its NodeDataEngineUpgrade: {}", failed.source),
            false => format!("its NodeDataEngineUpgrade could not be made: {}", failed.source),
        };
        let edit = |run: &mut DataEngineUpgradeManager| {
            let status = run.status.get_or_insert_default();
            if let Some(entry) = status.upgrade_nodes.get_mut(node) {
                entry.message = message(why);
            }
        };
        Ok(self.runs.report(&mut seen.object, edit).await?)
    }

    async fn carry_out(&self, seen: &mut Look, order: &Order) -> Result<(), TurnError> {
        let keep = |finalizers: &mut Vec<String>, keep: bool| {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
            finalizers.extend(keep.then(|| FINALIZER.to_owned()));
        };
        match order {
            Order::Protect => {
                Ok(self.runs.change(&mut seen.object, |run| keep(run.finalizers_mut(), true)).await?)
            }
            Order::Release => {
                Ok(self.runs.change(&mut seen.object, |run| keep(run.finalizers_mut(), false)).await?)
            }
            Order::Begin { node, image } => {
                match self.upgrades.create(&Self::upgrade_of(&seen.object, node, image)).await {
                    Err(failed) if is_told(&failed.source) => {
                        self.note(seen, node, &failed).await?;
                        Err(failed.into())
                    }
                    made => Ok(made?),
                }
            }
            Order::Remove { child } => match seen.upgrades.iter().find(|one| one.name_any() == *child) {
                Some(upgrade) => Ok(self.upgrades.delete(upgrade).await?),
                None => Ok(()),
            },
        }
    }
}

/// Whether a write that failed says why it can not be done, rather than that nobody knows.
fn is_told(failed: &WriteError) -> bool {
    match failed {
        WriteError::Ended | WriteError::AnswerLost => false,
        WriteError::Api(_) => !failed.is_conflict(),
    }
}

impl Controller for NodeUpgradeRuns {
    const NAME: &'static str = "node-upgrade-run";
    const GATHERS: Duration = super::GATHERS;
    type Key = Key;
    type Seen = Look;
    type Decision = RunDecision;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.upgrades, |upgrade| {
            let namespace = upgrade.namespace().unwrap_or_default();
            vec![Key::new(&namespace, upgrade.spec.data_engine_upgrade_manager.as_str())]
        });
        let runs = self.runs.clone();
        // One of our own writes that is not shown yet wakes its run itself.
        let all = move || -> Vec<Key> {
            runs.all().unwrap_or_default().iter().map(|run| Key::of(&**run)).collect()
        };
        let every = all.clone();
        // One that waits for another to end hears of that in no other way.
        wake.on(&self.runs, move |run| {
            let others = every().into_iter().filter(|key| *key != Key::of(run));
            others.chain([Key::of(run)]).collect()
        });
        let every = all.clone();
        wake.on(&self.cluster.nodes, move |_| every());
        wake.on(&self.cluster.settings, move |_| all());
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(object) = self.runs.get(key)? else {
            self.figures.node_upgrade_has_gone(&key.name);
            return Ok(None);
        };
        let status = object.status.clone().unwrap_or_default();
        let (runs, own) = (self.runs.all()?, Stand::of(&object));
        let is_beside = |namespace: Option<String>| namespace == object.namespace();
        let others = runs.iter().filter(|other| is_beside(other.namespace()));
        let rivals = others.filter(|other| is_rival(&own, &Stand::of(other)));
        let mut upgrades = self.upgrades.all()?;
        // Those of one that has our name elsewhere are not ours.
        let is_namesakes = |one: &NodeDataEngineUpgrade| {
            one.spec.data_engine_upgrade_manager == *key.name && !is_beside(one.namespace())
        };
        upgrades.retain(|one| !is_namesakes(one));
        let default_image = self.cluster.default_image()?;
        let image = match status.state {
            UpgradeState::Undefined => &default_image,
            UpgradeState::Initializing
            | UpgradeState::Upgrading
            | UpgradeState::Completed
            | UpgradeState::Error => &status.instance_manager_image,
        };
        let observed = Run {
            now: Timestamp::now(),
            name: object.name_any(),
            generation: object.metadata.generation.unwrap_or_default(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            protected: object.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
            spec: object.spec.clone(),
            policy: self.cluster.policy()?,
            nodes: self.cluster.nodes(image)?,
            volumes: if asks_for_volumes(&status) { self.cluster.all_volumes()? } else { Vec::new() },
            children: upgrades.iter().map(|upgrade| Child::of(upgrade)).collect(),
            rival: rivals.map(|run| run.name_any()).min(),
            status,
            default_image,
        };
        Ok(Some(Look { object, upgrades, observed }))
    }

    fn decide(seen: &Look) -> RunDecision {
        decide_run(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &RunDecision) -> Result<(), TurnError> {
        let mut status = decision.status.clone();
        let (state, message) = (status.state, status.message.to_string());
        let standing = Standing::of_run(state);
        told::set(&mut status.conditions, &standing, state.as_str(), &message, seen.observed.generation);
        self.runs.report(&mut seen.object, |run| run.status = Some(status)).await?;
        self.figures.nodes_of_upgrade(&seen.observed.name, &decision.status.upgrade_nodes);
        if seen.observed.deleting && decision.status.message != seen.observed.status.message {
            let news = News { by: Self::NAME, tone: Tone::Normal, reason: "Aborted", note: &message };
            self.runs.tell(&seen.object, &news).await;
        }
        if state != seen.observed.status.state {
            let note = match message.as_str() {
                "" => format!("{state}, to {}", decision.status.instance_manager_image),
                message => format!("{state}: {message}"),
            };
            let (tone, reason) = (told::tone(&standing), told::camel(state.as_str()));
            self.runs.tell(&seen.object, &News { by: Self::NAME, tone, reason: &reason, note: &note }).await;
        }
        Ok(())
    }

    async fn act(&self, mut seen: Look, decision: RunDecision) -> Result<Next, TurnError> {
        // One that cannot be carried out keeps no other from its turn.
        let mut carried_out = Ok(());
        for order in &decision.orders {
            carried_out = carried_out.and(self.carry_out(&mut seen, order).await);
        }
        carried_out?;
        let again = asks_for_volumes(&decision.status).then_some(LOOK_AGAIN);
        let due = decision.until.map(from_now);
        Ok(again.into_iter().chain(due).min().map_or(Next::OnChange, Next::After))
    }
}
