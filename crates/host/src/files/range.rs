//! Reading a part of a file, with the digest of the whole.
//!
//! A part is of lines, counted from 1 and ended by a line feed, or of bytes. It knows no encoding: bytes come out as
//! they are.

use crate::error::{Error, Result};
use crate::files::read::open_regular;
#[cfg(test)]
use crate::files::tests::was_read;
use crate::root::{LastLink, Place, Root};
use rustix::fs::Stat;
use semel_core::{Code, Refusal, RelPath, Sha256, digest::Hasher};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Names the part of a file that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// All of it.
    Whole,
    /// Lines from a first one on.
    Lines {
        /// The first one, counted from 1.
        first: u64,
        /// How many at most.
        most: u64,
    },
    /// The last lines.
    Last(u64),
    /// Bytes.
    Bytes {
        /// The first one, counted from 0.
        first: u64,
        /// How many at most.
        most: u64,
    },
}

/// Bounds what one read costs, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many bytes are given.
    pub given: u64,
    /// Up to which size the whole is digested.
    pub digest: u64,
    /// How many bytes are looked through.
    pub scan: u64,
}

/// Says whether a file stayed as it was while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steadiness {
    /// It did, as far as its size and times tell.
    Steady,
    /// Another process wrote into it each time that it was read.
    Changing,
}

/// Is the part of a file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The digest of the whole file; `None` where it is larger than the bound.
    pub sha256: Option<Sha256>,
    /// The size of the whole file.
    pub size: u64,
    /// How many lines the whole file has; `None` where it was not looked through.
    pub lines: Option<u64>,
    /// The first and the last line given; `None` for none, and for bytes.
    pub given: Option<(u64, u64)>,
    /// The line, or of bytes the byte, that comes next; `None` at the end.
    pub next: Option<u64>,
    /// Whether the bound ended the part before what was wanted.
    pub cut: Cut,
    /// Whether the file stayed as it was.
    pub steadiness: Steadiness,
    /// The path with every link followed.
    pub resolved: RelPath,
}

/// Says whether a bound ended a part before what was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It did not.
    No,
    /// It did.
    AtBound,
}

/// How often a file that another process writes into is read before it is given as it is.
const TRIES: usize = 4;
const CHUNK: usize = 128 << 10;

/// Reads a part of a regular file beneath a root; links that stay inside are followed.
///
/// All comes from one open handle, so that a file that is replaced meanwhile is read as the old or as the new one.
/// One that another process writes into is read anew, a few times.
///
/// # Errors
/// As of [`super::read_file`]. `too_large` for a whole file past the bound; reason `line_too_long` where one line is
/// longer than the bound, `scan_too_long` where what is wanted lies behind more than is looked through.
pub fn read_part(root: &Root, path: &RelPath, range: Range, bounds: Bounds) -> Result<Part> {
    read_place(root, root.place(path, LastLink::Follow)?, range, bounds)
}

/// Reads a part of the regular file at a place.
pub(super) fn read_place(root: &Root, place: Place, range: Range, bounds: Bounds) -> Result<Part> {
    let (file, mut before) = open_regular(root, &place)?;
    let shown = || place.resolved.to_string();
    let mut tries = 0;
    loop {
        tries += 1;
        let reading = Reading {
            file: &file,
            size: u64::try_from(before.st_size).unwrap_or_default(),
            shown: &place.resolved,
            range,
            bounds,
        };
        let read = reading.read();
        was_read();
        let after = rustix::fs::fstat(&file).map_err(|e| Error::io("examine", shown(), e))?;
        let steady = marks(&before) == marks(&after);
        match read? {
            Some(mut part) if steady || tries == TRIES => {
                if !steady {
                    part.steadiness = Steadiness::Changing;
                }
                part.resolved = place.resolved;
                return Ok(part);
            }
            None if tries == TRIES => {
                return Err(
                    Refusal::new(Code::IoFailed, "the file grows shorter each time it is read")
                        .reason("changed_meanwhile")
                        .name(shown())
                        .into(),
                );
            }
            _ => before = after,
        }
    }
}

/// Is reached between the reading of a file and the look whether it stayed as it was; in the tests another function
/// stands here, which writes into it.
#[cfg(not(test))]
const fn was_read() {}

/// What changes when a file is written into.
fn marks(stat: &Stat) -> (i64, i64, i64, i64, i64) {
    let nanos = |nanos| i64::try_from(nanos).unwrap_or_default();
    (
        stat.st_size,
        stat.st_mtime,
        nanos(stat.st_mtime_nsec),
        stat.st_ctime,
        nanos(stat.st_ctime_nsec),
    )
}

struct Reading<'a> {
    file: &'a File,
    size: u64,
    shown: &'a RelPath,
    range: Range,
    bounds: Bounds,
}

impl Reading<'_> {
    /// Reads once; `None` where the file is shorter than it was.
    fn read(&self) -> Result<Option<Part>> {
        if self.range == Range::Whole && self.size > self.bounds.given {
            let why = format!(
                "it has {} bytes, and one answer at most {}: read it in parts, with offset and limit (lines) or byte_offset and byte_limit",
                self.size, self.bounds.given
            );
            return Err(self.too_large(why, "file_too_large"));
        }
        if matches!(self.range, Range::Last(_)) && self.size > self.bounds.scan {
            return Err(self.scan_too_long());
        }
        let mut survey = Survey::new(self.range, self.bounds, self.size);
        // What fits is read once, and looked at in memory.
        if self.size <= self.bounds.given {
            let Some(all) = self.bytes(0, self.size)? else {
                return Ok(None);
            };
            survey.feed(&all);
            let (part, start, end) = self.part(survey)?;
            let bytes = if (start, end) == (0, all.len() as u64) {
                all
            } else {
                all[usize_of(start)..usize_of(end)].to_vec()
            };
            return Ok(Some(Part { bytes, ..part }));
        }
        let mut at = 0;
        let mut buffer = vec![0; CHUNK];
        while at < self.size && !survey.done() {
            if at >= self.bounds.scan {
                let why = format!(
                    "more than {} bytes lie before it: use byte_offset",
                    self.bounds.scan
                );
                return Err(self.too_large(why, "scan_too_long"));
            }
            let wanted = usize_of((self.size - at).min(CHUNK as u64));
            match self.file.read_at(&mut buffer[..wanted], at) {
                Ok(0) => return Ok(None),
                Ok(n) => {
                    survey.feed(&buffer[..n]);
                    at += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", self.shown.to_string(), e)),
            }
        }
        let (part, start, end) = self.part(survey)?;
        let bytes = self.bytes(start, end)?;
        Ok(bytes.map(|bytes| Part { bytes, ..part }))
    }

    fn bytes(&self, start: u64, end: u64) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; usize_of(end - start)];
        match self.file.read_exact_at(&mut bytes, start) {
            Ok(()) => Ok(Some(bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(Error::io("read", self.shown.to_string(), e)),
        }
    }

    fn scan_too_long(&self) -> Error {
        let why = format!(
            "more than {} bytes lie before it: use byte_offset",
            self.bounds.scan
        );
        self.too_large(why, "scan_too_long")
    }

    fn too_large(&self, why: String, reason: &str) -> Error {
        Refusal::new(Code::TooLarge, why)
            .reason(reason)
            .name(self.shown.to_string())
            .into()
    }

    fn part(&self, survey: Survey) -> Result<(Part, u64, u64)> {
        let found = survey.found();
        if found.cut == Cut::AtBound && found.start == found.end {
            let why = format!(
                "one line has more than {} bytes: read it with byte_offset and byte_limit",
                self.bounds.given
            );
            return Err(self.too_large(why, "line_too_long"));
        }
        let part = Part {
            bytes: Vec::new(),
            sha256: found.sha256,
            size: self.size,
            lines: found.lines,
            given: found.given,
            next: found.next,
            cut: found.cut,
            steadiness: Steadiness::Steady,
            resolved: RelPath::root(),
        };
        Ok((part, found.start, found.end))
    }
}

/// Fits: what is held in memory is bounded far below.
fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Looks through a file once, in pieces: its digest, its lines, and where the wanted ones lie.
struct Survey {
    range: Range,
    bounds: Bounds,
    size: u64,
    hasher: Option<Hasher>,
    at: u64,
    /// How many lines ended before here.
    ended: u64,
    line_start: u64,
    start: Option<u64>,
    end: Option<u64>,
    /// The last line that is given.
    to: u64,
    cut: Cut,
    /// Where the last lines begin, as many as are wanted.
    last: VecDeque<u64>,
}

struct Found {
    start: u64,
    end: u64,
    given: Option<(u64, u64)>,
    next: Option<u64>,
    lines: Option<u64>,
    sha256: Option<Sha256>,
    cut: Cut,
}

impl Survey {
    fn new(range: Range, bounds: Bounds, size: u64) -> Self {
        Self {
            range,
            bounds,
            size,
            hasher: (size <= bounds.digest).then(Hasher::new),
            at: 0,
            ended: 0,
            line_start: 0,
            start: None,
            end: None,
            to: 0,
            cut: Cut::No,
            last: VecDeque::new(),
        }
    }

    /// Says whether no more has to be looked at.
    fn done(&self) -> bool {
        let found = match self.range {
            Range::Bytes { .. } => true,
            Range::Lines { .. } => self.end.is_some(),
            Range::Whole | Range::Last(_) => false,
        };
        self.hasher.is_none() && found
    }

    fn feed(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.at += piece.len() as u64;
            if piece.last() == Some(&b'\n') {
                self.line();
            }
        }
        if self.at == self.size && self.line_start < self.at {
            self.line();
        }
        self.cut_short();
    }

    /// Ends what is wanted where the line that goes on is past the bound already, wherever it ends.
    fn cut_short(&mut self) {
        let Range::Lines { first, .. } = self.range else {
            return;
        };
        let wanted = self.end.is_none() && self.ended + 1 >= first;
        let from = self.start.unwrap_or(self.line_start);
        if wanted && self.at - from > self.bounds.given {
            self.start = Some(from);
            self.end = Some(self.line_start);
            self.cut = Cut::AtBound;
        }
    }

    /// Takes the line that ends here.
    fn line(&mut self) {
        let (start, end) = (self.line_start, self.at);
        self.ended += 1;
        self.line_start = end;
        match self.range {
            Range::Lines { first, most } => {
                if self.ended == first {
                    self.start = Some(start);
                }
                let (Some(from), None) = (self.start, self.end) else {
                    return;
                };
                if end - from > self.bounds.given {
                    self.end = Some(start);
                    self.cut = Cut::AtBound;
                } else {
                    self.to = self.ended;
                    if self.ended - first + 1 == most {
                        self.end = Some(end);
                    }
                }
            }
            Range::Last(most) => {
                self.last.push_back(start);
                while self.last.len() as u64 > most {
                    self.last.pop_front();
                }
            }
            Range::Whole | Range::Bytes { .. } => {}
        }
    }

    fn found(mut self) -> Found {
        let whole = self.at == self.size;
        let lines = whole.then_some(self.ended);
        let sha256 = self.hasher.take().filter(|_| whole).map(Hasher::finish);
        let mut found = Found {
            start: 0,
            end: self.size,
            given: (self.ended > 0).then_some((1, self.ended)),
            next: None,
            lines,
            sha256,
            cut: self.cut,
        };
        match self.range {
            Range::Whole => {}
            Range::Bytes { first, most } => {
                found.start = first.min(self.size);
                let wanted = first.saturating_add(most).min(self.size);
                found.end = wanted.min(found.start + self.bounds.given);
                if found.end < wanted {
                    found.cut = Cut::AtBound;
                }
                found.given = None;
                found.next = (found.end < self.size).then_some(found.end);
            }
            Range::Lines { first, .. } => self.lines_found(first, &mut found),
            Range::Last(_) => self.last_found(&mut found),
        }
        found
    }

    fn lines_found(&self, first: u64, found: &mut Found) {
        let Some(start) = self.start else {
            (found.start, found.end, found.given) = (self.size, self.size, None);
            return;
        };
        found.start = start;
        found.end = self.end.unwrap_or(self.size);
        found.given = (found.end > found.start).then_some((first, self.to));
        found.next = (found.end < self.size).then_some(self.to + 1);
    }

    fn last_found(&mut self, found: &mut Found) {
        while let Some(start) = self.last.front() {
            if self.size - start <= self.bounds.given {
                break;
            }
            self.last.pop_front();
            found.cut = Cut::AtBound;
        }
        found.start = self.last.front().copied().unwrap_or(self.size);
        let count = self.last.len() as u64;
        found.given = (count > 0).then_some((self.ended + 1 - count, self.ended));
    }
}
