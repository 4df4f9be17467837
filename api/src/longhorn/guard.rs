//! When the engine image of a volume may change, and how clients reach it, as far as the volume itself can tell.
//!
//! These rules stand at the top of the Volume's schema, since they look at its status. What needs
//! other objects to be judged is not here. The invariant: going back to `status.currentImage` is
//! always allowed, and clients are not left with a frontend that nobody asks for. What asks for no image would get the default one unjudged, so an image cannot be taken away.

use serde_json::Value;

use crate::wire::rule;

/// Nothing changes, nothing runs yet, it goes back to what runs, or only a node upgrade may change it.
const HARMLESS: &str = "!has(self.spec.image) || (has(oldSelf.spec.image) && self.spec.image == oldSelf.spec.image) || \
    !has(oldSelf.status) || !has(oldSelf.status.currentImage) || oldSelf.status.currentImage == '' || \
    self.spec.image == oldSelf.status.currentImage || \
    (has(oldSelf.spec.dataEngine) && oldSelf.spec.dataEngine == 'v2')";

const DETACHED: &str = "!has(oldSelf.status.state) || oldSelf.status.state != 'attached'";

/// No client is served.
const UNSERVED: &str = "!has(oldSelf.status) || !has(oldSelf.status.state) || oldSelf.status.state != 'attached' || \
    (has(oldSelf.status.frontendDisabled) && oldSelf.status.frontendDisabled)";

/// That a field is what it was, or no client is served.
fn kept_while_served(field: &str, empty: &str) -> Value {
    let of = |volume: &str| format!("(has({volume}.spec.{field}) ? {volume}.spec.{field} : {empty})");
    rule(
        &format!("{UNSERVED} || {} == {}", of("self"), of("oldSelf")),
        &format!(
            "spec.{field} cannot change while the volume is attached and serves clients; detach it first (empty spec.nodeID)"
        ),
    )
}

/// The rules of a whole Volume.
pub(crate) fn rules() -> Vec<Value> {
    let guard = |condition: &str, message: &str| rule(&format!("{HARMLESS} || {condition}"), message);
    vec![
        rule(
            "(has(self.spec.image) && self.spec.image != '') || !has(oldSelf.spec.image) || oldSelf.spec.image == ''",
            "spec.image cannot be emptied; name an image, for instance status.currentImage, or that of the setting default-engine-image",
        ),
        guard(
            "!has(oldSelf.spec.image) || oldSelf.spec.image == '' || oldSelf.spec.image == oldSelf.status.currentImage",
            "the volume is on its way to another engine image; set spec.image back to status.currentImage first",
        ),
        guard(
            "((!has(oldSelf.spec.migrationNodeID) || oldSelf.spec.migrationNodeID == '') && \
             (!has(oldSelf.status.currentMigrationNodeID) || oldSelf.status.currentMigrationNodeID == ''))",
            "the volume is moving to another node; change spec.image when it has moved",
        ),
        guard(
            &format!(
                "{DETACHED} || (has(oldSelf.status.robustness) && oldSelf.status.robustness == 'healthy')"
            ),
            "the volume is attached and not healthy; wait for its replicas, or detach it, before spec.image changes",
        ),
        guard(
            &format!(
                "{DETACHED} || !has(oldSelf.spec.dataLocality) || oldSelf.spec.dataLocality != 'strict-local'"
            ),
            "a strict-local volume cannot change its engine while it is attached; detach it before spec.image changes",
        ),
        kept_while_served("frontend", "''"),
        kept_while_served("disableFrontend", "false"),
    ]
}
