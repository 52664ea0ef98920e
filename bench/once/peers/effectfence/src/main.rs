//! effectfence with its durable ledger behind the bench's route: `bench-effectfence LEDGER PORT`.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use effectfence::fence::{
    Admission, EffectFence, EffectRequest, FenceConfig, VectorClock, abort_effect, commit_effect_cert,
    prepare_effect_fence,
};
use serde_json::{Value, json};

fn once(fence: &EffectFence, key: String, call: Value) -> Response {
    let request = EffectRequest {
        intent: key,
        parent: None,
        domain: "fs".to_owned(),
        tool: "delete".to_owned(),
        args: call.clone(),
        read_set: Vec::new(),
        agent: "bench".to_owned(),
        known_clock: VectorClock::new(),
    };
    match prepare_effect_fence(fence, request) {
        Ok(Admission::Fresh(permit)) => match std::fs::remove_file(call["path"].as_str().unwrap_or_default()) {
            Ok(()) => match commit_effect_cert(fence, permit, json!({"ok": true})) {
                Ok(_) => "{\"ok\":true}".into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            },
            Err(error) => {
                let _told = abort_effect(fence, permit, "the delete failed");
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
            }
        },
        Ok(Admission::Replay(cert)) => {
            ([("idempotency-replayed", "true")], cert.result.to_string()).into_response()
        }
        Err(error) => (StatusCode::CONFLICT, error.to_string()).into_response(),
    }
}

async fn delete(State(fence): State<EffectFence>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    let (Some(key), Ok(call)) = (key.map(str::to_owned), serde_json::from_slice(&body)) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // Its ledger syncs under a lock: on a thread that may block.
    match tokio::task::spawn_blocking(move || once(&fence, key, call)).await {
        Ok(response) => response,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let fence = EffectFence::open(&args[1], FenceConfig::default())?;
    let app = Router::new().route("/delete", post(delete)).with_state(fence);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", args[2])).await?;
    axum::serve(listener, app).await?;
    Ok(())
}
