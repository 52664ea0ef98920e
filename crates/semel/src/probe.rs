//! The probe process: it answers whether the daemon lives, from one heartbeat file, and knows nothing else.
//!
//! It has no handle on the journal, the volumes or the app's routes, reads no body, and dies with the daemon.

use crate::engine::daemon::health::heartbeat;
use crate::limits;
use crate::telemetry::{Heartbeat, Phase};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use semel_core::{Code, Refusal};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Serves the listener that stands at standard input until the daemon dies, and this process with it.
///
/// # Errors
/// `io_failed` where the listener cannot be taken.
pub(crate) fn serve(heartbeat: PathBuf) -> Result<(), Refusal> {
    let fail = |e: std::io::Error| Refusal::new(Code::IoFailed, format!("the probe cannot listen: {e}"));
    use std::os::fd::AsFd as _;
    let owned = std::io::stdin().as_fd().try_clone_to_owned().map_err(fail)?;
    let listener = std::net::TcpListener::from(owned);
    listener.set_nonblocking(true).map_err(fail)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(fail)?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(fail)?;
        let connections = Arc::new(Semaphore::new(limits::PROBE_CONNECTIONS));
        let heartbeat: Arc<Path> = heartbeat.into();
        loop {
            let Ok(permit) = connections.clone().acquire_owned().await else {
                return Ok(());
            };
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let heartbeat = heartbeat.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let answer = answer(&request, &heartbeat);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits::HEADER_TIMEOUT)
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                drop((served, permit));
            });
        }
    })
}

fn answer(request: &Request<Incoming>, file: &Path) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed\n".to_owned());
        response
            .headers_mut()
            .insert("allow", hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let seen = heartbeat(file);
    match request.uri().path() {
        "/livez" => said(seen, moves),
        "/readyz" => said(seen, |beat| beat.phase == Phase::Ready && moves(beat)),
        "/startupz" => said(seen, |beat| beat.phase != Phase::Starting),
        "/metrics" => {
            let mut response = text(StatusCode::OK, metrics(seen.ok().as_ref()));
            response.headers_mut().insert("content-type", METRICS);
            response
        }
        _ => text(StatusCode::NOT_FOUND, "not_found\n".to_owned()),
    }
}

const METRICS: hyper::header::HeaderValue =
    hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Says whether the journal's writer comes to an end: one that hangs is as good as dead, and is started again.
fn moves(beat: &Heartbeat) -> bool {
    let busy = beat.journal.as_ref().map_or(0, |journal| journal.busy_ms);
    u128::from(busy) <= limits::WRITER_STUCK.as_millis()
}

fn said(seen: Result<Heartbeat, Refusal>, holds: impl Fn(&Heartbeat) -> bool) -> Response<Full<Bytes>> {
    match seen {
        Ok(beat) if holds(&beat) => text(StatusCode::OK, "ok\n".to_owned()),
        Ok(beat) if !moves(&beat) => text(StatusCode::SERVICE_UNAVAILABLE, "writer_stuck\n".to_owned()),
        Ok(beat) => text(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{:?}\n", beat.phase).to_lowercase(),
        ),
        Err(refusal) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n")),
    }
}

fn metrics(beat: Option<&Heartbeat>) -> String {
    let mut text =
        String::from("# HELP semel_up Whether the last heartbeat is fresh.\n# TYPE semel_up gauge\n");
    text.push_str(&format!("semel_up {}\n", u8::from(beat.is_some())));
    if let Some(beat) = beat {
        text.push_str(&beat.prometheus());
    }
    text
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        "content-type",
        hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        "cache-control",
        hyper::header::HeaderValue::from_static("no-store"),
    );
    response
}
