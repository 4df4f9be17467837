//! What is done to each side.
//!
//! The one invariant: a load does the same on every side; the names of its files are all that
//! differs.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::Context;
use serde_json::Value;

use super::{compile, tree};
use crate::command::bench::qemu::missing;

/// What all loads work with.
pub(super) struct Materials {
    archive: PathBuf,
    repository: PathBuf,
    files: usize,
    size_mib: u64,
    seconds: u32,
}

impl Materials {
    pub(super) fn make(
        folder: &Path,
        files: usize,
        size_mib: u64,
        seconds: u32,
    ) -> anyhow::Result<Materials> {
        let (archive, repository) = (folder.join("tree.tar"), folder.join("repository"));
        tree::make(&repository, files)?;
        run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&repository).arg("."))?;
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.arg("-C").arg(&repository);
            command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]).args(arguments);
            run(&mut command)
        };
        git(&["init", "--quiet"])?;
        git(&["add", "--all"])?;
        git(&["commit", "--quiet", "--message", "tree"])?;
        Ok(Materials { archive, repository, files, size_mib, seconds })
    }
}

#[derive(Debug, Clone, Copy)]
enum Work {
    /// fio's own words for pattern and block size.
    Fio {
        pattern: &'static str,
        block: &'static str,
    },
    Unpack,
    Walk,
    Compile,
    /// What a compiler does to files, without its thinking.
    Imitate,
    Clone,
    Remove,
}

/// What is done to a side. Later ones work on what earlier ones left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) name: &'static str,
    work: Work,
}

#[rustfmt::skip]
pub(super) const LOADS: [Load; 10] = [
    Load { name: "1m sequential write", work: Work::Fio { pattern: "write",     block: "1m" } },
    Load { name: "1m sequential read",  work: Work::Fio { pattern: "read",      block: "1m" } },
    Load { name: "4k random read",      work: Work::Fio { pattern: "randread",  block: "4k" } },
    Load { name: "4k random write",     work: Work::Fio { pattern: "randwrite", block: "4k" } },
    Load { name: "metadata: unpack",    work: Work::Unpack },
    Load { name: "metadata: walk",      work: Work::Walk },
    Load { name: "metadata: compile",   work: Work::Imitate },
    Load { name: "metadata: clone",     work: Work::Clone },
    Load { name: "metadata: remove",    work: Work::Remove },
    Load { name: "compile with cc",     work: Work::Compile },
];

impl Load {
    /// Whether the value is a rate, not a time.
    pub(super) fn gives_rate(&self) -> bool {
        match self.work {
            Work::Fio { .. } => true,
            Work::Unpack | Work::Walk | Work::Compile | Work::Imitate | Work::Clone | Work::Remove => false,
        }
    }

    pub(super) fn run(&self, with: &Materials, at: &Path) -> anyhow::Result<f64> {
        let doing = || format!("{} at {}", self.name, at.display());
        let (unpacked, sources) = (at.join("tree"), at.join("sources"));
        match self.work {
            Work::Walk | Work::Imitate if !unpacked.exists() => unpack(with, &unpacked),
            Work::Compile => compile::prepare(&sources),
            _ => Ok(()),
        }
        .with_context(doing)?;
        let begun = Instant::now();
        match self.work {
            Work::Fio { pattern, block } => return fio(pattern, block, with, at).with_context(doing),
            Work::Unpack => unpack(with, &unpacked),
            Work::Walk => walk(&unpacked).and_then(|found| {
                anyhow::ensure!(found == with.files, "{found} files instead of {}", with.files);
                Ok(())
            }),
            Work::Compile => compile::compile(&sources),
            Work::Imitate => compile::imitate(&unpacked, with.files),
            Work::Clone => {
                let from = format!("file://{}", with.repository.display());
                run(Command::new("git").args(["clone", "--quiet"]).arg(from).arg(at.join("clone")))
            }
            Work::Remove => run(Command::new("rm").arg("-rf").arg(unpacked).arg(at.join("clone"))),
        }
        .with_context(doing)?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    }
}

fn unpack(with: &Materials, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    run(Command::new("tar").arg("-xf").arg(&with.archive).arg("-C").arg(to))
}

pub(super) fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| missing(&program, &program, error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program} failed: {}", said.trim());
    Ok(())
}

/// Calls per second that go to the server: past the page cache.
fn fio(pattern: &str, block: &str, with: &Materials, at: &Path) -> anyhow::Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=load", "--time_based", "--ramp_time=300ms", "--randrepeat=0", "--norandommap"]);
    command.args([
        "--output-format=json",
        "--ioengine=psync",
        "--direct=1",
        "--numjobs=2",
        "--group_reporting",
    ]);
    command.arg(format!("--rw={pattern}")).arg(format!("--bs={block}"));
    command.arg(format!("--size={}m", with.size_mib)).arg(format!("--runtime={}", with.seconds));
    command.arg(format!("--filename={}", at.join("data").display()));
    let output = command.stdin(Stdio::null()).output().map_err(|error| missing("fio", "fio", error))?;
    let failed = || format!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    anyhow::ensure!(output.status.success(), failed());
    let said = String::from_utf8_lossy(&output.stdout);
    // Warnings of fio stand before its JSON.
    let json = said.find('{').map_or("", |start| &said[start..]);
    let report: Value = serde_json::from_str(json).with_context(failed)?;
    let side = if pattern.ends_with("write") { "write" } else { "read" };
    report["jobs"][0][side]["iops"].as_f64().context("fio said nothing of its rate")
}

/// Lists every folder and looks at every file, as `make` and backups do; gives how many there were.
fn walk(root: &Path) -> anyhow::Result<usize> {
    let (mut folders, mut found) = (vec![root.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        let listing = || format!("list {}", folder.display());
        for line in fs::read_dir(&folder).with_context(listing)? {
            let line = line.with_context(listing)?;
            let seen = line.metadata().with_context(listing)?;
            match seen.is_dir() {
                true => folders.push(line.path()),
                false => found += usize::from(seen.size() > 0),
            }
        }
    }
    Ok(found)
}
