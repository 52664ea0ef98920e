use super::*;
use crate::call::{Before, Intent};
use crate::digest::Sha256;
use crate::sample;

const STAGED: u8 = 1;
const BEFORE: u8 = 2;
const OTHER: u8 = 3;

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
                all.push(Observation {
                    staged: staged.clone(),
                    trashed: trashed.clone(),
                    target,
                });
            }
        }
    }
    all
}

fn before() -> Before {
    Before {
        id: sample::file(BEFORE),
        sha256: None,
    }
}

fn install(before: Option<Before>) -> Intent {
    Intent {
        effect: Effect::Install {
            staged: sample::file(STAGED),
            sha256: Sha256::of(b"new"),
            size_bytes: 3,
            before,
        },
        ..sample::intent(0, 1, 1)
    }
}

fn remove() -> Intent {
    Intent {
        effect: Effect::Remove { before: before() },
        ..sample::intent(0, 1, 1)
    }
}

fn word(resolution: &Resolution) -> (&'static str, Tidy) {
    match resolution {
        Resolution::Happened { tidy, .. } => ("happened", *tidy),
        Resolution::NeverHappened { tidy, .. } => ("never", *tidy),
        Resolution::Unknown { .. } => ("unknown", Tidy::Nothing),
    }
}

/// Every combination of what can be seen has exactly the outcome that the moves of the gateway allow.
#[test]
fn every_observation_has_its_outcome() {
    let (staged, pre_image) = (Some(sample::file(STAGED)), Some(sample::file(BEFORE)));
    let mut seen = std::collections::BTreeMap::new();
    for intent in [install(None), install(Some(before())), remove()] {
        for observation in observations() {
            let lies = (observation.staged.clone(), observation.trashed.clone());
            let must = match &intent.effect {
                Effect::Install { before: None, .. } => {
                    if lies == (staged.clone(), None) {
                        ("never", Tidy::DropStaged)
                    } else if lies == (None, None) {
                        ("happened", Tidy::Nothing)
                    } else {
                        ("unknown", Tidy::Nothing)
                    }
                }
                Effect::Install { before: Some(_), .. } => {
                    if lies == (staged.clone(), None) {
                        ("never", Tidy::DropStaged)
                    } else if lies == (pre_image.clone(), None) {
                        ("happened", Tidy::KeepPreImage)
                    } else if lies == (None, pre_image.clone()) {
                        ("happened", Tidy::Nothing)
                    } else {
                        ("unknown", Tidy::Nothing)
                    }
                }
                Effect::Remove { .. } => match &lies.1 {
                    None => ("never", Tidy::Nothing),
                    there if *there == pre_image => ("happened", Tidy::Nothing),
                    Some(_) => ("unknown", Tidy::Nothing),
                },
            };
            let got = word(&resolve(&intent, &observation));
            assert_eq!(got, must, "{:?} {observation:?}", intent.effect);
            *seen.entry(got.0).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.values().sum::<i32>(), 192);
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Tidying is only ever asked of what was seen in `staging/`.
#[test]
fn tidying_touches_only_what_was_staged() {
    for intent in [install(None), install(Some(before())), remove()] {
        for observation in observations() {
            match word(&resolve(&intent, &observation)).1 {
                Tidy::Nothing => {}
                Tidy::DropStaged => assert_eq!(observation.staged, Some(sample::file(STAGED))),
                Tidy::KeepPreImage => assert_eq!(observation.staged, Some(sample::file(BEFORE))),
            }
        }
    }
}

/// Across boots nothing more is believed than within one, and only what both sides of the rename say.
#[test]
fn across_boots_both_sides_agree() {
    let mut believed = 0;
    for intent in [install(None), install(Some(before())), remove()] {
        let (old, new) = match &intent.effect {
            Effect::Install { before, .. } => {
                (before.as_ref().map(|b| b.id.clone()), Some(sample::file(STAGED)))
            }
            Effect::Remove { before } => (Some(before.id.clone()), None),
        };
        for observation in observations() {
            let within = resolve(&intent, &observation);
            let across = resolve_across_boots(&intent, &observation);
            let agrees = match word(&within).0 {
                "happened" => observation.target == new,
                "never" => observation.target == old,
                _ => false,
            };
            if agrees {
                assert_eq!(across, within, "{observation:?}");
                believed += 1;
            } else {
                assert_eq!(word(&across).0, "unknown", "{observation:?}");
            }
        }
    }
    assert!(believed > 0);
}

#[test]
fn a_plan_has_every_intent_in_order() {
    let intents = [
        sample::intent(0, 3, 1),
        sample::intent(1, 1, 2),
        sample::intent(2, 2, 3),
    ];
    let plan = plan(intents.iter().map(|intent| (intent, Observation::default())));
    let ids: Vec<_> = plan.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, [3, 1, 2].map(sample::execution));
}
