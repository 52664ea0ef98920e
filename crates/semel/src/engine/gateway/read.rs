//! Calls without an effect: reads of the volume, and what came of a key.

use super::Gateway;
use super::answer::{Answer, put_path, result};
use super::arguments::Args;
use super::call::{Asked, read_answer, scope_of};
use super::tool::Tool;
use crate::engine::{host, store};
use crate::limits;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use semel_core::call::{CallState, Event, Outcome};
use semel_core::ids::IdempotencyKey;
use semel_core::volume::Volume;
use semel_core::{Code, Refusal, RelPath};
use semel_host::files;
use serde_json::{Map, Value, json};
use std::sync::Arc;

impl Gateway {
    /// Answers a call that reads.
    pub(super) async fn read(self: &Arc<Self>, asked: Arc<Asked>) -> Answer {
        let permit = self.permit()?;
        let pass = self.pass(&asked.lease.generation).await;
        self.blocking(move |gateway| {
            let body = gateway.read_now(&asked);
            drop((permit, pass));
            match body {
                Ok(body) => {
                    gateway.note_asked(&asked, Event::Read, None);
                    Ok(read_answer(body))
                }
                Err(refusal) => gateway.refuse(&asked, refusal, None),
            }
        })
        .await?
    }

    fn read_now(self: &Arc<Self>, asked: &Asked) -> Result<Map<String, Value>, Refusal> {
        if let Args::Receipt { key } = &asked.understood.args {
            return self.receipt(&asked.lease, key);
        }
        let path = asked.understood.path.clone()?;
        let disk = self.disk(&asked.lease)?;
        let root = disk.tree();
        let mut body = match asked.tool {
            Tool::ReadFile => read_file(root, &path),
            Tool::ListDirectory => list_directory(root, &path),
            Tool::GetFileInfo => file_info(root, &path),
            Tool::WriteFile
            | Tool::EditFile
            | Tool::ApplyPatch
            | Tool::DeleteFile
            | Tool::DeleteDirectory
            | Tool::MoveFile
            | Tool::CreateDirectory
            | Tool::SetMode
            | Tool::RunCommand
            | Tool::GetReceipt
            | Tool::Undo => Err(Refusal::new(
                Code::Internal,
                "a call that does not read reached the reads",
            )),
        }?;
        body.insert("generation".to_owned(), json!(asked.lease.generation));
        Ok(body)
    }

    /// Says what came of a key in the scope of a token, ended or not.
    ///
    /// # Errors
    /// `not_found` where the key was never used.
    pub(crate) fn receipt(
        &self,
        lease: &Volume,
        key: &IdempotencyKey,
    ) -> Result<Map<String, Value>, Refusal> {
        let in_generation = scope_of(lease, Some(lease.generation.clone()));
        let prior = |scope| self.engine.journal.prior(scope, key.clone()).map_err(store);
        let state = match prior(in_generation)? {
            Some(state) => Some(state),
            None => prior(scope_of(lease, None))?,
        };
        let state = state
            .ok_or_else(|| Refusal::new(Code::NotFound, "no call with this key began").name(key.as_str()))?;
        Ok(receipt_body(&state))
    }
}

/// Says what came of a call.
pub(in crate::engine) fn receipt_body(state: &CallState) -> Map<String, Value> {
    let intent = state.intent();
    let mut body = Map::new();
    put_path(&mut body, &intent.path);
    body.insert("idempotency_key".to_owned(), json!(intent.key));
    body.insert("execution_id".to_owned(), json!(intent.execution_id));
    body.insert("generation".to_owned(), json!(intent.generation));
    body.insert("tool".to_owned(), json!(intent.tool));
    body.insert("began_at".to_owned(), json!(intent.at.to_string()));
    let (name, more) = match state {
        CallState::Running { aborting, .. } => (
            "running",
            json!({"taken_back": aborting.as_ref().map(|aborting| aborting.why.clone())}),
        ),
        CallState::Unknown { why, .. } => ("unknown", json!({"why": why})),
        CallState::Finished { receipt, .. } => {
            let mut more = json!({
                "ended_at": receipt.at.to_string(),
                "recovered": receipt.recovered.as_ref().map(|recovered| recovered.evidence.clone()),
                "resolved": receipt.resolved,
                "possible_duplicate_of": receipt.possible_duplicate_of,
            });
            match &receipt.outcome {
                Outcome::Done(done) => {
                    more["result"] = Value::Object(result(intent, done));
                    ("done", more)
                }
                Outcome::Refused { refusal } => {
                    more["refusal"] = json!(refusal);
                    ("refused", more)
                }
            }
        }
    };
    body.insert("state".to_owned(), json!(name));
    if let Value::Object(more) = more {
        body.extend(more);
    }
    body
}

fn read_file(root: &semel_host::root::Root, path: &RelPath) -> Result<Map<String, Value>, Refusal> {
    let content = files::read_file(root, path, limits::READ as u64).map_err(host)?;
    let mut body = Map::new();
    put_path(&mut body, &content.resolved);
    body.insert("sha256".to_owned(), json!(content.sha256));
    body.insert("size_bytes".to_owned(), json!(content.size));
    let (text, encoding) = match String::from_utf8(content.bytes) {
        Ok(text) => (text, "utf-8"),
        Err(error) => (BASE64_STANDARD.encode(error.as_bytes()), "base64"),
    };
    body.insert("content".to_owned(), Value::String(text));
    body.insert("encoding".to_owned(), json!(encoding));
    Ok(body)
}

fn list_directory(root: &semel_host::root::Root, path: &RelPath) -> Result<Map<String, Value>, Refusal> {
    let listed = files::list_directory(root, path, limits::LISTED).map_err(host)?;
    let mut body = Map::new();
    put_path(&mut body, path);
    let entries: Vec<Value> = listed
        .into_iter()
        .map(|entry| {
            let mut one = json!({"type": entry.kind.wire(), "size_bytes": entry.size});
            match String::from_utf8(entry.name) {
                Ok(name) => one["name"] = json!(name),
                Err(error) => one["name_b64"] = json!(BASE64_STANDARD.encode(error.as_bytes())),
            }
            one
        })
        .collect();
    body.insert("entries".to_owned(), json!(entries));
    Ok(body)
}

fn file_info(root: &semel_host::root::Root, path: &RelPath) -> Result<Map<String, Value>, Refusal> {
    let info = files::file_info(root, path).map_err(host)?;
    let mut body = Map::new();
    put_path(&mut body, &info.resolved);
    body.insert("type".to_owned(), json!(info.kind.wire()));
    body.insert("size_bytes".to_owned(), json!(info.size));
    body.insert("mode".to_owned(), json!(format!("{:04o}", info.mode)));
    body.insert("links".to_owned(), json!(info.links));
    body.insert("sha256".to_owned(), json!(info.sha256));
    let modified = u64::try_from(info.modified_ms).unwrap_or_default();
    body.insert(
        "modified_at".to_owned(),
        json!(semel_core::ids::UnixMs(modified).to_string()),
    );
    if let Some(target) = info.target {
        match String::from_utf8(target) {
            Ok(target) => body.insert("link_target".to_owned(), json!(target)),
            Err(error) => body.insert(
                "link_target_b64".to_owned(),
                json!(BASE64_STANDARD.encode(error.as_bytes())),
            ),
        };
    }
    Ok(body)
}
