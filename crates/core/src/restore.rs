//! The wait for `index.lock`: what to do next, given what was seen.
//!
//! The host observes the lock and carries out the step; this machine decides, with the time passed in, so that
//! sixty seconds of waiting are tested in microseconds. It knows no file, no inotify and no clock.
//!
//! In this version a lock is recovered only by provenance: our own owner record stands in it and its owner is
//! proven dead. Recovery of a stranger's stale lock on complete evidence is not here yet; such a lock is waited
//! for until the bound, and then refused with `lock_timeout`.

use crate::code::{Code, Refusal};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Says what was seen at the place of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The lock was free, and now it is ours.
    Acquired,
    /// An old lock of ours was taken over in place.
    Adopted,
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
    /// Wait until the lock moves, at the latest until this time on the clock of [`Wait::next`]; then look again.
    Wait(Duration),
    /// Take the lock over in place, then report what came of it.
    Adopt,
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
    /// How often an old lock of ours was taken over.
    pub adopted: u32,
    /// How long it waited, in milliseconds.
    pub waited_ms: u64,
}

/// Drives one bounded wait for the lock.
///
/// # Limits
/// Looks again at least every `poll`, and gives up at `bound`.
#[derive(Clone, Debug)]
pub struct Wait {
    bound: Duration,
    poll: Duration,
    first: Option<Duration>,
    adopting: Adopting,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopting {
    No,
    Tried,
}

impl Wait {
    /// Starts a wait that has not looked yet.
    #[must_use]
    pub fn new(bound: Duration, poll: Duration) -> Self {
        Self {
            bound,
            poll,
            first: None,
            adopting: Adopting::No,
            counts: Counts::default(),
        }
    }

    /// Changes how often the lock is looked at: seldom where the system tells of its moves.
    pub fn set_poll(&mut self, poll: Duration) {
        self.poll = poll;
    }

    /// Gives what was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Decides the next step; `now` is the time since any fixed moment.
    pub fn next(&mut self, now: Duration, seen: &Observation) -> Step {
        let since = *self.first.get_or_insert(now);
        let waited = now.saturating_sub(since);
        self.counts.looks += 1;
        self.counts.waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let sight = match seen {
            Observation::Acquired => return Step::Done,
            Observation::Adopted => {
                self.counts.adopted += 1;
                return Step::Done;
            }
            Observation::Denied(why) => {
                let why = format!("index.lock cannot be created: {why}");
                return Step::Refuse(lock_unsafe("denied", why));
            }
            Observation::Held(sight) => sight,
        };
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
        if waited >= self.bound {
            let why = format!(
                "index.lock was held for all of {} ms by {}",
                self.bound.as_millis(),
                holder(sight.provenance)
            );
            return Step::Refuse(Refusal::new(Code::LockTimeout, why));
        }
        Step::Wait((now + self.poll).min(since + self.bound))
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
        Provenance::Dead => "a restoration that is gone",
        Provenance::Unknown => "a restoration that cannot be judged from here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLL: Duration = Duration::from_millis(50);

    fn held(provenance: Provenance) -> Observation {
        Observation::Held(Sight {
            kind: LockKind::Regular,
            names: Names::One,
            owner: LockOwner::Ours,
            provenance,
        })
    }

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// Runs the machine on a virtual clock; the lock is let go at `free`.
    fn drive(bound: Duration, free: Duration) -> (Step, Duration, Counts) {
        let mut wait = Wait::new(bound, POLL);
        let mut now = seconds(1000);
        loop {
            let seen = if now - seconds(1000) >= free {
                Observation::Acquired
            } else {
                held(Provenance::Stranger)
            };
            match wait.next(now, &seen) {
                Step::Wait(until) => {
                    assert!(until > now && until - now <= POLL);
                    now = until;
                }
                end => return (end, now - seconds(1000), wait.counts()),
            }
        }
    }

    #[test]
    fn sixty_seconds_are_waited_out_and_no_more() {
        let (end, took, counts) = drive(seconds(60), seconds(3600));
        let Step::Refuse(refusal) = end else {
            panic!("{end:?}")
        };
        assert_eq!(refusal.code, Code::LockTimeout);
        assert_eq!(took, seconds(60));
        assert_eq!((counts.waited_ms, counts.collisions), (60_000, 1201));
        let (end, took, counts) = drive(seconds(60), Duration::from_millis(7_510));
        assert_eq!((end, took), (Step::Done, Duration::from_millis(7_550)));
        assert_eq!(counts.waited_ms, 7_550);
        assert_eq!(drive(Duration::ZERO, Duration::ZERO).0, Step::Done);
    }

    #[test]
    fn what_is_no_plain_file_of_ours_is_refused_at_once() {
        let sight = |kind, names, owner| {
            Observation::Held(Sight {
                kind,
                names,
                owner,
                provenance: Provenance::Dead,
            })
        };
        for (seen, reason) in [
            (sight(LockKind::Symlink, Names::One, LockOwner::Ours), "symlink"),
            (
                sight(LockKind::Directory, Names::Several, LockOwner::Ours),
                "directory",
            ),
            (sight(LockKind::Special, Names::One, LockOwner::Ours), "special"),
            (
                sight(LockKind::Regular, Names::Several, LockOwner::Ours),
                "hard_link",
            ),
            (
                sight(LockKind::Regular, Names::One, LockOwner::Foreign),
                "foreign",
            ),
            (Observation::Denied("Permission denied".to_owned()), "denied"),
        ] {
            let step = Wait::new(seconds(60), POLL).next(seconds(5), &seen);
            let Step::Refuse(refusal) = step else {
                panic!("{step:?}")
            };
            assert_eq!(
                (refusal.code, refusal.reason.as_deref()),
                (Code::LockUnsafe, Some(reason))
            );
        }
    }

    #[test]
    fn only_a_dead_owner_of_our_own_is_adopted() {
        let mut wait = Wait::new(seconds(60), POLL);
        for provenance in [Provenance::Stranger, Provenance::Alive, Provenance::Unknown] {
            assert!(matches!(wait.next(seconds(1), &held(provenance)), Step::Wait(_)));
        }
        assert_eq!(wait.next(seconds(1), &held(Provenance::Dead)), Step::Adopt);
        assert!(matches!(
            wait.next(seconds(1), &held(Provenance::Dead)),
            Step::Wait(_)
        ));
        assert_eq!(wait.next(seconds(2), &held(Provenance::Dead)), Step::Adopt);
        assert_eq!(wait.next(seconds(1), &Observation::Adopted), Step::Done);
        assert_eq!(wait.counts().adopted, 1);
    }

    proptest! {
        #[test]
        fn it_never_waits_past_the_bound(bound_ms in 0_u64..100_000, free_ms in 0_u64..200_000) {
            let (end, took, _) = drive(Duration::from_millis(bound_ms), Duration::from_millis(free_ms));
            prop_assert!(took <= Duration::from_millis(bound_ms));
            if free_ms <= bound_ms.saturating_sub(50) {
                prop_assert_eq!(end, Step::Done);
            }
        }
    }
}
