//! Gives hyper's own answers to malformed HTTP the form of every other refusal.
//!
//! hyper answers a request that does not parse by itself, with a bare status and no body, before any service is
//! called. Every answer of ours bears `x-request-id`; a head without it, written as one piece, is hyper's. A request
//! whose end is ambiguous is made malformed on its way to hyper, and so refused by it.

use super::framing::{Ambiguous, Framing};
use crate::engine::gateway::answer::Failure;
use semel_core::{Code, Refusal};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Is a connection whose bare refusals are given a body.
pub(super) struct WireGuard<S> {
    stream: S,
    /// What is left to be written in place of a bare refusal, and how long the refusal was.
    instead: Option<(Vec<u8>, usize, usize)>,
    framing: Framing,
    reason: &'static str,
}

const MALFORMED: &str = "malformed_http";
const AMBIGUOUS: &str = "ambiguous_length";

impl<S> WireGuard<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            instead: None,
            framing: Framing::new(),
            reason: MALFORMED,
        }
    }
}

/// Gives what is written in place of one of hyper's own refusals.
fn instead_of(head: &[u8], reason: &str) -> Option<Vec<u8>> {
    let line = head.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    let ours = |head: &[u8]| {
        let lower = head.to_ascii_lowercase();
        lower.windows(12).any(|part| part == b"x-request-id")
    };
    if line.first() != Some(&b'4') || !head.ends_with(b"\r\n\r\n") || ours(head) {
        return None;
    }
    let (status, refusal) = match line {
        b"408" => return None,
        b"431" | b"414" | b"413" => {
            let why = "the head of the request is too large";
            ("413 Content Too Large", Refusal::new(Code::TooLarge, why))
        }
        _ => {
            let why = if reason == AMBIGUOUS {
                "the request says where it ends twice, or in a way that not everybody reads alike"
            } else {
                "the request is not well-formed HTTP"
            };
            (
                "400 Bad Request",
                Refusal::new(Code::BadInput, why).reason(reason),
            )
        }
    };
    let body = super::problem::json_of(&Failure::from(refusal)).to_string();
    Some(
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for WireGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if let Err(Ambiguous { after }) = self.framing.feed(&buf.filled()[before..]) {
            self.reason = AMBIGUOUS;
            // No line end and nothing after it: hyper refuses the request before anybody acts on it.
            buf.filled_mut()[before + after..].fill(0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WireGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_none() {
            match instead_of(buf, self.reason) {
                None => return Pin::new(&mut self.stream).poll_write(cx, buf),
                Some(bytes) => self.instead = Some((bytes, 0, buf.len())),
            }
        }
        let this = &mut *self;
        while let Some((bytes, written, _)) = &mut this.instead {
            if *written == bytes.len() {
                break;
            }
            *written += ready!(Pin::new(&mut this.stream).poll_write(cx, &bytes[*written..]))?;
        }
        let taken = this.instead.take().map_or(0, |(_, _, taken)| taken);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_refusals_are_replaced() {
        let bare = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let text = String::from_utf8(instead_of(bare, MALFORMED).unwrap()).unwrap();
        assert!(text.contains("malformed_http") && text.contains("\"code\":\"bad_input\""));
        let large = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n";
        let text = String::from_utf8(instead_of(large, MALFORMED).unwrap()).unwrap();
        assert!(
            text.contains("\"code\":\"too_large\"") && !text.contains("malformed_http"),
            "{text}"
        );
        for ours in [
            b"HTTP/1.1 200 OK\r\n\r\n".as_slice(),
            b"HTTP/1.1 404 Not Found\r\nx-request-id: 1\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\n{}",
        ] {
            assert!(instead_of(ours, MALFORMED).is_none());
        }
    }
}
