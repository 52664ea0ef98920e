//! The event stream of a run: what is seen of it, what has changed, and where it lies by a template.

use super::{Code, Refusal, RelPath, Sha256, shown};

/// What stands for the id of the run in a template.
const RUN: &[u8] = b"{run}";

/// Is what was seen of an event stream that is what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Device and inode of the file, which is held open since the first look.
    pub handle: (u64, u64),
    /// How many names it has.
    pub links: u64,
    /// Its length.
    pub length: u64,
    /// The digest of its content.
    pub sha256: Sha256,
    /// The digest of as many of its first bytes as it had at the first look.
    pub begins: Sha256,
    /// Its canonical path.
    pub path: Vec<u8>,
}

/// Says what was seen at the place of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamSeen {
    /// A stream.
    There(Sight),
    /// Nothing.
    Missing,
    /// Something that cannot be trusted.
    Unsafe(Hazard),
}

/// Names why a stream cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hazard {
    /// It is a symbolic link, or its template leads over one.
    Symlink,
    /// It is a directory.
    Directory,
    /// It is a FIFO, socket or device, or what the kernel shows of itself as a file.
    Special,
    /// It has other names.
    HardLink,
    /// It is another user's file.
    Foreign,
    /// Another file stands where it was opened.
    Replaced,
    /// It cannot be read.
    Unreadable,
}

impl Hazard {
    /// Gives the reason as refusals name it.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Symlink => "symlink",
            Self::Directory => "directory",
            Self::Special => "special",
            Self::HardLink => "hard_link",
            Self::Foreign => "foreign",
            Self::Replaced => "replaced",
            Self::Unreadable => "unreadable",
        }
    }

    const fn why(self) -> &'static str {
        match self {
            Self::Symlink => "the event stream is a symbolic link, or its template leads over one",
            Self::Directory => "the event stream is a directory",
            Self::Special => "the event stream is a FIFO, socket or device, or no file of a disk",
            Self::HardLink => "the event stream has other names",
            Self::Foreign => "the event stream is another user's file",
            Self::Replaced => "another file stands where the event stream was",
            Self::Unreadable => "the event stream cannot be read",
        }
    }

    /// Refuses a stream for this.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        Refusal::new(Code::StreamUnsafe, self.why()).reason(self.reason())
    }
}

/// Refuses a stream that is not there.
#[must_use]
pub fn missing() -> Refusal {
    let why = "there is no event stream at this place";
    Refusal::new(Code::StreamUnsafe, why).reason("missing")
}

/// Says how a stream changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something was added to what it held.
    Appended,
    /// What it held is another, or less.
    Rewritten,
    /// It is gone.
    Missing,
    /// It cannot be trusted any more.
    Unsafe(Hazard),
}

impl Change {
    /// Refuses another try for this.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        let taken = |why, reason| Refusal::new(Code::OwnershipTaken, why).reason(reason);
        match self {
            Self::Appended => taken("an event was added to the stream", "appended"),
            Self::Rewritten => taken("the stream holds other events than before", "rewritten"),
            Self::Missing => missing(),
            Self::Unsafe(hazard) => hazard.refusal(),
        }
    }
}

/// Says how a stream changed; `None` where it did not, to the byte.
#[must_use]
pub fn compare(before: &Sight, after: &StreamSeen) -> Option<Change> {
    let after = match after {
        StreamSeen::There(after) => after,
        StreamSeen::Missing => return Some(Change::Missing),
        StreamSeen::Unsafe(hazard) => return Some(Change::Unsafe(*hazard)),
    };
    if after.handle != before.handle || after.path != before.path {
        return Some(Change::Unsafe(Hazard::Replaced));
    }
    if after.links != before.links {
        return Some(Change::Unsafe(Hazard::HardLink));
    }
    if after.length > before.length && after.begins == before.sha256 {
        return Some(Change::Appended);
    }
    if after.length != before.length || after.sha256 != before.sha256 {
        return Some(Change::Rewritten);
    }
    None
}

/// Says where in the worktree the stream of a run lies.
///
/// # Shape
/// `.smithers/executions/{run}/logs/stream.ndjson`
///
/// # Errors
/// `bad_input` unless the template holds `{run}` exactly once and no other brace, the id is one plain part of a path,
/// and what they make is a plain relative path: no empty part, no `.`, no `..`.
pub fn place_of_template(template: &[u8], run: &[u8]) -> Result<RelPath, Refusal> {
    let wrong = |why: &str, name: &[u8]| Refusal::new(Code::BadInput, why).name(shown(name));
    let brace = |b: &u8| *b == b'{' || *b == b'}';
    let plain = !run.is_empty() && run != b"." && run != b"..";
    if !plain
        || run
            .iter()
            .any(|b| *b == b'/' || *b == 0 || b.is_ascii_control() || brace(b))
    {
        return Err(wrong("the id of a run is one plain part of a path", run));
    }
    let at = template.windows(RUN.len()).position(|window| window == RUN);
    let (before, behind) = match at {
        Some(at) => (&template[..at], &template[at + RUN.len()..]),
        None => return Err(wrong("the template does not hold {run}", template)),
    };
    if before.iter().chain(behind).any(brace) {
        return Err(wrong(
            "the template holds {run} once, and no other brace",
            template,
        ));
    }
    let place = [before, run, behind].concat();
    let parsed =
        RelPath::parse(&place).map_err(|_| wrong("the template does not stay in the worktree", template))?;
    // A form that has to be made normal first is not what anybody meant.
    if parsed.as_bytes() != place || parsed.is_root() {
        return Err(wrong("the template is not a plain relative path", template));
    }
    Ok(parsed)
}
