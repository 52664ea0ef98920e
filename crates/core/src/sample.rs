//! Small things for the tests of the machines, and every kind of record made from numbers.

use crate::approval::{Decision as Verdict, Plan, Question, Ruling};
use crate::call::{
    Aborting, CallState, Done, Event, Facts, FingerprintVersion, Intent, Note, Outcome, Receipt, Recovered,
    Resolved, Scope, Source,
};
use crate::code::{Code, Refusal};
use crate::command::{Asker, Ended, Kept, Ran, TreeEnded};
use crate::confinement::Level;
use crate::digest::{Fingerprint, Sha256};
use crate::effect::{Before, Content, Effect, Slot};
use crate::git_tree::ObjectId;
use crate::ids::{
    ApprovalId, AttemptId, ExecutionId, FencingToken, FileId, Generation, IdempotencyKey, Incarnation, JobId,
    Principal, RunId, Seed, UnixMs, VolumeIdentity,
};
use crate::path::RelPath;
use crate::pin::PinId;
use crate::pipeline::{NewRun, RunEnd, Stage};
use crate::policy::{Holds, Tree};
use crate::prepared::Preparation;
use crate::record::{Consumption, Judgement, Record, Restoration, Sealing};
use crate::retry::{Counts, Ending, Retrial};
use crate::volume::{Durability, End, NewToken, NewVolume, Role, Tools};
use proptest::prelude::*;

fn seed(n: u8) -> Seed {
    Seed {
        unix_ms: 1_790_000_000_000,
        random: [n; 10],
    }
}

pub(crate) fn generation(n: u8) -> Generation {
    Generation::mint(seed(n))
}

pub(crate) fn execution(n: u8) -> ExecutionId {
    ExecutionId::mint(seed(n))
}

pub(crate) fn run(n: u8) -> RunId {
    RunId::mint(seed(n))
}

pub(crate) fn file(n: u8) -> FileId {
    FileId::parse(format!("ext4:81:{n:02x}")).unwrap()
}

pub(crate) fn key(n: u8) -> IdempotencyKey {
    IdempotencyKey::parse(format!("key-{n}")).unwrap()
}

pub(crate) fn path(n: u8) -> RelPath {
    // Bytes that are no text, so that nothing gets away with strings.
    RelPath::parse(&[b'd', b'/', b'f', n | 0x80]).unwrap()
}

pub(crate) fn before(n: u8) -> Before {
    Before {
        id: file(n),
        sha256: (!n.is_multiple_of(3)).then(|| Sha256::of(&[n])),
        stated: n.is_multiple_of(7).then(|| Sha256::of(&[n])),
        other_names: n.is_multiple_of(5).then_some(2),
    }
}

/// Makes an effect of each kind.
pub(crate) fn effect(n: u8) -> Effect {
    let at = path(n);
    match n % 6 {
        0 | 2 => Effect::Install {
            at,
            staged: file(n),
            content: Content::File {
                sha256: Sha256::of(&[n]),
                size_bytes: u64::MAX - u64::from(n),
            },
            before: n.is_multiple_of(4).then(|| before(n)),
        },
        1 => Effect::Remove {
            at,
            before: before(n),
        },
        3 => Effect::Install {
            at,
            staged: file(n),
            content: Content::Directory {
                made: vec![path(n), path(n)],
            },
            before: None,
        },
        4 => match n / 6 % 4 {
            0 => Effect::RemoveEmpty { at, id: file(n) },
            1 => Effect::Restore {
                at,
                kept: Slot::of(&execution(n), usize::from(n)),
                what: before(n),
            },
            2 => Effect::Run { cwd: at },
            _ => Effect::SetMode {
                at,
                id: file(n),
                before: 0o644,
                after: 0o755,
            },
        },
        _ => Effect::Move {
            from: at,
            to: path(n ^ 1),
            what: before(n),
        },
    }
}

pub(crate) fn intent(key_: u8, execution_: u8, body: u8) -> Intent {
    Intent {
        execution_id: execution(execution_),
        scope: Scope {
            principal: Principal::parse("agent:1").unwrap(),
            job: JobId::parse("job").unwrap(),
            generation: key_.is_multiple_of(2).then(|| generation(1)),
        },
        key: key(key_),
        fingerprint: Fingerprint::of_canonical(&[body]),
        fingerprint_version: FingerprintVersion(2),
        tool: format!("tool-{}", body % 2),
        path: path(body % 3),
        attempt: AttemptId(1),
        generation: generation(1),
        fencing_token: FencingToken(1),
        durability: Durability::Process,
        effects: (0..body % 3 + 1).map(|n| effect(body.wrapping_add(n))).collect(),
        facts: Facts {
            replacements: body.is_multiple_of(5).then_some(2),
            notes: vec![],
        },
        source: Source {
            door: "http".to_owned(),
            user_agent: body.is_multiple_of(2).then(|| "a \"b\" \u{fffd}".to_owned()),
            traceparent: None,
            peer: body.is_multiple_of(3).then(|| "tcp:127.0.0.1:40112".to_owned()),
            mcp_era: None,
        },
        at: UnixMs(u64::from(body)),
    }
}

pub(crate) fn receipt(n: u8) -> Receipt {
    Receipt {
        at: UnixMs(u64::from(n)),
        outcome: if n.is_multiple_of(3) {
            Outcome::Refused { refusal: refusal(n) }
        } else {
            Outcome::Done(Done {
                changed: vec![effect(n).changed()],
                command: n.is_multiple_of(4).then(|| Box::new(ran(n))),
                forwarded: None,
            })
        },
        recovered: n.is_multiple_of(2).then(|| Recovered {
            evidence: "seen".to_owned(),
        }),
        resolved: None,
        possible_duplicate_of: n.is_multiple_of(7).then(|| execution(n)),
        took_us: n.is_multiple_of(3).then_some(u64::from(n)),
        waited_us: n.is_multiple_of(3).then_some(0),
    }
}

fn ran(n: u8) -> Ran {
    let kept = |of: &[u8]| Kept {
        total_bytes: u64::from(n),
        kept_bytes: u64::from(n / 2),
        sha256: Sha256::of(of),
    };
    Ran {
        ended: match n / 4 % 4 {
            0 => Ended::TimedOut,
            1 => Ended::Exited { code: -i32::from(n) },
            2 => Ended::Signalled { signal: i32::from(n) },
            _ => Ended::Asked { by: Asker::Request },
        },
        tree_ended: TreeEnded::Proved,
        level: Level::lacking(vec!["own /proc".to_owned()]),
        took_ms: u64::from(n),
        stdout: kept(b"out"),
        stderr: kept(b"err"),
    }
}

pub(crate) fn resolved() -> Resolved {
    Resolved {
        by: "operator".to_owned(),
        note: "looked at the disk".to_owned(),
    }
}

fn refusal(n: u8) -> Refusal {
    let code = [Code::NotFound, Code::TestsFailed, Code::ReplayConflict][usize::from(n % 3)];
    let refusal = Refusal::new(code, "why");
    if n.is_multiple_of(2) {
        refusal
    } else {
        refusal.reason("finer").name("a").name("b")
    }
}

pub(crate) fn new_volume(role: Role) -> NewVolume {
    NewVolume {
        job: JobId::parse("job").unwrap(),
        role,
        owner: crate::volume::Owner::Process,
        generation: generation(1),
        principal: Principal::parse("agent:1").unwrap(),
        token_sha256: Sha256::of(b"token"),
        durability: Durability::PowerBestEffort,
        confinement: None,
        backend: None,
        proposal: None,
        at: UnixMs(1),
    }
}

pub(crate) fn identity(n: u8) -> VolumeIdentity {
    VolumeIdentity {
        nonce: format!("{n:032x}"),
        handle: file(n),
        fsid: "ef53".to_owned(),
        boot_id: "boot".to_owned(),
    }
}

pub(crate) fn stage(kind: u8, n: u8) -> Stage {
    match kind {
        0 => Stage::Drafted {
            generation: generation(n),
        },
        1 => Stage::AgentEnded {
            generation: generation(n),
        },
        2 => Stage::Sealed {
            proposal: Sha256::of(&[n]),
            tree: format!("{n:040x}"),
        },
        3 => Stage::Certified {
            generation: generation(n),
            certificate: Sha256::of(&[n]),
        },
        _ => Stage::Delivered {
            output: "nothing".to_owned(),
        },
    }
}

pub(crate) fn new_run(n: u8) -> NewRun {
    NewRun {
        run: run(n),
        job: JobId::parse("job").unwrap(),
        job_sha256: Sha256::of(&[n]),
        base: format!("{n:040x}"),
        at: UnixMs(u64::from(n)),
    }
}

fn note(n: u8) -> Note {
    let event = match n % 4 {
        0 => Event::Replayed,
        1 => Event::Read,
        2 => Event::Suppressed {
            code: refusal(n).code,
            count: u64::from(n),
        },
        _ => Event::Refused {
            code: refusal(n).code,
            reason: refusal(n).reason,
        },
    };
    let known = n.is_multiple_of(2);
    Note {
        event,
        tool: "write_file".to_owned(),
        path: known.then(|| path(n)),
        job: known.then(|| JobId::parse("job").unwrap()),
        attempt: known.then_some(AttemptId(3)),
        generation: known.then(|| generation(n)),
        key: known.then(|| key(n)),
        fingerprint: known.then(|| Fingerprint::of_canonical(&[n])),
        execution_id: known.then(|| execution(n)),
        source: Source::default(),
        took_us: u64::MAX,
        waited_us: known.then_some(1),
        at: UnixMs(u64::from(n)),
    }
}

/// How many kinds of records there are.
pub(crate) const KINDS: u8 = 26;

/// Makes a record of each kind.
pub(crate) fn record(kind: u8, n: u8) -> Record {
    let at = UnixMs(u64::from(n));
    let why = "why".to_owned();
    match kind % KINDS {
        0 => Record::DaemonStarted {
            incarnation: Incarnation(u64::from(n)),
            boot_id: "boot".to_owned(),
            version: "0.1.0".to_owned(),
            policy_sha256: None,
            at,
        },
        1 => Record::VolumeOpened {
            new: new_volume(if n.is_multiple_of(2) {
                Role::Draft
            } else {
                Role::Cert
            }),
            attempt: AttemptId(u32::MAX),
            fencing_token: FencingToken(u64::MAX),
        },
        2 => Record::VolumeReady {
            generation: generation(n),
            identity: identity(n),
            at,
        },
        3 => Record::VolumeEnded {
            generation: generation(n),
            end: if n.is_multiple_of(2) {
                End::Clean
            } else {
                End::Dirty { reason: why }
            },
            at,
        },
        4 => Record::VolumeDestroyed {
            generation: generation(n),
            at,
        },
        5 => Record::CallIntended(Box::new(intent(n, n, n))),
        6 => Record::CallReceipted {
            execution_id: execution(n),
            receipt: receipt(n),
        },
        7 => Record::CallFreed {
            execution_id: execution(n),
            why,
            resolved: n.is_multiple_of(2).then(resolved),
            at,
        },
        8 => Record::CallUnknown {
            execution_id: execution(n),
            why,
            at,
        },
        9 => Record::CallAborting {
            execution_id: execution(n),
            aborting: Aborting {
                refusal: n.is_multiple_of(2).then(|| refusal(n)),
                why,
                begun: usize::from(n),
            },
            at,
        },
        _ => later_record(kind % KINDS, n),
    }
}

fn new_token(n: u8) -> NewToken {
    NewToken {
        generation: generation(n),
        parent_sha256: Sha256::of(b"parent"),
        token_sha256: Sha256::of(&[n]),
        principal: Principal::parse("agent:1/reader").unwrap(),
        tools: if n.is_multiple_of(2) {
            Tools::All
        } else {
            Tools::Only(["read_file".to_owned()].into())
        },
        at: UnixMs(u64::from(n)),
    }
}

fn decided(n: u8) -> Record {
    let decision = if n.is_multiple_of(2) {
        Verdict::Approve
    } else {
        Verdict::Deny
    };
    Record::ApprovalDecided {
        approval_id: approval(n),
        ruling: ruling(n, decision),
    }
}

fn later_record(kind: u8, n: u8) -> Record {
    let at = UnixMs(u64::from(n));
    match kind {
        10 => Record::CallNoted(Box::new(note(n))),
        11 => Record::RunStarted(Box::new(new_run(n))),
        12 => Record::RunStaged {
            run: run(n),
            stage: stage(n % 5, n),
            at,
        },
        13 => Record::RunEnded {
            run: run(n),
            end: match n % 3 {
                0 => RunEnd::Certified,
                1 => RunEnd::Cancelled,
                _ => RunEnd::Refused { refusal: refusal(n) },
            },
            at,
        },
        14 => Record::AttemptJudged(Box::new(Judgement {
            job: JobId::parse("job").unwrap(),
            attempt: AttemptId(2),
            generation: generation(n),
            proposal: Sha256::of(&[n]),
            tree: format!("{n:040x}"),
            refusal: n.is_multiple_of(2).then(|| refusal(n)),
            certificate: Sha256::of(&[n]),
            at,
        })),
        15 => Record::CertificateConsumed(Consumption {
            generation: generation(n),
            certificate: Sha256::of(&[n]),
            repository: "r".to_owned(),
            target: "t".to_owned(),
            tree: "7".to_owned(),
            at,
        }),
        16 => Record::DraftSealed(Box::new(Sealing {
            job: JobId::parse("job").unwrap(),
            attempt: AttemptId(2),
            generation: generation(n),
            proposal: Sha256::of(&[n]),
            tree: format!("{n:040x}"),
            entries: 3,
            at,
        })),
        18 => Record::TokenIssued(Box::new(new_token(n))),
        17 => Record::VolumeLifted {
            generation: generation(n),
            at,
        },
        20 => Record::ApprovalAsked(Box::new(question(n))),
        21 => decided(n),
        22 | 23 => past_retention(kind, n),
        24 => Record::CommandRetried(retrial(n)),
        25 => Record::TreePrepared(preparation(n)),
        _ => Record::WorktreeRestored(Restoration {
            job: None,
            tree: "7".to_owned(),
            code: n.is_multiple_of(2).then_some(Code::LockTimeout),
            collisions: 1,
            adoptions: 2,
            waited_ms: u64::MAX,
            git: None,
            at,
        }),
    }
}

fn retrial(n: u8) -> Retrial {
    Retrial {
        end: if n.is_multiple_of(2) {
            Ending::Refused(Code::StreamUnsafe)
        } else {
            Ending::Exhausted
        },
        counts: Counts {
            tries: u32::from(n),
            waited_ms: u64::MAX,
            ..Counts::default()
        },
        at: UnixMs(u64::from(n)),
    }
}

fn preparation(n: u8) -> Preparation {
    Preparation {
        job: JobId::parse("job").unwrap(),
        number: u32::from(n) + 1,
        pin: PinId::parse(format!("{n:020x}")).unwrap(),
        tree: ObjectId::parse(&format!("{n:040x}")).unwrap(),
        at: UnixMs(u64::from(n)),
    }
}

fn past_retention(kind: u8, n: u8) -> Record {
    let (generation, at) = (generation(n), UnixMs(u64::from(n)));
    match kind {
        22 => Record::PreImagesEvicted {
            generation,
            executions: vec![execution(n), execution(n.wrapping_add(1))],
            at,
        },
        _ => Record::ReceiptsExpired { generation, at },
    }
}

pub(crate) fn approval(n: u8) -> ApprovalId {
    ApprovalId::mint(seed(n))
}

/// Makes a question that stands from time 10 to time 20, and whose answer lasts 5 ms.
pub(crate) fn question(n: u8) -> Question {
    let intent = intent(n, n, n);
    Question {
        approval_id: approval(n),
        scope: intent.scope.clone(),
        key: (!n.is_multiple_of(4)).then_some(intent.key.clone()),
        fingerprint: intent.fingerprint,
        fingerprint_version: intent.fingerprint_version,
        tool: intent.tool.clone(),
        path: intent.path.clone(),
        attempt: intent.attempt,
        generation: intent.generation.clone(),
        fencing_token: intent.fencing_token,
        role: Role::Draft,
        plan: Plan {
            reads: vec![path(n)],
            changed: intent.done().changed,
            trees: vec![Tree {
                path: path(n),
                holds: n.is_multiple_of(2).then(|| Holds {
                    entries: 3,
                    names_sha256: Sha256::of(&[n]),
                }),
            }],
            refused: None,
            command: None,
        },
        rule: 2,
        reason: n.is_multiple_of(3).then(|| "why".to_owned()),
        policy_sha256: Sha256::of(b"policy"),
        source: intent.source,
        at: UnixMs(10),
        expires_at: UnixMs(20),
        lasts_ms: 5,
    }
}

pub(crate) fn ruling(at: u8, decision: Verdict) -> Ruling {
    Ruling {
        decision,
        by: "a person".to_owned(),
        note: "seen".to_owned(),
        at: UnixMs(u64::from(at)),
    }
}

/// Makes any record.
pub(crate) fn any_record() -> impl Strategy<Value = Record> {
    (0..KINDS, any::<u8>()).prop_map(|(kind, n)| record(kind, n))
}

/// Says in a word where a call is; nothing is known of a free key.
pub(crate) fn word(state: Option<&CallState>) -> &'static str {
    match state {
        None => "free",
        Some(CallState::Running { .. }) => "running",
        Some(CallState::Finished { .. }) => "finished",
        Some(CallState::Unknown { .. }) => "unknown",
    }
}
