//! What the server counts of itself, in the names Kubernetes dashboards know.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::kind::ResourceId;
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    resource: String,
}

/// All metrics of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// Of whoever else is in this process.
    others: Option<Arc<Registry>>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    watchers: Gauge,
    pub(crate) rejected: Counter,
    pub(crate) collected: Counter,
    objects: Family<ResourceLabels, Gauge>,
    version: Gauge<u64, AtomicU64>,
    /// Held while the objects are counted and written down.
    counting: Mutex<()>,
}

impl Metrics {
    pub(crate) fn new(others: Option<Arc<Registry>>) -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let durations = Family::new_with_constructor(duration_histogram as fn() -> Histogram);
        let metrics = Metrics {
            requests: requests.clone(),
            durations: durations.clone(),
            in_flight: Gauge::default(),
            watchers: Gauge::default(),
            rejected: Counter::default(),
            collected: Counter::default(),
            objects: Family::default(),
            version: Gauge::default(),
            counting: Mutex::default(),
            registry: Registry::default(),
            others,
        };
        registry.register("apiserver_request", "Requests answered", requests);
        registry.register(
            "apiserver_request_duration_seconds",
            "Time to answer a request, watches aside",
            durations,
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests under way",
            metrics.in_flight.clone(),
        );
        registry.register("apiserver_longrunning_requests", "Watches open", metrics.watchers.clone());
        registry.register(
            "apiserver_requests_rejected",
            "Requests refused by a limit",
            metrics.rejected.clone(),
        );
        registry.register(
            "apiserver_objects_collected",
            "Objects deleted because their owners or namespaces were",
            metrics.collected.clone(),
        );
        registry.register("apiserver_storage_objects", "Objects stored", metrics.objects.clone());
        registry.register(
            "apiserver_storage_version",
            "The resourceVersion of the last write",
            metrics.version.clone(),
        );
        Metrics { registry, ..metrics }
    }

    /// Counts a request that has been answered.
    pub(crate) fn answered(&self, verb: &'static str, resource: &str, code: u16, took: Duration) {
        self.requests.get_or_create(&RequestLabels { verb, resource: resource.to_owned(), code }).inc();
        if verb != "watch" {
            self.durations.get_or_create(&VerbLabels { verb }).observe(took.as_secs_f64());
        }
    }

    /// Counts a request as under way until the returned value is dropped.
    pub(crate) fn running(&self, watch: bool) -> Running {
        let gauge = if watch { &self.watchers } else { &self.in_flight }.clone();
        gauge.inc();
        Running { gauge, since: Instant::now() }
    }

    /// The exposition text, with the sizes the store has now.
    pub(crate) fn text<'a>(&self, store: &Store, resources: impl Iterator<Item = &'a ResourceId>) -> String {
        let _one_at_a_time = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        // Kinds that are gone since the last time must not be told of any more.
        self.objects.clear();
        for resource in resources {
            let count = store.snapshot(resource).len() as i64;
            let name = qualified(resource);
            self.objects.get_or_create(&ResourceLabels { resource: name }).set(count);
        }
        self.version.set(store.version().get());
        let mut text = String::new();
        for registry in std::iter::once(&self.registry).chain(self.others.as_deref()) {
            encode_registry(&mut text, registry).expect("a String takes everything");
        }
        encode_eof(&mut text).expect("a String takes everything");
        text
    }
}

fn qualified(resource: &ResourceId) -> String {
    match &*resource.group {
        "" => resource.plural.to_string(),
        group => format!("{}.{group}", resource.plural),
    }
}

fn duration_histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Running {
    gauge: Gauge,
    since: Instant,
}

impl Running {
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
