//! What processes hold in memory, and which process listens on a port.

use std::fs;

use anyhow::Context;

/// Resident memory of a process.
pub(crate) fn resident_bytes(pid: i32) -> anyhow::Result<u64> {
    from_status(&pid.to_string(), "VmRSS:")
}

/// The most memory that this process has had resident so far.
pub(crate) fn most_resident_bytes() -> anyhow::Result<u64> {
    from_status("self", "VmHWM:")
}

fn from_status(process: &str, name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))
        .with_context(|| format!("look at process {process}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib =
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("process {process} has no {name}"))? * 1024)
}

/// The process that listens on a TCP port of this machine, if we may see it.
pub(crate) fn listener(port: u16) -> Option<i32> {
    const LISTEN: &str = "0A";
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let local = fields.get(1)?.rsplit_once(':')?.1;
            let listens = *fields.get(3)? == LISTEN && u16::from_str_radix(local, 16) == Ok(port);
            listens.then(|| fields.get(9).map(|inode| (*inode).to_owned())).flatten()
        })
    })?;
    let socket = format!("socket:[{inode}]");
    let pids =
        fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.into_iter().find(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors
            .into_iter()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_itself_by_its_port() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(listener(socket.local_addr().unwrap().port()), Some(own));
        assert!(resident_bytes(own).unwrap() > 1 << 20);
    }
}
