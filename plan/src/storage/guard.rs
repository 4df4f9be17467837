//! What nobody may delete while it is needed.

use midflight_api::longhorn::{NAMESPACE, Volume, VolumeState};
use midflight_api::settings;

/// Names at most this many volumes; the rest is a number.
const NAMED: usize = 5;

/// Why something cannot be deleted, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Needed {
    #[error(
        "the setting {name} is always there; set its value back to its default instead: \
         kubectl -n {NAMESPACE} patch settings.longhorn.io {name} --type=merge -p '{{\"value\":{default:?}}}'"
    )]
    Setting { name: &'static str, default: &'static str },
    #[error(
        "the record of volume {volume} says which copies of it are good, and goes with the volume; \
         to delete both: kubectl -n {NAMESPACE} delete volumes.longhorn.io {volume}"
    )]
    Record { volume: String },
    #[error(
        "{node} is a node of this cluster, and its tags and disks would be forgotten; to keep replicas away from it: \
         midflight node drain {node}"
    )]
    Node { node: String },
    #[error(
        "orders to instance managers carry this Secret, and {users} could not be taken care of any more; \
         it can be deleted once they are gone"
    )]
    Secret { users: String },
    #[error(
        "deleting the namespace {NAMESPACE} deletes every volume with its data, and {volumes} still attached; \
         detach first what may go: midflight volume detach NAME"
    )]
    Namespace { volumes: String },
}

/// Whether somebody may delete a setting. One that nobody knows is of no use.
pub fn setting_may_go(name: &str) -> Result<(), Needed> {
    match settings::find(name) {
        Some(known) => Err(Needed::Setting { name: known.name, default: known.default }),
        None => Ok(()),
    }
}

/// Whether somebody may delete the Secret by which instance managers know whose orders they get. Also in a namespace that ends: volumes
/// that go, go by orders.
pub fn secret_may_go(volumes: usize, managers: usize) -> Result<(), Needed> {
    let count = |number: usize, what: &str| match number {
        0 => None,
        1 => Some(format!("1 {what}")),
        many => Some(format!("{many} {what}s")),
    };
    let users: Vec<String> =
        [count(volumes, "volume"), count(managers, "instance manager")].into_iter().flatten().collect();
    if users.is_empty() { Ok(()) } else { Err(Needed::Secret { users: users.join(" and ") }) }
}

/// Whether somebody may delete the namespace of these volumes.
pub fn namespace_may_go(volumes: &[Volume]) -> Result<(), Needed> {
    let attached = volumes.iter().filter(|volume| {
        let state = volume.status.as_ref().map(|status| status.state).unwrap_or_default();
        let serves = matches!(state, VolumeState::Attached | VolumeState::Attaching);
        serves || !volume.spec.node_id.is_empty()
    });
    let names: Vec<&str> = attached.filter_map(|volume| volume.metadata.name.as_deref()).collect();
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let volumes = match names.len() {
        0 => return Ok(()),
        1 => format!("volume {named} is"),
        few if few <= NAMED => format!("volumes {named} are"),
        many => format!("volumes {named} and {} more are", many - NAMED),
    };
    Err(Needed::Namespace { volumes })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{from_value, json};

    use super::*;

    fn volume(name: &str, node: &str, state: &str) -> Volume {
        from_value(json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": { "name": name },
            "spec": { "size": "1073741824", "nodeID": node }, "status": { "state": state },
        }))
        .unwrap()
    }

    #[test]
    fn a_namespace_goes_when_nothing_is_attached_in_it() {
        let many: Vec<Volume> =
            (1..8).map(|number| volume(&format!("v{number}"), "node-1", "attached")).collect();
        #[rustfmt::skip]
        let cases = [
            ("empty",       vec![],                                                              None),
            ("detached",    vec![volume("a", "", "detached")],                                   None),
            ("on its way",  vec![volume("a", "", "detaching")],                                  None),
            ("attached",    vec![volume("a", "", "detached"), volume("b", "node-1", "attached")], Some("volume b is still attached")),
            ("not told yet", vec![volume("a", "", "attached")],                                  Some("volume a is still attached")),
            ("asked for",   vec![volume("a", "node-1", "detached"), volume("b", "", "attaching")], Some("volumes a, b are still attached")),
            ("many",        many,                                                                Some("volumes v1, v2, v3, v4, v5 and 2 more are still attached")),
        ];
        for (name, volumes, expected) in cases {
            let refused = namespace_may_go(&volumes).err().map(|needed| needed.to_string());
            match expected {
                None => assert_eq!(refused, None, "{name}"),
                Some(words) => {
                    assert!(refused.as_ref().is_some_and(|text| text.contains(words)), "{name}: {refused:?}");
                }
            }
        }
    }

    #[test]
    fn a_secret_goes_after_all_who_need_it() {
        let cases = [
            (0, 0, None),
            (1, 0, Some("and 1 volume could")),
            (0, 2, Some("and 2 instance managers could")),
            (3, 1, Some("and 3 volumes and 1 instance manager could")),
        ];
        for (volumes, managers, expected) in cases {
            let refused = secret_may_go(volumes, managers).err().map(|needed| needed.to_string());
            assert_eq!(refused.is_some(), expected.is_some(), "{volumes} {managers}");
            assert!(
                expected.is_none_or(|words| refused.as_ref().unwrap().contains(words)),
                "{volumes} {managers}: {refused:?}"
            );
        }
    }

    #[test]
    fn only_settings_that_mean_nothing_go() {
        let refused =
            setting_may_go("concurrent-automatic-engine-upgrade-per-node-limit").unwrap_err().to_string();
        assert!(refused.ends_with(r#"-p '{"value":"0"}'"#), "{refused}");
        assert_eq!(setting_may_go("nobody-knows-it"), Ok(()));
    }
}
