//! Things to record: valid, small, and never the same twice in one process.

use crate::conformance::done;
use crate::journal::Journal;
use semel_core::approval::{Decision, Plan, Question, Ruling};
use semel_core::call::{Event, Facts, FingerprintVersion, Intent, Note, Outcome, Receipt, Scope, Source};
use semel_core::digest::{Fingerprint, Sha256};
use semel_core::effect::{Content, Effect};
use semel_core::git_tree::ObjectId;
use semel_core::ids::{
    ApprovalId, ExecutionId, FileId, Generation, IdempotencyKey, JobId, Principal, RunId, Seed, UnixMs,
    VolumeIdentity,
};
use semel_core::path::RelPath;
use semel_core::pin::PinId;
use semel_core::pipeline::NewRun;
use semel_core::prepared::NewPreparation;
use semel_core::record::{Consumption, Judgement};
use semel_core::volume::{Durability, NewVolume, Owner, Role, Volume};
use semel_core::{Code, Refusal};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Makes a seed that no other call in this process gets, nor one in another process of the machine at this time.
#[must_use]
pub fn seed() -> Seed {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut random = [0x5e; 10];
    random[3..6].copy_from_slice(&std::process::id().to_be_bytes()[1..]);
    random[6..].copy_from_slice(&n.to_be_bytes()[4..]);
    Seed {
        unix_ms: 1_790_000_000_000 + n,
        random,
    }
}

/// Is a time at which nothing in particular happens.
pub const NOW: UnixMs = UnixMs(1_790_000_000_000);

fn must<T>(parsed: Result<T, Refusal>) -> Result<T, String> {
    parsed.map_err(|e| e.to_string())
}

/// Makes a job id.
///
/// # Errors
/// Where the text is none.
pub fn job(text: &str) -> Result<JobId, String> {
    must(JobId::parse(text))
}

/// Makes a key.
///
/// # Errors
/// Where the text is none.
pub fn key(text: &str) -> Result<IdempotencyKey, String> {
    must(IdempotencyKey::parse(text))
}

/// Asks for a volume.
///
/// # Errors
/// Where the job is none.
pub fn new_volume(of: &str, role: Role, durability: Durability) -> Result<NewVolume, String> {
    let generation = Generation::mint(seed());
    Ok(NewVolume {
        job: job(of)?,
        role,
        owner: Owner::Process,
        token_sha256: Sha256::of(generation.as_str().as_bytes()),
        generation,
        principal: must(Principal::parse(format!("agent:{of}")))?,
        durability,
        confinement: None,
        backend: None,
        proposal: None,
        at: NOW,
    })
}

/// Makes what a disk says of a volume.
///
/// # Errors
/// Never for what this module makes.
pub fn identity(of: &Generation) -> Result<VolumeIdentity, String> {
    Ok(VolumeIdentity {
        nonce: Sha256::of(of.as_str().as_bytes()).to_string(),
        handle: must(FileId::parse("ext4:81:0a0b0c"))?,
        fsid: "ef53:1".to_owned(),
        boot_id: "4e2f".to_owned(),
    })
}

/// Opens a draft of durability `process`, with its directory.
///
/// # Errors
/// Where the journal refuses it.
pub fn draft(journal: &dyn Journal, of: &str) -> Result<Volume, String> {
    open(journal, new_volume(of, Role::Draft, Durability::Process)?)
}

/// Opens a volume, with its directory.
///
/// # Errors
/// Where the journal refuses it.
pub fn open(journal: &dyn Journal, new: NewVolume) -> Result<Volume, String> {
    let volume = done("open_volume", journal.open_volume(new))?;
    let (generation, fence) = (volume.generation.clone(), volume.fencing_token);
    let identity = identity(&generation)?;
    done(
        "volume_ready",
        journal.volume_ready(generation, fence, identity, NOW),
    )
}

/// Makes the intent to write `path` in a volume.
///
/// # Errors
/// Where key or path are none.
pub fn intent(volume: &Volume, under: &str, path: &str) -> Result<Intent, String> {
    let path = must(RelPath::parse(path.as_bytes()))?;
    let execution_id = ExecutionId::mint(seed());
    Ok(Intent {
        scope: Scope {
            principal: volume.principal.clone(),
            job: volume.job.clone(),
            generation: Some(volume.generation.clone()),
        },
        key: key(under)?,
        fingerprint: Fingerprint::of_canonical(path.as_bytes()),
        fingerprint_version: FingerprintVersion(2),
        tool: "write_file".to_owned(),
        path: path.clone(),
        attempt: volume.attempt,
        generation: volume.generation.clone(),
        fencing_token: volume.fencing_token,
        durability: volume.durability,
        effects: vec![Effect::Install {
            at: path,
            staged: must(FileId::parse("ext4:82:0d0e0f"))?,
            content: Content::File {
                sha256: Sha256::of(execution_id.as_str().as_bytes()),
                size_bytes: 36,
            },
            before: None,
        }],
        execution_id,
        facts: Facts::default(),
        source: Source {
            door: "http".to_owned(),
            user_agent: Some("conformance".to_owned()),
            ..Source::default()
        },
        at: NOW,
    })
}

/// Makes the receipt of a call whose effect happened.
#[must_use]
pub fn receipt(intent: &Intent) -> Receipt {
    Receipt {
        at: UnixMs(NOW.0 + 1),
        outcome: Outcome::Done(intent.done()),
        recovered: None,
        resolved: None,
        possible_duplicate_of: None,
        took_us: Some(23),
        waited_us: Some(5),
    }
}

/// Makes another receipt for the same call.
#[must_use]
pub fn other_receipt(intent: &Intent) -> Receipt {
    let mut done = intent.done();
    for changed in &mut done.changed {
        changed.size_bytes = Some(37);
    }
    Receipt {
        outcome: Outcome::Done(done),
        ..receipt(intent)
    }
}

/// Makes the note of a conflict with a call.
#[must_use]
pub fn conflict(with: &Intent) -> Note {
    Note {
        event: Event::Refused {
            code: Code::ReplayConflict,
            reason: Some("body_mismatch".to_owned()),
        },
        tool: with.tool.clone(),
        path: Some(with.path.clone()),
        job: Some(with.scope.job.clone()),
        attempt: Some(with.attempt),
        generation: Some(with.generation.clone()),
        key: Some(with.key.clone()),
        fingerprint: Some(Fingerprint::of_canonical(b"another")),
        execution_id: Some(with.execution_id.clone()),
        source: with.source.clone(),
        took_us: 17,
        waited_us: None,
        at: NOW,
    }
}

/// Makes a run.
///
/// # Errors
/// Where the job is none.
pub fn run(of: &str) -> Result<NewRun, String> {
    Ok(NewRun {
        run: RunId::mint(seed()),
        job: job(of)?,
        job_sha256: Sha256::of(of.as_bytes()),
        base: "c0ffee".repeat(6),
        at: NOW,
    })
}

/// Makes a verdict that passes.
#[must_use]
pub fn judgement(volume: &Volume) -> Judgement {
    Judgement {
        job: volume.job.clone(),
        attempt: volume.attempt,
        generation: volume.generation.clone(),
        proposal: Sha256::of(volume.job.as_str().as_bytes()),
        tree: "7ree".to_owned(),
        refusal: None,
        certificate: Sha256::of(volume.generation.as_str().as_bytes()),
        at: NOW,
    }
}

/// Makes the use of a certificate.
#[must_use]
pub fn consumption(judgement: &Judgement) -> Consumption {
    Consumption {
        generation: judgement.generation.clone(),
        certificate: judgement.certificate,
        repository: "https://git.example/app".to_owned(),
        target: "refs/heads/main".to_owned(),
        tree: judgement.tree.clone(),
        at: NOW,
    }
}

/// Makes a tree that a job prepared in a worktree.
///
/// # Errors
/// Where the job is none.
pub fn preparation(job: &str, pin: u8, tree: u8) -> Result<NewPreparation, String> {
    let shown = |refusal: Refusal| refusal.to_string();
    Ok(NewPreparation {
        job: self::job(job)?,
        pin: PinId::parse(format!("{pin:020x}")).map_err(shown)?,
        tree: ObjectId::parse(&format!("{tree:040x}")).map_err(shown)?,
        at: NOW,
    })
}

/// Makes a question about a call that would write `path`; it stands for a minute, and so does its answer.
///
/// # Errors
/// Where key or path are none.
pub fn question(volume: &Volume, under: Option<&str>, path: &str) -> Result<Question, String> {
    let intent = intent(volume, under.unwrap_or("unused"), path)?;
    Ok(Question {
        approval_id: ApprovalId::mint(seed()),
        key: under.map(key).transpose()?,
        plan: Plan {
            changed: intent.done().changed,
            ..Plan::default()
        },
        scope: intent.scope,
        fingerprint: intent.fingerprint,
        fingerprint_version: intent.fingerprint_version,
        tool: intent.tool,
        path: intent.path,
        attempt: intent.attempt,
        generation: intent.generation,
        fencing_token: intent.fencing_token,
        role: volume.role,
        rule: 1,
        reason: Some("keys".to_owned()),
        policy_sha256: Sha256::of(b"policy"),
        source: intent.source,
        at: NOW,
        expires_at: UnixMs(NOW.0 + 60_000),
        lasts_ms: 60_000,
    })
}

/// Makes a person's answer, some milliseconds after [`NOW`].
#[must_use]
pub fn ruling(decision: Decision, by: &str, after_ms: u64) -> Ruling {
    Ruling {
        decision,
        by: by.to_owned(),
        note: String::new(),
        at: UnixMs(NOW.0 + after_ms),
    }
}
