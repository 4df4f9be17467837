//! What a call says of a volume; upstream's names.
//!
//! Invariant: an id is one component of a path, and a path is absolute and leads nowhere up.

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::proto::{VolumeCapability, volume_capability::AccessType};

/// Names a volume; also the name of its record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct VolumeId(String);

impl VolumeId {
    const LONGEST: usize = 128;

    pub(super) fn new(text: &str) -> Result<VolumeId, Status> {
        match text {
            "" => Err(Status::invalid_argument("volume_id is missing")),
            "." | ".." => Err(Status::invalid_argument("volume_id is no name")),
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
    pub(super) fn of(context: &HashMap<String, String>) -> Result<Attributes, Status> {
        let get = |key: &str| {
            let value = context.get(key).filter(|value| !value.is_empty());
            value.ok_or_else(|| Status::invalid_argument(format!("volume_context has no {key}")))
        };
        let mount = absolute("fluid_path", get("fluid_path")?)?;
        let (namespace, name) = (get("runtime_namespace")?.clone(), get("runtime_name")?.clone());
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

    /// Where the daemon's pod writes down what it is.
    pub(super) fn metadata(&self) -> PathBuf {
        self.mount.parent().unwrap_or(&self.mount).join(".meta/fuse")
    }
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

/// Whether a workload may use the volume as it wants to.
pub(super) fn check(capability: Option<&VolumeCapability>) -> Result<(), Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    match capability.access_type {
        Some(AccessType::Mount(_)) => Ok(()),
        Some(AccessType::Block(_)) => Err(Status::invalid_argument("datasets are not block devices")),
        None => Err(Status::invalid_argument("volume_capability has no access_type")),
    }
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
        let plain = Attributes::of(&context(&base)).unwrap();
        assert_eq!((plain.label.as_str(), &plain.sub_path), ("fluid.io/f-ns-data", &None));
        assert_eq!(plain.metadata(), Path::new("/runtime-mnt/juicefs/ns/data/.meta/fuse"));
        let more = [("mount_pod_node_selector_key", "fluid.io/f-uid"), ("fluid_sub_path", "/a/b")];
        let full = Attributes::of(&context(&[&base[..], &more].concat())).unwrap();
        assert_eq!((full.label.as_str(), full.sub_path), ("fluid.io/f-uid", Some(PathBuf::from("a/b"))));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let base = [("runtime_namespace", "ns"), ("runtime_name", "data")];
        #[rustfmt::skip]
        let cases: [&[(&str, &str)]; 6] = [
            &[],
            &[("fluid_path", "")],
            &[("fluid_path", "relative")],
            &[("fluid_path", "/a/../../etc")],
            &[("fluid_path", "/a"), ("fluid_sub_path", "../b")],
            &[("fluid_path", "/a"), ("fluid_sub_path", "a/../../b")],
        ];
        for more in cases {
            let refused = Attributes::of(&context(&[&base[..], more].concat())).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{more:?}");
        }
        for id in ["", ".", "..", "a/b", &"i".repeat(129)] {
            assert_eq!(VolumeId::new(id).unwrap_err().code(), Code::InvalidArgument, "{id}");
        }
        assert!(VolumeId::new(&"i".repeat(128)).is_ok());
    }
}
