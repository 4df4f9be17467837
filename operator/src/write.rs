//! The one place from which writes to the API go out, numbered.
//!
//! The invariant: once a cut has come, no further write of this writer reaches
//! the API, as if the process had ended there.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kube::Client;
use tracing::debug;

/// Sends writes and counts them.
pub struct Writer {
    client: Client,
    issued: AtomicU64,
    cut: Option<Cut>,
    ended: AtomicBool,
}

/// Where a test ends the operator, or breaks its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Number of the write, from 0.
    pub write: u64,
    pub moment: Moment,
}

/// What happens to the write at which the cut comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The process ends before it is sent.
    NotSent,
    /// It is sent and done, but the answer is lost; the process goes on.
    AnswerLost,
    /// It is sent, done and acknowledged, and there the process ends.
    Acknowledged,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the answer was lost; the write may or may not be done")]
    AnswerLost,
    #[error("the operator has ended")]
    Ended,
}

impl Writer {
    pub fn new(client: Client) -> Writer {
        Writer { client, issued: AtomicU64::new(0), cut: None, ended: AtomicBool::new(false) }
    }

    /// A writer that a test cuts off.
    pub fn with_cut(client: Client, cut: Cut) -> Writer {
        Writer { cut: Some(cut), ..Writer::new(client) }
    }

    /// For reads. Writes go through [`Writer::send`].
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How many writes were issued.
    pub fn issued(&self) -> u64 {
        self.issued.load(Ordering::Acquire)
    }

    /// Sends one write. `request` must make exactly one, when it is first polled.
    pub async fn send<T>(
        &self,
        verb: &'static str,
        object: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WriteError> {
        if self.ended.load(Ordering::Acquire) {
            return Err(WriteError::Ended);
        }
        let number = self.issued.fetch_add(1, Ordering::AcqRel);
        let moment = self.cut.filter(|cut| cut.write == number).map(|cut| cut.moment);
        if moment == Some(Moment::NotSent) {
            self.ended.store(true, Ordering::Release);
            return Err(WriteError::Ended);
        }
        debug!(number, verb, object, "write");
        let answer = request.await;
        match moment {
            None | Some(Moment::NotSent) => Ok(answer?),
            Some(Moment::AnswerLost) => Err(WriteError::AnswerLost),
            Some(Moment::Acknowledged) => {
                self.ended.store(true, Ordering::Release);
                Err(WriteError::Ended)
            }
        }
    }
}

impl WriteError {
    /// Whether the API says that the object is already there.
    pub fn is_already_there(&self) -> bool {
        matches!(self, WriteError::Api(kube::Error::Api(status)) if status.is_already_exists())
    }

    /// Whether the API says that what is there is not what the write expected.
    pub fn is_conflict(&self) -> bool {
        matches!(self, WriteError::Api(kube::Error::Api(status)) if status.is_conflict())
    }

    /// Whether the API says that there is no such thing, or no such kind yet.
    pub fn is_not_found(&self) -> bool {
        matches!(self, WriteError::Api(kube::Error::Api(status)) if status.is_not_found())
    }
}
