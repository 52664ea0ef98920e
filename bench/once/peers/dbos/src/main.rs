//! DBOS for Rust behind the bench's route: `bench-dbos POSTGRES_URL PORT`. A call is a workflow of one step.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use dbos::{Config, DBOS, RunOptions, WorkflowRef};
use serde_json::{Value, json};

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

async fn unlink(call: Value) -> dbos::Result<Value, Failed> {
    match std::fs::remove_file(call["path"].as_str().unwrap_or_default()) {
        Ok(()) => Ok(json!({"ok": true})),
        Err(error) => Err(Failed(error.to_string()).into()),
    }
}

async fn workflow(call: Value) -> dbos::Result<Value, Failed> {
    dbos::step("unlink", || unlink(call.clone())).await
}

async fn delete(
    State(workflow): State<WorkflowRef<Value, Value, Failed>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    let (Some(key), Ok(call)) = (key, serde_json::from_slice(&body)) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let options = RunOptions {
        workflow_id: Some(key.into()),
        ..Default::default()
    };
    match workflow.run_with(call, options).await {
        Ok(answer) => answer.to_string().into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let config = Config {
        app_version: Some("1".into()),
        ..Config::new("bench", &args[1])
    };
    let dbos = DBOS::new(config);
    let workflow = dbos.register_workflow("delete", workflow)?;
    dbos.launch().await?;
    let app = Router::new().route("/delete", post(delete)).with_state(workflow);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", args[2])).await?;
    axum::serve(listener, app).await?;
    Ok(())
}
