//! A call through any door: from raw bytes to its answer, in the one order of checks.
//!
//! route → token → generation and fencing → empty body → key → arguments → fingerprint conflict → replay →
//! in-flight → policy → path → preconditions → intent. The route is the door's; the rest is here and in `mutate`.

use super::Gateway;
use super::answer::{Answer, Failure, Replayed, Success};
use super::arguments::{Args, Domain, InTree, Run, Understood, only_a_key, take_keys, understand};
use super::hands::Work;
use super::key::{Carried, agree};
use super::leaving::Trail;
use super::tool::{Kind, Tool};
use crate::limits;
use semel_core::call::{Event, Note, Scope, Source};
use semel_core::canonical::{Limits, is_empty_request, parse_strict};
use semel_core::ids::{ExecutionId, Generation, IdempotencyKey};
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};
use semel_host::clock;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Is what a call is sent with.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The bytes of its arguments.
    Bytes(Vec<u8>),
    /// Its arguments, read by the door with [`parse_strict`]; `Null` where there are none.
    Read(Value),
}

/// Is a call as it came through a door, with its token looked up.
#[derive(Debug)]
pub(crate) struct Call {
    /// The tool.
    pub(crate) tool: Tool,
    /// The volume that the token is of.
    pub(crate) lease: Volume,
    /// The keys that came beside the arguments.
    pub(crate) keys: Vec<Carried>,
    /// The arguments.
    pub(crate) sent: Sent,
    /// What the door found wrong with their form, such as another media type.
    pub(crate) form: Result<(), Refusal>,
    /// Where it came from.
    pub(crate) source: Source,
    /// How long it waits for the same call that runs already, where it says so.
    pub(crate) wait: Option<Duration>,
}

/// Is a call that is understood.
pub(super) struct Asked {
    pub(super) tool: Tool,
    pub(super) lease: Volume,
    pub(super) key: Option<IdempotencyKey>,
    pub(super) understood: Understood,
    pub(super) source: Source,
    wait: Option<Duration>,
    pub(super) since: Instant,
    waited_us: AtomicU64,
    gone: Arc<AtomicBool>,
    pub(super) trail: Trail,
}

impl Asked {
    /// Makes a call that a person asks for, whose keys nobody else has; it is not ended when the person goes away.
    ///
    /// # Errors
    /// `bad_input` where the name of the operator would be too long.
    pub(super) fn by_the_operator(
        tool: Tool,
        lease: Volume,
        key: IdempotencyKey,
        understood: Understood,
        source: Source,
    ) -> Result<Self, Refusal> {
        let lease = Volume {
            principal: lease.principal.operator()?,
            ..lease
        };
        Ok(Self {
            tool,
            lease,
            key: Some(key),
            understood,
            source,
            wait: None,
            since: Instant::now(),
            waited_us: AtomicU64::new(0),
            gone: Arc::new(AtomicBool::new(false)),
            trail: Trail::new(),
        })
    }

    /// Says whether the caller went away; counts only before an intent.
    pub(super) fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Says how long the caller still waits for the end of an execution: as it said, else, of a command, until it must
    /// have ended.
    pub(super) fn patience(&self) -> Duration {
        let whole = self.wait.unwrap_or_else(|| match &self.understood.args {
            Args::Run(run) => run.timeout + limits::GRACE + limits::IN_FLIGHT_WAIT,
            _ => limits::IN_FLIGHT_WAIT,
        });
        whole.saturating_sub(self.since.elapsed())
    }

    /// Says whether it runs a command.
    pub(super) const fn runs_a_command(&self) -> bool {
        matches!(self.understood.args, Args::Run(_))
    }

    /// Says what it does to the thread that it runs on.
    pub(super) const fn work(&self) -> Work {
        match self.understood.args {
            Args::Run(_) => Work::Slow,
            _ => Work::of(self.lease.durability),
        }
    }

    /// Gives within what its key means one effect.
    pub(super) fn scope(&self) -> Scope {
        let generation = match &self.understood.args {
            Args::Run(Run {
                domain: Domain::Job, ..
            }) => None,
            _ => Some(self.lease.generation.clone()),
        };
        scope_of(&self.lease, generation)
    }

    /// Waits for something, and counts how long.
    pub(super) async fn waiting<T>(&self, what: impl Future<Output = T>) -> T {
        let _counted = Counted {
            waited_us: &self.waited_us,
            since: Instant::now(),
        };
        what.await
    }

    /// Says how long it waited so far.
    pub(super) fn waited_us(&self) -> u64 {
        self.waited_us.load(Ordering::Relaxed)
    }
}

/// Counts how long was waited, also where the wait is given up.
struct Counted<'a> {
    waited_us: &'a AtomicU64,
    since: Instant,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.waited_us
            .fetch_add(micros(self.since.elapsed()), Ordering::Relaxed);
    }
}

/// Gives the scope of a key of a lease: of its generation, or, with none, of its job.
pub(super) fn scope_of(lease: &Volume, generation: Option<Generation>) -> Scope {
    Scope {
        principal: lease.principal.clone(),
        job: lease.job.clone(),
        generation,
    }
}

/// Tells a blocking step that nobody waits for it any more.
pub(super) struct Waiting(pub(super) Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Refuses a call whose generation has ended, whatever it says; `get_receipt` alone still answers.
///
/// # Errors
/// `replay_conflict`, reason `stale_generation`.
pub(crate) fn generation_lives(tool: Tool, lease: &Volume) -> Result<(), Refusal> {
    match tool.kind() {
        Kind::Journal => Ok(()),
        Kind::Mutation | Kind::Read | Kind::Person => lease.live(),
    }
}

impl Gateway {
    /// Answers a call.
    pub(crate) async fn call(self: &Arc<Self>, mut call: Call) -> Answer {
        let gone = Arc::new(AtomicBool::new(false));
        let _waiting = Waiting(gone.clone());
        let since = Instant::now();
        let sent = std::mem::replace(&mut call.sent, Sent::Read(Value::Null));
        let (key, understood) = match understood(&call, sent, &|path| {
            self.engine
                .volumes
                .in_tree(&call.lease.job, &call.lease.generation, path)
        }) {
            Ok(both) => both,
            Err(refusal) => return Err(self.refused_early(&call, refusal, since).await),
        };
        let asked = Arc::new(Asked {
            tool: call.tool,
            lease: call.lease,
            key,
            understood,
            source: call.source,
            wait: call.wait,
            since,
            waited_us: AtomicU64::new(0),
            gone,
            trail: Trail::new(),
        });
        let mine = asked.clone();
        match asked.tool.kind() {
            Kind::Mutation | Kind::Person => self.while_present(&asked, self.mutate(mine)).await,
            Kind::Read | Kind::Journal => self.while_present(&asked, self.read(mine)).await,
        }
    }

    /// Refuses a call of an ended generation, and notes it.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`.
    pub(crate) async fn admit_generation(
        self: &Arc<Self>,
        tool: Tool,
        lease: &Volume,
        source: &Source,
        keys: &[Carried],
    ) -> Result<(), Failure> {
        let Err(refusal) = generation_lives(tool, lease) else {
            return Ok(());
        };
        let mut note = note_of(tool.name(), lease, source, refused(&refusal), Instant::now());
        note.key = keys.first().and_then(|carried| carried.key().ok());
        self.note_later(note).await;
        Err(refusal.into())
    }

    /// Notes a refusal of a call that was not understood. One without arguments, such as a probe sends, leaves no
    /// entry.
    async fn refused_early(self: &Arc<Self>, call: &Call, refusal: Refusal, since: Instant) -> Failure {
        if refusal.code == Code::EmptyBodyNotReplayable {
            self.counters.empty.add();
        } else {
            self.counters.refused.add();
            let mut note = note_of(
                call.tool.name(),
                &call.lease,
                &call.source,
                refused(&refusal),
                since,
            );
            note.key = call.keys.first().and_then(|carried| carried.key().ok());
            self.note_later(note).await;
        }
        refusal.into()
    }

    /// Notes that a call was refused before its arguments were known, such as for a body that did not come whole.
    pub(crate) async fn refused_at_the_door(
        self: &Arc<Self>,
        tool: Tool,
        lease: &Volume,
        source: &Source,
        refusal: Refusal,
        since: Instant,
    ) -> Failure {
        self.counters.refused.add();
        self.note_later(note_of(tool.name(), lease, source, refused(&refusal), since))
            .await;
        refusal.into()
    }

    pub(super) async fn note_later(self: &Arc<Self>, note: Note) {
        let gateway = self.clone();
        drop(tokio::task::spawn_blocking(move || gateway.note(note)).await);
    }

    /// Notes an event without an effect. That a note is lost refuses no call: nothing depends on it.
    pub(super) fn note(&self, note: Note) {
        if self.engine.journal.note(note).is_err() {
            self.counters.unnoted.add();
        }
    }

    /// Notes what became of a call that was understood.
    pub(super) fn note_asked(&self, asked: &Asked, event: Event, execution_id: Option<ExecutionId>) {
        self.count(&event);
        let mut note = note_of(asked.tool.name(), &asked.lease, &asked.source, event, asked.since);
        note.path = asked.understood.path.clone().ok();
        note.key = asked.key.clone();
        note.fingerprint = Some(asked.understood.fingerprint);
        note.execution_id = execution_id;
        note.waited_us = Some(asked.waited_us());
        self.note(note);
    }

    /// Counts what became of a call.
    pub(super) fn count(&self, event: &Event) {
        match event {
            Event::Replayed => self.counters.replayed.add(),
            Event::Read => self.counters.reads.add(),
            Event::Refused {
                code: Code::ReplayConflict,
                ..
            } => self.counters.conflicts.add(),
            Event::Refused {
                code: Code::CallInFlight,
                ..
            } => self.counters.in_flight_refused.add(),
            Event::Refused {
                code: Code::ApprovalRequired,
                ..
            } => self.counters.asked.add(),
            Event::Refused { .. } => self.counters.refused.add(),
            Event::Suppressed { .. } => {}
        }
    }

    /// Notes a refusal before any intent, and makes the answer.
    pub(super) fn refuse(
        &self,
        asked: &Asked,
        refusal: Refusal,
        execution_id: Option<ExecutionId>,
    ) -> Answer {
        self.note_asked(asked, refused(&refusal), execution_id.clone());
        Err(Failure {
            refusal,
            execution_id,
            replayed: Replayed::No,
        })
    }

    /// Runs a call on the threads that may block; it is not ended when the caller goes away.
    pub(super) async fn by_hand<T: Send + 'static>(
        &self,
        what: Work,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let running = match self.hands.get() {
            Some(hands) => hands.of(what).spawn(work),
            None => tokio::spawn(work),
        };
        running
            .await
            .map_err(|e| Refusal::new(Code::Internal, format!("a call panicked: {e}")))
    }

    /// Runs what blocks on a thread of its own; it is not ended when the caller goes away.
    pub(in crate::engine) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Gateway>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let gateway = self.clone();
        tokio::task::spawn_blocking(move || work(&gateway))
            .await
            .map_err(|e| Refusal::new(Code::Internal, format!("a call panicked: {e}")))
    }
}

/// Gives the event of a refusal.
pub(super) fn refused(refusal: &Refusal) -> Event {
    Event::Refused {
        code: refusal.code,
        reason: refusal.reason.clone(),
    }
}

pub(super) fn note_of(tool: &str, lease: &Volume, source: &Source, event: Event, since: Instant) -> Note {
    Note {
        event,
        tool: tool.to_owned(),
        path: None,
        job: Some(lease.job.clone()),
        attempt: Some(lease.attempt),
        generation: Some(lease.generation.clone()),
        key: None,
        fingerprint: None,
        execution_id: None,
        source: source.clone(),
        took_us: micros(since.elapsed()),
        waited_us: None,
        at: clock::now(),
    }
}

/// Gives a duration as it is recorded.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn empty() -> Refusal {
    Refusal::new(Code::EmptyBodyNotReplayable, "the body holds no arguments")
}

/// Checks body, key and arguments, in this order.
fn understood(
    call: &Call,
    sent: Sent,
    in_tree: InTree<'_>,
) -> Result<(Option<IdempotencyKey>, Understood), Refusal> {
    let limits = Limits {
        bytes: limits::BODY,
        ..Limits::DEFAULT
    };
    let read = match sent {
        Sent::Bytes(bytes) if is_empty_request(&bytes) => return Err(empty()),
        Sent::Bytes(bytes) => parse_strict(&bytes, limits),
        Sent::Read(Value::Null) => return Err(empty()),
        Sent::Read(value) => Ok(value),
    };
    let mut parsed = read.map(|value| match value {
        Value::Object(arguments) => Ok(arguments),
        _ => Err(Refusal::new(Code::BadInput, "the arguments are not a JSON object").reason("wrong_type")),
    });
    if let Ok(Ok(arguments)) = &parsed
        && only_a_key(call.tool, arguments)
    {
        return Err(empty());
    }
    let mut keys = Vec::new();
    if call.tool.kind() == Kind::Mutation {
        for carried in &call.keys {
            keys.push(carried.key()?);
        }
    }
    if let Ok(Ok(arguments)) = &mut parsed {
        keys.extend(take_keys(call.tool, arguments)?);
    }
    let key = agree(keys)?;
    if key.is_none() && call.tool.kind() == Kind::Mutation {
        let why = format!("{} changes the volume and needs a key", call.tool.name());
        return Err(Refusal::new(Code::MissingIdempotencyKey, why));
    }
    call.form.clone()?;
    Ok((key, understand(call.tool, parsed??, in_tree)?))
}

/// Makes the answer of a read.
pub(super) fn read_answer(body: serde_json::Map<String, Value>) -> Success {
    Success {
        body,
        replayed: Replayed::No,
    }
}
