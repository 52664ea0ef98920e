//! A call of a tool of another server: the same guard as of our own tools, in front of a server that knows of none.
//!
//! token → generation → key → fingerprint conflict → replay → in flight → policy → intent → forward → receipt. What the
//! server may have had is never sent to it again; what is proven never to have reached it may be.

mod send;

use super::answer::{Failure, Replayed};
use super::approval::{About, Asking};
use super::arguments::NEWEST;
use super::call::{Waiting, note_of, refused, scope_of};
use super::crash::CrashPoint;
use super::hands::Work;
use super::key::{Carried, agree};
use super::leaving::left;
use super::mutate::{in_flight, stopped, told};
use super::policy::denied;
use super::tool::KEY_ARGUMENT;
use super::{Flight, Gateway, InFlight};
use crate::config::upstream::Keys;
use crate::engine::upstream::{Found, Hears, Upstream, Wanted};
use crate::engine::{host, store};
use crate::limits;
use semel_core::approval::{Commanded, Plan};
use semel_core::call::{
    CallState, Decision, Event, Facts, FingerprintVersion, Intent, Outcome, Request, Scope, Source, admit,
};
use semel_core::canonical::to_canonical;
use semel_core::effect::Effect;
use semel_core::ids::{ExecutionId, Generation, IdempotencyKey};
use semel_core::mcp::mirror;
use semel_core::policy::{Caller, Group, Touched, Verdict};
use semel_core::upstream::{Effects, Heard, KeyArgument, Tool, UpstreamName};
use semel_core::volume::Volume;
use semel_core::{Code, Fingerprint, Refusal, RelPath, Sha256};
use semel_host::clock;
use semel_store::Began;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Is a call of a tool of another server, as it came through a door.
pub(crate) struct Forwarding {
    /// The tool, by its name here.
    pub(crate) tool: String,
    /// The volume that the token is of.
    pub(crate) lease: Volume,
    /// The keys that came beside the arguments.
    pub(crate) keys: Vec<Carried>,
    /// The arguments.
    pub(crate) arguments: Map<String, Value>,
    /// What else goes with the call.
    pub(crate) meta: Map<String, Value>,
    /// Where it came from.
    pub(crate) source: Source,
    /// How long it waits for its answer, or for that of the same call that runs already, where it says so.
    pub(crate) wait: Option<Duration>,
    /// Who is told how it goes on.
    pub(crate) hears: Option<Hears>,
}

/// Is what another server answered, now or before.
pub(crate) struct Passed {
    /// Its answer; `None` where a person settled that it happened, and nobody saw it.
    pub(crate) heard: Option<Heard>,
    /// The server.
    pub(crate) by: UpstreamName,
    /// What is recorded of it; `None` of a call that reads.
    pub(crate) recorded: Option<Recorded>,
    /// Whether it comes from a receipt.
    pub(crate) replayed: Replayed,
}

/// Is what is recorded of an answer.
pub(crate) struct Recorded {
    /// The execution.
    pub(crate) execution_id: ExecutionId,
    /// Its key.
    pub(crate) key: IdempotencyKey,
    /// Its generation.
    pub(crate) generation: Generation,
}

/// Is a call that is understood.
struct Asks {
    upstream: Arc<Upstream>,
    /// The tool, as far as its server could be asked for it.
    tool: Result<Tool, Refusal>,
    key: Option<IdempotencyKey>,
    made: (FingerprintVersion, Fingerprint),
    request: Request,
    lease: Volume,
    source: Source,
    arguments: Map<String, Value>,
    meta: Map<String, Value>,
    hears: Option<Hears>,
    wait: Option<Duration>,
    since: Instant,
    gone: Arc<AtomicBool>,
}

type Answered = Result<Passed, Failure>;

/// Is where a look at what is known of a call ends.
enum Look {
    /// With its answer.
    Answer(Box<Answered>),
    /// The same call runs.
    Wait(ExecutionId),
    /// It is to be sent.
    Send(Box<Tool>),
}

/// Is how a call begins.
enum Begins {
    /// Its intent is recorded.
    Now(Box<Intent>, InFlight),
    /// The same call was faster: it is looked at again.
    Known,
    /// It does not.
    Not(Failure),
}

impl Asks {
    fn scope(&self) -> Scope {
        scope_of(&self.lease, Some(self.lease.generation.clone()))
    }

    fn caller(&self, group: Group) -> Caller<'_> {
        Caller {
            tool: &self.request.tool,
            group,
            role: self.lease.role,
        }
    }

    /// Makes what the server is sent.
    fn wanted(&self, tool: &Tool) -> Wanted<'static> {
        let mut meta = self.meta.clone();
        let mut headers: Vec<(String, String)> = Vec::new();
        if let Some(key) = self.told_key(tool) {
            meta.insert("dev.semel/idempotencyKey".to_owned(), json!(key));
            headers.push(("idempotency-key".to_owned(), format!("\"{}\"", escaped(&key))));
        }
        for (argument, header) in &tool.mirrored {
            let spelt = self.arguments.get(argument).and_then(mirror::spelt);
            headers.extend(spelt.map(|value| (header.clone(), mirror::encode(&value))));
        }
        let mut params = Map::new();
        params.insert("name".to_owned(), json!(tool.name));
        params.insert("arguments".to_owned(), Value::Object(self.arguments.clone()));
        if !meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        Wanted {
            method: "tools/call",
            params,
            headers,
            timeout: self.upstream.configured.timeout,
            hears: self.hears.clone(),
        }
    }

    /// Gives the key that the server is told. Equal keys of two jobs or two generations are two calls here: to a server
    /// that goes by keys they must not be one.
    fn told_key(&self, tool: &Tool) -> Option<String> {
        let key = self.key.as_ref().filter(|_| tool.effect == Effects::Changes)?;
        match self.upstream.configured.keys {
            Keys::None => None,
            Keys::AsIs => Some(key.to_string()),
            Keys::Scoped => {
                let whole = json!({"key": key, "scope": self.scope()});
                Some(format!("semel-{}", Sha256::of(&to_canonical(&whole))))
            }
        }
    }

    fn failure(refusal: Refusal, execution_id: Option<ExecutionId>) -> Failure {
        Failure {
            refusal,
            execution_id,
            replayed: Replayed::No,
        }
    }
}

/// Writes text as it stands in a quoted string of a header.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

impl Gateway {
    /// Answers a call of a tool of another server.
    ///
    /// # Errors
    /// `not_found` for a tool that no server has; those of keys and admission as of our own tools; `io_failed`, reason
    /// `upstream_unavailable`, where its server cannot be asked, and nothing was done; `outcome_unknown` where the server
    /// may have had the call, and gave no answer.
    pub(crate) async fn forward(self: &Arc<Self>, call: Forwarding) -> Answered {
        let gone = Arc::new(AtomicBool::new(false));
        let _waiting = Waiting(gone.clone());
        let since = Instant::now();
        let unknown = || Refusal::new(Code::NotFound, "there is no such tool").name(&call.tool);
        let Some(upstream) = self.upstreams.of_tool(&call.tool).cloned() else {
            return Err(unknown().into());
        };
        let early = Early {
            tool: call.tool.clone(),
            lease: call.lease.clone(),
            source: call.source.clone(),
            since,
        };
        if let Err(refusal) = call.lease.live() {
            return Err(self.turned_away(early, refusal).await);
        }
        let tool = match upstream.find(&call.tool).await {
            Found::None => return Err(unknown().into()),
            Found::Listed(tool) => Ok(tool),
            Found::Unknown(refusal) => Err(refusal),
        };
        let asks = match understood(call, upstream, tool, (since, gone)) {
            Ok(asks) => Arc::new(asks),
            Err(refusal) => return Err(self.turned_away(early, refusal).await),
        };
        match &asks.tool {
            Ok(tool) if tool.effect == Effects::Reads => match self.began(&asks).await {
                Ok(false) => self.passed_on(&asks, tool).await,
                Ok(true) => self.forwarded(&asks).await,
                Err(refusal) => Err(refusal.into()),
            },
            Ok(_) | Err(_) => self.forwarded(&asks).await,
        }
    }

    /// Says whether this very call was begun under its key while its server did not say yet that the tool only reads.
    async fn began(self: &Arc<Self>, asks: &Arc<Asks>) -> Result<bool, Refusal> {
        if asks.key.is_none() {
            return Ok(false);
        }
        let (gateway, mine) = (self.clone(), asks.clone());
        let looked = self.by_hand(Work::Quick, async move {
            let Some(key) = &mine.key else { return Ok(false) };
            let prior = gateway.known_here(&mine, &mine.scope(), key).map_err(store)?;
            // A key says nothing of a call that reads: with any other call it is not in conflict.
            let same = |decided: Decision| {
                !matches!(decided, Decision::Refuse(refusal) if refusal.code == Code::ReplayConflict)
            };
            Ok(prior.is_some() && same(admit(prior.as_ref(), &mine.request)))
        });
        looked.await?
    }

    /// Notes a refusal of a call that was not understood.
    async fn turned_away(self: &Arc<Self>, early: Early, refusal: Refusal) -> Failure {
        self.counters.refused.add();
        let note = note_of(
            &early.tool,
            &early.lease,
            &early.source,
            refused(&refusal),
            early.since,
        );
        self.note_later(note).await;
        refusal.into()
    }

    /// Answers a call that has effects, once.
    async fn forwarded(self: &Arc<Self>, asks: &Arc<Asks>) -> Answered {
        let until = Instant::now() + asks.wait.unwrap_or(limits::IN_FLIGHT_WAIT);
        loop {
            let mine = asks.clone();
            let gateway = self.clone();
            let looked = self.by_hand(Work::Slow, async move { gateway.looked(&mine) });
            let tool = match looked.await.map_err(Failure::from)? {
                Look::Answer(answer) => return *answer,
                Look::Send(tool) => *tool,
                Look::Wait(execution) => {
                    if self.waited(&execution, until).await == Flight::Ended {
                        continue;
                    }
                    let why = "the first call with this key is still running";
                    return Err(self
                        .later(asks, in_flight(why).name(execution.as_str()), Some(execution))
                        .await);
                }
            };
            // It is up before anything is recorded: a server that does not start leaves nothing open.
            let link = match asks.upstream.link().await {
                Ok(link) => link,
                Err(refusal) => return Err(self.later(asks, refusal, None).await),
            };
            let permit = self.permit()?;
            let pass = self.pass(&asks.lease.generation).await;
            // Whoever goes away ends nothing: what is recorded is sent, and what is sent is recorded.
            let (gateway, mine) = (self.clone(), asks.clone());
            let (tell, told) = oneshot::channel();
            let sent = tokio::spawn(async move {
                let sending = gateway.clone();
                let work = async move {
                    match sending.begins(&mine, &tool).await {
                        Begins::Known => None,
                        Begins::Not(failure) => Some(Err(failure)),
                        Begins::Now(intent, flight) => {
                            drop(tell.send(intent.execution_id.clone()));
                            let answer = sending.sent(&mine, &tool, &intent, link).await;
                            drop(flight);
                            Some(answer)
                        }
                    }
                };
                let answer = gateway.by_hand(Work::Slow, work).await;
                drop((permit, pass));
                answer.unwrap_or_else(|refusal| {
                    // A panic may have left an intent without its receipt: recovery looks at it.
                    gateway.poison(&refusal);
                    Some(Err(refusal.into()))
                })
            });
            let most = asks.wait.unwrap_or(Duration::MAX);
            match tokio::time::timeout(most, sent).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(answer))) => return answer,
                Ok(Err(_)) => return Err(stopped().into()),
                Err(_) => {
                    let refusal = in_flight("the other server is still at it");
                    return Err(match told.await {
                        Ok(execution) => {
                            let refusal = refusal.name(execution.as_str());
                            self.later(asks, refusal, Some(execution)).await
                        }
                        Err(_) => self.later(asks, refusal, None).await,
                    });
                }
            }
        }
    }

    /// Waits for the end of an execution.
    async fn waited(&self, execution: &ExecutionId, until: Instant) -> Flight {
        let Some(mut flight) = self.flight(execution) else {
            // Between the receipt and this look it ended.
            tokio::time::sleep(Duration::from_millis(2)).await;
            return if Instant::now() < until {
                Flight::Ended
            } else {
                Flight::Running
            };
        };
        let ended = flight.wait_for(|now| *now == Flight::Ended);
        match tokio::time::timeout_at(until.into(), ended).await {
            Ok(_) => Flight::Ended,
            Err(_) => Flight::Running,
        }
    }

    /// Looks at what is known of a key, and asks the policy where nothing is. It blocks.
    fn looked(&self, asks: &Asks) -> Look {
        let answer = |answer: Answered| Look::Answer(Box::new(answer));
        let no = |refusal: Refusal, execution: Option<ExecutionId>| {
            answer(Err(self.refuse_forwarded(asks, refusal, execution)))
        };
        let Some(key) = &asks.key else {
            let why = "a call that changes something came without a key";
            return no(Refusal::new(Code::Internal, why), None);
        };
        let scope = asks.scope();
        let prior = match self.known_here(asks, &scope, key) {
            Ok(prior) => prior,
            Err(error) => return no(store(error), None),
        };
        match admit(prior.as_ref(), &asks.request) {
            Decision::Execute => {}
            Decision::Wait { execution_id } => return Look::Wait(execution_id),
            Decision::Refuse(refusal) => {
                let named = refusal
                    .names
                    .first()
                    .and_then(|name| ExecutionId::parse(name).ok());
                return no(refusal, named);
            }
            Decision::Replay { intent, receipt } => {
                let execution = Some(intent.execution_id.clone());
                if let Err(refusal) = self.keeps_receipt(&asks.lease, &intent) {
                    return no(refusal, execution);
                }
                self.note_forwarded(asks, Event::Replayed, execution);
                return answer(answer_of(
                    &asks.upstream.name,
                    &intent,
                    &receipt.outcome,
                    Replayed::Yes,
                ));
            }
        }
        let may = match &asks.tool {
            Err(refusal) => Err(refusal.clone()),
            Ok(tool) => self
                .asked_before(&scope, key, &asks.request)
                .and_then(|()| self.open_for_effects())
                .and_then(|()| self.may_forward(asks, Group::Mutate))
                .map(|()| tool.clone()),
        };
        match may {
            Ok(tool) => Look::Send(Box::new(tool)),
            Err(refusal) => no(refusal, None),
        }
    }

    /// Finds what is known of a key, in the generation or in the job.
    fn known_here(
        &self,
        asks: &Asks,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<CallState>, semel_store::Error> {
        let journal = &self.engine.journal;
        match journal.prior(scope.clone(), key.clone())? {
            Some(state) => Ok(Some(state)),
            None => journal.prior_of(&asks.lease.generation, scope_of(&asks.lease, None), key.clone()),
        }
    }

    /// Asks the policy: a server may touch whatever there is, so the strictest rule that is about the tool decides.
    ///
    /// # Errors
    /// `denied`; those of an approval.
    fn may_forward(&self, asks: &Asks, group: Group) -> Result<(), Refusal> {
        let Some(in_force) = &self.policy else {
            return Ok(());
        };
        let judged = in_force.policy.judge(asks.caller(group), [Touched::Everything]);
        let ground = match judged.verdict {
            Verdict::Allow => return Ok(()),
            Verdict::Deny(ground) => return Err(denied(ground, &asks.request.tool)),
            Verdict::Git => {
                let why = "a server may touch what belongs to git, and no rule opens that";
                return Err(Refusal::new(Code::Denied, why)
                    .reason("policy")
                    .name(&asks.request.tool));
            }
            Verdict::Ask(ground) => ground,
        };
        let says = format!("{} {}", asks.request.tool, Value::Object(asks.arguments.clone()));
        let asking = Asking {
            ground,
            policy_sha256: in_force.sha256,
            plan: Plan {
                command: Some(Commanded::new(&says, Vec::new())),
                ..Plan::default()
            },
        };
        let about = About {
            lease: &asks.lease,
            scope: asks.scope(),
            key: asks.key.as_ref().filter(|_| group == Group::Mutate),
            made: asks.made,
            source: &asks.source,
        };
        self.approved_about(about, &asks.request, &asking)
    }

    /// Records the intent.
    async fn begins(self: &Arc<Self>, asks: &Asks, tool: &Tool) -> Begins {
        let no = |refusal: Refusal| Begins::Not(self.refuse_forwarded(asks, refusal, None));
        self.hooks.reached(CrashPoint::Checked);
        let (Some(key), false) = (&asks.key, asks.gone.load(Ordering::Acquire)) else {
            return no(left());
        };
        // The volume may have ended, or the key been used, while its server was started.
        if let Err(refusal) = self.open_for_effects() {
            return no(refusal);
        }
        let seed = match clock::seed() {
            Ok(seed) => seed,
            Err(error) => return no(host(error)),
        };
        let execution = ExecutionId::mint(seed);
        let intent = Intent {
            execution_id: execution.clone(),
            scope: asks.scope(),
            key: key.clone(),
            fingerprint: asks.made.1,
            fingerprint_version: asks.made.0,
            tool: asks.request.tool.clone(),
            path: asks.request.path.clone(),
            attempt: asks.lease.attempt,
            generation: asks.lease.generation.clone(),
            fencing_token: asks.lease.fencing_token,
            durability: asks.lease.durability,
            effects: vec![Effect::Forward {
                to: asks.upstream.name.clone(),
                tool: tool.name.clone(),
            }],
            facts: Facts::default(),
            source: asks.source.clone(),
            at: clock::now(),
        };
        match self.known_here(asks, &intent.scope, key) {
            Ok(None) => {}
            Ok(Some(_)) => return Begins::Known,
            Err(error) => return no(store(error)),
        }
        let flight = self.takes_off(&execution);
        let journal = &self.engine.journal;
        match told(|then| journal.begin_then(intent.clone(), then)).await {
            Ok(Began::Began) => Begins::Now(Box::new(intent), flight),
            Ok(Began::Prior(_)) => Begins::Known,
            Err(semel_store::Error::Refused(refusal)) => no(refusal),
            Err(error) => {
                self.poison(&store(error));
                Begins::Not(stopped().into())
            }
        }
    }

    async fn later(
        self: &Arc<Self>,
        asks: &Arc<Asks>,
        refusal: Refusal,
        execution: Option<ExecutionId>,
    ) -> Failure {
        let (mine, told) = (asks.clone(), refusal.clone());
        let noted = self.blocking(move |gateway| gateway.refuse_forwarded(&mine, told, execution));
        noted.await.unwrap_or_else(|_| refusal.into())
    }

    /// Notes a refusal before any intent, and makes the answer.
    fn refuse_forwarded(&self, asks: &Asks, refusal: Refusal, execution_id: Option<ExecutionId>) -> Failure {
        self.note_forwarded(asks, refused(&refusal), execution_id.clone());
        Asks::failure(refusal, execution_id)
    }

    fn note_forwarded(&self, asks: &Asks, event: Event, execution_id: Option<ExecutionId>) {
        self.count(&event);
        let mut note = note_of(&asks.request.tool, &asks.lease, &asks.source, event, asks.since);
        note.key = asks.key.clone();
        note.fingerprint = Some(asks.made.1);
        note.execution_id = execution_id;
        self.note(note);
    }
}

/// Is what is noted of a call that is refused before it is understood.
struct Early {
    tool: String,
    lease: Volume,
    source: Source,
    since: Instant,
}

/// Reads the key and the arguments of a call.
///
/// # Errors
/// Those of keys; `missing_idempotency_key`; what keeps its server from being asked, where it has to be.
fn understood(
    call: Forwarding,
    upstream: Arc<Upstream>,
    tool: Result<Tool, Refusal>,
    (since, gone): (Instant, Arc<AtomicBool>),
) -> Result<Asks, Refusal> {
    let mut arguments = call.arguments;
    let changes = !matches!(&tool, Ok(tool) if tool.effect == Effects::Reads);
    let mut keys = Vec::new();
    for carried in &call.keys {
        match carried.key() {
            Ok(key) => keys.push(key),
            Err(refusal) if changes => return Err(refusal),
            Err(_) => {}
        }
    }
    match &tool {
        Ok(tool) if tool.key == KeyArgument::Own => {}
        // Whose it is, its server alone can say.
        Err(refusal) if arguments.contains_key(KEY_ARGUMENT) => return Err(refusal.clone()),
        Ok(_) | Err(_) => match arguments.remove(KEY_ARGUMENT) {
            None => {}
            Some(Value::String(text)) => keys.push(IdempotencyKey::parse(text)?),
            Some(_) => {
                let why = "the key among the arguments is not text";
                return Err(Refusal::new(Code::InvalidIdempotencyKey, why).name(KEY_ARGUMENT));
            }
        },
    }
    // Of a call that reads a key says at most that it was another one before.
    let key = match agree(keys) {
        Err(refusal) if changes => return Err(refusal),
        agreed => agreed.ok().flatten(),
    };
    if key.is_none() && changes {
        let why = format!("{} does not say that it only reads, and needs a key", call.tool);
        return Err(match &tool {
            Ok(_) => Refusal::new(Code::MissingIdempotencyKey, why),
            Err(refusal) => refusal.clone(),
        });
    }
    let said = json!({"arguments": arguments, "path": "", "tool": call.tool, "version": NEWEST.0});
    let made = (NEWEST, Fingerprint::of_canonical(&to_canonical(&said)));
    Ok(Asks {
        upstream,
        tool,
        key,
        made,
        request: Request {
            fingerprints: vec![made],
            tool: call.tool,
            path: RelPath::root(),
        },
        lease: call.lease,
        source: call.source,
        arguments,
        meta: call.meta,
        hears: call.hears,
        wait: call.wait,
        since,
        gone,
    })
}

/// Gives the answer of a call that has its receipt.
fn answer_of(by: &UpstreamName, intent: &Intent, outcome: &Outcome, replayed: Replayed) -> Answered {
    match outcome {
        Outcome::Done(done) => Ok(Passed {
            heard: done.forwarded.as_deref().cloned(),
            by: by.clone(),
            recorded: Some(Recorded {
                execution_id: intent.execution_id.clone(),
                key: intent.key.clone(),
                generation: intent.generation.clone(),
            }),
            replayed,
        }),
        Outcome::Refused { refusal } => Err(Failure {
            refusal: refusal.clone(),
            execution_id: Some(intent.execution_id.clone()),
            replayed,
        }),
    }
}
