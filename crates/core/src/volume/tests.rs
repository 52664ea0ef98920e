use super::*;
use crate::sample;
use proptest::prelude::*;

/// Makes the records that are of a volume's life.
fn happens(what: u8, role: Role) -> Record {
    let (generation, at) = (sample::generation(1), UnixMs(2));
    match what {
        0 => Record::VolumeOpened {
            new: sample::new_volume(role),
            attempt: AttemptId(3),
            fencing_token: FencingToken(4),
        },
        1 => Record::VolumeReady {
            generation,
            identity: sample::identity(1),
            at,
        },
        2 => Record::VolumeEnded {
            generation,
            end: End::Clean,
            at,
        },
        3 => Record::VolumeEnded {
            generation,
            end: End::Dirty {
                reason: "timed_out".to_owned(),
            },
            at,
        },
        4 => Record::VolumeDestroyed { generation, at },
        other => sample::record(other, 1),
    }
}

/// The kind of the record that lifts a mark.
const LIFTED: u8 = 17;

/// Is the reference: every step that a life has.
fn follows(state: Option<VolumeState>, what: u8) -> Option<VolumeState> {
    use VolumeState::{Clean, Destroyed, Open, Opening, Quarantined};
    match (state, what) {
        (None, 0) => Some(Opening),
        (Some(Opening), 1) => Some(Open),
        (Some(Open), 2) => Some(Clean),
        (Some(Opening | Open), 3) => Some(Quarantined),
        (Some(Clean | Quarantined), 4) => Some(Destroyed),
        // It was dirty for another reason than an unknown outcome.
        (_, LIFTED) => None,
        (Some(state), 5..) => Some(state),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_life_goes_one_way(
        what in prop::collection::vec(0..sample::KINDS, 0..24),
        role in prop_oneof![Just(Role::Draft), Just(Role::Cert)],
    ) {
        let mut live: Option<Volume> = None;
        let mut records = Vec::new();
        let mut ended = false;
        for what in what {
            let record = happens(what, role);
            let state = live.as_ref().map(|v| v.state);
            match (apply(live.clone(), &record), follows(state, what)) {
                (Ok(Some(next)), Some(must)) => {
                    prop_assert_eq!(next.state, must);
                    records.push(record);
                    live = Some(next);
                }
                (Ok(None), None) if what >= 5 && what != LIFTED => {}
                (Err(_), None) => {}
                (got, must) => prop_assert!(false, "{:?} gave {:?}, must give {:?}", record, got, must),
            }
            let Some(volume) = &live else { continue };
            ended |= matches!(what, 2 | 3) && !matches!(volume.state, VolumeState::Opening | VolumeState::Open);
            prop_assert_eq!(volume.live().is_ok(), volume.state == VolumeState::Open);
            prop_assert!(!ended || volume.live().is_err(), "live after its end");
            prop_assert_eq!(volume.ended_at.is_some(), ended);
            prop_assert_eq!(volume.sealable().is_ok(), role == Role::Draft && volume.state == VolumeState::Clean);
            prop_assert!(volume.dirty.is_none() || ended);
            if volume.state == VolumeState::Quarantined {
                prop_assert_eq!(volume.dirty.as_deref(), Some("timed_out"));
            }
            prop_assert_eq!((volume.attempt, volume.fencing_token), (AttemptId(3), FencingToken(4)));
        }
        prop_assert_eq!(records.iter().try_fold(None, apply).unwrap(), live);
    }
}

#[test]
fn only_the_mark_of_an_unknown_outcome_is_lifted() {
    for (reason, lifted) in [(OUTCOME_UNKNOWN, true), ("timed_out", false)] {
        let end = Record::VolumeEnded {
            generation: sample::generation(1),
            end: End::Dirty {
                reason: reason.to_owned(),
            },
            at: UnixMs(3),
        };
        let records = [happens(0, Role::Draft), happens(1, Role::Draft), end];
        let ended = records.iter().try_fold(None, apply).unwrap();
        let now = apply(ended.clone(), &sample::record(LIFTED, 1));
        match now {
            Ok(Some(now)) => {
                assert!(lifted);
                assert_eq!((now.state, &now.dirty), (VolumeState::Clean, &None));
                assert_eq!(now.ended_at, ended.unwrap().ended_at);
                assert!(now.live().is_err(), "its token stays a tombstone");
                assert!(
                    apply(Some(now), &sample::record(LIFTED, 1)).is_err(),
                    "a second time"
                );
            }
            other => assert!(!lifted, "{other:?}"),
        }
    }
}

#[test]
fn an_ended_generation_is_stale_whatever_the_call() {
    let mut volume = [0, 1]
        .iter()
        .try_fold(None, |v, what| apply(v, &happens(*what, Role::Draft)));
    for what in [3, 4] {
        volume = volume.and_then(|v| apply(v, &happens(what, Role::Draft)));
        let refusal = volume.as_ref().unwrap().as_ref().unwrap().live().unwrap_err();
        assert_eq!(refusal.code, Code::ReplayConflict);
        assert_eq!(refusal.reason.as_deref(), Some("stale_generation"));
    }
}
