//! Watches where requests begin and end on a connection, and refuses those on whose end two readers could disagree.
//!
//! hyper reads such requests by the letter of RFC 9112, but hides from us what it met: it drops a `Content-Length`
//! beside a `Transfer-Encoding`, and the second of two equal ones. A proxy in front may have read them otherwise. This
//! only ever refuses; what a request means stays hyper's to say.

use std::mem::take;

/// How many bytes a line may have: more than a whole head to hyper, which refuses that before. A longer one could hide
/// where its request ends.
const LINE: usize = 1 << 20;

#[derive(Debug)]
enum At {
    /// In the line that a request begins with, or the empty ones before it.
    Start,
    /// In the fields of a head.
    Fields,
    /// In a body of so many more bytes.
    Body(u64),
    /// In the line that says how long a chunk is.
    Size,
    /// In a chunk of so many more bytes, its line end included.
    Chunk(u64),
    /// In the fields after the last chunk.
    Trailers,
    /// Somewhere that cannot be followed: hyper refuses it by itself.
    Lost,
}

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    at: At,
    line: Vec<u8>,
    lengths: u32,
    length: u64,
    encodings: u32,
}

/// Says that a request has two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous {
    /// How many of the bytes that were fed stand before the line end at which it was seen.
    pub(super) after: usize,
}

impl Framing {
    pub(super) const fn new() -> Self {
        Self {
            at: At::Start,
            line: Vec::new(),
            lengths: 0,
            length: 0,
            encodings: 0,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`Ambiguous`] for a second `Content-Length`, for one beside a `Transfer-Encoding`, for a second
    /// `Transfer-Encoding`, for one that is not `chunked` alone, for a field that is continued on the next line, and for
    /// a line past every bound.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), Ambiguous> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.at {
                At::Lost => return Ok(()),
                At::Body(left) | At::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= taken as u64;
                    at += taken;
                    if *left == 0 {
                        self.at = match self.at {
                            At::Chunk(_) => At::Size,
                            _ => At::Start,
                        };
                    }
                }
                At::Start | At::Fields | At::Size | At::Trailers => {
                    let end = rest.iter().position(|byte| *byte == b'\n');
                    let part = &rest[..end.unwrap_or(rest.len())];
                    if self.line.len() + part.len() > LINE {
                        self.at = At::Lost;
                        return Err(Ambiguous { after: at });
                    }
                    self.line.extend_from_slice(part);
                    at += part.len();
                    if end.is_some() {
                        let line = take(&mut self.line);
                        if self.line_ended(line.strip_suffix(b"\r").unwrap_or(&line)) == Seen::Ambiguous {
                            self.at = At::Lost;
                            return Err(Ambiguous { after: at });
                        }
                        at += 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn line_ended(&mut self, line: &[u8]) -> Seen {
        match self.at {
            At::Start if line.is_empty() => {}
            At::Start => {
                (self.lengths, self.length, self.encodings) = (0, 0, 0);
                self.at = At::Fields;
            }
            At::Fields if line.is_empty() => {
                self.at = match (self.encodings, self.length) {
                    (0, 0) => At::Start,
                    (0, length) => At::Body(length),
                    _ => At::Size,
                };
            }
            At::Fields => return self.field(line),
            At::Size => {
                let digits = line.split(|b| matches!(b, b';' | b' ' | b'\t')).next();
                let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
                self.at = match digits.map(|digits| u64::from_str_radix(digits, 16)) {
                    Some(Ok(0)) => At::Trailers,
                    Some(Ok(size)) => At::Chunk(size.saturating_add(2)),
                    Some(Err(_)) | None => At::Lost,
                };
            }
            At::Trailers if line.is_empty() => self.at = At::Start,
            At::Trailers | At::Body(_) | At::Chunk(_) | At::Lost => {}
        }
        Seen::Nothing
    }

    fn field(&mut self, line: &[u8]) -> Seen {
        // An obsolete continuation: what it continues may be a length.
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Seen::Ambiguous;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        if name.trim_ascii().eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            let digits = std::str::from_utf8(value.trim_ascii()).ok();
            // Where it is no number, hyper refuses it.
            self.length = digits.and_then(|digits| digits.parse().ok()).unwrap_or(0);
        } else if name.trim_ascii().eq_ignore_ascii_case(b"transfer-encoding") {
            self.encodings += 1;
            // hyper looks at the last of several alone.
            if !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Seen::Ambiguous;
            }
        }
        if self.lengths + self.encodings > 1 {
            Seen::Ambiguous
        } else {
            Seen::Nothing
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Ambiguous,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds bytes in pieces of every size; gives whether they were refused, which must not depend on the pieces.
    fn refused(bytes: &[u8]) -> bool {
        let of = |size: usize| {
            let mut framing = Framing::new();
            bytes.chunks(size).any(|piece| framing.feed(piece).is_err())
        };
        let all: Vec<bool> = (1..=bytes.len()).map(of).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        all[0]
    }

    const TWO: &str = "content-length: 4\r\ncontent-length: 4\r\n\r\nabcd";

    #[test]
    fn what_two_readers_could_end_otherwise_is_refused() {
        for fields in [
            TWO,
            "content-length: 4\r\nContent-Length:5\r\n\r\nabcde",
            "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\nCONTENT-LENGTH: 4\r\n\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
            "x: 1\r\n content-length: 4\r\n\r\n",
            "content-length : 1\ncontent-length: 4\n\n",
            "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "transfer-encoding: identity\r\n\r\n",
        ] {
            assert!(
                refused(format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}").as_bytes()),
                "{fields}"
            );
        }
    }

    #[test]
    fn a_length_counts_in_its_own_head_alone() {
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n21\r\ncontent-length: 1\r\ncontent-length\r\n0\r\nx: y\r\n\r\n";
        let inside = "content-length: 1\r\ncontent-length: 1\r\n\r\n";
        let sized = format!(
            "POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{inside}",
            inside.len()
        );
        let get = "\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let fine = [chunked, &sized, get, &sized, get, chunked].concat();
        assert!(!refused(fine.as_bytes()));
        // And what comes after them is still seen.
        assert!(refused(format!("{fine}POST / HTTP/1.1\r\n{TWO}").as_bytes()));
    }

    #[test]
    fn what_cannot_be_followed_is_left_to_hyper() {
        for bytes in [
            &b"\x16\x03\x01 garbage \r\n\x00\r\n\r\n\r\n"[..],
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
        ] {
            assert!(!refused(bytes));
        }
    }

    /// A length with so much before its digits that it was once cut off: what is in the body is no request, and what
    /// comes after it is one.
    #[test]
    fn a_long_line_hides_nothing() {
        let inside = "GET / HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n";
        let long = |before: &str| {
            let fill = before.repeat(1100);
            let length = inside.len();
            format!("POST / HTTP/1.1\r\ncontent-length: {fill}{length}\r\n\r\n{inside}")
        };
        let chunked = |fill: &str| {
            let (fill, size) = (fill.repeat(1100), inside.len());
            format!(
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{fill}{size:x}\r\n{inside}\r\n0\r\n\r\n"
            )
        };
        let other = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(5000));
        for first in [long("0"), long(" "), long("\t"), chunked("0"), other] {
            let feed = |rest: &str| Framing::new().feed(format!("{first}{rest}").as_bytes());
            assert_eq!(feed(""), Ok(()));
            assert!(feed(&format!("POST / HTTP/1.1\r\n{TWO}")).is_err(), "{first:.80}");
            let both = "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
            assert!(
                feed(&format!("POST / HTTP/1.1\r\n{both}")).is_err(),
                "{first:.80}"
            );
        }
        let endless = format!(
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{}",
            "0".repeat(LINE + 1)
        );
        assert!(Framing::new().feed(endless.as_bytes()).is_err());
    }
}
