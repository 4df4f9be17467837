//! The volumes of a temporary cluster, as everybody sees them: through the API.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use midflight_api::longhorn::{Engine, NAMESPACE, Robustness, Volume};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::Temporary;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) struct Volumes {
    pub(crate) objects: Api<Volume>,
    engines: Api<Engine>,
}

impl Volumes {
    pub(crate) async fn of(cluster: &Temporary) -> anyhow::Result<Volumes> {
        let client = cluster.client().await?;
        Ok(Volumes {
            objects: Api::namespaced(client.clone(), NAMESPACE),
            engines: Api::namespaced(client, NAMESPACE),
        })
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let making = || format!("create the volume {name}");
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": { "name": name }, "spec": spec,
        });
        let object = serde_json::from_value(object).with_context(making)?;
        self.objects.create(&PostParams::default(), &object).await.with_context(making)?;
        Ok(())
    }

    pub(crate) async fn change(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": spec }));
        let changed = self.objects.patch(name, &PatchParams::default(), &change).await;
        changed.map(drop).with_context(|| format!("change the volume {name}"))
    }

    /// Waits until something holds for a volume, and gives it as it is then.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&Volume) -> bool,
    ) -> anyhow::Result<Volume> {
        let reached = async {
            loop {
                let volume =
                    self.objects.get(name).await.with_context(|| format!("look at the volume {name}"))?;
                if holds(&volume) {
                    return anyhow::Ok(volume);
                }
                sleep(LOOK_EVERY).await;
            }
        };
        let late = || format!("the volume {name} was not {what} within {PATIENCE:?}");
        timeout(PATIENCE, reached).await.with_context(late)?
    }

    pub(crate) async fn until_it_is(&self, name: &str, wanted: Robustness) -> anyhow::Result<()> {
        let is_it =
            |volume: &Volume| volume.status.as_ref().is_some_and(|status| status.robustness == wanted);
        self.until(name, wanted.as_str(), is_it).await.map(drop)
    }

    /// Where clients of this machine find an attached volume.
    pub(crate) async fn socket(&self, name: &str) -> anyhow::Result<PathBuf> {
        let engine = self.engines.get(&format!("{name}-e-0")).await.context("look at the engine")?;
        let endpoint = engine.status.unwrap_or_default().endpoint.to_string();
        let (_, socket) = endpoint.split_once("?socket=").context("the volume has no socket")?;
        Ok(socket.into())
    }

    /// Removes volumes with their data.
    pub(crate) async fn remove(&self, names: &[&str]) -> anyhow::Result<()> {
        for name in names {
            let removed = self.objects.delete(name, &DeleteParams::default()).await;
            removed.map(drop).with_context(|| format!("remove the volume {name}"))?;
        }
        Ok(())
    }
}
