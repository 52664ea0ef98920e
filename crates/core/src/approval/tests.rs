use super::*;
use crate::call::FingerprintVersion;
use crate::sample;
use proptest::prelude::*;

fn asked(n: u8) -> Approval {
    apply(None, &Record::ApprovalAsked(Box::new(sample::question(n))))
        .unwrap()
        .unwrap()
}

fn decided(n: u8, ruling: Ruling) -> Result<Approval, IllegalRecord> {
    let record = Record::ApprovalDecided {
        approval_id: sample::approval(n),
        ruling,
    };
    apply(Some(asked(n)), &record).map(Option::unwrap)
}

fn request(question: &Question) -> Request {
    Request {
        fingerprints: vec![(question.fingerprint_version, question.fingerprint)],
        tool: question.tool.clone(),
        path: question.path.clone(),
    }
}

fn refusal(approval: &Approval, now: u64) -> Option<(Code, Option<String>)> {
    let question = &approval.question;
    let answer = approval.admit(&request(question), &question.plan, UnixMs(now));
    answer.err().map(|refusal| {
        assert_eq!(refusal.names, [question.approval_id.as_str()]);
        (refusal.code, refusal.reason)
    })
}

fn is(code: Code, reason: &str) -> Option<(Code, Option<String>)> {
    Some((code, (!reason.is_empty()).then(|| reason.to_owned())))
}

#[test]
fn a_question_stands_then_its_answer_and_both_expire() {
    let pending = asked(1);
    assert_eq!(refusal(&pending, 10), is(Code::ApprovalRequired, ""));
    assert_eq!(refusal(&pending, 19), is(Code::ApprovalRequired, ""));
    assert_eq!(refusal(&pending, 20), is(Code::ApprovalExpired, "not_decided"));
    let approved = decided(1, sample::ruling(15, Decision::Approve)).unwrap();
    assert_eq!(refusal(&approved, 15), None);
    assert_eq!(refusal(&approved, 19), None);
    assert_eq!(refusal(&approved, 20), is(Code::ApprovalExpired, "not_used"));
    let denied = decided(1, sample::ruling(15, Decision::Deny)).unwrap();
    for now in [15, 20, 1000] {
        assert_eq!(refusal(&denied, now), is(Code::Denied, "by_person"));
    }
}

#[test]
fn the_first_decision_stands() {
    let approved = decided(1, sample::ruling(15, Decision::Approve)).unwrap();
    let again = |decision| approved.rule(&sample::ruling(16, decision));
    assert_eq!(again(Decision::Approve), Ok(Ruled::Same));
    let other = again(Decision::Deny).unwrap_err();
    assert_eq!(
        (other.code, other.reason.as_deref()),
        (Code::PreconditionFailed, Some("already_decided"))
    );
    assert!(other.why.contains("approved by a person"), "{other}");
    let late = asked(1).rule(&sample::ruling(20, Decision::Approve)).unwrap_err();
    assert_eq!(late.code, Code::ApprovalExpired);
    // No record says otherwise.
    assert!(decided(1, sample::ruling(20, Decision::Approve)).is_err());
    let twice = Record::ApprovalDecided {
        approval_id: sample::approval(1),
        ruling: sample::ruling(16, Decision::Approve),
    };
    assert!(apply(Some(approved), &twice).is_err());
    assert!(apply(None, &twice).is_err());
    assert!(
        apply(Some(asked(2)), &twice).is_err(),
        "it decides another question"
    );
    let again = Record::ApprovalAsked(Box::new(sample::question(1)));
    assert!(apply(Some(asked(1)), &again).is_err());
}

/// What was approved is what runs: another call, or another effect of the same call, does not.
#[test]
fn an_approval_is_of_one_call_and_of_what_it_was_shown_to_do() {
    let approved = decided(1, sample::ruling(15, Decision::Approve)).unwrap();
    let question = approved.question.clone();
    let now = UnixMs(16);
    let mut other = request(&question);
    other.fingerprints = vec![(FingerprintVersion(2), Fingerprint::of_canonical(b"another"))];
    let refused = approved.admit(&other, &question.plan, now).unwrap_err();
    assert_eq!(
        (refused.code, refused.reason.as_deref()),
        (Code::ReplayConflict, Some("body_mismatch"))
    );
    let mut plans = vec![Plan::default()];
    for change in [
        |plan: &mut Plan| plan.changed[0].path = sample::path(77),
        |plan: &mut Plan| plan.changed[0].sha256_before = Some(Sha256::of(b"saved meanwhile")),
        |plan: &mut Plan| plan.changed[0].sha256_after = Some(Sha256::of(b"other")),
        |plan: &mut Plan| plan.trees.clear(),
        |plan: &mut Plan| plan.reads[0] = sample::path(77),
    ] {
        let mut plan = question.plan.clone();
        change(&mut plan);
        plans.push(plan);
    }
    for plan in plans {
        let refused = approved.admit(&request(&question), &plan, now).unwrap_err();
        assert_eq!(
            (refused.code, refused.reason.as_deref()),
            (Code::PreconditionFailed, Some("changed_since_approval"))
        );
    }
}

#[test]
fn a_call_that_reads_is_asked_about_anew_once_its_answer_lapsed() {
    let read = asked(4);
    assert_eq!(read.question.key, None);
    assert!(!read.lapsed(UnixMs(19)) && read.lapsed(UnixMs(20)));
    let denied = decided(4, sample::ruling(12, Decision::Deny)).unwrap();
    assert!(!denied.lapsed(UnixMs(16)) && denied.lapsed(UnixMs(17)));
    assert!(!asked(1).lapsed(UnixMs(1000)), "a key is asked about once");
}

proptest! {
    #[test]
    fn records_of_other_rooms_change_no_approval(record in sample::any_record(), n in any::<u8>()) {
        let prior = asked(n);
        match apply(Some(prior.clone()), &record) {
            Ok(next) if !matches!(record, Record::ApprovalDecided { .. }) => prop_assert_eq!(next, Some(prior)),
            Ok(next) => prop_assert!(next.unwrap().ruling.is_some()),
            Err(_) => {
                let ours = matches!(record, Record::ApprovalAsked(_) | Record::ApprovalDecided { .. });
                prop_assert!(ours);
            }
        }
    }

    /// Nothing runs before it was approved, nor when its time is over, nor after a denial.
    #[test]
    fn only_what_was_approved_in_time_runs(n in any::<u8>(), at in 0..40_u8, deny in any::<bool>(), now in 0..60_u64) {
        let decision = if deny { Decision::Deny } else { Decision::Approve };
        let approval = decided(n, sample::ruling(at, decision));
        prop_assert_eq!(approval.is_ok(), at < 20);
        if let Ok(approval) = approval {
            let runs = refusal(&approval, now).is_none();
            prop_assert_eq!(runs, !deny && now < u64::from(at) + 5);
        }
        prop_assert!(refusal(&asked(n), now).is_some());
    }
}
