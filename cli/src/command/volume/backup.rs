//! `midflight volume backup`: a snapshot of a volume, kept outside the cluster under a name.

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{
    Backup, BackupSpec, BackupState, Engine, NAMESPACE, Snapshot, VOLUME_LABEL, Volume,
};
use serde::Serialize;

use super::wait::{Patience, Progress};
use super::{find, snapshot};
use crate::failure::{Exit, Failure};
use crate::output::{Answer, Paint, moment, table};
use crate::{session::Session, target};

/// Label of a Backup: the volume it is of.
const VOLUME: &str = "backup-volume";
/// Annotation of a Snapshot: the backup that it was taken for, and goes with.
const TAKEN_FOR: &str = "midflight.dev/taken-for-backup";

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
    /// Remove a backup from its target, and the snapshot that was taken for it
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
                check_free(&backups, &name).await?;
                let snapshot = match snapshot {
                    Some(snapshot) => {
                        check_there(&client, &volume, &snapshot).await?;
                        snapshot
                    }
                    None => take_for(&Api::namespaced(client, NAMESPACE), &name, &volume).await?,
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
                // They outlive their volume: only without any has its name to be one.
                if let Some(volume) = volume.filter(|_| all.items.is_empty()) {
                    find(&Api::<Volume>::namespaced(client, NAMESPACE), &volume).await?;
                }
                session.answer(&Listed::of(&all.items))
            }
            Command::Rm { name, patience } => {
                let backup = known(&backups, &name).await?;
                let deleted = backups.delete(&name, &DeleteParams::default()).await;
                deleted.map_err(target::refusal).with_context(|| format!("remove backup {name}"))?;
                remove_taken_for(&Api::namespaced(client, NAMESPACE), &backups, &backup).await?;
                let look = async || match backups.get_opt(&name).await.map_err(target::refusal)? {
                    None => Ok(Progress::Done),
                    Some(backup) => Ok(Progress::Waits(why(&backup))),
                };
                patience.until(&format!("the end of backup {name}"), HINT, look).await
            }
        }
    }
}

/// Refuses a name that another backup has, before anything is made for it.
async fn check_free(backups: &Api<Backup>, name: &str) -> anyhow::Result<()> {
    let there = backups.get_opt(name).await.map_err(target::refusal).context("look for the backup")?;
    match there.map(|backup| backup.metadata.deletion_timestamp.is_some()) {
        None => Ok(()),
        Some(true) => Err(Failure::error(
            format!("backup {name} is still being removed"),
            format!("wait for it with `midflight volume backup rm {name} --wait`, or choose another name"),
        )),
        Some(false) => Err(Failure::error(
            format!("there is a backup {name} already"),
            format!("choose another name, or remove it with `midflight volume backup rm {name} --wait`"),
        )),
    }
}

/// Refuses a snapshot that the volume does not have and nobody has asked for: the backup would never be made.
async fn check_there(client: &Client, volume: &str, name: &str) -> anyhow::Result<()> {
    let looking = || format!("look for snapshot {name}");
    let snapshots: Api<Snapshot> = Api::namespaced(client.clone(), NAMESPACE);
    let asked = snapshots.get_opt(name).await.map_err(target::refusal).with_context(looking)?;
    if asked.is_some_and(|snapshot| snapshot.spec.volume == volume) {
        return Ok(());
    }
    // One that somebody has taken without an object.
    let engines: Api<Engine> = Api::namespaced(client.clone(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("{VOLUME_LABEL}={volume}"));
    let engines = engines.list(&of_volume).await.map_err(target::refusal).with_context(looking)?;
    let mut known = engines.iter().filter_map(|engine| engine.status.as_ref());
    match known.any(|status| status.snapshots.contains_key(name)) {
        true => Ok(()),
        false => Err(Failure::error(
            format!("volume {volume} has no snapshot {name}"),
            format!(
                "`midflight volume snapshot ls {volume}` lists those that it has; without --snapshot one is taken"
            ),
        )),
    }
}

/// Takes a snapshot for a backup, under the backup's name or, where that is taken, under one that begins so: a snapshot of
/// that name holds an earlier moment, and one that is being removed stays until its volume is next attached.
async fn take_for(snapshots: &Api<Snapshot>, backup: &str, volume: &str) -> anyhow::Result<String> {
    let taking = || format!("take a snapshot for backup {backup}");
    let taken = snapshots.get_opt(backup).await.map_err(target::refusal).with_context(taking)?.is_some();
    let name = match taken {
        true => format!("{backup}-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S%3f")),
        false => backup.to_owned(),
    };
    let mut snapshot = snapshot::object(&name, volume);
    snapshot.annotations_mut().insert(TAKEN_FOR.to_owned(), backup.to_owned());
    let made = snapshots.create(&PostParams::default(), &snapshot).await;
    made.map_err(target::refusal).with_context(taking)?;
    Ok(name)
}

/// Removes the snapshot that was taken for a backup, unless another backup is of it. One that is not taken yet, or of a volume
/// that is detached, goes when it can; nobody waits for that.
async fn remove_taken_for(
    snapshots: &Api<Snapshot>,
    backups: &Api<Backup>,
    backup: &Backup,
) -> anyhow::Result<()> {
    let (name, snapshot) = (backup.name_any(), backup.spec.snapshot_name.as_str());
    let removing = || format!("remove the snapshot that was taken for backup {name}");
    if snapshot.is_empty() {
        return Ok(());
    }
    let there = snapshots.get_opt(snapshot).await.map_err(target::refusal).with_context(removing)?;
    let is_ours = there.is_some_and(|there| there.annotations().get(TAKEN_FOR) == Some(&name));
    if !is_ours {
        return Ok(());
    }
    let all = backups.list(&ListParams::default()).await.map_err(target::refusal).with_context(removing)?;
    if all.iter().any(|other| other.spec.snapshot_name == snapshot && other.name_any() != name) {
        return Ok(());
    }
    match snapshots.delete(snapshot, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        deleted => deleted.map(drop).map_err(target::refusal).with_context(removing),
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
            [&row.name, &row.volume, &state, &moment(&row.created), &row.size, &row.error]
                .map(|cell: &String| if cell.is_empty() { "-".to_owned() } else { cell.clone() })
        });
        table(["NAME", "VOLUME", "STATE", "CREATED", "SIZE", "WAITS FOR"], rows)
    }
}
