//! Datasets and their daemons as tables.

use super::{Mounted, Node};
use crate::output::{Answer, Paint, table};

impl Answer for Vec<Mounted> {
    fn to_table(&self, _: Paint) -> String {
        let row = |mounted: &Mounted| {
            let count = |keep: fn(&&Node) -> bool| mounted.nodes.iter().filter(keep).count().to_string();
            [
                mounted.namespace.clone(),
                mounted.dataset.clone(),
                mounted.strategy.clone(),
                mounted.image.clone(),
                mounted.generation.clone(),
                count(|node| node.up_to_date),
                count(|node| !node.up_to_date),
                count(|node| !node.used_by.is_empty()),
            ]
        };
        let head = ["NAMESPACE", "DATASET", "STRATEGY", "IMAGE", "GENERATION", "NEW", "OLD", "BUSY"];
        table(head, self.iter().map(row))
    }
}

impl Answer for Mounted {
    fn to_table(&self, _: Paint) -> String {
        let row = |node: &Node| {
            let users = node.used_by.iter().map(|user| match user.since {
                Some(since) => format!("{} since {since}", user.named(&self.namespace)),
                None => user.named(&self.namespace),
            });
            [
                node.name.clone(),
                node.image.clone(),
                node.generation.clone(),
                if node.up_to_date { "new" } else { "old" }.to_owned(),
                if node.ready { "yes" } else { "no" }.to_owned(),
                users.collect::<Vec<_>>().join(", "),
            ]
        };
        let head = ["NODE", "IMAGE", "GENERATION", "DAEMON", "READY", "USED BY"];
        format!(
            "dataset     {}/{}, {}\nwanted      {}, generation {}\n\n{}",
            self.namespace,
            self.dataset,
            self.strategy,
            self.image,
            self.generation,
            table(head, self.nodes.iter().map(row))
        )
    }
}
