//! A record that a cluster keeps: the VolumeRecord of the volume's name.
//!
//! All records of a process go through one connection per kubeconfig, on a thread of its own, so
//! that an engine costs none.
//!
//! Invariant: a swap names the resourceVersion that was read; the API refuses it otherwise.

use std::{
    collections::HashMap,
    error::Error,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use kube::{
    Api, Client, Config, ResourceExt,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use midflight_api::{MemberMode, OperationPhase, VolumeRecord, longhorn::NAMESPACE};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{Attachment, Member, Record, RecordError, RecordStore, Revision};
use crate::engine::members::Mode;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const FIELD_MANAGER: &str = "midflight-instance-manager";

/// A connection to a cluster, for threads that may wait.
pub struct Cluster {
    runtime: Runtime,
    client: Client,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}

/// Why a record cannot be used as it is.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("the record of {0} is not in the cluster")]
    Missing(String),
    #[error("{0:?} is no attachment of ours")]
    Attachment(String),
    #[error("the record has a term or version that no volume reaches")]
    Number,
    #[error("nobody knows the node of replica {0}")]
    Homeless(String),
    #[error("the record was not read before")]
    Unread,
}

impl Cluster {
    /// The connection of this kubeconfig; the same one for all who ask in this process.
    pub fn of(kubeconfig: &Path) -> Result<Arc<Cluster>, RecordError> {
        static ALL: OnceLock<Mutex<HashMap<PathBuf, Arc<Cluster>>>> = OnceLock::new();
        let all = ALL.get_or_init(Mutex::default);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(kubeconfig) {
            return Ok(Arc::clone(known));
        }
        let cluster = Arc::new(Cluster::connect(kubeconfig).map_err(failed("reach the cluster with"))?);
        all.insert(kubeconfig.to_owned(), Arc::clone(&cluster));
        Ok(cluster)
    }

    fn connect(kubeconfig: &Path) -> Result<Cluster, Box<dyn Error + Send + Sync>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("records")
            .enable_all()
            .build()?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig)?;
            let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            config.connect_timeout = Some(CONNECT_WITHIN);
            config.read_timeout = Some(ANSWER_WITHIN);
            config.write_timeout = Some(ANSWER_WITHIN);
            Ok::<_, Box<dyn Error + Send + Sync>>(Client::try_from(config)?)
        })?;
        Ok(Cluster { runtime, client })
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Waits for something that is asked of the cluster.
    pub fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        self.runtime.block_on(request)
    }

    /// The record of a volume.
    pub fn record(self: &Arc<Self>, volume: &str) -> ApiRecord {
        ApiRecord { cluster: Arc::clone(self), volume: volume.to_owned(), last: None }
    }
}

/// The record of one volume.
#[derive(Debug)]
pub struct ApiRecord {
    cluster: Arc<Cluster>,
    volume: String,
    /// As it was read last: a swap keeps what engines do not know.
    last: Option<VolumeRecord>,
}

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(doing: &'static str) -> impl FnOnce(E) -> RecordError {
    move |source| RecordError { doing, source: source.into() }
}

impl ApiRecord {
    fn api(&self) -> Api<VolumeRecord> {
        Api::namespaced(self.cluster.client(), NAMESPACE)
    }
}

fn mode(mode: MemberMode) -> Mode {
    match mode {
        MemberMode::ReadWrite => Mode::InService,
        MemberMode::WriteOnly => Mode::Rebuilding,
        MemberMode::Error => Mode::Out,
    }
}

fn mode_in_api(mode: Mode) -> MemberMode {
    match mode {
        Mode::InService => MemberMode::ReadWrite,
        Mode::Rebuilding => MemberMode::WriteOnly,
        Mode::Out => MemberMode::Error,
    }
}

/// What engines know of the object.
fn read(object: &VolumeRecord) -> Result<Record, Unfit> {
    let spec = &object.spec;
    let attachment = spec.frontend.as_ref().map(|frontend| {
        let text = frontend.attach_id.as_str();
        text.parse().map(Attachment::from_bits).map_err(|_| Unfit::Attachment(text.to_owned()))
    });
    let members = spec.members.iter();
    Ok(Record {
        term: spec.term.number(),
        member_version: spec.member_version.try_into().map_err(|_| Unfit::Number)?,
        members: members
            .map(|member| Member { replica: member.replica.to_string(), mode: mode(member.mode) })
            .collect(),
        attachment: attachment.transpose()?,
        switching: spec.operation.as_ref().is_some_and(|change| change.phase == OperationPhase::Switching),
    })
}

/// The change that makes the object say what a record says.
fn change(object: &VolumeRecord, record: &Record) -> Result<serde_json::Value, Unfit> {
    let member = |member: &Member| {
        let known = object.spec.members.iter().find(|known| known.replica == member.replica.as_str());
        let node = known.map(|known| known.node_id.clone());
        let node = node.ok_or_else(|| Unfit::Homeless(member.replica.clone()))?;
        Ok(json!({ "replica": member.replica, "nodeID": node, "mode": mode_in_api(member.mode) }))
    };
    Ok(json!({
        "metadata": { "resourceVersion": object.resource_version() },
        "spec": {
            "term": record.term,
            "memberVersion": record.member_version,
            "members": record.members.iter().map(member).collect::<Result<Vec<_>, _>>()?,
        },
    }))
}

impl RecordStore for ApiRecord {
    fn read(&mut self) -> Result<(Revision, Record), RecordError> {
        let found = self.cluster.wait(self.api().get_opt(&self.volume)).map_err(failed("read"))?;
        let object = found.ok_or_else(|| failed("read")(Unfit::Missing(self.volume.clone())))?;
        let record = read(&object).map_err(failed("read"))?;
        let revision = Revision(object.resource_version().unwrap_or_default());
        self.last = Some(object);
        Ok((revision, record))
    }

    fn swap(&mut self, seen: &Revision, record: &Record) -> Result<bool, RecordError> {
        let last = self.last.as_ref().filter(|last| last.resource_version().as_deref() == Some(&*seen.0));
        let last = last.ok_or_else(|| failed("change")(Unfit::Unread))?;
        let change = Patch::Merge(change(last, record).map_err(failed("change"))?);
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        match self.cluster.wait(self.api().patch(&self.volume, &parameters, &change)) {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(failed("change")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> VolumeRecord {
        serde_json::from_value(json!({
            "apiVersion": "midflight.dev/v1alpha1", "kind": "VolumeRecord",
            "metadata": { "name": "vol-1", "namespace": NAMESPACE, "resourceVersion": "7" },
            "spec": {
                "term": 3, "memberVersion": 5,
                "frontend": { "attachID": "18446744073709551615", "nodeID": "n-1" },
                "members": [
                    { "replica": "a", "nodeID": "n-1", "mode": "rw" },
                    { "replica": "b", "nodeID": "n-2", "mode": "wo" },
                    { "replica": "c", "nodeID": "n-3", "mode": "err" },
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn engines_read_what_the_object_says_and_change_only_what_is_theirs() {
        let mut record = read(&object()).unwrap();
        assert_eq!((record.term, record.member_version), (3, 5));
        assert_eq!(record.attachment, Some(Attachment::from_bits(u64::MAX)));
        let modes: Vec<Mode> = record.members.iter().map(|member| member.mode).collect();
        assert_eq!(modes, [Mode::InService, Mode::Rebuilding, Mode::Out]);
        for (phase, switching) in [("preparing", false), ("switching", true), ("done", false)] {
            let mut object = object();
            let operation = json!({ "id": "3", "phase": phase, "to": { "name": "e-3", "nodeID": "n-2" } });
            object.spec.operation = Some(serde_json::from_value(operation).unwrap());
            assert_eq!(read(&object).unwrap().switching, switching, "{phase}");
        }

        record.member_version = 6;
        record.members[1].mode = Mode::InService;
        record.members.remove(2);
        let change = change(&object(), &record).unwrap();
        assert_eq!(
            change,
            json!({
                "metadata": { "resourceVersion": "7" },
                "spec": { "term": 3, "memberVersion": 6, "members": [
                    { "replica": "a", "nodeID": "n-1", "mode": "rw" },
                    { "replica": "b", "nodeID": "n-2", "mode": "rw" },
                ] },
            })
        );
    }

    #[test]
    fn a_member_that_nobody_placed_is_not_written() {
        let mut record = read(&object()).unwrap();
        record.members.push(Member { replica: "d".into(), mode: Mode::Out });
        assert!(matches!(change(&object(), &record), Err(Unfit::Homeless(name)) if name == "d"));
        let mut odd = object();
        odd.spec.frontend.as_mut().unwrap().attach_id = "x".into();
        assert!(matches!(read(&odd), Err(Unfit::Attachment(_))));
    }
}
