//! `midflight volume snapshot`: what a volume held at one moment, kept under a name.

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{NAMESPACE, Snapshot, SnapshotSpec, VOLUME_LABEL, Volume};
use serde::Serialize;

use super::find;
use super::wait::{Patience, Progress};
use crate::output::{Answer, Paint, moment, size, table};
use crate::{failure::Failure, session::Session, target};

/// Take, list and remove snapshots
#[derive(Debug, Args)]
pub(super) struct SnapshotCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keep a volume as it is now; prints the name of the snapshot
    Create {
        volume: String,
        /// Name of the snapshot; made of the volume's and the time if not given
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        patience: Patience,
    },
    /// List snapshots
    Ls {
        /// Only those of this volume
        volume: Option<String>,
    },
    /// Remove a snapshot; the volume stays as it is
    Rm {
        /// Name of the snapshot
        name: String,
        #[command(flatten)]
        patience: Patience,
    },
}

impl SnapshotCommand {
    pub(super) async fn run(self, session: &Session, client: Client) -> anyhow::Result<()> {
        let snapshots: Api<Snapshot> = Api::namespaced(client.clone(), NAMESPACE);
        match self.command {
            Command::Create { volume, name, patience } => {
                find(&Api::<Volume>::namespaced(client, NAMESPACE), &volume).await?;
                let name = name
                    .unwrap_or_else(|| format!("{volume}-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S%3f")));
                let made = snapshots.create(&PostParams::default(), &object(&name, &volume)).await;
                made.map_err(target::refusal).with_context(|| format!("take snapshot {name}"))?;
                let look = async || Ok(progress(snapshots.get_opt(&name).await.map_err(target::refusal)?));
                patience.until(&format!("snapshot {name}"), HINT, look).await?;
                session.answer(&Made { name })
            }
            Command::Ls { volume } => {
                let wanted = ListParams::default();
                if let Some(volume) = &volume {
                    find(&Api::<Volume>::namespaced(client, NAMESPACE), volume).await?;
                }
                let wanted = match &volume {
                    Some(volume) => wanted.labels(&format!("{VOLUME_LABEL}={volume}")),
                    None => wanted,
                };
                let all = snapshots.list(&wanted).await.map_err(target::refusal).context("list snapshots")?;
                session.answer(&Listed::of(&all.items))
            }
            Command::Rm { name, patience } => {
                let gone = snapshots.get_opt(&name).await.map_err(target::refusal)?.is_none();
                if gone {
                    let hint = "`midflight volume snapshot ls` lists them";
                    return Err(Failure::error(format!("there is no snapshot {name}"), hint));
                }
                let deleted = snapshots.delete(&name, &DeleteParams::default()).await;
                deleted.map_err(target::refusal).with_context(|| format!("remove snapshot {name}"))?;
                let look = async || match snapshots.get_opt(&name).await.map_err(target::refusal)? {
                    None => Ok(Progress::Done),
                    Some(snapshot) => Ok(Progress::Waits(why(&snapshot))),
                };
                patience.until(&format!("the end of snapshot {name}"), HINT, look).await
            }
        }
    }
}

const HINT: &str = "`midflight volume snapshot ls` tells how it is; it goes on by itself";

pub(super) fn object(name: &str, volume: &str) -> Snapshot {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        labels: Some([(VOLUME_LABEL.to_owned(), volume.to_owned())].into()),
        ..ObjectMeta::default()
    };
    let spec = SnapshotSpec { volume: volume.into(), create_snapshot: true, ..SnapshotSpec::default() };
    Snapshot { metadata, spec, status: None }
}

fn progress(snapshot: Option<Snapshot>) -> Progress {
    match snapshot {
        Some(snapshot) if snapshot.status.as_ref().is_some_and(|status| status.ready_to_use) => {
            Progress::Done
        }
        Some(snapshot) => Progress::Waits(why(&snapshot)),
        None => Progress::Waits("somebody has removed it".into()),
    }
}

fn why(snapshot: &Snapshot) -> String {
    let error = snapshot.status.as_ref().map(|status| status.error.to_string());
    error.filter(|text| !text.is_empty()).unwrap_or_else(|| "no controller has looked at it yet".into())
}

/// The name of a snapshot that was asked for.
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
    ready: bool,
    created: String,
    /// What it takes on the disk of each replica, as was last seen.
    taken_bytes: u64,
    waits_for: String,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Listed(Vec<Row>);

impl Listed {
    fn of(snapshots: &[Snapshot]) -> Listed {
        let row = |snapshot: &Snapshot| {
            let status = snapshot.status.clone().unwrap_or_default();
            Row {
                name: snapshot.name_any(),
                volume: snapshot.spec.volume.to_string(),
                ready: status.ready_to_use,
                created: status.creation_time.to_string(),
                taken_bytes: status.size.try_into().unwrap_or_default(),
                waits_for: status.error.to_string(),
            }
        };
        Listed(snapshots.iter().map(row).collect())
    }
}

impl Answer for Listed {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.0.iter().map(|row| {
            let ready = if row.ready { "yes" } else { "no" };
            [&row.name, &row.volume, ready, &moment(&row.created), &size(row.taken_bytes), &row.waits_for]
                .map(|cell: &str| if cell.is_empty() { "-".to_owned() } else { cell.to_owned() })
        });
        table(["NAME", "VOLUME", "READY", "CREATED", "TAKES", "WAITS FOR"], rows)
    }
}
