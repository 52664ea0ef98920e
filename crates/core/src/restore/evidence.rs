//! What has to be known before a stranger's lock is taken for stale, and what of it stands in the way.
//!
//! Evidence is complete or it is none: what could not be seen counts like a holder that was seen. A lock's age, a
//! pid that stands somewhere, and whether a process has it open decide nothing by themselves.

use core::fmt;

/// The first process of the initial PID namespace.
const INIT: u32 = 1;

/// Says whether something that has to hold does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// It does.
    Holds,
    /// It does not, or it could not be seen: why.
    Doubted(String),
}

/// Says when a process began, beside the last change of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// Before it, or it cannot be told.
    Before,
    /// Proven after it: it cannot have made the lock.
    After,
}

/// Says what ties a process to the worktree or its git directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// Its working directory is there.
    WorkingDirectory,
    /// Its root is there.
    Root,
    /// It has something there open.
    Descriptor,
    /// Its environment names the index, the lock or the git directory: git hands it to its editors and hooks.
    Environment,
    /// It could not be looked at.
    Unreadable,
}

/// Is a process that is tied to the worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tied {
    /// Its number, in the namespace of the looker.
    pub pid: u32,
    /// The name that it goes by.
    pub name: String,
    /// When it began.
    pub began: Began,
    /// What ties it.
    pub by: Tie,
}

impl Tied {
    /// Says whether the process may hold the lock.
    ///
    /// One that began after the lock was made cannot have made it, wherever it works: else whoever polls a worktree
    /// would keep its stale lock for ever. But git hands the right to the index down by the environment, to processes
    /// that are younger than the lock; those count whatever their age.
    ///
    /// What cannot be looked at counts, but for the first process of the machine: init works in no worktree, and
    /// hardened machines show it to nobody.
    #[must_use]
    pub fn counts(&self) -> bool {
        match self.by {
            Tie::Environment => true,
            Tie::Unreadable => self.pid != INIT,
            Tie::WorkingDirectory | Tie::Root | Tie::Descriptor => self.began == Began::Before,
        }
    }
}

impl fmt::Display for Tied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.by {
            Tie::WorkingDirectory => "has its working directory there",
            Tie::Root => "has its root there",
            Tie::Descriptor => "has something there open",
            Tie::Environment => "has an environment that names the index or the git directory",
            Tie::Unreadable => "cannot be looked at",
        };
        write!(f, "process {} ({}) {what}", self.pid, self.name)
    }
}

/// Holds all that was seen of a lock that did not change for the whole grace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The looker is in the initial PID namespace, and its view of the processes is that namespace's.
    pub namespace: Fact,
    /// The lock lies on a filesystem whose locks and leases this kernel alone keeps.
    pub filesystem: Fact,
    /// No other restoration works on the lock.
    pub alone: Fact,
    /// Nobody in any namespace has the lock open: the kernel would give a lease on it.
    pub lease: Fact,
    /// The list of processes was read to its end.
    pub scan: Fact,
    /// The processes that are tied to the worktree.
    pub tied: Vec<Tied>,
}

impl Evidence {
    /// Says what stands against taking the lock for stale; `None` where nothing does.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        let facts = [
            &self.namespace,
            &self.filesystem,
            &self.alone,
            &self.lease,
            &self.scan,
        ];
        for fact in facts {
            if let Fact::Doubted(why) = fact {
                return Some(why.clone());
            }
        }
        self.tied.iter().find(|tied| tied.counts()).map(Tied::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete() -> Evidence {
        Evidence {
            namespace: Fact::Holds,
            filesystem: Fact::Holds,
            alone: Fact::Holds,
            lease: Fact::Holds,
            scan: Fact::Holds,
            tied: Vec::new(),
        }
    }

    fn tied(began: Began, by: Tie) -> Tied {
        Tied {
            pid: 7,
            name: "git".to_owned(),
            began,
            by,
        }
    }

    #[test]
    fn every_single_fact_can_stand_in_the_way() {
        assert_eq!(complete().doubt(), None);
        let doubted = || Fact::Doubted("unknown".to_owned());
        for spoil in [
            (|e: &mut Evidence, f| e.namespace = f) as fn(&mut Evidence, Fact),
            |e, f| e.filesystem = f,
            |e, f| e.alone = f,
            |e, f| e.lease = f,
            |e, f| e.scan = f,
        ] {
            let mut evidence = complete();
            spoil(&mut evidence, doubted());
            assert_eq!(evidence.doubt().as_deref(), Some("unknown"));
        }
    }

    #[test]
    fn a_younger_process_counts_only_by_its_environment_or_where_it_cannot_be_seen() {
        use Tie::{Descriptor, Environment, Root, Unreadable, WorkingDirectory};
        for by in [WorkingDirectory, Root, Descriptor] {
            assert!(tied(Began::Before, by).counts());
            assert!(!tied(Began::After, by).counts());
        }
        for by in [Environment, Unreadable] {
            assert!(tied(Began::Before, by).counts() && tied(Began::After, by).counts());
        }
        let init = |by| Tied {
            pid: INIT,
            ..tied(Began::Before, by)
        };
        assert!(!init(Unreadable).counts() && init(WorkingDirectory).counts());
    }

    proptest! {
        #[test]
        fn nothing_doubted_is_ever_recovered(facts in proptest::array::uniform5(any::<bool>()), began in any::<bool>(), by in 0..6_usize) {
            let fact = |holds: bool| if holds { Fact::Holds } else { Fact::Doubted("x".to_owned()) };
            let ties = [Tie::WorkingDirectory, Tie::Root, Tie::Descriptor, Tie::Environment, Tie::Unreadable];
            let began = if began { Began::Before } else { Began::After };
            let tied: Vec<Tied> = ties.get(by).map(|by| tied(began, *by)).into_iter().collect();
            let counted = tied.iter().any(Tied::counts);
            let [namespace, filesystem, alone, lease, scan] = facts.map(fact);
            let evidence = Evidence { namespace, filesystem, alone, lease, scan, tied };
            prop_assert_eq!(evidence.doubt().is_none(), facts.iter().all(|f| *f) && !counted);
        }
    }
}
