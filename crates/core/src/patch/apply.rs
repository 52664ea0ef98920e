//! Makes the new content of a file from its hunks and their places.

use super::place::{Feed, MOST_COMPARED, Place, place};
use super::reader::too_large;
use super::{End, Hunk, LONGEST_FILE, MOST_LINES, Side};
use crate::code::Refusal;
use serde::Serialize;

/// Is what hunks make of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The whole new content.
    pub content: Vec<u8>,
    /// Where each hunk was found, in the order of the hunks.
    pub places: Vec<Placed>,
}

impl Applied {
    /// Lists the hunks that lie elsewhere or otherwise than the patch says: they are to be reported.
    pub fn inexact(&self) -> impl Iterator<Item = &Placed> {
        let elsewhere = |placed: &Placed| placed.stated.is_some_and(|stated| stated != placed.line);
        self.places
            .iter()
            .filter(move |placed| placed.how != How::Exact || elsewhere(placed))
    }
}

/// Is where a hunk was found.
///
/// # Shape
/// `{"hunk":1,"line":12,"stated":10,"how":"trailing_space"}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// The number of the hunk, counted from 1.
    pub hunk: usize,
    /// The line of the old file at which it lies, counted from 1.
    pub line: usize,
    /// The line that the patch states, where it states one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stated: Option<usize>,
    /// How well it fits.
    pub how: How,
}

/// Says how well a hunk fits its place.
///
/// # Shape
/// `exact`, `line_ends`, `trailing_space`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Byte for byte.
    Exact,
    /// The lines of the file end with CRLF, those of the patch do not; added lines got CRLF.
    LineEnds,
    /// But for white space at the end of lines, or at the end of the file.
    TrailingSpace,
}

/// Applies the hunks of one file to its content.
///
/// A file whose last line lacks its line feed keeps lacking it, unless the patch is a unified diff that says
/// otherwise. No hunks give the same content.
///
/// # Errors
/// `precondition_failed` with the hunk, its line in the patch and a reason: `no_match`, `no_header` where an `@@`
/// header is not in the file, `ambiguous` with the first lines, `no_context` for added lines alone in a file that is
/// not empty, `out_of_order` where the hunk lies before or across the one above it. `too_large` past the limits.
///
/// # Limits
/// [`LONGEST_FILE`], [`MOST_LINES`]; [`MOST_COMPARED`] over all hunks: a search costs each hunk and header the
/// lines of the file.
pub fn apply(hunks: &[Hunk], before: &[u8]) -> Result<Applied, Refusal> {
    if before.len() > LONGEST_FILE {
        return Err(too_large(&format!(
            "a file that is patched has at most {LONGEST_FILE} bytes"
        )));
    }
    let lines: Vec<&[u8]> = before
        .split_inclusive(|b| *b == b'\n')
        .take(MOST_LINES + 1)
        .collect();
    if lines.len() > MOST_LINES {
        return Err(too_large(&format!(
            "a file that is patched has at most {MOST_LINES} lines"
        )));
    }
    let places = place(hunks, &lines, MOST_COMPARED)?;
    Ok(Applied {
        content: rewrite(hunks, &places, &lines),
        places: report(hunks, &places),
    })
}

fn report(hunks: &[Hunk], places: &[Place]) -> Vec<Placed> {
    let numbered = hunks.iter().zip(places).enumerate();
    numbered
        .map(|(at, (hunk, place))| Placed {
            hunk: at + 1,
            line: place.at + 1,
            stated: hunk.stated.map(|stated| stated + 1),
            how: place.how,
        })
        .collect()
}

fn rewrite(hunks: &[Hunk], places: &[Place], lines: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.iter().map(|line| line.len()).sum());
    let mut at = 0;
    // How long the line feed is that nobody asked for, where the last line has one.
    let mut unsaid = 0;
    for (hunk, place) in hunks.iter().zip(places) {
        let feed: &[u8] = match place.feed {
            Feed::Lf => b"\n",
            Feed::CrLf => b"\r\n",
        };
        for line in &lines[at..place.at] {
            out.extend_from_slice(line);
            unsaid = 0;
        }
        at = place.at;
        for line in &hunk.lines {
            if line.side != Side::Add {
                at += 1;
            }
            match line.side {
                Side::Remove => continue,
                Side::Keep => out.extend_from_slice(lines[at - 1]),
                Side::Add => {
                    // The last line of a file may have no end; it gets one when a line follows it.
                    if out.last().is_some_and(|byte| *byte != b'\n') {
                        out.extend_from_slice(feed);
                    }
                    out.extend_from_slice(&line.content);
                    if line.end != End::File {
                        out.extend_from_slice(feed);
                    }
                }
            }
            // An empty line without its line feed would be no line.
            let open = line.side == Side::Add && line.end == End::Unsaid && !line.content.is_empty();
            unsaid = if open { feed.len() } else { 0 };
        }
    }
    for line in &lines[at..] {
        out.extend_from_slice(line);
        unsaid = 0;
    }
    if lines.last().is_some_and(|line| !line.ends_with(b"\n")) {
        out.truncate(out.len() - unsaid);
    }
    out
}
