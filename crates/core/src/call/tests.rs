use super::*;
use crate::sample;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Is one thing that happens to a key.
#[derive(Clone, Debug)]
enum Step {
    /// A request comes, with this body.
    Ask(u8),
    /// A record comes for an execution: the running one, or another.
    Ends(End, Whose),
    /// A record comes that is of no key's state.
    Noise(u8),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Receipted,
    Freed,
    Unknown,
    Aborting,
    /// A person says that it happened.
    ResolvedDone,
    /// A person says that it did not.
    ResolvedFree,
}

#[derive(Clone, Copy, Debug)]
enum Whose {
    Newest,
    Other,
}

/// Is the reference: what a key is, in the fewest words.
#[derive(Clone, Debug, PartialEq)]
enum Model {
    Free,
    Running { id: u8, body: u8, aborting: bool },
    Finished { id: u8, body: u8, receipt: Box<Receipt> },
    Unknown { id: u8, body: u8 },
}

impl Model {
    fn asked(&self, body: u8) -> &'static str {
        match self {
            Model::Free => "execute",
            Model::Running { body: b, .. }
            | Model::Finished { body: b, .. }
            | Model::Unknown { body: b, .. }
                if *b != body =>
            {
                "conflict"
            }
            Model::Running { .. } => "wait",
            Model::Finished { .. } => "replay",
            Model::Unknown { .. } => "unknown",
        }
    }

    /// Gives what follows; `None` where the record is illegal.
    fn ended(&self, end: End, of: u8, receipt: &Receipt) -> Option<Model> {
        match self {
            Model::Running { id, body, aborting } if *id == of => match end {
                End::Receipted | End::ResolvedDone => Some(Model::Finished {
                    id: *id,
                    body: *body,
                    receipt: Box::new(receipt.clone()),
                }),
                End::Freed | End::ResolvedFree => Some(Model::Free),
                End::Unknown => Some(Model::Unknown { id: *id, body: *body }),
                End::Aborting => (!aborting).then_some(Model::Running {
                    id: *id,
                    body: *body,
                    aborting: true,
                }),
            },
            // Only a person settles what the evidence does not.
            Model::Unknown { id, body } if *id == of => match end {
                End::ResolvedDone => Some(Model::Finished {
                    id: *id,
                    body: *body,
                    receipt: Box::new(receipt.clone()),
                }),
                End::ResolvedFree => Some(Model::Free),
                End::Receipted | End::Freed | End::Unknown | End::Aborting => None,
            },
            _ => None,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Model::Free => "free",
            Model::Running { .. } => "running",
            Model::Finished { .. } => "finished",
            Model::Unknown { .. } => "unknown",
        }
    }
}

fn request(body: u8) -> Request {
    let intent = sample::intent(0, 0, body);
    Request {
        fingerprints: vec![
            (
                FingerprintVersion(3),
                Fingerprint::of_canonical(b"by newer rules"),
            ),
            (intent.fingerprint_version, intent.fingerprint),
        ],
        tool: intent.tool,
        path: intent.path,
    }
}

fn decided(decision: &Decision) -> &'static str {
    match decision {
        Decision::Execute => "execute",
        Decision::Replay { .. } => "replay",
        Decision::Wait { .. } => "wait",
        Decision::Refuse(refusal) if refusal.code == Code::ReplayConflict => "conflict",
        Decision::Refuse(refusal) if refusal.code == Code::OutcomeUnknown => "unknown",
        Decision::Refuse(_) => "another refusal",
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let end = prop_oneof![
        Just(End::Receipted),
        Just(End::Freed),
        Just(End::Unknown),
        Just(End::Aborting),
        Just(End::ResolvedDone),
        Just(End::ResolvedFree),
    ];
    let whose = prop_oneof![4 => Just(Whose::Newest), 1 => Just(Whose::Other)];
    let step = prop_oneof![
        4 => (0..4_u8).prop_map(Step::Ask),
        3 => (end, whose).prop_map(|(end, whose)| Step::Ends(end, whose)),
        1 => any::<u8>().prop_map(Step::Noise),
    ];
    prop::collection::vec((0..3_u8, step), 0..80)
}

/// Is one key: its model, its live state, and every record that it took.
struct Key {
    model: Model,
    live: Option<CallState>,
    records: Vec<Record>,
    /// Executions since the key was last free.
    executed: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_key_has_one_effect(steps in steps()) {
        let mut keys: BTreeMap<u8, Key> = BTreeMap::new();
        let mut next_id = 0_u8;
        for (name, step) in steps {
            let key = keys.entry(name).or_insert(Key {
                model: Model::Free, live: None, records: Vec::new(), executed: 0,
            });
            match step {
                Step::Ask(body) => {
                    let decision = admit(key.live.as_ref(), &request(body));
                    prop_assert_eq!(decided(&decision), key.model.asked(body));
                    if let (Decision::Replay { intent, receipt }, Model::Finished { id, receipt: first, .. }) =
                        (&decision, &key.model)
                    {
                        prop_assert_eq!(&intent.execution_id, &sample::execution(*id));
                        prop_assert_eq!(receipt, &**first);
                    }
                    let intent = Record::CallIntended(Box::new(sample::intent(name, next_id, body)));
                    if decision == Decision::Execute {
                        key.live = apply(key.live.take(), &intent).unwrap();
                        key.records.push(intent);
                        key.model = Model::Running { id: next_id, body, aborting: false };
                        key.executed += 1;
                        next_id += 1;
                    } else {
                        // Whatever the reason: a second intent can never follow.
                        prop_assert!(apply(key.live.clone(), &intent).is_err());
                    }
                    prop_assert!(key.executed <= 1, "two executions without a freed key between");
                }
                Step::Ends(end, whose) => {
                    let of = match (whose, &key.model) {
                        (
                            Whose::Newest,
                            Model::Running { id, .. } | Model::Finished { id, .. } | Model::Unknown { id, .. },
                        ) => *id,
                        _ => 250,
                    };
                    let (execution_id, why, at) = (sample::execution(of), "w".to_owned(), UnixMs(1));
                    let mut receipt = sample::receipt(next_id);
                    let person = matches!(end, End::ResolvedDone | End::ResolvedFree);
                    let resolved = person.then(sample::resolved);
                    receipt.resolved = resolved.clone();
                    let record = match end {
                        End::Receipted | End::ResolvedDone => {
                            Record::CallReceipted { execution_id, receipt: receipt.clone() }
                        }
                        End::Freed | End::ResolvedFree => Record::CallFreed { execution_id, why, resolved, at },
                        End::Unknown => Record::CallUnknown { execution_id, why, at },
                        End::Aborting => Record::CallAborting {
                            execution_id,
                            aborting: Aborting {
                                refusal: None,
                                why,
                                begun: 1,
                            },
                            at,
                        },
                    };
                    match (apply(key.live.clone(), &record), key.model.ended(end, of, &receipt)) {
                        (Ok(live), Some(model)) => {
                            (key.live, key.model) = (live, model);
                            key.records.push(record);
                            if key.model == Model::Free {
                                key.executed = 0;
                            }
                        }
                        (Err(_), None) => {}
                        (got, must) => prop_assert!(false, "{:?} gave {:?}, must give {:?}", record, got, must),
                    }
                }
                Step::Noise(n) => {
                    for kind in (0..sample::KINDS).filter(|kind| !(5..=9).contains(kind)) {
                        let same = apply(key.live.clone(), &sample::record(kind, n)).unwrap();
                        prop_assert_eq!(&same, &key.live);
                    }
                }
            }
            prop_assert_eq!(sample::word(key.live.as_ref()), key.model.word());
        }
        for key in keys.values() {
            let folded = key.records.iter().try_fold(None, apply).unwrap();
            prop_assert_eq!(&folded, &key.live);
        }
    }

    /// A conflict is told before anything else, with what differs, whatever the state.
    #[test]
    fn a_conflict_comes_first(a in 0..12_u8, b in 0..12_u8, ended in 0..3_u8) {
        let intent = Box::new(sample::intent(0, 1, a));
        let state = match ended {
            0 => CallState::Running { intent, aborting: None },
            1 => CallState::Finished { intent, receipt: sample::receipt(1) },
            _ => CallState::Unknown { intent, why: "w".to_owned() },
        };
        let reason = if a % 2 != b % 2 {
            Some("tool_mismatch")
        } else if a % 3 != b % 3 {
            Some("path_mismatch")
        } else if a != b {
            Some("body_mismatch")
        } else {
            None
        };
        match (admit(Some(&state), &request(b)), reason) {
            (Decision::Refuse(refusal), Some(reason)) => {
                prop_assert_eq!(refusal.code, Code::ReplayConflict);
                prop_assert_eq!(refusal.reason.as_deref(), Some(reason));
                prop_assert_eq!(refusal.names, vec![sample::execution(1).as_str().to_owned()]);
            }
            (decision, reason) => {
                prop_assert_eq!(reason, None);
                prop_assert_eq!(decided(&decision), ["wait", "replay", "unknown"][usize::from(ended)]);
            }
        }
    }
}
