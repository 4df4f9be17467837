//! One load on one target, given by fio.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::command::bench::qemu::missing;

/// What fio does to a target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) name: &'static str,
    /// fio's own words.
    pattern: &'static str,
    block: &'static str,
    depth: u32,
}

#[rustfmt::skip]
pub(super) const LOADS: [Load; 6] = [
    Load { name: "4k random read, depth 1",     pattern: "randread",  block: "4k",   depth: 1 },
    Load { name: "4k random read, depth 16",    pattern: "randread",  block: "4k",   depth: 16 },
    Load { name: "4k random write, depth 1",    pattern: "randwrite", block: "4k",   depth: 1 },
    Load { name: "4k random write, depth 16",   pattern: "randwrite", block: "4k",   depth: 16 },
    Load { name: "128k sequential read, depth 16",  pattern: "read",  block: "128k", depth: 16 },
    Load { name: "128k sequential write, depth 16", pattern: "write", block: "128k", depth: 16 },
];

impl Load {
    pub(super) fn writes(&self) -> bool {
        self.pattern.ends_with("write")
    }
}

/// What fio works on.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// The default export of an NBD server.
    Nbd(PathBuf),
    /// A file, past the page cache.
    File(PathBuf),
}

/// What fio saw.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    pub(super) per_second: f64,
    pub(super) p99_us: f64,
}

pub(super) fn run(load: &Load, target: &Target, size: u64, seconds: u32) -> anyhow::Result<Seen> {
    let mut command = Command::new("fio");
    command.args(["--name=load", "--time_based", "--ramp_time=500ms", "--randrepeat=0", "--norandommap"]);
    command.args(["--output-format=json", "--thread"]);
    command.arg(format!("--rw={}", load.pattern)).arg(format!("--bs={}", load.block));
    command.arg(format!("--iodepth={}", load.depth));
    command.arg(format!("--size={size}")).arg(format!("--runtime={seconds}"));
    match target {
        Target::Nbd(socket) => {
            command.arg("--ioengine=nbd").arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
        }
        Target::File(path) => {
            command.args(["--ioengine=io_uring", "--direct=1"]).arg(format!("--filename={}", path.display()))
        }
    };
    command.stdin(Stdio::null());
    let output = command.output().map_err(|error| missing("fio", "fio", error))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = || format!("fio failed at {}: {}", load.name, String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(output.status.success(), failed());
    // Warnings of fio stand before its JSON.
    let json = said.find('{').map_or("", |start| &said[start..]);
    let report: Value = serde_json::from_str(json).with_context(failed)?;
    let side = &report["jobs"][0][if load.writes() { "write" } else { "read" }];
    let number = |value: &Value| value.as_f64().with_context(|| format!("fio said nothing of {}", load.name));
    Ok(Seen {
        per_second: number(&side["iops"])?,
        p99_us: number(&side["clat_ns"]["percentile"]["99.000000"])? / 1000.0,
    })
}
