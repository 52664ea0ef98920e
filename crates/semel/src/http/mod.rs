//! The app listener: HTTP/1.1 on TCP and on the daemon's Unix socket.
//!
//! Own accept loop, for what `axum::serve` lacks: a timeout for half-sent heads, a cap on connections, a deadline
//! for draining, and who the peer is. No route replays "the last call", none takes an empty body as a request, and
//! GET changes nothing.

mod admin;
mod openapi;
mod problem;
mod receipts;
mod tools;
mod wire_guard;

pub(crate) use openapi::document as openapi;

use crate::engine::gateway::Gateway;
use crate::limits;
use crate::telemetry::Phase;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use problem::Problem;
use semel_core::digest::Sha256;
use semel_core::{Code, Refusal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

/// Is what every route works with.
#[derive(Clone)]
pub(crate) struct App {
    /// The gateway.
    pub(crate) gateway: Arc<Gateway>,
    /// The digest of the operator's token.
    pub(crate) operator: Sha256,
    /// What the daemon says of itself in its status.
    pub(crate) about: Arc<serde_json::Value>,
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
    /// Somebody who reached the TCP port.
    Tcp {
        /// From where.
        from: SocketAddr,
    },
    /// A process on this machine, by the daemon's own socket.
    Unix {
        /// Its process id as the kernel gives it; `None` where it has none here.
        pid: Option<u32>,
        /// Its user; `None` where the kernel does not say.
        uid: Option<u32>,
    },
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |number: &Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
        match self {
            Self::Tcp { from } => write!(f, "tcp:{from}"),
            Self::Unix { pid, uid } => write!(f, "unix:pid={},uid={}", shown(pid), shown(uid)),
        }
    }
}

/// How long a draining daemon still looks for connections that were made before its socket went away.
const LAST_CALL: Duration = Duration::from_millis(50);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Makes the routes.
fn router(app: App) -> Router {
    let admin = Router::new()
        .route("/journal", post(admin::journal))
        .route("/status", get(admin::status))
        .route("/shutdown", post(admin::shutdown))
        .route("/volumes", post(admin::open_volume))
        .route("/volumes/{generation}/end", post(admin::end_volume))
        .route("/executions/{id}/undo", post(admin::undo))
        .route("/executions/{id}/resolve", post(admin::resolve))
        .route("/approvals/{id}", post(admin::approve))
        .method_not_allowed_fallback(no_method)
        .fallback(no_route)
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            admin::authority,
        ));
    Router::new()
        .route("/v1/tools/{tool}", post(tools::call))
        .route("/v1/receipts/{key}", get(receipts::get))
        .route("/v1/openapi.json", get(async || axum::Json(openapi())))
        .nest("/v1/admin", admin)
        .method_not_allowed_fallback(no_method)
        .fallback(no_route)
        .with_state(app)
}

/// Lists every route with its method, for the tests that probe them all.
pub(crate) const ROUTES: &[(&str, &str)] = &[
    ("POST", "/v1/tools/{tool}"),
    ("GET", "/v1/receipts/{key}"),
    ("GET", "/v1/openapi.json"),
    ("POST", "/v1/admin/journal"),
    ("GET", "/v1/admin/status"),
    ("POST", "/v1/admin/shutdown"),
    ("POST", "/v1/admin/volumes"),
    ("POST", "/v1/admin/volumes/{generation}/end"),
    ("POST", "/v1/admin/executions/{id}/undo"),
    ("POST", "/v1/admin/executions/{id}/resolve"),
    ("POST", "/v1/admin/approvals/{id}"),
];

async fn no_route() -> Problem {
    Refusal::new(Code::NotFound, "there is no such route").into()
}

async fn no_method() -> Problem {
    Refusal::new(Code::MethodNotAllowed, "the route does not take this method").into()
}

/// Answers one request, whatever comes of it.
async fn answer(router: Router, app: App, peer: Peer, request: Request<Incoming>) -> Response {
    app.activity.touch();
    let mut request = request.map(Body::new);
    let id = request_id(&request);
    request.extensions_mut().insert(peer);
    let path = request.uri().path().to_owned();
    let mut response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
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

/// Reads a body up to a bound.
///
/// # Errors
/// `too_large` past it; `bad_input` where the client breaks off or dawdles.
pub(super) async fn body(body: Body, cap: usize) -> Result<Bytes, Refusal> {
    use http_body_util::{BodyExt as _, LengthLimitError, Limited};
    let collected = tokio::time::timeout(limits::BODY_TIMEOUT, Limited::new(body, cap).collect());
    let Ok(collected) = collected.await else {
        let why = "the body did not arrive in time";
        return Err(Refusal::new(Code::BadInput, why).reason("body_timeout"));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::new(
            Code::TooLarge,
            format!("a body has at most {cap} bytes"),
        )),
        Err(error) => Err(Refusal::new(
            Code::BadInput,
            format!("the body broke off: {error}"),
        )),
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

/// Serves both listeners until the gateway drains or is poisoned; then finishes what is under way, within bounds.
pub(crate) async fn serve(app: App, tcp: TcpListener, unix: UnixListener) {
    let router = router(app.clone());
    let connections = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let mut phase = app.gateway.phase();
    let over = |phase: &Phase| matches!(phase, Phase::Draining | Phase::Poisoned);
    let everyone = u32::try_from(limits::CONNECTIONS).unwrap_or(u32::MAX);
    loop {
        let permit = tokio::select! {
            permit = connections.clone().acquire_owned() => permit,
            _ = phase.wait_for(over) => break,
        };
        let Ok(permit) = permit else { break };
        tokio::select! {
            _ = phase.wait_for(over) => break,
            accepted = tcp.accept() => match accepted {
                Ok((stream, from)) => {
                    drop(stream.set_nodelay(true));
                    let peer = Peer::Tcp { from };
                    tokio::spawn(connection(router.clone(), app.clone(), peer, stream, permit));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            accepted = unix.accept() => match accepted {
                Ok((stream, _)) => {
                    let peer = peer_of(&stream);
                    tokio::spawn(connection(router.clone(), app.clone(), peer, stream, permit));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
    let poisoned = *phase.borrow() == Phase::Poisoned;
    if !poisoned {
        // Whoever connected before the socket went away is still answered.
        while let Ok(Ok((stream, _))) = tokio::time::timeout(LAST_CALL, unix.accept()).await {
            let Ok(permit) = connections.clone().try_acquire_owned() else {
                break;
            };
            tokio::spawn(connection(
                router.clone(),
                app.clone(),
                peer_of(&stream),
                stream,
                permit,
            ));
        }
    }
    let deadline = if poisoned {
        Duration::from_secs(1)
    } else {
        limits::DRAIN
    };
    drop(tokio::time::timeout(deadline, connections.acquire_many(everyone)).await);
}

fn peer_of(stream: &tokio::net::UnixStream) -> Peer {
    let cred = stream.peer_cred().ok();
    let pid = cred.and_then(|cred| cred.pid());
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    Peer::Unix {
        pid: pid.filter(|pid| *pid != 0),
        uid: cred.map(|cred| cred.uid()),
    }
}

async fn connection<S>(
    router: Router,
    app: App,
    peer: Peer,
    stream: S,
    permit: tokio::sync::OwnedSemaphorePermit,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let mut phase = app.gateway.phase();
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let (router, app) = (router.clone(), app.clone());
        async move { Ok::<_, std::convert::Infallible>(answer(router, app, peer, request).await) }
    });
    let io = TokioIo::new(wire_guard::WireGuard::new(stream));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIMEOUT)
        .serve_connection(io, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        _ = phase.wait_for(|phase| matches!(phase, Phase::Draining | Phase::Poisoned)) => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        drop(connection.await);
    }
    drop(permit);
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
