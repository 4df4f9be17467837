//! `midflight volume`: the life of volumes, over the same objects that kubectl sees.

mod backup;
mod restore;
mod show;
mod snapshot;
mod wait;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use midflight_api::Size;
use midflight_api::longhorn::{
    DataEngine, Engine, Frontend, NAMESPACE, Node, Replica, VOLUME_LABEL, Volume, VolumeSpec,
};
use serde_json::{Value, json};

use crate::{
    failure::{Exit, Failure},
    session::Session,
    target,
};
use backup::BackupCommand;
use restore::Restore;
use show::{Listed, Shown};
use snapshot::SnapshotCommand;
use wait::{Goal, Patience};

/// Create, attach, grow and remove volumes
#[derive(Debug, Args)]
pub(crate) struct VolumeCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a volume
    Create(Create),
    /// List volumes
    Ls,
    /// Show a volume with its replicas, and what it waits for
    Show { name: String },
    /// Attach a volume to a node
    ///
    /// One that is attached elsewhere has to be detached before (`volume detach`), and a node that was drained to be taken back (`node uncordon`).
    Attach(Attach),
    /// Detach a volume from its node
    Detach(Named),
    /// Let a volume grow; one that is detached grows where no client reaches it
    Expand(Expand),
    /// Take, list and remove snapshots
    Snapshot(SnapshotCommand),
    /// Make, list and remove backups
    Backup(BackupCommand),
    /// Make a volume from a backup
    Restore(Restore),
    /// Let a standby volume serve clients
    Activate(Named),
    /// Remove a volume and its data
    Rm(Rm),
}

#[derive(Debug, Args)]
struct Create {
    name: String,
    /// Size, such as 8Mi, 20Gi or a number of bytes; rounded up to whole blocks of 4 KiB
    #[arg(long, value_parser = size)]
    size: Size,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    patience: Patience,
}

/// What every new volume has.
#[derive(Debug, Args)]
struct Shape {
    /// Copies, each on a node of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=20))]
    replicas: i32,
    /// Which data engine serves it
    #[arg(long, default_value = "v2")]
    engine: EngineName,
    /// How clients reach it
    #[arg(long, default_value = "nbd")]
    frontend: FrontendName,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EngineName {
    V1,
    V2,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FrontendName {
    Nbd,
    Blockdev,
    None,
}

#[derive(Debug, Args)]
struct Attach {
    name: String,
    /// Node to attach it to
    #[arg(long)]
    node: String,
    #[command(flatten)]
    patience: Patience,
}

#[derive(Debug, Args)]
struct Named {
    name: String,
    #[command(flatten)]
    patience: Patience,
}

#[derive(Debug, Args)]
struct Rm {
    #[command(flatten)]
    named: Named,
    /// Also if it is attached: whoever uses it is told of errors
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct Expand {
    name: String,
    /// The new size, such as 20Gi
    #[arg(long, value_parser = size)]
    size: Size,
    #[command(flatten)]
    patience: Patience,
}

/// Reads a size with a unit of powers of two.
fn size(text: &str) -> Result<Size, String> {
    const BLOCK: u64 = 4096;
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("", 0)];
    let (digits, shift) = units
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    let number: u64 =
        digits.parse().map_err(|_| "say a number of bytes, or one with Ki, Mi, Gi or Ti".to_owned())?;
    let bytes = number.checked_mul(1 << shift).and_then(|bytes| bytes.checked_next_multiple_of(BLOCK));
    match bytes {
        Some(0) => Err("a volume holds something".into()),
        Some(bytes) => Ok(Size::from_bytes(bytes)),
        None => Err("no volume is that large".into()),
    }
}

impl VolumeCommand {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
        match self.command {
            Command::Create(create) => {
                let (name, patience) = (create.name.clone(), create.patience);
                let doing = || format!("create volume {name}");
                let made = volumes.create(&PostParams::default(), &create.object()).await;
                made.map_err(target::refusal).with_context(doing)?;
                patience.wait(&volumes, &name, Goal::Detached).await
            }
            Command::Ls => {
                let all = volumes.list(&ListParams::default()).await;
                let all = all.map_err(target::refusal).context("list volumes")?;
                session.answer(&Listed::of(&all.items, &nodes(&client).await?))
            }
            Command::Show { name } => {
                let volume = find(&volumes, &name).await?;
                let engines: Api<Engine> = Api::namespaced(client.clone(), NAMESPACE);
                let replicas: Api<Replica> = Api::namespaced(client.clone(), NAMESPACE);
                let of_volume = ListParams::default().labels(&format!("{VOLUME_LABEL}={name}"));
                let engines = engines.list(&of_volume).await.map_err(target::refusal)?;
                let replicas = replicas.list(&of_volume).await.map_err(target::refusal)?;
                let nodes = nodes(&client).await?;
                session.answer(&Shown::of(&volume, &nodes, &engines.items, &replicas.items))
            }
            Command::Attach(attach) => {
                let volume = find(&volumes, &attach.name).await?;
                check_free(&volume, &attach.node)?;
                check_node(&volume, &nodes(&client).await?, &attach.node)?;
                change(&volumes, &attach.name, json!({ "nodeID": attach.node })).await?;
                attach.patience.wait(&volumes, &attach.name, Goal::AttachedTo(&attach.node)).await
            }
            Command::Detach(named) => {
                change(&volumes, &named.name, json!({ "nodeID": "" })).await?;
                named.patience.wait(&volumes, &named.name, Goal::Detached).await
            }
            Command::Expand(expand) => {
                change(&volumes, &expand.name, json!({ "size": expand.size })).await?;
                expand.patience.wait(&volumes, &expand.name, Goal::Grown).await
            }
            Command::Snapshot(snapshots) => snapshots.run(session, client).await,
            Command::Backup(backups) => backups.run(session, client).await,
            Command::Restore(restore) => restore.run(client).await,
            Command::Activate(named) => restore::activate(named, client).await,
            Command::Rm(Rm { named, force }) => {
                check_unused(&find(&volumes, &named.name).await?, force)?;
                let gone = volumes.delete(&named.name, &DeleteParams::default()).await;
                gone.map_err(target::refusal).with_context(|| format!("remove volume {}", named.name))?;
                named.patience.wait(&volumes, &named.name, Goal::Gone).await
            }
        }
    }
}

impl Create {
    fn object(self) -> Volume {
        let spec = VolumeSpec { size: self.size, ..self.shape.spec() };
        let metadata = ObjectMeta { name: Some(self.name), ..ObjectMeta::default() };
        Volume { metadata, spec, status: None }
    }
}

impl Shape {
    fn spec(self) -> VolumeSpec {
        VolumeSpec {
            number_of_replicas: self.replicas,
            data_engine: match self.engine {
                EngineName::V1 => DataEngine::V1,
                EngineName::V2 => DataEngine::V2,
            },
            frontend: match self.frontend {
                FrontendName::Nbd => Frontend::Nbd,
                FrontendName::Blockdev => Frontend::Blockdev,
                FrontendName::None => Frontend::None,
            },
            ..VolumeSpec::default()
        }
    }
}

async fn find(volumes: &Api<Volume>, name: &str) -> anyhow::Result<Volume> {
    let found = volumes.get_opt(name).await.map_err(target::refusal).context("look for the volume")?;
    found.ok_or_else(|| {
        Failure::error(format!("there is no volume {name}"), "`midflight volume ls` lists them")
    })
}

/// Refuses to take a volume from the clients of another node, who would be told of errors.
fn check_free(volume: &Volume, node: &str) -> anyhow::Result<()> {
    let has = volume.spec.node_id.as_str();
    if has.is_empty() || has == node {
        return Ok(());
    }
    let name = volume.name_any();
    Err(Failure::with(
        Exit::Blocked,
        format!("volume {name} is attached to node {has}"),
        format!("detach it first, when nobody there uses it: `midflight volume detach {name} --wait`"),
    ))
}

/// Refuses to remove a volume under its clients, unless that is meant.
fn check_unused(volume: &Volume, force: bool) -> anyhow::Result<()> {
    let node = volume.spec.node_id.as_str();
    if node.is_empty() || force {
        return Ok(());
    }
    let name = volume.name_any();
    Err(Failure::with(
        Exit::Blocked,
        format!("volume {name} is attached to node {node}, and whoever uses it there would lose it"),
        format!(
            "detach it first, when nobody uses it: `midflight volume detach {name} --wait`; --force removes it nevertheless, with its data"
        ),
    ))
}

async fn nodes(client: &Client) -> anyhow::Result<Vec<Node>> {
    let nodes: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    Ok(nodes.list(&ListParams::default()).await.map_err(target::refusal).context("list nodes")?.items)
}

/// Refuses a node that there is not, where the volume would wait, and one that is emptied, which it would keep from that.
fn check_node(volume: &Volume, nodes: &[Node], name: &str) -> anyhow::Result<()> {
    let Some(node) = nodes.iter().find(|node| node.name_any() == name) else {
        let names: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
        return Err(Failure::error(
            format!("there is no node {name}"),
            format!("name one of these: {}", names.join(", ")),
        ));
    };
    if !node.spec.eviction_requested || volume.spec.node_id == name {
        return Ok(());
    }
    Err(Failure::with(
        Exit::Blocked,
        format!("node {name} is being emptied, or is empty, since somebody drained it"),
        format!("attach the volume to another node, or take this one back: `midflight node uncordon {name}`"),
    ))
}

async fn change(volumes: &Api<Volume>, name: &str, spec: Value) -> anyhow::Result<()> {
    find(volumes, name).await?;
    let patch = Patch::Merge(json!({ "spec": spec }));
    let changed = volumes.patch(name, &PatchParams::default(), &patch).await;
    changed.map_err(target::refusal).with_context(|| format!("change volume {name}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Report;

    #[test]
    fn a_volume_is_not_taken_from_another_node() {
        let volume = |node: &str| {
            let mut volume = Volume::new("vol-1", Default::default());
            volume.spec.node_id = node.into();
            volume
        };
        let refused = |volume: &Volume| check_free(volume, "node-1").err().map(|error| error.to_string());
        assert_eq!(refused(&volume("")), None);
        assert_eq!(refused(&volume("node-1")), None);
        assert_eq!(refused(&volume("node-2")).as_deref(), Some("volume vol-1 is attached to node node-2"));
    }

    #[test]
    fn a_volume_is_removed_under_its_clients_only_if_that_is_meant() {
        let mut volume = Volume::new("vol-1", Default::default());
        assert!(check_unused(&volume, false).is_ok());
        volume.spec.node_id = "node-2".into();
        assert!(check_unused(&volume, true).is_ok());
        let refused = Report::of(&check_unused(&volume, false).unwrap_err());
        assert_eq!(refused.exit, Exit::Blocked);
        assert!(refused.to_string().contains("attached to node node-2"), "{refused}");
        assert!(
            refused.try_this.is_some_and(|hint| hint.contains("detach vol-1") && hint.contains("--force"))
        );
    }

    #[test]
    fn a_volume_comes_to_no_node_that_is_unknown_or_drained() {
        let node = |name: &str, is_drained| {
            let mut node = Node::new(name, Default::default());
            node.spec.eviction_requested = is_drained;
            node
        };
        // A node that takes no new replicas serves volumes still.
        let mut closed = node("node-3", false);
        closed.spec.allow_scheduling = false;
        let nodes = [node("node-1", false), node("node-2", true), closed];
        let refused = |has: &str, wanted: &str| {
            let mut volume = Volume::new("vol-1", Default::default());
            volume.spec.node_id = has.into();
            let report = check_node(&volume, &nodes, wanted).err().map(|error| Report::of(&error))?;
            Some(format!("{report}; {}", report.try_this.as_deref().unwrap_or_default()))
        };
        assert_eq!((refused("", "node-1"), refused("", "node-3")), (None, None));
        assert_eq!(refused("node-2", "node-2"), None, "it is there already");
        assert!(refused("", "node-2").is_some_and(|why| why.contains("`midflight node uncordon node-2`")));
        assert!(refused("", "node-4").is_some_and(|why| why.contains("node-1, node-2, node-3")));
    }

    #[test]
    fn sizes_have_units_and_are_whole_blocks() {
        #[rustfmt::skip]
        let cases = [
            ("4096", Some(4096)), ("1", Some(4096)), ("8Mi", Some(8 << 20)), ("20Gi", Some(20 << 30)),
            ("0", None), ("", None), ("-1", None), ("1.5Gi", None), ("1G", None), ("99999999999Ti", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text).ok(), bytes.map(Size::from_bytes), "{text}");
        }
    }
}
