//! One record a job, one job a worktree, whatever the order.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn new(job: u8, pin: u8, tree: u8) -> NewPreparation {
    NewPreparation {
        job: JobId::parse(format!("job-{job}")).unwrap(),
        pin: PinId::parse(format!("{pin:020x}")).unwrap(),
        tree: ObjectId::parse(&format!("{tree:040x}")).unwrap(),
        at: UnixMs(1),
    }
}

proptest! {
    /// Whatever is asked in whatever order: a worktree has the record of one job, a job's number grows by one with each
    /// record, a refused or known one changes nothing, and the fold agrees.
    #[test]
    fn a_worktree_has_one_record_and_a_job_its_newest(asked in prop::collection::vec((0..3_u8, 0..3_u8, 0..3_u8), 1..40)) {
        let mut all: BTreeMap<JobId, Preparation> = BTreeMap::new();
        for (job, pin, tree) in asked {
            let new = new(job, pin, tree);
            let own = all.get(&new.job).cloned();
            let there = all.values().find(|known| known.pin == new.pin).cloned();
            match admit(own.as_ref(), there.as_ref(), &new) {
                Ok(Decision::Known(known)) => prop_assert_eq!(Some(known), own),
                Ok(Decision::Record(next)) => {
                    prop_assert!(apply(own.as_ref(), there.as_ref(), &next).is_ok());
                    prop_assert_eq!(next.number, own.as_ref().map_or(1, |own| own.number + 1));
                    let skipped = Preparation { number: next.number + 1, ..next.clone() };
                    prop_assert!(apply(own.as_ref(), there.as_ref(), &skipped).is_err());
                    all.insert(next.job.clone(), next.clone());
                    prop_assert!(apply(Some(&next), Some(&next), &next).is_err(), "twice");
                    let back = recorded(all.get(&new.job), &new.job, &new.pin, None);
                    prop_assert_eq!(back, Ok(new.tree));
                }
                Err(refusal) => {
                    prop_assert_eq!(refusal.code, Code::TreeMismatch);
                    prop_assert_ne!(&there.unwrap().job, &new.job);
                }
            }
            let mut pins: Vec<_> = all.values().map(|known| &known.pin).collect();
            pins.sort();
            pins.dedup();
            prop_assert_eq!(pins.len(), all.len());
        }
    }
}

#[test]
fn evidence_that_does_not_match_restores_nothing() {
    let asked = new(1, 1, 1);
    let Ok(Decision::Record(own)) = admit(None, None, &asked) else {
        panic!("the first one is recorded");
    };
    let tree = own.tree.to_string();
    let reason = |own: Option<&Preparation>, pin: &PinId, tree: Option<&str>| {
        let refusal = recorded(own, &asked.job, pin, tree).unwrap_err();
        (refusal.code, refusal.reason.unwrap())
    };
    assert_eq!(
        recorded(Some(&own), &asked.job, &asked.pin, Some(&tree)),
        Ok(own.tree)
    );
    assert_eq!(
        reason(None, &asked.pin, None),
        (Code::NotFound, "nothing_recorded".to_owned())
    );
    assert_eq!(
        reason(Some(&own), &new(1, 2, 1).pin, None),
        (Code::TreeMismatch, "other_worktree".to_owned())
    );
    let other = new(1, 1, 2).tree.to_string();
    for named in [other.as_str(), "", &tree.to_uppercase()] {
        if named == tree {
            continue;
        }
        assert_eq!(
            reason(Some(&own), &asked.pin, Some(named)),
            (Code::TreeMismatch, "other_tree".to_owned())
        );
    }
}
