use super::*;
use crate::call::{Aborting, Intent};
use crate::digest::Sha256;
use crate::effect::{Before, Content, Slot};
use crate::sample;
use std::collections::BTreeMap;

const STAGED: u8 = 1;
const BEFORE: u8 = 2;
const OTHER: u8 = 3;

const OLD_MODE: u32 = 0o644;
const NEW_MODE: u32 = 0o755;

fn places() -> [Option<FileId>; 4] {
    [
        None,
        Some(sample::file(STAGED)),
        Some(sample::file(BEFORE)),
        Some(sample::file(OTHER)),
    ]
}

fn observations() -> Vec<Observation> {
    let mut all = Vec::new();
    for staged in places() {
        for trashed in places() {
            for target in places() {
                for destination in places() {
                    for mode in [None, Some(OLD_MODE), Some(NEW_MODE), Some(0)] {
                        for kept in [None, Some(Sha256::of(b"old")), Some(Sha256::of(b"other"))] {
                            all.push(Observation {
                                staged: staged.clone(),
                                trashed: trashed.clone(),
                                target: target.clone(),
                                destination: destination.clone(),
                                mode,
                                kept,
                                run: None,
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

fn before() -> Before {
    Before {
        id: sample::file(BEFORE),
        sha256: None,
        stated: None,
        other_names: None,
    }
}

fn stated() -> Before {
    Before {
        stated: Some(Sha256::of(b"old")),
        ..before()
    }
}

fn install(before: Option<Before>) -> Effect {
    Effect::Install {
        at: sample::path(1),
        staged: sample::file(STAGED),
        content: Content::File {
            sha256: Sha256::of(b"new"),
            size_bytes: 3,
        },
        before,
    }
}

fn effects() -> [Effect; 9] {
    let at = sample::path(1);
    [
        install(None),
        install(Some(before())),
        install(Some(stated())),
        Effect::Remove {
            at: at.clone(),
            before: before(),
        },
        Effect::Remove {
            at: at.clone(),
            before: stated(),
        },
        Effect::RemoveEmpty {
            at: at.clone(),
            id: sample::file(BEFORE),
        },
        Effect::Move {
            from: at.clone(),
            to: sample::path(2),
            what: before(),
        },
        Effect::Restore {
            at: at.clone(),
            kept: Slot::of(&sample::execution(9), 0),
            what: before(),
        },
        Effect::SetMode {
            at,
            id: sample::file(BEFORE),
            before: OLD_MODE,
            after: NEW_MODE,
        },
    ]
}

fn intent(effects: Vec<Effect>) -> Intent {
    Intent {
        effects,
        ..sample::intent(0, 1, 1)
    }
}

fn alone(effect: &Effect, seen: &Observation, boot: Boot) -> Resolution {
    resolve(
        &intent(vec![effect.clone()]),
        None,
        std::slice::from_ref(seen),
        boot,
    )
}

fn word(resolution: &Resolution) -> (&'static str, Tidy) {
    match resolution {
        Resolution::Happened { tidy, .. } => ("happened", tidy[0]),
        Resolution::NeverHappened { tidy, .. } => ("never", tidy[0]),
        Resolution::RollBack { .. } => ("roll back", Tidy::Nothing),
        Resolution::StillRuns => ("runs", Tidy::Nothing),
        Resolution::Unknown { .. } => ("unknown", Tidy::Nothing),
    }
}

/// Says what an effect's own moves leave, in the words of the moves.
fn must(effect: &Effect, seen: &Observation) -> (&'static str, Tidy) {
    let unknown = ("unknown", Tidy::Nothing);
    match effect {
        Effect::Install { before, .. } => must_install(before.as_ref(), seen),
        Effect::Move { .. } => must_move(seen),
        Effect::Remove { before, .. } => match seen.trashed.as_ref() {
            None => ("never", Tidy::Nothing),
            Some(there) if *there == sample::file(BEFORE) && right(before, seen) => {
                ("happened", Tidy::Nothing)
            }
            Some(_) => ("roll back", Tidy::Nothing),
        },
        Effect::Restore { .. } => match (seen.trashed.as_ref(), seen.target.as_ref()) {
            (None, Some(named)) if *named == sample::file(BEFORE) => ("happened", Tidy::Nothing),
            (None, _) => unknown,
            (Some(kept), Some(named)) if *kept == sample::file(BEFORE) && kept == named => {
                ("happened", Tidy::DropNames)
            }
            (Some(kept), _) if *kept == sample::file(BEFORE) => ("never", Tidy::Nothing),
            (Some(_), _) => unknown,
        },
        Effect::RemoveEmpty { .. } => match seen.target.as_ref() {
            None => ("happened", Tidy::Nothing),
            Some(there) if *there == sample::file(BEFORE) => ("never", Tidy::Nothing),
            Some(_) => unknown,
        },
        Effect::SetMode { .. } => match (seen.target.as_ref(), seen.mode) {
            (Some(there), Some(NEW_MODE)) if *there == sample::file(BEFORE) => ("happened", Tidy::Nothing),
            (Some(there), Some(OLD_MODE)) if *there == sample::file(BEFORE) => ("never", Tidy::Nothing),
            _ => unknown,
        },
        Effect::Run { .. } | Effect::Forward { .. } => unknown,
    }
}

fn right(before: &Before, seen: &Observation) -> bool {
    before.stated.is_none() || seen.kept == before.stated
}

/// One rename exchanges what is staged with what has the name, another puts that into `trash/`. Where there is no
/// exchange, the old file gets a second name in `trash/` before the staged one is renamed over it; taken back, the
/// staged one gets its name in `staging/` again before the old one is renamed over it.
fn must_install(before: Option<&Before>, seen: &Observation) -> (&'static str, Tidy) {
    const NONE: u8 = 0;
    let which = |id: &Option<FileId>| {
        let known = [STAGED, BEFORE]
            .into_iter()
            .find(|n| *id == Some(sample::file(*n)));
        known.unwrap_or(if id.is_none() { NONE } else { OTHER })
    };
    let (staged, trashed, target) = (which(&seen.staged), which(&seen.trashed), which(&seen.target));
    match (before, staged, trashed) {
        (None, NONE, NONE) if target == STAGED => ("happened", Tidy::Nothing),
        (None, STAGED, NONE) if target == STAGED => ("happened", Tidy::DropStaged),
        (_, STAGED, NONE) => ("never", Tidy::DropStaged),
        (Some(_), STAGED, _) if target == STAGED => ("roll back", Tidy::Nothing),
        (Some(_), STAGED, _) => ("never", Tidy::DropBoth),
        (Some(before), BEFORE, NONE) if right(before, seen) => ("happened", Tidy::KeepPreImage),
        (Some(before), NONE, BEFORE) if right(before, seen) => ("happened", Tidy::Nothing),
        (Some(_), BEFORE | OTHER, NONE) | (Some(_), NONE, BEFORE) => ("roll back", Tidy::Nothing),
        _ => ("unknown", Tidy::Nothing),
    }
}

/// One rename gives the new name. Where it cannot be told to replace nothing, the file gets a second name in `trash/`,
/// then the new name, and the old one goes to `staging/`, to be looked at before it is dropped.
fn must_move(seen: &Observation) -> (&'static str, Tidy) {
    let it = Some(sample::file(BEFORE));
    if seen.staged.is_some() && seen.staged != it {
        return ("roll back", Tidy::Nothing);
    }
    let tidy = if seen.staged == it || seen.trashed == it {
        Tidy::DropNames
    } else {
        Tidy::Nothing
    };
    match (seen.target == it, seen.destination == it) {
        (true, false) => ("never", tidy),
        (false, true) => ("happened", tidy),
        (true, true) if seen.trashed == it => ("roll back", Tidy::Nothing),
        _ => ("unknown", Tidy::Nothing),
    }
}

/// Every combination of what can be seen has exactly the outcome that the moves of the gateway allow.
#[test]
fn every_observation_has_its_outcome() {
    let mut counted: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for (n, effect) in effects().iter().enumerate() {
        for seen in observations() {
            let got = word(&alone(effect, &seen, Boot::Same));
            assert_eq!(got, must(effect, &seen), "{effect:?} {seen:?}");
            *counted.entry((n, got.0)).or_default() += 1;
        }
    }
    let ways: Vec<usize> = (0..effects().len())
        .map(|n| counted.keys().filter(|(of, _)| *of == n).count())
        .collect();
    // Happened, never and unknown; a replacement and a move can be half done, too; a removal that took anything is
    // right or taken back, never unknown.
    assert_eq!(ways, [3, 4, 4, 3, 3, 3, 4, 3, 3], "{counted:?}");
}

/// Tidying is only ever asked of what was seen in `staging/`.
#[test]
fn tidying_touches_only_what_was_staged() {
    for effect in effects() {
        for seen in observations() {
            match word(&alone(&effect, &seen, Boot::Same)).1 {
                Tidy::Nothing => {}
                Tidy::DropNames => {
                    let it = Some(sample::file(BEFORE));
                    assert!(seen.staged == it || seen.trashed == it);
                    assert!(
                        seen.target == it || seen.destination == it,
                        "the last name is kept"
                    );
                }
                Tidy::DropStaged | Tidy::DropBoth => assert_eq!(seen.staged, Some(sample::file(STAGED))),
                Tidy::KeepPreImage => assert_eq!(seen.staged, Some(sample::file(BEFORE))),
            }
        }
    }
}

/// Across boots nothing more is believed than within one, and only what both sides of the rename say.
#[test]
fn across_boots_both_sides_agree() {
    let mut believed = 0;
    for effect in effects() {
        let sides = match &effect {
            Effect::Install { before, .. } => {
                Some((before.as_ref().map(|b| b.id.clone()), Some(sample::file(STAGED))))
            }
            Effect::Remove { before, .. } => Some((Some(before.id.clone()), None)),
            Effect::Restore { what, .. } => Some((None, Some(what.id.clone()))),
            // What they leave is seen at the names themselves.
            Effect::RemoveEmpty { .. }
            | Effect::Move { .. }
            | Effect::SetMode { .. }
            | Effect::Run { .. }
            | Effect::Forward { .. } => None,
        };
        for seen in observations() {
            let within = alone(&effect, &seen, Boot::Same);
            let across = alone(&effect, &seen, Boot::Other);
            let agrees = match (word(&within).0, &sides) {
                ("unknown", _) => false,
                (_, None) => true,
                ("happened" | "roll back", Some((_, new))) => seen.target == *new,
                (_, Some((old, _))) => seen.target == *old,
            };
            if agrees {
                assert_eq!(across, within, "{seen:?}");
                believed += 1;
            } else {
                assert_eq!(word(&across).0, "unknown", "{seen:?}");
            }
        }
    }
    assert!(believed > 0);
}

/// Across boots, what a move put under the name that it overwrote is no other process's.
#[test]
fn an_overwriting_move_agrees_with_itself() {
    let (from, to) = (sample::path(1), sample::path(2));
    let what = Before {
        id: sample::file(OTHER),
        ..before()
    };
    let intent = intent(vec![
        Effect::Remove {
            at: to.clone(),
            before: before(),
        },
        Effect::Move { from, to, what },
    ]);
    for (there, happened) in [(OTHER, true), (STAGED, false)] {
        let removed = Observation {
            trashed: Some(sample::file(BEFORE)),
            target: Some(sample::file(there)),
            ..Observation::default()
        };
        let moved = Observation {
            destination: Some(sample::file(OTHER)),
            ..Observation::default()
        };
        let got = resolve(&intent, None, &[removed, moved], Boot::Other);
        assert_eq!(matches!(got, Resolution::Happened { .. }), happened, "{got:?}");
    }
}

fn run() -> Effect {
    Effect::Run { cwd: sample::path(1) }
}

/// A command is known by its own directory alone, whatever an outside process did to the paths.
#[test]
fn a_command_is_known_by_its_directory_alone() {
    let seen = [
        None,
        Some(RunSeen::NeverBegan),
        Some(RunSeen::Running),
        Some(RunSeen::Ended),
        Some(RunSeen::Lost),
    ];
    for run_seen in seen {
        for paths in observations() {
            let looked = Observation {
                run: run_seen,
                ..paths
            };
            let got = [Boot::Same, Boot::Other].map(|boot| word(&alone(&run(), &looked, boot)).0);
            let must = match run_seen {
                Some(RunSeen::Ended) => ["happened", "happened"],
                Some(RunSeen::NeverBegan) => ["never", "never"],
                Some(RunSeen::Running) => ["runs", "unknown"],
                Some(RunSeen::Lost) | None => ["unknown", "unknown"],
            };
            assert_eq!(got, must, "{looked:?}");
        }
    }
}

/// No other effect stands beside a command, and nothing takes one back: whatever says otherwise is not understood.
#[test]
fn a_command_is_alone_and_is_never_taken_back() {
    let aborting = Aborting {
        refusal: None,
        why: "w".to_owned(),
        begun: 1,
    };
    for seen in [
        RunSeen::NeverBegan,
        RunSeen::Running,
        RunSeen::Ended,
        RunSeen::Lost,
    ] {
        let seen = Observation {
            run: Some(seen),
            ..Observation::default()
        };
        let two = intent(vec![run(), install(None)]);
        let got = resolve(&two, None, &[seen.clone(), seen.clone()], Boot::Same);
        assert!(matches!(got, Resolution::Unknown { .. }), "{got:?}");
        let got = resolve(&intent(vec![run()]), Some(&aborting), &[seen], Boot::Same);
        assert!(matches!(got, Resolution::Unknown { .. }), "{got:?}");
    }
}

/// Of a call with many effects, the first ones happened, one maybe by half, or none, or all; whatever else is seen is
/// unknown. Of a call that is taken back, those that are known not to have begun are no matter.
#[test]
fn many_effects_are_all_or_nothing() {
    const HAPPENED: usize = 0;
    const NEVER: usize = 1;
    const HALFWAY: usize = 2;
    let staged = |id: u8| Observation {
        staged: Some(sample::file(id)),
        ..Observation::default()
    };
    let kept = Observation {
        trashed: Some(sample::file(BEFORE)),
        ..Observation::default()
    };
    // In this order; what is seen last is unknown.
    let odd = Observation::default();
    let ways = [kept, staged(STAGED), staged(OTHER), odd];
    for length in 0..5_usize {
        let intent = intent(vec![install(Some(before())); length]);
        for states in 0..ways.len().pow(u32::try_from(length).unwrap()) {
            let fates: Vec<usize> = (0..length)
                .map(|n| states / ways.len().pow(u32::try_from(n).unwrap()) % ways.len())
                .collect();
            let seen: Vec<Observation> = fates.iter().map(|fate| ways[*fate].clone()).collect();
            for begun in [None, Some(length), Some(length / 2)] {
                let open = begun.unwrap_or(length);
                let done = fates
                    .iter()
                    .take(open)
                    .take_while(|fate| **fate == HAPPENED)
                    .count();
                let half = usize::from(done < open && fates[done] == HALFWAY);
                let prefix = fates[done + half..open.max(done + half)]
                    .iter()
                    .all(|fate| *fate == NEVER);
                let aborting = begun.map(|begun| Aborting {
                    refusal: None,
                    why: "w".to_owned(),
                    begun,
                });
                let whole = done == length && aborting.is_none();
                let got = resolve(&intent, aborting.as_ref(), &seen, Boot::Same);
                let right = match &got {
                    Resolution::Unknown { .. } => !prefix,
                    Resolution::Happened { tidy, .. } => {
                        prefix && whole && tidy.iter().all(|t| *t == Tidy::Nothing)
                    }
                    Resolution::NeverHappened { tidy, .. } => {
                        let staged =
                            |(t, fate): (&Tidy, &usize)| (*t == Tidy::DropStaged) == (*fate == NEVER);
                        prefix && !whole && done + half == 0 && tidy.iter().zip(&fates).all(staged)
                    }
                    Resolution::StillRuns => false,
                    Resolution::RollBack { begun, .. } => {
                        prefix && !whole && done + half > 0 && *begun == done + half
                    }
                };
                assert!(right, "{fates:?} begun {begun:?} gave {got:?}");
            }
        }
    }
    assert!(matches!(
        resolve(&intent(vec![install(None)]), None, &[], Boot::Same),
        Resolution::Unknown { .. }
    ));
}

/// A call that another server may have had leaves nothing to be looked at: it cannot be told, and is never alone by half.
#[test]
fn a_call_of_another_server_cannot_be_told() {
    let forward = || Effect::Forward {
        to: crate::upstream::UpstreamName::parse("fs").unwrap(),
        tool: "write_file".to_owned(),
    };
    for seen in observations() {
        for boot in [Boot::Same, Boot::Other] {
            let got = resolve(&intent(vec![forward()]), None, std::slice::from_ref(&seen), boot);
            assert!(matches!(got, Resolution::Unknown { .. }), "{got:?}");
        }
    }
    let two = resolve(
        &intent(vec![forward(), run()]),
        None,
        &[Observation::default(), Observation::default()],
        Boot::Same,
    );
    assert!(matches!(two, Resolution::Unknown { .. }), "{two:?}");
}
