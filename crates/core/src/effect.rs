//! The effects that a call can have on files, as its intent records them: what is done, and by what evidence it is
//! told afterwards whether it was.
//!
//! A call has a list of them, done in order: all, or none. This module says what an effect *is*; `recovery` says
//! what became of it, and the host does it.

use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::ids::{ExecutionId, FileId};
use crate::path::RelPath;
use crate::upstream::UpstreamName;
use serde::{Deserialize, Serialize};

/// Is one change of one path, with the evidence that it leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// Something staged takes a name; what held the name goes to `trash/`.
    Install {
        /// The path acted on, after links inside the root were followed.
        at: RelPath,
        /// What is staged.
        staged: FileId,
        /// What it holds.
        content: Content,
        /// What held the name before; `None` where the name was free.
        before: Option<Before>,
    },
    /// A name is taken away; what it named goes to `trash/`.
    Remove {
        /// The path acted on.
        at: RelPath,
        /// What the name names.
        before: Before,
    },
    /// An empty directory is removed for good: what another process puts into it at the last moment refuses it.
    RemoveEmpty {
        /// The path acted on.
        at: RelPath,
        /// The directory.
        id: FileId,
    },
    /// What one name names takes another, free name.
    Move {
        /// The name that it gives up.
        from: RelPath,
        /// The name that it takes.
        to: RelPath,
        /// What it is.
        what: Before,
    },
    /// What an earlier effect kept in `trash/` takes a free name again.
    Restore {
        /// The name that it takes.
        at: RelPath,
        /// Where it is kept.
        kept: Slot,
        /// What it is.
        what: Before,
    },
    /// A file or directory gets other permissions.
    SetMode {
        /// The path acted on.
        at: RelPath,
        /// The file or directory.
        id: FileId,
        /// The permissions before (`& 0o7777`).
        before: u32,
        /// The permissions after.
        after: u32,
    },
    /// A command runs; it is always alone in its intent. Its evidence is the directory of its execution, in `meta/`.
    Run {
        /// Where it runs.
        cwd: RelPath,
    },
    /// Another server gets the call; it is always alone in its intent. It leaves no evidence: what that server did is known
    /// by its answer alone.
    Forward {
        /// The server, by the operator's name for it.
        to: UpstreamName,
        /// The tool, by that server's name for it.
        tool: String,
    },
}

/// Is what was staged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// A file.
    File {
        /// The digest of its content.
        sha256: Sha256,
        /// Its length.
        size_bytes: u64,
    },
    /// New directories, one in the other.
    Directory {
        /// All of them, beneath the root, the topmost first.
        made: Vec<RelPath>,
    },
}

/// Is what a name named before the effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Which file or directory.
    pub id: FileId,
    /// The digest of its content; `None` for what has none (a link, a directory), or above the bound for digests.
    pub sha256: Option<Sha256>,
    /// The content that it has to have: an effect that takes another one out is undone. `None` where any will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated: Option<Sha256>,
    /// How many other names a file has; a replacement leaves them the old content.
    pub other_names: Option<u64>,
}

/// Is what became of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// The path acted on.
    pub path: RelPath,
    /// What was done.
    pub action: Action,
    /// Where it lies now, if it moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<RelPath>,
    /// The digest before; `None` where there was nothing, or nothing with a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256_before: Option<Sha256>,
    /// The digest after; `None` where there is nothing, or nothing with a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256_after: Option<Sha256>,
    /// The length after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// How many other names kept the old content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_link_broken: Option<u64>,
    /// The permissions before and after, where they are what changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeChange>,
}

/// Names what was done to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is new.
    Created,
    /// It has new content.
    Replaced,
    /// It is gone.
    Removed,
    /// It has another name.
    Moved,
    /// It is there again.
    Restored,
    /// It has other permissions.
    ModeSet,
    /// A command ran there.
    Ran,
    /// Another server had the call.
    Forwarded,
}

/// Is a change of permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeChange {
    /// Before.
    pub before: u32,
    /// After.
    pub after: u32,
}

/// What an effect outside of the files is recorded under.
static ROOT: RelPath = RelPath::root();

impl Effect {
    /// Gives the path that the effect is recorded under; of a move, the one that is given up.
    #[must_use]
    pub fn at(&self) -> &RelPath {
        match self {
            Effect::Install { at, .. }
            | Effect::Remove { at, .. }
            | Effect::RemoveEmpty { at, .. }
            | Effect::Restore { at, .. }
            | Effect::SetMode { at, .. }
            | Effect::Move { from: at, .. }
            | Effect::Run { cwd: at } => at,
            Effect::Forward { .. } => &ROOT,
        }
    }

    /// Says what becomes of the path once the effect happened.
    #[must_use]
    pub fn changed(&self) -> Changed {
        let plain = |path: &RelPath, action: Action| Changed {
            path: path.clone(),
            action,
            destination: None,
            sha256_before: None,
            sha256_after: None,
            size_bytes: None,
            hard_link_broken: None,
            mode: None,
        };
        match self {
            Effect::Install {
                at, content, before, ..
            } => {
                let action = if before.is_some() {
                    Action::Replaced
                } else {
                    Action::Created
                };
                let (path, sha256_after, size_bytes) = match content {
                    Content::File { sha256, size_bytes } => (at, Some(*sha256), Some(*size_bytes)),
                    // Where one was asked for, it is the last.
                    Content::Directory { made } => (made.last().unwrap_or(at), None, None),
                };
                Changed {
                    sha256_before: before.as_ref().and_then(|b| b.sha256),
                    sha256_after,
                    size_bytes,
                    hard_link_broken: before.as_ref().and_then(|b| b.other_names),
                    ..plain(path, action)
                }
            }
            Effect::Remove { at, before } => Changed {
                sha256_before: before.sha256,
                ..plain(at, Action::Removed)
            },
            Effect::RemoveEmpty { at, .. } => plain(at, Action::Removed),
            Effect::Move { from, to, what } => Changed {
                destination: Some(to.clone()),
                sha256_before: what.sha256,
                sha256_after: what.sha256,
                ..plain(from, Action::Moved)
            },
            Effect::Restore { at, what, .. } => Changed {
                sha256_after: what.sha256,
                ..plain(at, Action::Restored)
            },
            Effect::SetMode {
                at, before, after, ..
            } => Changed {
                mode: Some(ModeChange {
                    before: *before,
                    after: *after,
                }),
                ..plain(at, Action::ModeSet)
            },
            Effect::Run { cwd } => plain(cwd, Action::Ran),
            Effect::Forward { .. } => plain(&ROOT, Action::Forwarded),
        }
    }
}

/// Names the place of one effect in `staging/` and in `trash/`.
///
/// # Shape
/// The execution's id for its first effect, then `<id>.1`, `<id>.2` and so on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slot {
    execution: ExecutionId,
    text: String,
}

impl Slot {
    /// Names the place of the n-th effect, from 0.
    #[must_use]
    pub fn of(execution: &ExecutionId, n: usize) -> Self {
        let text = match n {
            0 => execution.to_string(),
            n => format!("{execution}.{n}"),
        };
        Self {
            execution: execution.clone(),
            text,
        }
    }

    /// Reads the name of a place.
    ///
    /// # Errors
    /// `bad_input` for a text that is no such name.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let (id, n) = match text.split_once('.') {
            None => (text, Some(0)),
            Some((id, n)) => (id, n.parse().ok().filter(|n| *n > 0)),
        };
        let slot = ExecutionId::parse(id).ok().zip(n).map(|(id, n)| Self::of(&id, n));
        slot.filter(|slot| slot.text == text)
            .ok_or_else(|| Refusal::new(Code::BadInput, "not the name of an effect").name(text))
    }

    /// Gives the execution whose effect it is.
    #[must_use]
    pub fn execution(&self) -> &ExecutionId {
        &self.execution
    }

    /// Gives the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl TryFrom<String> for Slot {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl From<Slot> for String {
    fn from(slot: Slot) -> String {
        slot.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_command_on_the_disk() {
        let effect = Effect::Run {
            cwd: RelPath::parse(b"a/b").unwrap(),
        };
        let text = serde_json::to_string(&effect).unwrap();
        assert_eq!(text, r#"{"effect":"run","cwd":"a/b"}"#);
        assert_eq!(serde_json::from_str::<Effect>(&text).unwrap(), effect);
    }

    #[test]
    fn a_call_of_another_server_on_the_disk() {
        let effect = Effect::Forward {
            to: UpstreamName::parse("fs").unwrap(),
            tool: "a.b".to_owned(),
        };
        let text = serde_json::to_string(&effect).unwrap();
        assert_eq!(text, r#"{"effect":"forward","to":"fs","tool":"a.b"}"#);
        assert_eq!(serde_json::from_str::<Effect>(&text).unwrap(), effect);
        assert_eq!(
            (effect.at().is_root(), effect.changed().action),
            (true, Action::Forwarded)
        );
    }

    #[test]
    fn a_slot_is_known_by_its_name() {
        let execution = sample::execution(7);
        for n in [0, 1, 12] {
            let slot = Slot::of(&execution, n);
            assert_eq!(Slot::parse(slot.as_str()).unwrap(), slot);
        }
        for wrong in ["", "x", ".1"] {
            assert!(Slot::parse(wrong).is_err());
        }
        for wrong in [".0", ".01", ".-1", ".", ".1.1"] {
            assert!(Slot::parse(&format!("{execution}{wrong}")).is_err(), "{wrong}");
        }
    }
}
