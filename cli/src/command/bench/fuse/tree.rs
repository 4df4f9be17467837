//! A tree of small files like that of a program's sources, the same every time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Files of one folder.
const IN_A_FOLDER: usize = 25;

/// Paths of all files of the tree, relative to its root.
pub(super) fn paths(files: usize) -> impl Iterator<Item = PathBuf> {
    (0..files).map(|number| {
        let folder = number / IN_A_FOLDER;
        PathBuf::from(format!("part-{}/module-{folder}/file-{number}.c", folder % 20))
    })
}

/// Makes the tree; most files are small, one in sixteen is not.
pub(super) fn make(root: &Path, files: usize) -> anyhow::Result<()> {
    let text: Vec<u8> = (0..65_536u32).map(|byte| b'a' + (byte % 23) as u8).collect();
    for (number, path) in paths(files).enumerate() {
        let path = root.join(path);
        let folder = path.parent().unwrap_or(root);
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let length = if number % 16 == 0 { 48 << 10 } else { 200 + number * 37 % 7000 };
        let start = number * 13 % 1000;
        fs::write(&path, &text[start..start + length]).with_context(|| format!("make {}", path.display()))?;
    }
    Ok(())
}
