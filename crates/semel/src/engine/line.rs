//! A line of the log: one flat object for each call, and for whatever else happened.
//!
//! It only shows what the journal holds; it looks nothing up.

use semel_core::approval::{Decision, Question, Ruling};
use semel_core::call::{Event, Intent, Note, Outcome, Receipt, Source};
use semel_core::ids::{ApprovalId, AttemptId, ExecutionId, Generation, IdempotencyKey, JobId, RunId};
use semel_core::pipeline::{RunEnd, Stage};
use semel_core::prepared::Preparation;
use semel_core::record::{Judgement, Record, Restoration, Sealing};
use semel_core::retry::{Ending, Retrial};
use semel_core::volume::{End, NewToken, NewVolume, Role, Tools};
use semel_core::{Code, Fingerprint, RelPath};
use semel_store::journal::LogLine;
use serde::Serialize;
use std::collections::BTreeSet;

/// Is one line of the log.
///
/// # Shape
/// A flat JSON object; what does not apply is null. `event` is `executed`, `refused`, `running`, `freed` or `unknown`
/// for a call with an intent, `replayed`, `read`, `conflict`, `refused` or `suppressed` for what had none, and the name
/// of the record for everything else, whose particulars are text in `detail`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    /// `semel.log.line/v1`.
    schema: &'static str,
    /// The place of the entry.
    pub(crate) seq: u64,
    /// When, in RFC 3339.
    at: String,
    /// What happened.
    pub(crate) event: String,
    job: Option<JobId>,
    attempt: Option<AttemptId>,
    generation: Option<Generation>,
    tool: Option<String>,
    path: Option<RelPath>,
    execution_id: Option<ExecutionId>,
    idempotency_key: Option<IdempotencyKey>,
    /// `v1:`, the form of the digest, and the digest.
    fingerprint: Option<String>,
    /// Of a call with an intent: by which version of the rules for arguments the fingerprint was made.
    fingerprint_version: Option<u16>,
    /// Of a call: whether it was answered from a receipt.
    replayed: Option<bool>,
    /// Of what was refused: with which code; null is a success.
    code: Option<Code>,
    reason: Option<String>,
    /// Of what was suppressed: how many.
    count: Option<u64>,
    door: Option<String>,
    peer: Option<String>,
    user_agent: Option<String>,
    mcp_era: Option<String>,
    traceparent: Option<String>,
    took_us: Option<u64>,
    waited_us: Option<u64>,
    /// Of a call with an intent: when that was recorded.
    began_at: Option<String>,
    /// By which evidence recovery settled it.
    recovered: Option<String>,
    detail: Option<String>,
}

impl Line {
    /// Makes the line of an entry; the outcome of a call needs its intent beside it.
    pub(crate) fn of(line: &LogLine) -> Self {
        let mut shown = Self {
            schema: "semel.log.line/v1",
            seq: line.entry.seq,
            at: line.at.to_string(),
            ..Self::default()
        };
        if let Some(intent) = &line.intent {
            shown.intent(intent);
        }
        shown.record(&line.entry.record);
        shown
    }

    fn record(&mut self, record: &Record) {
        match record {
            Record::CallIntended(intent) => {
                self.intent(intent);
                self.event("running");
            }
            Record::CallReceipted {
                execution_id,
                receipt,
            } => {
                self.execution_id = Some(execution_id.clone());
                self.receipt(receipt);
            }
            Record::CallAborting {
                execution_id,
                aborting,
                ..
            } => self.settled("aborting", execution_id, &aborting.why),
            Record::CallFreed {
                execution_id, why, ..
            } => self.settled("freed", execution_id, why),
            Record::CallUnknown {
                execution_id, why, ..
            } => {
                self.settled("unknown", execution_id, why);
                self.code = Some(Code::OutcomeUnknown);
            }
            Record::CallNoted(note) => self.note(note),
            Record::DaemonStarted {
                incarnation, version, ..
            } => self.told(
                "daemon_started",
                format!("incarnation {}, version {version}", incarnation.0),
            ),
            Record::VolumeOpened { new, attempt, .. } => self.opened(new, *attempt),
            Record::VolumeReady { generation, .. } => self.of_volume("volume_ready", generation),
            Record::VolumeEnded { generation, end, .. } => self.ended(generation, end),
            Record::TokenIssued(new) => self.issued(new),
            Record::VolumeLifted { generation, .. } => self.of_volume("volume_lifted", generation),
            Record::VolumeDestroyed { generation, .. } => self.of_volume("volume_destroyed", generation),
            Record::PreImagesEvicted {
                generation,
                executions,
                ..
            } => self.evicted(generation, executions),
            Record::ReceiptsExpired { generation, .. } => self.of_volume("receipts_expired", generation),
            Record::RunStarted(new) => {
                self.job = Some(new.job.clone());
                self.told("run_started", format!("{} from {}", new.run, new.base));
            }
            Record::RunStaged { run, stage, .. } => {
                self.told("run_staged", format!("{run} {}", staged(stage)));
            }
            Record::RunEnded { run, end, .. } => self.run_ended(run, end),
            Record::AttemptJudged(judgement) => self.judged(judgement),
            Record::CertificateConsumed(used) => {
                self.generation = Some(used.generation.clone());
                self.told(
                    "certificate_consumed",
                    format!("tree {} into {} of {}", used.tree, used.target, used.repository),
                );
            }
            Record::DraftSealed(sealing) => self.sealed(sealing),
            Record::ApprovalAsked(question) => self.asked(question),
            Record::ApprovalDecided {
                approval_id, ruling, ..
            } => self.decided(approval_id, ruling),
            Record::WorktreeRestored(met) => self.restored(met),
            Record::CommandRetried(met) => self.retried(met),
            Record::TreePrepared(preparation) => self.prepared(preparation),
        }
    }

    fn evicted(&mut self, generation: &Generation, executions: &[ExecutionId]) {
        self.generation = Some(generation.clone());
        let calls: Vec<&str> = executions.iter().map(ExecutionId::as_str).collect();
        self.told("pre_images_evicted", calls.join(" "));
    }

    fn event(&mut self, event: &str) {
        self.event = event.to_owned();
    }

    fn told(&mut self, event: &str, detail: impl Into<String>) {
        self.event(event);
        self.detail = Some(detail.into());
    }

    fn source(&mut self, source: &Source) {
        let Source {
            door,
            user_agent,
            traceparent,
            peer,
            mcp_era,
        } = source.clone();
        self.door = (!door.is_empty()).then_some(door);
        self.user_agent = user_agent;
        self.traceparent = traceparent;
        self.peer = peer;
        self.mcp_era = mcp_era;
    }

    fn intent(&mut self, intent: &Intent) {
        self.job = Some(intent.scope.job.clone());
        self.attempt = Some(intent.attempt);
        self.generation = Some(intent.generation.clone());
        self.tool = Some(intent.tool.clone());
        self.path = Some(intent.path.clone());
        self.execution_id = Some(intent.execution_id.clone());
        self.idempotency_key = Some(intent.key.clone());
        self.fingerprint = Some(print_of(&intent.fingerprint));
        self.fingerprint_version = Some(intent.fingerprint_version.0);
        self.replayed = Some(false);
        self.began_at = Some(intent.at.to_string());
        self.source(&intent.source);
    }

    fn receipt(&mut self, receipt: &Receipt) {
        self.took_us = receipt.took_us;
        self.waited_us = receipt.waited_us;
        self.recovered = receipt.recovered.as_ref().map(|by| by.evidence.clone());
        match &receipt.outcome {
            Outcome::Done(_) => self.event("executed"),
            Outcome::Refused { refusal } => {
                self.told("refused", refusal.why.clone());
                self.code = Some(refusal.code);
                self.reason.clone_from(&refusal.reason);
            }
        }
    }

    fn settled(&mut self, event: &str, execution_id: &ExecutionId, why: &str) {
        self.execution_id = Some(execution_id.clone());
        self.told(event, why);
    }

    fn note(&mut self, note: &Note) {
        self.job.clone_from(&note.job);
        self.attempt = note.attempt;
        self.generation.clone_from(&note.generation);
        self.tool = (!note.tool.is_empty()).then(|| note.tool.clone());
        self.path.clone_from(&note.path);
        self.execution_id.clone_from(&note.execution_id);
        self.idempotency_key.clone_from(&note.key);
        self.fingerprint = note.fingerprint.as_ref().map(print_of);
        self.took_us = Some(note.took_us);
        self.waited_us = note.waited_us;
        self.replayed = Some(note.event == Event::Replayed);
        self.source(&note.source);
        match &note.event {
            Event::Replayed => self.event("replayed"),
            Event::Read => self.event("read"),
            Event::Refused { code, reason } => {
                self.event(if *code == Code::ReplayConflict {
                    "conflict"
                } else {
                    "refused"
                });
                self.code = Some(*code);
                self.reason.clone_from(reason);
            }
            Event::Suppressed { code, count } => {
                self.event("suppressed");
                self.code = Some(*code);
                self.count = Some(*count);
                self.replayed = None;
                self.took_us = None;
            }
        }
    }

    fn asked(&mut self, question: &Question) {
        self.job = Some(question.scope.job.clone());
        self.attempt = Some(question.attempt);
        self.generation = Some(question.generation.clone());
        self.tool = Some(question.tool.clone());
        self.path = Some(question.path.clone());
        self.idempotency_key.clone_from(&question.key);
        self.source(&question.source);
        self.told(
            "approval_asked",
            format!("{} by rule {}", question.approval_id, question.rule),
        );
    }

    fn decided(&mut self, approval: &ApprovalId, ruling: &Ruling) {
        let word = match ruling.decision {
            Decision::Approve => "approve",
            Decision::Deny => "deny",
        };
        self.told("approval_decided", format!("{approval} {word} by {}", ruling.by));
    }

    fn ended(&mut self, generation: &Generation, end: &End) {
        self.of_volume("volume_ended", generation);
        match end {
            End::Clean => self.detail = Some("clean".to_owned()),
            End::Dirty { reason } => {
                self.detail = Some("dirty".to_owned());
                self.reason = Some(reason.clone());
            }
        }
    }

    fn issued(&mut self, new: &NewToken) {
        self.of_volume("token_issued", &new.generation);
        let tools = match &new.tools {
            Tools::All => "every tool".to_owned(),
            Tools::Only(names) => names.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        self.detail = Some(format!("{} for {tools}", new.principal));
    }

    fn of_volume(&mut self, event: &str, generation: &Generation) {
        self.generation = Some(generation.clone());
        self.event(event);
    }

    fn opened(&mut self, new: &NewVolume, attempt: AttemptId) {
        self.of_volume("volume_opened", &new.generation);
        self.job = Some(new.job.clone());
        self.attempt = Some(attempt);
        let role = match new.role {
            Role::Draft => "draft",
            Role::Cert => "cert",
        };
        self.detail = Some(role.to_owned());
    }

    fn run_ended(&mut self, run: &RunId, end: &RunEnd) {
        let how = match end {
            RunEnd::Certified => "certified",
            RunEnd::Cancelled => "cancelled",
            RunEnd::Refused { refusal } => {
                self.code = Some(refusal.code);
                "refused"
            }
        };
        self.told("run_ended", format!("{run} {how}"));
    }

    fn judged(&mut self, judgement: &Judgement) {
        self.job = Some(judgement.job.clone());
        self.attempt = Some(judgement.attempt);
        self.generation = Some(judgement.generation.clone());
        self.code = judgement.refusal.as_ref().map(|refusal| refusal.code);
        self.told(
            "attempt_judged",
            format!("certificate {} of tree {}", judgement.certificate, judgement.tree),
        );
    }

    fn sealed(&mut self, sealing: &Sealing) {
        self.job = Some(sealing.job.clone());
        self.attempt = Some(sealing.attempt);
        self.generation = Some(sealing.generation.clone());
        self.told(
            "draft_sealed",
            format!("proposal {} of tree {}", sealing.proposal, sealing.tree),
        );
    }

    fn prepared(&mut self, preparation: &Preparation) {
        self.job = Some(preparation.job.clone());
        self.told(
            "tree_prepared",
            format!("tree {}, number {}", preparation.tree, preparation.number),
        );
    }

    fn restored(&mut self, met: &Restoration) {
        self.job.clone_from(&met.job);
        self.code = met.code;
        self.waited_us = Some(met.waited_ms.saturating_mul(1000));
        self.told(
            "worktree_restored",
            format!(
                "tree {}, {} collisions, {} adoptions",
                met.tree, met.collisions, met.adoptions
            ),
        );
    }

    fn retried(&mut self, met: &Retrial) {
        let counts = &met.counts;
        if let Ending::Refused(code) = met.end {
            self.code = Some(code);
        }
        self.waited_us = Some(counts.waited_ms.saturating_mul(1000));
        self.told(
            "command_retried",
            format!(
                "{}: {} tries, {} failed, {} exact_command, {} exact_lock, {} stream_identical, {} aggregate, {} \
                 no_owner_text, {} waits",
                met.end.name(),
                counts.tries,
                counts.failed,
                counts.exact_command,
                counts.exact_lock,
                counts.stream_identical,
                counts.aggregate,
                counts.no_owner_text,
                counts.waits
            ),
        );
    }

    /// Gives the line for people: time, place, event, then what is known, each by its name.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} {:>6} {}", self.at, self.seq, self.event);
        let value = serde_json::to_value(self).unwrap_or_default();
        for name in SHOWN {
            let shown = match value.get(name) {
                // Such as the path of a call on many paths.
                Some(serde_json::Value::String(text)) if text.is_empty() => continue,
                Some(serde_json::Value::String(text)) => text.chars().flat_map(char::escape_debug).collect(),
                Some(serde_json::Value::Null) | None => continue,
                Some(other) => other.to_string(),
            };
            text.push_str(&format!(" {name}={shown}"));
        }
        text
    }
}

/// What a line for people shows, in this order; the rest is in its JSON.
const SHOWN: &[&str] = &[
    "tool",
    "path",
    "job",
    "attempt",
    "code",
    "reason",
    "count",
    "idempotency_key",
    "execution_id",
    "generation",
    "peer",
    "traceparent",
    "took_us",
    "waited_us",
    "recovered",
    "detail",
];

fn print_of(fingerprint: &Fingerprint) -> String {
    format!("v{}:{}", fingerprint.version, fingerprint.digest)
}

fn staged(stage: &Stage) -> String {
    match stage {
        Stage::Drafted { generation } => format!("drafted {generation}"),
        Stage::AgentEnded { generation } => format!("agent_ended {generation}"),
        Stage::Sealed { proposal, .. } => format!("sealed {proposal}"),
        Stage::Certified { generation, .. } => format!("certified {generation}"),
        Stage::Delivered { output } => format!("delivered {output}"),
    }
}

/// Is what became of one execution, and of everything that was answered from it.
///
/// # Shape
/// `{"schema":"semel.log.execution/v1","execution_id":"…","event":"executed","replays":2,"conflicts":0,"parents":2,…}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Story {
    schema: &'static str,
    execution_id: ExecutionId,
    /// What became of the execution itself.
    event: Option<String>,
    /// Answers from its receipt.
    pub(crate) replays: usize,
    /// Other calls under its key.
    pub(crate) conflicts: usize,
    /// Spans that asked for this one effect: more than one is one tool call with two parents.
    pub(crate) parents: usize,
    /// Them.
    spans: BTreeSet<String>,
}

impl Story {
    /// Tells the story of an execution, and puts it before its replays and conflicts.
    pub(crate) fn of(execution_id: &ExecutionId, lines: &mut [Line]) -> Self {
        let own = |line: &Line| line.began_at.is_some();
        lines.sort_by_key(|line| !own(line));
        let count = |event: &str| lines.iter().filter(|line| line.event == event).count();
        // A conflict is another call: who sent it did not ask for this effect.
        let spans: BTreeSet<String> = lines
            .iter()
            .filter(|line| line.event != "conflict")
            .filter_map(|line| line.traceparent.as_deref())
            // The flags at its end are no part of who the parent is.
            .map(|parent| {
                parent
                    .rsplit_once('-')
                    .map_or(parent, |(span, _)| span)
                    .to_owned()
            })
            .collect();
        Self {
            schema: "semel.log.execution/v1",
            execution_id: execution_id.clone(),
            event: lines.iter().find(|line| own(line)).map(|line| line.event.clone()),
            replays: count("replayed"),
            conflicts: count("conflict"),
            parents: spans.len(),
            spans,
        }
    }

    /// Gives the last line, for people.
    pub(crate) fn text(&self) -> String {
        let event = self.event.as_deref().unwrap_or("not known");
        format!(
            "{}: {event}; replays: {}; conflicts: {}; parents: {}",
            self.execution_id, self.replays, self.conflicts, self.parents
        )
    }
}
