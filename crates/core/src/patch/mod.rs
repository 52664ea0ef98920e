//! Text to operations on files, and operations on bytes: what `edit_file` and `apply_patch` mean.
//!
//! Two grammars of patches are read: `*** Begin Patch` and unified diff, plain or as git makes it. They differ in
//! how a hunk finds its place, and agree in this: **a wrong place is worse than a refusal**.
//!
//! - The bytes decide. A line number is a hint: the numbers of one file are believed together, where every hunk
//!   lies exactly there; where one does not, each hunk must have exactly one place in the whole file.
//! - Several equally good places are refused (`ambiguous`). An `@@ header` makes the first place after it better
//!   than the others, since that is what it is for; one that stands above several places is ambiguous again.
//! - Looser than exact are two things alone, each tried only where the stricter way finds nothing, and both are
//!   reported: CRLF line ends (then added lines get them too), and white space at the end of a line. White space
//!   at its beginning carries meaning in too many languages, and so does punctuation; other readers of these
//!   grammars let both pass. Lines of context keep the bytes that the file has.
//! - A line that no rule names is refused, so that a cut or garbled patch is never half understood. The counts of
//!   a unified hunk have to be right, since they alone show that it is whole.
//!
//! It does *not* open files, resolve links or decide whether a file may be touched.

mod apply;
mod begin;
mod edit;
mod find;
mod git;
mod place;
mod reader;
mod same;
#[cfg(test)]
mod tests;
mod unified;

use crate::code::{Code, Refusal};
use crate::path::RelPath;
use serde::{Deserialize, Serialize};

pub use apply::{Applied, How, Placed, apply};
pub use edit::{Edit, Edited, LONGEST_FILE, MOST_EDITS, MOST_SEARCHED, Occurrences, edit};
pub use place::MOST_COMPARED;

/// The longest text of a patch, in bytes.
pub const LONGEST_PATCH: usize = 16 << 20;
/// The most lines of a patch, and of a file that is patched.
pub const MOST_LINES: usize = 1_000_000;
/// The most files that one patch touches.
pub const MOST_OPERATIONS: usize = 1000;
/// The most hunks of one patch.
pub const MOST_HUNKS: usize = 10_000;

/// Is a patch that was understood: what is to be done to which files, no file twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    operations: Vec<Operation>,
}

/// Is what a patch does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new file.
    Add {
        /// Where.
        path: RelPath,
        /// Its whole content.
        content: Vec<u8>,
        /// Whether it is a program; where the patch does not say it, it is none.
        mode: Mode,
    },
    /// A file that goes.
    Delete {
        /// Which.
        path: RelPath,
        /// What it must hold, where the patch says so: a unified diff quotes what it removes.
        content: Option<Vec<u8>>,
    },
    /// A file that changes, moves, or both.
    Update {
        /// Which.
        path: RelPath,
        /// Its new name, where it gets one; a free one, unless the engine's rules say otherwise.
        move_to: Option<RelPath>,
        /// What changes in it; empty where it only moves or changes its mode.
        hunks: Vec<Hunk>,
        /// Its new mode, where it gets one.
        mode: Option<Mode>,
    },
}

impl Operation {
    /// Gives the path that the operation starts from.
    #[must_use]
    pub fn path(&self) -> &RelPath {
        match self {
            Operation::Add { path, .. } | Operation::Delete { path, .. } | Operation::Update { path, .. } => {
                path
            }
        }
    }

    /// Gives the path to which the operation moves the file.
    #[must_use]
    pub fn move_to(&self) -> Option<&RelPath> {
        match self {
            Operation::Update { move_to, .. } => move_to.as_ref(),
            Operation::Add { .. } | Operation::Delete { .. } => None,
        }
    }
}

/// Is the mode of a file as far as patches know it.
///
/// # Shape
/// In patches `100644` and `100755`; in JSON `regular` and `executable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// No program.
    Regular,
    /// A program.
    Executable,
}

/// Is one change inside of a file, with the lines around it; [`parse`] alone makes it.
#[derive(Clone, Debug)]
pub struct Hunk {
    /// On which line of the patch it begins; for refusals, and no part of what it says.
    line: usize,
    /// Where a unified diff says that it lies: lines before it in the old file.
    stated: Option<usize>,
    /// The `@@` headers of `*** Begin Patch`: the hunk lies at or after the last, that one after the one before.
    headers: Vec<Vec<u8>>,
    /// Its lines, in each run of changes the removed ones first.
    lines: Vec<Line>,
    /// Where it ends.
    anchor: Anchor,
}

impl PartialEq for Hunk {
    fn eq(&self, other: &Self) -> bool {
        let said = |hunk: &Self| (hunk.stated, hunk.anchor);
        said(self) == said(other) && self.headers == other.headers && self.lines == other.lines
    }
}

impl Eq for Hunk {}

/// Says where a hunk may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Anywhere,
    EndOfFile,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    side: Side,
    content: Vec<u8>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Keep,
    Remove,
    Add,
}

/// Says how a line of a hunk ends in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With a line feed, says the unified diff.
    Newline,
    /// With the file, says the unified diff.
    File,
    /// As in the file: `*** Begin Patch` has no word for it.
    Unsaid,
}

impl Patch {
    /// Gives the operations in the order of the text.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Gives the operations themselves.
    #[must_use]
    pub fn into_operations(self) -> Vec<Operation> {
        self.operations
    }
}

/// Understands the text of a patch, of either grammar.
///
/// A heredoc (`apply_patch <<'EOF'`) or a Markdown fence around all of it is set aside, since agents send them; so
/// are CRLF line ends where every line has them.
///
/// # Shape
/// ```text
/// *** Begin Patch
/// *** Update File: src/old.py
/// *** Move to: src/new.py
/// @@ class Greeter:
///      def hello(self):
/// -        print("hi")
/// +        print("hello")
/// *** Add File: notes.txt
/// +a line
/// *** Delete File: stale.txt
/// *** End Patch
/// ```
/// or a unified diff; names `a/x` and `b/x` mean `x`.
///
/// # Errors
/// `bad_input` with the line of the patch and a reason: `not_a_patch`, `empty_patch`, `unexpected_line`,
/// `unfinished`, `mixed_line_ends`, `bad_name`, `two_names`, `hunk_header`, `wrong_count`, `empty_hunk`,
/// `empty_update`, `no_change`, `out_of_order`, `contradiction`, `binary`, `mode_unsupported`, `copy_unsupported`,
/// or `file_twice` where two operations touch one file, or one file is a directory above the other.
/// `path_escapes_root` for a path that leaves the root, `too_large` past the limits.
///
/// # Limits
/// [`LONGEST_PATCH`], [`MOST_LINES`], [`MOST_OPERATIONS`], [`MOST_HUNKS`]; time is linear in the text.
///
/// # Source
/// The grammar that comes with the `apply_patch` tool; GNU diffutils manual, "Detailed Description of Unified
/// Format"; git-diff(1), "Generating patch text with -p". Differences: nothing is applied in part, and a file is
/// added only where there is none.
pub fn parse(text: &[u8]) -> Result<Patch, Refusal> {
    let mut reader = reader::Reader::of(text)?;
    let operations = if reader.peek().is_some_and(begin::starts) {
        begin::read(&mut reader)?
    } else if reader.peek().is_some_and(unified::starts) {
        unified::read(&mut reader)?
    } else {
        let why = "neither *** Begin Patch nor a unified diff";
        return Err(reader.refuse("not_a_patch", why));
    };
    if operations.is_empty() {
        return Err(bad("empty_patch", "the patch touches no file"));
    }
    same::no_file_twice(&operations)?;
    Ok(Patch { operations })
}

fn bad(reason: &str, why: impl Into<String>) -> Refusal {
    Refusal::new(Code::BadInput, why).reason(reason)
}
