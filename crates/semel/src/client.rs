//! The client of the daemon: one request a connection, over its Unix socket or its TCP port.
//!
//! It retries nothing by itself: whoever calls knows whether a request may be sent again.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use semel_core::{Code, Refusal};
use semel_host::process::Cancel;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Says where a daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a Unix socket.
    Unix(PathBuf),
    /// At a URL `http://HOST:PORT`.
    Tcp(String),
}

impl Place {
    /// Reads a URL.
    ///
    /// # Errors
    /// `usage` where it is not `http://HOST:PORT`.
    pub(crate) fn of_url(url: String) -> Result<Self, Refusal> {
        host_of(&url)
            .map(drop)
            .ok_or_else(|| Refusal::new(Code::Usage, "the URL is not http://HOST:PORT").name(url.as_str()))?;
        Ok(Self::Tcp(url))
    }
}

/// Gives what a URL names, where it names no more than a host and a port.
pub(crate) fn host_of(url: &str) -> Option<&str> {
    url.strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/'))
        .filter(|host| !host.contains(['/', '?', '#', '@']))
        .filter(|host| {
            host.rsplit_once(':')
                .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
        })
}

/// Is one request.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    /// The method.
    pub(crate) method: &'static str,
    /// The path.
    pub(crate) path: String,
    /// The bearer token.
    pub(crate) token: &'a str,
    /// Further headers.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The body.
    pub(crate) body: Vec<u8>,
    /// How long the whole exchange may take; `None` where the daemon bounds it.
    pub(crate) within: Option<Duration>,
    /// Who may end it before.
    pub(crate) until: Option<Cancel>,
}

/// Is why no answer came.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nothing was sent: nobody listens there.
    NotConnected(String),
    /// It was sent, and may have been carried out.
    BrokenOff(String),
    /// As [`Unanswered::BrokenOff`], since the caller was told to end.
    Cancelled,
}

impl Unanswered {
    /// Turns it into what a caller is told.
    pub(crate) fn into_refusal(self) -> Refusal {
        let why = match self {
            Self::NotConnected(why) => format!("no daemon answers: {why}"),
            Self::BrokenOff(why) => format!("the daemon broke off: {why}"),
            Self::Cancelled => {
                let why = "told to end while it waited for the daemon";
                return Refusal::new(Code::DaemonUnreachable, why).reason("cancelled");
            }
        };
        Refusal::new(Code::DaemonUnreachable, why)
    }
}

/// Sends one request, and gives the JSON of the answer or the refusal that it carries.
///
/// # Errors
/// [`Unanswered`] outside; the daemon's refusal inside.
pub(crate) fn ask(place: &Place, ask: &Ask<'_>) -> Result<Result<Value, Refusal>, Unanswered> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Unanswered::NotConnected(e.to_string()))?;
    runtime.block_on(bounded(ask, exchange(place, ask)))
}

/// How soon it is seen that nobody wants the answer any more.
const LOOK: Duration = Duration::from_millis(50);

/// Waits for an exchange as long as it may take.
async fn bounded<T>(
    ask: &Ask<'_>,
    exchange: impl Future<Output = Result<T, Unanswered>>,
) -> Result<T, Unanswered> {
    let began = Instant::now();
    let mut exchange = std::pin::pin!(exchange);
    loop {
        if let Ok(answer) = tokio::time::timeout(LOOK, &mut exchange).await {
            return answer;
        }
        if ask.until.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(Unanswered::Cancelled);
        }
        if ask.within.is_some_and(|within| began.elapsed() >= within) {
            return Err(Unanswered::BrokenOff("no answer in time".to_owned()));
        }
    }
}

async fn exchange(place: &Place, ask: &Ask<'_>) -> Result<Result<Value, Refusal>, Unanswered> {
    let not_connected = |e: std::io::Error| Unanswered::NotConnected(e.to_string());
    match place {
        Place::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path)
                .await
                .map_err(not_connected)?;
            send(stream, "localhost", ask).await
        }
        Place::Tcp(url) => {
            let host = host_of(url)
                .ok_or_else(|| Unanswered::NotConnected(format!("{url} is not http://HOST:PORT")))?;
            let stream = tokio::net::TcpStream::connect(host)
                .await
                .map_err(not_connected)?;
            send(stream, host, ask).await
        }
    }
}

async fn send<S>(stream: S, host: &str, ask: &Ask<'_>) -> Result<Result<Value, Refusal>, Unanswered>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let broken = |e: hyper::Error| Unanswered::BrokenOff(e.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    tokio::spawn(async move { drop(connection.await) });
    let mut request = hyper::Request::builder()
        .method(ask.method)
        .uri(&ask.path)
        .header("host", host)
        .header("user-agent", concat!("semel/", env!("CARGO_PKG_VERSION")))
        .header("authorization", format!("Bearer {}", ask.token))
        .header("connection", "close");
    if ask.method == "POST" {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in &ask.headers {
        request = request.header(*name, value);
    }
    let request = request
        .body(Full::new(Bytes::from(ask.body.clone())))
        .map_err(|e| Unanswered::NotConnected(e.to_string()))?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|_| Unanswered::BrokenOff(format!("status {status} without JSON")))?;
    if status.is_success() && value.get("code").is_none() {
        return Ok(Ok(value));
    }
    Ok(Err(refusal_of(&value, status.as_u16())))
}

/// Reads the refusal that a problem carries.
fn refusal_of(problem: &Value, status: u16) -> Refusal {
    let text = |name: &str| problem.get(name).and_then(Value::as_str).map(str::to_owned);
    let code = text("code").and_then(|code| Code::from_wire(&code));
    let why = text("why").or_else(|| text("detail"));
    let mut refusal = Refusal::new(
        code.unwrap_or(Code::Internal),
        why.unwrap_or_else(|| format!("the daemon answered with status {status}")),
    );
    refusal.reason = text("reason");
    let names = problem.get("names").and_then(Value::as_array);
    refusal.names(names.into_iter().flatten().filter_map(Value::as_str))
}
