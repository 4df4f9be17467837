//! Writes what is generated from this crate: the definitions in `deploy/` and
//! the reference in `docs/`.
//!
//! The invariant: running it twice changes nothing.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crds = midflight_api::crds();
    for (path, text) in [
        ("deploy/crds.yaml", midflight_api::render(&crds)),
        ("docs/reference/api.md", midflight_api::reference(&crds)),
    ] {
        std::fs::create_dir_all(root.join(path).parent().expect("the path has a folder"))?;
        std::fs::write(root.join(path), text)?;
    }
    Ok(())
}
