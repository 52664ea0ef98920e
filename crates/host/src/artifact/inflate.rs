//! Decompression of raw DEFLATE and of gzip, as streams.

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use std::io::{Error, ErrorKind, Read, Result};

const CHUNK: usize = 64 << 10;

/// Reads what a raw DEFLATE stream holds, and stops at its end.
pub(super) struct Inflate<R> {
    from: R,
    state: Box<InflateState>,
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
    ended: Ended,
}

#[derive(PartialEq, Eq)]
enum Ended {
    No,
    Yes,
}

impl<R: Read> Inflate<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            state: InflateState::new_boxed(DataFormat::Raw),
            buffer: vec![0; CHUNK],
            at: 0,
            filled: 0,
            ended: Ended::No,
        }
    }

    /// Begins another stream, with what the last one left unread.
    fn again(&mut self) {
        self.state.reset(DataFormat::Raw);
        self.ended = Ended::No;
    }

    /// Gives the next byte behind the stream.
    fn byte(&mut self) -> Result<Option<u8>> {
        if self.at == self.filled {
            self.fill()?;
        }
        if self.at == self.filled {
            return Ok(None);
        }
        self.at += 1;
        Ok(Some(self.buffer[self.at - 1]))
    }

    fn fill(&mut self) -> Result<()> {
        self.at = 0;
        self.filled = loop {
            match self.from.read(&mut self.buffer) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        Ok(())
    }
}

impl<R: Read> Read for Inflate<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while self.ended == Ended::No {
            if self.at == self.filled {
                self.fill()?;
            }
            let input = &self.buffer[self.at..self.filled];
            let drained = input.is_empty();
            let result = inflate(&mut self.state, input, out, MZFlush::None);
            self.at += result.bytes_consumed;
            match result.status {
                Ok(MZStatus::StreamEnd) => self.ended = Ended::Yes,
                Ok(_) | Err(MZError::Buf) => {}
                Err(_) => return Err(ErrorKind::InvalidData.into()),
            }
            if result.bytes_written > 0 {
                return Ok(result.bytes_written);
            }
            if drained && self.ended == Ended::No {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(0)
    }
}

/// Reads what a gzip file holds, all of its members; what stands behind the last one is not looked at.
///
/// Its check sums are not compared: the digest of the whole file was.
pub(super) struct Gunzip<R> {
    inner: Inflate<R>,
    at: Place,
}

#[derive(PartialEq, Eq)]
enum Place {
    Header,
    Data,
    End,
}

impl<R: Read> Gunzip<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            inner: Inflate::new(from),
            at: Place::Header,
        }
    }

    fn must(&mut self) -> Result<u8> {
        self.inner.byte()?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// # Source
    /// RFC 1952, section 2.3.
    fn header(&mut self) -> Result<()> {
        let fixed: Vec<u8> = (0..8).map(|_| self.must()).collect::<Result<_>>()?;
        let flags = fixed[1];
        if fixed[0] != 8 || flags & 0xe0 != 0 {
            return Err(Error::from(ErrorKind::InvalidData));
        }
        if flags & 4 != 0 {
            let length = u16::from_le_bytes([self.must()?, self.must()?]);
            for _ in 0..length {
                self.must()?;
            }
        }
        for bit in [8, 16] {
            while flags & bit != 0 && self.must()? != 0 {}
        }
        for _ in 0..flags & 2 {
            self.must()?;
        }
        self.at = Place::Data;
        Ok(())
    }

    fn magic(&mut self) -> Result<bool> {
        Ok(self.inner.byte()? == Some(0x1f) && self.inner.byte()? == Some(0x8b))
    }
}

impl<R: Read> Read for Gunzip<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            match self.at {
                Place::Header => {
                    if !self.magic()? {
                        return Err(ErrorKind::InvalidData.into());
                    }
                    self.header()?;
                }
                Place::Data => match self.inner.read(out)? {
                    0 if out.is_empty() => return Ok(0),
                    0 => {
                        for _ in 0..8 {
                            self.must()?;
                        }
                        match self.magic()? {
                            true => {
                                self.inner.again();
                                self.header()?;
                            }
                            false => self.at = Place::End,
                        }
                    }
                    count => return Ok(count),
                },
                Place::End => return Ok(0),
            }
        }
    }
}
