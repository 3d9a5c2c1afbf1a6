//! A connection that has to say something in time: one that never does is given up. What it is to say is
//! as long as the beginning of HTTP/2, by which that is told from HTTP/1: from there on others watch it.

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

/// Bytes that HTTP/2 begins with, and any request of HTTP/1 has.
const FIRST: usize = 24;

/// A stream whose first bytes have a deadline.
pub struct Patient<S> {
    stream: S,
    read: usize,
    /// Until they came.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// So long from now.
    pub fn new(stream: S, patience: Duration) -> Self {
        let deadline = tokio::time::sleep_until(Instant::now() + patience);
        Patient {
            stream,
            read: 0,
            deadline: Some(Box::pin(deadline)),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.read = self.read.saturating_add(buffer.filled().len() - before);
        let came = self.read >= FIRST;
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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
