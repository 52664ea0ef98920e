//! A bridge: calls of a client that sends no keys, each sent to the gateway under a key of its own until it is answered for
//! good, whoever is killed meanwhile.
//!
//! Remember, durably → forward → again with the same key, where no answer came → answer → delivered → forget. It does *not*
//! know messages, beyond what an answer means; the door that reads and writes them is `mcp/bridge`.

pub(crate) mod access;
mod answer;
mod keep;
pub(crate) mod stdio;
mod way;

use self::answer::{Means, judge, refused_with, tells_of_the_call};
use self::keep::{Claim, Shared, Writer, remembered};
pub(crate) use self::way::{Hears, Incomings, Outgoing, Way, Where};
use crate::engine::host;
use crate::limits;
use crate::wire::{Unanswered, private_directory};
use semel_core::ids::{Generation, IdempotencyKey, Principal};
use semel_core::mcp::spool::{Entry, InDoubt, Line, Memory, Reach, Reissue, Salt, Spelt, Step, Unsettled};
use semel_core::mcp::{Era, era};
use semel_core::volume::Durability;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::daemon::{Keep, StateRoot};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, Semaphore};

/// Says something to a person.
pub(crate) type Says = Arc<dyn Fn(&str) + Send + Sync>;

/// Is a bridge.
pub(crate) struct Bridge {
    way: Way,
    spool: PathBuf,
    reissue: Reissue,
    says: Says,
    keys: OnceCell<Keys>,
    room: Semaphore,
    requests: AtomicU64,
}

/// Is what keys are made and remembered by.
struct Keys {
    /// Where spools lie.
    root: Arc<StateRoot>,
    memory: Shared,
    writer: Writer,
    salt: Salt,
    of: Token,
}

/// Is what the token stands for, as the gateway says it.
#[derive(Clone, Debug)]
struct Token {
    principal: Principal,
    generation: Generation,
    durability: Durability,
}

/// Ends when an entry lies on the disk.
type Kept = std::pin::Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send>>;

/// Is a call that will be forwarded once its entry lies on the disk.
pub(crate) struct Admitted {
    /// Its number among the requests of this life.
    pub(crate) request: u64,
    key: Option<IdempotencyKey>,
    kept: Option<Kept>,
    before: Before,
}

/// Says who has an entry that an earlier life left.
enum Claimed {
    Ours,
    ByAnother,
}

/// Says whether a call may have reached the gateway before, without an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Never,
    Perhaps,
}

/// Is the answer to a request.
#[derive(Debug)]
pub(crate) struct Answered {
    /// The message, as the gateway wrote it.
    pub(crate) message: Incomings,
    /// Why it is none for good, where it is not.
    pub(crate) unsettled: Option<Unsettled>,
    /// What the gateway refused with, where it did.
    pub(crate) refused: Option<Code>,
}

/// Runs what blocks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?
}

/// How long it is waited until it is noted that an answer was written: so long a thread waits for its processor at most.
const NOTED: Duration = Duration::from_secs(1);

/// What the gateway says of keys stands under this name.
const EXTENSION: &str = "dev.semel/idempotency";

impl Bridge {
    /// Makes one; nothing is sent or written yet.
    pub(crate) fn new(way: Way, spool: PathBuf, reissue: Reissue, says: Says) -> Self {
        Self {
            way,
            spool,
            reissue,
            says,
            keys: OnceCell::new(),
            room: Semaphore::new(limits::BRIDGE_FORWARDED),
            requests: AtomicU64::new(0),
        }
    }

    /// Gives a number that no other request of this life has.
    pub(crate) fn number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Admits a call without a key of its own: it gets one, or that of the call that it repeats. Calls are admitted in the
    /// order in which they came. `look` notes what the client has read by now.
    ///
    /// # Errors
    /// `replay_conflict`, reason `possible_duplicate`, where a person wishes to be asked; why there is no spool.
    pub(crate) async fn admit(
        &self,
        params: &Map<String, Value>,
        look: &(dyn Fn() + Sync),
    ) -> Result<Admitted, Refusal> {
        let keys = self.keys().await?;
        let request = self.number();
        let spelt = Spelt::of(params);
        let step = self.step(keys, params, &spelt, request, look).await?;
        let (key, line, before) = match step {
            Ok(entry) => {
                let key = entry.key.clone();
                (key, Line::Spooled(Box::new(entry)).encode()?, Before::Never)
            }
            // What it is attached to may not lie on the disk yet.
            Err(Step::Attach(key)) => (key, Vec::new(), Before::Perhaps),
            Err(Step::Ask(entry)) => return Err(self.asked(&entry).await),
            Err(Step::New | Step::Claim(_) | Step::Wait) => {
                return Err(Refusal::new(Code::Internal, "a new call has no entry"));
            }
        };
        Ok(Admitted {
            request,
            key: Some(key),
            kept: Some(Box::pin(keys.writer.append(line))),
            before,
        })
    }

    /// Decides what a call is sent as; a new one is remembered from now on.
    async fn step(
        &self,
        keys: &Keys,
        params: &Map<String, Value>,
        spelt: &Spelt,
        request: u64,
        look: &(dyn Fn() + Sync),
    ) -> Result<Result<Entry, Step>, Refusal> {
        let since = Instant::now();
        loop {
            let doubt = if since.elapsed() < NOTED {
                InDoubt::Wait
            } else {
                InDoubt::Undelivered
            };
            let (decided, over) = {
                let mut memory = remembered(&keys.memory);
                match memory.admit(spelt, request, self.reissue, doubt) {
                    Step::New => {
                        let entry = keys.entry(params, spelt)?;
                        memory.add(entry.clone(), request);
                        (Ok(entry), memory.trim(limits::BRIDGE_OPEN))
                    }
                    other => (Err(other), Vec::new()),
                }
            };
            keys.forget(over);
            match decided {
                Err(Step::Wait) => {}
                Err(Step::Claim(key)) => {
                    let claimed = keys.claim(&key).await;
                    let mut memory = remembered(&keys.memory);
                    match claimed {
                        Ok(Claimed::Ours) => return Ok(Err(Step::Attach(key))),
                        // It is looked again: without that one.
                        Ok(Claimed::ByAnother) => {
                            memory.gone(&key);
                            continue;
                        }
                        Err(refusal) => {
                            memory.left(request, None);
                            return Err(refusal);
                        }
                    }
                }
                decided => return Ok(decided),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            look();
        }
    }

    /// Admits a request that needs no key, or has one.
    pub(crate) fn admit_as_it_is(&self) -> Admitted {
        Admitted {
            request: self.number(),
            key: None,
            kept: None,
            before: Before::Never,
        }
    }

    /// Forwards a request until it is answered for good.
    ///
    /// # Errors
    /// `io_failed`, reason `spool_failed`, where its entry does not lie on the disk: it was not sent. `daemon_unreachable`
    /// where no gateway answers for too long; `bad_config` where another program does.
    pub(crate) async fn forward(
        &self,
        admitted: &mut Admitted,
        mut outgoing: Outgoing,
        hears: Hears<'_>,
    ) -> Result<Answered, Refusal> {
        if let Some(kept) = admitted.kept.take() {
            kept.await?;
        }
        let _room = self.room.acquire().await;
        let patience = match &admitted.key {
            Some(key) => {
                outgoing
                    .headers
                    .push(("idempotency-key".to_owned(), format!("\"{key}\"")));
                limits::BRIDGE_PATIENCE
            }
            None => limits::DAEMON_START,
        };
        if let Some(keys) = self.keys.get() {
            remembered(&keys.memory).sends(admitted.request);
        }
        self.settle(&outgoing, hears, patience, admitted.before).await
    }

    /// Sends a message again and again until there is an answer to tell.
    async fn settle(
        &self,
        outgoing: &Outgoing,
        hears: Hears<'_>,
        patience: Duration,
        mut before: Before,
    ) -> Result<Answered, Refusal> {
        let began = Instant::now();
        let (mut heard, mut pause) = (began, Duration::from_millis(10));
        loop {
            let after = match self.way.post(outgoing, hears).await {
                Ok(message) => {
                    let body: Option<Value> = serde_json::from_slice(&message.body).ok();
                    let means = judge(&message, body.as_ref());
                    let status = message.status;
                    let told = |unsettled| {
                        let refused = body.as_ref().and_then(refused_with);
                        Ok(Answered {
                            message,
                            unsettled,
                            refused,
                        })
                    };
                    if matches!(means, Means::Runs(_) | Means::Again(_)) {
                        before = Before::Perhaps;
                    }
                    match means {
                        Means::Runs(after) => {
                            heard = Instant::now();
                            after
                        }
                        Means::Again(after) if heard.elapsed() < patience => after,
                        // It is told as it is; the same call goes on under its key.
                        Means::Again(_) => return told(Some(Unsettled::Unknown)),
                        Means::Crowded(after) if began.elapsed() < limits::BRIDGE_CROWD => after,
                        Means::ForGood | Means::Crowded(_) => {
                            let doubted = before == Before::Perhaps && !tells_of_the_call(body.as_ref());
                            return told(doubted.then_some(Unsettled::Unknown));
                        }
                        Means::Unsettled(why) => return told(Some(why)),
                        Means::Foreign => {
                            let why = format!("what answers is no gateway of Semel: status {status}");
                            return Err(Refusal::new(Code::BadConfig, why));
                        }
                    }
                }
                Err(unanswered) => {
                    if matches!(unanswered, Unanswered::BrokenOff(_)) {
                        before = Before::Perhaps;
                    }
                    if heard.elapsed() >= patience {
                        return Err(unanswered.into_refusal());
                    }
                    if let Err(refusal) = self.way.wake().await
                        && heard.elapsed() >= patience
                    {
                        return Err(refusal);
                    }
                    Duration::ZERO
                }
            };
            tokio::time::sleep(after.max(pause).min(limits::BRIDGE_BACKOFF.max(after))).await;
            pause = (pause * 2).min(limits::BRIDGE_BACKOFF);
        }
    }

    /// Notes that an answer is being written to the client.
    pub(crate) fn writes(&self, request: u64) {
        if let Some(keys) = self.keys.get() {
            remembered(&keys.memory).writes(request);
        }
    }

    /// Notes that an answer was written to the client whole.
    pub(crate) fn written(&self, request: u64, unsettled: Option<Unsettled>) {
        let Some(keys) = self.keys.get() else { return };
        let over = {
            let mut memory = remembered(&keys.memory);
            match unsettled {
                Some(why) => memory.left(request, Some(why)),
                None => {
                    memory.written(request);
                    None
                }
            }
        };
        keys.forget(over);
    }

    /// Notes that the client goes on, where nothing says what it read: what was written to it is delivered.
    pub(crate) fn heard(&self) {
        if let Some(keys) = self.keys.get() {
            let over = remembered(&keys.memory).heard();
            keys.forget(over);
        }
    }

    /// Notes that the client has read the answers to these requests.
    pub(crate) fn read(&self, requests: &[u64]) {
        if let Some(keys) = self.keys.get().filter(|_| !requests.is_empty()) {
            let over = remembered(&keys.memory).read(requests);
            keys.forget(over);
        }
    }

    /// Notes that nobody awaits the answer to a request any more.
    pub(crate) fn left(&self, request: u64) {
        if let Some(keys) = self.keys.get() {
            let over = remembered(&keys.memory).left(request, None);
            keys.forget(over);
        }
    }

    /// Notes that the client did not take an answer that was written to it.
    pub(crate) fn untaken(&self, request: u64) {
        let Some(keys) = self.keys.get() else { return };
        let anew = remembered(&keys.memory).untaken(request);
        if let Some(line) = anew.and_then(|entry| Line::Spooled(Box::new(entry)).encode().ok()) {
            keys.writer.note(line);
        }
    }

    /// Ends: what is settled is on the disk as such, and what is open stays there.
    pub(crate) async fn end(&self) {
        if let Some(keys) = self.keys.get() {
            keys.writer.end().await;
        }
    }

    async fn keys(&self) -> Result<&Keys, Refusal> {
        self.keys.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Keys, Refusal> {
        let of = self.token().await?;
        let (dir, mine) = (self.spool.clone(), of.clone());
        let keys = blocking(move || {
            let root = Arc::new(private_directory(&dir)?);
            // What a power cut takes from the volume, nobody has to know of.
            let keep = match mine.durability {
                Durability::Process => Keep::Unsynced,
                Durability::Power | Durability::PowerBestEffort => Keep::Synced,
            };
            let concerns = |entry: &Entry| entry.reach.covers(&mine.principal, &mine.generation);
            let (spool, left) = keep::open(&root, concerns, keep)?;
            let memory = Shared::new(Memory::new(left).into());
            Ok(Keys {
                root,
                writer: Writer::start(spool, memory.clone())?,
                memory,
                salt: Salt::from_bytes(clock::random().map_err(host)?),
                of: mine,
            })
        })
        .await?;
        self.tell_of_what_is_left(&keys).await;
        Ok(keys)
    }

    /// Asks what came of the calls that earlier lives left, and tells a person; they are never sent again from here.
    async fn tell_of_what_is_left(&self, keys: &Keys) {
        const TOLD: usize = 100;
        let left: Vec<Entry> = remembered(&keys.memory)
            .left_before()
            .take(TOLD)
            .cloned()
            .collect();
        for entry in left {
            let (state, execution) = self.receipt(&entry.key).await;
            let execution = execution.map_or_else(String::new, |id| format!(", execution {id}"));
            (self.says)(&format!(
                "semel mcp: an answer of an earlier run was never delivered: {} under key {}: {state}{execution}",
                entry.tool, entry.key
            ));
        }
    }

    /// Refuses a call that may repeat another one, and says what came of that.
    async fn asked(&self, entry: &Entry) -> Refusal {
        let (state, execution) = self.receipt(&entry.key).await;
        let why = format!(
            "the same call was sent at {} under the key {}, and its answer was never delivered; what came of it: {state}",
            entry.at, entry.key
        );
        let refusal = Refusal::new(Code::ReplayConflict, why).reason("possible_duplicate");
        match execution {
            Some(id) => refusal.name(id),
            None => refusal,
        }
    }

    /// Asks what came of a key: in one word, and by which execution.
    async fn receipt(&self, key: &IdempotencyKey) -> (String, Option<String>) {
        let params = json!({"name": "get_receipt", "arguments": {"key": key}});
        let Ok(body) = self.ask("tools/call", params).await else {
            return ("the gateway does not say".to_owned(), None);
        };
        let structured = &body["result"]["structuredContent"];
        let execution = structured["execution_id"].as_str().map(str::to_owned);
        let state = structured["state"]
            .as_str()
            .or(structured["error"]["type"].as_str());
        let state = match state {
            Some("not_found") => "it never began",
            Some(state) => state,
            None => "the gateway does not say",
        };
        (state.to_owned(), execution)
    }

    /// Asks what the token stands for.
    async fn token(&self) -> Result<Token, Refusal> {
        let body = self.ask("server/discover", json!({})).await?;
        if let Some(error) = body.get("error") {
            let code = error["data"]["type"].as_str().and_then(Code::from_wire);
            let why = error["message"]
                .as_str()
                .unwrap_or("the gateway refuses the token");
            return Err(Refusal::new(code.unwrap_or(Code::BadConfig), why));
        }
        let said = &body["result"]["capabilities"]["extensions"][EXTENSION];
        let older = || {
            Refusal::new(
                Code::BadConfig,
                "the gateway does not say what the token stands for: it is older than this bridge",
            )
        };
        let text = |name: &str| said[name].as_str().ok_or_else(older);
        Ok(Token {
            principal: Principal::parse(text("principal")?)?,
            generation: Generation::parse(text("generation")?)?,
            durability: serde_json::from_value(said["durability"].clone()).map_err(|_| older())?,
        })
    }

    /// Says whether the generation of the token lives.
    ///
    /// # Errors
    /// `unauthorized`, and why no gateway answers.
    pub(crate) async fn lives(&self) -> Result<bool, Refusal> {
        let body = self.ask("server/discover", json!({})).await?;
        match body.get("error") {
            None => Ok(body["result"]["capabilities"]["extensions"][EXTENSION]["open"] == json!(true)),
            Some(error) => {
                let code = error["data"]["type"].as_str().and_then(Code::from_wire);
                Err(Refusal::new(
                    code.unwrap_or(Code::BadConfig),
                    "the gateway refuses the token",
                ))
            }
        }
    }

    /// Sends a request of the bridge's own.
    async fn ask(&self, method: &str, mut params: Value) -> Result<Value, Refusal> {
        let version = Era::V2026_07_28.name();
        params["_meta"] = json!({era::VERSION: version, era::CAPABILITIES: {}});
        let mut headers = vec![
            ("mcp-protocol-version".to_owned(), version.to_owned()),
            ("mcp-method".to_owned(), method.to_owned()),
        ];
        let name = params["name"].as_str().map(str::to_owned);
        headers.extend(name.map(|name| ("mcp-name".to_owned(), name)));
        let message = json!({"jsonrpc": "2.0", "id": "semel", "method": method, "params": params});
        let outgoing = Outgoing {
            body: message.to_string().into_bytes().into(),
            headers,
        };
        let answered = self
            .settle(&outgoing, &|_| {}, limits::DAEMON_START, Before::Never)
            .await?;
        serde_json::from_slice(&answered.message.body)
            .map_err(|e| Refusal::new(Code::Internal, format!("the answer is no message: {e}")))
    }
}

impl Keys {
    fn entry(&self, params: &Map<String, Value>, spelt: &Spelt) -> Result<Entry, Refusal> {
        let seed = clock::seed().map_err(host)?;
        let of_job = params
            .get("arguments")
            .and_then(|arguments| arguments.get("scope"))
            == Some(&json!("job"));
        let reach = Reach {
            principal: self.of.principal.clone(),
            generation: (!of_job).then(|| self.of.generation.clone()),
        };
        let key = IdempotencyKey::parse(format!("mcp-{}", seed.uuid_v7()))?;
        let tool = params.get("name").and_then(Value::as_str).unwrap_or_default();
        let tool: String = tool.chars().take(128).collect();
        Ok(Entry::new(spelt, self.salt, key, reach, &tool, clock::now()))
    }

    /// Takes the entry of a key into the spool of this life, unless another bridge has it.
    ///
    /// # Errors
    /// `unknown_state`, reason `spool_damaged`; `io_failed`.
    ///
    /// # Durability
    /// It lies in the new spool before it goes from the old one.
    async fn claim(&self, key: &IdempotencyKey) -> Result<Claimed, Refusal> {
        let (root, wanted) = (self.root.clone(), key.clone());
        let Some(claim) = blocking(move || Claim::of(&root, &wanted)).await? else {
            return Ok(Claimed::ByAnother);
        };
        // Before it is appended: a spool that is written anew holds what is remembered as lying there.
        remembered(&self.memory).claimed(key);
        self.writer.append(claim.line()?).await?;
        blocking(move || claim.take_away()).await?;
        Ok(Claimed::Ours)
    }

    fn forget(&self, over: impl IntoIterator<Item = IdempotencyKey>) {
        let lines = over
            .into_iter()
            .filter_map(|key| Line::Settled(key).encode().ok());
        let bytes: Vec<u8> = lines.flatten().collect();
        if !bytes.is_empty() {
            self.writer.note(bytes);
        }
    }
}
