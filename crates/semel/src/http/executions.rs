//! `GET /v1/executions/{execution_id}/output/{stream}`: what a command wrote so far; it changes nothing.

use super::problem::Problem;
use super::tools::{json, lease, source};
use super::{App, Named};
use crate::engine::gateway::output::Stream;
use crate::engine::gateway::tool::Tool;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use semel_core::canonical::LARGEST_INTEGER;
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal};
use serde_json::Value;

/// Answers from the spool of the execution.
pub(super) async fn output(
    State(app): State<App>,
    Named((id, stream)): Named<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    let source = source("http", &parts);
    let lease = lease(&app, &parts.headers, Tool::RunCommand.name(), &source).await?;
    let stream = match stream.as_str() {
        "stdout" => Stream::Stdout,
        "stderr" => Stream::Stderr,
        _ => return Err(Refusal::new(Code::NotFound, "a stream is stdout or stderr").into()),
    };
    let execution = ExecutionId::parse(id)?;
    let offset = offset(parts.uri.query())?;
    let _share = app.gateway.share(&lease)?;
    let gateway = app.gateway.clone();
    let read = move || gateway.output(&lease, &execution, stream, offset);
    let body = tokio::task::spawn_blocking(read)
        .await
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))??;
    Ok(json(Value::Object(body)))
}

/// Reads `offset=N`; the beginning where nothing is said.
fn offset(query: Option<&str>) -> Result<u64, Refusal> {
    let Some(query) = query.filter(|query| !query.is_empty()) else {
        return Ok(0);
    };
    let number = query.strip_prefix("offset=");
    let number = number.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    number
        .and_then(|text| text.parse().ok())
        .filter(|offset| *offset <= LARGEST_INTEGER)
        .ok_or_else(|| Refusal::new(Code::BadInput, "the query is offset=N, or nothing").name("offset"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_a_number_or_nothing() {
        for (query, wanted) in [
            (None, Some(0)),
            (Some(""), Some(0)),
            (Some("offset=7"), Some(7)),
            (Some("offset="), None),
            (Some("offset=-1"), None),
            (Some("offset=+1"), None),
            (Some("offset=1&offset=2"), None),
            (Some("after=1"), None),
            (Some("offset=9007199254740991"), Some(9_007_199_254_740_991)),
            (Some("offset=9007199254740992"), None),
            (Some("offset=18446744073709551616"), None),
        ] {
            assert_eq!(offset(query).ok(), wanted, "{query:?}");
        }
    }
}
