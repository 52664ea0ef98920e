//! From effects to the places that a policy is asked about: every path, both ends of a move, each directory that is
//! made, and all that goes with a directory that is removed or moved.

use super::{Caller, Policy, Verdict};
use crate::digest::{Hasher, Sha256};
use crate::effect::{Content, Effect};
use crate::ignore::EntryKind;
use crate::path::{RelPath, shown};
use serde::{Deserialize, Serialize};

/// Is something that lies in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path beneath the directory: names, divided by slashes.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
}

/// Is what goes with what an effect removes or moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beneath {
    /// Nothing: it is no directory.
    Nothing,
    /// All of this, sorted by path.
    Seen(Vec<Entry>),
    /// It is a directory that could not be looked through.
    Unseen,
}

/// Is a place that a call reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched<'a> {
    /// One path.
    Path(&'a RelPath),
    /// A directory, with all that is in it.
    Directory {
        /// The directory.
        at: &'a RelPath,
        /// What is in it.
        beneath: &'a Beneath,
    },
    /// Whatever there is, to read and to change: a command does what it likes in its sandbox.
    Everything,
}

/// Tells a person how much goes with a directory, and binds an approval to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// The directory.
    pub path: RelPath,
    /// What is in it; `None` where it could not be looked through.
    pub holds: Option<Holds>,
}

/// Counts and names what is in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holds {
    /// How many entries, at any depth.
    pub entries: u64,
    /// SHA-256 over each entry's path, its kind (`d` or `f`) and a zero byte, in order of the paths.
    pub names_sha256: Sha256,
}

/// Is a verdict with the path that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged<'p> {
    /// The strictest verdict of all places.
    pub verdict: Verdict<'p>,
    /// The first path that got it, to be shown.
    pub path: String,
}

/// Lists the places that an effect touches.
#[must_use]
pub fn touched<'a>(effect: &'a Effect, beneath: &'a Beneath) -> Vec<Touched<'a>> {
    let whole = |at| match beneath {
        Beneath::Nothing => Touched::Path(at),
        Beneath::Seen(_) | Beneath::Unseen => Touched::Directory { at, beneath },
    };
    match effect {
        Effect::Install { at, content, .. } => match content {
            Content::File { .. } => vec![Touched::Path(at)],
            Content::Directory { made } => std::iter::once(at).chain(made).map(Touched::Path).collect(),
        },
        Effect::SetMode { at, .. } => vec![Touched::Path(at)],
        Effect::Remove { at, .. } | Effect::RemoveEmpty { at, .. } | Effect::Restore { at, .. } => {
            vec![whole(at)]
        }
        Effect::Move { from, to, .. } => vec![whole(from), whole(to)],
        Effect::Run { .. } | Effect::Forward { .. } => vec![Touched::Everything],
    }
}

/// Gives the directory that goes away with all that is in it, and what that is.
#[must_use]
pub fn tree(effect: &Effect, beneath: &Beneath) -> Option<Tree> {
    let holds = match beneath {
        // What a command or another server would touch is told by itself.
        _ if matches!(effect, Effect::Run { .. } | Effect::Forward { .. }) => return None,
        Beneath::Nothing => return None,
        Beneath::Unseen => None,
        Beneath::Seen(entries) => {
            let mut names = Hasher::new();
            for entry in entries {
                names.update(&entry.path);
                names.update(match entry.kind {
                    EntryKind::Directory => b"d\0",
                    EntryKind::Other => b"f\0",
                });
            }
            Some(Holds {
                entries: entries.len() as u64,
                names_sha256: names.finish(),
            })
        }
    };
    let path = effect.at().clone();
    Some(Tree { path, holds })
}

impl Policy {
    /// Judges all places of a call: the strictest verdict wins.
    #[must_use]
    pub fn judge<'t>(
        &self,
        caller: Caller<'_>,
        touched: impl IntoIterator<Item = Touched<'t>>,
    ) -> Judged<'_> {
        let mut judged = Judged {
            verdict: Verdict::Allow,
            path: String::new(),
        };
        for touched in touched {
            match touched {
                Touched::Path(path) => judged.weigh(self.at(caller, path), path.as_bytes()),
                Touched::Directory { at, beneath } => self.whole(caller, at, beneath, &mut judged),
                Touched::Everything => judged.weigh(self.anywhere(caller), b""),
            }
        }
        judged
    }

    fn whole<'p>(&'p self, caller: Caller<'_>, at: &RelPath, beneath: &Beneath, judged: &mut Judged<'p>) {
        let directory = at.as_bytes();
        judged.weigh(self.at(caller, at), directory);
        judged.weigh(self.as_directory(caller, directory), directory);
        match beneath {
            Beneath::Nothing => {}
            Beneath::Unseen => judged.weigh(self.could_be_inside(caller, at), directory),
            Beneath::Seen(entries) => {
                for entry in entries {
                    let path = [directory, b"/", &entry.path].concat();
                    judged.weigh(self.inside(caller, &path), &path);
                    if entry.kind == EntryKind::Directory {
                        judged.weigh(self.as_directory(caller, &path), &path);
                    }
                }
            }
        }
    }

    /// Says whether it matters what is in a directory that goes as a whole.
    #[must_use]
    pub fn looks_inside(&self, caller: Caller<'_>, at: &RelPath) -> bool {
        self.at(caller, at) != Verdict::Allow || self.could_be_inside(caller, at) != Verdict::Allow
    }
}

impl<'p> Judged<'p> {
    fn weigh(&mut self, verdict: Verdict<'p>, path: &[u8]) {
        if self.verdict.stricter(verdict) != self.verdict {
            self.verdict = verdict;
            self.path = shown(if path.is_empty() { b"." } else { path });
        }
    }
}
