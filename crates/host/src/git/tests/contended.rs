//! Many seek one lock at once, that somebody left or that is free: at most one ever has it, and none takes a lock that
//! lives. `scripts/laws.sh --only contended` (it sets `SEMEL_FULL`) does ten thousand acquisitions a pause.

use super::restore::no_residue;
use super::stale::{eager, evidence_is_possible};
use super::*;
use crate::git::lock::LOCK;
use crate::git::repository::Repository;
use crate::git::wait::acquire;
use crate::git::worktree::{self, Checked};
use semel_core::restore::{Counts, Stale};
use std::os::unix::fs::MetadataExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const CONTENDERS: usize = 6;

/// Preempts whoever is between the last look and the act.
struct Pause(Duration);

impl Witness for Pause {
    fn reached(&self, point: Point) {
        if point == Point::Adopting && !self.0.is_zero() {
            std::thread::sleep(self.0);
        }
    }
}

fn checked(lab: &Lab) -> Checked {
    let found = worktree::find(&lab.path("wt")).unwrap();
    let repo = Repository::at(&lab.git, found.clone(), &cancel()).unwrap();
    worktree::check(&found, &repo).unwrap()
}

fn full() -> bool {
    std::env::var_os("SEMEL_FULL").is_some()
}

#[derive(Default)]
struct Seen {
    owners: AtomicU32,
    doubled: AtomicU32,
    adopted: AtomicU32,
    recovered: AtomicU32,
    lost: AtomicU32,
    inode: AtomicU64,
}

/// One contender's turn: has the lock for a moment, and looks whether it has it alone.
fn turn(at: &Checked, options: &RestoreOptions, pause: &Pause, seen: &Seen) {
    let mut counts = Counts::default();
    let lock = acquire(at, options, &cancel(), pause, &mut counts).unwrap();
    if seen.owners.fetch_add(1, Ordering::SeqCst) > 0 {
        seen.doubled.fetch_add(1, Ordering::SeqCst);
    }
    let inode = std::fs::symlink_metadata(at.gitdir.join(LOCK)).map_or(0, |m| m.ino());
    seen.inode.store(inode, Ordering::SeqCst);
    std::thread::yield_now();
    if lock.fence().is_err() || seen.inode.load(Ordering::SeqCst) != inode {
        seen.lost.fetch_add(1, Ordering::SeqCst);
    }
    seen.adopted.fetch_add(counts.adopted, Ordering::SeqCst);
    seen.recovered.fetch_add(counts.recovered, Ordering::SeqCst);
    seen.owners.fetch_sub(1, Ordering::SeqCst);
    if lock.release().is_err() {
        seen.lost.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets all contenders seek a lock that `leave` left, round after round.
fn contend(lab: &Lab, lock: &Path, rounds: u32, pause: Duration, leave: impl Fn(&Path) + Sync) -> Seen {
    let (at, seen, pause) = (checked(lab), Seen::default(), Pause(pause));
    let options = RestoreOptions {
        stale: Stale::Evidence {
            grace: Duration::from_millis(1),
        },
        ..eager(600_000)
    };
    let barrier = Barrier::new(CONTENDERS);
    std::thread::scope(|scope| {
        for contender in 0..CONTENDERS {
            let (at, seen, pause, leave, barrier, options) = (&at, &seen, &pause, &leave, &barrier, &options);
            scope.spawn(move || {
                for _ in 0..rounds {
                    if barrier.wait().is_leader() {
                        leave(lock);
                    }
                    barrier.wait();
                    turn(at, options, pause, seen);
                    let _ = contender;
                }
            });
        }
    });
    assert!(!lock.exists());
    no_residue(lock);
    seen
}

fn tell(what: &str, pause: Duration, rounds: u32, seen: &Seen) {
    let load = |n: &AtomicU32| n.load(Ordering::SeqCst);
    writeln!(
        std::io::stderr(),
        "contended {what}, pause {} us: {} acquisitions, {} adopted ({} of strangers), {} double owners, {} lost locks",
        pause.as_micros(),
        rounds * u32::try_from(CONTENDERS).unwrap(),
        load(&seen.adopted),
        load(&seen.recovered),
        load(&seen.doubled),
        load(&seen.lost),
    )
    .unwrap();
    assert_eq!((load(&seen.doubled), load(&seen.lost)), (0, 0), "{what}");
}

/// A record of ours whose owner is gone: its lock is adopted without a look at the processes.
fn left_by_ours(lock: &Path) {
    let mut owner = record::OwnerRecord::ours(&"ab".repeat(10)).unwrap();
    owner.boot_id = "another".to_owned();
    std::fs::write(lock, serde_json::to_vec(&owner).unwrap()).unwrap();
}

#[test]
fn s12_contended_one_owner_at_a_time_where_ours_left_its_lock() {
    let git = gits().remove(0);
    for pause in [0, 300, 3000].map(Duration::from_micros) {
        let lab = Lab::new(&git);
        let (_, lock) = lab.linked();
        let rounds = if full() { 1_700 } else { 30 };
        let seen = contend(&lab, &lock, rounds, pause, left_by_ours);
        tell("after one of ours", pause, rounds, &seen);
        assert_eq!(seen.adopted.load(Ordering::SeqCst), rounds);
    }
}

#[test]
fn s12_contended_one_owner_at_a_time_where_a_stranger_left_its_lock() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    for pause in [0, 300, 3000].map(Duration::from_micros) {
        let lab = Lab::new(&git);
        let (_, lock) = lab.linked();
        let rounds = if full() { 200 } else { 3 };
        let seen = contend(&lab, &lock, rounds, pause, |lock| {
            std::fs::write(lock, b"").unwrap()
        });
        tell("after a stranger", pause, rounds, &seen);
        assert_eq!(seen.recovered.load(Ordering::SeqCst), rounds);
    }
}

/// Strangers of flesh and blood take the lock in between, with open handles, as git does: none of theirs is taken.
#[test]
fn s12_contended_the_lock_of_a_living_stranger_is_never_taken() {
    let git = gits().remove(0);
    for pause in [0, 300, 3000].map(Duration::from_micros) {
        let lab = Lab::new(&git);
        let (_, lock) = lab.linked();
        let (stop, taken, broken) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let rounds = if full() { 300 } else { 8 };
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::SeqCst) == 0 {
                    let made = std::fs::File::options().write(true).create_new(true).open(&lock);
                    let Ok(file) = made else {
                        std::thread::yield_now();
                        continue;
                    };
                    taken.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(700));
                    let own = file.metadata().unwrap().ino();
                    if std::fs::symlink_metadata(&lock).map_or(0, |m| m.ino()) != own {
                        broken.fetch_add(1, Ordering::SeqCst);
                    }
                    std::fs::remove_file(&lock).unwrap();
                }
            });
            let seen = contend_with(&lab, rounds, pause);
            stop.store(1, Ordering::SeqCst);
            seen
        });
        let lived = taken.load(Ordering::SeqCst);
        tell(&format!("among {lived} living strangers"), pause, rounds, &seen);
        assert!(lived > 0);
        assert_eq!(
            broken.load(Ordering::SeqCst),
            0,
            "the lock of a living stranger was taken"
        );
        lab.sh("wt", &["status", "--porcelain"]);
        no_residue(&lock);
    }
}

/// As [`contend`], with nothing left but what the strangers hold.
fn contend_with(lab: &Lab, rounds: u32, pause: Duration) -> Seen {
    let (at, seen, pause) = (checked(lab), Seen::default(), Pause(pause));
    let options = RestoreOptions {
        stale: Stale::Evidence {
            grace: Duration::from_millis(1),
        },
        ..eager(600_000)
    };
    std::thread::scope(|scope| {
        for _ in 0..CONTENDERS {
            scope.spawn(|| {
                for _ in 0..rounds {
                    turn(&at, &options, &pause, &seen);
                }
            });
        }
    });
    seen
}
