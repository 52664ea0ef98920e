//! The extension for tasks: a command that runs longer is answered with its execution, and asked about by it.
//!
//! A task is an execution: recorded before it began, so that its id is never given out for something that a kill could
//! make forgotten; found again by any later life of the daemon; its result is its receipt.

use super::call;
use super::faces::{self, Keyed};
use super::serve::{Caller, Done, Server};
use crate::engine::gateway::task::{State, Task};
use crate::engine::gateway::tool::Tool;
use crate::limits;
use semel_core::ids::ExecutionId;
use semel_core::mcp::{Error, era, rpc};
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};
use serde_json::{Map, Value, json};

/// The extension, as both sides declare it.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// How long a client should wait between two looks, in milliseconds.
const POLL_MS: u64 = 1000;

/// Says whether a client takes tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tasks {
    /// It does.
    Taken,
    /// It would not know what to do with one.
    NotTaken,
}

impl Tasks {
    /// Reads what the request itself declares.
    pub(super) fn of(params: &Map<String, Value>) -> Self {
        let declared = params.get("_meta").and_then(|meta| meta.get(era::CAPABILITIES));
        let extension = declared.and_then(|all| all.get("extensions")?.get(EXTENSION));
        if extension.is_some_and(Value::is_object) {
            Self::Taken
        } else {
            Self::NotTaken
        }
    }
}

impl Server {
    /// Makes a task of a command that still runs.
    ///
    /// # Errors
    /// Where the record of it cannot be read.
    pub(super) async fn created(&self, lease: Volume, execution: ExecutionId) -> Result<Done, Error> {
        let gateway = self.gateway.clone();
        let of = execution.clone();
        let task = blocking(move || gateway.task(&lease, &of)).await;
        let task = task.map_err(faces::of_refusal)?;
        let mut created = told(&execution, &task);
        created["status"] = json!("working");
        created["resultType"] = json!("task");
        Ok(created.into())
    }

    /// Answers `tasks/get`, `tasks/cancel` and `tasks/update`.
    ///
    /// # Errors
    /// `-32021` where the client does not declare the extension; `-32602` for an id that is no task of the caller.
    pub(super) async fn task(
        &self,
        what: About,
        caller: Caller,
        params: &Map<String, Value>,
    ) -> Result<Done, Error> {
        if Tasks::of(params) == Tasks::NotTaken {
            let error = Error::new(
                rpc::MISSING_CAPABILITY,
                "the client does not declare the extension for tasks",
            );
            return Err(error.data(json!({"requiredCapabilities": {"extensions": {EXTENSION: {}}}})));
        }
        let id = params.get("taskId").and_then(Value::as_str).unwrap_or_default();
        let execution = ExecutionId::parse(id).map_err(|_| unknown("the id is no task's"))?;
        let lease = caller
            .lease
            .for_tool(Tool::RunCommand.name())
            .map_err(faces::of_refusal)?;
        let gateway = self.gateway.clone();
        let of = execution.clone();
        let found = blocking(move || {
            if what == About::Cancel {
                gateway.stop_task(&lease, &of)?;
            }
            gateway.task(&lease, &of)
        });
        let task = found.await.map_err(|refusal| match refusal.code {
            Code::NotFound => unknown(&refusal.to_string()),
            _ => faces::of_refusal(refusal),
        })?;
        Ok(match what {
            About::Get => detailed(&execution, task),
            // Nothing is ever asked of a client: there is nothing that it could answer.
            About::Cancel | About::Update => json!({}),
        }
        .into())
    }
}

/// Says what a client asks about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// How it is.
    Get,
    /// That it be ended.
    Cancel,
    /// Nothing: it answers what it was asked.
    Update,
}

fn unknown(why: &str) -> Error {
    Error::new(rpc::INVALID_PARAMS, why)
}

/// Says what every face of a task says.
fn told(execution: &ExecutionId, task: &Task) -> Value {
    json!({
        "taskId": execution,
        "createdAt": task.began.to_string(),
        "lastUpdatedAt": task.changed.to_string(),
        // As long as the receipt, which outlives the volume.
        "ttlMs": null,
        "pollIntervalMs": POLL_MS,
    })
}

fn detailed(execution: &ExecutionId, task: Task) -> Value {
    let mut told = told(execution, &task);
    match task.state {
        State::Runs => told["status"] = json!("working"),
        State::Stopped => {
            told["status"] = json!("cancelled");
            told["statusMessage"] = json!("ended on request; get_receipt has what came of it");
        }
        // An id is known to the program alone: a key that the model made would be no news to it here.
        State::Answered(answer) => {
            match call::told(Tool::RunCommand, *answer, Keyed::ByTheClient, limits::RESULT) {
                Ok(done) => {
                    told["status"] = json!("completed");
                    told["result"] = done.result;
                }
                Err(error) => {
                    told["status"] = json!("failed");
                    told["statusMessage"] = json!(error.message);
                    told["error"] = rpc::refused(None, &error)["error"].take();
                }
            }
        }
    }
    told
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?
}
