//! What a call is answered with, before any door gives it its own form.

use super::output::facts;
use super::tool::Tool;
use semel_core::call::{Done, Intent, Receipt};
use semel_core::effect::{Changed, Effect};
use semel_core::ids::ExecutionId;
use semel_core::{Refusal, RelPath};
use serde_json::{Map, Value, json};

/// Says whether an answer comes from a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replayed {
    /// It is the answer to the execution itself, or to a read.
    No,
    /// It is an earlier answer, given again without an effect.
    Yes,
}

/// Is the answer to a call that did what it asked.
#[derive(Clone, Debug)]
pub(crate) struct Success {
    /// The whole answer.
    pub(crate) body: Map<String, Value>,
    /// Whether it comes from a receipt.
    pub(crate) replayed: Replayed,
}

/// Is the answer to a call that was refused.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What was refused.
    pub(crate) refusal: Refusal,
    /// The execution that it is about.
    pub(crate) execution_id: Option<ExecutionId>,
    /// Whether the refusal comes from a receipt.
    pub(crate) replayed: Replayed,
}

/// Is the answer to a call.
pub(crate) type Answer = Result<Success, Failure>;

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            execution_id: None,
            replayed: Replayed::No,
        }
    }
}

/// Writes a path into an answer: losslessly as text, and as base64 where it is not UTF-8.
pub(crate) fn put_path(body: &mut Map<String, Value>, path: &RelPath) {
    let shown = if path.is_root() {
        ".".to_owned()
    } else {
        path.to_wire()
    };
    if let Some(coded) = shown.strip_prefix("b64:") {
        body.insert("path_b64".to_owned(), json!(coded));
    }
    body.insert("path".to_owned(), json!(shown));
}

/// Makes the answer of a call that did what it asked.
pub(crate) fn of_done(intent: &Intent, receipt: &Receipt, done: &Done, replayed: Replayed) -> Success {
    let mut body = result(intent, done);
    if let Some(other) = &receipt.possible_duplicate_of {
        body.insert("possible_duplicate_of".to_owned(), json!(other));
    }
    body.insert("execution_id".to_owned(), json!(intent.execution_id));
    body.insert("idempotency_key".to_owned(), json!(intent.key));
    body.insert("replayed".to_owned(), json!(replayed == Replayed::Yes));
    body.insert("generation".to_owned(), json!(intent.generation));
    Success { body, replayed }
}

/// Says what became of the paths of a call.
///
/// # Shape
/// A call on one path says it flat: `path`, `action`, `sha256_before`, `sha256_after`, `size_bytes`, of a move
/// `destination` and `overwritten`. A patch has `changed`, a list of the same. A command has [`facts`].
pub(crate) fn result(intent: &Intent, done: &Done) -> Map<String, Value> {
    if intent.tool == Tool::RunCommand.name() {
        return facts(intent, done);
    }
    let mut body = Map::new();
    if let [Effect::Forward { to, tool }] = &intent.effects[..] {
        body.insert("upstream".to_owned(), json!(to));
        body.insert("upstream_tool".to_owned(), json!(tool));
        let heard = done.forwarded.as_deref();
        body.insert("said".to_owned(), json!(heard.map(|heard| heard.said)));
        body.insert(
            "answer".to_owned(),
            heard.map_or(Value::Null, |heard| heard.value()),
        );
    } else if intent.tool == Tool::ApplyPatch.name() {
        let changed: Vec<Value> = done
            .changed
            .iter()
            .map(|one| Value::Object(changed(one)))
            .collect();
        body.insert("changed".to_owned(), json!(changed));
    } else {
        match &done.changed[..] {
            [] => {
                put_path(&mut body, &intent.path);
                body.insert("action".to_owned(), json!("none"));
            }
            [first @ .., last] => {
                body = changed(last);
                if let [overwritten] = first {
                    body.insert("overwritten".to_owned(), json!(overwritten.sha256_before));
                }
            }
        }
    }
    if let Some(replacements) = intent.facts.replacements {
        body.insert("replacements".to_owned(), json!(replacements));
    }
    if !intent.facts.notes.is_empty() {
        body.insert("notes".to_owned(), json!(intent.facts.notes));
    }
    body
}

fn changed(one: &Changed) -> Map<String, Value> {
    let mut body = Map::new();
    put_path(&mut body, &one.path);
    body.insert("action".to_owned(), json!(one.action));
    if let Some(destination) = &one.destination {
        let mut to = Map::new();
        put_path(&mut to, destination);
        for (name, value) in to {
            body.insert(name.replacen("path", "destination", 1), value);
        }
    }
    match &one.mode {
        Some(mode) => {
            body.insert("mode_before".to_owned(), json!(format!("{:04o}", mode.before)));
            body.insert("mode_after".to_owned(), json!(format!("{:04o}", mode.after)));
        }
        None => {
            body.insert("sha256_before".to_owned(), json!(one.sha256_before));
            body.insert("sha256_after".to_owned(), json!(one.sha256_after));
            body.insert("size_bytes".to_owned(), json!(one.size_bytes));
        }
    }
    if let Some(links) = one.hard_link_broken {
        body.insert("hard_link_broken".to_owned(), json!(links));
    }
    body
}
