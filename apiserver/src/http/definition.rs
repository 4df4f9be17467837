//! What is special about writing a CustomResourceDefinition: it is accepted and
//! in force with the write itself.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::call::Call;
use crate::builtin::crd;
use crate::registry::{Definition, definitions};
use crate::served::Served;
use crate::store::Store;

fn is_definition(served: &Served) -> bool {
    *served.resource() == definitions()
}

/// Fills in the status that the definition has from now on.
pub(crate) fn complete(call: &Call, object: &mut Value, live: Option<&Value>, now: &str) {
    if !is_definition(&call.served) {
        return;
    }
    if let Some(status) = live.and_then(|live| live.get("status")) {
        object["status"] = status.clone();
    }
    let others = others(&call.server.store);
    object["status"] = crd::accept(object, &others, now);
}

fn others(store: &Store) -> Vec<Value> {
    let all = store.snapshot(&definitions());
    all.iter().filter_map(|entry| serde_json::from_slice(&entry.stored.bytes).ok()).collect()
}

/// What a stored definition has the server serve, if anything.
pub(crate) fn learnt(definition: &Value) -> Option<Definition> {
    let conditions = definition["status"]["conditions"].as_array()?;
    let established = conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True");
    if !established {
        return None;
    }
    let kind = crd::kind_from_crd(definition).ok()?;
    let mut hasher = DefaultHasher::new();
    definition["spec"].to_string().hash(&mut hasher);
    Some(Definition { kind, fingerprint: hasher.finish() })
}
