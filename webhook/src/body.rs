//! Reading a request's body within limits, and an answer's body that keeps hold of what it stands for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::connection::InFlight;
use crate::limits::Share;

/// What is reserved for a body on its Content-Length alone: a long list whole. Memory that is never written to is only
/// an address.
const PROMISED: usize = 1 << 20;

/// Why a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// More than one body may have.
    TooLarge,
    /// More than the shared budget has left.
    Overload,
    /// The client stopped.
    Broken,
}

/// Reads the body into one piece. Memory is taken from `share` as bytes arrive, not as the header promises.
pub(crate) async fn read(mut body: Incoming, limit: usize, share: &mut Share) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyError::TooLarge);
    }
    let expected = body.size_hint().exact().and_then(|n| usize::try_from(n).ok());
    let mut first = Bytes::new();
    let mut all = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        length += data.len();
        if length > limit {
            return Err(BodyError::TooLarge);
        }
        if !share.grow_to(length) {
            return Err(BodyError::Overload);
        }
        if first.is_empty() && all.is_empty() {
            // Most reviews are one frame: kept as it came, without a copy.
            first = data;
            continue;
        }
        if all.is_empty() {
            // Of a promised length no more than this, so that a false Content-Length costs nothing.
            all.reserve(expected.unwrap_or(0).min(PROMISED).max(length));
            all.extend_from_slice(&first);
            first.clear();
        }
        all.extend_from_slice(data.chunk());
    }
    Ok(if all.is_empty() { first } else { Bytes::from(all) })
}

/// An answer in one piece. It holds the request's share of the budget and its place among the requests in flight
/// until the last byte is handed over, or the connection is gone.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    bytes: Option<Bytes>,
    held: Vec<Held>,
}

/// What an answer keeps until it is sent.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their drop")]
pub(crate) enum Held {
    Share(Share),
    InFlight(Arc<InFlight>),
    Permit(tokio::sync::OwnedSemaphorePermit),
}

impl Answer {
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: Some(bytes.into()), held: Vec::new() }
    }

    pub fn hold(&mut self, held: Held) {
        self.held.push(held);
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Poll::Ready(self.bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |b| b.len() as u64))
    }
}
