//! `POST /v1/tools/{tool}`: a call by an agent.

use super::problem::Problem;
use super::{App, bearer, body};
use crate::engine::gateway::answer::{Replayed, Success};
use crate::engine::gateway::call::Call;
use crate::engine::gateway::tool::Tool;
use crate::limits;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use semel_core::call::Source;
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};
use serde_json::Value;
use std::time::Duration;

/// Answers a call: route, token and generation from the head, then the body.
pub(super) async fn call(
    State(app): State<App>,
    Path(tool): Path<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tool = Tool::parse(&tool)?;
    let (parts, incoming) = request.into_parts();
    let lease = lease(&app, &parts.headers).await?;
    let source = source("http", &parts.headers);
    let header_keys: Vec<Vec<u8>> = parts
        .headers
        .get_all("idempotency-key")
        .iter()
        .map(|value| value.as_bytes().to_vec())
        .collect();
    app.gateway
        .admit_generation(tool, &lease, &source, &header_keys)
        .await?;
    let body = body(&app, &parts.headers, incoming, limits::BODY).await?;
    let call = Call {
        tool,
        lease,
        header_keys,
        body: body.to_vec(),
        form: json_content(&parts.headers),
        source,
        wait: wait(&parts.headers),
    };
    Ok(success(app.gateway.call(call).await?))
}

/// Finds the volume of the request's token.
pub(super) async fn lease(app: &App, headers: &HeaderMap) -> Result<Volume, Refusal> {
    let counted = |refusal: Refusal| {
        if refusal.code == Code::Unauthorized {
            app.gateway.counters.unauthorized.add();
        }
        refusal
    };
    let Some(token) = bearer(headers).map(str::to_owned) else {
        return app.gateway.lease(None).map_err(counted);
    };
    let gateway = app.gateway.clone();
    tokio::task::spawn_blocking(move || gateway.lease(Some(&token)))
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?
        .map_err(counted)
}

/// Says where a request comes from.
pub(super) fn source(door: &str, headers: &HeaderMap) -> Source {
    let text = |name: header::HeaderName, cap: usize| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(value.chars().take(cap).collect::<String>())
    };
    Source {
        door: door.to_owned(),
        user_agent: text(header::USER_AGENT, 200),
        traceparent: text(header::HeaderName::from_static("traceparent"), 64),
    }
}

/// Refuses a body that says it is not JSON; one that says nothing is read as JSON.
fn json_content(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let kind = value.to_str().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json") {
        return Ok(());
    }
    let shown: String = kind.chars().take(80).collect();
    Err(Refusal::new(
        Code::BadInput,
        "the arguments are JSON; send Content-Type: application/json",
    )
    .reason("unsupported_media_type")
    .name(shown))
}

/// Reads how long the caller wants to wait for the same call that runs already: `Prefer: wait=N` (RFC 7240).
fn wait(headers: &HeaderMap) -> Duration {
    let asked = headers.get_all("prefer").iter().find_map(|value| {
        value.to_str().ok()?.split([',', ';']).find_map(|part| {
            let (name, seconds) = part.split_once('=')?;
            let named = name.trim().eq_ignore_ascii_case("wait");
            named.then(|| seconds.trim().parse::<u64>().ok())?
        })
    });
    asked
        .map_or(limits::IN_FLIGHT_WAIT, Duration::from_secs)
        .min(limits::IN_FLIGHT_WAIT_MOST)
}

fn success(success: Success) -> Response<Body> {
    let mut response = json(Value::Object(success.body));
    if success.replayed == Replayed::Yes {
        response
            .headers_mut()
            .insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}

/// Makes a response of a JSON value.
pub(super) fn json(value: Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
