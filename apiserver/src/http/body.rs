//! The body of an answer: nothing, ready bytes, or a stream that makes its
//! next piece only when the client has taken the last.
//!
//! The invariant: an answer holds at most one piece in memory besides what the
//! store holds anyway, however slowly it is read.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};

use crate::limits::Pass;
use crate::metrics::Running;

/// Largest piece in which ready bytes are sent.
const PIECE: usize = 64 * 1024;

/// The body of every answer of the server.
pub struct Body {
    content: Content,
    /// Given back when the body has been sent or the client has gone.
    _held: Option<Held>,
}

pub(crate) struct Held {
    pub(crate) _pass: Option<Arc<Pass>>,
    pub(crate) _running: Option<Running>,
}

enum Content {
    Empty,
    Full(Bytes),
    /// Pieces made from what is in memory, without waiting.
    Pieces(Box<dyn Iterator<Item = Bytes> + Send>),
    /// Pieces that happen, such as watch events.
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    pub fn empty() -> Body {
        Body { content: Content::Empty, _held: None }
    }

    pub fn full(bytes: impl Into<Bytes>) -> Body {
        Body { content: Content::Full(bytes.into()), _held: None }
    }

    pub(crate) fn pieces(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
        Body { content: Content::Pieces(Box::new(pieces)), _held: None }
    }

    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        Body { content: Content::Stream(Box::pin(stream)), _held: None }
    }

    pub(crate) fn holding(mut self, held: Held) -> Body {
        self._held = Some(held);
        self
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut self.content {
            Content::Empty => None,
            Content::Full(bytes) => {
                let piece = bytes.split_to(bytes.len().min(PIECE));
                if bytes.is_empty() {
                    self.content = Content::Empty;
                }
                (!piece.is_empty()).then_some(piece)
            }
            Content::Pieces(pieces) => pieces.next(),
            Content::Stream(stream) => match stream.as_mut().poll_next(context) {
                Poll::Ready(piece) => piece,
                Poll::Pending => return Poll::Pending,
            },
        };
        if piece.is_none() {
            self.content = Content::Empty;
            self._held = None;
        }
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Empty => SizeHint::with_exact(0),
            Content::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Pieces(_) | Content::Stream(_) => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}
