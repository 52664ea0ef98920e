//! The grammar `*** Begin Patch`.

use super::reader::{Reader, trim_end};
use super::{Anchor, End, Hunk, Line, Mode, Operation, Side};
use crate::code::Refusal;

/// Says whether a text begins in this grammar.
pub(super) fn starts(line: &[u8]) -> bool {
    trim_end(line) == b"*** Begin Patch"
}

/// Reads the operations.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<Vec<Operation>, Refusal> {
    reader.next();
    let mut operations = Vec::new();
    loop {
        reader.skip_blank();
        let Some(line) = reader.next() else {
            let why = "the text ends before *** End Patch";
            return Err(reader.refuse("unfinished", why));
        };
        let operation = if let Some(name) = line.strip_prefix(b"*** Add File:") {
            Operation::Add {
                path: reader.path(bare(name))?,
                content: added(reader),
                mode: Mode::Regular,
            }
        } else if let Some(name) = line.strip_prefix(b"*** Delete File:") {
            Operation::Delete {
                path: reader.path(bare(name))?,
                content: None,
            }
        } else if let Some(name) = line.strip_prefix(b"*** Update File:") {
            update(reader, bare(name))?
        } else if trim_end(line) == b"*** End Patch" {
            reader.skip_blank();
            return match reader.peek() {
                None => Ok(operations),
                Some(_) => Err(reader.refuse("unexpected_line", "nothing follows *** End Patch")),
            };
        } else {
            let why = "a file begins with *** Add File:, *** Delete File: or *** Update File:, and each line of a \
                       new one with +";
            return Err(reader.refuse_last("unexpected_line", why));
        };
        reader.push(&mut operations, operation)?;
    }
}

fn added(reader: &mut Reader<'_>) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some(line) = reader.peek().and_then(|line| line.strip_prefix(b"+")) {
        content.extend_from_slice(line);
        content.push(b'\n');
        reader.next();
    }
    content
}

fn update(reader: &mut Reader<'_>, name: &[u8]) -> Result<Operation, Refusal> {
    let path = reader.path(name)?;
    let line = reader.number() - 1;
    let mut move_to = None;
    if let Some(name) = reader.peek().and_then(|line| line.strip_prefix(b"*** Move to:")) {
        reader.next();
        move_to = Some(reader.path(bare(name))?);
    }
    let mut hunks = Vec::new();
    while let Some(hunk) = hunk(reader)? {
        hunks.push(hunk);
    }
    if hunks.is_empty() && move_to.is_none() {
        let why = "the file is neither changed nor moved";
        return Err(super::reader::refuse_at(line, "empty_update", why));
    }
    Ok(Operation::Update {
        path,
        move_to,
        hunks,
        mode: None,
    })
}

/// Reads one hunk; `None` where the next file or the end of the patch follows.
fn hunk(reader: &mut Reader<'_>) -> Result<Option<Hunk>, Refusal> {
    skip_empty(reader);
    let ends = |line: &[u8]| line.starts_with(b"*** ") && trim_end(line) != b"*** End of File";
    if reader.peek().is_none_or(ends) {
        return Ok(None);
    }
    let mut hunk = Hunk {
        line: reader.number(),
        stated: None,
        headers: Vec::new(),
        lines: Vec::new(),
        anchor: Anchor::Anywhere,
    };
    while let Some(header) = reader.peek().and_then(header) {
        hunk.headers.extend((!header.is_empty()).then(|| header.to_vec()));
        reader.next();
    }
    // Bare empty lines at the end of a hunk set it apart from what follows; inside they are context whose one
    // space was lost on the way.
    let mut bare = 0;
    while let Some(line) = reader.peek() {
        let (side, content) = match line.split_first() {
            None => (Side::Keep, line),
            Some((b' ', content)) => (Side::Keep, content),
            Some((b'-', content)) => (Side::Remove, content),
            Some((b'+', content)) => (Side::Add, content),
            Some(_) if line.starts_with(b"*** ") || header(line).is_some() => break,
            Some(_) => {
                let why = "a line of a hunk begins with a space, - or +";
                return Err(reader.refuse("unexpected_line", why));
            }
        };
        bare = if line.is_empty() { bare + 1 } else { 0 };
        let content = content.to_vec();
        let end = End::Unsaid;
        hunk.lines.push(Line { side, content, end });
        reader.next();
    }
    hunk.lines.truncate(hunk.lines.len() - bare);
    if reader
        .peek()
        .is_some_and(|line| trim_end(line) == b"*** End of File")
    {
        hunk.anchor = Anchor::EndOfFile;
        reader.next();
    }
    reader.finish(&mut hunk)?;
    Ok(Some(hunk))
}

/// Takes spaces and tabs off a name; a carriage return is no part of a marker, and is refused with the name.
fn bare(name: &[u8]) -> &[u8] {
    let white = |b: &u8| matches!(b, b' ' | b'\t');
    let from = name.iter().position(|b| !white(b)).unwrap_or(name.len());
    let to = name.iter().rposition(|b| !white(b)).map_or(from, |at| at + 1);
    &name[from..to]
}

/// Goes past empty lines before a hunk: they set it apart from what came before.
fn skip_empty(reader: &mut Reader<'_>) {
    while reader.peek().is_some_and(<[u8]>::is_empty) {
        reader.next();
    }
}

/// Gives the text of an `@@` header, empty where it says nothing.
///
/// The line numbers of a unified diff say nothing here: agents that mix the grammars make them up.
fn header(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"@@")?;
    if !rest.is_empty() && !rest.starts_with(b" ") && trim_end(rest) != b"" {
        return None;
    }
    if super::unified::ranges(line).is_some() {
        return Some(b"");
    }
    Some(rest.trim_ascii())
}
