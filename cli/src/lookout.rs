//! Looks at the API for somebody who waits, also over a time in which nothing answers: a control plane that is started anew
//! answers again within moments, and what was waited for goes on meanwhile.
//!
//! The invariant: only looks are repeated, never a change; and nobody waits for longer than was said.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::failure::{Exit, Failure};
use crate::session::say;
use crate::target;

/// How long an API that is away is let be between two looks.
const AWAY: Duration = Duration::from_millis(200);
/// How long a look may take that is begun when time is nearly up.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// The looks of one wait.
#[derive(Debug)]
pub(crate) struct Lookout {
    deadline: Instant,
    last_look: Duration,
    is_told: bool,
}

impl Lookout {
    pub(crate) fn until(deadline: Instant) -> Lookout {
        Lookout { deadline, last_look: LAST_LOOK, is_told: false }
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() > self.deadline
    }

    /// Looks until there is an answer.
    pub(crate) async fn look<T>(&mut self, look: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        loop {
            let last = self.deadline.max(Instant::now() + self.last_look);
            let Ok(answered) = timeout_at(last, look()).await else {
                return Err(too_late("the API takes the question and does not answer"));
            };
            let away = match answered {
                Ok(seen) => {
                    self.is_told = false;
                    return Ok(seen);
                }
                Err(error) => match target::silence(&error) {
                    Some(away) => away.clone(),
                    None => return Err(error),
                },
            };
            if self.is_over() {
                return Err(too_late(&away.to_string()));
            }
            if !self.is_told {
                say(format_args!("{away}; waits until it does"));
                self.is_told = true;
            }
            sleep(AWAY).await;
        }
    }
}

fn too_late(why: &str) -> anyhow::Error {
    Failure::with(
        Exit::TimedOut,
        format!("time is up, and how it stands is not known: {why}"),
        "`midflight status` tells whether the control plane runs; what was asked for goes on when it does",
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::failure::Report;

    fn away() -> anyhow::Error {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        target::refusal(kube::Error::Service(Box::new(refused)))
    }

    fn for_a_moment() -> Lookout {
        let (deadline, last_look) = (Instant::now() + Duration::from_millis(300), Duration::from_millis(100));
        Lookout { deadline, last_look, is_told: false }
    }

    #[tokio::test]
    async fn looks_again_while_nothing_answers_and_takes_the_first_answer() {
        let looks = Cell::new(0);
        let look = async || {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Err(away()) } else { Ok(looks.get()) }
        };
        let mut lookout = Lookout::until(Instant::now() + Duration::from_secs(60));
        assert_eq!(lookout.look(look).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_refusal_is_told_at_once_and_an_outage_when_time_is_up() {
        let mut lookout = Lookout::until(Instant::now() + Duration::from_secs(60));
        let refused = lookout.look(async || Err::<(), _>(anyhow::anyhow!("no"))).await.unwrap_err();
        assert_eq!(refused.to_string(), "no");

        let late = Report::of(&for_a_moment().look(async || Err::<(), _>(away())).await.unwrap_err());
        assert_eq!(late.exit, Exit::TimedOut);
        assert!(late.to_string().contains("connection refused"), "{late}");
    }

    #[tokio::test]
    async fn an_api_that_hangs_keeps_nobody_for_ever() {
        let late = for_a_moment().look(async || std::future::pending::<anyhow::Result<()>>().await).await;
        assert_eq!(Report::of(&late.unwrap_err()).exit, Exit::TimedOut);
    }
}
