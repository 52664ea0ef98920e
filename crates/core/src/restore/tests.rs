//! The wait for the lock on a virtual clock.

use super::*;
use proptest::prelude::*;

const POLL: Duration = Duration::from_millis(50);

fn held(provenance: Provenance) -> Observation {
    Observation::Held(Sight {
        kind: LockKind::Regular,
        names: Names::One,
        owner: LockOwner::Ours,
        provenance,
        since: Since::Before,
    })
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Runs the machine on a virtual clock; the lock is let go at `free`.
fn drive(bound: Duration, free: Duration) -> (Step, Duration, Counts) {
    let mut wait = Wait::new(bound, POLL, Stale::Never);
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
            since: Since::Now,
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
        let step = Wait::new(seconds(60), POLL, Stale::Never).next(seconds(5), &seen);
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
    let mut wait = Wait::new(seconds(60), POLL, Stale::Never);
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

const GRACE: Duration = Duration::from_secs(10);

fn lock(since: Since) -> Observation {
    Observation::Held(Sight {
        kind: LockKind::Regular,
        names: Names::One,
        owner: LockOwner::Ours,
        provenance: Provenance::Stranger,
        since,
    })
}

fn evidence(tied: Vec<Tied>) -> Observation {
    Observation::Examined(Evidence {
        namespace: Fact::Holds,
        filesystem: Fact::Holds,
        alone: Fact::Holds,
        lease: Fact::Holds,
        scan: Fact::Holds,
        tied,
    })
}

/// Looks until something but a wait is asked for, or a bound of looks is over.
fn until_step(wait: &mut Wait, now: &mut Duration, mut seen: Observation) -> Step {
    for _ in 0..10_000 {
        match wait.next(*now, &seen) {
            Step::Wait(until) => {
                assert!(until > *now);
                *now = until;
                seen = lock(Since::Before);
            }
            step => return step,
        }
    }
    panic!("it only waits")
}

#[test]
fn a_strangers_lock_is_examined_after_the_grace_and_adopted_on_complete_evidence() {
    let stale = Stale::Evidence { grace: GRACE };
    let mut wait = Wait::new(seconds(60), POLL, stale);
    let mut now = seconds(5);
    assert_eq!(until_step(&mut wait, &mut now, lock(Since::Now)), Step::Examine);
    assert_eq!(now, seconds(15));
    assert_eq!(wait.next(now, &evidence(Vec::new())), Step::Adopt);
    assert_eq!(wait.next(now, &Observation::Recovered), Step::Done);
    assert_eq!((wait.counts().adopted, wait.counts().recovered), (1, 1));
}

#[test]
fn a_lock_that_changes_begins_its_grace_anew_and_none_is_examined_at_the_first_look() {
    let mut wait = Wait::new(seconds(60), POLL, Stale::Evidence { grace: GRACE });
    let mut now = seconds(0);
    assert!(matches!(wait.next(now, &lock(Since::Now)), Step::Wait(_)));
    now = seconds(9);
    assert_eq!(until_step(&mut wait, &mut now, lock(Since::Now)), Step::Examine);
    assert_eq!(now, seconds(19));
    let mut eager = Wait::new(
        seconds(60),
        POLL,
        Stale::Evidence {
            grace: Duration::ZERO,
        },
    );
    assert!(matches!(eager.next(now, &lock(Since::Now)), Step::Wait(_)));
    assert_eq!(eager.next(now + POLL, &lock(Since::Before)), Step::Examine);
}

#[test]
fn a_doubt_is_looked_at_again_and_told_at_the_end() {
    let holder = Tied {
        pid: 71,
        name: "git".to_owned(),
        began: Began::Before,
        by: Tie::WorkingDirectory,
    };
    let mut wait = Wait::new(seconds(12), POLL, Stale::Evidence { grace: GRACE });
    let mut now = seconds(0);
    assert_eq!(until_step(&mut wait, &mut now, lock(Since::Now)), Step::Examine);
    let doubted = evidence(vec![holder]);
    assert!(matches!(wait.next(now, &doubted), Step::Wait(_)));
    assert_eq!(
        until_step(&mut wait, &mut now, lock(Since::Before)),
        Step::Examine
    );
    assert_eq!(now, seconds(11));
    assert!(matches!(wait.next(now, &doubted), Step::Wait(_)));
    let end = until_step(&mut wait, &mut now, lock(Since::Before));
    let Step::Refuse(refusal) = end else {
        panic!("{end:?}")
    };
    assert_eq!((refusal.code, now), (Code::LockTimeout, seconds(12)));
    // The same words where the last look is the one that examines.
    let mut late = Wait::new(seconds(12), POLL, Stale::Evidence { grace: GRACE });
    let mut at = seconds(0);
    assert_eq!(until_step(&mut late, &mut at, lock(Since::Now)), Step::Examine);
    let Step::Refuse(told) = late.next(seconds(12), &doubted) else {
        panic!("it is past the bound")
    };
    assert_eq!(told.why, refusal.why);
    assert!(
        refusal
            .why
            .contains("process 71 (git) has its working directory there"),
        "{}",
        refusal.why
    );
    assert_eq!(wait.counts().adopted, 0);
}

#[test]
fn never_means_never_and_our_own_living_locks_are_not_examined() {
    let mut never = Wait::new(seconds(60), POLL, Stale::Never);
    let mut now = seconds(0);
    assert!(matches!(
        until_step(&mut never, &mut now, lock(Since::Now)),
        Step::Refuse(_)
    ));
    for provenance in [Provenance::Alive, Provenance::Unknown] {
        let mut wait = Wait::new(seconds(60), POLL, Stale::Evidence { grace: GRACE });
        for second in 0..60 {
            assert!(matches!(
                wait.next(seconds(second), &held(provenance)),
                Step::Wait(_)
            ));
        }
    }
}

fn ticket(n: u64) -> Ticket {
    Ticket {
        arrived_ns: n,
        nonce: format!("{n:020}"),
    }
}

fn line(own: u64, others: &[u64]) -> Observation {
    Observation::Free(Line {
        own: ticket(own),
        others: others.iter().copied().map(ticket).collect(),
    })
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn queued() -> Wait {
    Wait::new(seconds(60), seconds(1), Stale::Never)
}

#[test]
fn a_free_lock_is_left_to_who_came_before_and_to_nobody_else() {
    assert_eq!(queued().next(ms(0), &line(3, &[])), Step::Take);
    assert_eq!(queued().next(ms(0), &line(3, &[4, 9])), Step::Take);
    let mut wait = queued();
    assert_eq!(wait.next(ms(5), &line(3, &[2, 4])), Step::Wait(ms(105)));
    // Held meanwhile, by whomever: its turn goes on when the lock is free again.
    assert!(matches!(
        wait.next(ms(90), &held(Provenance::Alive)),
        Step::Wait(_)
    ));
    assert_eq!(wait.next(ms(104), &line(3, &[2])), Step::Wait(ms(119)));
    // It went.
    assert_eq!(wait.next(ms(110), &line(3, &[4])), Step::Take);
    assert_eq!(wait.counts().collisions, 3);
    // At one moment the nonce decides: never both, never neither.
    let (a, b) = (
        ticket(7),
        Ticket {
            nonce: "x".to_owned(),
            ..ticket(7)
        },
    );
    let turn = |own: &Ticket, other: &Ticket| {
        let line = Line {
            own: own.clone(),
            others: vec![other.clone()],
        };
        queued().next(ms(0), &Observation::Free(line)) == Step::Take
    };
    assert_ne!(turn(&a, &b), turn(&b, &a));
}

#[test]
fn who_leaves_a_free_lock_is_passed_over_after_its_turn_once_for_all() {
    let mut wait = queued();
    assert_eq!(wait.next(ms(0), &line(9, &[1, 2])), Step::Wait(ms(100)));
    assert_eq!(wait.next(ms(60), &line(9, &[1, 2])), Step::Wait(ms(100)));
    // The next one has a turn of its own.
    assert_eq!(wait.next(ms(100), &line(9, &[1, 2])), Step::Wait(ms(200)));
    assert!(matches!(
        wait.next(ms(110), &held(Provenance::Alive)),
        Step::Wait(_)
    ));
    // Passed over for good; a stopped one costs one turn, not one at every release.
    assert_eq!(wait.next(ms(500), &line(9, &[1])), Step::Take);
    let seen = |others: &[u64]| Line {
        own: ticket(9),
        others: others.iter().copied().map(ticket).collect(),
    };
    assert!(wait.stands_first(&seen(&[1, 10])) && !wait.stands_first(&seen(&[1, 2])));
    // Behind the bound nobody is passed over any more.
    let mut wait = Wait::new(ms(50), seconds(1), Stale::Never);
    assert_eq!(wait.next(ms(0), &line(9, &[1])), Step::Wait(ms(50)));
    let Step::Refuse(refusal) = wait.next(ms(50), &line(9, &[1])) else {
        panic!("not refused")
    };
    assert_eq!(refusal.code, Code::LockTimeout);
}

proptest! {
    /// Waiters that look in any order: those that move get the lock by their age, whoever stands still.
    #[test]
    fn the_line_is_served_by_age(
        still in proptest::collection::vec(any::<bool>(), 8),
        looks in proptest::collection::vec(0..8_usize, 0..200),
    ) {
        let mut waits: Vec<Wait> = (0..8).map(|_| queued()).collect();
        let mut waiting: Vec<usize> = (0..8).collect();
        let mut served = Vec::new();
        let every = |turn: usize| (0..8).map(move |n| (turn, n));
        // After the given looks, everybody looks once in each hundredth of a second.
        let given = looks.into_iter().map(|n| (0, n));
        for (turn, n) in given.chain((1..200).flat_map(every)) {
            if still[n] || !waiting.contains(&n) {
                continue;
            }
            let others: Vec<u64> = waiting.iter().filter(|m| **m != n).map(|m| *m as u64).collect();
            if waits[n].next(ms(turn as u64 * 10), &line(n as u64, &others)) == Step::Take {
                waiting.retain(|m| *m != n);
                served.push(n);
            }
        }
        let moving: Vec<usize> = (0..8).filter(|n| !still[*n]).collect();
        prop_assert_eq!(served, moving);
    }
}
