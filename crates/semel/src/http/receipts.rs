//! `GET /v1/receipts/{key}`: what came of a key; an ended token may still ask.

use super::App;
use super::problem::Problem;
use super::tools::{json, lease};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response};
use semel_core::ids::IdempotencyKey;
use semel_core::{Code, Refusal};
use serde_json::Value;

/// Answers from the journal alone, and writes nothing to it.
pub(super) async fn get(
    State(app): State<App>,
    Path(key): Path<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    let lease = lease(&app, &headers).await?;
    let key = IdempotencyKey::parse(key)?;
    let _share = app.gateway.share(&lease)?;
    let gateway = app.gateway.clone();
    let body = tokio::task::spawn_blocking(move || gateway.receipt(&lease, &key))
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))??;
    Ok(json(Value::Object(body)))
}
