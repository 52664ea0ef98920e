//! The life of a volume: opened, ended, listed, freed.
//!
//! The store is told first, so that a volume is dirty before its directory stands; the disk follows. It does *not*
//! wait for calls in a volume that ends; the daemon does, before it lets the verb through.

use super::proposal::Proposal;
use super::{Engine, full, ground, host, opening, store};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use semel_core::backend::{self, Backend, Choice};
use semel_core::confinement::Confinement;
use semel_core::digest::Sha256;
use semel_core::ids::{Generation, JobId, Principal};
use semel_core::volume::{Durability, End, NewVolume, Owner, Role, Volume, VolumeState};
use semel_core::{Code, Refusal};
use semel_host::volume::{self as disk, On, OwnerLock, Salvaged, Volume as Disk, claim_owner, owner_alive};
use semel_host::{clock, files};
use std::path::{Path, PathBuf};

/// Says what a new volume holds.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Nothing.
    Empty,
    /// A copy of a directory, without what belongs to git.
    Dir(PathBuf),
    /// The tree of a proposal, where an overlay can lie over it; else nothing, and whoever opens it unpacks it.
    Sealed(Box<Proposal>),
}

/// Says what is asked of a new volume.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The job.
    pub(crate) job: JobId,
    /// What it is for.
    pub(crate) role: Role,
    /// Who keeps it open.
    pub(crate) owner: Owner,
    /// What its calls survive.
    pub(crate) durability: Durability,
    /// How well whoever gets its token is confined, proven before it begins; `None` where that is not ours to say.
    pub(crate) confinement: Option<Confinement>,
    /// What it is to lie on.
    pub(crate) backend: backend::Wanted,
    /// What it holds.
    pub(crate) source: Source,
}

/// Is a volume that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What the journal knows of it.
    pub(crate) volume: Volume,
    /// Its bearer token; nobody keeps it but the caller.
    pub(crate) token: String,
    /// What it lies on, and why.
    pub(crate) choice: Choice,
    /// Its directory.
    pub(crate) disk: Disk,
    /// The ownership, where a process keeps it open: whoever drops it is dead.
    #[expect(dead_code, reason = "it is held, not looked at")]
    pub(crate) owner: Option<OwnerLock>,
}

const PREFIX: &str = "sml1_";
const SECRET_CHARS: usize = 43;
const CHECK_CHARS: usize = 6;

/// Makes a bearer token.
///
/// # Shape
/// `sml1_`, 256 random bits in base64url, and 6 characters of a checksum, so that a scanner of secrets knows it.
///
/// # Errors
/// `io_failed` where the kernel gives no randomness.
pub(crate) fn mint_token() -> Result<String, Refusal> {
    let secret = BASE64_URL_SAFE_NO_PAD.encode(clock::random::<32>().map_err(host)?);
    Ok(format!("{PREFIX}{secret}{}", checksum(&secret)))
}

fn checksum(secret: &str) -> String {
    let digest = Sha256::of(format!("{PREFIX}{secret}").as_bytes());
    let mut text = BASE64_URL_SAFE_NO_PAD.encode(&digest.as_bytes()[..5]);
    text.truncate(CHECK_CHARS);
    text
}

/// Says whether a text has the shape of a bearer token, checksum included.
pub(crate) fn token_shape(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(PREFIX) else {
        return false;
    };
    rest.is_ascii()
        && rest.len() == SECRET_CHARS + CHECK_CHARS
        && checksum(&rest[..SECRET_CHARS]) == rest[SECRET_CHARS..]
}

/// Opens a volume of a new generation.
///
/// # Errors
/// `volume_busy` where the job has an open volume of this role; `precondition_failed`, reason `backend_unavailable`;
/// `durability_unavailable` where the filesystem cannot keep what is asked; `io_failed`, reason `disk_full` with the volumes
/// that hold the room; `store_unavailable`. A volume that could not be made is ended dirty.
pub(crate) fn open(engine: &Engine, wanted: Wanted) -> Result<Opened, Refusal> {
    open_new(engine, wanted).map_err(|refusal| full::named(engine, refusal))
}

fn open_new(engine: &Engine, wanted: Wanted) -> Result<Opened, Refusal> {
    full::enough(engine)?;
    if wanted.durability == Durability::Power {
        // The journal and the files: an operator may have put the volumes on a filesystem of their own.
        files::power_supported(&engine.config.state).map_err(host)?;
        engine.volumes.power_supported().map_err(host)?;
    }
    let (choice, on) = ground::lay(engine, &wanted)?;
    let token = mint_token()?;
    let generation = Generation::mint(clock::seed().map_err(host)?);
    // Before the journal hears of it: whoever looks knows whether somebody still makes it.
    let _opening = opening::take(engine, &generation)?;
    let new = NewVolume {
        principal: Principal::parse(format!("job:{}", wanted.job))?,
        job: wanted.job.clone(),
        role: wanted.role,
        owner: wanted.owner,
        generation,
        token_sha256: Sha256::of(token.as_bytes()),
        durability: wanted.durability,
        confinement: wanted.confinement,
        backend: Some(choice.backend),
        proposal: match &wanted.source {
            Source::Sealed(proposal) => Some(proposal.digest()),
            Source::Empty | Source::Dir(_) => None,
        },
        at: clock::now(),
    };
    let recorded = record(engine, new)?;
    match make(engine, &recorded, &wanted, &on) {
        Ok((volume, disk, owner)) => Ok(Opened {
            volume,
            token,
            choice,
            disk,
            owner,
        }),
        Err(refusal) => {
            let reason = "ended_dirty".to_owned();
            let end = End::Dirty { reason };
            // The first refusal is the one to tell; an end that fails here is made up for by the next recovery.
            drop(
                engine
                    .journal
                    .end_volume(recorded.generation, recorded.fencing_token, end, clock::now()),
            );
            Err(refusal)
        }
    }
}

/// Records a new volume; one of the job whose owner died meanwhile does not stand in its way.
fn record(engine: &Engine, new: NewVolume) -> Result<Volume, Refusal> {
    match engine.journal.open_volume(new.clone()).map_err(store) {
        Err(busy) if busy.code == Code::VolumeBusy && opening::left(engine, &new)? => {
            engine.journal.open_volume(new).map_err(store)
        }
        answer => answer,
    }
}

fn make(
    engine: &Engine,
    recorded: &Volume,
    wanted: &Wanted,
    on: &On,
) -> Result<(Volume, Disk, Option<OwnerLock>), Refusal> {
    let nonce = clock::random::<16>().map_err(host)?;
    let (disk, identity) = engine
        .volumes
        .create_on(&recorded.job, &recorded.generation, nonce, on)
        .map_err(host)?;
    // What an overlay lies over holds it already.
    if let (Source::Dir(from), false) = (&wanted.source, disk.backend() == Backend::Overlay) {
        semel_host::copy::copy_tree(from, disk.tree().handle()).map_err(host)?;
        if wanted.durability != Durability::Process {
            semel_host::copy::sync(disk.staging()).map_err(host)?;
        }
    }
    // Owned before it is ready: recovery never meets a volume that is open and seems to have no owner.
    let owner = match wanted.owner {
        Owner::Process => Some(claim_owner(&disk).map_err(host)?),
        Owner::Operator => None,
    };
    let volume = engine
        .journal
        .volume_ready(
            recorded.generation.clone(),
            recorded.fencing_token,
            identity,
            clock::now(),
        )
        .map_err(store)?;
    Ok((volume, disk, owner))
}

/// Finds a volume.
///
/// # Errors
/// `not_found`.
pub(crate) fn find(engine: &Engine, generation: &Generation) -> Result<Volume, Refusal> {
    engine
        .journal
        .volume(generation.clone())
        .map_err(store)?
        .ok_or_else(|| Refusal::new(Code::NotFound, "there is no such generation").name(generation.as_str()))
}

/// Lists volumes, oldest first.
///
/// # Errors
/// `store_unavailable`.
pub(crate) fn list(engine: &Engine, job: Option<JobId>) -> Result<Vec<Volume>, Refusal> {
    engine.journal.volumes(job).map_err(store)
}

/// Ends an attempt: its token is a tombstone from here on.
///
/// The caller proves that the attempt's process tree is gone before it asks for a clean end.
///
/// # Errors
/// `not_found`; `replay_conflict`, reason `stale_generation`, where it ended otherwise; `outcome_unknown` for a clean
/// end while a call runs or is unknown, and, reason `mark_kept`, where it ended clean and its disk still says dirty.
///
/// # Durability
/// The end is recorded before the mark on the disk goes: what lies between is dirty.
pub(crate) fn end(engine: &Engine, generation: &Generation, end: End) -> Result<Volume, Refusal> {
    let known = find(engine, generation)?;
    let ended = engine
        .journal
        .end_volume(generation.clone(), known.fencing_token, end.clone(), clock::now())
        .map_err(store)?;
    marked(engine, &ended, &end)?;
    Ok(ended)
}

/// The reason of a volume that ended clean, and whose disk does not say so.
pub(in crate::engine) const MARK_KEPT: &str = "mark_kept";

/// Makes the disk say what the journal says already. A dirty volume bears its mark since it was made: what more cannot
/// be written there changes nothing.
///
/// # Errors
/// `outcome_unknown`, reason `mark_kept`: the end stands, and the mark is taken away by asking for it once more.
pub(in crate::engine) fn marked(engine: &Engine, ended: &Volume, end: &End) -> Result<(), Refusal> {
    match (mark(engine, ended, end), end) {
        (Ok(()), _) | (Err(_), End::Dirty { .. }) => Ok(()),
        (Err(failed), End::Clean) => {
            let why = format!(
                "the volume ended clean, but its disk still says dirty ({failed}); end it once more when that is mended"
            );
            Err(Refusal::new(Code::OutcomeUnknown, why)
                .reason(MARK_KEPT)
                .name(ended.generation.as_str()))
        }
    }
}

/// Makes the disk say what the journal says of an ended volume; a volume without a directory needs no mark.
pub(in crate::engine) fn mark(engine: &Engine, ended: &Volume, end: &End) -> Result<(), Refusal> {
    let disk = match engine.volumes.records(&ended.job, &ended.generation) {
        Ok(disk) => disk,
        Err(error) if error.code() == Code::UnknownState => return Ok(()),
        Err(error) => return Err(host(error)),
    };
    match end {
        End::Clean => disk.mark_clean().map_err(host),
        End::Dirty { reason } => disk.quarantine(reason).map_err(host),
    }
}

/// Ends a volume for a person, who may not end under a living process. How one ends that a process kept is not theirs to
/// say: it ends as that of a dead owner, and one that has ended is told as it is.
///
/// # Errors
/// As [`end`]; `volume_busy` while a process owns it; `precondition_failed`, reason `ended_otherwise`, where it has ended, and
/// not as the person says.
pub(crate) fn end_by_hand(engine: &Engine, generation: &Generation, how: End) -> Result<Volume, Refusal> {
    let known = find(engine, generation)?;
    nobody_owns(engine, &known)?;
    end(engine, generation, end_of_hand(engine, &known, how)?).map_err(|refusal| {
        match refusal.reason.as_deref() {
            Some("process_tree_unproved") => Refusal {
                why: format!("{}; it stays open until semel volume end --dirty", refusal.why),
                ..refusal
            },
            // A person has no token, and sent no call.
            Some("stale_generation") => {
                let how = known.dirty.as_deref().unwrap_or("clean");
                let why = format!("the volume has ended already, and otherwise than is asked ({how})");
                Refusal::new(Code::PreconditionFailed, why)
                    .reason("ended_otherwise")
                    .name(generation.as_str())
            }
            _ => refusal,
        }
    })
}

/// Gives the end of a volume that a person asks the end of.
///
/// # Errors
/// `store_unavailable`.
pub(crate) fn end_of_hand(engine: &Engine, known: &Volume, how: End) -> Result<End, Refusal> {
    match (known.state, known.owner, &known.dirty) {
        (VolumeState::Opening, _, _) | (VolumeState::Open, Owner::Process, _) => end_of_dead(engine, known),
        (VolumeState::Open, Owner::Operator, _) => Ok(how),
        // Asked once more, for its mark on the disk.
        (VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed, Owner::Process, dirty) => {
            Ok(dirty.clone().map_or(End::Clean, |reason| End::Dirty { reason }))
        }
        (VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed, Owner::Operator, _) => {
            Ok(how)
        }
    }
}

/// Refuses while somebody makes a volume, or a living process owns it.
///
/// # Errors
/// `volume_busy`; `unknown_state`, `io_failed`.
pub(crate) fn nobody_owns(engine: &Engine, known: &Volume) -> Result<(), Refusal> {
    match (known.state, known.owner) {
        (VolumeState::Opening, _) | (VolumeState::Open, Owner::Process) => {}
        (VolumeState::Open, Owner::Operator)
        | (VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed, _) => return Ok(()),
    }
    match at_work(engine, known)? {
        true => Err(busy(known)),
        false => Ok(()),
    }
}

/// Tells of a volume that is open and that somebody works in, or that a person has to end.
fn busy(known: &Volume) -> Refusal {
    let refusal = |why: &str| Refusal::new(Code::VolumeBusy, why).name(known.generation.as_str());
    match (known.state, known.owner) {
        (VolumeState::Opening, _) => refusal("the volume is still being opened").reason("being_opened"),
        (VolumeState::Open, Owner::Process) => {
            let why = format!(
                "a living process owns the volume; semel cancel {} ends it",
                known.job
            );
            refusal(&why).reason("living_owner")
        }
        (VolumeState::Open | VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed, _) => {
            refusal("the volume is still open; end it first")
        }
    }
}

/// Says how a volume ends whose owner died: dirty, but for an attempt whose pass the journal has, since that is all it had
/// left to do.
///
/// # Errors
/// `store_unavailable`.
pub(crate) fn end_of_dead(engine: &Engine, volume: &Volume) -> Result<End, Refusal> {
    let judged = match volume.role {
        Role::Cert => engine
            .journal
            .judgement(volume.generation.clone())
            .map_err(store)?,
        Role::Draft => None,
    };
    Ok(match judged {
        Some(judgement) if judgement.refusal.is_none() => End::Clean,
        Some(_) | None => End::Dirty {
            reason: "owner_died".to_owned(),
        },
    })
}

/// Says whether somebody still makes a volume that was seen open, or a living process owns it.
///
/// # Errors
/// `unknown_state`, `io_failed`.
pub(crate) fn at_work(engine: &Engine, known: &Volume) -> Result<bool, Refusal> {
    if !matches!(known.state, VolumeState::Opening | VolumeState::Open) {
        return Ok(false);
    }
    // In this order: whoever makes it owns it before it lets go.
    if opening::is_held(engine, &known.generation)? {
        return Ok(true);
    }
    match engine.volumes.records(&known.job, &known.generation) {
        Ok(disk) => owner_alive(&disk).map_err(host),
        // It never had a directory, or has lost it: nobody works there.
        Err(error) if matches!(error.code(), Code::UnknownState | Code::NotFound) => Ok(false),
        Err(error) => Err(host(error)),
    }
}

/// Ends a volume whose owner died, since nobody else can; gives any other as it is.
///
/// # Errors
/// `volume_busy` while it is open and somebody owns it; those of ending, and of [`heal`](super::certify::heal).
fn buried(engine: &Engine, known: Volume) -> Result<Volume, Refusal> {
    let dead = match (known.state, known.owner) {
        (VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed, _) => return Ok(known),
        (VolumeState::Open, Owner::Operator) => false,
        (VolumeState::Opening, _) | (VolumeState::Open, Owner::Process) => !at_work(engine, &known)?,
    };
    if !dead {
        return Err(busy(&known));
    }
    let end = end_of_dead(engine, &known)?;
    let passed = end == End::Clean;
    let ended = self::end(engine, &known.generation, end)?;
    if passed {
        // Its verdict was recorded, and its certificate may not be written yet: it is made from what the volume keeps.
        super::certify::heal(engine, &ended.generation)?;
    }
    Ok(ended)
}

/// Frees the files of an ended volume, or of one whose owner died; the record of it stays.
///
/// # Errors
/// `volume_busy` while it is open and somebody owns it; `not_found`; `io_failed`; `outcome_unknown`, reason
/// `partly_removed`, where removing broke off. What could not be removed is named in the answer.
pub(crate) fn destroy(engine: &Engine, generation: &Generation) -> Result<(Volume, Vec<String>), Refusal> {
    let known = buried(engine, find(engine, generation)?)?;
    match engine.volumes.put_aside(&known.job, generation) {
        Ok(_) => {}
        // It was put aside before, by a destruction that was cut off, or never had a directory.
        Err(error) if error.code() == Code::NotFound => {}
        Err(error) => return Err(host(error)),
    }
    let reaped = engine
        .volumes
        .reap(&semel_host::volume::Aside {
            job: known.job.clone(),
            generation: generation.clone(),
        })
        .map_err(|error| partly(host(error).to_string()).name(generation.as_str()))?;
    let kept: Vec<String> = reaped.kept.iter().map(|kept| kept.path.to_string()).collect();
    if !kept.is_empty() {
        return Ok((known, kept));
    }
    let destroyed = engine
        .journal
        .volume_destroyed(generation.clone(), clock::now())
        .map_err(store)?;
    Ok((destroyed, kept))
}

/// Puts a volume aside for one that follows it; the daemon frees it when nobody waits any more.
///
/// Its token is over and its processes have ended before it loses its name. One that is open ends dirty, reason `recycled`.
///
/// # Errors
/// `not_found`; `bad_input` for a volume of another job; `volume_busy` while a process owns it; those of ending.
pub(crate) fn recycle(engine: &Engine, job: &JobId, generation: &Generation) -> Result<Volume, Refusal> {
    let mut known = find(engine, generation)?;
    if known.job != *job {
        let why = format!("the volume is of the job {}", known.job);
        return Err(Refusal::new(Code::BadInput, why).name(generation.as_str()));
    }
    if known.state == VolumeState::Open {
        nobody_owns(engine, &known)?;
        let reason = "recycled".to_owned();
        known = end(engine, generation, End::Dirty { reason })?;
    }
    match known.state {
        VolumeState::Open | VolumeState::Opening => {
            let why = "the volume is still being opened";
            return Err(Refusal::new(Code::VolumeBusy, why)
                .reason("being_opened")
                .name(generation.as_str()));
        }
        VolumeState::Destroyed => {
            let why = "the files of the volume are gone";
            return Err(Refusal::new(Code::NotFound, why).name(generation.as_str()));
        }
        VolumeState::Clean | VolumeState::Quarantined => {}
    }
    // A certificate whose envelope was recorded but not written is made from what the volume keeps.
    if known.role == Role::Cert
        && engine
            .journal
            .judgement(generation.clone())
            .map_err(store)?
            .is_some()
    {
        super::certify::heal(engine, generation)?;
    }
    match engine.volumes.put_aside(&known.job, generation) {
        Ok(_) => Ok(known),
        // It was put aside before, by somebody who was cut off.
        Err(error) if error.code() == Code::NotFound => Ok(known),
        Err(error) => Err(host(error)),
    }
}

/// Copies what an ended volume holds into a new directory of a person.
///
/// # Errors
/// `volume_busy` while it is open; `not_found` where its files are gone; those of [`disk::salvage`].
pub(crate) fn salvage(
    engine: &Engine,
    generation: &Generation,
    to: &Path,
) -> Result<(Volume, Salvaged), Refusal> {
    let known = find(engine, generation)?;
    match known.state {
        VolumeState::Open | VolumeState::Opening if at_work(engine, &known)? => return Err(busy(&known)),
        VolumeState::Open | VolumeState::Opening => {
            let why = "the volume is still open; end it first";
            return Err(Refusal::new(Code::VolumeBusy, why).name(generation.as_str()));
        }
        VolumeState::Destroyed => {
            let why = "the files of the volume are gone";
            return Err(Refusal::new(Code::NotFound, why).name(generation.as_str()));
        }
        VolumeState::Clean | VolumeState::Quarantined => {}
    }
    let disk = engine.volumes.look(&known.job, generation).map_err(host)?;
    let salvaged = disk::salvage(&disk, to).map_err(host)?;
    Ok((known, salvaged))
}

/// Refuses what removed a part of a volume, and may be asked for again.
pub(crate) fn partly(why: impl std::fmt::Display) -> Refusal {
    let why = format!(
        "a part of the volume is removed, and not all ({why}); destroy it once more when that is mended"
    );
    Refusal::new(Code::OutcomeUnknown, why).reason("partly_removed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_shape() {
        let token = mint_token().unwrap();
        assert_eq!(token.len(), PREFIX.len() + SECRET_CHARS + CHECK_CHARS);
        assert!(token_shape(&token));
        let mut other = token.clone();
        other.replace_range(10..11, if &token[10..11] == "A" { "B" } else { "A" });
        assert!(!token_shape(&other) && !token_shape(&token[1..]) && !token_shape("sml1_"));
    }
}
