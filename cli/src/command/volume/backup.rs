//! `midflight volume backup`: a snapshot of a volume, kept outside the cluster under a name.

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{Backup, BackupSpec, BackupState, NAMESPACE, Snapshot, Volume};
use serde::Serialize;

use super::wait::{Patience, Progress};
use super::{find, snapshot};
use crate::failure::{Exit, Failure};
use crate::output::{Answer, Paint, table};
use crate::{session::Session, target};

/// Label of a Backup: the volume it is of.
const VOLUME: &str = "backup-volume";

/// Make, list and remove backups
#[derive(Debug, Args)]
pub(super) struct BackupCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Back a volume up; prints the name of the backup
    Create {
        volume: String,
        /// Snapshot to back up; one is taken if not given
        #[arg(long)]
        snapshot: Option<String>,
        /// Name of the backup; made of the volume's and the time if not given
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        patience: Patience,
    },
    /// List backups
    Ls {
        /// Only those of this volume
        volume: Option<String>,
    },
    /// Remove a backup from its target
    Rm {
        /// Name of the backup
        name: String,
        #[command(flatten)]
        patience: Patience,
    },
}

const HINT: &str = "`midflight volume backup ls` tells how it is; it goes on by itself";

impl BackupCommand {
    pub(super) async fn run(self, session: &Session, client: Client) -> anyhow::Result<()> {
        let backups: Api<Backup> = Api::namespaced(client.clone(), NAMESPACE);
        match self.command {
            Command::Create { volume, snapshot, name, patience } => {
                find(&Api::<Volume>::namespaced(client.clone(), NAMESPACE), &volume).await?;
                let name = name
                    .unwrap_or_else(|| format!("{volume}-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S%3f")));
                let snapshot = match snapshot {
                    Some(snapshot) => snapshot,
                    None => {
                        let snapshots: Api<Snapshot> = Api::namespaced(client, NAMESPACE);
                        let made =
                            snapshots.create(&PostParams::default(), &snapshot::object(&name, &volume)).await;
                        made.map_err(target::refusal).with_context(|| format!("take snapshot {name}"))?;
                        name.clone()
                    }
                };
                let made = backups.create(&PostParams::default(), &object(&name, &volume, &snapshot)).await;
                made.map_err(target::refusal).with_context(|| format!("make backup {name}"))?;
                let look = async || progress(backups.get_opt(&name).await.map_err(target::refusal)?);
                patience.until(&format!("backup {name}"), HINT, look).await?;
                session.answer(&Made { name })
            }
            Command::Ls { volume } => {
                let wanted = ListParams::default();
                let wanted = match &volume {
                    Some(volume) => wanted.labels(&format!("{VOLUME}={volume}")),
                    None => wanted,
                };
                let all = backups.list(&wanted).await.map_err(target::refusal).context("list backups")?;
                session.answer(&Listed::of(&all.items))
            }
            Command::Rm { name, patience } => {
                known(&backups, &name).await?;
                let deleted = backups.delete(&name, &DeleteParams::default()).await;
                deleted.map_err(target::refusal).with_context(|| format!("remove backup {name}"))?;
                let look = async || match backups.get_opt(&name).await.map_err(target::refusal)? {
                    None => Ok(Progress::Done),
                    Some(backup) => Ok(Progress::Waits(why(&backup))),
                };
                patience.until(&format!("the end of backup {name}"), HINT, look).await
            }
        }
    }
}

/// A backup by its name, or advice.
pub(super) async fn known(backups: &Api<Backup>, name: &str) -> anyhow::Result<Backup> {
    let found = backups.get_opt(name).await.map_err(target::refusal).context("look for the backup")?;
    found.ok_or_else(|| {
        Failure::error(format!("there is no backup {name}"), "`midflight volume backup ls` lists them")
    })
}

fn object(name: &str, volume: &str, snapshot: &str) -> Backup {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        labels: Some([(VOLUME.to_owned(), volume.to_owned())].into()),
        ..ObjectMeta::default()
    };
    let spec = BackupSpec { snapshot_name: snapshot.into(), ..BackupSpec::default() };
    Backup { metadata, spec, status: None }
}

fn progress(backup: Option<Backup>) -> anyhow::Result<Progress> {
    let Some(backup) = backup else { return Ok(Progress::Waits("somebody has removed it".into())) };
    match backup.status.as_ref().map(|status| status.state).unwrap_or_default() {
        BackupState::Completed => Ok(Progress::Done),
        BackupState::Error => {
            let failed = format!("backup {} failed: {}", backup.name_any(), why(&backup));
            Err(Failure::with(Exit::Error, failed, "remove it, then make another"))
        }
        _ => Ok(Progress::Waits(why(&backup))),
    }
}

fn why(backup: &Backup) -> String {
    let status = backup.status.clone().unwrap_or_default();
    match (status.error.as_str(), status.state) {
        ("", BackupState::New) => "no controller has looked at it yet".into(),
        ("", state) => format!("it is {state}, {} percent are done", status.progress),
        (error, _) => error.to_owned(),
    }
}

/// The name of a backup that was asked for.
#[derive(Debug, Serialize)]
struct Made {
    name: String,
}

impl Answer for Made {
    fn to_table(&self, _: Paint) -> String {
        format!("{}\n", self.name)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    volume: String,
    state: String,
    progress: i32,
    created: String,
    size: String,
    url: String,
    error: String,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Listed(Vec<Row>);

impl Listed {
    fn of(backups: &[Backup]) -> Listed {
        let row = |backup: &Backup| {
            let status = backup.status.clone().unwrap_or_default();
            Row {
                name: backup.name_any(),
                volume: status.volume_name.to_string(),
                state: status.state.to_string(),
                progress: status.progress,
                created: status.backup_created_at.to_string(),
                size: status.volume_size.to_string(),
                url: status.url.to_string(),
                error: status.error.to_string(),
            }
        };
        Listed(backups.iter().map(row).collect())
    }
}

impl Answer for Listed {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.0.iter().map(|row| {
            let state = match row.state.as_str() {
                "InProgress" => format!("{} {}%", row.state, row.progress),
                _ => row.state.clone(),
            };
            [&row.name, &row.volume, &state, &row.created, &row.size, &row.error]
                .map(|cell: &String| if cell.is_empty() { "-".to_owned() } else { cell.clone() })
        });
        table(["NAME", "VOLUME", "STATE", "CREATED", "SIZE", "WAITS FOR"], rows)
    }
}
