//! The state that follows from the entries, folded without a database.
//!
//! It uses the `apply` of the core, as the desk does. It only finds; it mends nothing.

use super::row::{self, Found, Subject};
use semel_core::Sha256;
use semel_core::approval::{self, Approval};
use semel_core::call::{self, CallState, Outcome};
use semel_core::ids::{ApprovalId, ExecutionId, Generation, JobId, RunId};
use semel_core::pin::PinId;
use semel_core::pipeline::{self, Run};
use semel_core::prepared::{self, Preparation};
use semel_core::record::{Consumption, IllegalRecord, Judgement, Record};
use semel_core::volume::{self, NewToken, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// Is why an entry cannot follow the ones before.
#[derive(Debug, PartialEq)]
pub(super) enum Wrong {
    /// It is illegal.
    Illegal(String),
    /// It gives a key its second effect.
    SecondEffect(String),
}

impl From<IllegalRecord> for Wrong {
    fn from(illegal: IllegalRecord) -> Self {
        Self::Illegal(illegal.to_string())
    }
}

type Folded = Result<(), Wrong>;

/// Is where a call lies: its scope and key.
pub(super) type Place = (String, String);

/// Is a call as its row must be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) state: CallState,
    pub(super) intent_seq: u64,
    pub(super) aborting_seq: Option<u64>,
    pub(super) outcome_seq: Option<u64>,
    pub(super) at_ms: u64,
}

/// Is a life of the writer: boot, version, time and policy.
pub(super) type Life = (String, String, u64, Option<[u8; 32]>);

/// Is an approval as its row must be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) approval: Approval,
    pub(super) asked_seq: u64,
    pub(super) decided_seq: Option<u64>,
}

/// Is the state that follows from the entries.
#[derive(Default)]
pub(super) struct Fold {
    pub(super) incarnations: BTreeMap<u64, Life>,
    pub(super) fence: u64,
    pub(super) attempts: BTreeMap<JobId, u32>,
    pub(super) tokens: BTreeMap<Sha256, Generation>,
    /// Tokens that others gave out.
    pub(super) issued: BTreeMap<Sha256, NewToken>,
    pub(super) volumes: BTreeMap<Generation, Volume>,
    pub(super) calls: BTreeMap<Place, Call>,
    pub(super) intents: BTreeMap<ExecutionId, Place>,
    /// How many calls of a generation have no outcome.
    open: BTreeMap<Generation, u64>,
    /// The newest intent of an execution that was freed, so that its last entry is found too.
    pub(super) freed: Option<CallState>,
    /// The execution whose effect a key has.
    pub(super) done: BTreeMap<Place, ExecutionId>,
    pub(super) runs: BTreeMap<RunId, (u64, Run)>,
    pub(super) judgements: BTreeMap<Generation, (u64, Judgement)>,
    pub(super) consumptions: BTreeMap<Generation, Consumption>,
    pub(super) prepared: BTreeMap<JobId, Preparation>,
    /// Whose tree is recorded in a worktree.
    prepared_in: BTreeMap<PinId, JobId>,
    pub(super) approvals: BTreeMap<ApprovalId, Asked>,
    /// The calls that were asked about by their keys: each is asked about once.
    keys_asked: BTreeSet<Place>,
}

fn illegal(what: impl Into<String>) -> Folded {
    Err(IllegalRecord(what.into()).into())
}

impl Fold {
    /// Folds one more entry.
    pub(super) fn apply(&mut self, seq: u64, record: &Record) -> Folded {
        match record {
            Record::DaemonStarted { .. } => self.started(record),
            Record::VolumeOpened { new, .. } => self.opened(record).and(self.volume(record, &new.generation)),
            Record::VolumeReady { generation, .. }
            | Record::VolumeEnded { generation, .. }
            | Record::VolumeLifted { generation, .. }
            | Record::VolumeDestroyed { generation, .. } => self.volume(record, generation),
            Record::ReceiptsExpired { generation, .. } => {
                self.nothing_open(generation).and(self.volume(record, generation))
            }
            Record::PreImagesEvicted {
                generation,
                executions,
                ..
            } => self.evicted(generation, executions),
            Record::TokenIssued(new) => self.issued(new),
            Record::CallIntended(intent) => {
                let place = (row::scope(&intent.scope), intent.key.as_str().to_owned());
                let used = self.intents.insert(intent.execution_id.clone(), place.clone());
                if used.is_some() {
                    return illegal("an execution id is used twice");
                }
                self.call(seq, record, place)
            }
            Record::CallReceipted { execution_id, .. }
            | Record::CallAborting { execution_id, .. }
            | Record::CallFreed { execution_id, .. }
            | Record::CallUnknown { execution_id, .. } => match self.intents.get(execution_id).cloned() {
                None => illegal("the end of a call that is not known"),
                Some(place) => self.once(record, &place).and(self.call(seq, record, place)),
            },
            Record::RunStarted(new) => self.run(seq, record, &new.run),
            Record::RunStaged { run, .. } | Record::RunEnded { run, .. } => self.run(seq, record, run),
            Record::AttemptJudged(judgement) => {
                let row = (seq, (**judgement).clone());
                match self.judgements.insert(judgement.generation.clone(), row) {
                    None => Ok(()),
                    Some(_) => illegal("a generation is judged twice"),
                }
            }
            Record::CertificateConsumed(consumption) => {
                let row = consumption.clone();
                match self.consumptions.insert(consumption.generation.clone(), row) {
                    None => Ok(()),
                    Some(_) => illegal("a certificate is consumed twice"),
                }
            }
            Record::ApprovalAsked(question) => {
                let place = question
                    .key
                    .as_ref()
                    .map(|key| (row::scope(&question.scope), key.as_str().to_owned()));
                if place.is_some_and(|place| !self.keys_asked.insert(place)) {
                    return illegal("a key is asked about twice");
                }
                self.approval(seq, record, &question.approval_id)
            }
            Record::ApprovalDecided { approval_id, .. } => self.approval(seq, record, approval_id),
            Record::TreePrepared(preparation) => self.prepared(preparation),
            Record::CallNoted(_)
            | Record::DraftSealed(_)
            | Record::WorktreeRestored(_)
            | Record::CommandRetried(_) => Ok(()),
        }
    }

    fn prepared(&mut self, preparation: &Preparation) -> Folded {
        let own = self.prepared.get(&preparation.job);
        let there = self.prepared_in.get(&preparation.pin);
        prepared::apply(own, there.and_then(|job| self.prepared.get(job)), preparation)?;
        if let Some(own) = own {
            self.prepared_in.remove(&own.pin);
        }
        self.prepared_in
            .insert(preparation.pin.clone(), preparation.job.clone());
        self.prepared.insert(preparation.job.clone(), preparation.clone());
        Ok(())
    }

    fn started(&mut self, record: &Record) -> Folded {
        let Record::DaemonStarted {
            incarnation,
            boot_id,
            version,
            policy_sha256,
            at,
        } = record
        else {
            return Ok(());
        };
        let last = self.incarnations.last_key_value().map_or(0, |(last, _)| *last);
        let policy = policy_sha256.as_ref().map(|policy| *policy.as_bytes());
        let row = (boot_id.clone(), version.clone(), at.0, policy);
        self.incarnations.insert(incarnation.0, row);
        if incarnation.0 == last + 1 {
            Ok(())
        } else {
            illegal("the incarnations do not count up")
        }
    }

    fn opened(&mut self, record: &Record) -> Folded {
        let Record::VolumeOpened {
            new,
            attempt,
            fencing_token,
        } = record
        else {
            return Ok(());
        };
        let last = self.attempts.insert(new.job.clone(), attempt.0).unwrap_or(0);
        let fence = std::mem::replace(&mut self.fence, fencing_token.0);
        let token = self.tokens.insert(new.token_sha256, new.generation.clone());
        if attempt.0 != last + 1 || fencing_token.0 != fence + 1 {
            illegal("the attempts or fencing tokens do not count up")
        } else if token.is_some() {
            illegal("a bearer token is given out twice")
        } else {
            Ok(())
        }
    }

    fn issued(&mut self, new: &NewToken) -> Folded {
        let known = self.tokens.contains_key(&new.token_sha256);
        if known || self.issued.insert(new.token_sha256, new.clone()).is_some() {
            return illegal("a bearer token is given out twice");
        }
        let parent = self.issued.get(&new.parent_sha256);
        let root = self.tokens.get(&new.parent_sha256);
        let of = parent.map(|parent| &parent.generation).or(root);
        if of != Some(&new.generation) {
            return illegal("a token is given out by one of another generation");
        }
        Ok(())
    }

    fn volume(&mut self, record: &Record, generation: &Generation) -> Folded {
        let prior = self.volumes.get(generation).cloned();
        if let Some(next) = volume::apply(prior, record)? {
            self.volumes.insert(generation.clone(), next);
        }
        Ok(())
    }

    /// Receipts do not expire while a call of the generation has no outcome.
    fn nothing_open(&self, generation: &Generation) -> Folded {
        match self.open.get(generation) {
            None | Some(0) => Ok(()),
            Some(_) => illegal("receipts expire while a call has no outcome"),
        }
    }

    /// Counts the calls of a generation that have no outcome.
    fn count_open(&mut self, generation: &Generation, before: Option<&CallState>, now: Option<&CallState>) {
        let open = |state: Option<&CallState>| match state {
            Some(CallState::Running { .. } | CallState::Unknown { .. }) => 1,
            Some(CallState::Finished { .. }) | None => 0_u64,
        };
        let count = self.open.entry(generation.clone()).or_default();
        *count = (*count + open(now)).saturating_sub(open(before));
    }

    fn evicted(&self, generation: &Generation, executions: &[ExecutionId]) -> Folded {
        if !self.volumes.contains_key(generation) {
            return illegal("pre-images are freed of a volume that is not known");
        }
        for execution in executions {
            let call = self
                .intents
                .get(execution)
                .and_then(|place| self.calls.get(place));
            let finished = call.is_some_and(|call| {
                matches!(&call.state, CallState::Finished { intent, .. } if intent.generation == *generation)
            });
            if !finished {
                return illegal("the pre-images of a call are freed that has no receipt in this generation");
            }
        }
        Ok(())
    }

    fn call(&mut self, seq: u64, record: &Record, place: Place) -> Folded {
        let prior = self.calls.get(&place);
        let intent_seq = prior.map_or(seq, |known| known.intent_seq);
        let known = prior.map(|known| known.state.clone());
        let before = prior.and_then(|known| known.aborting_seq);
        let next = call::apply(known.clone(), record)?;
        if let Some(state) = next.as_ref().or(known.as_ref()) {
            let generation = state.intent().generation.clone();
            self.count_open(&generation, known.as_ref(), next.as_ref());
        }
        let Some(state) = next else {
            self.calls.remove(&place);
            self.freed = known;
            return Ok(());
        };
        let aborts = matches!(record, Record::CallAborting { .. });
        let row = Call {
            state,
            intent_seq,
            aborting_seq: if aborts { Some(seq) } else { before },
            outcome_seq: (seq != intent_seq && !aborts).then_some(seq),
            at_ms: record.at().0,
        };
        self.calls.insert(place, row);
        Ok(())
    }

    /// Holds a receipt against the effect that its key has already; looked for before the rules of calls, which
    /// would only call it illegal.
    fn once(&mut self, record: &Record, place: &Place) -> Folded {
        let Record::CallReceipted {
            execution_id,
            receipt,
        } = record
        else {
            return Ok(());
        };
        if !matches!(receipt.outcome, Outcome::Done(_)) {
            return Ok(());
        }
        match self.done.insert(place.clone(), execution_id.clone()) {
            None => Ok(()),
            Some(first) if first == *execution_id => Ok(()),
            Some(first) => Err(Wrong::SecondEffect(format!(
                "the key {} of {} had its effect in execution {first}, and has another in {execution_id}",
                place.1, place.0
            ))),
        }
    }

    fn approval(&mut self, seq: u64, record: &Record, id: &ApprovalId) -> Folded {
        let prior = self.approvals.get(id);
        let asked_seq = prior.map_or(seq, |known| known.asked_seq);
        let known = prior.map(|known| known.approval.clone());
        if let Some(approval) = approval::apply(known, record)? {
            let row = Asked {
                approval,
                asked_seq,
                decided_seq: (seq != asked_seq).then_some(seq),
            };
            self.approvals.insert(id.clone(), row);
        }
        Ok(())
    }

    fn run(&mut self, seq: u64, record: &Record, run: &RunId) -> Folded {
        let (seq, prior) = match self.runs.get(run).cloned() {
            Some((began, prior)) => (began, Some(prior)),
            None => (seq, None),
        };
        if let Some(next) = pipeline::apply(prior, record)? {
            self.runs.insert(run.clone(), (seq, next));
        }
        Ok(())
    }

    /// Says by what a folded entry must be found.
    pub(super) fn found<'a>(&'a self, record: &'a Record) -> Found<'a> {
        let volume = |generation| match self.volumes.get(generation) {
            Some(volume) => Subject::Job(&volume.job),
            None => Subject::Own,
        };
        let run = |run| match self.runs.get(run) {
            Some((_, run)) => Subject::Job(&run.new.job),
            None => Subject::Own,
        };
        let call = |execution| {
            let known = self
                .intents
                .get(execution)
                .and_then(|place| self.calls.get(place));
            match known.map(|call| &call.state).or(self.freed.as_ref()) {
                Some(state) => Subject::Call(state.intent()),
                None => Subject::Own,
            }
        };
        let subject = match record {
            Record::VolumeOpened { new, .. } => Subject::Job(&new.job),
            Record::VolumeReady { generation, .. }
            | Record::VolumeEnded { generation, .. }
            | Record::VolumeLifted { generation, .. }
            | Record::VolumeDestroyed { generation, .. }
            | Record::PreImagesEvicted { generation, .. }
            | Record::ReceiptsExpired { generation, .. } => volume(generation),
            Record::TokenIssued(new) => volume(&new.generation),
            Record::CallIntended(intent) => Subject::Call(intent),
            Record::CallReceipted { execution_id, .. }
            | Record::CallAborting { execution_id, .. }
            | Record::CallFreed { execution_id, .. }
            | Record::CallUnknown { execution_id, .. } => call(execution_id),
            Record::RunStarted(new) => Subject::Job(&new.job),
            Record::TreePrepared(preparation) => Subject::Job(&preparation.job),
            Record::ApprovalAsked(question) => Subject::Question(question),
            Record::ApprovalDecided { approval_id, .. } => match self.approvals.get(approval_id) {
                Some(asked) => Subject::Question(&asked.approval.question),
                None => Subject::Own,
            },
            Record::RunStaged { run: of, .. } | Record::RunEnded { run: of, .. } => run(of),
            Record::DaemonStarted { .. }
            | Record::CallNoted(_)
            | Record::AttemptJudged(_)
            | Record::CertificateConsumed(_)
            | Record::DraftSealed(_)
            | Record::WorktreeRestored(_)
            | Record::CommandRetried(_) => Subject::Own,
        };
        Found::of(record, subject)
    }
}
