//! Writes what is generated from this crate: the definitions in `deploy/`.
//!
//! The invariant: running it twice changes nothing.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::write(root.join("deploy/crds.yaml"), midflight_api::render(&midflight_api::crds()))
}
