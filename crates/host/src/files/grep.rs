//! Finding lines in files by a regular expression.
//!
//! A match lies within one line. Files are read in pieces, each line is looked at once, and what one line costs is
//! bounded: time is in proportion to what is read.

use crate::error::{Error, Result};
use crate::files::read::{FileKind, open_regular, open_regular_at};
use crate::files::search::excluded;
use crate::files::walk::{Bounds, Ended, Go, Walked, walk};
use crate::root::{LastLink, Root, failed};
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::OFlags;
use semel_core::glob::{Case, Entry, Glob};
use semel_core::{Code, Refusal, RelPath};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;

/// Is a compiled pattern for lines.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// Says how a pattern is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// As a regular expression.
    Regex,
    /// As it stands.
    Fixed,
}

/// How large a compiled pattern may become: what one byte of a line costs at worst grows with it.
const COMPILED: usize = 4 << 20;
const LONGEST_PATTERN: usize = 4096;
/// How much of a file is looked at for the NUL byte that tells a binary one.
const SNIFFED: usize = 8 << 10;

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// `bad_input`, reason `bad_pattern`, where it is malformed or too large, and where it could match nothing because
    /// it holds a line feed.
    pub fn parse(text: &str, syntax: Syntax, case: Case) -> Result<Self> {
        let bad = |why: String| {
            Refusal::new(Code::BadInput, why)
                .reason("bad_pattern")
                .name("pattern")
        };
        if text.len() > LONGEST_PATTERN {
            return Err(bad("a pattern has at most 4,096 bytes".to_owned()).into());
        }
        if holds_line_feed(text, syntax) {
            let why = "a match lies within one line, and the pattern holds a line feed";
            return Err(bad(why.to_owned()).into());
        }
        let escaped;
        let text = match syntax {
            Syntax::Regex => text,
            Syntax::Fixed => {
                escaped = regex::escape(text);
                &escaped
            }
        };
        RegexBuilder::new(text)
            .case_insensitive(case == Case::Insensitive)
            .size_limit(COMPILED)
            .build()
            .map(Self)
            .map_err(|e| {
                bad(format!(
                    "the pattern is not a regular expression that can be used: {e}"
                ))
                .into()
            })
    }
}

impl Pattern {
    /// Finds where the first match begins. `$` stands before a carriage return at the end of the line, too.
    fn find(&self, line: &[u8]) -> Option<usize> {
        let bare = line.strip_suffix(b"\r");
        let found = bare.and_then(|bare| self.0.find(bare));
        found.or_else(|| self.0.find(line)).map(|found| found.start())
    }
}

/// Says whether a pattern asks for a line feed outside of a set: then it could match no line.
fn holds_line_feed(text: &str, syntax: Syntax) -> bool {
    if syntax == Syntax::Fixed {
        return text.contains('\n');
    }
    let (mut escaped, mut sets) = (false, 0_u32);
    for c in text.chars() {
        match (escaped, c) {
            (true, 'n') | (false, '\n') if sets == 0 => return true,
            (false, '[') => sets += 1,
            (false, ']') => sets = sets.saturating_sub(1),
            _ => {}
        }
        escaped = !escaped && c == '\\';
    }
    false
}

/// Says what is told of a file with matching lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// The lines.
    Lines,
    /// That there are some.
    Files,
}

/// Says which lines are looked for.
pub struct WantedLines<'a> {
    /// What a line has to match.
    pub pattern: &'a Pattern,
    /// What a file has to match, one of them; none takes every file.
    pub files: &'a [Glob],
    /// What is passed by, with all that is in it.
    pub exclude: &'a [Glob],
    /// What is told.
    pub tell: Tell,
    /// How many lines before and behind each are told.
    pub context: usize,
    /// How many lines, or files, at most.
    pub most: usize,
    /// How many bytes of lines at most, all together.
    pub bytes: usize,
    /// How many bytes of one line are told.
    pub shown: usize,
    /// How many bytes a line may have to be looked at.
    pub line: usize,
}

/// Is a line, or as much of it as is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its number, from 1.
    pub line: u64,
    /// Its bytes without the line feed.
    pub text: Vec<u8>,
    /// Where they begin, where they are not all of the line.
    pub cut: Option<usize>,
}

/// Is a line that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// In which file, with every link followed.
    pub path: RelPath,
    /// The line.
    pub shown: Shown,
    /// Where the first match begins, in bytes from 1.
    pub column: usize,
    /// The lines before it.
    pub before: Vec<Shown>,
    /// The lines behind it.
    pub after: Vec<Shown>,
}

/// Is what was found in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grepped {
    /// The lines, in the order of the walk.
    pub hits: Vec<Hit>,
    /// The files, where they alone are told.
    pub files: Vec<RelPath>,
    /// How many files were looked through.
    pub searched: u64,
    /// How many were passed by as binary: a NUL byte is near their beginning.
    pub binary: u64,
    /// How many could not be read.
    pub unreadable: u64,
    /// How many were devices, FIFOs, sockets or links: none is opened or followed.
    pub special: u64,
    /// How many lines were too long to be looked at.
    pub long_lines: u64,
    /// The file itself, with every link followed, where the path led to one.
    pub file: Option<RelPath>,
    /// How the walk went.
    pub walked: Walked,
}

/// Finds the lines that match, in one file or in all below a directory.
///
/// # Errors
/// Those of the path itself: `not_found`, `path_escapes_root`, `too_large`, `io_failed`. What cannot be read below is
/// counted.
pub fn grep(root: &Root, at: &RelPath, wanted: &WantedLines<'_>, bounds: &Bounds<'_>) -> Result<Grepped> {
    let mut search = Search {
        wanted,
        over: bounds.over,
        found: Grepped::default(),
        bytes: 0,
    };
    if let Some((file, resolved)) = one_file(root, at)? {
        search.found.walked.entries = 1;
        search.found.walked.ended = search.file(file, &resolved).err();
        search.found.file = Some(resolved);
        return Ok(search.found);
    }
    let walked = walk(root, at, None, bounds, &mut |met| {
        if excluded(wanted.exclude, met) {
            return Go::Past;
        }
        let fits = |glob: &Glob| glob.matches(met.below, Entry::Other);
        match met.kind {
            FileKind::Directory => return Go::On,
            _ if !(wanted.files.is_empty() || wanted.files.iter().any(fits)) => return Go::On,
            FileKind::Symlink | FileKind::Special => {
                search.found.special += 1;
                return Go::On;
            }
            FileKind::File => {}
        }
        match open_regular_at(root, met.dir, met.name, met.path) {
            Ok((file, _)) => match search.file(file, met.path) {
                Ok(()) => Go::On,
                Err(ended) => Go::Stop(ended),
            },
            Err(Error::Refused(refusal)) if refusal.code == Code::NotFound => Go::On,
            Err(_) => {
                search.found.unreadable += 1;
                Go::On
            }
        }
    })?;
    search.found.walked = walked;
    Ok(search.found)
}

/// Opens the path where it leads to a file; `None` where it leads to a directory.
fn one_file(root: &Root, at: &RelPath) -> Result<Option<(File, RelPath)>> {
    if at.is_root() {
        return Ok(None);
    }
    let place = match root.place(at, LastLink::Follow) {
        Ok(place) => place,
        // A link to the root itself: a directory, told by the walk.
        Err(Error::Refused(refusal)) if refusal.reason.as_deref() == Some("root") => return Ok(None),
        Err(error) => return Err(error),
    };
    let seen = root.step(place.parent.as_fd(), &place.name, OFlags::PATH);
    let stat = seen.and_then(|seen| rustix::fs::fstat(&seen));
    match stat {
        Ok(stat) if FileKind::of(&stat) == FileKind::Directory => Ok(None),
        Ok(_) => Ok(Some((open_regular(root, &place)?.0, place.resolved))),
        Err(errno) => Err(failed(errno, at)),
    }
}

struct Search<'a> {
    wanted: &'a WantedLines<'a>,
    over: &'a dyn Fn() -> bool,
    found: Grepped,
    bytes: usize,
}

impl Search<'_> {
    /// Looks through one file.
    ///
    /// # Errors
    /// Why no more is looked for.
    fn file(&mut self, file: File, path: &RelPath) -> std::result::Result<(), Ended> {
        let mut lines = match Lines::begin(file, self.wanted.line, self.over) {
            Ok(Some(lines)) => lines,
            Ok(None) => {
                self.found.binary += 1;
                return Ok(());
            }
            Err(broke) => return self.broke(&broke),
        };
        self.found.searched += 1;
        let first = self.found.hits.len();
        let mut before: VecDeque<Shown> = VecDeque::new();
        loop {
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(()),
                Err(broke) => return self.broke(&broke),
            };
            let found = match line.whole {
                Whole::Yes => self.wanted.pattern.find(line.bytes),
                Whole::No => {
                    self.found.long_lines += 1;
                    None
                }
            };
            if found.is_none() && self.wanted.context == 0 {
                continue;
            }
            let shown = self.shown(&line, found.unwrap_or(0));
            self.behind(first, &shown)?;
            if let Some(start) = found {
                if self.wanted.tell == Tell::Files {
                    return self.tell_file(path);
                }
                self.tell_line(path, start + 1, &shown, &before)?;
            }
            if self.wanted.context > 0 {
                before.push_back(shown);
                if before.len() > self.wanted.context {
                    before.pop_front();
                }
            }
        }
    }

    /// What was found so far stays.
    fn broke(&mut self, broke: &Broke) -> std::result::Result<(), Ended> {
        match broke {
            Broke::Time => Err(Ended::Time),
            Broke::Unreadable => {
                self.found.unreadable += 1;
                Ok(())
            }
        }
    }

    fn tell_file(&mut self, path: &RelPath) -> std::result::Result<(), Ended> {
        if self.found.files.len() >= self.wanted.most {
            return Err(Ended::Results);
        }
        self.weigh(path.as_bytes().len())?;
        self.found.files.push(path.clone());
        Ok(())
    }

    fn tell_line(
        &mut self,
        path: &RelPath,
        column: usize,
        shown: &Shown,
        before: &VecDeque<Shown>,
    ) -> std::result::Result<(), Ended> {
        if self.found.hits.len() >= self.wanted.most {
            return Err(Ended::Results);
        }
        let texts = before.iter().chain([shown]).map(|line| line.text.len());
        self.weigh(texts.sum::<usize>() + path.as_bytes().len())?;
        self.found.hits.push(Hit {
            path: path.clone(),
            column,
            before: before.iter().cloned().collect(),
            after: Vec::new(),
            shown: shown.clone(),
        });
        Ok(())
    }

    /// Gives a line to the hits before it that still want some.
    fn behind(&mut self, first: usize, shown: &Shown) -> std::result::Result<(), Ended> {
        let context = self.wanted.context as u64;
        for at in (first..self.found.hits.len()).rev() {
            if self.found.hits[at].shown.line + context < shown.line {
                break;
            }
            self.weigh(shown.text.len())?;
            self.found.hits[at].after.push(shown.clone());
        }
        Ok(())
    }

    fn weigh(&mut self, bytes: usize) -> std::result::Result<(), Ended> {
        self.bytes += bytes;
        if self.bytes > self.wanted.bytes {
            return Err(Ended::Results);
        }
        Ok(())
    }

    /// Takes as much of a line as is told, around a place in it.
    fn shown(&self, line: &Line<'_>, around: usize) -> Shown {
        let (bytes, most) = (line.bytes, self.wanted.shown);
        if bytes.len() <= most && line.whole == Whole::Yes {
            return Shown {
                line: line.number,
                text: bytes.to_vec(),
                cut: None,
            };
        }
        let from = around.saturating_sub(most / 4);
        let from = boundary(bytes, from.min(bytes.len().saturating_sub(most)));
        let to = boundary(bytes, (from + most).min(bytes.len()));
        Shown {
            line: line.number,
            text: bytes[from..to].to_vec(),
            cut: Some(from),
        }
    }
}

/// Moves a place back to where a character begins, if there is one near.
fn boundary(line: &[u8], at: usize) -> usize {
    let begins = |at: &usize| line.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (at.saturating_sub(3)..=at).rev().find(begins).unwrap_or(at)
}

/// Says whether a line came whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    Yes,
    /// It is longer than what is held: only its beginning came.
    No,
}

/// Is one line of a file.
struct Line<'a> {
    number: u64,
    bytes: &'a [u8],
    whole: Whole,
}

/// Says why a file was not read to its end.
enum Broke {
    /// It was time to end.
    Time,
    /// It could not be read.
    Unreadable,
}

/// Reads a file line by line, in pieces.
struct Lines<'a> {
    file: File,
    over: &'a dyn Fn() -> bool,
    buffer: Vec<u8>,
    start: usize,
    /// Up to where the buffer was looked through for the end of a line.
    looked: usize,
    ended: bool,
    most: usize,
    number: u64,
    /// The beginning of a line that is longer than what is held.
    long: Vec<u8>,
}

const PIECE: usize = 64 << 10;

impl<'a> Lines<'a> {
    /// Begins to read; `None` for a binary file.
    fn begin(
        file: File,
        most: usize,
        over: &'a dyn Fn() -> bool,
    ) -> std::result::Result<Option<Self>, Broke> {
        let mut lines = Self {
            file,
            over,
            buffer: Vec::new(),
            start: 0,
            looked: 0,
            ended: false,
            most,
            number: 0,
            long: Vec::new(),
        };
        while lines.buffer.len() < SNIFFED && !lines.ended {
            lines.fill()?;
        }
        let sniffed = &lines.buffer[..lines.buffer.len().min(SNIFFED)];
        Ok((!sniffed.contains(&0)).then_some(lines))
    }

    fn fill(&mut self) -> std::result::Result<(), Broke> {
        if (self.over)() {
            return Err(Broke::Time);
        }
        self.buffer.drain(..self.start);
        self.looked -= self.start;
        self.start = 0;
        let held = self.buffer.len();
        self.buffer.resize(held + PIECE, 0);
        let read = loop {
            match self.file.read(&mut self.buffer[held..]) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Broke::Unreadable),
                Ok(read) => break read,
            }
        };
        self.buffer.truncate(held + read);
        self.ended = read == 0;
        Ok(())
    }

    /// Gives the next line without its line feed.
    fn next(&mut self) -> std::result::Result<Option<Line<'_>>, Broke> {
        loop {
            if let Some(end) = line_feed(&self.buffer[self.looked..]) {
                let (from, to) = (self.start, self.looked + end);
                (self.start, self.looked) = (to + 1, to + 1);
                return Ok(Some(self.line(from, to)));
            }
            self.looked = self.buffer.len();
            if self.ended {
                let (from, to) = (self.start, self.buffer.len());
                self.start = to;
                return Ok((from < to).then(|| self.line(from, to)));
            }
            if self.buffer.len() - self.start > self.most {
                return self.beginning().map(Some);
            }
            self.fill()?;
        }
    }

    fn line(&mut self, from: usize, to: usize) -> Line<'_> {
        self.number += 1;
        Line {
            number: self.number,
            bytes: &self.buffer[from..to],
            whole: if to - from > self.most {
                Whole::No
            } else {
                Whole::Yes
            },
        }
    }

    /// Gives the beginning of a line that is longer than what is held, and passes the rest.
    fn beginning(&mut self) -> std::result::Result<Line<'_>, Broke> {
        self.long = self.buffer[self.start..].to_vec();
        loop {
            self.start = self.buffer.len();
            self.looked = self.start;
            self.fill()?;
            let end = line_feed(&self.buffer).map(|end| end + 1);
            if end.is_some() || self.ended {
                let next = end.unwrap_or(self.buffer.len());
                (self.start, self.looked) = (next, next);
                break;
            }
        }
        self.number += 1;
        Ok(Line {
            number: self.number,
            bytes: &self.long,
            whole: Whole::No,
        })
    }
}

fn line_feed(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|b| *b == b'\n')
}
