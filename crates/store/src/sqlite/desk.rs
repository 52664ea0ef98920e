//! The writer's desk: appends a record to the chain, and folds it into every projection.
//!
//! Whatever is written goes through `record`, which knows no rule of its own: it loads the state, asks the `apply`
//! of the core, and stores what comes out. `verify` folds the same records the same way.

use super::row::{self, CallRow, Found, Subject};
use super::{fault, int};
use crate::error::Result;
use rusqlite::{Connection, OptionalExtension as _};
use semel_core::Sha256;
use semel_core::call::{self, CallState, Intent};
use semel_core::checkpoint::Checkpoint;
use semel_core::ids::{ExecutionId, Generation, RunId};
use semel_core::pipeline::{self, Run};
use semel_core::prepared::Preparation;
use semel_core::record::{IllegalRecord, RECORD_VERSION, Record, Sync, chain};
use semel_core::volume::{self, Durability, NewToken, Volume};
use std::cell::Cell;
use std::collections::HashMap;

/// Is the end of the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// The place of the last entry; 0 before the first.
    pub(super) seq: u64,
    /// Its digest; zeros before the first.
    pub(super) hash: Sha256,
}

impl Head {
    pub(super) const START: Head = Head {
        seq: 0,
        hash: Sha256::from_bytes([0; 32]),
    };
}

/// Is what the writer has in its hands.
pub(super) struct Desk {
    pub(super) conn: Connection,
    pub(super) head: Head,
    /// When the records of this batch have to be on the disk.
    pub(super) need: Sync,
    /// What the running calls survive: a hint, by which a batch is begun as it has to end.
    pub(super) running: HashMap<ExecutionId, Durability>,
    /// What is known without a look at the tables.
    pub(super) memory: Memory,
    /// Whether anything was written since this was last unset.
    pub(super) wrote: Cell<bool>,
    /// Whether a volume or a token changed since readers were last told.
    pub(super) leases: Leases,
}

/// How many volumes are known without a look at the tables.
const VOLUMES_KNOWN: usize = 1024;

/// Is what the tables say, kept at hand: each entry is what a look at them would give now. Whatever is rolled back takes
/// all of it along.
#[derive(Default)]
pub(super) struct Memory {
    volumes: HashMap<Generation, Volume>,
    /// Calls that run, and of which nothing is taken back.
    calls: HashMap<ExecutionId, CallRow>,
    /// Calls that got their receipt in this batch.
    pub(super) finished: Vec<CallState>,
}

/// Says whether what tokens stand for may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leases {
    Same,
    Changed,
}

impl Desk {
    /// Makes the desk of a journal that was just opened.
    pub(super) fn new(conn: Connection, head: Head, running: HashMap<ExecutionId, Durability>) -> Self {
        Self {
            conn,
            head,
            need: Sync::Whenever,
            running,
            memory: Memory::default(),
            wrote: Cell::new(false),
            leases: Leases::Same,
        }
    }

    /// Goes back to an earlier end of the chain, to which the tables were rolled back.
    pub(super) fn back_to(&mut self, head: Head) {
        self.head = head;
        self.memory = Memory::default();
    }

    /// Records what happened: an entry of the chain, and the state that follows from it.
    pub(super) fn record(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::VolumeOpened { new, .. } => self.volume(record, &new.generation),
            Record::VolumeReady { generation, .. }
            | Record::VolumeEnded { generation, .. }
            | Record::VolumeLifted { generation, .. }
            | Record::VolumeDestroyed { generation, .. }
            | Record::ReceiptsExpired { generation, .. } => self.volume(record, generation),
            Record::PreImagesEvicted { generation, .. } => {
                let volume = self.find_volume(generation)?.ok_or_else(|| lost("a volume"))?;
                self.append(record, Subject::Job(&volume.job)).map(drop)
            }
            Record::TokenIssued(new) => self.issued(record, new),
            Record::CallIntended(intent) => {
                let prior = row::call_by_key(&self.conn, &row::scope(&intent.scope), intent.key.as_str())?;
                self.intent(record, intent, prior)
            }
            Record::CallReceipted { execution_id, .. }
            | Record::CallAborting { execution_id, .. }
            | Record::CallFreed { execution_id, .. }
            | Record::CallUnknown { execution_id, .. } => {
                let known = self
                    .take_call(execution_id)?
                    .ok_or_else(|| IllegalRecord("the end of a call that is not known".to_owned()))?;
                self.call(record, execution_id, known)
            }
            Record::RunStarted(new) => self.run(record, &new.run),
            Record::RunStaged { run, .. } | Record::RunEnded { run, .. } => self.run(record, run),
            Record::CallNoted(_)
            | Record::DraftSealed(_)
            | Record::WorktreeRestored(_)
            | Record::CommandRetried(_) => self.append(record, Subject::Own).map(drop),
            Record::DaemonStarted {
                incarnation,
                boot_id,
                version,
                policy_sha256,
                at,
            } => {
                self.append(record, Subject::Own)?;
                let policy = policy_sha256.as_ref().map(Sha256::as_bytes);
                self.execute(
                    "INSERT INTO incarnations (incarnation, boot_id, version, at_ms, policy_sha256)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    (int(incarnation.0)?, boot_id, version, int(at.0)?, policy),
                )
            }
            Record::ApprovalAsked(question) => self.asked(record, question),
            Record::ApprovalDecided { approval_id, .. } => self.decided(record, approval_id),
            Record::AttemptJudged(judgement) => {
                let seq = self.append(record, Subject::Own)?;
                self.execute(
                    "INSERT INTO judgements (generation, seq, job, proposal, json) VALUES (?1, ?2, ?3, ?4, ?5)",
                    (
                        judgement.generation.as_str(),
                        seq,
                        judgement.job.as_str(),
                        judgement.proposal.as_bytes(),
                        row::encode(judgement)?,
                    ),
                )
            }
            Record::TreePrepared(preparation) => self.prepared(record, preparation),
            Record::CertificateConsumed(consumption) => {
                self.append(record, Subject::Own)?;
                self.execute(
                    "INSERT INTO consumptions (generation, json) VALUES (?1, ?2)",
                    (consumption.generation.as_str(), row::encode(consumption)?),
                )
            }
        }
    }

    fn prepared(&mut self, record: &Record, preparation: &Preparation) -> Result<()> {
        self.append(record, Subject::Job(&preparation.job))?;
        self.execute(
            "INSERT INTO preparations (job, pin, json) VALUES (?1, ?2, ?3)
             ON CONFLICT (job) DO UPDATE SET pin = excluded.pin, json = excluded.json",
            (
                preparation.job.as_str(),
                preparation.pin.as_str(),
                row::encode(preparation)?,
            ),
        )
    }

    fn issued(&mut self, record: &Record, new: &NewToken) -> Result<()> {
        let volume = self
            .find_volume(&new.generation)?
            .ok_or_else(|| lost("a volume"))?;
        self.append(record, Subject::Job(&volume.job))?;
        self.leases = Leases::Changed;
        self.execute(
            "INSERT INTO tokens (token_sha256, generation, json) VALUES (?1, ?2, ?3)",
            (
                new.token_sha256.as_bytes(),
                new.generation.as_str(),
                row::encode(new)?,
            ),
        )
    }

    fn volume(&mut self, record: &Record, generation: &Generation) -> Result<()> {
        let prior = self.find_volume(generation)?;
        let volume = volume::apply(prior, record)?.ok_or_else(|| lost("a volume"))?;
        self.append(record, Subject::Job(&volume.job))?;
        let json = row::encode(&volume)?;
        let state = row::state_of(&volume);
        self.memory.volumes.remove(generation);
        self.leases = Leases::Changed;
        if let Record::VolumeOpened { new, .. } = record {
            self.execute(
                "INSERT INTO volumes (generation, job, attempt, fencing_token, token_sha256, role, state, json)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                (
                    generation.as_str(),
                    volume.job.as_str(),
                    int(u64::from(volume.attempt.0))?,
                    int(volume.fencing_token.0)?,
                    new.token_sha256.as_bytes(),
                    row::role_of(volume.role),
                    state,
                    json,
                ),
            )
        } else {
            self.execute(
                "UPDATE volumes SET state = ?2, json = ?3 WHERE generation = ?1",
                (generation.as_str(), state, json),
            )
        }
    }

    /// Records an intent whose key was looked up already.
    pub(super) fn intent(&mut self, record: &Record, intent: &Intent, prior: Option<CallRow>) -> Result<()> {
        let scope = row::scope(&intent.scope);
        let next = call::apply(prior.map(|row| row.state), record)?;
        let seq = self.append(record, Subject::Call(intent))?;
        self.execute(
            "INSERT INTO calls (intent_seq, scope, key, execution_id, generation, job_scoped, state, at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'running', ?7)",
            (
                seq,
                scope,
                intent.key.as_str(),
                intent.execution_id.as_str(),
                intent.generation.as_str(),
                row::job_scoped(intent),
                int(intent.at.0)?,
            ),
        )?;
        let execution = &intent.execution_id;
        self.running.insert(execution.clone(), intent.survives());
        if let Some(state) = next {
            let intent_seq = seq;
            self.memory
                .calls
                .insert(execution.clone(), CallRow { intent_seq, state });
        }
        Ok(())
    }

    /// Records what came of a call that was looked up already.
    pub(super) fn call(&mut self, record: &Record, execution: &ExecutionId, known: CallRow) -> Result<()> {
        self.memory.calls.remove(execution);
        let CallRow { intent_seq, state } = known;
        let intent = state.intent().clone();
        let next = call::apply(Some(state), record)?;
        let seq = self.append(record, Subject::Call(&intent))?;
        if let Record::CallAborting { .. } = record {
            return self.execute(
                "UPDATE calls SET aborting_seq = ?2, at_ms = ?3 WHERE intent_seq = ?1",
                (intent_seq, seq, int(record.at().0)?),
            );
        }
        self.running.remove(execution);
        let Some(next) = next else {
            return self.execute("DELETE FROM calls WHERE intent_seq = ?1", (intent_seq,));
        };
        self.execute(
            "UPDATE calls SET state = ?2, outcome_seq = ?3, at_ms = ?4 WHERE intent_seq = ?1",
            (intent_seq, row::state_of_call(&next), seq, int(record.at().0)?),
        )?;
        if let CallState::Finished { .. } = next {
            self.memory.finished.push(next);
        }
        Ok(())
    }

    fn run(&mut self, record: &Record, run: &RunId) -> Result<()> {
        let prior = self.find_run(run)?;
        let next = pipeline::apply(prior, record)?.ok_or_else(|| lost("a run"))?;
        let seq = self.append(record, Subject::Job(&next.new.job))?;
        let over = i64::from(next.end.is_some());
        let json = row::encode(&next)?;
        if let Record::RunStarted(_) = record {
            self.execute(
                "INSERT INTO runs (run, seq, job, over, json) VALUES (?1, ?2, ?3, ?4, ?5)",
                (run.as_str(), seq, next.new.job.as_str(), over, json),
            )
        } else {
            self.execute(
                "UPDATE runs SET over = ?2, json = ?3 WHERE run = ?1",
                (run.as_str(), over, json),
            )
        }
    }

    /// Adds an entry to the chain, and gives its place.
    pub(super) fn append(&mut self, record: &Record, subject: Subject<'_>) -> Result<i64> {
        let found = Found::of(record, subject);
        let survives = match subject {
            Subject::Call(intent) => intent.survives(),
            Subject::Own | Subject::Job(_) | Subject::Question(_) => Durability::Process,
        };
        let body = row::encode(record)?;
        let seq = self.head.seq + 1;
        let hash = chain(&self.head.hash, seq, RECORD_VERSION, body.as_bytes());
        let place = int(seq)?;
        self.execute(
            "INSERT INTO records (seq, at_ms, version, body, prev, hash, job, execution_id, key, conflict)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            (
                place,
                int(record.at().0)?,
                RECORD_VERSION,
                body,
                self.head.hash.as_bytes(),
                hash.as_bytes(),
                found.job,
                found.execution,
                found.key,
                found.conflict,
            ),
        )?;
        self.head = Head { seq, hash };
        self.need = self.need.max(record.sync(survives));
        Ok(place)
    }

    /// Says what the log is now.
    pub(super) fn checkpoint(&self) -> Result<Checkpoint> {
        let first = self
            .conn
            .prepare_cached("SELECT hash FROM records WHERE seq = 1")
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .map_err(fault("read the first entry"))?;
        Ok(Checkpoint {
            first: Sha256::from_bytes(first),
            size: self.head.seq,
            head: self.head.hash,
        })
    }

    /// Finds a volume.
    pub(super) fn find_volume(&self, generation: &Generation) -> Result<Option<Volume>> {
        if let Some(known) = self.memory.volumes.get(generation) {
            return Ok(Some(known.clone()));
        }
        row::json(
            &self.conn,
            "SELECT json FROM volumes WHERE generation = ?1",
            [generation.as_str()],
        )
    }

    /// Finds a volume that calls are made in, and keeps it at hand.
    pub(super) fn volume_of_calls(&mut self, generation: &Generation) -> Result<Option<&Volume>> {
        if !self.memory.volumes.contains_key(generation) {
            let Some(found) = self.find_volume(generation)? else {
                return Ok(None);
            };
            if self.memory.volumes.len() >= VOLUMES_KNOWN {
                self.memory.volumes.clear();
            }
            self.memory.volumes.insert(generation.clone(), found);
        }
        Ok(self.memory.volumes.get(generation))
    }

    /// Finds a call by its execution; what is known of it by heart is forgotten, since its state is about to change.
    pub(super) fn take_call(&mut self, execution: &ExecutionId) -> Result<Option<CallRow>> {
        match self.memory.calls.remove(execution) {
            Some(known) => Ok(Some(known)),
            None => row::call_by_execution(&self.conn, execution.as_str()),
        }
    }

    /// Finds a run.
    pub(super) fn find_run(&self, run: &RunId) -> Result<Option<Run>> {
        row::json(&self.conn, "SELECT json FROM runs WHERE run = ?1", [run.as_str()])
    }

    /// Finds one whole number; none is 0.
    pub(super) fn number(&self, sql: &str, args: impl rusqlite::Params) -> Result<u64> {
        let found: Option<Option<i64>> = self
            .conn
            .prepare_cached(sql)
            .and_then(|mut s| s.query_row(args, |row| row.get(0)).optional())
            .map_err(fault("read a number"))?;
        Ok(found.flatten().map_or(0, i64::unsigned_abs))
    }

    /// Carries out one statement that changes exactly one row.
    pub(super) fn execute(&self, sql: &'static str, args: impl rusqlite::Params) -> Result<()> {
        let doing = "write to the journal";
        self.wrote.set(true);
        let changed = self
            .conn
            .prepare_cached(sql)
            .and_then(|mut s| s.execute(args))
            .map_err(fault(doing))?;
        if changed == 1 {
            Ok(())
        } else {
            Err(lost("a row").into())
        }
    }
}

/// Says that a projection lacks what its records say is there.
pub(super) fn lost(what: &str) -> IllegalRecord {
    IllegalRecord(format!("{what} is missing that the records say is there"))
}
