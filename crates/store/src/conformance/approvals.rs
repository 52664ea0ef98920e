//! The laws of questions to a person and their answers.

use super::{Kept, done, refused, same, sample};
use crate::journal::{Journal, LogFilter};
use semel_core::Code;
use semel_core::approval::{Approval, Decision, Question, Standing};
use semel_core::digest::Fingerprint;
use semel_core::ids::{FencingToken, Principal, UnixMs};
use semel_core::volume::End;
use std::sync::Barrier;

const MANY: u32 = 100;

fn ask(journal: &dyn Journal, question: &Question) -> Result<Approval, String> {
    done("ask_approval", journal.ask_approval(question.clone(), MANY))
}

fn pending(question: &Question) -> Approval {
    Approval {
        question: question.clone(),
        ruling: None,
    }
}

pub(super) fn a_call_is_asked_about_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let first = sample::question(&volume, Some("k"), "a")?;
    let none = done(
        "approval_of",
        journal.approval_of(first.scope.clone(), first.subject()),
    )?;
    same("before", &none, &None)?;
    same("asked", &ask(journal, &first)?, &pending(&first))?;
    let other = Question {
        fingerprint: Fingerprint::of_canonical(b"another"),
        at: UnixMs(sample::NOW.0 + 90_000),
        ..sample::question(&volume, Some("k"), "b")?
    };
    same(
        "the key again, whatever it says",
        &ask(journal, &other)?,
        &pending(&first),
    )?;
    let lost = done("approval", journal.approval(other.approval_id))?;
    same("the second question", &lost, &None)?;
    let found = done(
        "approval_of",
        journal.approval_of(first.scope.clone(), first.subject()),
    )?;
    same("by its key", &found, &Some(pending(&first)))?;
    let by_id = done("approval", journal.approval(first.approval_id.clone()))?;
    same("by its id", &by_id, &Some(pending(&first)))?;
    let next = sample::question(&volume, Some("k2"), "a")?;
    same("another key", &ask(journal, &next)?, &pending(&next))?;
    let waiting = done("approvals", journal.approvals(sample::NOW))?;
    same("what waits", &waiting, &vec![pending(&first), pending(&next)])?;
    let twice = Question {
        approval_id: first.approval_id.clone(),
        ..sample::question(&volume, Some("k3"), "a")?
    };
    refused(
        "an id again",
        journal.ask_approval(twice, MANY),
        Code::Internal,
        None,
    )?;
    let foreign = Question {
        scope: semel_core::call::Scope {
            principal: Principal::parse("agent:other").map_err(|e| e.to_string())?,
            ..first.scope.clone()
        },
        ..sample::question(&volume, Some("k4"), "a")?
    };
    refused(
        "of another",
        journal.ask_approval(foreign, MANY),
        Code::Internal,
        None,
    )?;
    let entries = done(
        "log",
        journal.log(LogFilter {
            key: first.key,
            ..LogFilter::default()
        }),
    )?;
    same("entries of the key", &entries.len(), &1)
}

pub(super) fn the_first_decision_stands(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let question = sample::question(&volume, Some("k"), "a")?;
    let id = question.approval_id.clone();
    let approve = sample::ruling(Decision::Approve, "ada", 1);
    let early = journal.decide_approval(id.clone(), approve.clone());
    refused("what nobody asked", early, Code::NotFound, None)?;
    ask(journal, &question)?;
    let must = Approval {
        question: question.clone(),
        ruling: Some(approve.clone()),
    };
    let first = done("decide", journal.decide_approval(id.clone(), approve))?;
    same("the first", &first, &must)?;
    let again = sample::ruling(Decision::Approve, "grace", 2);
    let again = done("decide again", journal.decide_approval(id.clone(), again))?;
    same("the same again", &again, &must)?;
    let other = journal.decide_approval(id.clone(), sample::ruling(Decision::Deny, "grace", 2));
    refused(
        "another decision",
        other,
        Code::PreconditionFailed,
        Some("already_decided"),
    )?;
    same("asked again", &ask(journal, &question)?, &must)?;
    same(
        "nothing waits",
        &done("approvals", journal.approvals(sample::NOW))?,
        &vec![],
    )?;
    let entries = done(
        "log",
        journal.log(LogFilter {
            key: question.key,
            ..LogFilter::default()
        }),
    )?;
    same("entries of the key", &entries.len(), &2)
}

pub(super) fn sixteen_people_decide_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let question = sample::question(&volume, Some("k"), "a")?;
    let id = ask(journal, &question)?.question.approval_id;
    let gate = Barrier::new(16);
    let answers = std::thread::scope(|scope| {
        let people: Vec<_> = (0..16_u64)
            .map(|n| {
                let (gate, id) = (&gate, id.clone());
                scope.spawn(move || {
                    let decision = if n % 2 == 0 {
                        Decision::Approve
                    } else {
                        Decision::Deny
                    };
                    gate.wait();
                    let decided = journal.decide_approval(id, sample::ruling(decision, &format!("p{n}"), n));
                    (decision, decided.ok())
                })
            })
            .collect();
        people
            .into_iter()
            .map(|p| p.join().map_err(|_| "a thread died".to_owned()))
            .collect::<Result<Vec<_>, String>>()
    })?;
    let stands = done("approval", journal.approval(id))?.ok_or("the approval is not known")?;
    let ruling = stands.ruling.clone().ok_or("nothing was decided")?;
    for (decision, answer) in answers {
        let told = answer.is_some();
        same(
            "who decided the same is told so, others are refused",
            &told,
            &(decision == ruling.decision),
        )?;
        same(
            "what everyone is told",
            &answer.unwrap_or_else(|| stands.clone()),
            &stands,
        )?;
    }
    Ok(())
}

pub(super) fn a_decision_comes_in_time(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let question = sample::question(&volume, Some("k"), "a")?;
    let id = ask(journal, &question)?.question.approval_id;
    let late = journal.decide_approval(id.clone(), sample::ruling(Decision::Approve, "ada", 60_000));
    refused("too late", late, Code::ApprovalExpired, Some("not_decided"))?;
    let after = UnixMs(sample::NOW.0 + 60_000);
    same(
        "it waits no more",
        &done("approvals", journal.approvals(after))?,
        &vec![],
    )?;
    let before = UnixMs(after.0 - 1);
    same(
        "it waited",
        &done("approvals", journal.approvals(before))?,
        &vec![pending(&question)],
    )?;
    let approve = sample::ruling(Decision::Approve, "ada", 59_999);
    let decided = done("in time", journal.decide_approval(id, approve))?;
    let standing = |after_ms| decided.standing(UnixMs(sample::NOW.0 + after_ms));
    same("it lasts", &standing(119_998), &Standing::Approved)?;
    same("and ends", &standing(119_999), &Standing::Expired)
}

pub(super) fn a_call_that_reads_is_asked_about_again(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let first = sample::question(&volume, None, "a")?;
    ask(journal, &first)?;
    let at = |after_ms| -> Result<Question, String> {
        let question = sample::question(&volume, None, "a")?;
        Ok(Question {
            at: UnixMs(sample::NOW.0 + after_ms),
            expires_at: UnixMs(sample::NOW.0 + after_ms + 60_000),
            ..question
        })
    };
    same("while it stands", &ask(journal, &at(59_999)?)?, &pending(&first))?;
    let second = at(60_000)?;
    same("once it lapsed", &ask(journal, &second)?, &pending(&second))?;
    let found = done(
        "approval_of",
        journal.approval_of(second.scope.clone(), second.subject()),
    )?;
    same("the newest", &found, &Some(pending(&second)))?;
    let other = sample::question(&volume, None, "b")?;
    same("another read", &ask(journal, &other)?, &pending(&other))
}

pub(super) fn an_approval_ends_with_its_generation(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let question = sample::question(&volume, Some("k"), "a")?;
    let id = ask(journal, &question)?.question.approval_id;
    let fenced = Question {
        fencing_token: FencingToken(volume.fencing_token.0 + 7),
        ..sample::question(&volume, Some("k2"), "a")?
    };
    let stale = Some("stale_generation");
    refused(
        "an older lease",
        journal.ask_approval(fenced, MANY),
        Code::ReplayConflict,
        stale,
    )?;
    let end = journal.end_volume(
        volume.generation.clone(),
        volume.fencing_token,
        End::Clean,
        sample::NOW,
    );
    done("end_volume", end)?;
    let late = journal.decide_approval(id, sample::ruling(Decision::Approve, "ada", 1));
    refused("decided after the end", late, Code::ReplayConflict, stale)?;
    let asked = journal.ask_approval(sample::question(&volume, Some("k3"), "a")?, MANY);
    refused("asked after the end", asked, Code::ReplayConflict, stale)?;
    same(
        "nothing waits",
        &done("approvals", journal.approvals(sample::NOW))?,
        &vec![],
    )?;
    // The key is another one in the next generation.
    let next = sample::question(&sample::draft(journal, "job-a")?, Some("k"), "a")?;
    same("the next generation", &ask(journal, &next)?, &pending(&next))
}

pub(super) fn only_so_many_questions_wait(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let other = sample::draft(journal, "job-b")?;
    let question = |of, n: u32| sample::question(of, Some(&format!("k{n}")), "a");
    let first = question(&volume, 0)?;
    for n in 0..3 {
        let next = if n == 0 {
            first.clone()
        } else {
            question(&volume, n)?
        };
        done("ask_approval", journal.ask_approval(next, 3))?;
    }
    let more = journal.ask_approval(question(&volume, 3)?, 3);
    refused("one more", more, Code::TooMany, Some("approvals_pending"))?;
    done("asked before", journal.ask_approval(question(&volume, 1)?, 3))?;
    done(
        "another generation",
        journal.ask_approval(question(&other, 3)?, 3),
    )?;
    let deny = sample::ruling(Decision::Deny, "ada", 1);
    done("decide", journal.decide_approval(first.approval_id, deny))?;
    done("there is room", journal.ask_approval(question(&volume, 3)?, 3)).map(drop)
}
