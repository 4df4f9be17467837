//! The one place from which writes to the API go out, numbered.
//!
//! The invariant: once a cut has come, no further write of this writer reaches
//! the API, as if the process had ended there.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kube::Client;
use tokio::sync::Notify;
use tracing::debug;

/// Sends writes and counts them.
pub struct Writer {
    client: Client,
    issued: AtomicU64,
    cut: Option<Cut>,
    ended: AtomicBool,
    end: Notify,
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
    #[error("{}", in_its_own_words(.0))]
    Api(#[from] kube::Error),
    #[error("the answer was lost; the write may or may not be done")]
    AnswerLost,
    #[error("the operator has ended")]
    Ended,
}

/// kube adds a debug dump to what the API answered.
pub(crate) fn in_its_own_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl Writer {
    pub fn new(client: Client) -> Writer {
        Writer {
            client,
            issued: AtomicU64::new(0),
            cut: None,
            ended: AtomicBool::new(false),
            end: Notify::new(),
        }
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
            return Err(self.come_to_an_end());
        }
        debug!(number, verb, object, "write");
        let answer = request.await;
        match moment {
            None | Some(Moment::NotSent) => Ok(answer?),
            Some(Moment::AnswerLost) => Err(WriteError::AnswerLost),
            Some(Moment::Acknowledged) => Err(self.come_to_an_end()),
        }
    }

    fn come_to_an_end(&self) -> WriteError {
        self.ended.store(true, Ordering::Release);
        self.end.notify_waiters();
        WriteError::Ended
    }

    /// Returns when a cut has ended the process, as a test wants it; otherwise never.
    pub async fn ended(&self) {
        let end = self.end.notified();
        tokio::pin!(end);
        // From here on no end is missed, also not one that comes before the first look.
        end.as_mut().enable();
        if !self.ended.load(Ordering::Acquire) {
            end.await;
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

    /// Whether the write was decided on something that has changed since.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_conflict()
    }

    /// Whether the API has said that it did not make the write, for a reason that lies in the write.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            // It knows us no more, is tired of waiting, or has too much to do: that says nothing of what was to be written.
            WriteError::Api(kube::Error::Api(status)) if matches!(status.code, 401 | 408 | 429) => false,
            WriteError::Api(kube::Error::Api(status)) => (400..500).contains(&status.code),
            WriteError::Api(_) | WriteError::AnswerLost | WriteError::Ended => false,
        }
    }

    /// Whether the API says that there is no such thing, or no such kind yet.
    pub fn is_not_found(&self) -> bool {
        matches!(self, WriteError::Api(kube::Error::Api(status)) if status.is_not_found())
    }
}
