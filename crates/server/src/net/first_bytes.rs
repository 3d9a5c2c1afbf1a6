//! Deadline for the first bytes of a connection. A client that sends nothing is disconnected.
//!
//! The deadline covers the 24 bytes that distinguish HTTP/2 from HTTP/1. Afterwards hyper's own
//! timeouts apply.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// Length of the HTTP/2 connection preface. Every HTTP/1 request is longer.
const PREFACE_BYTES: usize = 24;

/// Stream that fails with `TimedOut` when its first bytes do not arrive before a deadline.
pub struct FirstBytesTimeout<S> {
    stream: S,
    read: usize,
    /// Deadline for the first bytes; `None` after they arrived.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> FirstBytesTimeout<S> {
    /// Wraps a stream. The first bytes must arrive within `patience`.
    pub fn new(stream: S, patience: Duration) -> Self {
        let deadline = tokio::time::sleep_until(Instant::now() + patience);
        FirstBytesTimeout {
            stream,
            read: 0,
            deadline: Some(Box::pin(deadline)),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytesTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.read = self.read.saturating_add(buffer.filled().len() - before);
        let came = self.read >= PREFACE_BYTES;
        let Some(deadline) = &mut self.deadline else {
            return read;
        };
        if came {
            self.deadline = None;
        } else if deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytesTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
