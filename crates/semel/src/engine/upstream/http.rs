//! A server that listens: every request is a POST over a connection of its own, so that one which could not be made proves
//! that nothing was sent.

use super::child::progress;
use super::link::{Came, Hears, Spoken, Wanted};
use super::sse::Events;
use crate::config::upstream::Url;
use crate::limits;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use semel_core::mcp::{Era, mirror};
use semel_core::upstream::Said;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Is the server, with its session where it gave one out.
#[derive(Debug)]
pub(super) struct Http {
    url: Url,
    session: Mutex<Option<String>>,
    next: AtomicU64,
    over: AtomicBool,
    stale: Arc<AtomicBool>,
}

impl Http {
    pub(super) fn new(url: Url, stale: Arc<AtomicBool>) -> Self {
        Self {
            url,
            session: Mutex::default(),
            next: AtomicU64::new(1),
            over: AtomicBool::new(false),
            stale,
        }
    }

    pub(super) fn lives(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Sends what wants no answer.
    pub(super) async fn tell(&self, message: Value, spoken: &Spoken) -> Result<(), String> {
        let sent = self.post(&message, Vec::new(), spoken);
        match tokio::time::timeout(limits::UPSTREAM_START, sent).await {
            Ok(Ok(response)) if response.status().is_success() => Ok(()),
            Ok(Ok(response)) => Err(format!("it answers a notification with {}", response.status())),
            Ok(Err(came)) => match came.answered() {
                Err(why) => Err(why),
                Ok(_) => Err("it does not take a notification".to_owned()),
            },
            Err(_) => Err("it does not take a notification".to_owned()),
        }
    }

    /// Sends a request, and waits for its answer.
    pub(super) async fn request(&self, mut wanted: Wanted<'_>, spoken: &Spoken) -> Came {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if wanted.hears.is_some() {
            let meta = wanted.params.entry("_meta").or_insert(json!({}));
            meta["progressToken"] = json!(id);
        }
        let mut headers = std::mem::take(&mut wanted.headers);
        if *spoken == Spoken::Modern {
            headers.push(("mcp-method".to_owned(), mirror::encode(wanted.method)));
            if let Some(name) = wanted.params.get("name").and_then(Value::as_str) {
                headers.push(("mcp-name".to_owned(), mirror::encode(name)));
            }
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "method": wanted.method, "params": wanted.params});
        let timeout = wanted.timeout;
        // Where it is given up, it is not known how far it came.
        let came =
            tokio::time::timeout(timeout, self.exchange(id, message, headers, spoken, wanted.hears)).await;
        came.unwrap_or_else(|_| {
            Came::Perhaps(format!("it gave no answer within {} s", timeout.as_secs_f32()))
        })
    }

    async fn exchange(
        &self,
        id: u64,
        message: Value,
        headers: Vec<(String, String)>,
        spoken: &Spoken,
        hears: Option<Hears>,
    ) -> Came {
        let response = match self.post(&message, headers, spoken).await {
            Ok(response) => response,
            Err(came) => return came,
        };
        let (parts, body) = response.into_parts();
        let session = parts
            .headers
            .get("mcp-session-id")
            .and_then(|value| value.to_str().ok());
        if *spoken == Spoken::Nothing && parts.status.is_success() {
            *self.session() = session.map(str::to_owned);
        }
        let kind = parts
            .headers
            .get("content-type")
            .map(|value| value.as_bytes().to_ascii_lowercase());
        if parts.status.is_success() && kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
            return self.stream(id, body, hears.as_ref()).await;
        }
        let bytes = match whole(body).await {
            Ok(bytes) => bytes,
            Err(why) => return Came::Perhaps(why),
        };
        if let Some(answer) = serde_json::from_slice(&bytes)
            .ok()
            .and_then(|message| answer(message, id))
        {
            return answer;
        }
        self.without_an_answer(parts.status)
    }

    /// Says what a status means that comes with no answer. Who refuses a request before it is read has not done it.
    fn without_an_answer(&self, status: StatusCode) -> Came {
        let why = format!("it answers with {status}");
        match status {
            // Another session is begun.
            StatusCode::NOT_FOUND if self.session().is_some() => {
                self.end();
                Came::Disowned(why)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
                Came::Refused(why)
            }
            _ => Came::Perhaps(why),
        }
    }

    fn session(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one message over a connection of its own.
    async fn post(
        &self,
        message: &Value,
        headers: Vec<(String, String)>,
        spoken: &Spoken,
    ) -> Result<Response<Incoming>, Came> {
        let never = |why: String| Came::Never(why);
        let stream = tokio::net::TcpStream::connect(self.url.place()).await;
        let stream = stream.map_err(|e| never(format!("it cannot be reached: {e}")))?;
        drop(stream.set_nodelay(true));
        let made = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = made.map_err(|e| never(e.to_string()))?;
        tokio::spawn(async move { drop(connection.await) });
        let mut request = hyper::Request::post(&self.url.path)
            .header("host", &self.url.authority)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("user-agent", concat!("semel/", env!("CARGO_PKG_VERSION")));
        let revision = match spoken {
            Spoken::Nothing => None,
            Spoken::Legacy(name) => Some(name.as_str()),
            Spoken::Modern => Some(Era::V2026_07_28.name()),
        };
        if let Some(revision) = revision {
            request = request.header("mcp-protocol-version", revision);
        }
        if let Some(session) = self.session().as_deref() {
            request = request.header("mcp-session-id", session);
        }
        let further = headers.iter().map(|(name, value)| (name, value));
        for (name, value) in self.url.headers.iter().chain(further) {
            request = request.header(name, value);
        }
        let body = Full::new(Bytes::from(message.to_string()));
        let request = request.body(body).map_err(|e| never(e.to_string()))?;
        sender
            .send_request(request)
            .await
            .map_err(|e| Came::Perhaps(e.to_string()))
    }

    async fn stream(&self, id: u64, mut body: Incoming, hears: Option<&Hears>) -> Came {
        let mut events = Events::default();
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(e) => return Came::Perhaps(e.to_string()),
            };
            let Ok(data) = frame.into_data() else { continue };
            for event in events.take(&data) {
                let Ok(message) = serde_json::from_slice::<Value>(&event) else {
                    continue;
                };
                match message["method"].as_str() {
                    Some("notifications/tools/list_changed") => self.stale.store(true, Ordering::Release),
                    Some("notifications/progress") => {
                        if let Some(hears) = hears {
                            progress(hears, &message["params"]);
                        }
                    }
                    Some(_) => {}
                    None => {
                        if let Some(came) = answer(message, id) {
                            return came;
                        }
                    }
                }
            }
            if events.held() > limits::UPSTREAM_LINE {
                return Came::Perhaps(format!(
                    "it sent a message of more than {} bytes",
                    limits::UPSTREAM_LINE
                ));
            }
        }
        Came::Perhaps("its answer broke off".to_owned())
    }
}

/// Reads an answer to a request; `None` for what is none to it.
fn answer(mut message: Value, id: u64) -> Option<Came> {
    if message.get("id").and_then(Value::as_u64) != Some(id) {
        return None;
    }
    match (message.get("result").is_some(), message.get("error").is_some()) {
        (true, false) => Some(Came::Answer(Said::Result, message["result"].take())),
        (false, true) => Some(Came::Answer(Said::Error, message["error"].take())),
        (true, true) | (false, false) => None,
    }
}

async fn whole(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| e.to_string())?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > limits::UPSTREAM_LINE {
                return Err(format!(
                    "it sent a message of more than {} bytes",
                    limits::UPSTREAM_LINE
                ));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}
