//! What a call is answered with, before any door gives it its own form.

use semel_core::call::Done;
use semel_core::ids::{ExecutionId, Generation, IdempotencyKey};
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

/// Makes the answer of a call whose effect happened.
pub(crate) fn of_done(
    done: &Done,
    execution_id: &ExecutionId,
    key: &IdempotencyKey,
    generation: &Generation,
    replayed: Replayed,
) -> Success {
    let mut body = Map::new();
    put_path(&mut body, &done.path);
    body.insert("sha256_before".to_owned(), json!(done.sha256_before));
    body.insert("sha256_after".to_owned(), json!(done.sha256_after));
    body.insert("size_bytes".to_owned(), json!(done.size_bytes));
    if let Some(links) = done.hard_link_broken {
        body.insert("hard_link_broken".to_owned(), json!(links));
    }
    body.insert("execution_id".to_owned(), json!(execution_id));
    body.insert("idempotency_key".to_owned(), json!(key));
    body.insert("replayed".to_owned(), json!(replayed == Replayed::Yes));
    body.insert("generation".to_owned(), json!(generation));
    Success { body, replayed }
}
