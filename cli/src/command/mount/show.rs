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
                mounted.phase.clone(),
                mounted.strategy.clone(),
                mounted.image.clone(),
                mounted.generation.clone(),
                count(|node| node.ready && node.up_to_date),
                count(|node| node.ready && !node.up_to_date),
                count(|node| !node.ready),
                count(|node| !node.used_by.is_empty()),
                mounted.waits_for.clone().unwrap_or_default(),
            ]
        };
        #[rustfmt::skip]
        let head = [
            "NAMESPACE", "DATASET", "PHASE", "STRATEGY", "IMAGE", "GENERATION", "NEW", "OLD", "NOT READY", "BUSY",
            "WAITS FOR",
        ];
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
                node.waits_for.as_ref().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}")),
                users.collect::<Vec<_>>().join(", "),
            ]
        };
        let head = ["NODE", "IMAGE", "GENERATION", "DAEMON", "READY", "USED BY"];
        let Mounted { namespace, dataset, phase, waits_for, strategy, image, generation, nodes } = self;
        let waits = waits_for.as_ref().map(|words| format!("\nwaits for   {words}")).unwrap_or_default();
        let wanted = match generation.as_str() {
            "" => String::new(),
            generation => format!("\nwanted      {image}, generation {generation}"),
        };
        format!(
            "dataset     {namespace}/{dataset}, {phase}, {strategy}{waits}{wanted}\n\n{}",
            table(head, nodes.iter().map(row))
        )
    }
}
