//! `POST /v1/tokens`: a job gives out a narrower token than its own.

use super::problem::Problem;
use super::tools::{json, source};
use super::{App, bearer, body};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use semel_core::{Code, Refusal};

const BODY: usize = 64 << 10;

/// Gives out a token: who asks is known before the body is read.
pub(super) async fn issue(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, incoming) = request.into_parts();
    let source = source("http", &parts);
    let token = bearer(&parts.headers).unwrap_or_default().to_owned();
    let (gateway, parent) = (app.gateway.clone(), token.clone());
    let admitted = blocking(move || gateway.gives_out(&parent).map(drop)).await;
    if let Err(refusal) = &admitted
        && refusal.code == Code::Unauthorized
    {
        app.gateway.unauthorized("tokens", source, refusal).await;
    }
    admitted?;
    let body = body(&app, &parts.headers, incoming, BODY).await?;
    let gateway = app.gateway.clone();
    Ok(json(blocking(move || gateway.narrower(&token, &body)).await?))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?
}
