//! `POST /v1/tools/{tool}`: a call by an agent.

use super::problem::Problem;
use super::{App, Named, Peer, bearer, body};
use crate::engine::gateway::answer::{Replayed, Success};
use crate::engine::gateway::call::{Call, Sent};
use crate::engine::gateway::key::Carried;
use crate::engine::gateway::tool::Tool;
use crate::limits;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use semel_core::call::Source;
use semel_core::volume::{Lease, Volume};
use semel_core::{Code, Refusal};
use serde_json::Value;
use std::time::{Duration, Instant};

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Answers a call: route, token and generation from the head, then the body.
pub(super) async fn call(
    State(app): State<App>,
    Named(tool): Named<String>,
    request: Request,
) -> Response<Body> {
    let preference = Preference::of(request.headers());
    let mut response = match answered(&app, &tool, preference, request).await {
        Ok(success) => self::success(success),
        Err(problem) => problem.response(),
    };
    if let Preference::Wait(seconds) = preference
        && let Ok(applied) = HeaderValue::try_from(format!("wait={seconds}"))
    {
        response.headers_mut().insert(PREFERENCE_APPLIED, applied);
    }
    response
}

async fn answered(
    app: &App,
    tool: &str,
    preference: Preference,
    request: Request,
) -> Result<Success, Problem> {
    let since = Instant::now();
    let tool = Tool::parse(tool)?;
    let (parts, incoming) = request.into_parts();
    let source = source("http", &parts);
    let lease = lease(app, &parts.headers, tool.name(), &source).await?;
    let keys = header_keys(&parts.headers);
    app.gateway.admit_generation(tool, &lease, &source, &keys).await?;
    let _share = app.gateway.share(&lease)?;
    let body = match body(app, &parts.headers, incoming, limits::BODY).await {
        Ok(body) => body,
        Err(refusal) => {
            let noted = app
                .gateway
                .refused_at_the_door(tool, &lease, &source, refusal, since);
            return Err(noted.await.into());
        }
    };
    let call = Call {
        tool,
        lease,
        keys,
        sent: Sent::Bytes(body.to_vec()),
        form: json_content(&parts.headers),
        source,
        wait: preference.wait(),
    };
    Ok(app.gateway.call(call).await?)
}

/// Gives the keys that the headers of a request carry.
pub(super) fn header_keys(headers: &HeaderMap) -> Vec<Carried> {
    let values = headers.get_all("idempotency-key").iter();
    values
        .map(|value| Carried::Header(value.as_bytes().to_vec()))
        .collect()
}

/// Finds the volume of the request's token, as the token sees it; a request without a valid one is noise.
pub(super) async fn lease(
    app: &App,
    headers: &HeaderMap,
    tool: &'static str,
    source: &Source,
) -> Result<Volume, Refusal> {
    whole_lease(app, headers, tool, source).await?.for_tool(tool)
}

/// Finds what the request's token stands for; a request without a valid one is noise.
pub(super) async fn whole_lease(
    app: &App,
    headers: &HeaderMap,
    tool: &'static str,
    source: &Source,
) -> Result<Lease, Refusal> {
    let gateway = app.gateway.clone();
    let token = bearer(headers);
    let found = match gateway.lease_at_once(token) {
        Ok(Some(lease)) => Ok(lease),
        Err(refusal) => Err(refusal),
        Ok(None) => {
            let token = token.map(str::to_owned);
            tokio::task::spawn_blocking(move || gateway.lease(token.as_deref()))
                .await
                .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?
        }
    };
    if let Err(refusal) = &found
        && refusal.code == Code::Unauthorized
    {
        app.gateway.unauthorized(tool, source.clone(), refusal).await;
    }
    found
}

/// Says where a request comes from.
pub(super) fn source(door: &str, parts: &Parts) -> Source {
    // Text here is visible ASCII, spaces and tabs: a character is a byte.
    let text = |name: HeaderName, cap: usize| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some(value.chars().take(cap).collect::<String>())
    };
    Source {
        door: door.to_owned(),
        user_agent: text(header::USER_AGENT, 200),
        traceparent: text(HeaderName::from_static("traceparent"), 64),
        peer: parts.extensions.get::<Peer>().map(Peer::to_string),
        mcp_era: None,
    }
}

/// Refuses a body that says it is not JSON; one that says nothing is read as JSON.
pub(super) fn json_content(headers: &HeaderMap) -> Result<(), Refusal> {
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

/// Says how long the caller wants to wait for the same call that runs already (RFC 7240).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    /// It does not say.
    Unsaid,
    /// So many seconds, within the bound.
    Wait(u64),
}

impl Preference {
    /// Reads `Prefer: wait=N`. The first one counts, and one that has no sense is as good as none.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let values = headers
            .get_all("prefer")
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut named = values
            .flat_map(|value| value.split(','))
            .filter_map(|preference| preference.split(';').next()?.split_once('='))
            .filter(|(name, _)| name.trim().eq_ignore_ascii_case("wait"));
        let seconds = named.next().map(|(_, value)| value.trim().trim_matches('"'));
        match seconds
            .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
            .map(str::parse)
        {
            Some(Ok(seconds)) => Self::Wait(u64::min(seconds, limits::IN_FLIGHT_WAIT_MOST.as_secs())),
            Some(Err(_)) | None => Self::Unsaid,
        }
    }

    /// Gives how long, where it says so.
    pub(super) fn wait(self) -> Option<Duration> {
        match self {
            Self::Unsaid => None,
            Self::Wait(seconds) => Some(Duration::from_secs(seconds)),
        }
    }
}

/// Makes the response of a call that did what it asked.
pub(super) fn success(success: Success) -> Response<Body> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_is_read_as_its_rfc_says() {
        use Preference::{Unsaid, Wait};
        for (values, wanted) in [
            (&[][..], Unsaid),
            (&["wait=0"], Wait(0)),
            (&["wait=7"], Wait(7)),
            (&["Wait = 7"], Wait(7)),
            (&["wait=\"7\""], Wait(7)),
            (&["respond-async, wait=7; x=y"], Wait(7)),
            (&["respond-async", "wait=7"], Wait(7)),
            (&["wait=7, wait=8"], Wait(7)),
            (&["wait=7", "wait=8"], Wait(7)),
            (&["wait=99999"], Wait(60)),
            (&["wait=18446744073709551616"], Unsaid),
            (&["wait=-1"], Unsaid),
            (&["wait=+1"], Unsaid),
            (&["wait=soon, wait=7"], Unsaid),
            (&["wait"], Unsaid),
            (&["respond-async; wait=7"], Unsaid),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("prefer", value.parse().unwrap());
            }
            assert_eq!(Preference::of(&headers), wanted, "{values:?}");
        }
        assert_eq!(Unsaid.wait(), None);
        assert_eq!(Wait(60).wait(), Some(limits::IN_FLIGHT_WAIT_MOST));
    }
}
