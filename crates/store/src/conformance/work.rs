//! The laws of runs, verdicts and certificates.

use super::{Kept, done, refused, same, sample};
use crate::journal::{Consumed, Journal, LogFilter};
use semel_core::approval::Decision;
use semel_core::code::{Code, Refusal};
use semel_core::digest::Sha256;
use semel_core::ids::UnixMs;
use semel_core::pipeline::{RunEnd, Stage};
use semel_core::record::{Consumption, Judgement, Restoration, chain};
use semel_core::retry::{Counts, Ending, Retrial};

pub(super) fn a_generation_has_one_verdict(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let pass = sample::judgement(&volume);
    done("judge", journal.judge(pass.clone()))?;
    let later = Judgement {
        at: UnixMs(pass.at.0 + 9),
        ..pass.clone()
    };
    done("the same again", journal.judge(later))?;
    let other = Judgement {
        refusal: Some(Refusal::new(Code::TestsFailed, "2 failed")),
        ..pass.clone()
    };
    refused(
        "another verdict",
        journal.judge(other),
        Code::GenerationReused,
        None,
    )?;
    let found = done("judgement", journal.judgement(pass.generation.clone()))?;
    same("by generation", &found, &Some(pass.clone()))?;
    let second = sample::judgement(&sample::draft(journal, "job-b")?);
    done("judge", journal.judge(second.clone()))?;
    let of = done("judgements", journal.judgements(pass.proposal))?;
    same("by proposal", &of, &vec![pass.clone()])?;
    let of = done("tree_judgements", journal.tree_judgements(pass.tree.clone()))?;
    let on_tree = [pass, second.clone()]
        .into_iter()
        .filter(|j| j.tree == second.tree);
    same("by tree", &of, &on_tree.collect::<Vec<_>>())?;
    let none = done("tree_judgements", journal.tree_judgements("00".repeat(20)))?;
    same("by another tree", &none, &Vec::new())?;
    let of = done("job_judgements", journal.job_judgements(second.job.clone()))?;
    same("by job", &of, &vec![second])
}

pub(super) fn a_certificate_is_used_for_one_merge(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let used = sample::consumption(&sample::judgement(&volume));
    let consume = |c: &Consumption| done("consume", journal.consume(c.clone()));
    same("first", &consume(&used)?, &Consumed::First)?;
    let later = Consumption {
        at: UnixMs(used.at.0 + 9),
        ..used.clone()
    };
    same("the same again", &consume(&later)?, &Consumed::AlreadySame)?;
    let others = [
        Consumption {
            target: "refs/heads/release".to_owned(),
            ..used.clone()
        },
        Consumption {
            repository: "https://git.example/other".to_owned(),
            ..used.clone()
        },
        Consumption {
            tree: "an0ther".to_owned(),
            ..used.clone()
        },
        Consumption {
            certificate: Sha256::of(b"another"),
            ..used.clone()
        },
    ];
    for other in others {
        let answer = journal.consume(other);
        refused(
            "another merge",
            answer,
            Code::GateRefused,
            Some("already_consumed"),
        )?;
    }
    same("still the same", &consume(&used)?, &Consumed::AlreadySame)
}

pub(super) fn stages_come_in_order(journal: &dyn Journal) -> Kept {
    let draft = sample::draft(journal, "job-a")?;
    let new = sample::run("job-a")?;
    let stages = [
        Stage::Drafted {
            generation: draft.generation.clone(),
        },
        Stage::AgentEnded {
            generation: draft.generation.clone(),
        },
        Stage::Sealed {
            proposal: Sha256::of(b"tar"),
            tree: "7ree".to_owned(),
        },
        Stage::Certified {
            generation: draft.generation.clone(),
            certificate: Sha256::of(b"envelope"),
        },
        Stage::Delivered {
            output: "nothing".to_owned(),
        },
    ];
    let stage = |stage: &Stage| journal.stage_run(new.run.clone(), stage.clone(), sample::NOW);
    refused("a stage of no run", stage(&stages[0]), Code::NotFound, None)?;
    done("start_run", journal.start_run(new.clone()))?;
    for (at, next) in stages.iter().enumerate() {
        for wrong in stages.iter().skip(at + 1) {
            refused("a stage too early", stage(wrong), Code::Internal, None)?;
        }
        let run = done("stage_run", stage(next))?;
        same("proven", &run.stages.as_slice(), &&stages[..=at])?;
        same("again", &done("stage_run", stage(next))?, &run)?;
        if at > 0 {
            refused("a stage again", stage(&stages[at - 1]), Code::Internal, None)?;
        }
    }
    let end = |how: RunEnd| journal.end_run(new.run.clone(), how, sample::NOW);
    let over = done("end_run", end(RunEnd::Certified))?;
    same("ended again", &done("end_run", end(RunEnd::Certified))?, &over)?;
    refused("ended otherwise", end(RunEnd::Cancelled), Code::Internal, None)?;
    same(
        "the last run",
        &done("last_run", journal.last_run(new.job.clone()))?,
        &Some(over),
    )
}

pub(super) fn a_job_has_one_run_at_a_time(journal: &dyn Journal) -> Kept {
    let (first, second) = (sample::run("job-a")?, sample::run("job-a")?);
    let run = done("start_run", journal.start_run(first.clone()))?;
    same(
        "again",
        &done("start_run", journal.start_run(first.clone()))?,
        &run,
    )?;
    refused(
        "another",
        journal.start_run(second.clone()),
        Code::VolumeBusy,
        None,
    )?;
    done("of another job", journal.start_run(sample::run("job-b")?))?;
    let refusal = Refusal::new(Code::TestsFailed, "2 failed").reason("r").name("n");
    done(
        "end_run",
        journal.end_run(first.run, RunEnd::Refused { refusal }, sample::NOW),
    )?;
    let second = done("start_run", journal.start_run(second))?;
    let last = done("last_run", journal.last_run(second.new.job.clone()))?;
    same("the last", &last.as_ref(), &Some(&second))?;
    let runs = done("runs", journal.runs())?;
    same("all", &(runs.len(), runs.last()), &(3, Some(&second)))
}

pub(super) fn a_job_has_one_prepared_tree(journal: &dyn Journal) -> Kept {
    let prepare = |job: &str, pin: u8, tree: u8| -> Result<_, String> {
        Ok(journal.prepare_tree(sample::preparation(job, pin, tree)?))
    };
    let (job, other) = (sample::job("job-p")?, sample::job("job-q")?);
    same(
        "none yet",
        &done("prepared", journal.prepared(job.clone()))?,
        &None,
    )?;
    let first = done("prepare_tree", prepare("job-p", 1, 1)?)?;
    same(
        "the same again",
        &done("prepare_tree", prepare("job-p", 1, 1)?)?,
        &first,
    )?;
    let foreign = |what: &str, answer| refused(what, answer, Code::TreeMismatch, Some("foreign_record"));
    foreign("of another job", prepare("job-q", 1, 2)?)?;
    let second = done("prepare_tree", prepare("job-p", 1, 2)?)?;
    same("numbered", &(first.number, second.number), &(1, 2))?;
    same(
        "the newest",
        &done("prepared", journal.prepared(job))?,
        &Some(second.clone()),
    )?;
    same(
        "there",
        &done("prepared_in", journal.prepared_in(second.pin.clone()))?,
        &Some(second),
    )?;
    let elsewhere = done("prepare_tree", prepare("job-q", 2, 2)?)?;
    foreign("where the other one is", prepare("job-p", 2, 2)?)?;
    same(
        "still",
        &done("prepared", journal.prepared(other))?,
        &Some(elsewhere),
    )
}

pub(super) fn every_record_can_be_read_again(journal: &dyn Journal) -> Kept {
    let restoration = Restoration {
        job: Some(sample::job("job-a")?),
        tree: "7ree".to_owned(),
        code: Some(Code::LockTimeout),
        collisions: 3,
        adoptions: 1,
        waited_ms: 59_000,
        git: None,
        at: sample::NOW,
    };
    done("restored", journal.restored(restoration))?;
    let retrial = Retrial {
        end: Ending::Refused(Code::OwnershipTaken),
        counts: Counts {
            tries: 2,
            failed: 2,
            ..Counts::default()
        },
        at: sample::NOW,
    };
    done("retried", journal.retried(retrial))?;
    stages_come_in_order(journal)?;
    let draft = sample::draft(journal, "job-b")?;
    for (under, decision) in [
        (Some("asked"), Some(Decision::Approve)),
        (None, Some(Decision::Deny)),
        (Some("waits"), None),
    ] {
        let question = sample::question(&draft, under, "a")?;
        let asked = done("ask_approval", journal.ask_approval(question, 9))?;
        let id = asked.question.approval_id;
        if let Some(decision) = decision {
            let ruling = sample::ruling(decision, "a person", 1);
            done("decide_approval", journal.decide_approval(id, ruling))?;
        }
    }
    let judgement = sample::judgement(&draft);
    done("judge", journal.judge(judgement.clone()))?;
    done("consume", journal.consume(sample::consumption(&judgement)))?;
    a_job_has_one_prepared_tree(journal)?;
    let mut head = Sha256::from_bytes([0; 32]);
    for (at, line) in done("log", journal.log(LogFilter::default()))?
        .into_iter()
        .enumerate()
    {
        let entry = line.entry;
        same("its place", &entry.seq, &(at as u64 + 1))?;
        same("the one before", &entry.prev, &head)?;
        let stored = serde_json::to_vec(&entry.record).map_err(|e| e.to_string())?;
        let hash = chain(&head, entry.seq, entry.version, &stored);
        same("its digest", &entry.hash, &hash)?;
        head = hash;
    }
    same("the head", &done("verify", journal.verify())?.head, &head)
}
