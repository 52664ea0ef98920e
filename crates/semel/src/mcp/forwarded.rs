//! `tools/call` of a tool of another server: from parameters to the guard, and its answer back as that server gave it, with
//! what is recorded of it beside it.

use super::call::META_KEY;
use super::faces::{self, Keyed};
use super::serve::{Done, Server, Told};
use crate::engine::gateway::answer::{Failure, Replayed};
use crate::engine::gateway::forward::{Forwarding, Passed};
use crate::engine::gateway::key::Carried;
use crate::limits;
use semel_core::Code;
use semel_core::call::Source;
use semel_core::mcp::{Era, Error, rpc};
use semel_core::upstream::{Heard, Said};
use semel_core::volume::Lease;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Is who calls.
pub(super) struct By {
    pub(super) lease: Lease,
    pub(super) source: Source,
    pub(super) wait: Option<Duration>,
    pub(super) told: Told,
}

/// Is what is called.
pub(super) struct Sent {
    pub(super) params: Map<String, Value>,
    pub(super) arguments: Value,
    pub(super) keys: Vec<Carried>,
    pub(super) keyed: Keyed,
}

/// What of a caller's `_meta` is between it and the gateway, and goes no further.
fn is_ours(name: &str) -> bool {
    name == "progressToken" || name.starts_with("dev.semel/") || name.starts_with("io.modelcontextprotocol/")
}

impl Server {
    /// Answers a call of a tool of another server.
    ///
    /// # Errors
    /// `-32602` for a tool that the server does not have; the error that the server answered with; a refusal that the
    /// caller's program has to know.
    pub(super) async fn forward(&self, by: By, era: Era, sent: Sent) -> Result<Done, Error> {
        let mut params = sent.params;
        let name = params
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let lease = match by.lease.for_tool(&name) {
            Ok(lease) => lease,
            Err(refusal) => return faces::refused(&refusal.into(), sent.keyed),
        };
        let mut source = by.source;
        source.mcp_era = Some(era.name().to_owned());
        let mut meta = match params.remove("_meta") {
            Some(Value::Object(meta)) => meta,
            _ => Map::new(),
        };
        meta.retain(|name, _| !is_ours(name));
        let arguments = match sent.arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let most = if by.told.is_heard() {
            limits::EVENT
        } else {
            limits::RESULT
        };
        let told = by.told;
        let call = Forwarding {
            tool: name,
            lease,
            keys: sent.keys,
            arguments,
            meta,
            source,
            wait: by.wait,
            hears: told.is_heard().then(|| {
                let hears =
                    move |so_far: u64, of: Option<u64>, message: &str| told.progress(so_far, of, message);
                Arc::new(hears) as crate::engine::upstream::Hears
            }),
        };
        match self.gateway.forward(call).await {
            Ok(passed) => given(passed, most),
            Err(failure) if is_no_tool(&failure) => {
                Err(Error::new(rpc::INVALID_PARAMS, failure.refusal.to_string()).data(faces::data(&failure)))
            }
            Err(failure) => faces::refused(&failure, sent.keyed),
        }
    }
}

fn is_no_tool(failure: &Failure) -> bool {
    failure.refusal.code == Code::NotFound && failure.execution_id.is_none()
}

/// Gives an answer on.
///
/// # Errors
/// The error that the server answered with, by its own number.
fn given(passed: Passed, most: usize) -> Result<Done, Error> {
    let replayed = passed.replayed;
    let mut ours = Map::new();
    ours.insert("dev.semel/upstream".to_owned(), json!(passed.by));
    if let Some(recorded) = &passed.recorded {
        ours.insert(META_KEY.to_owned(), json!(recorded.key));
        ours.insert("dev.semel/executionId".to_owned(), json!(recorded.execution_id));
        ours.insert("dev.semel/generation".to_owned(), json!(recorded.generation));
        ours.insert("dev.semel/replayed".to_owned(), json!(replayed == Replayed::Yes));
    }
    let Some(heard) = passed.heard else {
        let line = "A person settled that this call happened; what the server answered, nobody saw.";
        let content = json!([{"type": "text", "text": line}]);
        let result = json!({"content": content, "isError": false, "_meta": ours});
        return Ok(Done { result, replayed });
    };
    let answer = heard.value();
    if heard.said == Said::Error {
        return Err(error(&answer, ours));
    }
    let mut result = whole(answer, &ours, replayed);
    if result.to_string().len() > most {
        let short = Heard::keep(Said::Result, &heard.value(), 0);
        result = whole(short.value(), &ours, replayed);
    }
    Ok(Done { result, replayed })
}

fn whole(answer: Value, ours: &Map<String, Value>, replayed: Replayed) -> Value {
    let mut result = match answer {
        Value::Object(_) => answer,
        other => json!({"content": [{"type": "text", "text": other.to_string()}]}),
    };
    // Marks of ours are ours alone to set.
    let mut meta = match result.get_mut("_meta").map(Value::take) {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    meta.retain(|name, _| !name.starts_with("dev.semel/"));
    meta.extend(ours.clone());
    result["_meta"] = Value::Object(meta);
    if replayed == Replayed::Yes {
        let execution = ours["dev.semel/executionId"].as_str().unwrap_or("?");
        let line = format!("Replayed: the recorded answer of execution {execution}; nothing was done again.");
        if let Some(content) = result.get_mut("content").and_then(Value::as_array_mut) {
            content.push(json!({"type": "text", "text": line}));
        }
    }
    result
}

/// Gives the error of another server: its number where it is one of the protocol's or a server's own, and its words.
fn error(told: &Value, ours: Map<String, Value>) -> Error {
    let code = told["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let message = told["message"].as_str().unwrap_or("the server gave no message");
    let mut data = json!({"type": "upstream_error", "data": told.get("data")});
    for (name, value) in ours {
        let plain = name.trim_start_matches("dev.semel/").to_owned();
        data[plain] = value;
    }
    Error::new(code.unwrap_or(rpc::INVALID_REQUEST), message).data(data)
}
