//! How much one client, and all of them together, may ask for.
//!
//! The invariant: what is held of what clients send is bounded by these numbers, and what is held for clients
//! that read slowly are references into the store.
//!
//! One kind of answer is bounded by the store alone: a list that is not asked for as plain JSON objects (a Table,
//! metadata alone, YAML, indented) is made whole before it is sent. kubectl asks for 500 rows at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Reason};

/// The limits of a server. The defaults are those of the real one where it has them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest body of a request.
    pub body_bytes: usize,
    /// Bodies of all requests under way together.
    pub bodies_bytes: usize,
    /// Deepest nesting of a JSON or YAML body.
    pub json_depth: usize,
    /// Longest path with query.
    pub uri_bytes: usize,
    /// All headers of a request together.
    pub header_bytes: usize,
    /// Requests that are answered at the same time, watches aside.
    pub requests_in_flight: usize,
    /// Watches that one user may hold open.
    pub watches_per_user: usize,
    /// Connections open at the same time.
    pub connections: usize,
    /// Longest time in which a client may take nothing of what is ready for it.
    pub write_stall: Duration,
    /// Longest time for the headers and the body of a request to arrive.
    pub read_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 3 * 1024 * 1024,
            bodies_bytes: 64 * 1024 * 1024,
            json_depth: 100,
            uri_bytes: 16 * 1024,
            header_bytes: 64 * 1024,
            requests_in_flight: 400,
            watches_per_user: 1_000,
            connections: 2_000,
            write_stall: Duration::from_secs(30),
            read_time: Duration::from_secs(30),
        }
    }
}

/// Counts what is under way.
#[derive(Debug)]
pub(crate) struct Gate {
    requests: Arc<Semaphore>,
    /// A permit is a byte.
    bodies: Arc<Semaphore>,
    watches: Arc<Mutex<HashMap<String, usize>>>,
    watches_per_user: usize,
}

/// A place taken in the gate; given back when dropped.
#[derive(Debug)]
pub(crate) enum Pass {
    Request(#[expect(dead_code, reason = "held for its Drop")] OwnedSemaphorePermit),
    Watch { user: String, watches: Arc<Mutex<HashMap<String, usize>>> },
}

/// What one request's body has of the bytes that all bodies may have; given back when dropped.
#[derive(Debug)]
pub(crate) struct BodyShare(OwnedSemaphorePermit);

impl BodyShare {
    /// Takes more bytes, which are about to be held in memory.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let refused = || too_many("Too many bytes of request bodies under way, please try again later.");
        let bytes = u32::try_from(bytes).map_err(|_| refused())?;
        let more = self.0.semaphore().clone().try_acquire_many_owned(bytes).map_err(|_| refused())?;
        self.0.merge(more);
        Ok(())
    }

    /// Gives back what was taken: nothing of the body is held any more.
    pub(crate) fn give_back(&mut self) {
        drop(self.0.split(self.0.num_permits()));
    }
}

/// Carries a place from the handler to the body, which keeps it until it is sent.
#[derive(Debug, Clone)]
pub(crate) struct HeldPass(pub(crate) Arc<Pass>);

impl HeldPass {
    pub(crate) fn new(pass: Pass) -> HeldPass {
        HeldPass(Arc::new(pass))
    }
}

impl Gate {
    pub(crate) fn new(limits: &Limits) -> Self {
        Gate {
            requests: Arc::new(Semaphore::new(limits.requests_in_flight)),
            bodies: Arc::new(Semaphore::new(limits.bodies_bytes)),
            watches: Arc::default(),
            watches_per_user: limits.watches_per_user,
        }
    }

    pub(crate) fn request(&self) -> Result<Pass, ApiError> {
        let permit = self.requests.clone().try_acquire_owned();
        permit.map(Pass::Request).map_err(|_| too_many("Too many requests, please try again later."))
    }

    /// A share of the bytes of bodies, with nothing in it yet.
    pub(crate) fn body(&self) -> BodyShare {
        let nothing = self.bodies.clone().try_acquire_many_owned(0);
        BodyShare(nothing.expect("no bytes can be had at any time"))
    }

    pub(crate) fn watch(&self, user: &str) -> Result<Pass, ApiError> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let open = watches.entry(user.to_owned()).or_default();
        if *open >= self.watches_per_user {
            let message =
                format!("user {user:?} already has {open} watches open, which is the most one may have");
            return Err(too_many(&message));
        }
        *open += 1;
        Ok(Pass::Watch { user: user.to_owned(), watches: self.watches.clone() })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Pass::Watch { user, watches } = self else { return };
        let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
        match watches.get_mut(user) {
            Some(open) if *open > 1 => *open -= 1,
            _ => {
                watches.remove(user);
            }
        }
    }
}

fn too_many(message: &str) -> ApiError {
    let mut error = ApiError::new(Reason::TooManyRequests, message);
    error.retry_after = Some(1);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_taken() {
        let gate = Gate::new(&Limits { requests_in_flight: 1, ..Limits::default() });
        let first = gate.request().unwrap();
        let refused = gate.request().unwrap_err();
        assert_eq!((refused.reason, refused.retry_after), (Reason::TooManyRequests, Some(1)));
        drop(first);
        assert!(gate.request().is_ok());

        let gate = Gate::new(&Limits { bodies_bytes: 10, ..Limits::default() });
        let (mut first, mut second) = (gate.body(), gate.body());
        first.take(4).unwrap();
        first.take(4).unwrap();
        second.take(2).unwrap();
        assert_eq!(second.take(1).unwrap_err().reason, Reason::TooManyRequests);
        drop(first);
        second.take(8).unwrap();
    }

    #[test]
    fn counts_the_watches_of_each_user() {
        let gate = Gate::new(&Limits { watches_per_user: 2, ..Limits::default() });
        let (eve, bob) = ("eve", "bob");
        let open = [gate.watch(eve).unwrap(), gate.watch(eve).unwrap()];
        assert!(gate.watch(eve).is_err());
        assert!(gate.watch(bob).is_ok(), "one user's watches do not count for another");
        drop(open);
        assert!(gate.watch(eve).is_ok());
        assert!(gate.watches.lock().unwrap().is_empty(), "nothing is kept for users without watches");
    }
}
