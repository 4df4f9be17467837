//! How the cluster looks on one screen.

use super::storage::Storage;
use super::{Node, Seen};
use crate::output::{Answer, Paint, duration, quoted, size, table};

/// Of what is going on or blocked, on one screen.
const MOST_SHOWN: usize = 10;

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
        if let Some(storage) = &api.storage {
            text += &shown(storage);
        }
        text
    }
}

/// The parts that have something to say, each after an empty line.
fn shown(storage: &Storage) -> String {
    let mut text = String::new();
    if !storage.images.is_empty() {
        let rows = storage.images.iter().map(|image| {
            let (has, should) = image.nodes;
            let name =
                if image.is_default { format!("{} (default)", image.name) } else { image.name.clone() };
            [name, image.state.clone(), format!("{has} of {should}"), image.references.to_string()]
        });
        text += &format!("\n{}", table(["ENGINE IMAGE", "STATE", "NODES", "REFERENCES"], rows));
    }
    if !storage.volumes.is_empty() {
        let rows = storage.volumes.iter().map(|group| {
            let cells = [&group.state, &group.robustness, &group.engine, &group.image];
            let [state, robustness, engine, image] =
                cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell.clone() });
            [group.count.to_string(), state, robustness, engine, image]
        });
        text += &format!("\n{}", table(["VOLUMES", "STATE", "ROBUSTNESS", "ENGINE", "IMAGE"], rows));
    }
    for (title, items) in [("GOING ON", &storage.going_on), ("BLOCKED", &storage.blocked)] {
        if items.is_empty() {
            continue;
        }
        let rows = items.iter().take(MOST_SHOWN).map(|item| [item.what.clone(), item.why.clone()]);
        text += &format!("\n{}", table([title, ""], rows));
        if let Some(more) = items.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
            text += &format!("and {more} more; `midflight status -o json` has all\n");
        }
    }
    text
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
