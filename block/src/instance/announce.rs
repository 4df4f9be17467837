//! Tells the cluster where an instance manager takes commands.
//!
//! Invariant: the cluster is told again until it has heard.

use std::{net::SocketAddr, path::Path, thread, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use midflight_api::longhorn::{InstanceManager, NAMESPACE};
use serde_json::json;

use crate::{record::api::Cluster, role::in_words};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Writes the address into the InstanceManager of this name, beside everything else.
pub(super) fn announce(kubeconfig: &Path, name: &str, address: SocketAddr) {
    let (kubeconfig, name) = (kubeconfig.to_owned(), name.to_owned());
    thread::spawn(move || {
        let mut wait = FIRST_WAIT;
        while let Err(why) = tell(&kubeconfig, &name, address) {
            tracing::warn!(name, why, "the cluster does not know yet where commands are taken");
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        tracing::info!(name, %address, "the cluster knows where commands are taken");
    });
}

fn tell(kubeconfig: &Path, name: &str, address: SocketAddr) -> Result<(), String> {
    let cluster = Cluster::of(kubeconfig).map_err(|error| in_words(&error))?;
    let managers: Api<InstanceManager> = Api::namespaced(cluster.client(), NAMESPACE);
    let status = Patch::Merge(json!({ "status": { "ip": address.to_string() } }));
    let told = cluster.wait(managers.patch_status(name, &PatchParams::default(), &status));
    told.map(drop).map_err(|error| in_words(&error))
}
