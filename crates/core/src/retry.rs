//! Whether a whole command may be run again: pure decisions about what came of a try.
//!
//! A command is run again only while nothing has taken ownership of the work: it failed of exactly the collision on
//! the lock of the validated worktree, *and* the event stream is, byte for byte and by its handle, the one that it
//! was before. It opens no file, runs nothing and knows no clock.

use crate::code::{Code, Refusal};
use crate::collision::{self, Form, LockPath};
use crate::command::TreeEnded;
use crate::digest::Sha256;
use crate::git_tree::ObjectId;
use crate::ids::UnixMs;
use crate::path::{RelPath, shown};
use crate::restore::{LockKind, LockOwner, Names, unsafe_lock};
use core::time::Duration;
use serde::{Deserialize, Serialize};

mod stream;

pub use stream::{Change, Hazard, Sight, StreamSeen, compare, missing, place_of_template};

/// Words by which a run says in its output that it took ownership. They are looked for to be reported.
const OWNER_TEXTS: [&[u8]; 4] = [b"RunStarted", b"NodeStarted", b"RunFailed", b"RunFinished"];

/// Is what is compared with: the work that a command is tried for.
#[derive(Clone, Debug)]
pub struct Work {
    /// The tree that the command restores.
    pub tree: ObjectId,
    /// The lock of the validated worktree, in each spelling that leads to it.
    pub locks: Vec<LockPath>,
    /// The event stream as it was before the first try.
    pub stream: Sight,
    /// How many tries there are in all.
    pub tries: u32,
}

/// Is what came of one try.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The exit status; `None` where a signal ended it, or we did.
    pub exit: Option<i32>,
    /// The first bytes of standard error, up to [`collision::LONGEST`].
    pub stderr: Vec<u8>,
    /// How many bytes there were beyond.
    pub beyond: u64,
    /// The event stream after it.
    pub stream: StreamSeen,
    /// Whether anything of it may live on.
    pub tree_ended: TreeEnded,
}

/// Says, for one failed try, which conditions held, each by itself.
///
/// # Shape
/// `{"exact_command":true,"exact_lock":true,"stream_identical":true,"no_owner_text":true,"aggregate":true}`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicates {
    /// It exited with 128, and the whole of its standard error is a collision text of Git, of whatever worktree.
    pub exact_command: bool,
    /// The lock that is named is that of the validated worktree.
    pub exact_lock: bool,
    /// The event stream is the one that it was, to the byte.
    pub stream_identical: bool,
    /// What it wrote holds no word of a run that began. Reported, never decisive.
    pub no_owner_text: bool,
    /// The first three at once: what decides.
    pub aggregate: bool,
}

/// Counts what all tries met. It holds no text, path or content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// How often the command was run.
    pub tries: u32,
    /// How often it failed; the conditions are counted over these.
    pub failed: u32,
    /// See [`Predicates::exact_command`].
    pub exact_command: u32,
    /// See [`Predicates::exact_lock`].
    pub exact_lock: u32,
    /// See [`Predicates::stream_identical`].
    pub stream_identical: u32,
    /// See [`Predicates::no_owner_text`].
    pub no_owner_text: u32,
    /// See [`Predicates::aggregate`].
    pub aggregate: u32,
    /// How often a lock was waited for.
    pub waits: u32,
    /// How long in all, in milliseconds.
    pub waited_ms: u64,
}

impl Counts {
    /// Counts one failed try.
    pub fn add(&mut self, met: Predicates) {
        self.failed += 1;
        for (count, held) in [
            (&mut self.exact_command, met.exact_command),
            (&mut self.exact_lock, met.exact_lock),
            (&mut self.stream_identical, met.stream_identical),
            (&mut self.no_owner_text, met.no_owner_text),
            (&mut self.aggregate, met.aggregate),
        ] {
            *count += u32::from(held);
        }
    }
}

/// Says why a command is not run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It succeeded.
    Succeeded,
    /// It failed of something else than the collision.
    Unrelated,
    /// A process of it may live on, so that nothing can be said of the stream.
    Living,
    /// Its last try failed of the collision, too.
    Exhausted,
    /// It was interrupted.
    Interrupted,
    /// Something else stands in the way: `ownership_taken`, `stream_unsafe`, `lock_timeout`, `lock_unsafe`,
    /// `worktree_redirected`.
    Refused(Refusal),
}

impl End {
    /// Gives the name of the end: the code of its refusal, or one of its own.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.recorded().name()
    }

    /// Gives what is recorded of it.
    #[must_use]
    pub fn recorded(&self) -> Ending {
        match self {
            Self::Succeeded => Ending::Succeeded,
            Self::Unrelated => Ending::UnrelatedFailure,
            Self::Living => Ending::ProcessLeft,
            Self::Exhausted => Ending::Exhausted,
            Self::Interrupted => Ending::Interrupted,
            Self::Refused(refusal) => Ending::Refused(refusal.code),
        }
    }
}

/// Is what the journal holds of an end: its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// See [`End::Succeeded`].
    Succeeded,
    /// See [`End::Unrelated`].
    UnrelatedFailure,
    /// See [`End::Living`].
    ProcessLeft,
    /// See [`End::Exhausted`].
    Exhausted,
    /// See [`End::Interrupted`].
    Interrupted,
    /// See [`End::Refused`]; also before the first try.
    Refused(Code),
}

impl Ending {
    /// Gives its name: the code of a refusal, or one of its own.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::UnrelatedFailure => "unrelated_failure",
            Self::ProcessLeft => "process_left",
            Self::Exhausted => "exhausted",
            Self::Interrupted => "interrupted",
            Self::Refused(code) => code.wire(),
        }
    }
}

/// Counts what the tries of one command met; holds no stderr, path or content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retrial {
    /// Why there was no further try.
    pub end: Ending,
    /// What was counted.
    pub counts: Counts,
    /// When.
    pub at: UnixMs,
}

/// Says what to do after a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait until the lock is gone, look at the stream again, and try again.
    Again,
    /// It is over.
    End(End),
}

impl Work {
    /// Says which conditions a failed try met.
    #[must_use]
    pub fn predicates(&self, tried: &Tried) -> Predicates {
        let ours = |lock: &LockPath| self.locks.contains(lock);
        let said = self.collision(tried);
        let exact_lock = match &said {
            Some((lock, _)) => ours(lock),
            None => self
                .locks
                .iter()
                .any(|lock| collision::names(&tried.stderr, lock)),
        };
        let stream_identical = compare(&self.stream, &tried.stream).is_none();
        let has = |text: &[u8]| tried.stderr.windows(text.len()).any(|window| window == text);
        Predicates {
            exact_command: said.is_some(),
            exact_lock,
            stream_identical,
            no_owner_text: !OWNER_TEXTS.iter().any(|text| has(text)),
            aggregate: said.is_some() && exact_lock && stream_identical,
        }
    }

    /// Gives the collision that the whole of standard error says, if it says one.
    ///
    /// A program that runs Git itself may put one line before it that names the failed command; it has to be the
    /// restoration to this very tree.
    fn collision(&self, tried: &Tried) -> Option<(LockPath, Form)> {
        if tried.beyond > 0 {
            return None;
        }
        let named = format!("Command failed: git read-tree --reset -u {}\n", self.tree);
        let text = tried
            .stderr
            .strip_prefix(named.as_bytes())
            .unwrap_or(&tried.stderr);
        let exit = tried.exit?;
        let ours = self.locks.iter().find_map(|lock| {
            let form = collision::classify(exit, text, lock)?;
            Some((lock.clone(), form))
        });
        ours.or_else(|| collision::of_any_lock(exit, text))
    }

    /// Decides after a try; `number` counts from 1.
    #[must_use]
    pub fn judge(&self, number: u32, tried: &Tried) -> Next {
        if tried.exit == Some(0) {
            return Next::End(End::Succeeded);
        }
        let met = self.predicates(tried);
        if !(met.exact_command && met.exact_lock) {
            return Next::End(End::Unrelated);
        }
        if let Some(change) = compare(&self.stream, &tried.stream) {
            return Next::End(End::Refused(change.refusal()));
        }
        if tried.tree_ended != TreeEnded::Proved {
            return Next::End(End::Living);
        }
        if number >= self.tries {
            return Next::End(End::Exhausted);
        }
        Next::Again
    }
}

/// Says what stands at the place of the lock while it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockSeen {
    /// Nothing.
    Gone,
    /// Something.
    There(LockKind, Names, LockOwner),
}

/// Says how the wait for the lock goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is gone.
    Gone,
    /// Wait until it moves, at the latest until this time; then look again.
    Wait(Duration),
    /// Give up.
    Refuse(Refusal),
}

/// Decides how the wait for the lock goes on: `waited` is the time since it began.
///
/// # Limits
/// Looks again at least every `poll`, and gives up at `bound`.
#[must_use]
pub fn wait(waited: Duration, bound: Duration, poll: Duration, seen: LockSeen) -> Step {
    match seen {
        LockSeen::Gone => Step::Gone,
        LockSeen::There(kind, names, owner) => match unsafe_lock(kind, names, owner) {
            Some(refusal) => Step::Refuse(refusal),
            None if waited >= bound => {
                let why = format!("index.lock was held for all of {} ms", bound.as_millis());
                Step::Refuse(Refusal::new(Code::LockTimeout, why))
            }
            None => Step::Wait((waited + poll).min(bound)),
        },
    }
}

#[cfg(test)]
mod tests;
