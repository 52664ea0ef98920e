//! The identity of a worktree: taken once, kept where no agent can write, compared before every use.
//!
//! It decides whether what is found is what was pinned. It does *not* look at a disk, and does not say where pins are
//! kept.

use crate::code::{Code, Refusal};
use crate::git_tree::{ObjectFormat, ObjectId};
use crate::ids::{FileId, UnixMs};
use crate::path::shown;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

pub mod gitdir;

/// The longest path or pointer that is kept.
const LONGEST: usize = 8192;

/// Holds bytes of a path or of a pointer file, as they are.
///
/// # Shape
/// In JSON the text itself where it is UTF-8 and does not begin with `b64:`, else `b64:` and its base64.
///
/// # Limits
/// 1 to 8,192 bytes, none of them NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathBytes(Vec<u8>);

impl PathBytes {
    /// Takes the bytes.
    ///
    /// # Errors
    /// `bad_input` past the limits.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Refusal> {
        let bytes = bytes.into();
        if bytes.is_empty() || bytes.len() > LONGEST || bytes.contains(&0) {
            return Err(Refusal::new(Code::BadInput, "not a path that can be kept").name(shown(&bytes)));
        }
        Ok(Self(bytes))
    }

    /// Gives the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<String> for PathBytes {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        match text.strip_prefix("b64:") {
            Some(coded) => {
                let bytes = BASE64_STANDARD
                    .decode(coded)
                    .map_err(|_| Refusal::new(Code::BadInput, "not base64 after b64:").name(&text))?;
                Self::new(bytes)
            }
            None => Self::new(text),
        }
    }
}

impl From<PathBytes> for String {
    fn from(path: PathBytes) -> String {
        match core::str::from_utf8(&path.0) {
            Ok(text) if !text.starts_with("b64:") => text.to_owned(),
            _ => format!("b64:{}", BASE64_STANDARD.encode(&path.0)),
        }
    }
}

impl core::fmt::Display for PathBytes {
    /// Prints for people: control characters escaped, bytes that are not UTF-8 as `\xNN`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

impl core::fmt::Debug for PathBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Names one pin; a worktree that is pinned anew has another one.
///
/// # Shape
/// 20 hexadecimal digits in lower case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PinId(String);

impl PinId {
    /// Parses the id.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    pub fn parse(text: impl Into<String>) -> Result<Self, Refusal> {
        let text = text.into();
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == 20 && text.bytes().all(digit) {
            return Ok(Self(text));
        }
        Err(Refusal::new(Code::BadInput, "not the id of a pin").name(text))
    }

    /// Gives the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PinId {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

impl From<PinId> for String {
    fn from(id: PinId) -> String {
        id.0
    }
}

impl core::fmt::Display for PinId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one directory.
///
/// The filesystem's handle is compared beside device and inode, since those two are given to another directory at
/// once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spot {
    /// Its real path: absolute, without links.
    pub path: PathBytes,
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// What the filesystem does not give again.
    pub file: FileId,
}

/// Says how worktree and git directory hang together.
///
/// # Shape
/// `{"kind":"main"}`, or `{"kind":"linked","dot_git":"gitdir: …","gitdir":"…/.git","commondir":"../.."}`: what the
/// pointer files say, byte for byte, without their newline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Layout {
    /// The git directory is `.git` in the worktree.
    Main,
    /// A file `.git` in the worktree and two in the git directory point at each other.
    Linked {
        /// What the file `.git` in the worktree says.
        dot_git: PathBytes,
        /// What `gitdir` in the git directory says.
        gitdir: PathBytes,
        /// What `commondir` in the git directory says.
        commondir: PathBytes,
    },
}

/// Says where a pinned worktree came from, and so whether it is ours to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Origin {
    /// `semel worktree add` made it.
    Made {
        /// The commit that HEAD was detached at.
        commit: ObjectId,
        /// The tree that its files were.
        tree: ObjectId,
    },
    /// It was there, and `semel worktree pin` took its identity.
    Found,
}

/// Is the identity of a worktree.
///
/// # Shape
/// One JSON object, with `"semel_pin":1` first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The version of this shape; see [`Pin::VERSION`].
    pub semel_pin: u32,
    /// Which pin this is.
    pub id: PinId,
    /// The worktree.
    pub worktree: Spot,
    /// Its git directory.
    pub gitdir: Spot,
    /// The directory that all worktrees of the repository share.
    pub common: Spot,
    /// How they hang together.
    pub layout: Layout,
    /// The hash function of the repository.
    pub format: ObjectFormat,
    /// Where it came from.
    pub origin: Origin,
    /// When it was pinned.
    pub at: UnixMs,
}

/// Holds what is found where a pin leads; `None` where nothing is, or something of another type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// At the worktree's path.
    pub worktree: Option<Spot>,
    /// At the git directory's path.
    pub gitdir: Option<Spot>,
    /// At the common directory's path.
    pub common: Option<Spot>,
    /// What the pointers say.
    pub layout: Option<Layout>,
}

impl Pin {
    /// The version of the shape that this build reads and writes.
    pub const VERSION: u32 = 1;

    /// Reads a pin.
    ///
    /// # Errors
    /// `unknown_state` where it is no pin of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let unknown = |why: String| Refusal::new(Code::UnknownState, why);
        let pin: Self = serde_json::from_slice(bytes).map_err(|e| unknown(format!("not a pin: {e}")))?;
        if pin.semel_pin == Self::VERSION {
            return Ok(pin);
        }
        let why = format!(
            "a pin of version {}; this build knows {}",
            pin.semel_pin,
            Self::VERSION
        );
        Err(unknown(why))
    }

    /// Writes the pin.
    ///
    /// # Errors
    /// `internal` where it has no JSON form.
    pub fn to_json(&self) -> Result<Vec<u8>, Refusal> {
        let mut bytes = serde_json::to_vec(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("a pin has no JSON form: {e}")))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Decides whether what is found is what was pinned.
    ///
    /// # Errors
    /// `worktree_redirected` where anything differs, with the reason `worktree_changed`, `gitdir_changed`,
    /// `common_changed` or `pointers_changed`.
    pub fn hold_against(&self, found: &Found) -> Result<(), Refusal> {
        let parts = [
            (
                "the worktree",
                "worktree_changed",
                &self.worktree,
                &found.worktree,
            ),
            ("the git directory", "gitdir_changed", &self.gitdir, &found.gitdir),
            (
                "the common git directory",
                "common_changed",
                &self.common,
                &found.common,
            ),
        ];
        for (what, reason, pinned, found) in parts {
            match found {
                Some(found) if found == pinned => {}
                Some(_) => return Err(self.differs(format!("{what} is another one than was pinned"), reason)),
                None => return Err(self.differs(format!("{what} that was pinned is not there"), reason)),
            }
        }
        if found.layout.as_ref() != Some(&self.layout) {
            let why = "worktree and git directory do not point at each other as when they were pinned";
            return Err(self.differs(why.to_owned(), "pointers_changed"));
        }
        Ok(())
    }

    fn differs(&self, why: String, reason: &str) -> Refusal {
        Refusal::new(Code::WorktreeRedirected, why)
            .reason(reason)
            .name(self.worktree.path.to_string())
    }

    /// Says whether nothing of the worktree is there any more: neither its files nor its git directory.
    #[must_use]
    pub fn is_gone(&self, found: &Found) -> bool {
        found.worktree.is_none() && found.gitdir.is_none()
    }
}

/// Refuses a worktree that is not pinned, where one has to be.
///
/// # Errors
/// `worktree_redirected`, reason `not_pinned`.
pub fn require(pin: Option<&Pin>, worktree: &[u8]) -> Result<(), Refusal> {
    if pin.is_some() {
        return Ok(());
    }
    Err(
        Refusal::new(Code::WorktreeRedirected, "the worktree is not pinned")
            .reason("not_pinned")
            .name(shown(worktree)),
    )
}

#[cfg(test)]
mod tests;
