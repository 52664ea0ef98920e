//! Patterns for names and paths: `*`, `?`, `[…]`, `**`, `{a,b}`.
//!
//! A pattern without a slash is matched against a name, at any depth; one with a slash against the whole path below
//! where the search began. It does *not* walk, and knows no ignore file: [`crate::ignore`] reads those. Ignore rules
//! and policies match with the [`Matcher`] below it, which has no alternatives.

mod matcher;
#[cfg(test)]
mod tests;

use crate::code::{Code, Refusal};
use crate::path::shown;
pub use matcher::{Matcher, Slash};

/// Is a compiled pattern.
///
/// # Shape
/// `*` stands for any run of bytes without a slash, `?` for one such byte, `[a-c]`, `[!a]` and `[[:digit:]]` for one
/// of a set, `**` as a whole component for any number of directories, `{a,b}` for either, `\` takes the next byte as
/// it is. A leading `./` ties the pattern to where the search begins, a trailing `/` to directories.
///
/// # Limits
/// 1,024 bytes; 64 alternatives; matching takes time proportional to pattern times text, whatever the pattern is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<Alternative>);

/// Says whether letters of another case match, for ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// They do not.
    Sensitive,
    /// They do.
    Insensitive,
}

/// Says what kind of entry is matched; some patterns match directories alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A directory itself, never a link to one.
    Directory,
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Alternative {
    directories_only: bool,
    /// Matched against the whole path, not the name alone.
    whole_path: bool,
    matcher: Matcher,
}

const LONGEST: usize = 1024;
const ALTERNATIVES: usize = 64;

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// `bad_input` where it is empty, malformed, past the limits, absolute, or has a `..` component: such a pattern
    /// would match nothing, in silence.
    pub fn parse(text: &[u8], case: Case) -> Result<Self, Refusal> {
        if text.len() > LONGEST {
            return Err(bad(&text[..40], "a pattern has at most 1,024 bytes"));
        }
        let mut all = Vec::new();
        expand(text, &mut all).map_err(|why| bad(text, why))?;
        let compiled = all.iter().map(|one| alternative(one, case));
        let compiled: Result<_, &str> = compiled.collect();
        compiled.map(Self).map_err(|why| bad(text, why))
    }

    /// Says whether an entry matches, by its path below where the search began.
    #[must_use]
    pub fn matches(&self, below: &[u8], entry: Entry) -> bool {
        let name = below.rsplit(|b| *b == b'/').next().unwrap_or(below);
        self.0.iter().any(|one| {
            let fit = if one.whole_path { below } else { name };
            (!one.directories_only || entry == Entry::Directory) && one.matcher.matches(fit)
        })
    }
}

fn bad(text: &[u8], why: &str) -> Refusal {
    Refusal::new(Code::BadInput, why)
        .reason("bad_pattern")
        .name(shown(text))
}

fn alternative(text: &[u8], case: Case) -> Result<Alternative, &'static str> {
    let tied = text.strip_prefix(b"./");
    let body = tied.unwrap_or(text);
    let directories_only = body.len() > 1 && body.ends_with(b"/") && !body.ends_with(b"\\/");
    let body = if directories_only {
        &body[..body.len() - 1]
    } else {
        body
    };
    if body.is_empty() {
        return Err("a pattern is not empty");
    }
    if body.starts_with(b"/") {
        return Err("a pattern is not absolute; ./ ties it to where the search begins");
    }
    if body
        .split(|b| *b == b'/')
        .any(|part| matches!(part, b".." | b"." | b""))
    {
        return Err("no path has such a component: .., . or an empty one");
    }
    let matcher =
        Matcher::compile(body, Slash::Divides).ok_or("a [ is not closed, or a \\ stands at the end")?;
    Ok(Alternative {
        directories_only,
        whole_path: tied.is_some() || body.contains(&b'/'),
        matcher: match case {
            Case::Sensitive => matcher,
            Case::Insensitive => matcher.either_case(),
        },
    })
}

/// Writes a pattern with `{a,b}` out as all that it stands for.
fn expand(text: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), &'static str> {
    let mut todo = vec![text.to_vec()];
    while let Some(text) = todo.pop() {
        if all.len() + todo.len() >= ALTERNATIVES {
            return Err("a pattern stands for at most 64 alternatives");
        }
        let Some(Braces { open, close, commas }) = braces(&text)? else {
            all.push(text);
            continue;
        };
        let ends = commas.iter().copied().chain([close]);
        let starts = std::iter::once(open).chain(commas.iter().copied());
        let parts: Vec<Vec<u8>> = starts
            .zip(ends)
            .map(|(start, end)| [&text[..open], &text[start + 1..end], &text[close + 1..]].concat())
            .collect();
        todo.extend(parts.into_iter().rev());
    }
    Ok(())
}

/// Is a group of alternatives: where its braces and the commas between them stand.
struct Braces {
    open: usize,
    close: usize,
    commas: Vec<usize>,
}

/// Finds the first group of alternatives.
fn braces(text: &[u8]) -> Result<Option<Braces>, &'static str> {
    let (mut open, mut depth, mut commas) = (None, 0_usize, Vec::new());
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'[' => {
                // What a bracket expression holds is no brace; an open one is told where it is compiled.
                if let Some(next) = matcher::class_end(text, at + 1) {
                    at = next - 1;
                }
            }
            b'{' => {
                open.get_or_insert(at);
                depth += 1;
            }
            b',' if depth == 1 => commas.push(at),
            b'}' if depth > 0 => {
                depth -= 1;
                if let (0, Some(open)) = (depth, open) {
                    return Ok(Some(Braces {
                        open,
                        close: at,
                        commas,
                    }));
                }
            }
            _ => {}
        }
        at += 1;
    }
    match open {
        Some(_) => Err("a { is not closed; \\{ is the brace itself"),
        None => Ok(None),
    }
}
