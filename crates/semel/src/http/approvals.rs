//! `/v1/admin/approvals`: what waits for a person, and what a person decides.

use super::problem::Problem;
use super::tools::json;
use super::{App, Named, operators_body};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;

/// Lists the calls that wait.
pub(super) async fn list(State(app): State<App>) -> Result<Response<Body>, Problem> {
    Ok(json(app.gateway.approvals().await?))
}

/// Decides one of them.
pub(super) async fn decide(
    State(app): State<App>,
    Named(id): Named<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let body = operators_body(&app, request).await?;
    Ok(json(app.gateway.decide(&id, &body).await?))
}
