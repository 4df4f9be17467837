//! Starts again what dies, for as long as someone watches.

use std::time::{Duration, Instant};

use futures::future::join_all;
use midflight_agent::Backoff;
use tokio::time::sleep;

use super::Starter;
use crate::{
    failure::Report,
    process::{Alive, Role},
    session::Session,
};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Who has lived this long starts with a clean record.
const LONG_LIFE: Duration = Duration::from_secs(60);

/// Watches until the future is dropped.
pub(crate) async fn watch(session: &Session, starter: &Starter, processes: Vec<(Role, Alive)>) {
    join_all(processes.into_iter().map(|(role, alive)| watch_one(session, starter, role, alive))).await;
}

async fn watch_one(session: &Session, starter: &Starter, role: Role, mut alive: Alive) {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        let born = Instant::now();
        if let Err(error) = alive.ended().await {
            session.say(format_args!("cannot watch {role} (pid {}): {error}", alive.pid));
            return;
        }
        if born.elapsed() >= LONG_LIFE {
            backoff.succeeded();
        }
        session.say(format_args!("{role} (pid {}) has ended", alive.pid));
        alive = start_again(session, starter, &role, &mut backoff).await;
        session.say(format_args!("{role} runs again (pid {})", alive.pid));
    }
}

async fn start_again(session: &Session, starter: &Starter, role: &Role, backoff: &mut Backoff) -> Alive {
    loop {
        sleep(backoff.failed()).await;
        match starter.start(role).await {
            Ok(alive) => return alive,
            Err(error) => session.complain(&Report::of(&error)),
        }
    }
}
