//! What every lockfile is looked at for before its own grammar: things that no tool writes.

use super::incomplete;
use crate::code::Refusal;
use crate::path::RelPath;

/// Gives the text of a lockfile.
///
/// # Errors
/// `lock_incomplete`, with the line named, for a byte order mark, bytes that are not UTF-8, a NUL or another control
/// character, or what a merge left behind. Some tools resolve such conflicts by themselves, and install what nobody
/// locked.
pub(super) fn text<'a>(path: &RelPath, bytes: &'a [u8]) -> Result<&'a str, Refusal> {
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return Err(incomplete(path, "begins with a byte order mark").name("line 1"));
    }
    let text = core::str::from_utf8(bytes).map_err(|e| {
        let line = bytes
            .iter()
            .take(e.valid_up_to())
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        incomplete(path, "is not UTF-8").name(format!("line {line}"))
    })?;
    for (at, line) in text.split('\n').enumerate() {
        let wrong = |why: &str| incomplete(path, why).name(format!("line {}", at + 1));
        let control = |c: char| c.is_ascii_control() && c != '\t' && c != '\r';
        if line.contains(control) {
            return Err(wrong("holds a control character"));
        }
        let body = line.strip_suffix('\r').unwrap_or(line);
        let left = ["<<<<<<<", "|||||||", "=======", ">>>>>>>"].iter().any(|mark| {
            body.strip_prefix(mark)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        if left {
            return Err(wrong("holds the marks of a merge that was not finished"));
        }
    }
    Ok(text)
}

/// Refuses line ends that a format does not know, and a last line without one.
///
/// # Errors
/// `lock_incomplete`, with the line named.
pub(super) fn plain_lines(path: &RelPath, text: &str) -> Result<(), Refusal> {
    if let Some(at) = text.find('\r') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(incomplete(path, "holds a carriage return").name(format!("line {line}")));
    }
    if !text.ends_with('\n') {
        return Err(incomplete(path, "is cut: its last line has no end"));
    }
    Ok(())
}
