//! Volumes and files are written once before they are measured: what has no place on disk yet is
//! slower to write and quicker to read.

use std::{fs::File, io::Write, path::Path};

use anyhow::Context;
use midflight_block::nbd::client::{Ask, NbdClient};

const CHUNK: usize = 1 << 20;

pub(super) fn fill_volume(socket: &Path, export: &str, size: u64) -> anyhow::Result<()> {
    let mut client = NbdClient::connect(socket, export).context("connect to the volume")?;
    let data = vec![0x5a; CHUNK];
    let mut call = |ask| {
        let reply = client.call(ask).context("fill the volume")?;
        anyhow::ensure!(reply.error == 0, "fill the volume: error {}", reply.error);
        Ok(())
    };
    for offset in (0..size).step_by(CHUNK) {
        let length = CHUNK.min((size - offset) as usize);
        call(Ask::Write { offset, data: &data[..length] })?;
    }
    call(Ask::Flush)
}

pub(super) fn fill_file(path: &Path, size: u64) -> anyhow::Result<()> {
    let making = || format!("make {}", path.display());
    let mut file = File::create(path).with_context(making)?;
    let data = vec![0x5a; CHUNK];
    for offset in (0..size).step_by(CHUNK) {
        file.write_all(&data[..CHUNK.min((size - offset) as usize)]).with_context(making)?;
    }
    file.sync_all().with_context(making)
}
