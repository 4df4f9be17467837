//! Volumes of a pod that claims name: staged and published through the node's CSI plugin.
//!
//! ```text
//! DATA/volumes/UID/NAME/claim.json   what is asked of the plugin, written before it is asked
//! DATA/volumes/UID/NAME/mount        where containers find the volume
//! DATA/staging/HANDLE                names the volume to the plugin, for the whole node
//! ```
//!
//! The one invariant: nothing is asked of the plugin that is not on disk first, and a volume is unstaged when no pod of
//! the node has it any more.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume as PodVolume};
use kube::{Api, Client, ResourceExt};
use midflight_api::fluid::DRIVER;
use serde::{Deserialize, Serialize};

use super::observe;
use crate::{
    Config,
    container::Room,
    csi::{
        Access, Mounts,
        client::{CallError, Places, Plugin, Volume},
    },
};

/// The socket of the node's plugin, in the node's folder for sockets.
pub(crate) const SOCKET: &str = "csi.sock";
const VOLUMES: &str = "volumes";
const STAGING: &str = "staging";
const RECORD: &str = "claim.json";
const UNFINISHED: &str = "claim.new";
const TARGET: &str = "mount";

/// Why a volume of a pod is not there, or not gone.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    #[error("read {what}")]
    Read { what: String, source: Box<kube::Error> },
    #[error("there is no claim {0}")]
    NoClaim(String),
    #[error("claim {0} has no volume yet")]
    Unbound(String),
    #[error("volume {0} is not served by {DRIVER}, the only driver that nodes of this cluster have")]
    Driver(String),
    #[error("keep what is known of {path}", path = path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("{doing} volume {handle}")]
    Call { doing: &'static str, handle: String, source: CallError },
}

/// What was asked of the plugin for one volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    handle: String,
    staging: PathBuf,
}

/// Those who work on a volume of the node, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Where a volume of a pod is for its containers.
pub(super) fn source(data: &Path, uid: &Path, volume: &str) -> PathBuf {
    data.join(VOLUMES).join(uid).join(volume).join(TARGET)
}

/// The pods that have volumes of claims.
pub(super) fn pods(data: &Path) -> io::Result<BTreeSet<String>> {
    match observe::pods(&data.join(VOLUMES)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        pods => pods,
    }
}

/// Whether the pod of a container has volumes of claims.
pub(super) fn has_any(data: &Path, container: &Room) -> bool {
    // The room is that of an attempt: POD/containers/NAME/ATTEMPT.
    let pod = container.path().ancestors().nth(3).and_then(Path::file_name);
    pod.is_some_and(|uid| data.join(VOLUMES).join(uid).exists())
}

/// Unmounts what pods had, and what is left of what served it, of a node whose pods have ended. The folders stay: the
/// next agent finds there what the plugin was asked.
pub(super) fn let_go(data: &Path) {
    let Ok(data) = fs::canonicalize(data) else { return };
    for mounted in Mounts::Machine.table().unwrap_or_default().iter().rev() {
        if mounted.at.starts_with(data.join(VOLUMES)) || mounted.at.starts_with(data.join("runtime-mnt")) {
            // Gone with one below it.
            let _ = rustix::mount::unmount(&mounted.at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Claims {
    fn turn(&self, handle: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(handle.to_owned()).or_default())
    }

    /// Has the plugin bring every volume of a pod that a claim names. May be repeated.
    pub(super) async fn publish(
        &self,
        config: &Config,
        pod: &Pod,
        client: &Client,
    ) -> Result<(), ClaimError> {
        let uid = pod.uid().unwrap_or_default();
        for (name, claim, read_only) in claims(pod) {
            let mut volume = find(client, &pod.namespace().unwrap_or_default(), claim).await?;
            if read_only {
                volume.access = Access::ReadOnly;
            }
            let folder = config.data.join(VOLUMES).join(&uid).join(name);
            let staging = config.data.join(STAGING).join(&volume.handle);
            let at = Places { staging, target: folder.join(TARGET) };
            let turn = self.turn(&volume.handle);
            let _turn = turn.lock().await;
            let record = Record { handle: volume.handle.clone(), staging: at.staging.clone() };
            record.write(&folder).map_err(|source| ClaimError::Record { path: folder.clone(), source })?;
            let failed = |doing| {
                let handle = volume.handle.clone();
                move |source| ClaimError::Call { doing, handle, source }
            };
            let socket = config.run.join(SOCKET);
            let mut plugin = Plugin::reach(&socket).await.map_err(failed("stage"))?;
            plugin.stage(&volume, &at).await.map_err(failed("stage"))?;
            plugin.publish(&volume, &at).await.map_err(failed("publish"))?;
        }
        Ok(())
    }

    /// Has the plugin take back every volume of a pod. May be repeated.
    pub(super) async fn release(&self, config: &Config, uid: &str) -> Result<(), ClaimError> {
        let all = config.data.join(VOLUMES);
        let own = all.join(uid);
        let kept = |path: &Path| {
            let path = path.to_owned();
            move |source| ClaimError::Record { path, source }
        };
        for (folder, record) in records(&own).map_err(kept(&own))? {
            if let Some(record) = record {
                let turn = self.turn(&record.handle);
                let _turn = turn.lock().await;
                let is_last = !is_used(&all, &folder, &record.handle).map_err(kept(&all))?;
                record.take_back(&config.run.join(SOCKET), &folder, is_last).await?;
            }
            forget(&folder).map_err(kept(&folder))?;
        }
        match fs::remove_dir(&own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ClaimError::Record { path: own, source: error })
            }
            _ => Ok(()),
        }
    }
}

/// Volumes of a pod that claims name: name of the volume, name of the claim, whether it is only read.
fn claims(pod: &Pod) -> impl Iterator<Item = (&str, &str, bool)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().filter_map(|volume: &PodVolume| {
        let claim = volume.persistent_volume_claim.as_ref()?;
        Some((volume.name.as_str(), claim.claim_name.as_str(), claim.read_only == Some(true)))
    })
}

/// The volume that a claim is bound to.
async fn find(client: &Client, namespace: &str, claim: &str) -> Result<Volume, ClaimError> {
    let read = |what: &str| {
        let what = what.to_owned();
        move |source| ClaimError::Read { what, source: Box::new(source) }
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let found = claims.get_opt(claim).await.map_err(read(claim))?;
    let found = found.ok_or_else(|| ClaimError::NoClaim(claim.to_owned()))?;
    let name = found.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ClaimError::Unbound(claim.to_owned()))?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get_opt(&name).await.map_err(read(&name))?;
    let volume = volume.ok_or_else(|| ClaimError::Unbound(claim.to_owned()))?;
    let spec = volume.spec.unwrap_or_default();
    let source = spec.csi.filter(|source| source.driver == DRIVER).ok_or_else(|| ClaimError::Driver(name))?;
    let modes = spec.access_modes.unwrap_or_default();
    let only_read = !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany");
    let access =
        if only_read || source.read_only == Some(true) { Access::ReadOnly } else { Access::ReadWrite };
    Ok(Volume {
        handle: source.volume_handle,
        attributes: source.volume_attributes.unwrap_or_default(),
        access,
    })
}

impl Record {
    async fn take_back(&self, socket: &Path, folder: &Path, is_last: bool) -> Result<(), ClaimError> {
        let failed = |doing| move |source| ClaimError::Call { doing, handle: self.handle.clone(), source };
        let at = Places { staging: self.staging.clone(), target: folder.join(TARGET) };
        let mut plugin = Plugin::reach(socket).await.map_err(failed("unpublish"))?;
        plugin.unpublish(&self.handle, &at).await.map_err(failed("unpublish"))?;
        if is_last {
            plugin.unstage(&self.handle, &at).await.map_err(failed("unstage"))?;
        }
        Ok(())
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let (path, new) = (folder.join(RECORD), folder.join(UNFINISHED));
        let text = serde_json::to_vec(self)?;
        if fs::read(&path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        fs::write(&new, text)?;
        fs::File::open(&new)?.sync_all()?;
        fs::rename(new, path)
    }
}

/// The folders of a pod's volumes, each with what was asked of the plugin, if anything was.
fn records(pod: &Path) -> io::Result<Vec<(PathBuf, Option<Record>)>> {
    let folders = match fs::read_dir(pod) {
        Ok(folders) => folders,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let record = |folder: PathBuf| match fs::read(folder.join(RECORD)) {
        Ok(raw) => Ok((folder, Some(serde_json::from_slice(&raw)?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((folder, None)),
        Err(error) => Err(error),
    };
    folders.map(|folder| record(folder?.path())).collect()
}

/// Removes the folder of a volume; never what is mounted in it.
fn forget(folder: &Path) -> io::Result<()> {
    let absent_is_well = |done: io::Result<()>| match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    absent_is_well(fs::remove_dir(folder.join(TARGET)))?;
    absent_is_well(fs::remove_file(folder.join(UNFINISHED)))?;
    absent_is_well(fs::remove_file(folder.join(RECORD)))?;
    absent_is_well(fs::remove_dir(folder))
}

/// Whether any other volume of the node's pods is that one.
fn is_used(all: &Path, but: &Path, handle: &str) -> io::Result<bool> {
    for pod in fs::read_dir(all)? {
        let is_it = |(folder, record): &(PathBuf, Option<Record>)| {
            folder != but && record.as_ref().is_some_and(|record| record.handle == handle)
        };
        if records(&pod?.path())?.iter().any(is_it) {
            return Ok(true);
        }
    }
    Ok(false)
}
