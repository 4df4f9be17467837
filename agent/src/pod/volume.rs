//! The volumes of a pod: where they are on the node, and where containers see them.
//!
//! The one invariant: a path of a pod never leads out of its node's folder, except to the machine's devices and to the
//! cluster's folder of backups.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Component, Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, HostPathVolumeSource, Pod, Volume, VolumeMount};

use super::claim;
use crate::container::Mount;

/// The folders of a node that pods may see.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    /// Where its hostPath volumes are rooted.
    pub(super) data: &'a Path,
    /// What stands for its `/run`; short, because sockets live there.
    pub(super) run: &'a Path,
    /// What stands for `/backups` on every node.
    pub(super) backups: &'a Path,
}

/// Why a volume cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeError {
    #[error("volume {0} is not among those of the pod")]
    Unknown(String),
    #[error("volume {0} is of a kind that nodes of this cluster do not have")]
    Kind(String),
    #[error("volume {volume}: {path} leads out of the node's folder")]
    Outside { volume: String, path: String },
    #[error("volume {volume}: {path} is not there, or is no {wanted}", path = path.display())]
    Missing { volume: String, path: PathBuf, wanted: String },
    #[error("volume {volume}: make {path}", path = path.display())]
    Make { volume: String, path: PathBuf, source: io::Error },
}

/// What a container sees, made where it is not there yet. `room` is where the pod keeps what goes with it.
pub(super) fn mounts(
    pod: &Pod,
    container: &Container,
    room: &Path,
    node: &Node<'_>,
) -> Result<Vec<Mount>, VolumeError> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mount = |wanted: &VolumeMount| {
        let volume = volumes.iter().find(|volume| volume.name == wanted.name);
        let volume = volume.ok_or_else(|| VolumeError::Unknown(wanted.name.clone()))?;
        let mut source = source(volume, room, node)?;
        if let Some(inner) = wanted.sub_path.as_deref().filter(|path| !path.is_empty()) {
            source = below(&source, inner).ok_or_else(|| outside(volume, inner))?;
            if fs::symlink_metadata(&source).is_err() {
                make_folder(volume, &source)?;
            }
        }
        Ok(Mount {
            source,
            target: wanted.mount_path.clone().into(),
            read_only: wanted.read_only == Some(true),
            bidirectional: wanted.mount_propagation.as_deref() == Some("Bidirectional"),
        })
    };
    container.volume_mounts.iter().flatten().map(mount).collect()
}

fn source(volume: &Volume, room: &Path, node: &Node<'_>) -> Result<PathBuf, VolumeError> {
    if volume.empty_dir.is_some() {
        let path = room.join("volumes").join(&volume.name);
        make_folder(volume, &path)?;
        return Ok(path);
    }
    if volume.persistent_volume_claim.is_some() {
        // Brought by the CSI plugin before any container is started.
        let uid = room.file_name().unwrap_or_default();
        return Ok(claim::source(node.data, Path::new(uid), &volume.name));
    }
    match &volume.host_path {
        Some(host) => host_path(volume, host, node),
        None => Err(VolumeError::Kind(volume.name.clone())),
    }
}

fn host_path(volume: &Volume, host: &HostPathVolumeSource, node: &Node<'_>) -> Result<PathBuf, VolumeError> {
    let path = on_node(&host.path, node).ok_or_else(|| outside(volume, &host.path))?;
    let kind = host.type_.as_deref().unwrap_or_default();
    let there = fs::metadata(&path).ok();
    let fits = |wanted: fn(&fs::FileType) -> bool| {
        there.as_ref().is_some_and(|metadata| wanted(&metadata.file_type()))
    };
    use std::os::unix::fs::FileTypeExt;
    let found = match kind {
        "" | "DirectoryOrCreate" | "FileOrCreate" => there.is_some(),
        "Directory" => fits(fs::FileType::is_dir),
        "File" => fits(fs::FileType::is_file),
        "Socket" => fits(FileTypeExt::is_socket),
        "CharDevice" => fits(FileTypeExt::is_char_device),
        "BlockDevice" => fits(FileTypeExt::is_block_device),
        _ => false,
    };
    match kind {
        _ if found => Ok(path),
        "" | "DirectoryOrCreate" => make_folder(volume, &path).map(|()| path),
        "FileOrCreate" => {
            make_folder(volume, path.parent().unwrap_or(node.data))?;
            let made = fs::File::options().create(true).append(true).open(&path);
            made.map_err(|source| VolumeError::Make {
                volume: volume.name.clone(),
                path: path.clone(),
                source,
            })?;
            Ok(path)
        }
        wanted => Err(VolumeError::Missing { volume: volume.name.clone(), path, wanted: wanted.to_owned() }),
    }
}

/// Where a path of the node is on the machine. Devices are the machine's own.
fn on_node(path: &str, node: &Node<'_>) -> Option<PathBuf> {
    let inside = |rest: &str| below(node.run, rest);
    let first = |name: &str| path == name || path.starts_with(&format!("{name}/"));
    if ["/dev", "/proc", "/sys"].iter().any(|kernel| first(kernel)) {
        return below(Path::new("/"), path);
    }
    if first("/run") {
        return inside(&path["/run".len()..]);
    }
    if first("/backups") {
        return below(node.backups, &path["/backups".len()..]);
    }
    if first("/var/run") {
        return inside(&path["/var/run".len()..]);
    }
    below(node.data, path)
}

fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let mut all = root.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => all.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(all)
}

fn outside(volume: &Volume, path: &str) -> VolumeError {
    VolumeError::Outside { volume: volume.name.clone(), path: path.to_owned() }
}

fn make_folder(volume: &Volume, path: &Path) -> Result<(), VolumeError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|source| VolumeError::Make { volume: volume.name.clone(), path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "callers make the values in place")]
    fn mounted(root: &Path, volume: Value, mount: Value) -> Result<Mount, String> {
        let mut whole = json!({ "name": "v" });
        whole.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
        let mut mounts_at = json!({ "name": "v", "mountPath": "/data" });
        mounts_at.as_object_mut().unwrap().extend(mount.as_object().unwrap().clone());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {},
            "spec": { "volumes": [whole], "containers": [{ "name": "c", "volumeMounts": [mounts_at] }] },
        }))
        .unwrap();
        let (data, run, backups) = (root.join("data"), root.join("run"), root.join("backups"));
        let node = Node { data: &data, run: &run, backups: &backups };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let all = mounts(&pod, container, &root.join("pod"), &node);
        all.map(|mut all| all.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn paths_stay_on_the_node() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let host = |path: &str| json!({ "hostPath": { "path": path } });
        let source = |volume: Value| mounted(root, volume, json!({})).map(|mount| mount.source);
        assert_eq!(source(host("/var/lib/x")), Ok(root.join("data/var/lib/x")));
        assert_eq!(source(host("/run/x")), Ok(root.join("run/x")));
        assert_eq!(source(host("/var/run/y")), Ok(root.join("run/y")));
        assert_eq!(source(host("/backups")), Ok(root.join("backups")));
        assert_eq!(source(host("/running")), Ok(root.join("data/running")));
        assert_eq!(source(host("/dev")), Ok("/dev".into()));
        assert_eq!(source(json!({ "emptyDir": {} })), Ok(root.join("pod/volumes/v")));
        assert!(source(host("/../etc")).unwrap_err().contains("leads out of the node's folder"));
        assert!(source(json!({ "nfs": { "server": "s", "path": "/" } })).unwrap_err().contains("of a kind"));
        assert!(root.join("data/var/lib/x").is_dir());
    }

    #[test]
    fn what_must_be_there_must_be_there() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let typed = |kind: &str| json!({ "hostPath": { "path": "/a/file", "type": kind } });
        assert!(mounted(root, typed("File"), json!({})).unwrap_err().contains("is no File"));
        let made = mounted(root, typed("FileOrCreate"), json!({ "readOnly": true })).unwrap();
        assert!(made.read_only && made.source.is_file());
        assert!(mounted(root, typed("File"), json!({})).is_ok());
        assert!(mounted(root, typed("Directory"), json!({})).unwrap_err().contains("is no Directory"));
        let inner = mounted(root, json!({ "emptyDir": {} }), json!({ "subPath": "a/b" })).unwrap();
        assert!(inner.source.ends_with("volumes/v/a/b") && inner.source.is_dir());
        assert!(mounted(root, json!({ "emptyDir": {} }), json!({ "subPath": "../x" })).is_err());
    }
}
