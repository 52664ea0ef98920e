//! The way from a bridge to its gateway: connections that are kept, and one request sent over one of them.
//!
//! It retries nothing; `send` does. It starts a daemon where it may.

use crate::config::Config;
use crate::limits;
use crate::wire::{Absent, Link, Place, Unanswered, app_place, host_of};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper_util::rt::TokioIo;
use semel_core::Refusal;
use std::sync::{Arc, Mutex, PoisonError};

type Sender = SendRequest<Full<Bytes>>;

/// Says where the gateway is.
#[derive(Debug)]
pub(crate) enum Where {
    /// At one of these, the first that answers.
    There(Vec<Place>),
    /// At this state root's own socket; a daemon is started where none runs.
    Own(Arc<Config>),
}

/// Is the way to a gateway.
#[derive(Debug)]
pub(crate) struct Way {
    to: Where,
    token: String,
    idle: Mutex<Vec<Sender>>,
    /// One starts a daemon at a time.
    waking: tokio::sync::Mutex<()>,
}

/// Is one message to the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// The message, as it is.
    pub(crate) body: Bytes,
    /// The headers that say again what it says, and the key.
    pub(crate) headers: Vec<(String, String)>,
}

/// Is what the gateway answered.
#[derive(Debug)]
pub(crate) struct Incomings {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The message.
    pub(crate) body: Bytes,
}

/// Is told of what the gateway says before it answers.
pub(crate) type Hears<'a> = &'a (dyn Fn(Bytes) + Send + Sync);

impl Way {
    /// Makes it; nothing is sent yet.
    pub(crate) fn new(to: Where, token: String) -> Self {
        Self {
            to,
            token,
            idle: Mutex::default(),
            waking: tokio::sync::Mutex::default(),
        }
    }

    /// Makes sure that a daemon runs, where it is this bridge's to start one.
    ///
    /// # Errors
    /// `daemon_unreachable` where none can be started.
    pub(crate) async fn wake(&self) -> Result<(), Refusal> {
        let Where::Own(config) = &self.to else {
            return Ok(());
        };
        let _alone = self.waking.lock().await;
        if let Ok(sender) = self.connect().await {
            self.idle().push(sender);
            return Ok(());
        }
        let link = Link::new(config.clone(), Absent::Start);
        super::blocking(move || link.admin("GET", "/v1/admin/status", Vec::new()).map(drop)).await
    }

    /// Sends one message, and waits for its answer.
    ///
    /// # Errors
    /// [`Unanswered`]; also where a connection that was kept turns out to be closed.
    pub(crate) async fn post(&self, outgoing: &Outgoing, hears: Hears<'_>) -> Result<Incomings, Unanswered> {
        let kept = {
            let mut idle = self.idle();
            idle.retain(|sender| !sender.is_closed());
            idle.pop()
        };
        let mut sender = match kept {
            Some(sender) if sender.is_ready() => sender,
            Some(_) | None => self.connect().await?,
        };
        let broken = |e: hyper::Error| Unanswered::BrokenOff(e.to_string());
        let mut request = hyper::Request::post("/mcp")
            .header("host", self.host())
            .header("user-agent", concat!("semel-mcp/", env!("CARGO_PKG_VERSION")))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        for (name, value) in &outgoing.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(outgoing.body.clone()))
            .map_err(|e| Unanswered::NotConnected(e.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let (parts, body) = response.into_parts();
        let body = if is_stream(&parts.headers) {
            last_event(body, hears).await?
        } else {
            whole(body).await?
        };
        let mut idle = self.idle();
        if idle.len() < limits::BRIDGE_FORWARDED {
            idle.push(sender);
        }
        Ok(Incomings {
            status: parts.status.as_u16(),
            body,
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host(&self) -> &str {
        match &self.to {
            Where::There(places) => places
                .iter()
                .find_map(|place| match place {
                    Place::Tcp(url) => host_of(url),
                    Place::Unix(_) => None,
                })
                .unwrap_or("localhost"),
            Where::Own(_) => "localhost",
        }
    }

    async fn connect(&self) -> Result<Sender, Unanswered> {
        match &self.to {
            Where::There(places) => {
                let mut last = Unanswered::NotConnected("no place is known".to_owned());
                for place in places {
                    match connect(place).await {
                        Ok(sender) => return Ok(sender),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Where::Own(config) => {
                // The path goes by a handle on the state root, which stays open meanwhile.
                let (_root, place) =
                    app_place(config).map_err(|refusal| Unanswered::NotConnected(refusal.to_string()))?;
                connect(&place).await
            }
        }
    }
}

async fn connect(place: &Place) -> Result<Sender, Unanswered> {
    let not_connected = |e: std::io::Error| Unanswered::NotConnected(e.to_string());
    match place {
        Place::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path).await;
            handshake(stream.map_err(not_connected)?).await
        }
        Place::Tcp(url) => {
            let host = host_of(url)
                .ok_or_else(|| Unanswered::NotConnected(format!("{url} is not http://HOST:PORT")))?;
            let stream = tokio::net::TcpStream::connect(host)
                .await
                .map_err(not_connected)?;
            // A message is one write: nothing is gained by waiting for more.
            drop(stream.set_nodelay(true));
            handshake(stream).await
        }
    }
}

async fn handshake<S>(stream: S) -> Result<Sender, Unanswered>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let made = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|e| Unanswered::NotConnected(e.to_string()))?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

/// The most that an answer can have: a result with what is around it.
const MOST: usize = limits::RESULT + (1 << 20);

fn too_long() -> Unanswered {
    Unanswered::BrokenOff(format!("the answer has more than {MOST} bytes"))
}

async fn whole(mut body: Incoming) -> Result<Bytes, Unanswered> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Unanswered::BrokenOff(e.to_string()))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > MOST {
                return Err(too_long());
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.into())
}

/// Reads an answer that comes in pieces: what is told before it is told on at once.
async fn last_event(mut body: Incoming, hears: Hears<'_>) -> Result<Bytes, Unanswered> {
    let mut held: Vec<u8> = Vec::new();
    let mut answer: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Unanswered::BrokenOff(e.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if held.len() + data.len() > MOST {
            return Err(too_long());
        }
        // An end may lie across two pieces.
        let looked = held.len().saturating_sub(1);
        held.extend_from_slice(&data);
        let mut from = looked;
        while let Some(end) = held[from..].windows(2).position(|pair| pair == b"\n\n") {
            let rest = held.split_off(from + end + 2);
            let event = std::mem::replace(&mut held, rest);
            from = 0;
            let mut lines = event.split(|b| *b == b'\n');
            let Some(data) = lines.find_map(|line| line.strip_prefix(b"data: ")) else {
                continue;
            };
            let data = Bytes::copy_from_slice(data);
            if is_told(&data) {
                hears(data);
            } else {
                answer = Some(data);
            }
        }
    }
    answer.ok_or_else(|| Unanswered::BrokenOff("the stream ended without an answer".to_owned()))
}

/// Says whether a message is told before the answer, and is not the answer.
fn is_told(message: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(message).is_ok_and(|message| message.get("method").is_some())
}
