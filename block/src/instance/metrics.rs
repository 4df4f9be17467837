//! What an instance manager counts of itself.

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry as Exposition,
};

use super::life::View;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    command: &'static str,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InstanceLabels {
    kind: String,
    state: String,
}

#[derive(Debug)]
pub(super) struct Metrics {
    exposition: Exposition,
    commands: Family<CommandLabels, Counter>,
    instances: Family<InstanceLabels, Gauge>,
    restarts: Gauge,
    pub(super) unauthenticated: Counter,
}

impl Metrics {
    pub(super) fn new() -> Metrics {
        let mut metrics = Metrics {
            exposition: Exposition::default(),
            commands: Family::default(),
            instances: Family::default(),
            restarts: Gauge::default(),
            unauthenticated: Counter::default(),
        };
        let exposition = &mut metrics.exposition;
        exposition.register("midflight_im_commands", "Commands answered", metrics.commands.clone());
        exposition.register("midflight_im_instances", "Instances here", metrics.instances.clone());
        exposition.register(
            "midflight_im_restarts",
            "Times that instances which are here were started again",
            metrics.restarts.clone(),
        );
        exposition.register(
            "midflight_im_unauthenticated",
            "Requests without the cluster's secret",
            metrics.unauthenticated.clone(),
        );
        metrics
    }

    pub(super) fn answered(&self, command: &'static str, code: tonic::Code) {
        self.commands.get_or_create(&CommandLabels { command, code: format!("{code:?}") }).inc();
    }

    /// Everything in the text format, with the instances as they are now.
    pub(super) fn text(&self, instances: &[View]) -> String {
        self.instances.clear();
        for view in instances {
            let labels =
                InstanceLabels { kind: view.spec.key().kind.to_string(), state: format!("{:?}", view.state) };
            self.instances.get_or_create(&labels).inc();
        }
        let restarts: u64 = instances.iter().map(|view| view.restarts).sum();
        self.restarts.set(i64::try_from(restarts).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.exposition).expect("writing to a string does not fail");
        text
    }
}
