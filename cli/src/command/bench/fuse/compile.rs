//! Compiling: with a real compiler, and what one does to files without its thinking.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use super::{loads::run, tree};

/// Headers that every source includes.
const HEADERS: usize = 12;
/// Folders along which they are looked for; each is in the last one.
const LOOKED_FOR_IN: usize = 4;
/// Sources that the compiler gets.
const SOURCES: usize = 12;

/// Writes what `compile` compiles.
pub(super) fn prepare(root: &Path) -> anyhow::Result<()> {
    let write = |path: PathBuf, text: String| {
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    for folder in 0..LOOKED_FOR_IN {
        let folder = root.join(format!("include-{folder}"));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let last = root.join(format!("include-{}", LOOKED_FOR_IN - 1));
    for header in 0..HEADERS {
        let lines = (0..50).map(|line| format!("int of_header_{header}_{line}(int);\n"));
        write(last.join(format!("header-{header}.h")), lines.collect())?;
    }
    for source in 0..SOURCES {
        let includes = (0..HEADERS).map(|header| format!("#include \"header-{header}.h\"\n"));
        let calls = (0..HEADERS).map(|header| format!("    sum += of_header_{header}_{source}(sum);\n"));
        let body =
            format!("int of_source_{source}(int sum) {{\n{}    return sum;\n}}\n", calls.collect::<String>());
        write(root.join(format!("source-{source}.c")), includes.collect::<String>() + &body)?;
    }
    Ok(())
}

/// Compiles what was prepared, one source after another.
pub(super) fn compile(root: &Path) -> anyhow::Result<()> {
    for source in 0..SOURCES {
        let mut compiler = Command::new("cc");
        compiler.current_dir(root);
        compiler.args((0..LOOKED_FOR_IN).map(|folder| format!("-Iinclude-{folder}")));
        compiler.args(["-c", "-O1", "-o"]);
        compiler.arg(format!("source-{source}.o")).arg(format!("source-{source}.c"));
        run(&mut compiler)?;
    }
    Ok(())
}

/// What a compiler does to files: reads a source, looks for headers along a path where most are not, reads those
/// that are, writes an object under another name and moves it.
pub(super) fn imitate(root: &Path, files: usize) -> anyhow::Result<()> {
    let paths: Vec<PathBuf> = tree::paths(files).map(|path| root.join(path)).collect();
    let object = vec![7; 6000];
    for (number, path) in paths.iter().enumerate().step_by(5) {
        let reading = || format!("read {}", path.display());
        fs::read(path).with_context(reading)?;
        for header in 0..HEADERS {
            for folder in 0..LOOKED_FOR_IN {
                let absent = root.join(format!("part-{folder}/header-{header}.h"));
                anyhow::ensure!(fs::metadata(absent).is_err(), "a header where none is");
            }
            fs::read(&paths[(number * 7 + header * 31) % paths.len()]).with_context(reading)?;
        }
        let (temporary, done) = (path.with_extension("tmp"), path.with_extension("o"));
        let writing = || format!("write {}", done.display());
        let mut file = File::create(&temporary).with_context(writing)?;
        object.chunks(1500).try_for_each(|part| file.write_all(part)).with_context(writing)?;
        drop(file);
        fs::rename(&temporary, &done).with_context(writing)?;
    }
    Ok(())
}
