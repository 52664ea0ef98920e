use super::*;
use crate::sample;
use proptest::prelude::*;

fn staged(stage: Stage) -> Record {
    Record::RunStaged {
        run: sample::run(1),
        stage,
        at: UnixMs(1),
    }
}

fn started() -> Record {
    Record::RunStarted(Box::new(sample::new_run(1)))
}

fn rank(stage: &Stage) -> usize {
    match stage {
        Stage::Drafted { .. } => 0,
        Stage::AgentEnded { .. } => 1,
        Stage::Sealed { .. } => 2,
        Stage::Certified { .. } => 3,
        Stage::Delivered { .. } => 4,
    }
}

/// Gives which stage a step is to prove.
fn aims(step: &Step) -> Option<usize> {
    match step {
        Step::Draft => Some(0),
        Step::Agent { .. } => Some(1),
        Step::Seal { .. } => Some(2),
        Step::Certify { .. } => Some(3),
        Step::Deliver { .. } => Some(4),
        Step::Finished => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn stages_follow_one_another_or_are_illegal(
        stages in prop::collection::vec((0..5_u8, 0..2_u8), 0..24),
        end_after in 0..30_usize,
    ) {
        let mut run = apply(None, &started()).unwrap().unwrap();
        let mut records = vec![started()];
        for (at, (kind, n)) in stages.into_iter().enumerate() {
            if at == end_after {
                let end = Record::RunEnded { run: sample::run(1), end: RunEnd::Cancelled, at: UnixMs(1) };
                run = apply(Some(run), &end).unwrap().unwrap();
                records.push(end.clone());
                prop_assert!(apply(Some(run.clone()), &end).is_err(), "ended twice");
            }
            let stage = sample::stage(kind, n);
            let last = run.stages.last().cloned();
            // The reference, by ranks alone: one more than the last, or a draft after a draft.
            let legal = run.end.is_none() && match (&last, rank(&stage)) {
                (None, rank) => rank == 0,
                (Some(Stage::Drafted { .. }), 0) => true,
                (Some(Stage::Drafted { generation }), 1) => *generation == sample::generation(n),
                (Some(last), next) => rank(last) > 0 && next == rank(last) + 1,
            };
            let record = staged(stage);
            match apply(Some(run.clone()), &record) {
                Ok(Some(next_run)) => {
                    prop_assert!(legal, "{:?} after {:?}", record, last);
                    run = next_run;
                    records.push(record);
                }
                Ok(None) => prop_assert!(false, "the run is gone"),
                Err(_) => prop_assert!(!legal, "{:?} refused after {:?}", record, last),
            }
            let step = next(&run);
            if let Some(aim) = aims(&step) {
                prop_assert!(run.stages.iter().all(|s| rank(s) != aim), "{:?} is proven already", step);
                prop_assert_eq!(aim, run.stages.last().map_or(0, |s| rank(s) + 1));
            } else {
                let delivered = run.stages.last().is_some_and(|s| rank(s) == 4);
                prop_assert!(run.end.is_some() || delivered);
            }
        }
        prop_assert_eq!(records.iter().try_fold(None, apply).unwrap(), Some(run));
    }

    /// Whoever does what comes next, and is killed while the agent runs, gets to the end.
    #[test]
    fn doing_what_comes_next_ends(killed_agents in 0..4_u8) {
        let mut run = apply(None, &started()).unwrap().unwrap();
        let mut left = killed_agents;
        let mut steps = 0;
        loop {
            steps += 1;
            prop_assert!(steps < 20);
            let stage = match next(&run) {
                Step::Draft => sample::stage(0, left),
                Step::Agent { .. } if left > 0 => {
                    left -= 1;
                    sample::stage(0, left)
                }
                Step::Agent { generation } => Stage::AgentEnded { generation },
                Step::Seal { generation } => {
                    prop_assert_eq!(generation, sample::generation(0));
                    sample::stage(2, 9)
                }
                Step::Certify { proposal } => {
                    prop_assert_eq!(proposal, Sha256::of(&[9]));
                    sample::stage(3, 8)
                }
                Step::Deliver { generation, proposal } => {
                    prop_assert_eq!((generation, proposal), (sample::generation(8), Sha256::of(&[9])));
                    sample::stage(4, 0)
                }
                Step::Finished => break,
            };
            run = apply(Some(run), &staged(stage)).unwrap().unwrap();
        }
        prop_assert_eq!(run.certificate(), Some((&sample::generation(8), Sha256::of(&[8]))));
        prop_assert_eq!(steps, 6 + i32::from(killed_agents));
    }

    #[test]
    fn other_records_leave_a_run_alone(n: u8) {
        let run = apply(None, &started()).unwrap();
        for kind in (0..sample::KINDS).filter(|kind| !(11..=13).contains(kind)) {
            prop_assert_eq!(&apply(run.clone(), &sample::record(kind, n)).unwrap(), &run);
        }
        prop_assert!(apply(run, &started()).is_err());
    }
}

#[test]
fn a_killed_agent_with_outside_effects_is_not_started_again() {
    assert!(may_restart_agent(0).is_ok());
    assert_eq!(may_restart_agent(1).unwrap_err().code, Code::OwnershipTaken);
}
