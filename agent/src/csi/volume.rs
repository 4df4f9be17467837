//! What a call says of a volume; upstream's names.
//!
//! Invariant: an id is one component of a path, and a path is absolute and leads nowhere up.

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::{
    mounts::Access,
    proto::{
        VolumeCapability,
        volume_capability::{AccessType, access_mode::Mode},
    },
    record::UNFINISHED,
};

/// Names a volume; also the name of its record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct VolumeId(String);

impl VolumeId {
    const LONGEST: usize = 128;

    pub(super) fn new(text: &str) -> Result<VolumeId, Status> {
        match text {
            "" => Err(Status::invalid_argument("volume_id is missing")),
            text if text.starts_with(UNFINISHED) => {
                Err(Status::invalid_argument("volume_id begins with a dot"))
            }
            text if text.len() > Self::LONGEST || text.contains(['/', '\0']) => {
                Err(Status::invalid_argument("volume_id has a slash, or more than 128 bytes"))
            }
            text => Ok(VolumeId(text.to_owned())),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a volume's daemon mounts, and who brings it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attributes {
    /// Where the daemon mounts.
    pub(super) mount: PathBuf,
    /// Folder of the mount that workloads get.
    pub(super) sub_path: Option<PathBuf>,
    /// Namespace and name of dataset, runtime and claim.
    pub(super) namespace: String,
    pub(super) name: String,
    /// The label that brings the daemon to a node.
    pub(super) label: String,
}

impl Attributes {
    /// What the context says, of a node whose paths are in `root`.
    pub(super) fn of(context: &HashMap<String, String>, root: &Path) -> Result<Attributes, Status> {
        let get = |key: &str| {
            let value = context.get(key).filter(|value| !value.is_empty());
            value.ok_or_else(|| Status::invalid_argument(format!("volume_context has no {key}")))
        };
        let mount = on_node(root, &absolute("fluid_path", get("fluid_path")?)?);
        let (namespace, name) = (get("runtime_namespace")?.clone(), get("runtime_name")?.clone());
        if [&namespace, &name].into_iter().any(|part| part.starts_with('.') || part.contains(['/', '\0'])) {
            return Err(Status::invalid_argument("the runtime's namespace or name is no name of an object"));
        }
        let label = match context.get("mount_pod_node_selector_key") {
            Some(label) if !label.is_empty() => label.clone(),
            _ => format!("fluid.io/f-{namespace}-{name}"),
        };
        let sub_path = match context.get("fluid_sub_path").filter(|path| !path.is_empty()) {
            Some(path) => Some(beneath(path)?),
            None => None,
        };
        Ok(Attributes { mount, sub_path, namespace, name, label })
    }

    pub(super) fn daemon(&self) -> Daemon {
        Daemon(format!("{}.{}", self.namespace, self.name))
    }

    /// Where the daemon's pod writes down what it is: beside the dataset's folder; upstream's in it.
    pub(super) fn metadata(&self) -> PathBuf {
        let folder = self.mount.parent().unwrap_or(&self.mount);
        let own = folder.file_name().map(|name| folder.with_file_name(".meta").join(name));
        own.filter(|own| own.exists()).unwrap_or_else(|| folder.join(".meta/fuse"))
    }
}

/// Names the daemon that serves a dataset on this node; volumes of one dataset share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Daemon(String);

impl Daemon {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where an absolute path of a node is on this machine.
pub(super) fn on_node(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A path of kubelet's.
pub(super) fn absolute(what: &str, text: &str) -> Result<PathBuf, Status> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match text {
        "" => Err(Status::invalid_argument(format!("{what} is missing"))),
        _ if !path.is_absolute() || !plain => {
            Err(Status::invalid_argument(format!("{what} is not an absolute path without .. in it")))
        }
        _ => Ok(path.to_owned()),
    }
}

fn beneath(text: &str) -> Result<PathBuf, Status> {
    let path = Path::new(text.trim_start_matches('/'));
    match path.components().all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(path.to_owned()),
        false => Err(Status::invalid_argument("fluid_sub_path leads out of the volume")),
    }
}

/// How many workloads of a node may use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crowd {
    Any,
    /// One, and no other beside it.
    One,
}

/// How a workload wants to use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) access: Access,
    pub(super) crowd: Crowd,
}

/// Whether a workload may use the volume as it wants to; how that is.
pub(super) fn check(capability: Option<&VolumeCapability>) -> Result<Usage, Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    match capability.access_type {
        Some(AccessType::Mount(_)) => {}
        Some(AccessType::Block(_)) => return Err(Status::invalid_argument("datasets are not block devices")),
        None => return Err(Status::invalid_argument("volume_capability has no access_type")),
    }
    let mode = capability.access_mode.map(|mode| mode.mode());
    let access = match mode {
        Some(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly) => Access::ReadOnly,
        _ => Access::ReadWrite,
    };
    let crowd = if mode == Some(Mode::SingleNodeSingleWriter) { Crowd::One } else { Crowd::Any };
    Ok(Usage { access, crowd })
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn context(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn volumes_of_fluid_are_understood() {
        let base = [
            ("fluid_path", "/runtime-mnt/juicefs/ns/data/juicefs-fuse"),
            ("runtime_namespace", "ns"),
            ("runtime_name", "data"),
        ];
        let plain = Attributes::of(&context(&base), Path::new("/")).unwrap();
        assert_eq!((plain.label.as_str(), &plain.sub_path), ("fluid.io/f-ns-data", &None));
        assert_eq!(plain.metadata(), Path::new("/runtime-mnt/juicefs/ns/data/.meta/fuse"));
        let more = [("mount_pod_node_selector_key", "fluid.io/f-uid"), ("fluid_sub_path", "/a/b")];
        let full = Attributes::of(&context(&[&base[..], &more].concat()), Path::new("/n")).unwrap();
        assert_eq!(full.mount, Path::new("/n/runtime-mnt/juicefs/ns/data/juicefs-fuse"));
        assert_eq!((full.label.as_str(), full.sub_path), ("fluid.io/f-uid", Some(PathBuf::from("a/b"))));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let base = [("runtime_namespace", "ns"), ("runtime_name", "data")];
        #[rustfmt::skip]
        let cases: [&[(&str, &str)]; 7] = [
            &[],
            &[("fluid_path", "")],
            &[("fluid_path", "relative")],
            &[("fluid_path", "/a/../../etc")],
            &[("fluid_path", "/a"), ("fluid_sub_path", "../b")],
            &[("fluid_path", "/a"), ("fluid_sub_path", "a/../../b")],
            &[("fluid_path", "/a"), ("runtime_name", "../b")],
        ];
        for more in cases {
            let refused = Attributes::of(&context(&[&base[..], more].concat()), Path::new("/")).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{more:?}");
        }
        for id in ["", ".", "..", ".a", "a/b", &"i".repeat(129)] {
            assert_eq!(VolumeId::new(id).unwrap_err().code(), Code::InvalidArgument, "{id}");
        }
        assert!(VolumeId::new(&"i".repeat(128)).is_ok());
    }
}
