//! The verbs that write, as the writer carries them out: look, check, record.

use super::desk::Desk;
use super::read;
use super::row::{self, CallRow};
use crate::error::{Error, Result};
use crate::journal::{Began, Consumed};
use rusqlite::OptionalExtension as _;
use semel_core::call::{Aborting, CallState, Intent, Note, Outcome, Receipt, Resolved, Scope, Settled};
use semel_core::ids::{
    AttemptId, ExecutionId, FencingToken, Generation, Incarnation, RunId, UnixMs, VolumeIdentity,
};
use semel_core::pipeline::{NewRun, Run, RunEnd, Stage};
use semel_core::prepared::{self, Decision, NewPreparation, Preparation};
use semel_core::record::{Consumption, IllegalRecord, Judgement, Record, Restoration, Sealing};
use semel_core::retry::Retrial;
use semel_core::volume::{End, NewToken, NewVolume, OUTCOME_UNKNOWN, Volume, VolumeState};
use semel_core::{Code, Refusal, Sha256};

/// How many tokens a generation gives out at most, beside its own.
const MOST_TOKENS: u64 = 1000;

impl Desk {
    /// Records that a process began to write.
    ///
    /// A policy does not go away by an oversight: while volumes are open that it was in force for, a life without one
    /// does not begin.
    pub(super) fn start(
        &mut self,
        boot_id: &str,
        version: &str,
        policy_sha256: Option<Sha256>,
        at: UnixMs,
    ) -> Result<Incarnation> {
        let last = self.number("SELECT max(incarnation) FROM incarnations", [])?;
        let lapses = "SELECT 1 FROM incarnations WHERE incarnation = ?1 AND policy_sha256 IS NOT NULL
                      AND EXISTS (SELECT 1 FROM volumes WHERE state IN ('opening', 'open'))";
        if policy_sha256.is_none() && self.number(lapses, [super::int(last)?])? != 0 {
            let why = "volumes are open that a policy was in force for, and none is given now; give it, or an empty \
                       one";
            return Err(Refusal::new(Code::BadConfig, why).reason("policy_missing").into());
        }
        let incarnation = Incarnation(last + 1);
        self.record(&Record::DaemonStarted {
            incarnation,
            boot_id: boot_id.to_owned(),
            version: version.to_owned(),
            policy_sha256,
            at,
        })?;
        Ok(incarnation)
    }

    /// See [`Journal::open_volume`](crate::Journal::open_volume).
    pub(super) fn open_volume(&mut self, new: &NewVolume) -> Result<Volume> {
        if self.find_volume(&new.generation)?.is_some() {
            return Err(
                Refusal::new(Code::GenerationReused, "the generation was used before")
                    .name(new.generation.as_str())
                    .into(),
            );
        }
        let open: Option<Volume> = row::json(
            &self.conn,
            "SELECT json FROM volumes WHERE job = ?1 AND role = ?2 AND state IN ('opening', 'open')",
            [new.job.as_str(), row::role_of(new.role)],
        )?;
        if let Some(open) = open {
            let why = "the job has an open volume of this role";
            return Err(Refusal::new(Code::VolumeBusy, why)
                .name(open.generation.as_str())
                .into());
        }
        let token = self.number(
            "SELECT 1 FROM volumes WHERE token_sha256 = ?1",
            [new.token_sha256.as_bytes()],
        )?;
        if token != 0 {
            return Err(IllegalRecord("a bearer token is given out twice".to_owned()).into());
        }
        let attempt = self.number(
            "SELECT max(attempt) FROM volumes WHERE job = ?1",
            [new.job.as_str()],
        )?;
        let fence = self.number("SELECT max(fencing_token) FROM volumes", [])?;
        let attempt = u32::try_from(attempt + 1)
            .map_err(|_| IllegalRecord("the job has no more attempts".to_owned()))?;
        self.record(&Record::VolumeOpened {
            new: new.clone(),
            attempt: AttemptId(attempt),
            fencing_token: FencingToken(fence + 1),
        })?;
        self.must_find(&new.generation)
    }

    /// See [`Journal::issue_token`](crate::Journal::issue_token).
    pub(super) fn issue_token(&mut self, new: &NewToken) -> Result<()> {
        let parent = read::lease(&self.conn, &new.parent_sha256)?
            .filter(|parent| parent.volume.generation == new.generation)
            .ok_or_else(|| Refusal::new(Code::Unauthorized, "the token that gives it out is not known"))?;
        parent.may_give(new)?;
        if read::lease(&self.conn, &new.token_sha256)?.is_some() {
            return Err(IllegalRecord("a bearer token is given out twice".to_owned()).into());
        }
        let given = "SELECT count(*) FROM tokens WHERE generation = ?1";
        if self.number(given, [new.generation.as_str()])? >= MOST_TOKENS {
            let why = format!("a generation gives out at most {MOST_TOKENS} tokens");
            return Err(Refusal::new(Code::TooMany, why).reason("tokens").into());
        }
        self.record(&Record::TokenIssued(Box::new(new.clone())))
    }

    /// See [`Journal::volume_ready`](crate::Journal::volume_ready).
    pub(super) fn volume_ready(
        &mut self,
        generation: &Generation,
        fence: FencingToken,
        identity: &VolumeIdentity,
        at: UnixMs,
    ) -> Result<Volume> {
        let volume = self.must_find(generation)?;
        fenced(&volume, fence)?;
        match volume.state {
            VolumeState::Open if volume.identity.as_ref() == Some(identity) => return Ok(volume),
            VolumeState::Opening | VolumeState::Open => {}
            VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed => {
                return Err(stale(&volume, "the volume ended before it was ready"));
            }
        }
        self.record(&Record::VolumeReady {
            generation: generation.clone(),
            identity: identity.clone(),
            at,
        })?;
        self.must_find(generation)
    }

    /// See [`Journal::end_volume`](crate::Journal::end_volume).
    pub(super) fn end_volume(
        &mut self,
        generation: &Generation,
        fence: FencingToken,
        end: &End,
        at: UnixMs,
    ) -> Result<Volume> {
        let volume = self.must_find(generation)?;
        fenced(&volume, fence)?;
        if volume.ended_at.is_some() {
            let same = match end {
                End::Clean => volume.dirty.is_none(),
                End::Dirty { reason } => volume.dirty.as_ref() == Some(reason),
            };
            return if same {
                Ok(volume)
            } else {
                Err(stale(&volume, "the volume ended otherwise"))
            };
        }
        if *end == End::Clean {
            self.settled(generation, "the volume cannot end clean")?;
        }
        self.record(&Record::VolumeEnded {
            generation: generation.clone(),
            end: end.clone(),
            at,
        })?;
        self.must_find(generation)
    }

    /// Refuses while a call of the generation runs or is unknown.
    pub(super) fn settled(&self, generation: &Generation, why: &str) -> Result<()> {
        let open: Option<(String, String)> = self
            .conn
            .prepare_cached(
                "SELECT execution_id, state FROM calls WHERE generation = ?1 AND state IN ('running', 'unknown')
                 ORDER BY state DESC, intent_seq LIMIT 1",
            )
            .and_then(|mut s| {
                s.query_row([generation.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()
            })
            .map_err(super::fault("look for open calls"))?;
        match open {
            None => Ok(()),
            Some((execution, state)) => Err(Refusal::new(
                Code::OutcomeUnknown,
                format!("a call of the generation has no outcome, so {why}"),
            )
            .reason(if state == "running" {
                "call_running"
            } else {
                "call_unknown"
            })
            .name(execution)
            .into()),
        }
    }

    /// See [`Journal::volume_destroyed`](crate::Journal::volume_destroyed).
    pub(super) fn volume_destroyed(&mut self, generation: &Generation, at: UnixMs) -> Result<Volume> {
        let volume = self.must_find(generation)?;
        match volume.state {
            VolumeState::Destroyed => return Ok(volume),
            VolumeState::Opening | VolumeState::Open => {
                return Err(Refusal::new(Code::VolumeBusy, "the volume is still open")
                    .name(generation.as_str())
                    .into());
            }
            VolumeState::Clean | VolumeState::Quarantined => {}
        }
        self.record(&Record::VolumeDestroyed {
            generation: generation.clone(),
            at,
        })?;
        self.must_find(generation)
    }

    /// See [`Journal::begin`](crate::Journal::begin).
    pub(super) fn begin(&mut self, intent: &Intent) -> Result<Began> {
        let volume = self
            .volume_of_calls(&intent.generation)?
            .ok_or_else(|| no_generation(&intent.generation))?;
        fenced(volume, intent.fencing_token)?;
        volume.live()?;
        belongs(intent, volume)?;
        let scope = row::scope(&intent.scope);
        if let Some(prior) = row::call_by_key(&self.conn, &scope, intent.key.as_str())? {
            return Ok(Began::Prior(Box::new(prior.state)));
        }
        // Looked for among the records: a freed call has no row of its own, and its id is used up all the same.
        let used = "SELECT 1 FROM records WHERE execution_id = ?1 LIMIT 1";
        if self.number(used, [intent.execution_id.as_str()])? != 0 {
            return Err(IllegalRecord("an execution id is used twice".to_owned()).into());
        }
        self.intent(&Record::CallIntended(Box::new(intent.clone())), intent, None)?;
        Ok(Began::Began)
    }

    /// See [`Journal::finish`](crate::Journal::finish).
    pub(super) fn finish(&mut self, execution: &ExecutionId, receipt: &Receipt) -> Result<()> {
        let known = self.must_find_call(execution)?;
        match &known.state {
            CallState::Finished { receipt: told, .. } if told == receipt => Ok(()),
            CallState::Running { .. } | CallState::Finished { .. } | CallState::Unknown { .. } => {
                let record = Record::CallReceipted {
                    execution_id: execution.clone(),
                    receipt: receipt.clone(),
                };
                self.call(&record, execution, known)
            }
        }
    }

    /// See [`Journal::free`](crate::Journal::free).
    pub(super) fn free(&mut self, execution: &ExecutionId, why: &str, at: UnixMs) -> Result<()> {
        let known = self.must_find_call(execution)?;
        let record = Record::CallFreed {
            execution_id: execution.clone(),
            why: why.to_owned(),
            resolved: None,
            at,
        };
        self.call(&record, execution, known)
    }

    /// See [`Journal::abort`](crate::Journal::abort).
    pub(super) fn abort(&mut self, execution: &ExecutionId, aborting: &Aborting, at: UnixMs) -> Result<()> {
        let known = self.must_find_call(execution)?;
        if let CallState::Running {
            aborting: Some(told), ..
        } = &known.state
            && told == aborting
        {
            return Ok(());
        }
        let record = Record::CallAborting {
            execution_id: execution.clone(),
            aborting: aborting.clone(),
            at,
        };
        self.call(&record, execution, known)
    }

    /// See [`Journal::resolve`](crate::Journal::resolve).
    pub(super) fn resolve(
        &mut self,
        execution: &ExecutionId,
        settled: Settled,
        resolved: &Resolved,
        at: UnixMs,
    ) -> Result<Option<CallState>> {
        let known = self.must_find_call(execution)?;
        let intent = match &known.state {
            CallState::Unknown { intent, .. } => intent.clone(),
            CallState::Finished { receipt, .. }
                if settled == Settled::Happened && receipt.resolved.as_ref() == Some(resolved) =>
            {
                return Ok(Some(known.state));
            }
            CallState::Finished { .. } | CallState::Running { .. } => {
                return Err(
                    Refusal::new(Code::PreconditionFailed, "the outcome of the call is not unknown")
                        .reason("not_unknown")
                        .name(execution.as_str())
                        .into(),
                );
            }
        };
        let record = match settled {
            Settled::Happened => Record::CallReceipted {
                execution_id: execution.clone(),
                receipt: Receipt {
                    at,
                    outcome: Outcome::Done(intent.done()),
                    recovered: None,
                    resolved: Some(resolved.clone()),
                    possible_duplicate_of: None,
                    took_us: None,
                    waited_us: None,
                },
            },
            Settled::NeverHappened => Record::CallFreed {
                execution_id: execution.clone(),
                why: "a person says that it never happened".to_owned(),
                resolved: Some(resolved.clone()),
                at,
            },
        };
        self.call(&record, execution, known)?;
        self.lift(&intent.generation, at)?;
        Ok(row::call_by_execution(&self.conn, execution.as_str())?.map(|row| row.state))
    }

    /// Lifts the mark of a volume that only unknown outcomes made dirty, once the last of them is settled.
    fn lift(&mut self, generation: &Generation, at: UnixMs) -> Result<()> {
        let volume = self.must_find(generation)?;
        let only =
            volume.state == VolumeState::Quarantined && volume.dirty.as_deref() == Some(OUTCOME_UNKNOWN);
        if only && self.settled(generation, "its mark stays").is_ok() {
            self.record(&Record::VolumeLifted {
                generation: generation.clone(),
                at,
            })?;
        }
        Ok(())
    }

    /// See [`Journal::unknown`](crate::Journal::unknown).
    pub(super) fn unknown(&mut self, execution: &ExecutionId, why: &str, at: UnixMs) -> Result<()> {
        let known = self.must_find_call(execution)?;
        let record = Record::CallUnknown {
            execution_id: execution.clone(),
            why: why.to_owned(),
            at,
        };
        self.call(&record, execution, known)
    }

    /// See [`Journal::note`](crate::Journal::note).
    pub(super) fn note(&mut self, note: &Note) -> Result<()> {
        self.record(&Record::CallNoted(Box::new(note.clone())))
    }

    /// See [`Journal::start_run`](crate::Journal::start_run).
    pub(super) fn start_run(&mut self, new: &NewRun) -> Result<Run> {
        match self.find_run(&new.run)? {
            Some(run) if run.new == *new => return Ok(run),
            Some(_) => return Err(IllegalRecord("a run id is used twice".to_owned()).into()),
            None => {}
        }
        let open: Option<Run> = row::json(
            &self.conn,
            "SELECT json FROM runs WHERE job = ?1 AND over = 0",
            [new.job.as_str()],
        )?;
        if let Some(open) = open {
            return Err(
                Refusal::new(Code::VolumeBusy, "another run of the job has not ended")
                    .name(open.new.run.as_str())
                    .into(),
            );
        }
        self.record(&Record::RunStarted(Box::new(new.clone())))?;
        self.must_find_run(&new.run)
    }

    /// See [`Journal::stage_run`](crate::Journal::stage_run).
    pub(super) fn stage_run(&mut self, run: &RunId, stage: &Stage, at: UnixMs) -> Result<Run> {
        let known = self.must_find_run(run)?;
        if known.end.is_none() && known.stages.last() == Some(stage) {
            return Ok(known);
        }
        self.record(&Record::RunStaged {
            run: run.clone(),
            stage: stage.clone(),
            at,
        })?;
        self.must_find_run(run)
    }

    /// See [`Journal::end_run`](crate::Journal::end_run).
    pub(super) fn end_run(&mut self, run: &RunId, end: &RunEnd, at: UnixMs) -> Result<Run> {
        let known = self.must_find_run(run)?;
        if known.end.as_ref() == Some(end) {
            return Ok(known);
        }
        self.record(&Record::RunEnded {
            run: run.clone(),
            end: end.clone(),
            at,
        })?;
        self.must_find_run(run)
    }

    /// See [`Journal::judge`](crate::Journal::judge).
    pub(super) fn judge(&mut self, judgement: &Judgement) -> Result<()> {
        let known: Option<Judgement> = row::json(
            &self.conn,
            "SELECT json FROM judgements WHERE generation = ?1",
            [judgement.generation.as_str()],
        )?;
        match known {
            None => self.record(&Record::AttemptJudged(Box::new(judgement.clone()))),
            Some(known)
                if known
                    == (Judgement {
                        at: known.at,
                        ..judgement.clone()
                    }) =>
            {
                Ok(())
            }
            Some(_) => Err(Refusal::new(
                Code::GenerationReused,
                "the generation already has another verdict",
            )
            .name(judgement.generation.as_str())
            .into()),
        }
    }

    /// See [`Journal::consume`](crate::Journal::consume).
    pub(super) fn consume(&mut self, consumption: &Consumption) -> Result<Consumed> {
        let known: Option<Consumption> = row::json(
            &self.conn,
            "SELECT json FROM consumptions WHERE generation = ?1",
            [consumption.generation.as_str()],
        )?;
        match known {
            None => {
                self.record(&Record::CertificateConsumed(consumption.clone()))?;
                Ok(Consumed::First)
            }
            Some(known)
                if known
                    == (Consumption {
                        at: known.at,
                        ..consumption.clone()
                    }) =>
            {
                Ok(Consumed::AlreadySame)
            }
            Some(known) => Err(Refusal::new(
                Code::GateRefused,
                format!(
                    "the certificate was used for {} of {}",
                    known.target, known.repository
                ),
            )
            .reason("already_consumed")
            .name(consumption.generation.as_str())
            .into()),
        }
    }

    /// See [`Journal::sealed`](crate::Journal::sealed).
    pub(super) fn sealed(&mut self, sealing: &Sealing) -> Result<()> {
        self.record(&Record::DraftSealed(Box::new(sealing.clone())))
    }

    /// See [`Journal::restored`](crate::Journal::restored).
    pub(super) fn restored(&mut self, restoration: &Restoration) -> Result<()> {
        self.record(&Record::WorktreeRestored(restoration.clone()))
    }

    /// See [`Journal::retried`](crate::Journal::retried).
    pub(super) fn retried(&mut self, retrial: &Retrial) -> Result<()> {
        self.record(&Record::CommandRetried(retrial.clone()))
    }

    /// See [`Journal::prepare_tree`](crate::Journal::prepare_tree).
    pub(super) fn prepare_tree(&mut self, new: &NewPreparation) -> Result<Preparation> {
        let own = read::prepared(&self.conn, &new.job)?;
        let there = read::prepared_in(&self.conn, &new.pin)?;
        match prepared::admit(own.as_ref(), there.as_ref(), new)? {
            Decision::Known(known) => Ok(known),
            Decision::Record(next) => {
                self.record(&Record::TreePrepared(next.clone()))?;
                Ok(next)
            }
        }
    }

    pub(super) fn must_find(&self, generation: &Generation) -> Result<Volume> {
        self.find_volume(generation)?
            .ok_or_else(|| no_generation(generation))
    }

    fn must_find_run(&self, run: &RunId) -> Result<Run> {
        self.find_run(run)?.ok_or_else(|| {
            Refusal::new(Code::NotFound, "no such run")
                .name(run.as_str())
                .into()
        })
    }

    fn must_find_call(&mut self, execution: &ExecutionId) -> Result<CallRow> {
        self.take_call(execution)?.ok_or_else(|| {
            Refusal::new(Code::NotFound, "no such execution, or its key was freed")
                .name(execution.as_str())
                .into()
        })
    }
}

fn no_generation(generation: &Generation) -> Error {
    Refusal::new(Code::NotFound, "no such generation")
        .name(generation.as_str())
        .into()
}

pub(super) fn stale(volume: &Volume, why: &str) -> Error {
    Refusal::new(Code::ReplayConflict, why)
        .reason("stale_generation")
        .name(volume.generation.as_str())
        .into()
}

pub(super) fn fenced(volume: &Volume, fence: FencingToken) -> Result<()> {
    if volume.fencing_token == fence {
        Ok(())
    } else {
        Err(stale(volume, "the fencing token is not the one of this lease"))
    }
}

/// Refuses an intent that says of its volume what the volume does not say of itself.
fn belongs(intent: &Intent, volume: &Volume) -> Result<()> {
    let durability = (intent.durability != volume.durability).then_some("durability");
    match foreign(&intent.scope, &intent.attempt, volume).or(durability) {
        None => Ok(()),
        Some(foreign) => Err(IllegalRecord(format!("an intent whose {foreign} is not its volume's")).into()),
    }
}

/// Names what of a scope and an attempt is not what their volume says of itself.
pub(super) fn foreign(scope: &Scope, attempt: &AttemptId, volume: &Volume) -> Option<&'static str> {
    if !scope.principal.is_part_of(&volume.principal) {
        Some("principal")
    } else if scope.job != volume.job {
        Some("job")
    } else if scope.generation.as_ref().is_some_and(|g| *g != volume.generation) {
        Some("scope")
    } else if *attempt != volume.attempt {
        Some("attempt")
    } else {
        None
    }
}
