//! A small client of HTTP/1.1: one request a connection, as a probe or an agent without a library sends it.
//!
//! It can send a request that it kept byte for byte, which a real client would not offer. It retries nothing.

use super::Told;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(15);
const MOST: u64 = 4 << 20;

/// Is what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Answer {
    /// The status.
    pub(in crate::engine) status: u16,
    /// The lines of the head.
    pub(in crate::engine) head: String,
    /// The body.
    pub(in crate::engine) body: Vec<u8>,
}

impl Answer {
    /// Gives the JSON of the body, `null` where there is none.
    pub(in crate::engine) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Gives the value of a header; of several the first.
    pub(in crate::engine) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Gives the body as text.
    pub(in crate::engine) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }

    /// Gives status and code without the finer reason.
    pub(in crate::engine) fn coded(&self) -> String {
        match self.json().get("code").and_then(Value::as_str) {
            Some(code) => format!("{} {code}", self.status),
            None => self.status.to_string(),
        }
    }

    /// Gives status and name: `200 first`, `200 replayed`, `409 replay_conflict (stale_generation)`, `404`.
    pub(in crate::engine) fn named(&self) -> String {
        let json = self.json();
        let text = |name: &str| json.get(name).and_then(Value::as_str);
        let replayed = json.get("replayed").and_then(Value::as_bool);
        match (text("code"), text("reason"), replayed) {
            (Some(code), Some(reason), _) => format!("{} {code} ({reason})", self.status),
            (Some(code), None, _) => format!("{} {code}", self.status),
            (None, _, Some(true)) => format!("{} replayed", self.status),
            (None, _, Some(false)) => format!("{} first", self.status),
            (None, _, None) => self.status.to_string(),
        }
    }
}

/// Writes a request as it goes over the wire.
pub(in crate::engine) fn request(
    host: &str,
    line: (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let (method, path) = line;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !matches!(method, "GET" | "HEAD") || !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut raw = text.into_bytes();
    raw.extend_from_slice(body);
    raw
}

/// Sends the bytes of a request over a connection of its own.
///
/// # Errors
/// Why no answer came.
pub(in crate::engine) fn send(host: &str, raw: &[u8]) -> Told<Answer> {
    let fail = |what: &str| {
        let what = what.to_owned();
        move |e: std::io::Error| format!("{what} {host}: {e}")
    };
    let mut stream = TcpStream::connect(host).map_err(fail("cannot connect to"))?;
    let bounds = stream
        .set_read_timeout(Some(WITHIN))
        .and_then(|()| stream.set_write_timeout(Some(WITHIN)));
    bounds.map_err(fail("cannot bound"))?;
    stream.write_all(raw).map_err(fail("cannot send to"))?;
    let mut got = Vec::new();
    (&stream)
        .take(MOST)
        .read_to_end(&mut got)
        .map_err(fail("no answer from"))?;
    if got.is_empty() {
        return Err(format!("{host} closed the connection without an answer"));
    }
    parse(&got).ok_or_else(|| format!("what {host} answered is not HTTP"))
}

/// Sends bytes over a connection of its own, and goes away without waiting for an answer.
///
/// # Errors
/// Why they could not be sent.
pub(in crate::engine) fn send_and_leave(host: &str, bytes: &[u8]) -> Told<()> {
    let mut stream = TcpStream::connect(host).map_err(|e| format!("cannot connect to {host}: {e}"))?;
    stream
        .write_all(bytes)
        .map_err(|e| format!("cannot send to {host}: {e}"))
}

fn parse(got: &[u8]) -> Option<Answer> {
    let end = got.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(got.get(..end)?.to_vec()).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let body = got.get(end + 4..)?.to_vec();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(&body)? } else { body };
    Some(Answer { status, head, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(rest.get(..end)?).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 2 + size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_named() {
        let plain = parse(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nnot_found\n").unwrap();
        assert_eq!(
            (plain.status, plain.text().as_str(), plain.named().as_str()),
            (404, "not_found", "404")
        );
        let chunked = b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n\
            1a\r\n{\"code\":\"replay_conflict\",\r\n1f\r\n\"reason\":\"stale_generation\"   }\r\n0\r\n\r\n";
        let problem = parse(chunked).unwrap();
        assert_eq!(problem.named(), "409 replay_conflict (stale_generation)");
        assert_eq!(
            parse(b"HTTP/1.1 200 OK\r\n\r\n{\"replayed\":true}")
                .unwrap()
                .named(),
            "200 replayed"
        );
        let old = parse(b"HTTP/1.0 201 Created\r\nX-Mark:  yes \r\n\r\n").unwrap();
        assert_eq!((old.status, old.header("x-mark")), (201, Some("yes")));
        assert_eq!(parse(b"SSH-2.0\r\n\r\n"), None);
    }

    #[test]
    fn a_request_is_whole() {
        let raw = request("h:1", ("POST", "/x"), &[("A", "b")], b"{}");
        assert_eq!(
            raw,
            b"POST /x HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
        );
    }
}
