//! The pods of a node, as plain processes.
//!
//! Each pod has a worker that looks at what is on disk and in the API, lets `plan` decide, tells the API and acts. Pods
//! live on when the agent ends; the next one finds them on disk.
//!
//! ```text
//! pods/UID/containers/NAME/ATTEMPT/   the room of one run
//! pods/UID/volumes/NAME/              what goes with the pod
//! volumes/UID/NAME/                   what a claim brings, through the CSI plugin
//! ```
//!
//! The one invariant: every process of a pod is known from the node's folder alone.

mod claim;
mod environment;
mod health;
mod logs;
mod observe;
mod probe;
mod serve;
mod start;
mod status;
mod stop;
mod volume;
mod worker;

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    runtime::watcher::{self, Event},
};
use tokio::{
    sync::watch,
    task::{Id, JoinSet},
};
use tracing::{info, warn};

pub(crate) use claim::{Claims, SOCKET as CSI_SOCKET};
pub use serve::SOCKET;
pub(crate) use serve::serve;
pub use stop::{Stopped, kill_all, stop_all};
use worker::{Assigned, Worker};

use crate::{
    Backoff, Config, chain,
    connect::connect,
    image::{Digest, Puller},
};

/// Folder of the pods, in that of the node.
const PODS: &str = "pods";

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) config: Config,
    pub(crate) images: Puller,
    pub(crate) claims: Claims,
}

impl Shell {
    fn pods(&self) -> PathBuf {
        self.config.data.join(PODS)
    }
}

/// Runs the pods of the node until the future is dropped, which leaves them running.
pub(crate) async fn run(shell: Arc<Shell>) {
    let (client, clients) = watch::channel(None);
    let mut crew =
        Crew { shell, clients, assigned: HashMap::new(), tasks: JoinSet::new(), by_task: HashMap::new() };
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        if let Err(error) = follow(&mut crew, &client, &mut backoff).await {
            let wait = backoff.failed();
            warn!(error = chain(&*error), ?wait, "lost sight of the pods");
            tokio::time::sleep(wait).await;
        }
    }
}

type Lost = Box<dyn std::error::Error + Send + Sync>;

/// Hands every pod that the API binds to the node to its worker, until the API is out of sight.
async fn follow(
    crew: &mut Crew,
    connected: &watch::Sender<Option<Client>>,
    backoff: &mut Backoff,
) -> Result<(), Lost> {
    let client = connect(&crew.shell.config.kubeconfig).await?;
    connected.send_replace(Some(client.clone()));
    let bound = watcher::Config::default().fields(&format!("spec.nodeName={}", crew.shell.config.name));
    let mut events = watcher::watcher(Api::<Pod>::all(client), bound).boxed();
    let mut listed = BTreeSet::new();
    loop {
        let event = tokio::select! {
            event = events.try_next() => event?,
            Some(ended) = crew.tasks.join_next_with_id() => {
                crew.ended(ended.map_or_else(|error| error.id(), |(id, ())| id));
                continue;
            }
        };
        match event {
            Some(Event::Init) => listed.clear(),
            Some(Event::InitApply(pod)) => {
                listed.insert(pod.uid().unwrap_or_default());
                crew.assign(pod);
            }
            Some(Event::InitDone) => {
                backoff.succeeded();
                crew.dismiss_all_but(&listed)?;
            }
            Some(Event::Apply(pod)) => crew.assign(pod),
            Some(Event::Delete(pod)) => crew.dismiss(&pod.uid().unwrap_or_default()),
            None => return Ok(()),
        }
    }
}

/// The images that containers run from, or ran from when they were last looked at.
pub(crate) fn images_in_use(shell: &Shell) -> BTreeSet<Digest> {
    let root = shell.pods();
    let pods = observe::pods(&root).unwrap_or_default().into_iter().map(|uid| root.join(uid));
    let rooms = pods.flat_map(|pod| {
        let names = observe::containers(&pod);
        names.into_iter().filter_map(move |name| observe::newest(&pod, &name).ok().flatten())
    });
    rooms.filter_map(|newest| newest.blueprint.image_id.rsplit_once('@')?.1.parse().ok()).collect()
}

/// The workers, one for each pod.
struct Crew {
    shell: Arc<Shell>,
    clients: watch::Receiver<Option<Client>>,
    assigned: HashMap<String, watch::Sender<Assigned>>,
    tasks: JoinSet<()>,
    by_task: HashMap<Id, String>,
}

impl Crew {
    fn assign(&mut self, pod: Pod) {
        let uid = pod.uid().unwrap_or_default();
        if !is_uid(&uid) {
            warn!(uid, "a pod whose uid is no name for a folder is left alone");
            return;
        }
        self.tell(uid, Assigned::Here(Arc::new(pod)));
    }

    fn dismiss(&mut self, uid: &str) {
        if let Some(worker) = self.assigned.get(uid) {
            worker.send_replace(Assigned::Gone);
        }
    }

    /// What is on disk or has a worker, and is not in the API, has to go.
    fn dismiss_all_but(&mut self, listed: &BTreeSet<String>) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.shell.pods())?;
        let mut all = on_disk(&self.shell.config.data)?;
        all.extend(self.assigned.keys().cloned());
        for uid in all.difference(listed) {
            self.tell(uid.clone(), Assigned::Gone);
        }
        Ok(())
    }

    fn tell(&mut self, uid: String, assigned: Assigned) {
        if let Some(worker) = self.assigned.get(&uid) {
            worker.send_replace(assigned);
            return;
        }
        let (sender, inbox) = watch::channel(assigned);
        let worker = Worker::new(self.shell.clone(), self.clients.clone(), uid.clone(), inbox);
        let task = self.tasks.spawn(worker.run());
        self.by_task.insert(task.id(), uid.clone());
        self.assigned.insert(uid, sender);
    }

    fn ended(&mut self, task: Id) {
        let Some(uid) = self.by_task.remove(&task) else { return };
        info!(uid, "nothing is left of the pod");
        self.assigned.remove(&uid);
    }
}

/// The pods of which something is on disk. Volumes come before the first container is planned.
fn on_disk(data: &Path) -> io::Result<BTreeSet<String>> {
    let mut all = observe::pods(&data.join(PODS))?;
    all.extend(claim::pods(data)?);
    Ok(all)
}

fn is_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agent may die when a pod has its volumes and no container is planned.
    #[test]
    fn a_pod_is_known_by_its_volumes_alone() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir_all(data.path().join("pods/with-containers")).unwrap();
        assert_eq!(on_disk(data.path()).unwrap(), ["with-containers".to_owned()].into());
        fs::create_dir_all(data.path().join("volumes/with-volumes/v")).unwrap();
        let expected = ["with-containers", "with-volumes"].map(str::to_owned);
        assert_eq!(on_disk(data.path()).unwrap(), expected.into());
    }
}
