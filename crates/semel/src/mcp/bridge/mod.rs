//! A server at standard input and output, for clients that send no keys: what it is asked it asks the gateway.
//!
//! A line is a message. Which revision a request speaks is decided by itself, as over HTTP. It does *not* know tools, and
//! keeps no answer: keys, retries and what is remembered are the engine's.

mod edit;

use self::edit::Edit;
use super::call::{self, META_KEY, PARAMS_KEY};
use super::faces::{self, Keyed};
use super::headers::write_headers;
use crate::engine::bridge::stdio::{Line, Output};
use crate::engine::bridge::{Admitted, Answered, Bridge, Outgoing};
use crate::engine::gateway::tool::{KEY_ARGUMENT, Kind, Tool};
use crate::limits;
use semel_core::canonical::Limits;
use semel_core::mcp::{Declared, Era, Id, Message, Request, era, rpc};
use semel_core::{Code, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// Is the server.
pub(crate) struct Server {
    bridge: Arc<Bridge>,
    output: Output,
    room: Arc<Semaphore>,
    /// What a handshake agreed on, for requests that do not say their revision.
    agreed: Mutex<Option<&'static str>>,
    calls: Mutex<Calls>,
    /// How many requests are under way.
    under_way: watch::Sender<usize>,
}

/// Are the requests that a cancellation may be about, by their ids as they are written.
#[derive(Default)]
struct Calls {
    flying: HashMap<String, (u64, oneshot::Sender<()>)>,
    answered: VecDeque<(String, u64)>,
}

/// How many answered requests a late cancellation can still be about.
const ANSWERED: usize = 256;

/// Says who can tell what a client has read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    BySystem,
    /// Only its next line does.
    ByClient,
}

/// Is the end of a bridge.
pub(crate) type Ended = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Server {
    /// Makes it.
    pub(crate) fn new(bridge: Arc<Bridge>, output: Output) -> Arc<Self> {
        Arc::new(Self {
            bridge,
            output,
            room: Arc::new(Semaphore::new(limits::BRIDGE_REQUESTS)),
            agreed: Mutex::new(None),
            calls: Mutex::default(),
            under_way: watch::Sender::new(0),
        })
    }

    /// Answers what comes, until no more does, nobody reads the answers, or it is told to end. What is under way then is
    /// waited for: as long as somebody reads; where it is told to end, for a moment. What is not answered stays spooled.
    pub(crate) async fn serve(self: &Arc<Self>, mut input: mpsc::Receiver<Line>, mut told: Ended) {
        let mut look = tokio::time::interval(Duration::from_millis(250));
        let told_to_end = loop {
            tokio::select! {
                line = input.recv() => match line {
                    Some(line) => self.line(line).await,
                    None => break false,
                },
                () = &mut told => break true,
                _ = look.tick() => {
                    if self.output.is_gone() {
                        break false;
                    }
                    self.look();
                }
            }
        };
        let mut until = told_to_end.then(|| Instant::now() + limits::BRIDGE_LEAVES);
        let mut under_way = self.under_way.subscribe();
        let mut written = std::pin::pin!(async {
            drop(under_way.wait_for(|count| *count == 0).await);
            // What is answered is written to its end as long as somebody reads, however slowly.
            self.output.written().await;
        });
        while !self.output.is_gone() && until.is_none_or(|at| Instant::now() < at) {
            tokio::select! {
                () = &mut written => break,
                () = &mut told, if until.is_none() => until = Some(Instant::now() + limits::BRIDGE_LEAVES),
                _ = look.tick() => {}
            }
        }
        self.end(until.unwrap_or_else(|| Instant::now() + limits::BRIDGE_LEAVES))
            .await;
    }

    /// Ends: what was written and read is delivered, though nothing more comes.
    async fn end(&self, until: Instant) {
        drop(tokio::time::timeout_at(until.into(), self.output.written()).await);
        while !self.output.is_gone() && Output::is_read() == Some(false) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.look();
        self.bridge.end().await;
    }

    /// Looks what was read of what was written: that is delivered, whether or not anything more comes.
    ///
    /// A line that came is no proof of it where the system says what was read: it may have been sent ahead.
    fn look(&self) -> Told {
        match self.output.take_read() {
            Some(requests) => {
                self.bridge.read(&requests);
                Told::BySystem
            }
            None => Told::ByClient,
        }
    }

    /// Notes that the client goes on.
    fn goes_on(&self) {
        if self.look() == Told::ByClient && !self.output.is_gone() {
            self.bridge.heard();
        }
    }

    async fn line(self: &Arc<Self>, line: Line) {
        let bytes = match line {
            Line::Whole(bytes) => bytes,
            Line::TooLong(length) => {
                self.goes_on();
                return self.refuse_unread(None, &too_large(length));
            }
        };
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        if bytes.len() > limits::MESSAGE {
            self.goes_on();
            return self.refuse_unread(id_of(&bytes), &too_large(bytes.len() as u64));
        }
        let bounds = Limits {
            bytes: limits::MESSAGE,
            // The arguments of a call lie two levels deep.
            depth: Limits::DEFAULT.depth + 2,
        };
        let message = rpc::parse(&bytes, bounds);
        // What it says that it did not take was not delivered.
        if let Ok(Message::Notification { method, params }) = &message
            && method == "notifications/cancelled"
        {
            self.cancelled(params);
        }
        self.goes_on();
        match message {
            Ok(Message::Request(request)) => self.request(request, bytes).await,
            // Nothing was asked of it.
            Ok(Message::Notification { .. } | Message::Response) => {}
            Err(malformed) => {
                let id = malformed.id.as_ref().map(|id| id.as_value().clone());
                self.refuse_unread(id.or_else(|| id_of(&bytes)), &super::malformed(&malformed));
            }
        }
    }

    /// Writes why a message was not read. On a line of its own an error without an id is nobody's: whoever asked would wait
    /// for ever.
    fn refuse_unread(&self, id: Option<Value>, error: &rpc::Error) {
        let mut refused = rpc::refused(None, error);
        if let Some(id) = id {
            refused["id"] = id;
        }
        self.output.tell(bytes_of(&refused));
    }

    async fn request(self: &Arc<Self>, request: Request, bytes: Vec<u8>) {
        let id = request.id.clone();
        let era = match era::of(&request.method, &request.params, Declared::Nowhere) {
            Ok(era) => era,
            Err(error) => return self.output.tell(bytes_of(&rpc::refused(Some(&id), &error))),
        };
        // The bridge lives, whatever becomes of the gateway.
        if request.method == "ping" && !era.is_modern() {
            return self.output.tell(bytes_of(&rpc::answered(&id, json!({}))));
        }
        let Ok(room) = self.room.clone().acquire_owned().await else {
            return;
        };
        let key = key_of(&request);
        let admitted = if key == Key::Made {
            match self.bridge.admit(&request.params, &|| self.goes_on()).await {
                Ok(admitted) => admitted,
                Err(refusal) => return self.refuse(&id, era, refusal, self.bridge.number(), Some(room)),
            }
        } else {
            self.bridge.admit_as_it_is()
        };
        let (tell, cancelled) = oneshot::channel();
        let (name, number) = (id.as_value().to_string(), admitted.request);
        self.calls().flying.insert(name.clone(), (number, tell));
        let mut headers = vec![self.revision(era, &request)];
        if era.is_modern() {
            headers.extend(write_headers(&request));
        }
        headers.push(accepts(&request));
        let asked = Asked {
            edit: Edit::of(&request.method),
            id,
            era,
            outgoing: Outgoing {
                body: bytes.into(),
                headers,
            },
            unkeyed: (key == Key::Perhaps).then_some(request.params),
        };
        self.under_way.send_modify(|count| *count += 1);
        let server = self.clone();
        tokio::spawn(async move {
            let number = server.answer(asked, admitted, cancelled, room).await;
            server.calls().done(&name, number);
            server.under_way.send_modify(|count| *count -= 1);
        });
    }

    /// Forwards a request, and writes its answer. Gives the number that it was admitted with last.
    async fn answer(
        &self,
        mut asked: Asked,
        mut admitted: Admitted,
        mut cancelled: oneshot::Receiver<()>,
        room: OwnedSemaphorePermit,
    ) -> u64 {
        let told = self.output.clone();
        let hears = move |message: hyper::body::Bytes| told.tell(message.to_vec());
        let answered = loop {
            let answered = tokio::select! {
                answered = self.bridge.forward(&mut admitted, asked.outgoing.clone(), &hears) => answered,
                Ok(()) = &mut cancelled => {
                    self.bridge.left(admitted.request);
                    return admitted.request;
                }
            };
            let lacking =
                matches!(&answered, Ok(answered) if answered.refused == Some(Code::MissingIdempotencyKey));
            let Some(params) = asked.unkeyed.take().filter(|_| lacking) else {
                break answered;
            };
            // What looked like a key is an argument of the tool's own; nothing was begun.
            match self.bridge.admit(&params, &|| self.goes_on()).await {
                Ok(keyed) => {
                    self.calls().renumbered(&asked.id, keyed.request);
                    admitted = keyed;
                }
                Err(refusal) => break Err(refusal),
            }
        };
        let request = admitted.request;
        match answered {
            Ok(Answered {
                message, unsettled, ..
            }) => {
                let line = match asked.edit {
                    Some(edit) => self.edited(&asked.id, edit, &message.body),
                    // What is refused before it is read is answered without an id.
                    None if message.status != 200 => with_id(&asked.id, &message.body),
                    None => message.body.to_vec(),
                };
                self.output.answer(line, request, unsettled, Some(room));
            }
            Err(refusal) => {
                self.bridge.left(request);
                self.refuse(&asked.id, asked.era, refusal, request, Some(room));
            }
        }
        request
    }

    /// Changes what the gateway says where it is otherwise at the end of a bridge.
    fn edited(&self, id: &Id, edit: Edit, message: &[u8]) -> Vec<u8> {
        let Ok(mut body) = serde_json::from_slice::<Value>(message) else {
            return message.to_vec();
        };
        body["id"] = id.as_value().clone();
        if let Some(result) = body.get_mut("result") {
            if edit == Edit::Handshake {
                let version = result["protocolVersion"].as_str().and_then(Era::parse);
                *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = version.map(Era::name);
            }
            edit.apply(result);
        }
        bytes_of(&body)
    }

    /// Writes a refusal of the bridge's own.
    fn refuse(&self, id: &Id, era: Era, refusal: Refusal, request: u64, room: Option<OwnedSemaphorePermit>) {
        let failure = refusal.into();
        let body = match faces::refused(&failure, Keyed::ByTheModel) {
            Ok(mut done) => {
                if era.is_modern() {
                    super::serve::complete(call::METHOD, &mut done.result);
                }
                rpc::answered(id, done.result)
            }
            Err(error) => rpc::refused(Some(id), &error),
        };
        self.output.answer(bytes_of(&body), request, None, room);
    }

    /// Gives the header of the revision that a request speaks: the one that it says, else the one that was agreed on.
    fn revision(&self, era: Era, request: &Request) -> (String, String) {
        let says = request
            .params
            .get("_meta")
            .and_then(|meta| meta.get(era::VERSION));
        let agreed = *self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match agreed {
            Some(agreed) if says.is_none() && !era.is_modern() => agreed,
            Some(_) | None => era.name(),
        };
        ("mcp-protocol-version".to_owned(), name.to_owned())
    }

    fn cancelled(&self, params: &Map<String, Value>) {
        let Some(name) = params.get("requestId").map(Value::to_string) else {
            return;
        };
        let mut calls = self.calls();
        let answered = calls.answered.iter().rev().find(|(other, _)| *other == name);
        let answered = answered.map(|(_, request)| *request);
        match (calls.flying.remove(&name), answered) {
            (Some((request, tell)), _) => {
                tell.send(()).ok();
                drop(calls);
                // Its answer may be written at this very moment.
                self.bridge.untaken(request);
            }
            (None, Some(request)) => {
                drop(calls);
                self.bridge.untaken(request);
            }
            (None, None) => {}
        }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Is a request on its way.
struct Asked {
    id: Id,
    era: Era,
    edit: Option<Edit>,
    outgoing: Outgoing,
    /// Its parameters, where it may turn out to have no key.
    unkeyed: Option<Map<String, Value>>,
}

impl Calls {
    fn renumbered(&mut self, id: &Id, request: u64) {
        if let Some((number, _)) = self.flying.get_mut(&id.as_value().to_string()) {
            *number = request;
        }
    }

    fn done(&mut self, name: &str, request: u64) {
        if self.flying.get(name).is_some_and(|(other, _)| *other == request) {
            self.flying.remove(name);
        }
        self.answered.push_back((name.to_owned(), request));
        let beyond = self.answered.len().saturating_sub(ANSWERED);
        self.answered.drain(..beyond);
    }
}

/// Says whose the key of a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// It needs none, or has its own.
    AsItIs,
    /// It changes something, or may, and has none: one is made here.
    Made,
    /// It has an argument by which it may be carried, unless a server behind the gateway has a use of its own for it.
    Perhaps,
}

fn key_of(request: &Request) -> Key {
    if request.method != call::METHOD {
        return Key::AsItIs;
    }
    let params = &request.params;
    let within = |name: &str, member: &str| params.get(name).is_some_and(|value| value.get(member).is_some());
    if params.contains_key(PARAMS_KEY) || within("_meta", META_KEY) {
        return Key::AsItIs;
    }
    let tool = params.get("name").and_then(Value::as_str);
    let tool = tool.and_then(|name| Tool::parse(name).ok());
    // A tool that is not known here may be one of another server behind the gateway.
    let reads = tool.is_some_and(|tool| matches!(tool.kind(), Kind::Read | Kind::Journal));
    match (within("arguments", KEY_ARGUMENT), tool) {
        _ if reads => Key::AsItIs,
        (false, _) => Key::Made,
        (true, Some(_)) => Key::AsItIs,
        (true, None) => Key::Perhaps,
    }
}

/// Says what answers a request takes: in pieces only where it wants to be told how it goes on.
fn accepts(request: &Request) -> (String, String) {
    let hears = request
        .params
        .get("_meta")
        .and_then(|meta| meta.get("progressToken"))
        .is_some();
    let takes = if hears {
        "application/json, text/event-stream"
    } else {
        "application/json"
    };
    ("accept".to_owned(), takes.to_owned())
}

fn too_large(length: u64) -> rpc::Error {
    let why = format!("the message has {length} bytes; it may have {}", limits::MESSAGE);
    super::of_refusal(Refusal::new(Code::TooLarge, why))
}

fn with_id(id: &Id, message: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<Value>(message) {
        Ok(Value::Object(mut body)) => {
            body.insert("id".to_owned(), id.as_value().clone());
            bytes_of(&Value::Object(body))
        }
        Ok(_) | Err(_) => message.to_vec(),
    }
}

fn bytes_of(message: &Value) -> Vec<u8> {
    message.to_string().into_bytes()
}

/// Finds the id of a request that is not read, where it has one and no reader could find another.
fn id_of(bytes: &[u8]) -> Option<Value> {
    #[derive(Deserialize)]
    struct Envelope {
        id: Value,
        // Else it is an answer, which is not answered.
        #[serde(rename = "method")]
        _method: String,
    }
    let Envelope { id, .. } = serde_json::from_slice(bytes).ok()?;
    (id.is_string() || id.is_i64() || id.is_u64()).then_some(id)
}
