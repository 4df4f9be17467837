//! Looks at the machine a node runs on.

use std::{fs, io, path::Path, thread};

use rustix::{fs::statvfs, system};

/// What does not change while the agent runs, besides the size of the disk.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
    pub(crate) machine_id: String,
    pub(crate) boot_id: String,
}

/// What the conditions of the node speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) memory_short: bool,
    pub(crate) disk_short: bool,
}

/// Below these the node is under pressure; kubelet's defaults.
const MEMORY_FLOOR_BYTES: u64 = 100 << 20;
const DISK_FLOOR_PERCENT: u64 = 10;

impl Machine {
    pub(crate) fn look(data: &Path) -> io::Result<Machine> {
        let disk = statvfs(data)?;
        Ok(Machine {
            cpus: thread::available_parallelism()?.get(),
            memory_bytes: meminfo("MemTotal:")?,
            disk_bytes: disk.f_blocks * disk.f_frsize,
            kernel: system::uname().release().to_string_lossy().into_owned(),
            os_image: os_image(),
            machine_id: first_line("/etc/machine-id"),
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
        })
    }
}

impl Health {
    pub(crate) fn look(data: &Path) -> io::Result<Health> {
        let disk = statvfs(data)?;
        Ok(Health {
            memory_short: meminfo("MemAvailable:")? < MEMORY_FLOOR_BYTES,
            disk_short: disk.f_bavail * 100 < disk.f_blocks * DISK_FLOOR_PERCENT,
        })
    }
}

fn meminfo(field: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib =
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other(format!("/proc/meminfo has no {field}")))
}

fn os_image() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches('"').to_owned())
}

/// Empty where the file is missing, as in many containers.
fn first_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_machine_that_could_run_this_test() {
        let machine = Machine::look(Path::new("/")).unwrap();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && machine.disk_bytes > 0);
        assert!(!machine.kernel.is_empty() && !machine.os_image.is_empty());
        Health::look(Path::new("/")).unwrap();
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        assert!(Health::look(Path::new("/does/not/exist")).is_err());
    }
}
