//! What only the operator may ask of the daemon: verbs of the journal for the commands, and its status.

use crate::engine::gateway::Gateway;
use crate::engine::gateway::quota;
use crate::engine::gateway::recover;
use crate::engine::gateway::standing::Standing;
use crate::engine::job::draft::{self, Keep};
use crate::engine::proposal::Base;
use crate::engine::volume::{self, Source, Wanted};
use crate::engine::{host, store};
use crate::wire::Reached;
use semel_core::backend;
use semel_core::bounds::Asked;
use semel_core::call::{Resolved, Settled};
use semel_core::canonical::{Limits, parse_strict};
use semel_core::ids::{ExecutionId, FencingToken, Generation, JobId};
use semel_core::volume::{Durability, End, Owner, Role, VolumeState};
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::process::Cancel;
use semel_store::Verb;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Asks for a volume through the admin API.
///
/// # Shape
/// `{"job":"…","role":"draft","durability":"process","backend":"auto","from":"/abs/dir"}`, or instead of `from`
/// `"git":{"repository":"/abs/dir","commit":"…"}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenVolume {
    job: JobId,
    #[serde(default = "draft")]
    role: Role,
    #[serde(default = "process")]
    durability: Durability,
    #[serde(default)]
    backend: backend::Wanted,
    from: Option<PathBuf>,
    git: Option<Map<String, Value>>,
}

/// Asks for the end of a volume through the admin API.
///
/// # Shape
/// `{"end":"clean"}` or `{"end":"dirty"}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndVolume {
    end: How,
}

/// Settles a call whose outcome is unknown.
///
/// # Shape
/// `{"settled":"happened"|"never_happened","by":"…","note":"…"}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resolve {
    settled: Settled,
    by: String,
    note: String,
}

/// Says how a person ends a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// The attempt ended by itself.
    Clean,
    /// It did not.
    Dirty,
}

impl How {
    /// Gives the end that the journal records.
    pub(crate) fn end(self) -> End {
        match self {
            Self::Clean => End::Clean,
            Self::Dirty => End::Dirty {
                reason: "ended_dirty".to_owned(),
            },
        }
    }
}

/// Names a volume that is to end.
#[derive(Clone, Debug)]
struct Closes {
    generation: Generation,
    end: End,
    /// The fence of whoever asks; a person has none.
    fencing_token: Option<FencingToken>,
}

impl Closes {
    /// Says whether the volume is open and may be ended; what may not is refused by the ending itself, and its commands
    /// go on.
    ///
    /// # Errors
    /// `not_found`; for a person, `volume_busy` while a process owns it.
    fn may_end(&self, gateway: &Gateway) -> Result<bool, Refusal> {
        let known = volume::find(&gateway.engine, &self.generation)?;
        match self.fencing_token {
            Some(fence) => Ok(known.state == VolumeState::Open && known.fencing_token == fence),
            None => {
                volume::nobody_owns(&gateway.engine, &known)?;
                Ok(known.state == VolumeState::Open)
            }
        }
    }
}

const fn draft() -> Role {
    Role::Draft
}

const fn process() -> Durability {
    Durability::Process
}

/// Reads a request of a few words, as its JSON Schema says it and not in the other spellings that serde would take: a
/// list in place of an object, `null` in place of nothing.
///
/// # Errors
/// `bad_input` where it does not parse.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Refusal> {
    let value = parse_strict(body, Limits::DEFAULT)?;
    if !value.is_object() {
        let why = "the body is not a JSON object";
        return Err(Refusal::new(Code::BadInput, why).reason("wrong_type"));
    }
    if has_null(&value) {
        let why = "null stands for nothing here; leave the member out";
        return Err(Refusal::new(Code::BadInput, why).reason("wrong_type"));
    }
    parsed(value)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.iter().any(has_null),
        Value::Object(members) => members.values().any(has_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn parsed<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))
}

/// Gives the face of a volume that was opened.
pub(crate) fn opened_json(opened: &volume::Opened, reached: Option<&Reached>) -> Value {
    json!({
        "schema": "semel.volume.opened/v1",
        "job": opened.volume.job,
        "role": opened.volume.role,
        "generation": opened.volume.generation,
        "attempt": opened.volume.attempt,
        "fencing_token": opened.volume.fencing_token,
        "durability": opened.volume.durability,
        "backend": opened.choice.backend,
        "backend_why": opened.choice.why,
        "token": opened.token,
        "url": reached.map(|reached| &reached.url),
        "socket": reached.map(|reached| &reached.socket),
        "tree": opened.disk.tree_path().display().to_string(),
    })
}

impl Gateway {
    /// Carries out a verb that a command sent.
    ///
    /// The end of a volume waits until no call works in it.
    ///
    /// # Errors
    /// `bad_input`; `replay_conflict`, reason `stale_generation`, where the job of that hold was taken over; those of the
    /// verb.
    pub(crate) async fn verb(self: &Arc<Self>, body: &[u8], by: Option<Standing>) -> Result<Value, Refusal> {
        let verb: Verb =
            serde_json::from_slice(body).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
        let closes = match &verb {
            Verb::EndVolume {
                generation,
                fencing_token,
                end,
                ..
            } => Some(Closes {
                generation: generation.clone(),
                end: end.clone(),
                fencing_token: Some(*fencing_token),
            }),
            _ => None,
        };
        let stands = match &by {
            Some(by) => Some(self.holds.begin(by).await?),
            None => None,
        };
        self.closing(closes, move |gateway| {
            // It goes on where whoever asked went away.
            let _stands = stands;
            verb.serve(&*gateway.engine.journal).map_err(store)
        })
        .await
    }

    /// Opens a volume for a person.
    ///
    /// # Errors
    /// `bad_input`; those of opening.
    pub(crate) async fn open_volume(self: &Arc<Self>, body: &[u8]) -> Result<Value, Refusal> {
        let asked: OpenVolume = read(body)?;
        if let Some(base) = asked.git {
            if asked.from.is_some() {
                return Err(
                    Refusal::new(Code::BadInput, "a volume holds a directory or a commit, not both")
                        .name("git"),
                );
            }
            if asked.role != Role::Draft {
                let why = "a commit is opened as a draft; certifications open their own volumes";
                return Err(Refusal::new(Code::BadInput, why).name("role"));
            }
            let base: Base = parsed(Value::Object(base))?;
            let job = asked.job;
            let keep = Keep {
                durability: asked.durability,
                owner: Owner::Operator,
                confinement: None,
                backend: asked.backend,
            };
            return self
                .closing(None, move |gateway| {
                    let cancel = Cancel::new().map_err(host)?;
                    let around = gateway.surroundings()?.clone();
                    let draft = draft::open(&gateway.engine, &job, &base, keep, &cancel)?;
                    around.showing(&draft.alternates).tell(&draft.opened.disk)?;
                    Ok(opened_json(&draft.opened, None))
                })
                .await;
        }
        let wanted = Wanted {
            job: asked.job,
            role: asked.role,
            owner: Owner::Operator,
            durability: asked.durability,
            confinement: None,
            backend: asked.backend,
            source: asked.from.map_or(Source::Empty, Source::Dir),
        };
        self.closing(None, move |gateway| {
            volume::open(&gateway.engine, wanted).map(|opened| opened_json(&opened, None))
        })
        .await
    }

    /// Ends a volume for a person.
    ///
    /// # Errors
    /// `bad_input`; those of ending.
    pub(crate) async fn end_volume(
        self: &Arc<Self>,
        generation: &str,
        body: &[u8],
    ) -> Result<Value, Refusal> {
        let generation = Generation::parse(generation)?;
        let asked: EndVolume = read(body)?;
        let end = {
            let of = generation.clone();
            let given = move |gateway: &Arc<Gateway>| {
                let known = volume::find(&gateway.engine, &of)?;
                volume::end_of_hand(&gateway.engine, &known, asked.end.end())
            };
            self.blocking(given).await??
        };
        let closes = Closes {
            generation: generation.clone(),
            end,
            fencing_token: None,
        };
        self.closing(Some(closes), move |gateway| {
            let ended = volume::end_by_hand(&gateway.engine, &generation, asked.end.end())?;
            Ok(json!({"schema": "semel.volume/v1", "volume": ended}))
        })
        .await
    }

    /// Settles a call whose outcome is unknown, by a person's word; where it was the last one that made its volume
    /// dirty, the mark is lifted.
    ///
    /// # Errors
    /// `bad_input` for an empty note; `not_found`; `precondition_failed`, reason `not_unknown`.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        execution: ExecutionId,
        body: &[u8],
    ) -> Result<Value, Refusal> {
        let asked: Resolve = read(body)?;
        if asked.note.trim().is_empty() || asked.by.trim().is_empty() {
            let why = "what a person settles needs a name and a note";
            return Err(Refusal::new(Code::BadInput, why).names(["by", "note"]));
        }
        self.blocking(move |gateway| {
            let engine = &gateway.engine;
            let known = engine.journal.execution(execution.clone()).map_err(store)?;
            let generation = known.map(|state| state.intent().generation.clone());
            let resolved = Resolved {
                by: asked.by,
                note: asked.note,
            };
            let settled = engine
                .journal
                .resolve(execution.clone(), asked.settled, resolved, clock::now())
                .map_err(store)?;
            let volume = match generation {
                Some(generation) => Some(volume::find(engine, &generation)?),
                None => None,
            };
            if let Some(lifted) = volume
                .as_ref()
                .filter(|volume| volume.state == VolumeState::Clean)
            {
                volume::marked(engine, lifted, &End::Clean)?;
            }
            Ok(json!({
                "schema": "semel.resolve/v1",
                "execution_id": execution,
                "settled": asked.settled,
                "call": settled,
                "volume_state": volume.map(|volume| volume.state),
            }))
        })
        .await?
    }

    /// Does something that may end a volume: no call works in it meanwhile, and its commands have ended before, where
    /// it is to end at all.
    async fn closing(
        self: &Arc<Self>,
        closes: Option<Closes>,
        work: impl FnOnce(&Arc<Gateway>) -> Result<Value, Refusal> + Send + 'static,
    ) -> Result<Value, Refusal> {
        let closed = match &closes {
            Some(closes) => {
                let closed = self.close(&closes.generation).await;
                let (may, looked) = (closes.clone(), self.clone());
                if self.blocking(move |_| may.may_end(&looked)).await?? {
                    self.end_commands(&closes.generation, &closes.end).await?;
                }
                Some(closed)
            }
            None => None,
        };
        self.blocking(move |gateway| {
            let answer = work(gateway);
            match (&answer, &closes) {
                (Ok(_), Some(closes)) => gateway.forget(&closes.generation),
                // What was kept from being written goes on, where the end was refused.
                (Err(_), Some(closes)) => gateway.goes_on(&closes.generation),
                (_, None) => {}
            }
            drop(closed);
            answer
        })
        .await?
    }

    /// Ends the volumes whose owner died, with their commands.
    async fn end_orphans(self: &Arc<Self>) -> Result<Vec<Generation>, Refusal> {
        let orphans = self
            .blocking(|gateway| recover::orphans(&gateway.engine))
            .await??;
        for orphan in &orphans {
            let end = {
                let orphan = orphan.clone();
                self.blocking(move |gateway| volume::end_of_dead(&gateway.engine, &orphan))
                    .await??
            };
            let closes = Closes {
                generation: orphan.generation.clone(),
                end: end.clone(),
                fencing_token: None,
            };
            let of = orphan.generation.clone();
            let ended = self
                .closing(Some(closes), move |gateway| {
                    volume::end(&gateway.engine, &of, end).map(|_| Value::Null)
                })
                .await;
            match ended {
                // Somebody else ended it meanwhile.
                Err(refusal) if refusal.code == Code::ReplayConflict => {}
                ended => drop(ended?),
            }
        }
        Ok(orphans.into_iter().map(|orphan| orphan.generation).collect())
    }

    /// Ends a volume that is over its quota, with its commands; whoever owns it finds it ended.
    ///
    /// # Errors
    /// Those of ending; `replay_conflict` where somebody else ended it meanwhile.
    pub(crate) async fn end_over_quota(
        self: &Arc<Self>,
        generation: Generation,
        fence: FencingToken,
    ) -> Result<(), Refusal> {
        let end = End::Dirty {
            reason: quota::REASON.to_owned(),
        };
        let closes = Closes {
            generation: generation.clone(),
            end: end.clone(),
            fencing_token: Some(fence),
        };
        self.closing(Some(closes), move |gateway| {
            volume::end(&gateway.engine, &generation, end).map(|_| Value::Null)
        })
        .await
        .map(drop)
    }

    /// Says how the daemon is; ends the volumes whose owner died meanwhile.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(crate) async fn status(self: &Arc<Self>, about: Arc<Value>) -> Result<Value, Refusal> {
        let ended = self.end_orphans().await?;
        self.blocking(move |gateway| {
            let journal = gateway.engine.journal.status().map_err(store)?;
            let phase = *gateway.phase().borrow();
            Ok(json!({
                "schema": "semel.daemon.status/v1",
                "daemon": *about,
                "phase": phase,
                "poisoned": gateway.poisoned(),
                "in_flight": gateway.in_flight(),
                "answering": gateway.answering(),
                "counted": gateway.counters.read(),
                "journal": journal,
                "limits": gateway.engine.config.bounds(Asked::default()),
                "approvals_pending": gateway.approvals_pending(),
                "checkpoints": gateway.keeper.json(),
                "orphans_ended": ended,
                "commands": gateway.commands_running(),
                "lock_waits": gateway.lock_waits.list(),
                "aside": gateway.reaping.list(),
            }))
        })
        .await?
    }

    /// Says whether any volume is held open by somebody who lives: a person, or a process with its lock; or a command
    /// runs.
    pub(crate) fn held_open(&self) -> bool {
        if self.commands_running() > 0 {
            return true;
        }
        self.engine.journal.volumes(None).is_ok_and(|volumes| {
            volumes.iter().any(|volume| match (volume.state, volume.owner) {
                (VolumeState::Open, Owner::Operator) => true,
                (VolumeState::Open, Owner::Process) => self
                    .engine
                    .volumes
                    .records(&volume.job, &volume.generation)
                    .is_ok_and(|disk| semel_host::volume::owner_alive(&disk).unwrap_or(true)),
                (VolumeState::Opening, _) => true,
                _ => false,
            })
        })
    }
}
