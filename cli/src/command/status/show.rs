//! How the cluster looks on one screen.

use super::{Node, Seen};
use crate::output::{Answer, Paint, quoted, table};

impl Answer for Seen {
    fn to_table(&self, paint: Paint) -> String {
        let mut text = match (&self.control, &self.folder) {
            (Some(control), _) => format!(
                "control     {} pid {}, up {}, version {}{}\n",
                paint.good("running"),
                control.pid,
                duration(control.uptime_seconds),
                control.version,
                control.address.as_ref().map(|address| format!(", {address}")).unwrap_or_default(),
            ),
            (None, Some(_)) => format!("control     {}\n", paint.bad("not running")),
            (None, None) => String::new(),
        };
        if let Some(folder) = &self.folder {
            text += &format!("folder      {folder}\n");
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            text += &format!("kubectl     export KUBECONFIG={}\n", quoted(kubeconfig));
        }
        if let Some(bytes) = self.store_bytes {
            text += &format!("store       {}\n", size(bytes));
        }
        let Some(api) = &self.api else { return text };
        text += &format!("kinds       {} built in, {} installed\n", api.kinds_built_in, api.kinds_installed);
        let hidden = match api.not_counted.as_slice() {
            [] => String::new(),
            kinds => format!(" (not counted, as this user may not list them: {})", kinds.join(", ")),
        };
        text += &format!("objects     {}, resourceVersion {}{hidden}\n\n", api.objects, api.resource_version);
        text += &table(["NODE", "STATUS", "ADDRESS", "AGENT", "HEARD", "VERSION"], api.nodes.iter().map(row));
        text
    }
}

fn row(node: &Node) -> [String; 6] {
    [
        node.name.clone(),
        if node.ready { "Ready".to_owned() } else { format!("NotReady: {}", node.reason) },
        node.address.clone(),
        node.pid.map_or_else(|| "-".to_owned(), |pid| format!("pid {pid}")),
        node.last_heard_seconds.map_or_else(|| "never".to_owned(), |ago| format!("{} ago", duration(ago))),
        node.version.clone(),
    ]
}

/// The two largest units, as kubectl prints ages.
fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = bytes * 10 / unit;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_read_well() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (61, "1m1s"), (7260, "2h1m"), (90_000, "1d1h"), (-5, "0s")]
        {
            assert_eq!(duration(seconds), text);
        }
        for (bytes, text) in [(12, "12 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
