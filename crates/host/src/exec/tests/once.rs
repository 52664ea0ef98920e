//! No command is begun twice, and what became of it is never guessed.

use super::*;

/// Waits for the end of whatever may run, as a new daemon does, and checks that what is said agrees with what happened.
fn settled(site: &Site, id: &ExecutionId, round: &str) -> Observation {
    let seen = claim_never_begun(&site.volume(), id).unwrap();
    let seen = if seen == Observation::Running {
        site.wait(id)
    } else {
        seen
    };
    match &seen {
        Observation::NeverBegan => {}
        Observation::Ended(status) => {
            assert_eq!(
                status.outcome,
                Outcome::Ended(Ended::Exited { code: 0 }),
                "{round}"
            );
            assert_eq!(site.effects(), 1, "{round}");
        }
        Observation::Lost => assert!(site.effects() <= 1, "{round}"),
        other => panic!("{round}: {other:?}"),
    }
    seen
}

/// Says that nothing of an execution is left that could still have an effect.
fn is_over(site: &Site, id: &ExecutionId) -> bool {
    !Place::open(&site.volume(), id)
        .unwrap()
        .is_some_and(|place| place.alive().unwrap_or(false))
}

/// So many rounds that only what never happens is not met in them.
const fn rounds() -> std::ops::Range<u32> {
    0..2000
}

#[test]
fn a_claim_and_a_late_shim_exclude_each_other_in_both_orders() {
    if !stands() {
        return;
    }
    for (moment, wins) in [
        ("Ordered", "claim"),
        ("Locked", "claim"),
        ("Claimed", "shim"),
        ("Synced", "shim"),
        ("Ended", "shim"),
    ] {
        let site = Site::new();
        let id = mint();
        let mut starter = site.starter(&id, EFFECT, "", ("test.wait", moment));
        assert!(until(|| site.waits(&id)), "{moment}");
        starter.kill();
        let before = site.observe(&id);
        let claimed = claim_never_begun(&site.volume(), &id).unwrap();
        if wins == "claim" {
            assert_eq!(
                (before, claimed),
                (Observation::NotBegun, Observation::NeverBegan),
                "{moment}"
            );
        } else {
            assert_eq!(
                (before, claimed),
                (Observation::Running, Observation::Running),
                "{moment}"
            );
        }
        site.go(&id);
        assert!(site.came_and_went(&id), "{moment}");
        let seen = settled(&site, &id, moment);
        assert_eq!(seen == Observation::NeverBegan, wins == "claim", "{moment}");
        assert_eq!(site.effects(), usize::from(wins == "shim"), "{moment}");
    }
}

#[test]
fn a_claim_and_a_late_shim_race_and_exactly_one_wins() {
    if !stands() {
        return;
    }
    let (mut never_began, mut ran) = (0, 0);
    let mut closing = Closing(Duration::from_millis(1));
    for round in rounds() {
        if round >= 60 && never_began > 0 && ran > 0 {
            break;
        }
        let site = Site::new();
        let id = mint();
        let _starter = site.starter(&id, EFFECT, "", ("test.wait", "Locked"));
        assert!(until(|| site.waits(&id)));
        let shown = format!("round {round}");
        site.go(&id);
        // What lies between is now a few instructions on either side, and what the scheduler makes of them.
        std::thread::sleep(closing.around());
        let seen = settled(&site, &id, &shown);
        assert!(site.came_and_went(&id), "{shown}");
        closing.learn(seen == Observation::NeverBegan);
        match seen {
            Observation::NeverBegan => {
                assert_eq!(site.effects(), 0, "{shown}");
                never_began += 1;
            }
            Observation::Ended(_) => ran += 1,
            other => panic!("{shown}: {other:?}"),
        }
    }
    assert!(
        never_began > 0 && ran > 0,
        "no race: {never_began} claims, {ran} runs"
    );
}

#[test]
fn a_starter_killed_anywhere_leaves_no_second_effect() {
    if !stands() {
        return;
    }
    // Every point of the starter, with the shim ahead of it, behind it, or held up at each of its moments.
    for point in Point::ALL.iter().map(|point| point.name()) {
        for moment in MOMENTS.map(|moment| format!("{moment:?}")) {
            let shown = format!("{point}/{moment}");
            let site = Site::new();
            let id = mint();
            let mut starter = site.starter(&id, EFFECT, point, ("test.wait", &moment));
            let dies = point != "begun" || !["Ordered", "Locked", "Claimed", "Synced"].contains(&&*moment);
            if dies {
                starter.0.wait().unwrap();
            } else {
                // It waits for a shim that says nothing yet.
                assert!(until(|| site.waits(&id)), "{shown}");
                starter.kill();
            }
            let before = site.observe(&id);
            if point == "made" {
                assert_eq!(before, Observation::NotBegun, "{shown}");
            }
            assert!(
                start(&site.volume(), &id, &site.sh(EFFECT), &NoPoints).is_err(),
                "{shown}"
            );
            let decided = claim_never_begun(&site.volume(), &id).unwrap();
            site.go(&id);
            let seen = settled(&site, &id, &shown);
            assert!(point == "made" || site.came_and_went(&id), "{shown}");
            assert_eq!(
                decided == Observation::NeverBegan,
                seen == Observation::NeverBegan,
                "{shown}"
            );
            assert_eq!(
                site.effects(),
                usize::from(seen != Observation::NeverBegan),
                "{shown}"
            );
            assert!(
                start(&site.volume(), &id, &site.sh(EFFECT), &NoPoints).is_err(),
                "{shown}"
            );
        }
    }
}

#[test]
fn a_shim_killed_at_each_moment_is_never_taken_for_another() {
    if !stands() {
        return;
    }
    for (moment, effects) in MOMENTS.into_iter().zip([0, 0, 0, 0, 1, 1]) {
        let shown = format!("{moment:?}");
        let site = Site::new();
        let id = mint();
        let points = |point: Point| {
            if point == Point::Made {
                std::fs::write(site.place(&id).join("test.die"), &shown).unwrap();
            }
        };
        let started = start(&site.volume(), &id, &site.sh(EFFECT), &points);
        let seen = started.as_ref().map(|attached| attached.wait(&never()).unwrap());
        match moment {
            Moment::Ordered | Moment::Locked => {
                assert_eq!(seen.unwrap_err().code(), Code::IoFailed, "{shown}");
                assert_eq!(site.observe(&id), Observation::NeverBegan, "{shown}");
            }
            Moment::Claimed | Moment::Synced | Moment::Ended => {
                assert_eq!(seen.unwrap(), Observation::Lost, "{shown}");
                assert_eq!(
                    claim_never_begun(&site.volume(), &id).unwrap(),
                    Observation::Lost,
                    "{shown}"
                );
            }
            Moment::Concluded => {
                assert_eq!(
                    ended(seen.unwrap()).outcome,
                    Outcome::Ended(Ended::Exited { code: 0 }),
                    "{shown}"
                );
            }
        }
        assert_eq!(site.effects(), effects, "{shown}");
        assert!(
            start(&site.volume(), &id, &site.sh(EFFECT), &NoPoints).is_err(),
            "{shown}"
        );
    }
}

#[test]
fn kills_at_any_time_leave_at_most_one_effect() {
    if !stands() {
        return;
    }
    let mut kinds = std::collections::BTreeSet::new();
    let mut closing = Closing(Duration::from_millis(10));
    for round in rounds() {
        if round >= 60 && kinds.len() > 1 {
            break;
        }
        let shown = format!("round {round}");
        let site = Site::new();
        let id = mint();
        let mut starter = site.starter(&id, EFFECT, "", ("", ""));
        std::thread::sleep(closing.around());
        starter.kill();
        if round % 2 == 0
            && let Ok(Some(place)) = Place::open(&site.volume(), &id)
            && let Ok(Some(shim)) = place.shim()
        {
            // It may have gone since.
            kill_process(Pid::from_raw(shim).unwrap(), Signal::KILL).ok();
        }
        let seen = settled(&site, &id, &shown);
        assert!(until(|| is_over(&site, &id)), "{shown}");
        closing.learn(seen == Observation::NeverBegan);
        if seen == Observation::NeverBegan {
            assert_eq!(site.effects(), 0, "{shown}");
        }
        assert!(site.effects() <= 1, "{shown}");
        kinds.insert(match seen {
            Observation::NeverBegan => "never began",
            Observation::Lost => "lost",
            _ => "ended",
        });
    }
    assert!(kinds.len() > 1, "the kills came all at one time: {kinds:?}");
}

#[test]
fn nothing_is_lost_for_an_observer_who_never_looks_away() {
    if !stands() {
        return;
    }
    let site = Site::new();
    for _ in 0..20 {
        let (id, _) = site.start(&site.sh("true"));
        loop {
            match site.observe(&id) {
                Observation::Running => {}
                Observation::Ended(status) => {
                    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 0 }));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_claim_without_any_start_keeps_every_start_away() {
    let site = Site::new();
    let id = mint();
    assert_eq!(site.observe(&id), Observation::NotBegun);
    assert!(attach(&site.volume(), &id).unwrap().is_none());
    for _ in 0..2 {
        assert_eq!(
            claim_never_begun(&site.volume(), &id).unwrap(),
            Observation::NeverBegan
        );
    }
    assert_eq!(
        end(&site.volume(), &id, Urgency::Kill).unwrap(),
        Observation::NeverBegan
    );
    assert_eq!(site.wait(&id), Observation::NeverBegan);
    assert!(start(&site.volume(), &id, &site.sh(EFFECT), &NoPoints).is_err());
    assert_eq!(end_all(&site.volume(), Duration::ZERO).unwrap(), []);
    assert_eq!(site.output(&id, Stream::Stdout), b"");
    assert_eq!(site.effects(), 0);
}

#[test]
fn what_cannot_be_understood_is_refused() {
    let site = Site::new();
    let broken = |name: &str, how: &dyn Fn(&Path)| {
        let id = mint();
        let place = Place::create(&site.volume(), &id).unwrap();
        if name != "claim" {
            place.claim(place::Claim::Begun).unwrap();
        }
        how(&site.place(&id).join(name));
        observe(&site.volume(), &id).map_err(|e| e.code())
    };
    let unknown = Err(Code::UnknownState);
    let link = |to: &'static str| move |at: &Path| std::os::unix::fs::symlink(to, at).unwrap();
    let file = |text: &'static str| move |at: &Path| std::fs::write(at, text).unwrap();
    assert_eq!(broken("claim", &link("other")), unknown);
    assert_eq!(broken("claim", &file("begun")), unknown);
    assert_eq!(broken("status.json", &file("")), unknown);
    assert_eq!(broken("status.json", &file("{}")), unknown);
    assert_eq!(broken("status.json", &link("stdout")), unknown);
    assert_eq!(
        broken("status.json", &|at| std::fs::create_dir(at).unwrap()),
        unknown
    );
    assert_eq!(broken("other", &file("")), Ok(Observation::Lost));
}
