//! Patterns that qemu-io writes to a volume and reads back.

use crate::storage::run;

/// Writes 64 KiB of one byte to a place, durably.
pub async fn write(endpoint: &str, byte: &str, place: &str) -> anyhow::Result<()> {
    let write = format!("write -P {byte} {place} 64k");
    run("qemu-io", &["-f", "raw", "-c", &write, "-c", "flush", endpoint]).await.map(drop)
}

/// Finds that byte there.
pub async fn read(endpoint: &str, byte: &str, place: &str) -> anyhow::Result<()> {
    let read = format!("read -P {byte} {place} 64k");
    run("qemu-io", &["-f", "raw", "-c", &read, endpoint]).await.map(drop)
}
