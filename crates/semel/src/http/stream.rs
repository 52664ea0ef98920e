//! One connection, shared between who reads and writes it and who looks whether the peer is still there.

use crate::engine::daemon::health::{hang_up, has_left};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// How often it is looked whether a peer that waits for its answer is still there.
const LOOK: Duration = Duration::from_millis(50);

/// Is a connection.
#[derive(Clone, Debug)]
pub(crate) enum Stream {
    /// Over TCP.
    Tcp(Arc<TcpStream>),
    /// Over a Unix socket.
    Unix(Arc<UnixStream>),
}

impl Stream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buf),
            Self::Unix(stream) => stream.try_read(buf),
        }
    }

    fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(buf),
            Self::Unix(stream) => stream.try_write(buf),
        }
    }

    fn gone(&self) -> bool {
        match self {
            Self::Tcp(stream) => has_left(&**stream, stream.local_addr().ok().zip(stream.peer_addr().ok())),
            Self::Unix(stream) => has_left(&**stream, None),
        }
    }

    /// Waits until the peer has gone away for good; one that only sends no more is still there.
    pub(super) async fn left(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.gone() {
                return;
            }
        }
    }

    /// Reads and drops what still comes, up to a bound, until the peer has closed.
    pub(super) async fn drain(&self, most: usize) {
        let mut sink = vec![0; 16 << 10];
        let mut dropped = 0;
        while dropped < most {
            let readable = std::future::poll_fn(|cx| self.poll_readable(cx)).await;
            match readable.and_then(|()| self.try_read(&mut sink)) {
                Ok(0) => return,
                Ok(some) => dropped += some,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_readable(cx))?;
            match self.try_read(buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_writable(cx))?;
            match self.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match &*self {
            Self::Tcp(stream) => hang_up(&**stream),
            Self::Unix(stream) => hang_up(&**stream),
        })
    }
}
