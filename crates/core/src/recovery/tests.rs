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
                        all.push(Observation {
                            staged: staged.clone(),
                            trashed: trashed.clone(),
                            target: target.clone(),
                            destination: destination.clone(),
                            mode,
                            run: None,
                        });
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
        other_names: None,
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

fn effects() -> [Effect; 7] {
    let at = sample::path(1);
    [
        install(None),
        install(Some(before())),
        Effect::Remove {
            at: at.clone(),
            before: before(),
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
    let (staged, pre_image) = (Some(sample::file(STAGED)), Some(sample::file(BEFORE)));
    let lies = (&seen.staged, &seen.trashed);
    match effect {
        Effect::Install { before, .. } => {
            if lies == (&staged, &None) && before.is_none() && seen.target == staged {
                ("happened", Tidy::DropStaged)
            } else if lies == (&staged, &None) {
                ("never", Tidy::DropStaged)
            } else if before.is_some() && lies == (&staged, &pre_image) {
                ("never", Tidy::DropBoth)
            } else if before.is_some() && lies == (&pre_image, &None) {
                ("happened", Tidy::KeepPreImage)
            } else if before.is_some() && lies == (&None, &pre_image)
                || before.is_none() && lies == (&None, &None)
            {
                ("happened", Tidy::Nothing)
            } else {
                ("unknown", Tidy::Nothing)
            }
        }
        Effect::Remove { .. } if seen.trashed.is_none() => ("never", Tidy::Nothing),
        Effect::Remove { .. } if seen.trashed == pre_image => ("happened", Tidy::Nothing),
        Effect::Restore { .. } if seen.trashed.is_none() => ("happened", Tidy::Nothing),
        Effect::Restore { .. } if seen.trashed == pre_image && seen.target == pre_image => {
            ("happened", Tidy::Nothing)
        }
        Effect::Restore { .. } if seen.trashed == pre_image => ("never", Tidy::Nothing),
        Effect::RemoveEmpty { .. } if seen.target.is_none() => ("happened", Tidy::Nothing),
        Effect::RemoveEmpty { .. } if seen.target == pre_image => ("never", Tidy::Nothing),
        Effect::Move { .. } if (seen.target == pre_image) != (seen.destination == pre_image) => (
            if seen.target == pre_image {
                "never"
            } else {
                "happened"
            },
            Tidy::Nothing,
        ),
        Effect::SetMode { .. } if seen.target == pre_image && seen.mode == Some(NEW_MODE) => {
            ("happened", Tidy::Nothing)
        }
        Effect::SetMode { .. } if seen.target == pre_image && seen.mode == Some(OLD_MODE) => {
            ("never", Tidy::Nothing)
        }
        Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. } => ("unknown", Tidy::Nothing),
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
    assert_eq!(
        counted.len(),
        21,
        "each of seven effects can end each of three ways: {counted:?}"
    );
}

/// Tidying is only ever asked of what was seen in `staging/`.
#[test]
fn tidying_touches_only_what_was_staged() {
    for effect in effects() {
        for seen in observations() {
            match word(&alone(&effect, &seen, Boot::Same)).1 {
                Tidy::Nothing => {}
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
            | Effect::Run { .. } => None,
        };
        for seen in observations() {
            let within = alone(&effect, &seen, Boot::Same);
            let across = alone(&effect, &seen, Boot::Other);
            let agrees = match (word(&within).0, &sides) {
                ("unknown", _) => false,
                (_, None) => true,
                ("happened", Some((_, new))) => seen.target == *new,
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

/// Of a call with many effects, the first ones happened, or none, or all; whatever else is seen is unknown.
#[test]
fn many_effects_are_all_or_nothing() {
    let aborting = Aborting {
        refusal: None,
        why: "w".to_owned(),
    };
    let happened = Observation::default();
    let never = Observation {
        staged: Some(sample::file(STAGED)),
        ..Observation::default()
    };
    let odd = Observation {
        staged: Some(sample::file(OTHER)),
        ..Observation::default()
    };
    for length in 0..5_usize {
        let intent = intent(vec![install(None); length]);
        for states in 0..3_usize.pow(u32::try_from(length).unwrap()) {
            let fates: Vec<usize> = (0..length)
                .map(|n| states / 3_usize.pow(u32::try_from(n).unwrap()) % 3)
                .collect();
            let seen: Vec<Observation> = fates
                .iter()
                .map(|fate| [&happened, &never, &odd][*fate].clone())
                .collect();
            let done = fates.iter().take_while(|fate| **fate == 0).count();
            let prefix = fates[done..].iter().all(|fate| *fate == 1);
            for aborts in [None, Some(&aborting)] {
                let got = resolve(&intent, aborts, &seen, Boot::Same);
                let right = match &got {
                    Resolution::Unknown { .. } => !prefix,
                    Resolution::Happened { tidy, .. } => {
                        done == length && aborts.is_none() && tidy.iter().all(|t| *t == Tidy::Nothing)
                    }
                    Resolution::NeverHappened { tidy, .. } => {
                        prefix
                            && done == 0
                            && (length > 0 || aborts.is_some())
                            && tidy.iter().all(|t| *t == Tidy::DropStaged)
                    }
                    Resolution::StillRuns => false,
                    Resolution::RollBack { happened, .. } => {
                        prefix && done > 0 && *happened == done && (done < length || aborts.is_some())
                    }
                };
                assert!(right, "{fates:?} aborting {} gave {got:?}", aborts.is_some());
            }
        }
    }
    assert!(matches!(
        resolve(&intent(vec![install(None)]), None, &[], Boot::Same),
        Resolution::Unknown { .. }
    ));
}
