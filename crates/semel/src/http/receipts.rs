//! `GET /v1/receipts/{key}`: what came of a key; an ended token may still ask.

use super::problem::Problem;
use super::tools::{json, lease, source};
use super::{App, Named};
use crate::engine::gateway::tool::Tool;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use semel_core::ids::IdempotencyKey;
use semel_core::{Code, Refusal};
use serde_json::Value;

/// Answers from the journal alone, and writes nothing of it there.
pub(super) async fn get(
    State(app): State<App>,
    Named(key): Named<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    let source = source("http", &parts);
    let lease = lease(&app, &parts.headers, Tool::GetReceipt.name(), &source).await?;
    let key = IdempotencyKey::parse(key)?;
    let _share = app.gateway.share(&lease)?;
    let gateway = app.gateway.clone();
    let body = tokio::task::spawn_blocking(move || gateway.receipt(&lease, &key))
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))??;
    Ok(json(Value::Object(body)))
}
