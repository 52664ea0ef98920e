//! `POST /mcp`: the Model Context Protocol over Streamable HTTP, one message a request.
//!
//! A refusal of a call is an answer (200), whatever its own status would be: clients of older revisions drop the body of
//! any other, and proxies send some again by themselves. Another status is about the request itself.

use super::tools::{Preference, header_keys, json, json_content, source, whole_lease};
use super::{App, Peer, Who, body, events};
use crate::engine::gateway::answer::Replayed;
use crate::limits;
use crate::mcp::{self, Caller, Done, Told};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode, header};
use semel_core::canonical::Limits;
use semel_core::mcp::rpc::{self, Malformed};
use semel_core::mcp::{Declared, Era, Error, Id, Message, Request as Asked, era};
use semel_core::{Code, Refusal};
use serde_json::Value;
use tokio::sync::mpsc;

/// Is why a request is refused, with all that its answer says.
struct Refused {
    status: StatusCode,
    id: Option<Id>,
    error: Error,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.code.http());
        Self {
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            id: None,
            error: mcp::of_refusal(refusal),
        }
    }
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        let status = StatusCode::from_u16(malformed.refusal.code.http());
        Self {
            status: status.unwrap_or(StatusCode::BAD_REQUEST),
            error: mcp::malformed(&malformed),
            id: malformed.id,
        }
    }
}

/// Answers one message.
pub(super) async fn post(State(app): State<App>, request: Request) -> Response<Body> {
    match answered(&app, request).await {
        Ok(response) => response,
        Err(refused) => {
            let status = refused.status;
            let mut response = json(rpc::refused(refused.id.as_ref(), &refused.error));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            if status == StatusCode::UNAUTHORIZED {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            response
        }
    }
}

async fn answered(app: &App, request: Request) -> Result<Response<Body>, Refused> {
    let (parts, incoming) = request.into_parts();
    foreign(&parts)?;
    let source = source("mcp", &parts);
    let lease = whole_lease(app, &parts.headers, "mcp", &source).await?;
    json_content(&parts.headers)?;
    let share = app.gateway.share(&lease.volume)?;
    let bytes = body(app, &parts.headers, incoming, limits::MESSAGE).await?;
    let bounds = Limits {
        bytes: limits::MESSAGE,
        // The arguments of a call lie two levels deep.
        depth: Limits::DEFAULT.depth + 2,
    };
    let request = match rpc::parse(&bytes, bounds)? {
        Message::Request(request) => request,
        Message::Notification { .. } => return Ok(accepted()),
        Message::Response => {
            let why = "nothing was asked of this client";
            return Err(Refusal::new(Code::BadInput, why).reason("not_a_request").into());
        }
    };
    let id = request.id.clone();
    let era = spoken(&parts, &request).map_err(|error| Refused {
        status: StatusCode::BAD_REQUEST,
        id: Some(id.clone()),
        error,
    })?;
    let mut caller = Caller {
        lease,
        source,
        keys: header_keys(&parts.headers),
        wait: Preference::of(&parts.headers).wait(),
        told: Told::nobody(),
    };
    if let Some(token) = wants_to_hear(&parts, &request) {
        let (way, told) = mpsc::unbounded_channel();
        caller.told = Told::somebody(token, way);
        let server = app.mcp.clone();
        let answer = Box::pin(async move {
            let answer = server.answer(caller, era, request).await;
            drop(share);
            match answer {
                Ok(done) => rpc::answered(&id, done.result),
                Err(error) => rpc::refused(Some(&id), &error),
            }
        });
        return Ok(events::response(answer, told));
    }
    match app.mcp.answer(caller, era, request).await {
        Ok(done) => Ok(response(&id, done)),
        Err(error) => Err(Refused {
            status: status_of(&error, era),
            id: Some(id),
            error,
        }),
    }
}

/// Gives the token under which a caller wants to hear how a call goes on, where it can be told.
fn wants_to_hear(parts: &Parts, request: &Asked) -> Option<Value> {
    let token = request.params.get("_meta")?.get("progressToken")?;
    let mut accepted = parts.headers.get_all(header::ACCEPT).iter();
    let takes = accepted.any(|value| {
        value
            .as_bytes()
            .windows(17)
            .any(|part| part == b"text/event-stream")
    });
    let fits = token.is_string() || token.is_i64() || token.is_u64();
    (takes && fits && request.method == mcp::CALL && mcp::streams(&request.params)).then(|| token.clone())
}

/// Refuses what a browser sends for somebody else; over a Unix socket no browser comes.
fn foreign(parts: &Parts) -> Result<(), Refusal> {
    match parts.extensions.get::<Peer>() {
        Some(Peer::App { who: Who::Tcp(_) }) | None => {}
        Some(Peer::App { .. } | Peer::Operator { .. }) => return Ok(()),
    }
    let all = |name| -> Vec<&[u8]> {
        let values = parts.headers.get_all(name).iter();
        values.map(HeaderValue::as_bytes).collect()
    };
    mcp::permitted(&all(header::HOST), &all(header::ORIGIN))
}

/// Says which revision a request speaks, and holds its headers against its body where that revision has them say both.
fn spoken(parts: &Parts, request: &Asked) -> Result<Era, Error> {
    let all = |name: &str| -> Vec<Vec<u8>> {
        let values = parts.headers.get_all(name).iter();
        values.map(|value| value.as_bytes().to_vec()).collect()
    };
    let versions = all("mcp-protocol-version");
    let version = match &versions[..] {
        [] => None,
        [one] => Some(std::str::from_utf8(one).unwrap_or("?").trim()),
        _ => {
            let why = "the header MCP-Protocol-Version comes more than once";
            return Err(Error::new(rpc::HEADER_MISMATCH, why));
        }
    };
    let era = era::of(&request.method, &request.params, Declared::Header(version))?;
    if era.is_modern() {
        mcp::check_headers(request, &all)?;
    }
    Ok(era)
}

/// Gives the status that the newest revision asks for; an older one reads errors in answers alone.
fn status_of(error: &Error, era: Era) -> StatusCode {
    match (error.code, era.is_modern()) {
        (rpc::METHOD_NOT_FOUND, true) => StatusCode::NOT_FOUND,
        (
            rpc::INVALID_REQUEST
            | rpc::INVALID_PARAMS
            | rpc::HEADER_MISMATCH
            | rpc::MISSING_CAPABILITY
            | rpc::UNSUPPORTED_VERSION,
            true,
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn response(id: &Id, done: Done) -> Response<Body> {
    let mut response = json(rpc::answered(id, done.result));
    if done.replayed == Replayed::Yes {
        response
            .headers_mut()
            .insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}
