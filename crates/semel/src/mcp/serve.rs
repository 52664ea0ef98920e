//! What each method is answered with.

use super::call;
use super::fixture::Fixture;
use super::list;
use super::tasks::{self, About};
use crate::engine::gateway::Gateway;
use crate::engine::gateway::answer::Replayed;
use crate::engine::gateway::key::Carried;
use crate::limits;
use semel_core::call::Source;
use semel_core::mcp::{Era, Error, Request, era, rpc};
use semel_core::volume::Lease;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// The extension under which keys are told of: in `capabilities.extensions`, or `experimental` of older revisions.
pub(super) const EXTENSION: &str = "dev.semel/idempotency";

/// How long the answers to lists may be kept, in milliseconds: they change with the binary alone.
const KEPT_MS: u64 = 300_000;
/// How long a list may be kept in which tools of other servers stand.
const KEPT_OF_OTHERS_MS: u64 = 5_000;

const INSTRUCTIONS: &str = "Tools for the files and commands of one volume. Every tool that changes something needs an \
     idempotency key; send the same key again to retry the same operation, and a new one for a new operation. A retry is \
     answered from the record, with replayed true, and has no second effect.";

/// Answers messages.
pub(crate) struct Server {
    pub(super) gateway: Arc<Gateway>,
    pub(super) fixture: Fixture,
}

/// Is where a caller is told how a call goes on before it is answered; nowhere where the transport has no way to.
#[derive(Clone)]
pub(crate) struct Told(Option<(Value, UnboundedSender<Value>)>);

impl Told {
    /// Tells nobody.
    pub(crate) const fn nobody() -> Self {
        Self(None)
    }

    /// Tells whoever asked for it, by the token that it gave.
    pub(crate) fn somebody(token: Value, way: UnboundedSender<Value>) -> Self {
        Self(Some((token, way)))
    }

    /// Says whether anybody is told.
    pub(super) const fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Tells how far a call is.
    pub(super) fn progress(&self, so_far: u64, of: Option<u64>, message: &str) {
        if let Some((token, way)) = &self.0 {
            let mut params = json!({"progressToken": token, "progress": so_far, "message": message});
            if let Some(of) = of {
                params["total"] = json!(of);
            }
            // Whoever listens may have gone away.
            drop(way.send(rpc::notification("notifications/progress", params)));
        }
    }
}

/// Is who sent a message, as the transport knows it.
pub(crate) struct Caller {
    /// What its token stands for.
    pub(crate) lease: Lease,
    /// Where it came from.
    pub(crate) source: Source,
    /// The keys that came beside the message.
    pub(crate) keys: Vec<Carried>,
    /// How long it waits for the same call that runs already, where it says so.
    pub(crate) wait: Option<Duration>,
    /// Where it is told how a call goes on.
    pub(crate) told: Told,
}

/// Is what a request came to.
pub(crate) struct Done {
    /// The result.
    pub(crate) result: Value,
    /// Whether it comes from a receipt.
    pub(crate) replayed: Replayed,
}

impl From<Value> for Done {
    fn from(result: Value) -> Self {
        Self {
            result,
            replayed: Replayed::No,
        }
    }
}

impl Server {
    /// Makes it.
    pub(crate) fn new(gateway: Arc<Gateway>, fixture: Fixture) -> Self {
        Self { gateway, fixture }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// `-32601` for a method that the revision does not have here; `-32602` for parameters that are not its own; the
    /// numbers of [`semel_core::Code::rpc`] for refusals that the caller's program has to know.
    pub(crate) async fn answer(&self, caller: Caller, era: Era, request: Request) -> Result<Done, Error> {
        let Request { method, params, .. } = request;
        let mut done = match (method.as_str(), era.is_modern()) {
            ("initialize", false) => handshake(&caller.lease, &params).into(),
            ("ping", false) => json!({}).into(),
            ("server/discover", true) => discovery(&caller.lease).into(),
            ("tools/list", _) => {
                let theirs = self.gateway.upstreams.listed().await;
                list::answer(&caller.lease, self.fixture, theirs, &params)?.into()
            }
            (call::METHOD, _) => self.call(caller, era, params).await?,
            ("tasks/get", true) => self.task(About::Get, caller, &params).await?,
            ("tasks/cancel", true) => self.task(About::Cancel, caller, &params).await?,
            ("tasks/update", true) => self.task(About::Update, caller, &params).await?,
            _ => {
                let shown: String = method.chars().take(80).collect();
                let why = format!("there is no method {shown:?} in {}", era.name());
                return Err(Error::new(rpc::METHOD_NOT_FOUND, why));
            }
        };
        if era.is_modern() {
            complete(&method, &mut done.result);
            if method == "tools/list" && !self.gateway.upstreams.is_empty() {
                // Another server may change its list at any time.
                done.result["ttlMs"] = json!(KEPT_OF_OTHERS_MS);
            }
        }
        Ok(done)
    }
}

/// Adds what every result of the newest revision bears.
pub(super) fn complete(method: &str, result: &mut Value) {
    if result.get("resultType").is_none() {
        result["resultType"] = json!("complete");
    }
    if !result["_meta"].is_object() {
        result["_meta"] = json!({});
    }
    result["_meta"][era::SERVER] = me();
    if matches!(method, "server/discover" | "tools/list") {
        result["ttlMs"] = json!(KEPT_MS);
        // Which tools there are depends on the token.
        result["cacheScope"] = json!("private");
    }
}

fn me() -> Value {
    json!({"name": "semel", "title": "Semel", "version": env!("CARGO_PKG_VERSION")})
}

/// Answers `initialize`: by the revision that is asked for, where it is one with a handshake, else by the newest of them.
fn handshake(lease: &Lease, params: &Map<String, Value>) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let era = asked
        .and_then(Era::parse)
        .filter(|era| !era.is_modern())
        .unwrap_or(Era::NEWEST_LEGACY);
    json!({
        "protocolVersion": era.name(),
        "capabilities": {"tools": {}, "experimental": {EXTENSION: idempotency(lease)}},
        "serverInfo": me(),
        "instructions": INSTRUCTIONS,
    })
}

/// Answers `server/discover`.
fn discovery(lease: &Lease) -> Value {
    let versions: Vec<&str> = Era::ALL.into_iter().map(Era::name).collect();
    json!({
        "supportedVersions": versions,
        "capabilities": {
            "tools": {},
            "extensions": {EXTENSION: idempotency(lease), tasks::EXTENSION: {}},
        },
        "instructions": INSTRUCTIONS,
    })
}

/// Says what a client has to know of keys.
///
/// # Shape
/// `required`: every change needs one. `durable`: receipts outlive a kill. `retentionSeconds`: for so long, at least, a
/// receipt is kept after its volume ended; a key is never forgotten. `carriers`: where a key may stand. `principal` and
/// `generation` are those of the token, `open` says whether that generation lives, and `durability` what its calls survive.
fn idempotency(lease: &Lease) -> Value {
    json!({
        "required": true,
        "durable": true,
        "retentionSeconds": limits::RECEIPTS_AGE.as_secs(),
        "scope": ["principal", "job", "generation"],
        "carriers": call::CARRIERS,
        "principal": lease.principal,
        "generation": lease.volume.generation,
        "durability": lease.volume.durability,
        "open": lease.volume.live().is_ok(),
    })
}
