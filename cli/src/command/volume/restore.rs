//! `midflight volume restore` and `activate`: volumes that come from a backup.

use anyhow::Context;
use clap::Args;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use midflight_api::longhorn::{Backup, NAMESPACE, Volume, VolumeSpec};
use serde_json::json;

use super::backup::known;
use super::wait::{Goal, Patience};
use super::{Named, Shape, change, find};
use crate::failure::Failure;
use crate::target;

#[derive(Debug, Args)]
pub(super) struct Restore {
    /// Name of the new volume
    name: String,
    /// Backup to restore
    #[arg(long, value_name = "BACKUP")]
    from: String,
    /// Follow every newer backup and serve no client, until the volume is activated
    #[arg(long)]
    standby: bool,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    patience: Patience,
}

impl Restore {
    pub(super) async fn run(self, client: Client) -> anyhow::Result<()> {
        let backup = known(&Api::<Backup>::namespaced(client.clone(), NAMESPACE), &self.from).await?;
        let status = backup.status.unwrap_or_default();
        if status.url.is_empty() {
            let hint = "`midflight volume backup ls` tells how far it is";
            return Err(Failure::error(format!("backup {} is not complete", self.from), hint));
        }
        let spec = VolumeSpec {
            size: status.volume_size,
            from_backup: status.url,
            standby: self.standby,
            ..self.shape.spec()
        };
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let volumes: Api<Volume> = Api::namespaced(client, NAMESPACE);
        let made = volumes.create(&PostParams::default(), &Volume { metadata, spec, status: None }).await;
        made.map_err(target::refusal).with_context(|| format!("create volume {}", self.name))?;
        self.patience.wait(&volumes, &self.name, Goal::Restored).await
    }
}

/// Lets a standby serve clients, with the newest backup that it can have.
pub(super) async fn activate(named: Named, client: Client) -> anyhow::Result<()> {
    let volumes: Api<Volume> = Api::namespaced(client, NAMESPACE);
    let volume = find(&volumes, &named.name).await?;
    let is_standby = volume.spec.standby || volume.status.is_some_and(|status| status.is_standby);
    if !is_standby {
        let hint = "`midflight volume show` tells how it is";
        return Err(Failure::error(format!("volume {} is no standby", named.name), hint));
    }
    change(&volumes, &named.name, json!({ "Standby": false })).await?;
    named.patience.wait(&volumes, &named.name, Goal::Activated).await
}
