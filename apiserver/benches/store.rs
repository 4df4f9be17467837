//! What the store alone can do: durable writes per second by concurrency, time
//! to open, memory. Run with `cargo bench -p midflight-apiserver --bench store`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use midflight_apiserver::kind::ResourceId;
use midflight_apiserver::store::{Body, Change, Key, Store, StoreOptions};
use serde_json::json;

const OBJECTS: u64 = 10_000;

fn main() {
    let folder = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for concurrency in [1, 16, 32, 64] {
        let path = folder.path().join(format!("store{concurrency}"));
        let store = Store::open(&path, &StoreOptions::default()).unwrap();
        let number = if concurrency == 1 { OBJECTS / 10 } else { OBJECTS };
        runtime.block_on(run(&store, "create", concurrency, number, true));
        runtime.block_on(run(&store, "replace", concurrency, number, false));
        let live = resident();
        let start = Instant::now();
        drop(store);
        let closed = start.elapsed();
        let start = Instant::now();
        let store = Store::open(&path, &StoreOptions::default()).unwrap();
        let length = std::fs::metadata(&path).unwrap().len() >> 20;
        println!(
            "          close {closed:.1?}, open {:.1?} at version {}, file {length} MiB, resident {live} MiB",
            start.elapsed(),
            store.version(),
        );
    }
}

async fn run(store: &Store, name: &str, concurrency: u64, number: u64, create: bool) {
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..concurrency)
        .map(|_| tokio::spawn(write_all(store.clone(), next.clone(), number, create)))
        .collect();
    let mut latencies: Vec<Duration> = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    let elapsed = start.elapsed();
    latencies.sort();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "{concurrency:>3} x {name:<8} {:>7.0}/s  p50 {:.2?}  p99 {:.2?}",
        number as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99)
    );
}

async fn write_all(store: Store, next: Arc<AtomicU64>, number: u64, create: bool) -> Vec<Duration> {
    let resource = ResourceId { group: "example.com".into(), plural: "gadgets".into() };
    let mut latencies = Vec::new();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= number {
            return latencies;
        }
        let scattered = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = Key::new(resource.clone(), Some("default"), &format!("gadget-{scattered:016x}"));
        let body = Body::new(
            &json!({"kind": "Gadget", "metadata": {"name": "x"}, "spec": {"fill": "x".repeat(900)}}),
        );
        let start = Instant::now();
        let change = if create {
            Change::Create { key, body }
        } else {
            let expected = store.get(&key).unwrap().version;
            Change::Replace { key, body, expected }
        };
        store.write(change, vec![]).await.unwrap();
        latencies.push(start.elapsed());
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}
