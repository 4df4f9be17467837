//! How long a change takes to reach everyone who watches.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures::future::try_join_all;
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{sleep, timeout},
};

use super::side::Side;

pub(super) const WATCHERS: usize = 100;
const CHANGES: usize = 50;
/// Between changes, so that each is measured alone.
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(30);

/// Milliseconds from the moment a change is sent until each watcher has it.
pub(super) async fn latencies(side: &Side, name: &str) -> anyhow::Result<Vec<f64>> {
    let (seen, mut all_seen) = unbounded_channel();
    let version = side.version().await?;
    let bodies = try_join_all((0..WATCHERS).map(|_| side.watch(&version))).await?;
    let tasks: Vec<_> = bodies.into_iter().map(|body| tokio::spawn(report(body, seen.clone()))).collect();
    drop(seen);
    let measured = change_and_collect(side, name, &mut all_seen).await;
    for task in &tasks {
        task.abort();
    }
    measured
}

async fn change_and_collect(
    side: &Side,
    name: &str,
    seen: &mut UnboundedReceiver<(usize, Instant)>,
) -> anyhow::Result<Vec<f64>> {
    // The first change only tells that all watches are open.
    let mut latencies = Vec::new();
    for change in 0..=CHANGES {
        let mark = FIRST_MARK + change;
        let sent = Instant::now();
        side.patch_status(name, mark).await?;
        let mut missing = WATCHERS;
        while missing > 0 {
            let event = timeout(PATIENCE, seen.recv()).await.context("a watcher did not see a change")?;
            let (seen_mark, at) = event.context("every watch has ended")?;
            if seen_mark == mark {
                missing -= 1;
                if change > 0 {
                    latencies.push(at.duration_since(sent).as_secs_f64() * 1000.0);
                }
            }
        }
        sleep(PAUSE).await;
    }
    Ok(latencies)
}

/// Marks differ from the phases of every other load.
const FIRST_MARK: usize = 1_000_000;

/// Reads a watch and reports each mark with the time it arrived.
async fn report(mut body: Body, seen: UnboundedSender<(usize, Instant)>) {
    let mut line = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let at = Instant::now();
        let Ok(data) = frame.into_data() else { continue };
        for byte in data {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            if let Some(mark) = mark_in(&line) {
                // Nobody listens once the measurement is over.
                let _ = seen.send((mark, at));
            }
            line.clear();
        }
    }
}

fn mark_in(line: &[u8]) -> Option<usize> {
    const FIELD: &[u8] = b"\"observed\":";
    let start = line.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let digits: String =
        line[start..].iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|mark| *mark >= FIRST_MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_marks() {
        assert_eq!(mark_in(br#"{"status":{"observed":1000007,"phase":"x"}}"#), Some(1_000_007));
        assert_eq!(mark_in(br#"{"status":{"observed":3}}"#), None);
        assert_eq!(mark_in(b"{}"), None);
    }
}
