//! Finds the place of each hunk in a file, or refuses.

use super::apply::How;
use super::find::Places;
use super::reader::{too_large, trim_end};
use super::{Anchor, End, Hunk, Line, Side};
use crate::code::{Code, Refusal};
use std::collections::HashMap;
use std::ops::Range;

/// The most lines that are looked at in all to place the hunks of one file by their context.
pub const MOST_COMPARED: usize = 200_000_000;

/// Is the place of one hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// How many lines of the file lie before it.
    pub(super) at: usize,
    pub(super) how: How,
    /// How added lines end here.
    pub(super) feed: Feed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    Lf,
    CrLf,
}

/// Finds the places of all hunks, in order and apart.
pub(super) fn place(hunks: &[Hunk], lines: &[&[u8]], most: usize) -> Result<Vec<Place>, Refusal> {
    if let Some(places) = as_stated(hunks, lines) {
        return Ok(places);
    }
    let mut search = Search {
        lines,
        levels: HashMap::new(),
        budget: most,
    };
    let mut places: Vec<Place> = Vec::with_capacity(hunks.len());
    let mut free = 0;
    for (at, hunk) in hunks.iter().enumerate() {
        let named = |refusal: Refusal| {
            let shown = refusal.names.clone();
            let mut refusal = refusal;
            refusal.names = vec![format!("hunk {}", at + 1), format!("patch line {}", hunk.line)];
            refusal.names(shown)
        };
        let place = search.place(hunk).map_err(named)?;
        if place.at < free {
            let why = "the hunk lies before or across the one above it";
            return Err(named(refused("out_of_order", why).name(line_name(place.at))));
        }
        free = place.at + old(hunk).count();
        places.push(place);
    }
    Ok(places)
}

/// Gives the places that the patch states, if every hunk lies exactly there.
fn as_stated(hunks: &[Hunk], lines: &[&[u8]]) -> Option<Vec<Place>> {
    let mut places = Vec::with_capacity(hunks.len());
    for hunk in hunks {
        let at = hunk.stated?;
        let mut end = at;
        for line in old(hunk) {
            let given = lines.get(end)?;
            let same = match line.end {
                End::File => *given == line.content,
                End::Newline | End::Unsaid => given.strip_suffix(b"\n") == Some(&line.content),
            };
            if !same {
                return None;
            }
            end += 1;
        }
        let whole = Bound::of(hunk).holds(at..end, lines.len());
        // Added lines alone have nothing but their number, and that is not enough.
        let context = end > at || lines.is_empty();
        if !whole || !context {
            return None;
        }
        places.push(Place {
            at,
            how: How::Exact,
            feed: Feed::Lf,
        });
    }
    Some(places)
}

fn old(hunk: &Hunk) -> impl Iterator<Item = &Line> {
    hunk.lines.iter().filter(|line| line.side != Side::Add)
}

/// Says to which end of a file a hunk is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Nowhere,
    Start,
    End,
}

impl Bound {
    /// Reads it off a hunk: one that says so is bound to the end, and so is one of a unified diff that adds lines and keeps
    /// none after them; one that keeps none before them is bound to the start.
    ///
    /// A diff keeps lines on both sides of what it adds unless the file ends there. Without this, a patch that only adds
    /// fits again once it is applied, and would have its effect twice under another key.
    ///
    /// # Source
    /// `match_beginning` and `match_end` of `git apply`, which binds hunks that remove lines, too: those fit no second time.
    fn of(hunk: &Hunk) -> Self {
        if hunk.anchor == Anchor::EndOfFile {
            return Self::End;
        }
        let adds_alone = hunk.stated.is_some() && hunk.lines.iter().all(|line| line.side != Side::Remove);
        let kept = |line: Option<&Line>| line.is_some_and(|line| line.side == Side::Keep);
        match (kept(hunk.lines.first()), kept(hunk.lines.last())) {
            (true, false) if adds_alone => Self::End,
            (false, true) if adds_alone => Self::Start,
            _ => Self::Nowhere,
        }
    }

    /// Says whether lines that lie there, in a file of so many, hold to it.
    fn holds(self, at: Range<usize>, lines: usize) -> bool {
        match self {
            Self::Nowhere => true,
            Self::Start => at.start == 0,
            Self::End => at.end == lines,
        }
    }
}

/// Is what makes two lines equal on a level of looseness: bytes, and whether they end.
type Key<'a> = (&'a [u8], bool);

/// Is the text of a file on one level: a number for each line, equal lines having equal numbers.
struct Level<'a> {
    numbers: HashMap<Key<'a>, u32>,
    file: Vec<u32>,
}

/// The number of a line that no line of a patch equals.
const NONE: u32 = u32::MAX;

struct Search<'a> {
    lines: &'a [&'a [u8]],
    levels: HashMap<(How, Says), Level<'a>>,
    budget: usize,
}

/// Says whether the grammar of a patch has a word for a missing line feed at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Says {
    Ends,
    Nothing,
}

impl<'a> Search<'a> {
    /// Finds the one place of a hunk in the whole file.
    fn place(&mut self, hunk: &Hunk) -> Result<Place, Refusal> {
        let scopes = self.scopes(&hunk.headers)?;
        if scopes.is_empty() && !hunk.headers.is_empty() {
            return Err(refused(
                "no_header",
                "the file has no such line as the header of the hunk",
            ));
        }
        if old(hunk).next().is_none() {
            return self.added_alone(hunk);
        }
        let carriage = hunk.lines.iter().any(|line| line.content.ends_with(b"\r"));
        for how in [How::Exact, How::LineEnds, How::TrailingSpace] {
            if how == How::LineEnds && carriage {
                continue;
            }
            let found = best(self.matches(hunk, how)?, &scopes);
            match found[..] {
                [] => {}
                [at] => {
                    let crlf = how != How::Exact && !carriage && self.all_crlf(at, at + old(hunk).count());
                    let feed = if crlf { Feed::CrLf } else { Feed::Lf };
                    return Ok(Place { at, how, feed });
                }
                _ => return Err(ambiguous(&found)),
            }
        }
        let why = match Bound::of(hunk) {
            Bound::Nowhere => {
                "the lines that the hunk keeps or removes are not in the file as they stand there"
            }
            Bound::Start => {
                "the file does not begin with the lines that the hunk keeps, and it adds lines above them"
            }
            Bound::End => "the file does not end with the lines that the hunk keeps or removes",
        };
        Err(refused("no_match", why))
    }

    /// Places a hunk that neither keeps nor removes a line.
    fn added_alone(&self, hunk: &Hunk) -> Result<Place, Refusal> {
        let at = self.lines.len();
        let to_end = hunk.stated.is_none() && hunk.anchor == Anchor::EndOfFile;
        if at > 0 && !to_end {
            let why = "the hunk has added lines alone, and the file is not empty";
            return Err(refused("no_context", why));
        }
        let carriage = hunk.lines.iter().any(|line| line.content.ends_with(b"\r"));
        let crlf = !carriage && self.all_crlf(at.saturating_sub(1), at);
        Ok(Place {
            at,
            how: if crlf { How::LineEnds } else { How::Exact },
            feed: if crlf { Feed::CrLf } else { Feed::Lf },
        })
    }

    /// Says whether every line from one to another that ends, ends with CRLF; at least one must.
    fn all_crlf(&self, from: usize, to: usize) -> bool {
        let ended = || self.lines[from..to].iter().filter(|line| line.ends_with(b"\n"));
        ended().next().is_some() && ended().all(|line| line.ends_with(b"\r\n"))
    }

    /// Lists where headers let a hunk begin: from the line of the last one up to where it stands again.
    ///
    /// The first header counts wherever it stands, the others where they first stand after the one before.
    fn scopes(&mut self, headers: &[Vec<u8>]) -> Result<Vec<(usize, usize)>, Refusal> {
        let mut scopes: Vec<(usize, usize)> = Vec::new();
        for (depth, header) in headers.iter().enumerate() {
            self.spend()?;
            let here = |at: &usize| self.lines[*at].trim_ascii() == header.trim_ascii();
            let stands: Vec<usize> = (0..self.lines.len()).filter(here).collect();
            let next = |from: usize| stands.get(stands.partition_point(|at| *at < from)).copied();
            let until = |from: usize, end: usize| next(from).map_or(end, |at| at.min(end));
            scopes = if depth == 0 {
                let end = self.lines.len();
                stands.iter().map(|at| (*at, until(at + 1, end))).collect()
            } else {
                let inner = |(from, end): &(usize, usize)| {
                    let first = next(from + 1).filter(|at| at < end)?;
                    Some((first, until(first + 1, *end)))
                };
                scopes.iter().filter_map(inner).collect()
            };
        }
        Ok(scopes)
    }

    /// Lists all places where the lines of a hunk stand on one level.
    fn matches(&mut self, hunk: &Hunk, how: How) -> Result<Vec<usize>, Refusal> {
        let says = match hunk.stated {
            Some(_) => Says::Ends,
            None => Says::Nothing,
        };
        let lines = self.lines;
        let level = self
            .levels
            .entry((how, says))
            .or_insert_with(|| Level::of(lines, how, says));
        let number = |line: &Line| level.numbers.get(&patch_key(line, how)).copied();
        let Some(needle) = old(hunk).map(number).collect::<Option<Vec<u32>>>() else {
            return Ok(Vec::new());
        };
        let bound = Bound::of(hunk);
        let fits = |at: &usize| bound.holds(*at..at + needle.len(), lines.len());
        let found = Places::of(&needle, &level.file).filter(fits).collect();
        self.spend()?;
        Ok(found)
    }

    /// Counts one more look at every line.
    fn spend(&mut self) -> Result<(), Refusal> {
        match self.budget.checked_sub(self.lines.len()) {
            Some(rest) => self.budget = rest,
            None => return Err(too_large("too many hunks are to be found in too long a file")),
        }
        Ok(())
    }
}

impl<'a> Level<'a> {
    fn of(lines: &[&'a [u8]], how: How, says: Says) -> Self {
        let mut level = Self {
            numbers: HashMap::new(),
            file: Vec::with_capacity(lines.len()),
        };
        for line in lines {
            let number = match file_key(line, how, says) {
                Some(key) => {
                    let next = u32::try_from(level.numbers.len()).unwrap_or(NONE);
                    *level.numbers.entry(key).or_insert(next)
                }
                None => NONE,
            };
            level.file.push(number);
        }
        level
    }
}

fn file_key(line: &[u8], how: How, says: Says) -> Option<Key<'_>> {
    let ended = line.strip_suffix(b"\n");
    match (how, ended) {
        (How::TrailingSpace, _) => Some((trim_end(line), true)),
        (_, None) => Some((line, says == Says::Nothing)),
        (How::Exact, Some(body)) => Some((body, true)),
        (How::LineEnds, Some(body)) => body.strip_suffix(b"\r").map(|body| (body, true)),
    }
}

fn patch_key(line: &Line, how: How) -> Key<'_> {
    match how {
        How::TrailingSpace => (trim_end(&line.content), true),
        How::Exact | How::LineEnds => (&line.content, line.end != End::File),
    }
}

/// Keeps the places that are better than the others: after a header the first one.
fn best(found: Vec<usize>, scopes: &[(usize, usize)]) -> Vec<usize> {
    if scopes.is_empty() {
        return found;
    }
    let first = |(from, to): &(usize, usize)| {
        let next = found.partition_point(|at| at < from);
        found.get(next).copied().filter(|at| at < to)
    };
    scopes.iter().filter_map(first).collect()
}

/// How many of several places a refusal names.
const SHOWN: usize = 5;

fn ambiguous(found: &[usize]) -> Refusal {
    let why = format!("the hunk fits {} places equally well", found.len());
    refused("ambiguous", &why).names(found.iter().take(SHOWN).map(|at| line_name(*at)))
}

fn line_name(at: usize) -> String {
    format!("line {}", at + 1)
}

fn refused(reason: &str, why: &str) -> Refusal {
    Refusal::new(Code::PreconditionFailed, why).reason(reason)
}
