//! What the tests of this crate read: our definitions, and files of the repository.
//!
//! The invariant: a file that is missing fails the test and names itself.

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::Value;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of the repository.
pub(crate) fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

static OURS: LazyLock<Vec<Value>> =
    LazyLock::new(|| documents(&midflight_api::render(&midflight_api::crds())));

/// Our definitions, as an API server sees them.
pub(crate) fn ours() -> &'static [Value] {
    &OURS
}

/// The documents of a YAML stream.
pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{error}"));
    all.into_iter().filter(|document| !document.is_null()).collect()
}

/// The schema of one of our kinds.
pub(crate) fn schema_of(kind: &str) -> &'static Value {
    let definition = ours().iter().find(|definition| definition["spec"]["names"]["kind"] == kind);
    let definition = definition.unwrap_or_else(|| panic!("we have no kind {kind}"));
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// What the CEL rules of a schema say about a value, or about its change.
pub(crate) fn refusals(schema: &Value, new: &Value, old: Option<&Value>) -> Vec<String> {
    match kube_cel::Validator::new().validate(schema, new, old) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}
