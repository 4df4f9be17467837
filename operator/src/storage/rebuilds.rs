//! Rebuilds: each node gives its replicas their turns, as many at once as the setting says.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{NAMESPACE, Replica, Setting};
use midflight_api::{NodeName, ReplicaName};
use midflight_plan::storage::rebuilds::{Candidate, Observed, Verdict, decide, look_again};

use super::settings;
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};

pub(crate) struct Rebuilds {
    replicas: Objects<Replica>,
    asking_on: Index<Replica>,
    settings: Objects<Setting>,
}

pub(crate) struct Look {
    replicas: Vec<Arc<Replica>>,
    observed: Observed,
}

impl Rebuilds {
    pub(crate) fn new(operator: &mut Operator) -> Rebuilds {
        let replicas: Objects<Replica> = operator.objects();
        let asking_on = replicas.index(|replica| match Candidate::of(replica) {
            Some(_) => vec![replica.spec.instance.node_id.to_string()],
            None => Vec::new(),
        });
        Rebuilds { replicas, asking_on, settings: operator.objects() }
    }
}

fn node_of(replica: &Replica) -> Key {
    Key::new(NAMESPACE, replica.spec.instance.node_id.as_str())
}

impl Controller for Rebuilds {
    const NAME: &'static str = "rebuild";
    /// A node.
    type Key = Key;
    type Seen = Look;
    type Decision = Vec<(ReplicaName, Verdict)>;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on_change(&self.replicas, |old, new| {
            let is_same = old.and_then(Candidate::of) == new.and_then(Candidate::of);
            let there = old.or(new).filter(|_| !is_same);
            there.map(node_of).into_iter().collect()
        });
        let replicas = self.replicas.clone();
        wake.on(&self.settings, move |setting| {
            if setting.name_any() != settings::REBUILDS_AT_ONCE {
                return Vec::new();
            }
            let all = replicas.shown();
            let asking = all.iter().filter(|replica| Candidate::of(replica).is_some());
            asking.map(|replica| node_of(replica)).collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let replicas = self.replicas.by(self.asking_on, &key.name)?;
        let observed = Observed {
            node: NodeName::from(key.name.as_str()),
            now: Timestamp::now(),
            limit: settings::rebuilds_at_once(&self.settings)?,
            replicas: replicas.iter().filter_map(|replica| Candidate::of(replica)).collect(),
        };
        Ok((!replicas.is_empty()).then_some(Look { replicas, observed }))
    }

    fn decide(seen: &Look) -> Self::Decision {
        decide(&seen.observed)
    }

    /// What is decided is told to the replicas, and is all that is done: their volumes do the rest.
    async fn report(&self, seen: &mut Look, decision: &Self::Decision) -> Result<(), TurnError> {
        let now = Timestamp::now().to_string();
        for (name, verdict) in decision {
            let replica = seen.replicas.iter_mut().find(|replica| replica.name_any() == name.as_str());
            if let Some(replica) = replica {
                let edit = |replica: &mut Replica| {
                    let status = replica.status.get_or_insert_default();
                    status.instance.conditions.set(verdict.condition(&now));
                };
                self.replicas.report(replica, edit).await?;
            }
        }
        Ok(())
    }

    async fn act(&self, seen: Look, _: Self::Decision) -> Result<Next, TurnError> {
        let (again, now) = (look_again(&seen.observed), seen.observed.now);
        let wait = again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        Ok(wait.filter(|wait| !wait.is_zero()).map_or(Next::OnChange, Next::After))
    }
}

#[cfg(test)]
mod tests {
    use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
    use midflight_plan::storage::rebuilds::{REBUILD, Turn, is_permitted};
    use serde_json::json;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::testing::Cluster;
    use crate::write::Writer;
    use crate::{bootstrap, run};

    const PATIENCE: Duration = Duration::from_secs(150);

    struct Node {
        replicas: Api<Replica>,
        settings: Api<Setting>,
    }

    impl Node {
        async fn set(&self, limit: &str) {
            let value = Patch::Merge(json!({ "value": limit }));
            self.settings.patch(settings::REBUILDS_AT_ONCE, &PatchParams::default(), &value).await.unwrap();
        }

        async fn ask(&self, name: &str) {
            let mut replica = Replica::new(name, Default::default());
            replica.spec.instance.node_id = "node-1".into();
            let asks = Turn::Asks.condition(&Timestamp::now().to_string());
            self.replicas.create(&PostParams::default(), &replica).await.unwrap();
            let status = Patch::Merge(json!({ "status": { "conditions": [asks] } }));
            self.replicas.patch_status(name, &PatchParams::default(), &status).await.unwrap();
        }

        /// Those that may be rebuilt, and those that were told why not.
        async fn told(&self) -> (Vec<String>, Vec<String>) {
            let all = self.replicas.list(&ListParams::default()).await.unwrap();
            let is_held = |replica: &Replica| {
                let conditions = replica.status.as_ref().map(|status| &status.instance.conditions);
                conditions
                    .and_then(|all| all.get(REBUILD))
                    .is_some_and(|condition| !condition.message.is_empty())
            };
            let permitted = all.iter().filter(|replica| is_permitted(replica)).map(ResourceExt::name_any);
            let held = all.iter().filter(|replica| is_held(replica)).map(ResourceExt::name_any);
            (permitted.collect(), held.collect())
        }

        /// Until so many are permitted and so many wait; never are more permitted.
        async fn until(&self, permitted: usize, held: usize) -> Vec<String> {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let told = self.told().await;
                assert!(told.0.len() <= permitted, "{told:?}");
                if (told.0.len(), told.1.len()) == (permitted, held) {
                    return told.0;
                }
                assert!(Instant::now() < deadline, "{told:?}");
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    #[tokio::test]
    async fn a_node_permits_as_many_rebuilds_as_the_setting_says() {
        let cluster = Cluster::open().await;
        let standing = bootstrap(&cluster.client).await.unwrap();
        let namespaced = || Api::namespaced(cluster.client.clone(), NAMESPACE);
        let node =
            Node { replicas: namespaced(), settings: Api::namespaced(cluster.client.clone(), NAMESPACE) };
        node.set("0").await;
        let writer = Arc::new(Writer::new(cluster.client.clone()));
        let running = tokio::spawn(async move { run(writer, &standing).await });
        for number in 1..=4 {
            node.ask(&format!("vol-{number}-r-0")).await;
        }
        node.until(0, 4).await;
        node.set("2").await;
        let first = node.until(2, 2).await;
        // One is whole: the volume takes its condition away.
        let whole = Patch::Merge(json!({ "status": { "conditions": [] } }));
        node.replicas.patch_status(&first[0], &PatchParams::default(), &whole).await.unwrap();
        let then = node.until(2, 1).await;
        assert!(then.contains(&first[1]) && !then.contains(&first[0]), "{first:?} {then:?}");
        running.abort();
    }
}
