//! The app listener: HTTP/1.1 on Unix sockets, and on TCP where it is asked for.
//!
//! No route replays "the last call", none takes an empty body as a request, and GET changes nothing. Who connects, and
//! how long that may take, is `accept`'s.

mod accept;
mod admin;
mod approvals;
mod events;
mod executions;
mod framing;
mod mcp;
mod openapi;
mod problem;
mod receipts;
mod stream;
mod tokens;
mod tools;
mod wire_guard;

pub(crate) use accept::{Door, Name, Network, Patience, Side, serve};
pub(crate) use openapi::{answer as answer_schema, document as openapi};
pub(crate) use problem::retry_after;

use crate::engine::daemon::face::Face;
use crate::engine::gateway::Gateway;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::body::Incoming;
use problem::Problem;
use semel_core::digest::Sha256;
use semel_core::{Code, Refusal};
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stream::Stream;
use tokio::sync::watch;
use tower::ServiceExt as _;

/// Is what every route works with.
#[derive(Clone)]
pub(crate) struct App {
    /// The gateway.
    pub(crate) gateway: Arc<Gateway>,
    /// The digest of the operator's token.
    pub(crate) operator: Sha256,
    /// What speaks the Model Context Protocol.
    pub(crate) mcp: Arc<crate::mcp::Server>,
    /// What the daemon says of itself.
    pub(crate) face: Arc<Face>,
    /// Opens a TCP port where a job needs one.
    pub(crate) network: Network,
    /// How patient the listeners are.
    pub(crate) patience: Patience,
    /// When the last request began or ended, for a daemon that ends when idle.
    pub(crate) activity: Arc<Activity>,
}

/// Tells when somebody last asked for anything.
#[derive(Debug)]
pub(crate) struct Activity(watch::Sender<tokio::time::Instant>);

impl Activity {
    /// Begins now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(tokio::time::Instant::now())))
    }

    /// Hears of a request.
    pub(crate) fn touch(&self) {
        self.0.send_replace(tokio::time::Instant::now());
    }

    /// Says how long nobody asked for anything.
    pub(crate) fn idle(&self) -> Duration {
        self.0.borrow().elapsed()
    }
}

/// Says who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Somebody who reached the TCP port, or the socket for jobs.
    App {
        /// Who that is.
        who: Who,
    },
    /// A process on this machine, by the operator's own socket.
    Operator {
        /// Its process id as the kernel gives it; `None` where it has none here.
        pid: Option<u32>,
        /// Its user; `None` where the kernel does not say.
        uid: Option<u32>,
    },
}

/// Says who a peer is, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Somebody who reached the TCP port, from there.
    Tcp(SocketAddr),
    /// A process on this machine.
    Process {
        /// Its process id; `None` where it has none here.
        pid: Option<u32>,
        /// Its user; `None` where the kernel does not say.
        uid: Option<u32>,
    },
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
        match *self {
            Self::App { who: Who::Tcp(from) } => write!(f, "tcp:{from}"),
            Self::App {
                who: Who::Process { pid, uid },
            }
            | Self::Operator { pid, uid } => write!(f, "unix:pid={},uid={}", shown(pid), shown(uid)),
        }
    }
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Makes the routes.
fn router(app: App) -> Router {
    let admin = Router::new()
        .route("/journal", post(admin::journal))
        .route("/status", get(admin::status))
        .route("/listen", post(admin::listen))
        .route("/shutdown", post(admin::shutdown))
        .route("/evict", post(admin::evict))
        .route("/lock-waits", post(admin::lock_wait))
        .route("/volumes", post(admin::open_volume))
        .route("/volumes/{generation}/end", post(admin::end_volume))
        .route("/approvals", get(approvals::list))
        .route("/approvals/{id}", post(approvals::decide))
        .route("/executions/{id}/undo", post(admin::undo))
        .route("/executions/{id}/resolve", post(admin::resolve))
        .route("/executions/{id}/end", post(admin::end_execution))
        .method_not_allowed_fallback(no_method)
        .fallback(no_route)
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            admin::authority,
        ));
    Router::new()
        .route("/v1/tools/{tool}", post(tools::call))
        .route("/v1/tokens", post(tokens::issue))
        .route("/v1/receipts/{key}", get(receipts::get))
        .route(
            "/v1/executions/{execution_id}/output/{stream}",
            get(executions::output),
        )
        .route("/mcp", post(mcp::post))
        .route("/v1/openapi.json", get(async || axum::Json(openapi())))
        .nest("/v1/admin", admin)
        .method_not_allowed_fallback(no_method)
        .fallback(no_route)
        .with_state(app)
}

/// Lists every route with its method, for the tests that probe them all.
pub(crate) const ROUTES: &[(&str, &str)] = &[
    ("POST", "/v1/tools/{tool}"),
    ("POST", "/v1/tokens"),
    ("GET", "/v1/receipts/{key}"),
    ("GET", "/v1/executions/{execution_id}/output/{stream}"),
    ("POST", "/mcp"),
    ("GET", "/v1/openapi.json"),
    ("POST", "/v1/admin/journal"),
    ("GET", "/v1/admin/status"),
    ("POST", "/v1/admin/listen"),
    ("POST", "/v1/admin/shutdown"),
    ("POST", "/v1/admin/evict"),
    ("POST", "/v1/admin/lock-waits"),
    ("POST", "/v1/admin/volumes"),
    ("POST", "/v1/admin/volumes/{generation}/end"),
    ("GET", "/v1/admin/approvals"),
    ("POST", "/v1/admin/executions/{id}/undo"),
    ("POST", "/v1/admin/executions/{id}/resolve"),
    ("POST", "/v1/admin/executions/{id}/end"),
    ("POST", "/v1/admin/approvals/{id}"),
];

async fn no_route() -> Problem {
    Refusal::new(Code::NotFound, "there is no such route").into()
}

async fn no_method() -> Problem {
    Refusal::new(Code::MethodNotAllowed, "the route does not take this method").into()
}

/// Answers one request, whatever comes of it; where the caller goes away first, what has not begun does not begin.
async fn answer(
    router: Router,
    app: App,
    peer: Peer,
    caller: Stream,
    request: Request<Incoming>,
) -> Response {
    app.activity.touch();
    let mut request = request.map(Body::new);
    let id = request_id(&request);
    request.extensions_mut().insert(peer);
    let path = request.uri().path().to_owned();
    let mut response = tokio::select! {
        response = router.oneshot(request) => match response {
            Ok(response) => response,
            Err(never) => match never {},
        },
        () = caller.left() => Problem::from(Refusal::new(Code::Draining, "the caller went away")).response(),
    };
    if response.status() == StatusCode::METHOD_NOT_ALLOWED && !response.headers().contains_key(header::ALLOW)
    {
        let allow = ROUTES
            .iter()
            .find(|(_, route)| fits(route, &path))
            .map(|(method, _)| *method);
        let allow = match allow {
            Some("GET") => "GET, HEAD",
            _ => "POST",
        };
        response
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if let Some(id) = id.and_then(|id| HeaderValue::from_str(&id).ok()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    app.activity.touch();
    response
}

fn fits(route: &str, path: &str) -> bool {
    let (mut route, mut path) = (route.split('/'), path.split('/'));
    loop {
        match (route.next(), path.next()) {
            (None, None) => return true,
            (Some(want), Some(got)) if want == got || want.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// Takes the caller's id of the request where it is harmless, else makes one.
fn request_id(request: &Request) -> Option<String> {
    let given = request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let harmless = |text: &&str| {
        (1..=128).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    match given.filter(harmless) {
        Some(id) => Some(id.to_owned()),
        None => crate::engine::daemon::health::request_id(),
    }
}

/// Reads the body of a request of the operator.
///
/// # Errors
/// As [`body`].
async fn operators_body(app: &App, request: Request) -> Result<Bytes, Refusal> {
    const MOST: usize = 16 << 20;
    let (head, incoming) = request.into_parts();
    body(app, &head.headers, incoming, MOST).await
}

/// Reads a body up to a bound; one that says that it is longer, or is packed, is refused before it is read.
///
/// # Errors
/// `too_large`; `bad_input`, reason `unsupported_content_encoding`; reason `body_timeout` where the client dawdles;
/// `bad_input` where it breaks off.
pub(super) async fn body(
    app: &App,
    headers: &axum::http::HeaderMap,
    body: Body,
    cap: usize,
) -> Result<Bytes, Refusal> {
    use http_body_util::{BodyExt as _, LengthLimitError, Limited};
    let too_large = || Refusal::new(Code::TooLarge, format!("a body has at most {cap} bytes"));
    plain_encoding(headers)?;
    if hyper::body::Body::size_hint(&body).lower() > cap as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(app.patience.body, Limited::new(body, cap).collect());
    let Ok(collected) = collected.await else {
        let why = "the body did not arrive in time";
        return Err(Refusal::new(Code::BadInput, why).reason("body_timeout"));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => {
            let why = format!("the body broke off: {error}");
            Err(Refusal::new(Code::BadInput, why).reason("body_broken_off"))
        }
    }
}

/// Refuses a packed body: what it unpacks to has no bound that could be seen before.
fn plain_encoding(headers: &axum::http::HeaderMap) -> Result<(), Refusal> {
    let packed = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .map(|value| value.to_str().unwrap_or("?"))
        .find(|value| !value.trim().eq_ignore_ascii_case("identity"));
    match packed {
        None => Ok(()),
        Some(packed) => {
            let shown: String = packed.chars().take(80).collect();
            let why = "a body is taken as it is; send it without Content-Encoding";
            Err(Refusal::new(Code::BadInput, why)
                .reason("unsupported_content_encoding")
                .name(shown))
        }
    }
}

/// Gives the bearer token of a request; two of them are none, since one would have to be picked.
pub(super) fn bearer(headers: &axum::http::HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let value = value.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Gives the segments of the route that the path of a request fills; unlike axum's own, it refuses as everything does.
pub(super) struct Named<T>(T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(named)) => Ok(Self(named)),
            Err(rejection) if rejection.status().is_server_error() => {
                Err(Refusal::new(Code::Internal, rejection.body_text()).into())
            }
            Err(_) => {
                let why = "the path of the request is not UTF-8";
                Err(Refusal::new(Code::BadInput, why).name(parts.uri.path()).into())
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bearer_token_is_taken_and_two_are_none() {
        let mut headers = axum::http::HeaderMap::new();
        assert_eq!(bearer(&headers), None);
        headers.append(header::AUTHORIZATION, "bearer one".parse().unwrap());
        assert_eq!(bearer(&headers), Some("one"));
        headers.append(header::AUTHORIZATION, "Bearer one".parse().unwrap());
        assert_eq!(bearer(&headers), None);
    }
}
