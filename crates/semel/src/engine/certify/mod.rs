//! Certification: from a sealed proposal to a signed certificate, one fresh generation an attempt.
//!
//! take → open → bind → install → record → test → verify → sign. A retry reuses nothing but the proposal. What the
//! verdict of one attempt rests on stands in `attempt`; who signs it, and what the journal says first, in `sign`.

mod attempt;
mod caches;
mod concern;
mod input;
mod pipe;
mod shut;
mod sign;
mod surface;
mod told;

pub(crate) use sign::{Paths, clear, heal, paths, recipe};

use super::job::say::{Point, Say};
use super::proposal::{self, Base, Proposal};
use super::volume::{self, Source, Wanted};
use super::{Engine, full, host, store};
use semel_core::backend;
use semel_core::bounds::Asked;
use semel_core::certificate::{Earlier, EarlierVerdict, Open, UNBOUND_INSTALL, Weak};
use semel_core::ids::{Generation, JobId, RunId};
use semel_core::installer::InstallCommand;
use semel_core::job::{Certify, Confine, RetryOn};
use semel_core::record::Judgement;
use semel_core::report::Counts;
use semel_core::volume::{Durability, End, Owner, Role};
use semel_core::{Code, Refusal, Sha256};
use semel_host::installer::{check_arguments, check_installer, check_program, check_report};
use semel_host::process::Cancel;
use semel_host::sandbox::resolve_program;
use semel_host::volume::write_record;
use std::collections::BTreeSet;
use std::ffi::OsStr;

/// Says what is to be certified, and how.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The job.
    pub(crate) job: JobId,
    /// The proposal.
    pub(crate) proposal: Sha256,
    /// The recipe and its bounds.
    pub(crate) certify: Certify,
    /// Whether less than full confinement is taken.
    pub(crate) confine: Confine,
    /// What bounds everything that it launches, beside what the operator says.
    pub(crate) limits: Asked,
    /// Whose ignore rules count: from where the draft began, where that is known.
    pub(crate) base: Option<Base>,
    /// What the proposal is compared with, and the certificate names; `None` compares nothing.
    pub(crate) against: Option<Base>,
    /// What its generations are to lie on.
    pub(crate) backend: backend::Wanted,
    /// The run that it is a stage of; `None` for a certification by hand.
    pub(crate) run: Option<RunId>,
}

/// Is a certificate that was signed.
#[derive(Clone, Debug)]
pub(crate) struct Certified {
    /// The generation that it is of.
    pub(crate) generation: Generation,
    /// The digest of the envelope.
    pub(crate) certificate: Sha256,
    /// The git tree that it certifies, as hexadecimal digits.
    pub(crate) tree: String,
    /// What was counted.
    pub(crate) counts: Counts,
    /// The digest of the recipe, for a policy to pin.
    pub(crate) recipe: Sha256,
    /// What is bound less than fully; a policy that does not allow it refuses the certificate.
    pub(crate) weak: Vec<Weak>,
}

/// Checks what can be said of a certification before anything is opened, so that it costs no attempt.
///
/// # Errors
/// `not_found`, reason `no_executable`, for an installer that is not there; `bad_config` for arguments and reports that are
/// not to be had.
pub(crate) fn can_begin(engine: &Engine, certify: &Certify) -> Result<(), Refusal> {
    check_report(&attempt::test_command(certify), &attempt::report_from(certify)).map_err(host)?;
    for (installer, args) in &certify.install_args {
        check_arguments(*installer, args).map_err(host)?;
    }
    for installer in &certify.install.known {
        check_installer(*installer, &engine.config.path).map_err(host)?;
    }
    // One that is a path may lie in the tree, which is looked at when it is sealed.
    if let Some(program) = certify.install.command.as_ref().map(InstallCommand::program)
        && !program.contains('/')
    {
        resolve_program(OsStr::new(program), &engine.config.path)
            .map_err(|e| host(e).reason("no_executable"))?;
    }
    Ok(())
}

/// Certifies a proposal, with as many attempts as the job allows.
///
/// # Errors
/// The refusal of the last attempt, each of which is signed as such; `sandbox_unavailable`, `store_unavailable`.
pub(crate) fn certify(
    engine: &Engine,
    ask: &Ask,
    say: Say<'_>,
    cancel: &Cancel,
) -> Result<Certified, Refusal> {
    let proposal = proposal::find(engine, &ask.proposal)?;
    can_begin(engine, &ask.certify)?;
    if let Some(command) = &ask.certify.install.command {
        check_program(command, &engine.config.path, &proposal.manifest).map_err(host)?;
    }
    let mut left = ask.certify.attempts;
    let mut may_unseal = Unseal::Once;
    loop {
        left = left.saturating_sub(1);
        match once(engine, ask, &proposal, say, cancel) {
            // The archive is what counts. The refusal stands: somebody wrote in the state root.
            Err(refusal)
                if may_unseal == Unseal::Once
                    && refusal.reason.as_deref() == Some(input::SEALED_TREE)
                    && !cancel.is_cancelled() =>
            {
                may_unseal = Unseal::NoMore;
                left = left.saturating_add(1);
                say.line(&format!(
                    "refused: {} ({refusal}); the next attempt unpacks the archive anew",
                    refusal.code
                ));
            }
            Err(refusal) if left > 0 && worth_another(&refusal, &ask.certify) && !cancel.is_cancelled() => {
                say.line(&format!(
                    "refused: {} ({refusal}); {left} more allowed, the next one in a new generation",
                    refusal.code
                ));
            }
            other => return other,
        }
    }
}

/// Says whether a sealed tree that was found damaged is made anew from its archive, and an attempt made on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unseal {
    Once,
    NoMore,
}

/// Says whether a new generation may cure a refusal.
fn worth_another(refusal: &Refusal, certify: &Certify) -> bool {
    match refusal.code {
        Code::InstallFailed | Code::TimedOut => true,
        Code::TestsFailed => certify.retry.contains(&RetryOn::TestsFailed),
        _ => false,
    }
}

/// The record, in `meta/`, of the proposal that an attempt is on.
pub(super) const ASKED: &str = "proposal";
/// The record, in `meta/`, of the run that an attempt is a stage of.
const RUN: &str = "run";

fn once(
    engine: &Engine,
    ask: &Ask,
    proposal: &Proposal,
    say: Say<'_>,
    cancel: &Cancel,
) -> Result<Certified, Refusal> {
    let opened = volume::open(
        engine,
        Wanted {
            job: ask.job.clone(),
            role: Role::Cert,
            owner: Owner::Process,
            durability: Durability::Process,
            confinement: None,
            backend: ask.backend,
            source: Source::Sealed(Box::new(proposal.clone())),
        },
    )?;
    let generation = opened.volume.generation.clone();
    say.line(&format!(
        "certify  attempt {} of job {} in generation {generation}, on {}: {}",
        opened.volume.attempt, ask.job, opened.choice.backend, opened.choice.why
    ));
    note(ask, &opened.disk)?;
    say.reached(Point::CertOpened);
    let mut evidence = attempt::Evidence::of(proposal);
    let mut verdict = attempt::run(engine, ask, proposal, &opened.disk, &mut evidence, say, cancel)
        .map_err(|refusal| full::in_attempt(engine, refusal));
    if let Err(refusal) = &verdict {
        set_aside(engine, refusal, &opened.disk, say);
    }
    if cancel.is_cancelled() {
        let end = End::Dirty {
            reason: "cancelled".to_owned(),
        };
        volume::end(engine, &generation, end)?;
        return Err(Refusal::new(Code::DirtyVolume, "the certification was cancelled").reason("cancelled"));
    }
    let signed = sign::sign(
        engine,
        ask,
        proposal,
        &opened,
        &evidence,
        verdict.as_ref().err(),
        say,
    )
    .map_err(|refusal| full::in_attempt(engine, refusal));
    let end = match (&verdict, &signed) {
        (Ok(()), Ok(_)) => End::Clean,
        (Err(refusal), _) | (Ok(()), Err(refusal)) => ends_dirty(refusal),
    };
    volume::end(engine, &generation, end)?;
    say.reached(Point::CertEnded);
    if is_full(&verdict) || is_full(&signed) {
        drop(opened);
        let kept = full::freed(engine, &ask.job, &generation, say);
        verdict = verdict.map_err(|refusal| refusal.names(kept));
    }
    if let Ok(signed) = &signed {
        signed.publish(engine, &generation)?;
        say.reached(Point::Published);
    }
    verdict?;
    let signed = signed?;
    say.line(&format!("sign     certificate {}", signed.certificate));
    let weak = evidence.weak();
    tell_of(&weak, say);
    Ok(Certified {
        generation,
        certificate: signed.certificate,
        tree: proposal.tree.to_string(),
        counts: evidence.counts().unwrap_or_default(),
        recipe: signed.recipe,
        weak,
    })
}

/// Says by name what is bound less than fully.
fn tell_of(weak: &[Weak], say: Say<'_>) {
    let names: BTreeSet<&str> = weak.iter().map(|weak| weak.name.as_str()).collect();
    if !names.is_empty() {
        let asked = match names.contains(UNBOUND_INSTALL) {
            true => "; the gate takes it where its policy says unbound_install = \"accepted\"",
            false => "",
        };
        let names: Vec<&str> = names.into_iter().collect();
        say.line(&format!("weak     {}{asked}", names.join(", ")));
    }
}

/// Notes in the volume what the attempt is on.
fn note(ask: &Ask, disk: &semel_host::volume::Volume) -> Result<(), Refusal> {
    write_record(disk, ASKED, ask.proposal.to_string().as_bytes()).map_err(host)?;
    match &ask.run {
        Some(run) => write_record(disk, RUN, run.to_string().as_bytes()).map_err(host),
        None => Ok(()),
    }
}

fn is_full<T>(came: &Result<T, Refusal>) -> bool {
    came.as_ref().is_err_and(full::is_full)
}

/// Sets a sealed tree aside that an attempt was refused for.
fn set_aside(engine: &Engine, refusal: &Refusal, disk: &semel_host::volume::Volume, say: Say<'_>) {
    if refusal.reason.as_deref() == Some(input::SEALED_TREE)
        && let Err(error) = engine.volumes.damaged_lower(disk)
    {
        // The next attempt finds it, too.
        say.line(&format!("the damaged tree cannot be set aside: {}", host(error)));
    }
}

/// Says how the generation of a refused attempt ends.
fn ends_dirty(refusal: &Refusal) -> End {
    let reason = match refusal.code {
        Code::TimedOut => "timed_out",
        _ => "certification_refused",
    };
    End::Dirty {
        reason: reason.to_owned(),
    }
}

/// Are the other attempts on a proposal, oldest first.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Those that ended; one that died without a verdict counts as dirty.
    pub(super) earlier: Vec<Earlier>,
    /// Those that are still at work: of them nobody knows how they end.
    pub(super) open: Vec<Open>,
}

/// Lists the other attempts on a proposal.
pub(super) fn others(engine: &Engine, ask: &Ask, this: &Generation) -> Result<Others, Refusal> {
    let mut others = Others::default();
    // Of every job: under another name it is still another try at the same proposal.
    let volumes = engine.journal.volumes(None).map_err(store)?;
    // After the volumes: an attempt that is seen to have ended has had its verdict.
    let judged = engine.journal.judgements(ask.proposal).map_err(store)?;
    for volume in volumes {
        if volume.role != Role::Cert || volume.generation == *this {
            continue;
        }
        let verdict = match judged.iter().find(|j| j.generation == volume.generation) {
            Some(judgement) => verdict_of(judgement),
            None if !was_on(engine, &volume, &ask.proposal) => continue,
            None if volume::at_work(engine, &volume)? => {
                others.open.push(Open {
                    attempt: volume.attempt,
                    generation: volume.generation,
                });
                continue;
            }
            // It may have had its verdict since the first look: whoever is gone records none any more.
            None => match engine
                .journal
                .judgement(volume.generation.clone())
                .map_err(store)?
            {
                Some(judgement) => verdict_of(&judgement),
                None => EarlierVerdict::Refused(Code::DirtyVolume),
            },
        };
        others.earlier.push(Earlier {
            attempt: volume.attempt,
            generation: volume.generation,
            verdict,
        });
    }
    Ok(others)
}

fn verdict_of(judgement: &Judgement) -> EarlierVerdict {
    let refusal = judgement.refusal.as_ref();
    refusal.map_or(EarlierVerdict::Pass, |refusal| {
        EarlierVerdict::Refused(refusal.code)
    })
}

/// Says whether an attempt was a stage of this run: another one, or one by hand, may have had another recipe, base or
/// confinement. Files that are gone say nothing.
pub(super) fn is_of_run(engine: &Engine, judgement: &Judgement, run: &RunId) -> bool {
    recorded(engine, &judgement.job, &judgement.generation, RUN)
        .is_some_and(|bytes| bytes == run.to_string().as_bytes())
}

fn recorded(engine: &Engine, job: &JobId, generation: &Generation, name: &str) -> Option<Vec<u8>> {
    let disk = engine.volumes.records(job, generation).ok()?;
    semel_host::volume::read_record(&disk, name, 1024).ok()?
}

/// Says whether an attempt was on this proposal: by the journal, which outlives its files. Of one that an earlier
/// version opened the files tell, and say nothing where they are gone.
fn was_on(engine: &Engine, volume: &semel_core::volume::Volume, proposal: &Sha256) -> bool {
    match &volume.proposal {
        Some(asked) => asked == proposal,
        None => recorded(engine, &volume.job, &volume.generation, ASKED)
            .is_some_and(|bytes| bytes == proposal.to_string().as_bytes()),
    }
}
