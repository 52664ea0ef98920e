//! The numbered lines of a patch, without what agents wrap around them.

use super::{Hunk, LONGEST_PATCH, Line, MOST_HUNKS, MOST_LINES, MOST_OPERATIONS, Operation, Side, bad};
use crate::code::{Code, Refusal};
use crate::path::RelPath;

/// Gives the lines of a patch one by one, and refuses with their numbers.
pub(super) struct Reader<'a> {
    lines: Vec<&'a [u8]>,
    /// The index of the next line.
    at: usize,
    hunks: usize,
}

impl<'a> Reader<'a> {
    /// Splits the text, sets a wrapper aside and goes to the first line that is not blank.
    pub(super) fn of(text: &'a [u8]) -> Result<Self, Refusal> {
        if text.len() > LONGEST_PATCH {
            return Err(too_large(&format!("a patch has at most {LONGEST_PATCH} bytes")));
        }
        if text.iter().filter(|b| **b == b'\n').count() > MOST_LINES {
            return Err(too_large(&format!("a patch has at most {MOST_LINES} lines")));
        }
        let mut lines: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
        if lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
        let mut reader = Self {
            lines,
            at: 0,
            hunks: 0,
        };
        reader.skip_blank();
        reader.strip_crlf()?;
        if let Some(close) = reader.peek().and_then(closing) {
            let last = reader.lines.iter().rposition(|line| !is_blank(line));
            if last.is_some_and(|last| last > reader.at && trim_end(reader.lines[last]) == close) {
                reader.lines.truncate(last.unwrap_or_default());
                reader.at += 1;
                reader.skip_blank();
            }
        }
        Ok(reader)
    }

    /// Sets CRLF line ends aside where the first line has one: then every line must, or nobody knows which of the
    /// carriage returns belong to the file.
    fn strip_crlf(&mut self) -> Result<(), Refusal> {
        if !self.peek().is_some_and(|line| line.ends_with(b"\r")) {
            return Ok(());
        }
        let last = self.lines.len() - 1;
        for at in 0..self.lines.len() {
            match self.lines[at].strip_suffix(b"\r") {
                Some(line) => self.lines[at] = line,
                // The last line may lack its line feed, and so its carriage return.
                None if at == last => {}
                None => {
                    self.at = at;
                    return Err(self.refuse(
                        "mixed_line_ends",
                        "some lines of the patch end with CRLF, not all",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Gives the next line and stays.
    pub(super) fn peek(&self) -> Option<&'a [u8]> {
        self.lines.get(self.at).copied()
    }

    /// Gives the next line and goes past it.
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.peek()?;
        self.at += 1;
        Some(line)
    }

    /// Goes back before the line that was given last.
    pub(super) fn back(&mut self) {
        self.at -= 1;
    }

    /// Gives the number of the next line, counted from 1.
    pub(super) fn number(&self) -> usize {
        self.at + 1
    }

    /// Goes past lines that hold white space alone.
    pub(super) fn skip_blank(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.at += 1;
        }
    }

    /// Refuses because of the next line.
    pub(super) fn refuse(&self, reason: &str, why: &str) -> Refusal {
        refuse_at(self.number(), reason, why)
    }

    /// Refuses because of the line that was given last.
    pub(super) fn refuse_last(&self, reason: &str, why: &str) -> Refusal {
        refuse_at(self.at, reason, why)
    }

    /// Understands a name that stands on the line that was given last.
    pub(super) fn path(&self, name: &[u8]) -> Result<RelPath, Refusal> {
        if name.ends_with(b"\r") {
            return Err(self.refuse_last("mixed_line_ends", "the line ends with CRLF, unlike the first"));
        }
        path_at(name, self.at)
    }

    /// Counts one more hunk, checks that it changes something, and puts its lines in their one order.
    pub(super) fn finish(&mut self, hunk: &mut Hunk) -> Result<(), Refusal> {
        self.hunks += 1;
        if self.hunks > MOST_HUNKS {
            return Err(too_large(&format!("a patch has at most {MOST_HUNKS} hunks")));
        }
        if hunk.lines.is_empty() {
            return Err(refuse_at(hunk.line, "empty_hunk", "the hunk holds no line"));
        }
        let side = |without: Side| {
            let on = move |line: &&Line| line.side != without;
            hunk.lines.iter().filter(on).map(|line| (&line.content, line.end))
        };
        if side(Side::Add).eq(side(Side::Remove)) {
            return Err(refuse_at(hunk.line, "no_change", "the hunk changes nothing"));
        }
        for run in hunk
            .lines
            .chunk_by_mut(|a, b| a.side != Side::Keep && b.side != Side::Keep)
        {
            run.sort_by_key(|line| line.side == Side::Add);
        }
        Ok(())
    }

    /// Adds an operation within the bound.
    pub(super) fn push(&self, operations: &mut Vec<Operation>, operation: Operation) -> Result<(), Refusal> {
        if operations.len() == MOST_OPERATIONS {
            return Err(too_large(&format!(
                "a patch touches at most {MOST_OPERATIONS} files"
            )));
        }
        operations.push(operation);
        Ok(())
    }
}

/// Gives the line that closes a wrapper, where this line opens one.
fn closing(line: &[u8]) -> Option<&[u8]> {
    if line.starts_with(b"```") {
        let word = trim_end(&line[3..]);
        return word.iter().all(u8::is_ascii_alphanumeric).then_some(b"```");
    }
    let rest = line.strip_prefix(b"apply_patch").unwrap_or(line);
    let word = trim_end(rest.trim_ascii_start().strip_prefix(b"<<")?).trim_ascii_start();
    let word = match word {
        [b'\'', word @ .., b'\''] | [b'"', word @ .., b'"'] => word,
        word => word,
    };
    let plain = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    (!word.is_empty() && word.iter().all(plain)).then_some(word)
}

/// Understands a name that stands on a line of the patch.
pub(super) fn path_at(name: &[u8], number: usize) -> Result<RelPath, Refusal> {
    let path = RelPath::parse(name).map_err(|refusal| refusal.name(format!("line {number}")))?;
    if path.is_root() {
        return Err(refuse_at(number, "bad_name", "the name of a file is missing"));
    }
    Ok(path)
}

/// Refuses because of a line of the patch.
pub(super) fn refuse_at(number: usize, reason: &str, why: &str) -> Refusal {
    bad(reason, why).name(format!("line {number}"))
}

/// Refuses what is past a limit.
pub(super) fn too_large(why: &str) -> Refusal {
    Refusal::new(Code::TooLarge, why)
}

fn is_blank(line: &[u8]) -> bool {
    trim_end(line).is_empty()
}

/// Cuts white space off the end: spaces, tabs, carriage returns, line feeds.
pub(super) fn trim_end(line: &[u8]) -> &[u8] {
    let white = |b: &u8| matches!(b, b' ' | b'\t' | b'\r' | b'\n');
    let end = line.iter().rposition(|b| !white(b)).map_or(0, |at| at + 1);
    &line[..end]
}
