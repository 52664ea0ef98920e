//! `edit_file`: replaces exact bytes by other bytes, or refuses.
//!
//! There is no looser matching here: a search text is short and quotes one place, and a place that was guessed is
//! worse than a refusal. A file with CRLF line ends is edited by texts that hold `\r\n`; where that is all that
//! stands between a text and its place, the refusal says so. It does *not* read or write files.

use super::find::Places;
use crate::code::{Code, Refusal};

/// The most edits of one call.
pub const MOST_EDITS: usize = 1000;
/// The longest file that is edited, before and after each edit, in bytes.
pub const LONGEST_FILE: usize = 64 << 20;
/// The most bytes that the edits of one call search in all.
pub const MOST_SEARCHED: usize = 256 << 20;

/// Says how often the text that is replaced must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrences {
    /// Exactly once; overlapping places count as several.
    One,
    /// At least once: all are replaced, from left to right, none overlapping the one before.
    All,
}

/// Is one replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The bytes that are looked for; empty, it means the whole content of an empty or absent file.
    pub old: Vec<u8>,
    /// The bytes that take their place.
    pub new: Vec<u8>,
    /// How often `old` must be there.
    pub occurrences: Occurrences,
}

/// Is what edits make of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// The whole new content.
    pub content: Vec<u8>,
    /// How many places each edit replaced, in the order of the edits.
    pub replaced: Vec<usize>,
}

/// Applies edits in order, each to what the one before it left: all of them, or none.
///
/// `before` is `None` where there is no file; then the first edit's `old` must be empty, and its `new` is the
/// content of a new file. This is what models mean by an empty search text; on a file that holds anything it names
/// no place.
///
/// # Errors
/// `bad_input`, reason `no_edits` for an empty list, `no_change` for an edit whose two texts are equal.
/// `precondition_failed`, reason `no_match`, `many_matches` (with the count, and the first lines), or `not_empty`
/// for an empty `old` on a file that is not empty. `not_found` where there is no file. `too_large` past the limits.
/// With several edits the failing one is named, `edits[2]` being the third.
///
/// # Limits
/// [`MOST_EDITS`], [`LONGEST_FILE`], [`MOST_SEARCHED`]; time is linear in what is searched and written.
pub fn edit(before: Option<&[u8]>, edits: &[Edit]) -> Result<Edited, Refusal> {
    in_order(before, edits, MOST_SEARCHED)
}

fn in_order(before: Option<&[u8]>, edits: &[Edit], most_searched: usize) -> Result<Edited, Refusal> {
    if edits.is_empty() {
        return Err(Refusal::new(Code::BadInput, "there is nothing to replace").reason("no_edits"));
    }
    if edits.len() > MOST_EDITS {
        return Err(too_large(&format!("a call holds at most {MOST_EDITS} edits")));
    }
    let mut content = None;
    let mut replaced = Vec::with_capacity(edits.len());
    let mut searched = 0usize;
    for (at, edit) in edits.iter().enumerate() {
        let current = content.as_deref().or(before);
        searched = searched.saturating_add(current.map_or(0, <[u8]>::len) + edit.old.len());
        let done = if searched > most_searched {
            Err(too_large(&format!(
                "the edits of a call search at most {most_searched} bytes"
            )))
        } else {
            once(current, edit)
        };
        let (next, count) = done.map_err(|refusal| match edits.len() {
            1 => refusal,
            _ => refusal.name(format!("edits[{at}]")),
        })?;
        content = Some(next);
        replaced.push(count);
    }
    Ok(Edited {
        content: content.unwrap_or_default(),
        replaced,
    })
}

fn once(before: Option<&[u8]>, edit: &Edit) -> Result<(Vec<u8>, usize), Refusal> {
    if edit.old == edit.new {
        let why = "the text that is looked for and the one that takes its place are equal";
        return Err(Refusal::new(Code::BadInput, why).reason("no_change"));
    }
    match before {
        None | Some(b"") if edit.old.is_empty() => {
            within(edit.new.len())?;
            Ok((edit.new.clone(), 1))
        }
        None => Err(Refusal::new(
            Code::NotFound,
            "there is no file to look for the text in",
        )),
        Some(_) if edit.old.is_empty() => Err(refused(
            "not_empty",
            "an empty text names a place only in an empty or absent file",
        )),
        Some(before) => {
            within(before.len())?;
            replace(before, edit)
        }
    }
}

fn replace(before: &[u8], edit: &Edit) -> Result<(Vec<u8>, usize), Refusal> {
    let count = apart(&edit.old, before).count();
    if count == 0 {
        return Err(no_match(before, edit));
    }
    if edit.occurrences == Occurrences::One {
        let places = Places::of(&edit.old, before).count();
        if places > 1 {
            return Err(many_matches(before, edit, places));
        }
    }
    let added = edit.new.len().saturating_mul(count);
    let length = (before.len() - edit.old.len() * count).saturating_add(added);
    within(length)?;
    let mut content = Vec::with_capacity(length);
    let mut from = 0;
    for place in apart(&edit.old, before) {
        content.extend_from_slice(&before[from..place]);
        content.extend_from_slice(&edit.new);
        from = place + edit.old.len();
    }
    content.extend_from_slice(&before[from..]);
    Ok((content, count))
}

/// Lists the places from left to right, none overlapping the one before; never held in memory, since a hostile
/// file has as many as it has bytes.
fn apart<'a>(old: &'a [u8], before: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let mut free = 0;
    Places::of(old, before).filter(move |place| {
        let apart = *place >= free;
        if apart {
            free = place + old.len();
        }
        apart
    })
}

fn within(length: usize) -> Result<(), Refusal> {
    if length > LONGEST_FILE {
        return Err(too_large(&format!(
            "a file that is edited has at most {LONGEST_FILE} bytes"
        )));
    }
    Ok(())
}

fn no_match(before: &[u8], edit: &Edit) -> Refusal {
    let crlf = with_crlf(&edit.old);
    let found = !edit.old.contains(&b'\r') && Places::of(&crlf, before).next().is_some();
    let why = if found {
        "the text is not there; with the line ends \\r\\n of this file it would be"
    } else {
        "the text is not there, byte for byte"
    };
    refused("no_match", why)
}

fn with_crlf(text: &[u8]) -> Vec<u8> {
    let mut crlf = Vec::with_capacity(text.len());
    for byte in text {
        if *byte == b'\n' {
            crlf.push(b'\r');
        }
        crlf.push(*byte);
    }
    crlf
}

/// How many of several places a refusal names.
const SHOWN: usize = 5;

fn many_matches(before: &[u8], edit: &Edit, count: usize) -> Refusal {
    let mut line = 1;
    let mut from = 0;
    let lines = Places::of(&edit.old, before).take(SHOWN).map(|place| {
        line += before[from..place].iter().filter(|b| **b == b'\n').count();
        from = place;
        format!("line {line}")
    });
    let why = format!("the text is there {count} times");
    refused("many_matches", &why).names(lines)
}

fn refused(reason: &str, why: &str) -> Refusal {
    Refusal::new(Code::PreconditionFailed, why).reason(reason)
}

fn too_large(why: &str) -> Refusal {
    Refusal::new(Code::TooLarge, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_searched_is_bounded_over_all_edits() {
        let flip = |old: &[u8], new: &[u8]| Edit {
            old: old.to_vec(),
            new: new.to_vec(),
            occurrences: Occurrences::One,
        };
        let edits = [flip(b"a", b"b"), flip(b"b", b"a"), flip(b"a", b"c")];
        let before: Option<&[u8]> = Some(b"a....");
        assert_eq!(in_order(before, &edits, 18).unwrap().content, b"c....");
        let refusal = in_order(before, &edits, 17).unwrap_err();
        assert_eq!(
            (refusal.code, refusal.names),
            (Code::TooLarge, vec!["edits[2]".to_owned()])
        );
    }
}
