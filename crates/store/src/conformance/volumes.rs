//! The laws of volumes, leases and generations.

use super::{Kept, done, refused, same, sample};
use crate::journal::{Began, Journal, LogFilter};
use semel_core::ids::{FencingToken, Principal};
use semel_core::volume::{Durability, End, NewToken, NewVolume, Role, Tools, Volume, VolumeState};
use semel_core::{Code, Sha256};

const STALE: Option<&str> = Some("stale_generation");

fn end(journal: &dyn Journal, volume: &Volume, how: End) -> Result<Volume, String> {
    let (generation, fence) = (volume.generation.clone(), volume.fencing_token);
    done(
        "end_volume",
        journal.end_volume(generation, fence, how, sample::NOW),
    )
}

fn dirty(reason: &str) -> End {
    End::Dirty {
        reason: reason.to_owned(),
    }
}

pub(super) fn attempts_count_from_one_and_fences_grow(journal: &dyn Journal) -> Kept {
    let mut last = FencingToken(0);
    for attempt in 1..=3 {
        for job in ["job-a", "job-b"] {
            let volume = sample::draft(journal, job)?;
            same("the attempt", &volume.attempt.0, &attempt)?;
            same("the fence grows", &(volume.fencing_token > last), &true)?;
            last = volume.fencing_token;
            end(journal, &volume, dirty("agent_failed"))?;
        }
    }
    let cert = sample::new_volume("job-a", Role::Cert, Durability::Process)?;
    let cert = done("open_volume", journal.open_volume(cert))?;
    same("a certification is an attempt too", &cert.attempt.0, &4)
}

pub(super) fn a_job_has_one_open_volume_of_a_role(journal: &dyn Journal) -> Kept {
    let opening = sample::new_volume("job-a", Role::Draft, Durability::Process)?;
    let opening = done("open_volume", journal.open_volume(opening))?;
    same("its state", &opening.state, &VolumeState::Opening)?;
    let early = journal.begin(sample::intent(&opening, "k", "a")?);
    refused(
        "a call before it is ready",
        early,
        Code::VolumeBusy,
        Some("being_opened"),
    )?;
    let second = || sample::new_volume("job-a", Role::Draft, Durability::Process);
    refused(
        "while opening",
        journal.open_volume(second()?),
        Code::VolumeBusy,
        None,
    )?;
    let (generation, fence) = (opening.generation.clone(), opening.fencing_token);
    let identity = sample::identity(&generation)?;
    let ready = |identity| journal.volume_ready(generation.clone(), fence, identity, sample::NOW);
    let open = done("volume_ready", ready(identity.clone()))?;
    same(
        "ready",
        &(open.state, open.identity.as_ref()),
        &(VolumeState::Open, Some(&identity)),
    )?;
    same(
        "ready again",
        &done("volume_ready", ready(identity.clone()))?,
        &open,
    )?;
    let mut moved = identity;
    moved.fsid.push('2');
    refused("ready elsewhere", ready(moved), Code::Internal, None)?;
    refused(
        "while open",
        journal.open_volume(second()?),
        Code::VolumeBusy,
        None,
    )?;
    let cert = sample::new_volume("job-a", Role::Cert, Durability::Process)?;
    done("another role", journal.open_volume(cert))?;
    sample::draft(journal, "job-b")?;
    end(journal, &open, End::Clean)?;
    done("after the end", journal.open_volume(second()?)).map(drop)
}

pub(super) fn a_generation_is_never_used_twice(journal: &dyn Journal) -> Kept {
    let new = sample::new_volume("job-a", Role::Draft, Durability::Process)?;
    let again = |job: &str| {
        let mut again = sample::new_volume(job, Role::Draft, Durability::Process)?;
        again.generation = new.generation.clone();
        refused(
            "used again",
            journal.open_volume(again),
            Code::GenerationReused,
            None,
        )
    };
    let volume = sample::open(journal, new.clone())?;
    again("job-b")?;
    end(journal, &volume, End::Clean)?;
    again("job-a")?;
    let gone = done(
        "destroyed",
        journal.volume_destroyed(volume.generation.clone(), sample::NOW),
    )?;
    same("its state", &gone.state, &VolumeState::Destroyed)?;
    let twice = done(
        "destroyed again",
        journal.volume_destroyed(volume.generation, sample::NOW),
    )?;
    same("destroyed again", &twice, &gone)?;
    again("job-a")?;
    again("job-b")
}

pub(super) fn a_token_is_given_out_once(journal: &dyn Journal) -> Kept {
    let first = sample::new_volume("job-a", Role::Draft, Durability::Process)?;
    let volume = sample::open(journal, first.clone())?;
    end(journal, &volume, End::Clean)?;
    let second = NewVolume {
        token_sha256: first.token_sha256,
        ..sample::new_volume("job-b", Role::Draft, Durability::Process)?
    };
    refused("a token again", journal.open_volume(second), Code::Internal, None)
}

pub(super) fn a_token_stays_as_a_tombstone(journal: &dyn Journal) -> Kept {
    let new = sample::new_volume("job-a", Role::Draft, Durability::Power)?;
    let lease = || done("lease", journal.lease(new.token_sha256));
    same("before", &lease()?, &None)?;
    let volume = sample::open(journal, new.clone())?;
    same("open", &lease()?.map(|lease| lease.volume), &Some(volume.clone()))?;
    let ended = end(journal, &volume, dirty("timed_out"))?;
    let now = lease()?.ok_or("the token is forgotten")?.volume;
    same("ended", &now, &ended)?;
    refused(
        "live",
        now.live().map_err(Into::into),
        Code::ReplayConflict,
        STALE,
    )?;
    done(
        "destroyed",
        journal.volume_destroyed(volume.generation.clone(), sample::NOW),
    )?;
    let state = lease()?.ok_or("the token is forgotten")?.volume.state;
    same("destroyed", &state, &VolumeState::Destroyed)
}

/// Makes a token of a volume that another one gives out.
fn child(volume: &Volume, parent: Sha256, own: &str, part: &str, tools: Tools) -> Result<NewToken, String> {
    Ok(NewToken {
        generation: volume.generation.clone(),
        parent_sha256: parent,
        token_sha256: Sha256::of(own.as_bytes()),
        principal: Principal::parse(format!("{}{part}", volume.principal)).map_err(|e| e.to_string())?,
        tools,
        at: sample::NOW,
    })
}

fn only(names: &[&str]) -> Tools {
    Tools::Only(names.iter().map(|name| (*name).to_owned()).collect())
}

pub(super) fn a_token_gives_out_only_narrower_ones(journal: &dyn Journal) -> Kept {
    let new = sample::new_volume("job-a", Role::Draft, Durability::Process)?;
    let (root, volume) = (new.token_sha256, sample::open(journal, new)?);
    let first = child(&volume, root, "first", "/reader", only(&["read_file", "grep"]))?;
    done("issue", journal.issue_token(first.clone()))?;
    let lease = done("lease", journal.lease(first.token_sha256))?.ok_or("the token is not known")?;
    same("who", &lease.principal, &first.principal)?;
    same("what for", &lease.tools, &first.tools)?;
    same("which volume", &lease.volume, &volume)?;
    let of_first = |own: &str, part: &str, tools: Tools| child(&volume, first.token_sha256, own, part, tools);
    let second = of_first("second", "/reader/x", only(&["grep"]))?;
    done("a grandchild", journal.issue_token(second))?;
    for (what, wider, reason) in [
        (
            "another tool",
            of_first("a", "/reader", only(&["grep", "write_file"]))?,
            "wider_tools",
        ),
        ("every tool", of_first("b", "/reader", Tools::All)?, "wider_tools"),
        (
            "its parent",
            of_first("c", "", only(&["grep"]))?,
            "other_principal",
        ),
        (
            "a neighbour",
            of_first("d", "/readers", only(&["grep"]))?,
            "other_principal",
        ),
    ] {
        refused(what, journal.issue_token(wider), Code::Denied, Some(reason))?;
    }
    let stranger = child(&volume, Sha256::of(b"nobody"), "e", "", Tools::All)?;
    refused(
        "a stranger",
        journal.issue_token(stranger),
        Code::Unauthorized,
        None,
    )?;
    refused("twice", journal.issue_token(first), Code::Internal, None)
}

pub(super) fn keys_of_two_tokens_are_apart_and_end_together(journal: &dyn Journal) -> Kept {
    let new = sample::new_volume("job-a", Role::Draft, Durability::Process)?;
    let (root, volume) = (new.token_sha256, sample::open(journal, new)?);
    let part = child(&volume, root, "part", "/reader", Tools::All)?;
    done("issue", journal.issue_token(part.clone()))?;
    let mut call = sample::intent(&volume, "k", "a")?;
    call.scope.principal = part.principal.clone();
    same(
        "a call of the part",
        &done("begin", journal.begin(call))?,
        &Began::Began,
    )?;
    let own = sample::intent(&volume, "k", "a")?;
    same(
        "the same key of the whole",
        &done("begin", journal.begin(own))?,
        &Began::Began,
    )?;
    end(journal, &volume, dirty("timed_out"))?;
    let late = child(&volume, part.token_sha256, "late", "/reader", Tools::All)?;
    refused(
        "after the end",
        journal.issue_token(late),
        Code::ReplayConflict,
        STALE,
    )?;
    let tombstone = done("lease", journal.lease(part.token_sha256))?.ok_or("the token is forgotten")?;
    let live = tombstone.volume.live().map_err(Into::into);
    refused("live", live, Code::ReplayConflict, STALE)
}

pub(super) fn an_older_fence_is_refused(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    for wrong in [volume.fencing_token.0 - 1, volume.fencing_token.0 + 1, u64::MAX] {
        let mut intent = sample::intent(&volume, "k", "a")?;
        intent.fencing_token = FencingToken(wrong);
        refused("begin", journal.begin(intent), Code::ReplayConflict, STALE)?;
        let (generation, fence) = (volume.generation.clone(), FencingToken(wrong));
        let ended = journal.end_volume(generation.clone(), fence, End::Clean, sample::NOW);
        refused("end", ended, Code::ReplayConflict, STALE)?;
        let ready = journal.volume_ready(
            generation.clone(),
            fence,
            sample::identity(&generation)?,
            sample::NOW,
        );
        refused("ready", ready, Code::ReplayConflict, STALE)?;
    }
    Ok(())
}

pub(super) fn an_ended_generation_begins_nothing(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let (known, late) = (
        sample::intent(&volume, "known", "a")?,
        sample::intent(&volume, "late", "b")?,
    );
    for intent in [&known, &late] {
        same(
            "begin",
            &done("begin", journal.begin(intent.clone()))?,
            &Began::Began,
        )?;
    }
    done(
        "finish",
        journal.finish(known.execution_id.clone(), sample::receipt(&known)),
    )?;
    end(journal, &volume, dirty("owner_died"))?;
    for key in ["known", "late", "new"] {
        let retry = journal.begin(sample::intent(&volume, key, "a")?);
        refused("begin after the end", retry, Code::ReplayConflict, STALE)?;
    }
    // What happened may still be told, and asked for.
    done(
        "a late receipt",
        journal.finish(late.execution_id.clone(), sample::receipt(&late)),
    )?;
    let prior = done("prior", journal.prior(known.scope, known.key))?;
    same("the receipt is there", &prior.is_some(), &true)
}

pub(super) fn a_clean_end_needs_every_outcome(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let clean = || {
        let (generation, fence) = (volume.generation.clone(), volume.fencing_token);
        journal.end_volume(generation, fence, End::Clean, sample::NOW)
    };
    let intent = sample::intent(&volume, "k", "a")?;
    done("begin", journal.begin(intent.clone()))?;
    refused("running", clean(), Code::OutcomeUnknown, Some("call_running"))?;
    done(
        "unknown",
        journal.unknown(intent.execution_id, "gone".to_owned(), sample::NOW),
    )?;
    refused("unknown", clean(), Code::OutcomeUnknown, Some("call_unknown"))?;
    let ended = end(journal, &volume, dirty("outcome_unknown"))?;
    same("dirty", &ended.state, &VolumeState::Quarantined)?;
    let opening = sample::new_volume("job-a", Role::Draft, Durability::Process)?;
    let opening = done("open_volume", journal.open_volume(opening))?;
    let (generation, fence) = (opening.generation.clone(), opening.fencing_token);
    let early = journal.end_volume(generation, fence, End::Clean, sample::NOW);
    refused("clean before it was ready", early, Code::Internal, None)?;
    end(journal, &opening, dirty("owner_died")).map(drop)
}

pub(super) fn an_end_is_answered_again(journal: &dyn Journal) -> Kept {
    for (how, otherwise) in [
        (End::Clean, dirty("timed_out")),
        (dirty("timed_out"), End::Clean),
        (dirty("timed_out"), dirty("cancelled")),
    ] {
        let volume = sample::draft(journal, "job-a")?;
        let first = end(journal, &volume, how.clone())?;
        same("again", &end(journal, &volume, how)?, &first)?;
        let (generation, fence) = (volume.generation.clone(), volume.fencing_token);
        let other = journal.end_volume(generation, fence, otherwise, sample::NOW);
        refused("otherwise", other, Code::ReplayConflict, STALE)?;
    }
    Ok(())
}

pub(super) fn an_open_volume_is_not_destroyed(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let destroyed = journal.volume_destroyed(volume.generation, sample::NOW);
    refused("while open", destroyed, Code::VolumeBusy, None)?;
    let never = sample::new_volume("job-a", Role::Draft, Durability::Process)?.generation;
    refused(
        "never was",
        journal.volume_destroyed(never, sample::NOW),
        Code::NotFound,
        None,
    )
}

pub(super) fn two_jobs_do_not_mix(journal: &dyn Journal) -> Kept {
    let (a, b) = (sample::draft(journal, "job-a")?, sample::draft(journal, "job-b")?);
    let (in_a, in_b) = (sample::intent(&a, "k", "a")?, sample::intent(&b, "k", "a")?);
    for intent in [&in_a, &in_b] {
        same(
            "the same key",
            &done("begin", journal.begin(intent.clone()))?,
            &Began::Began,
        )?;
    }
    let of = |job: &Volume| done("volumes", journal.volumes(Some(job.job.clone())));
    same("volumes of a", &of(&a)?, &vec![a.clone()])?;
    same("volumes of b", &of(&b)?, &vec![b.clone()])?;
    same(
        "all volumes",
        &done("volumes", journal.volumes(None))?,
        &vec![a.clone(), b.clone()],
    )?;
    let log = |job: &Volume| {
        let filter = LogFilter {
            job: Some(job.job.clone()),
            ..LogFilter::default()
        };
        done("log", journal.log(filter)).map(|lines| lines.len())
    };
    same("logs", &(log(&a)?, log(&b)?), &(3, 3))?;
    done("start_run", journal.start_run(sample::run("job-a")?))?;
    same(
        "no run of b",
        &done("last_run", journal.last_run(b.job.clone()))?,
        &None,
    )?;
    end(journal, &a, dirty("cancelled"))?;
    done(
        "finish in b",
        journal.finish(in_b.execution_id.clone(), sample::receipt(&in_b)),
    )?;
    end(journal, &b, End::Clean).map(drop)
}
