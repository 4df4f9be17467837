//! How the cluster looks on one screen.

use super::{Node, Seen};
use crate::output::{Answer, Paint, duration, quoted, size, table};

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
