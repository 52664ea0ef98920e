//! `tools/call`: from the parameters of a message to a call of the gateway, and back.

use super::faces::{self, Keyed};
use super::fixture::{self, Fixture, Shown};
use super::forwarded;
use super::serve::{Caller, Done, Server, Told};
use super::tasks::Tasks;
use crate::engine::gateway::answer::{Answer, Failure, Replayed, Success};
use crate::engine::gateway::call::{Call, Sent};
use crate::engine::gateway::key::Carried;
use crate::engine::gateway::tool::{KEY_ARGUMENT, Kind, Tool};
use crate::limits;
use semel_core::mcp::{Era, Error, rpc};
use semel_core::{Code, Refusal};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The method.
pub(crate) const METHOD: &str = "tools/call";

/// The member of `_meta` that carries a key.
pub(super) const META_KEY: &str = "dev.semel/idempotencyKey";
/// The member of the parameters that carries one.
pub(super) const PARAMS_KEY: &str = "idempotencyKey";

/// Where a key may stand, as clients are told.
pub(super) const CARRIERS: &[&str] = &[
    "params._meta[\"dev.semel/idempotencyKey\"]",
    "params.idempotencyKey",
    "header:Idempotency-Key",
    "argument:idempotency_key",
];

/// How often a caller is told that a command still runs.
const STILL: Duration = Duration::from_secs(5);

/// Is what a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// A tool of the gateway.
    Own(Tool),
    /// A tool of the conformance suite.
    Fixture(Shown),
    /// A tool of another server.
    Theirs,
}

/// Says whether a call may take so long that its caller wants to be told how it goes on.
pub(crate) fn streams(params: &Map<String, Value>) -> bool {
    let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
    name == Tool::RunCommand.name()
        || Fixture::Conformance.find(name).is_some()
        || semel_core::upstream::server_of(name).is_some()
}

/// Is a call as its parameters say it.
#[derive(Debug)]
struct Asked {
    target: Target,
    params: Map<String, Value>,
    arguments: Value,
    keys: Vec<Carried>,
    keyed: Keyed,
}

impl Server {
    /// Answers `tools/call`.
    ///
    /// # Errors
    /// `-32602` for a tool that is none, or arguments that are no object; a refusal that the caller's program has to know.
    pub(super) async fn call(
        &self,
        caller: Caller,
        era: Era,
        params: Map<String, Value>,
    ) -> Result<Done, Error> {
        let tasks = Tasks::of(&params);
        let theirs = |name: &str| self.gateway.upstreams.of_tool(name).is_some();
        let asked = read(params, caller.keys, self.fixture, &theirs)?;
        let keyed = asked.keyed;
        let tool = match asked.target {
            Target::Own(tool) => tool,
            Target::Fixture(shown) => return fixture::answer(shown, &asked.params, &caller.told).await,
            Target::Theirs => {
                let sent = forwarded::Sent {
                    params: asked.params,
                    arguments: asked.arguments,
                    keys: asked.keys,
                    keyed,
                };
                let by = forwarded::By {
                    lease: caller.lease,
                    source: caller.source,
                    wait: caller.wait,
                    told: caller.told,
                };
                return self.forward(by, era, sent).await;
            }
        };
        let mut source = caller.source;
        source.mcp_era = Some(era.name().to_owned());
        let lease = match caller.lease.for_tool(tool.name()) {
            Ok(lease) => lease,
            Err(refusal) => return faces::refused(&refusal.into(), keyed),
        };
        if let Err(failure) = self
            .gateway
            .admit_generation(tool, &lease, &source, &asked.keys)
            .await
        {
            return faces::refused(&failure, keyed);
        }
        // What runs longer is a task, where the client takes one.
        let of =
            (tool == Tool::RunCommand && era.is_modern() && tasks == Tasks::Taken).then(|| lease.clone());
        let wait = caller.wait.or(of.as_ref().map(|_| limits::TASK_AFTER));
        let call = Call {
            tool,
            lease,
            keys: asked.keys,
            sent: Sent::Read(asked.arguments),
            form: Ok(()),
            source,
            wait,
        };
        let most = if caller.told.is_heard() {
            limits::EVENT
        } else {
            limits::RESULT
        };
        let answer = while_told(&caller.told, self.gateway.call(call)).await;
        match (of, &answer) {
            (
                Some(lease),
                Err(Failure {
                    refusal,
                    execution_id: Some(execution),
                    ..
                }),
            ) if refusal.code == Code::CallInFlight => self.created(lease, execution.clone()).await,
            _ => told(tool, answer, keyed, most),
        }
    }
}

/// Tells a caller that wants to hear of it, now and then, that its call still runs.
async fn while_told(told: &Told, call: impl Future<Output = Answer>) -> Answer {
    if !told.is_heard() {
        return call.await;
    }
    let mut call = std::pin::pin!(call);
    let mut seconds = 0;
    loop {
        tokio::select! {
            answer = &mut call => return answer,
            () = tokio::time::sleep(STILL) => {
                seconds += STILL.as_secs();
                told.progress(seconds, None, &format!("running for {seconds} s"));
            }
        }
    }
}

/// Reads the parameters of a call.
fn read(
    mut params: Map<String, Value>,
    mut keys: Vec<Carried>,
    fixture: Fixture,
    theirs: &dyn Fn(&str) -> bool,
) -> Result<Asked, Error> {
    let invalid = |why: &str| Error::new(rpc::INVALID_PARAMS, why);
    let name = match params.get("name") {
        Some(Value::String(name)) => name,
        _ => return Err(invalid("params.name is not the name of a tool")),
    };
    let target = match fixture.find(name) {
        Some(shown) => Target::Fixture(shown),
        None if theirs(name) => Target::Theirs,
        None => Target::Own(Tool::parse(name).map_err(|refusal| {
            Error::new(rpc::INVALID_PARAMS, refusal.to_string()).data(faces::data(&refusal.into()))
        })?),
    };
    let arguments = match params.remove("arguments") {
        None | Some(Value::Null) => Value::Null,
        Some(Value::Object(arguments)) => Value::Object(arguments),
        Some(_) => return Err(invalid("params.arguments is not a JSON object")),
    };
    if let Some(key) = params.remove(PARAMS_KEY) {
        keys.push(Carried::Member(PARAMS_KEY, key));
    }
    let meta = params.get_mut("_meta").and_then(Value::as_object_mut);
    if let Some(key) = meta.and_then(|meta| meta.remove(META_KEY)) {
        keys.push(Carried::Member(META_KEY, key));
    }
    // The model made the key where nobody else did: then it is the one to be told of it.
    let keyed = match keys.first() {
        Some(_) => Keyed::ByTheClient,
        None => Keyed::ByTheModel,
    };
    Ok(Asked {
        target,
        params,
        arguments,
        keys,
        keyed,
    })
}

/// Gives an answer of the gateway the form of a result, of at most so many bytes, or of an error.
pub(super) fn told(tool: Tool, answer: Answer, keyed: Keyed, most: usize) -> Result<Done, Error> {
    match answer.and_then(|success| fitting(tool, &success, most)) {
        Ok(done) => Ok(done),
        Err(failure) => faces::refused(&failure, keyed),
    }
}

/// Makes the result of a call that did what it asked, no larger than its client takes it.
///
/// # Errors
/// `too_large` where the call read: it is asked for in parts. What a change did is told in every case.
fn fitting(tool: Tool, success: &Success, most: usize) -> Result<Done, Failure> {
    let replayed = success.replayed;
    let done = |result: Value| Ok(Done { result, replayed });
    let whole = result(&success.body, &success.body, replayed);
    if whole.to_string().len() <= most {
        return done(whole);
    }
    if tool.kind() != Kind::Mutation {
        let why = format!("the answer would have more than {most} bytes as a result; ask for it in parts");
        return Err(Refusal::new(Code::TooLarge, why)
            .reason("result_too_large")
            .into());
    }
    // Clients that read one of the two read the text.
    let short = shortened(&success.body);
    let text_alone = result(&short, &success.body, replayed);
    if text_alone.to_string().len() <= most {
        return done(text_alone);
    }
    done(result(&short, &short, replayed))
}

/// Leaves out what is long, and says how long it was.
fn shortened(body: &Map<String, Value>) -> Map<String, Value> {
    const LONG: usize = 4 << 10;
    let mut short = Map::new();
    for (name, value) in body {
        let left_out = match value {
            Value::Array(items) => Some(items.len()),
            Value::String(text) if text.len() > LONG => Some(text.len()),
            _ => None,
        };
        match left_out {
            Some(length) => short.insert(format!("{name}_left_out"), json!(length)),
            None => short.insert(name.clone(), value.clone()),
        };
    }
    short
}

fn result(structured: &Map<String, Value>, text: &Map<String, Value>, replayed: Replayed) -> Value {
    let text = serde_json::to_string(text).unwrap_or_default();
    let mut content = vec![json!({"type": "text", "text": text})];
    if replayed == Replayed::Yes {
        let execution = structured
            .get("execution_id")
            .and_then(Value::as_str)
            .unwrap_or("?");
        let line = format!("Replayed: the recorded answer of execution {execution}; nothing was done again.");
        content.push(json!({"type": "text", "text": line}));
    }
    let mut meta = Map::new();
    for (name, member) in [
        (KEY_ARGUMENT, META_KEY),
        ("execution_id", "dev.semel/executionId"),
        ("generation", "dev.semel/generation"),
        ("replayed", "dev.semel/replayed"),
    ] {
        if let Some(value) = structured.get(name) {
            meta.insert(member.to_owned(), value.clone());
        }
    }
    json!({
        "content": content,
        "structuredContent": structured,
        "isError": false,
        "_meta": meta,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(params) => params,
            _ => Map::new(),
        }
    }

    #[test]
    fn every_carrier_is_found_and_nothing_else_is_one() {
        let asked = read(
            params(json!({
                "name": "write_file",
                "arguments": {"path": "a", "idempotency_key": "d"},
                "idempotencyKey": "b",
                "_meta": {"dev.semel/idempotencyKey": "a", "progressToken": "x", "com.other/idempotencyKey": "y"},
            })),
            vec![Carried::Header(b"\"c\"".to_vec())],
            Fixture::Absent,
            &|_| false,
        )
        .unwrap();
        let keys: Vec<String> = asked.keys.iter().map(|k| k.key().unwrap().to_string()).collect();
        assert_eq!(keys, ["c", "b", "a"]);
        assert_eq!(asked.keyed, Keyed::ByTheClient);
        let model = read(
            params(json!({"name": "write_file", "arguments": {"idempotency_key": "d"}})),
            Vec::new(),
            Fixture::Absent,
            &|_| false,
        );
        assert_eq!(model.unwrap().keyed, Keyed::ByTheModel);
        for wrong in [
            json!({}),
            json!({"name": 7}),
            json!({"name": "nope"}),
            json!({"name": "undo"}),
            json!({"name": "test_simple_text"}),
            json!({"name": "write_file", "arguments": [1]}),
            json!({"name": "write_file", "arguments": "x"}),
        ] {
            let error = read(params(wrong.clone()), Vec::new(), Fixture::Absent, &|_| false)
                .map(drop)
                .unwrap_err();
            assert_eq!(error.code, rpc::INVALID_PARAMS, "{wrong}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused_of_a_read_and_shortened_of_a_change() {
        let body = |name: &str, value: Value| Success {
            body: params(json!({name: value, "execution_id": "x", "replayed": false})),
            replayed: Replayed::No,
        };
        let most = limits::RESULT;
        let content = body("content", json!("x".repeat(most / 2 + 1)));
        let refused = fitting(Tool::ReadFile, &content, most).map(drop).unwrap_err();
        assert_eq!(refused.refusal.code, Code::TooLarge);
        let many = body("changed", json!(vec!["x".repeat(1000); most / 1000]));
        let told = fitting(Tool::ApplyPatch, &many, most).unwrap().result;
        let structured = &told["structuredContent"];
        assert_eq!(structured["changed_left_out"], json!(most / 1000));
        assert_eq!(
            (structured.get("changed"), &structured["execution_id"]),
            (None, &json!("x"))
        );
        assert!(told.to_string().len() < most);
        // Where the text alone fits, it is whole.
        let half = body("stdout", json!("x".repeat(most / 2)));
        let told = fitting(Tool::RunCommand, &half, most).unwrap().result;
        assert_eq!(told["structuredContent"]["stdout_left_out"], json!(most / 2));
        assert!(told["content"][0]["text"].as_str().unwrap().len() > most / 2);
        let small = fitting(Tool::ReadFile, &body("content", json!("x")), most).unwrap();
        assert_eq!(small.result["structuredContent"]["content"], "x");
    }
}
