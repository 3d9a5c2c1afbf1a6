//! Bodies of answers: produced away from the threads that serve connections, and followed to their end.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, SizeHint};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use crate::context::in_request;

/// Number of parts of a body that may wait for the client. A slow client slows the stream down.
const PARTS_QUEUED: usize = 16;

/// Function that runs once when an answer has been sent, or its client is gone.
pub type AtEnd = Box<dyn FnOnce() + Send>;

/// Guard that runs a function when it is dropped.
struct EndGuard(Option<AtEnd>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(at_end) = self.0.take() {
            at_end();
        }
    }
}

/// Body of a known length that runs a function at its end.
struct GuardedBody {
    body: Body,
    _guard: EndGuard,
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Follows the body of an answer to its end. A task on the runtime `work` produces a body of unknown length
/// part by part, so that connections are served meanwhile.
pub fn follow(work: &Handle, id: &Arc<str>, response: Response, at_end: AtEnd) -> Response {
    let guard = EndGuard(Some(at_end));
    let (parts, mut body) = response.into_parts();
    if body.size_hint().exact().is_some() {
        let body = GuardedBody {
            body,
            _guard: guard,
        };
        return Response::from_parts(parts, Body::new(body));
    }
    let (sender, receiver) = mpsc::channel(PARTS_QUEUED);
    let (id, span) = (Arc::clone(id), tracing::Span::current());
    let produce = async move {
        let _guard = guard;
        loop {
            // A client that leaves ends the stream at once, even if the session is silent.
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = sender.closed() => return,
            };
            let Some(frame) = frame else { return };
            let is_last = frame.is_err();
            if sender.send(frame).await.is_err() || is_last {
                return;
            }
        }
    };
    work.spawn(async move { in_request(&id, produce).await }.instrument(span));
    let body = StreamBody::new(ReceiverStream::new(receiver));
    Response::from_parts(parts, Body::new(body))
}
