//! The wait for `index.lock`: what to do next, given what was seen.
//!
//! The host observes the lock and carries out the step; this machine decides, with the time passed in, so that
//! sixty seconds of waiting are tested in microseconds. It knows no file, no inotify and no clock. A free lock is taken
//! by whoever of ours came first.
//!
//! A lock is recovered in two ways alone, and both adopt it in place: by provenance, where an owner record of ours
//! belongs to it and that owner is proven dead; and, if the caller lets us, a stranger's by complete [`Evidence`], after
//! it was seen unchanged for a grace of our own. What is unknown is waited for until the bound, and then refused with
//! `lock_timeout`.

mod evidence;
mod queue;

pub use evidence::{Began, Evidence, Fact, Tie, Tied};
pub use queue::{Line, Ticket};

use queue::{Queue, Turn};

use crate::code::{Code, Refusal};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Says what was seen at the place of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Nothing is there; those of ours that wait for it.
    Free(Line),
    /// The lock was free, and now it is ours.
    Acquired,
    /// An old lock of ours was taken over in place.
    Adopted,
    /// A stranger's stale lock was taken over in place.
    Recovered,
    /// All that can be seen of the lock's owner was looked at.
    Examined(Evidence),
    /// Something is there.
    Held(Sight),
    /// The system does not let us make a lock at all: the text of its answer.
    Denied(String),
}

/// Describes what is at the place of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Its type.
    pub kind: LockKind,
    /// Whether it has other names.
    pub names: Names,
    /// Whose file it is.
    pub owner: LockOwner,
    /// What its content says about who made it.
    pub provenance: Provenance,
    /// Whether it is the lock of the look before.
    pub since: Since,
}

/// Says whether a lock is the very one of the look before, through a handle that was kept open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// It is seen for the first time, or it was changed since.
    Now,
    /// Inode, size and times are those of the look before.
    Before,
}

/// Says whether a stranger's lock may be taken for stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Never: it is waited for.
    Never,
    /// On complete evidence, after it was seen unchanged for so long.
    Evidence {
        /// The grace, of our own observation.
        grace: Duration,
    },
}

/// Names the type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A plain file.
    Regular,
    /// A symbolic link, wherever it leads.
    Symlink,
    /// A directory.
    Directory,
    /// A FIFO, socket or device.
    Special,
}

/// Says whether a file has one name or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// This one alone.
    One,
    /// Hard links elsewhere.
    Several,
}

/// Says whose file the lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOwner {
    /// Ours, or that of the owner of the git directory.
    Ours,
    /// Somebody else's.
    Foreign,
}

/// Says what an owner record in the lock proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// There is no owner record of ours: git or another program made it.
    Stranger,
    /// The owner in our record lives, or its lock is still held by a process.
    Alive,
    /// The owner in our record is gone; a child of it still holds its lock, and was told to end.
    Ending,
    /// The owner in our record is gone, and no process holds its lock.
    Dead,
    /// Our record cannot be judged from here.
    Unknown,
}

/// Says what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The lock is ours: go on.
    Done,
    /// Take the free lock, then report what came of it.
    Take,
    /// Wait until the lock moves, at the latest until this time on the clock of [`Wait::next`]; then look again.
    Wait(Duration),
    /// Take the lock over in place, then report what came of it.
    Adopt,
    /// Look at all that can be known of the lock's owner, and report it.
    Examine,
    /// Give up; nothing was changed.
    Refuse(Refusal),
}

/// Counts what a wait went through; the outcome of a restoration reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// How often the lock was looked at.
    pub looks: u32,
    /// How often something was in the way.
    pub collisions: u32,
    /// How often an old lock was taken over in place, of ours or a stranger's.
    pub adopted: u32,
    /// How many of those were a stranger's, on complete evidence.
    pub recovered: u32,
    /// How long it waited, in milliseconds.
    pub waited_ms: u64,
}

/// Drives one bounded wait for the lock.
///
/// # Limits
/// Looks again at least every `poll`, and gives up at `bound`. A stranger's lock is examined at the earliest at the
/// second look, and after a doubt again a second later.
#[derive(Clone, Debug)]
pub struct Wait {
    bound: Duration,
    poll: Duration,
    stale: Stale,
    first: Option<Duration>,
    adopting: Adopting,
    /// Since when this very lock was seen, and when it is to be examined.
    unchanged: Option<(Duration, Duration)>,
    doubt: Option<String>,
    counts: Counts,
    queue: Queue,
}

/// How soon a lock is looked at again whose owner is gone.
const ENDING: Duration = Duration::from_millis(5);
/// How long after a doubt the owner is looked at again.
const EXAMINE_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopting {
    No,
    Tried,
}

impl Wait {
    /// Starts a wait that has not looked yet.
    #[must_use]
    pub fn new(bound: Duration, poll: Duration, stale: Stale) -> Self {
        Self {
            bound,
            poll,
            stale,
            first: None,
            adopting: Adopting::No,
            unchanged: None,
            doubt: None,
            counts: Counts::default(),
            queue: Queue::new(Self::PATIENCE),
        }
    }

    /// How long a free lock is left to one of ours that came before, unless [`Wait::set_patience`] says otherwise.
    pub const PATIENCE: Duration = Duration::from_millis(100);

    /// Changes how long a free lock is left to one of ours that came before.
    pub fn set_patience(&mut self, patience: Duration) {
        self.queue = Queue::new(patience);
    }

    /// Changes how often the lock is looked at: seldom where the system tells of its moves.
    pub fn set_poll(&mut self, poll: Duration) {
        self.poll = poll;
    }

    /// Says whether nobody of ours is before us any more: from then on a free lock is taken without another look at the line.
    #[must_use]
    pub fn stands_first(&self, line: &Line) -> bool {
        self.queue.first(line)
    }

    /// Gives what was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Says why the lock was not taken for stale when it was examined last.
    #[must_use]
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// Decides the next step; `now` is the time since any fixed moment.
    pub fn next(&mut self, now: Duration, seen: &Observation) -> Step {
        let since = *self.first.get_or_insert(now);
        let waited = now.saturating_sub(since);
        self.counts.waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let sight = match seen {
            Observation::Free(line) => return self.free(now, since, line),
            Observation::Acquired => {
                self.counts.looks += 1;
                return Step::Done;
            }
            Observation::Adopted => {
                self.counts.adopted += 1;
                return Step::Done;
            }
            Observation::Recovered => {
                self.counts.adopted += 1;
                self.counts.recovered += 1;
                return Step::Done;
            }
            Observation::Denied(why) => {
                self.counts.looks += 1;
                let why = format!("index.lock cannot be created: {why}");
                return Step::Refuse(lock_unsafe("denied", why));
            }
            Observation::Examined(evidence) => return self.examined(now, since, evidence),
            Observation::Held(sight) => sight,
        };
        self.queue.held(now);
        self.counts.looks += 1;
        self.counts.collisions += 1;
        if let Some(refusal) = unsafe_lock(sight.kind, sight.names, sight.owner) {
            return Step::Refuse(refusal);
        }
        // An adoption that came to nothing is not repeated at once: whoever was faster is waited for, like any owner.
        if sight.provenance == Provenance::Dead && self.adopting == Adopting::No {
            self.adopting = Adopting::Tried;
            return Step::Adopt;
        }
        self.adopting = Adopting::No;
        let examine = self.examine_at(now, sight);
        if waited >= self.bound {
            return self.timed_out(sight.provenance);
        }
        match examine {
            Some(at) if at <= now => Step::Examine,
            // Nothing tells when the last holder of a handle is gone: it is about to be.
            None if sight.provenance == Provenance::Ending => self.wait(now, since, Some(now + ENDING)),
            at => self.wait(now, since, at),
        }
    }

    fn free(&mut self, now: Duration, since: Duration, line: &Line) -> Step {
        self.adopting = Adopting::No;
        self.unchanged = None;
        let until = match self.queue.free(now, line) {
            Turn::Ours => return Step::Take,
            Turn::Theirs(until) => until,
        };
        self.counts.looks += 1;
        self.counts.collisions += 1;
        if now.saturating_sub(since) < self.bound {
            return self.wait(now, since, Some(until));
        }
        let bound = self.bound.as_millis();
        let why = format!("other restorations were first in the line for index.lock for all of {bound} ms");
        Step::Refuse(Refusal::new(Code::LockTimeout, why))
    }

    /// Says when the lock that is seen is to be examined, if ever; remembers since when it did not change.
    fn examine_at(&mut self, now: Duration, sight: &Sight) -> Option<Duration> {
        let Stale::Evidence { grace } = self.stale else {
            return None;
        };
        if sight.provenance != Provenance::Stranger {
            self.unchanged = None;
            return None;
        }
        match (sight.since, self.unchanged) {
            (Since::Before, Some((_, at))) => Some(at),
            (Since::Now, _) | (Since::Before, None) => {
                self.doubt = None;
                self.unchanged = Some((now, now + grace));
                // One sample proves no duration, not even none: the next look is the second one.
                Some(now + grace.max(Duration::from_millis(1)))
            }
        }
    }

    fn examined(&mut self, now: Duration, since: Duration, evidence: &Evidence) -> Step {
        self.doubt = evidence.doubt();
        if self.doubt.is_none() {
            // Where it comes to nothing, the lock has changed, or is looked at anew.
            self.unchanged = self.unchanged.map(|(first, _)| (first, now + EXAMINE_AGAIN));
            return Step::Adopt;
        }
        if now.saturating_sub(since) >= self.bound {
            // What is examined is a stranger's; whichever look is the last, it is told in the same words.
            return self.timed_out(Provenance::Stranger);
        }
        let again = now + EXAMINE_AGAIN;
        self.unchanged = self.unchanged.map(|(first, _)| (first, again));
        self.wait(now, since, Some(again))
    }

    fn wait(&self, now: Duration, since: Duration, examine: Option<Duration>) -> Step {
        let until = (now + self.poll).min(since + self.bound);
        // A moment that is there already is no reason to look again at once.
        Step::Wait(examine.filter(|at| *at > now).map_or(until, |at| until.min(at)))
    }

    fn timed_out(&self, provenance: Provenance) -> Step {
        let mut why = format!(
            "index.lock was held for all of {} ms by {}",
            self.bound.as_millis(),
            holder(provenance)
        );
        match (&self.doubt, self.stale) {
            (Some(doubt), _) => why.push_str(&format!("; it was not taken for stale: {doubt}")),
            (None, Stale::Never) => why.push_str("; a stale one was to be waited for, too"),
            (None, Stale::Evidence { grace }) if grace >= self.bound => {
                let grace = grace.as_millis();
                why.push_str(&format!(
                    "; it is not taken for stale before it was seen unchanged for {grace} ms: wait longer than that"
                ));
            }
            (None, Stale::Evidence { .. }) => {}
        }
        Step::Refuse(Refusal::new(Code::LockTimeout, why))
    }
}

/// Says why what stands at the place of the lock is no lock that anybody may wait for; `None` where it is one.
#[must_use]
pub fn unsafe_lock(kind: LockKind, names: Names, owner: LockOwner) -> Option<Refusal> {
    let (reason, why) = match (kind, names, owner) {
        (LockKind::Symlink, _, _) => ("symlink", "index.lock is a symbolic link"),
        (LockKind::Directory, _, _) => ("directory", "index.lock is a directory"),
        (LockKind::Special, _, _) => ("special", "index.lock is a FIFO, socket or device"),
        (LockKind::Regular, Names::Several, _) => ("hard_link", "index.lock has other names"),
        (LockKind::Regular, Names::One, LockOwner::Foreign) => {
            ("foreign", "index.lock is another user's file")
        }
        (LockKind::Regular, Names::One, LockOwner::Ours) => return None,
    };
    Some(lock_unsafe(reason, why))
}

fn lock_unsafe(reason: &str, why: impl Into<String>) -> Refusal {
    Refusal::new(Code::LockUnsafe, why).reason(reason)
}

fn holder(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Stranger => "another program",
        Provenance::Alive => "another restoration",
        Provenance::Ending => "the git of a restoration that is gone",
        Provenance::Dead => "a restoration that is gone",
        Provenance::Unknown => "a restoration that cannot be judged from here",
    }
}

#[cfg(test)]
mod tests;
