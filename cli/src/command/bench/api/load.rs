//! The loads, one after the other, each on both sides in turns.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::sleep;

use super::{
    super::figure::{Better, Figure, quantile},
    side::Side,
    watchers,
};
use crate::session::Session;

/// Requests in one round of each load.
const REQUESTS: usize = 1_000;
const SEQUENTIAL_REQUESTS: usize = 200;
/// Clients at once, where not said otherwise.
const CLIENTS: usize = 16;
/// How long nobody asks anything before the memory of an idle server is looked at.
const IDLE: Duration = Duration::from_secs(5);

/// All figures of all loads.
pub(super) async fn measure(
    session: &Session,
    sides: &[&Side],
    objects: usize,
    rounds: usize,
) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut keep = |name: &str, unit, better, results: Vec<Vec<f64>>| {
        session.say(format_args!("measured {name}"));
        let peer = results.get(1).map_or(&[][..], Vec::as_slice);
        figures.extend(Figure::new(name, unit, better, &results[0], peer));
    };
    sleep(IDLE).await;
    keep("memory, idle", "MiB", Better::Lower, each(sides, |side| side.resident_mib().map(|mib| vec![mib]))?);
    for clients in [1, 16, 32] {
        let rates = in_turns(sides, rounds, async |side, round| {
            let count = if clients == 1 { SEQUENTIAL_REQUESTS } else { REQUESTS };
            rate(count, clients, async |number| side.create(&format!("c{clients}-{round}-{number}")).await)
                .await
        });
        keep(&format!("durable creates, {clients} clients"), "1/s", Better::Higher, rates.await?);
    }
    let name = |number: usize| format!("c16-0-{number}");
    let rates = in_turns(sides, rounds, async |side, round| {
        rate(REQUESTS, CLIENTS, async |number| side.patch_status(&name(number), round).await).await
    });
    keep("status patches", "1/s", Better::Higher, rates.await?);
    let rates = in_turns(sides, rounds, async |side, round| {
        rate(REQUESTS, CLIENTS, async |number| side.apply(&name(number), round + 2).await).await
    });
    keep("server-side applies", "1/s", Better::Higher, rates.await?);
    let rates = in_turns(sides, rounds, async |side, _| {
        rate(REQUESTS, CLIENTS, async |number| side.get(&name(number)).await).await
    });
    keep("gets", "1/s", Better::Higher, rates.await?);

    let latencies =
        in_turns_many(sides, rounds, async |side| watchers::latencies(side, &name(0)).await).await?;
    for (share, label) in [(0.5, "p50"), (0.99, "p99")] {
        let of = |all: &Vec<f64>| quantile(all, share).into_iter().collect();
        let name = format!("watch latency {label}, {} watchers", watchers::WATCHERS);
        keep(&name, "ms", Better::Lower, latencies.iter().map(of).collect());
    }

    for side in sides {
        fill(side, objects).await?;
    }
    let times = in_turns(sides, rounds, async |side, _| {
        let began = Instant::now();
        side.list().await?;
        Ok(began.elapsed().as_secs_f64() * 1000.0)
    });
    keep(&format!("list of {objects} objects"), "ms", Better::Lower, times.await?);
    let memory = each(sides, |side| side.resident_mib().map(|mib| vec![mib]))?;
    keep(&format!("memory, {objects} objects"), "MiB", Better::Lower, memory);
    Ok(figures)
}

/// One result per side and round, the sides in turns.
async fn in_turns(
    sides: &[&Side],
    rounds: usize,
    load: impl AsyncFn(&Side, usize) -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut results = vec![Vec::new(); sides.len()];
    for round in 0..rounds.max(1) {
        for (side, results) in sides.iter().zip(&mut results) {
            results.push(load(side, round).await?);
        }
    }
    Ok(results)
}

/// Many results per side and round.
async fn in_turns_many(
    sides: &[&Side],
    rounds: usize,
    load: impl AsyncFn(&Side) -> anyhow::Result<Vec<f64>>,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut results = vec![Vec::new(); sides.len()];
    for _ in 0..rounds.max(1) {
        for (side, results) in sides.iter().zip(&mut results) {
            results.extend(load(side).await?);
        }
    }
    Ok(results)
}

fn each<T>(sides: &[&Side], look: impl Fn(&Side) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    sides.iter().map(|side| look(side)).collect()
}

/// Requests per second with so many clients at once.
async fn rate(
    requests: usize,
    clients: usize,
    request: impl AsyncFn(usize) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let request = &request;
    stream::iter((0..requests).map(|number| async move { request(number).await }))
        .buffer_unordered(clients)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    Ok(requests as f64 / began.elapsed().as_secs_f64())
}

/// Brings a side to the wanted number of objects, from none.
async fn fill(side: &Side, objects: usize) -> anyhow::Result<()> {
    side.delete_all().await.context("remove the objects of earlier loads")?;
    rate(objects, 32, async |number| side.create(&format!("fill-{number}")).await).await.map(drop)
}
