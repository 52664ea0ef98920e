//! `/v1/admin/`: what only the operator may ask, over the daemon's own socket, from outside of every sandbox.

use super::problem::Problem;
use super::tools::{json, source, success};
use super::{App, Named, Peer, bearer, operators_body};
use crate::engine::daemon::admin::read;
use crate::engine::daemon::health::outside_of_sandboxes;
use crate::engine::gateway::standing::{self, Standing};
use crate::telemetry::Phase;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::http::request::Parts;
use axum::middleware::Next;
use semel_core::digest::Sha256;
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal};
use serde::Deserialize;
use serde_json::json as value;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// Lets only the operator through: its token, the Unix socket, and no sandbox around the peer. It is never the
/// peer's uid, and never a job's token.
pub(super) async fn authority(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    if let Err(why) = operator(&app, &parts) {
        let refusal = Refusal::new(Code::Unauthorized, why);
        app.gateway
            .unauthorized("admin", source("http", &parts), &refusal)
            .await;
        return Err(refusal.into());
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Says why a request is not the operator's.
fn operator(app: &App, parts: &Parts) -> Result<(), &'static str> {
    let pid = match parts.extensions.get::<Peer>() {
        Some(Peer::Operator { pid: Some(pid), .. }) => *pid,
        Some(Peer::Operator { pid: None, .. } | Peer::App { .. }) | None => {
            return Err("administration is taken over the daemon's own socket alone");
        }
    };
    let token = bearer(&parts.headers).unwrap_or_default();
    let given = Sha256::of(token.as_bytes());
    if !bool::from(given.as_bytes().ct_eq(app.operator.as_bytes())) {
        return Err("administration needs the operator's token");
    }
    if !outside_of_sandboxes(pid) {
        return Err("the peer is inside a job's process tree");
    }
    Ok(())
}

/// Carries out a verb of the journal for a command.
pub(super) async fn journal(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let by = match request.headers().get(standing::HEADER) {
        Some(said) => Some(Standing::parse(said.to_str().unwrap_or_default())?),
        None => None,
    };
    let body = operators_body(&app, request).await?;
    Ok(json(app.gateway.verb(&body, by).await?))
}

/// Says how the daemon is.
pub(super) async fn status(State(app): State<App>) -> Result<Response<Body>, Problem> {
    Ok(json(app.gateway.status(Arc::new(app.face.about())).await?))
}

/// Asks for a way in for agents through the admin API.
///
/// # Shape
/// `{"network":"loopback"}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listen {
    network: Reach,
}

/// Says from where agents come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reach {
    /// From this machine, by plain HTTP.
    Loopback,
}

/// Makes sure that plain HTTP clients on this machine reach the app listener, and says where.
pub(super) async fn listen(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    let asked: Listen = read(&body)?;
    let url = match asked.network {
        Reach::Loopback => app.network.url().await?,
    };
    let socket = app.face.about()["socket"].clone();
    Ok(json(
        value!({"schema": "semel.listening/v1", "url": url, "socket": socket}),
    ))
}

/// Ends the daemon once what is under way is done.
pub(super) async fn shutdown(State(app): State<App>) -> Result<Response<Body>, Problem> {
    app.gateway.enter(Phase::Draining);
    Ok(json(value!({"schema": "semel.shutdown/v1", "draining": true})))
}

/// Frees what old calls of open volumes removed or replaced.
pub(super) async fn evict(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    Ok(json(app.gateway.evict_older(&body).await?))
}

/// Hears that somebody waits for a lock.
pub(super) async fn lock_wait(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    Ok(json(app.gateway.lock_waits.hear(&body)?))
}

/// Opens a volume for a person.
pub(super) async fn open_volume(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    let url = app.network.url().await?;
    let mut opened = app.gateway.open_volume(&body).await?;
    opened["url"] = value!(url);
    opened["socket"] = app.face.about()["socket"].clone();
    Ok(json(opened))
}

/// Ends a volume for a person.
pub(super) async fn end_volume(
    State(app): State<App>,
    Named(generation): Named<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    Ok(json(app.gateway.end_volume(&generation, &body).await?))
}

/// Puts back what an execution removed or replaced.
pub(super) async fn undo(
    State(app): State<App>,
    Named(id): Named<String>,
) -> Result<Response<Body>, Problem> {
    let execution = ExecutionId::parse(id)?;
    Ok(success(app.gateway.undo(execution).await?))
}

/// Settles a call whose outcome is unknown, by a person's word.
pub(super) async fn resolve(
    State(app): State<App>,
    Named(id): Named<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    Ok(json(app.gateway.resolve(ExecutionId::parse(id)?, &body).await?))
}

/// Asks that a command be ended.
pub(super) async fn end_execution(
    State(app): State<App>,
    Named(id): Named<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    let execution = ExecutionId::parse(id)?;
    Ok(json(app.gateway.end_execution(execution, &body).await?))
}
