//! The grammar of unified diffs, plain and as git makes it.

use super::git::{self, Change, FileLines, Section};
use super::reader::{Reader, path_at, refuse_at, trim_end};
use super::{Anchor, End, Hunk, Line, Operation, Side};
use crate::code::Refusal;
use crate::path::RelPath;

/// Says whether a text begins in this grammar.
pub(super) fn starts(line: &[u8]) -> bool {
    line.starts_with(b"--- ") || line.starts_with(b"diff --git ") || is_preamble(line)
}

/// Says whether a line only announces the names that follow: `diff -ru a b`, `Index: x`, `=====`.
fn is_preamble(line: &[u8]) -> bool {
    let rule = trim_end(line);
    let command = line.starts_with(b"diff -") && !line.starts_with(b"diff --");
    command || line.starts_with(b"Index: ") || (rule.len() >= 3 && rule.iter().all(|b| *b == b'='))
}

/// Reads the operations.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<Vec<Operation>, Refusal> {
    let mut operations = Vec::new();
    loop {
        reader.skip_blank();
        let from = reader.number();
        while reader.peek().is_some_and(is_preamble) {
            reader.next();
        }
        let announced = reader.number() > from;
        let operation = match reader.peek() {
            None if announced => {
                return Err(reader.refuse("unfinished", "the names of the file do not follow"));
            }
            None => return Ok(operations),
            Some(line) if line.starts_with(b"--- ") => plain_section(reader)?,
            Some(line) if git::is_binary(line) => return Err(git::binary(reader)),
            Some(line) => match line.strip_prefix(b"diff --git ") {
                Some(names) if !announced => git_section(reader, names)?,
                _ => {
                    let why = "a file begins with diff --git, or with --- and +++";
                    return Err(reader.refuse("unexpected_line", why));
                }
            },
        };
        reader.push(&mut operations, operation)?;
    }
}

fn git_section(reader: &mut Reader<'_>, names: &[u8]) -> Result<Operation, Refusal> {
    let number = reader.number();
    reader.next();
    let mut section = Section::read(reader, number, names)?;
    let mut hunks = Vec::new();
    if let Some(files) = FileLines::read(reader)? {
        section.agree(reader, &files)?;
        hunks = read_hunks(reader)?;
    }
    let path = path_at(&section.name, number)?;
    operation(number, path, section.change, hunks)
}

fn plain_section(reader: &mut Reader<'_>) -> Result<Operation, Refusal> {
    let number = reader.number();
    let Some(files) = FileLines::read(reader)? else {
        return Err(reader.refuse("unexpected_line", "the names of the file are missing"));
    };
    let (name, change) = files.plain(reader)?;
    let path = path_at(name, number)?;
    let hunks = read_hunks(reader)?;
    operation(number, path, change, hunks)
}

fn operation(number: usize, path: RelPath, change: Change, hunks: Vec<Hunk>) -> Result<Operation, Refusal> {
    match change {
        Change::New(mode) => Ok(Operation::Add {
            path,
            content: whole(hunks, Side::Add)?.unwrap_or_default(),
            mode,
        }),
        Change::Deleted => Ok(Operation::Delete {
            path,
            content: whole(hunks, Side::Remove)?,
        }),
        Change::Changed {
            move_to: None,
            mode: None,
        } if hunks.is_empty() => {
            let why = "the file is neither changed nor moved";
            Err(refuse_at(number, "empty_update", why))
        }
        Change::Changed { move_to, mode } => Ok(Operation::Update {
            path,
            move_to,
            hunks,
            mode,
        }),
    }
}

/// Gives the whole content of a file that is new or deleted: one hunk that has one side alone.
fn whole(hunks: Vec<Hunk>, side: Side) -> Result<Option<Vec<u8>>, Refusal> {
    let mut hunks = hunks.into_iter();
    let Some(hunk) = hunks.next() else {
        return Ok(None);
    };
    let why = "a file that is new or deleted has one hunk, with added or removed lines alone";
    if hunk.stated != Some(0) || hunk.lines.iter().any(|line| line.side != side) {
        return Err(refuse_at(hunk.line, "contradiction", why));
    }
    if let Some(second) = hunks.next() {
        return Err(refuse_at(second.line, "contradiction", why));
    }
    let mut content = Vec::new();
    for line in hunk.lines {
        content.extend_from_slice(&line.content);
        content.extend((line.end != End::File).then_some(b'\n'));
    }
    Ok(Some(content))
}

/// Reads the hunks that follow the names of a file; at least one.
fn read_hunks(reader: &mut Reader<'_>) -> Result<Vec<Hunk>, Refusal> {
    let mut hunks = Vec::new();
    let mut free = 0;
    while let Some(line) = reader.peek().filter(|line| line.starts_with(b"@@")) {
        let Some(ranges) = ranges(line).filter(|r| r.old_start > 0 || r.old_count == 0) else {
            return Err(reader.refuse("hunk_header", "a hunk begins with @@ -line,count +line,count @@"));
        };
        let stated = ranges.stated();
        if stated < free {
            return Err(reader.refuse("out_of_order", "the hunk begins before the one above it ends"));
        }
        free = stated + ranges.old_count;
        hunks.push(read_hunk(reader, &ranges)?);
    }
    match reader.peek() {
        _ if hunks.is_empty() => Err(reader.refuse("empty_hunk", "no hunk follows the names of the file")),
        Some([b' ' | b'+' | b'-', ..]) if !reader.peek().is_some_and(starts) => Err(reader.refuse(
            "wrong_count",
            "the hunk goes on after as many lines as its header says",
        )),
        _ => Ok(hunks),
    }
}

fn read_hunk(reader: &mut Reader<'_>, ranges: &Ranges) -> Result<Hunk, Refusal> {
    let mut hunk = Hunk {
        line: reader.number(),
        stated: Some(ranges.stated()),
        headers: Vec::new(),
        lines: Vec::new(),
        anchor: Anchor::Anywhere,
    };
    reader.next();
    let (mut old, mut new) = (Rest::of(ranges.old_count), Rest::of(ranges.new_count));
    loop {
        let Some(line) = reader.peek() else {
            if old.lines + new.lines > 0 {
                return Err(reader.refuse("unfinished", "the text ends inside of a hunk"));
            }
            break;
        };
        if line.starts_with(b"\\ ") && !hunk.lines.is_empty() {
            let last = hunk.lines.len() - 1;
            let line = &mut hunk.lines[last];
            old.ended |= line.side != Side::Add;
            new.ended |= line.side != Side::Remove;
            line.end = End::File;
            hunk.anchor = Anchor::EndOfFile;
            reader.next();
            continue;
        }
        if old.lines + new.lines == 0 {
            break;
        }
        let (side, content) = match line.split_first() {
            None => (Side::Keep, line),
            Some((b' ', content)) => (Side::Keep, content),
            Some((b'-', content)) => (Side::Remove, content),
            Some((b'+', content)) => (Side::Add, content),
            Some(_) => {
                let why = "the hunk has fewer lines than its header says, or a line without a space, - or +";
                return Err(reader.refuse("wrong_count", why));
            }
        };
        let taken = (side == Side::Add || old.take()) && (side == Side::Remove || new.take());
        if !taken {
            let why =
                "the lines of the hunk are not as many as its header says, or follow the last line of a file";
            return Err(reader.refuse("wrong_count", why));
        }
        let content = content.to_vec();
        let end = End::Newline;
        hunk.lines.push(Line { side, content, end });
        reader.next();
    }
    reader.finish(&mut hunk)?;
    Ok(hunk)
}

/// Counts the lines that one side of a hunk has still to get.
struct Rest {
    lines: usize,
    /// Its last line was told to be the last of the file.
    ended: bool,
}

impl Rest {
    fn of(lines: usize) -> Self {
        Self { lines, ended: false }
    }

    fn take(&mut self) -> bool {
        let free = self.lines > 0 && !self.ended;
        self.lines -= usize::from(free);
        free
    }
}

/// Is what the header of a hunk says.
pub(super) struct Ranges {
    old_start: usize,
    old_count: usize,
    new_count: usize,
}

impl Ranges {
    /// Gives how many lines of the old file lie before the hunk: an empty range names the line it follows.
    fn stated(&self) -> usize {
        self.old_start - usize::from(self.old_count > 0)
    }
}

/// Reads `@@ -1,2 +3,4 @@`, with anything after it; where the new side begins, nobody asks.
pub(super) fn ranges(line: &[u8]) -> Option<Ranges> {
    let (old_start, old_count, rest) = range(line.strip_prefix(b"@@ -")?)?;
    let (_, new_count, rest) = range(rest.strip_prefix(b" +")?)?;
    let rest = rest.strip_prefix(b" @@")?;
    (rest.is_empty() || rest.starts_with(b" ") || trim_end(rest).is_empty()).then_some(Ranges {
        old_start,
        old_count,
        new_count,
    })
}

fn range(text: &[u8]) -> Option<(usize, usize, &[u8])> {
    let (start, rest) = digits(text)?;
    match rest.strip_prefix(b",") {
        Some(rest) => digits(rest).map(|(count, rest)| (start, count, rest)),
        None => Some((start, 1, rest)),
    }
}

/// Reads a number of at most nine digits.
fn digits(text: &[u8]) -> Option<(usize, &[u8])> {
    let end = text
        .iter()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    let number = core::str::from_utf8(&text[..end]).ok().filter(|t| t.len() <= 9)?;
    Some((number.parse().ok()?, &text[end..]))
}
