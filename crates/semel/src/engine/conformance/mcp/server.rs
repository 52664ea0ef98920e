//! A server under trial: started, spoken to over standard input and output or over HTTP, left without a word, and killed.
//!
//! What it answers is read only when a case wants to hear it: an answer that nobody reads is lost, as it is to a client
//! that dies.

use super::super::table::Tale;
use super::tools::Call;
use super::{Stage, Told};
use crate::engine::trial::{hands, http};
use semel_core::{Code, Refusal};
use semel_host::lines::{Line, Lines, write_line};
use semel_host::process::talk::{Talk, Talker, talk};
use semel_host::sandbox::resolve_program;
use semel_host::scratch::Scratch;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long an answer is waited for.
const MOST: Duration = Duration::from_secs(60);
/// The longest line of an answer.
const LINE: usize = 64 << 20;

/// Says how a server is reached.
#[derive(Debug)]
pub(super) enum To {
    /// It is started.
    Command {
        /// Its program and arguments.
        command: Vec<String>,
        /// What has to run beside it; nothing where it is empty.
        daemon: Vec<String>,
        /// Where its files lie, where that is known.
        files: Option<Scratch>,
    },
    /// It listens.
    Url {
        /// Host and port.
        host: String,
        /// The path.
        path: String,
        /// Where its files lie.
        files: Scratch,
    },
}

impl To {
    /// Reads a URL.
    ///
    /// # Errors
    /// `usage`.
    pub(super) fn url(url: &str, files: Scratch) -> Result<Self, Refusal> {
        let wrong = || Refusal::new(Code::Usage, "a server that listens is http://HOST:PORT/PATH").name(url);
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        host.rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok())
            .ok_or_else(wrong)?;
        Ok(Self::Url {
            host: host.to_owned(),
            path: format!("/{path}"),
            files,
        })
    }
}

/// Starts servers, one after the other.
pub(super) struct Started<'a> {
    stage: &'a Stage,
    pub(super) to: To,
    daemon: Option<Talk>,
}

/// Is a server that runs, or is spoken to.
pub(super) struct Server {
    way: Way,
    /// What it calls itself.
    pub(super) name: String,
    next: u64,
    held: HashMap<u64, Value>,
    /// Whether a line is already being read.
    reading: bool,
}

enum Way {
    Lines {
        talk: Talk,
        wants: Sender<()>,
        heard: Receiver<Option<Vec<u8>>>,
    },
    Url {
        host: String,
        path: String,
        session: Option<String>,
        tell: Sender<Value>,
        heard: Receiver<Value>,
    },
}

/// Is what a server answered to a call.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Whether it says that it did it.
    pub(super) done: bool,
    /// In few words.
    pub(super) told: String,
    /// All of it, as text.
    pub(super) text: String,
}

impl<'a> Started<'a> {
    pub(super) fn new(stage: &'a Stage, to: To) -> Self {
        Self {
            stage,
            to,
            daemon: None,
        }
    }

    /// Gives the directory that stands for `{dir}`.
    pub(super) fn dir(&self) -> Option<PathBuf> {
        match &self.to {
            To::Command { .. } => self.stage.scratch.place("files").ok(),
            To::Url { files, .. } => Some(files.path().to_owned()),
        }
    }

    /// Says whether it may be killed.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.to, To::Command { .. })
    }

    fn talk(&self, command: &[String]) -> Told<(Talk, std::io::PipeReader)> {
        let (program, args) = command.split_first().ok_or("no command")?;
        let program = resolve_program(OsStr::new(program), &self.stage.path).map_err(hands)?;
        let path = std::env::join_paths(&self.stage.path).map_err(|e| e.to_string())?;
        let home = self.stage.scratch.place("home").map_err(hands)?;
        let talker = Talker {
            program,
            args: args.iter().map(OsString::from).collect(),
            env: [
                ("PATH".into(), path),
                ("HOME".into(), home.clone().into()),
                ("TMPDIR".into(), home.into()),
                ("LANG".into(), "C.UTF-8".into()),
            ]
            .into(),
            cwd: self.stage.scratch.place("files").map_err(hands)?,
        };
        talk(&talker).map_err(hands)
    }

    /// Starts it, where it is to be, and shakes hands.
    pub(super) fn start(&mut self) -> Told<Server> {
        if let To::Command { daemon, .. } = &self.to
            && !daemon.is_empty()
            && self.daemon.is_none()
        {
            let (talk, output) = self.talk(daemon)?;
            // It says where it listens once it does.
            match Lines::new(output, LINE).take() {
                Ok(Some(_)) => self.daemon = Some(talk),
                Ok(None) | Err(_) => return Err(format!("its daemon does not start: {}", talk.last_words())),
            }
        }
        let way = match &self.to {
            To::Command { command, .. } => {
                let (talk, output) = self.talk(command)?;
                let (wants, wanted) = channel();
                let (tell, heard) = channel();
                let reading = move || {
                    let mut lines = Lines::new(output, LINE);
                    while wanted.recv().is_ok() {
                        let line = match lines.take() {
                            Ok(Some(Line::Whole(line))) => Some(line),
                            Ok(Some(Line::TooLong(_)) | None) | Err(_) => None,
                        };
                        if tell.send(line).is_err() {
                            return;
                        }
                    }
                };
                std::thread::Builder::new()
                    .spawn(reading)
                    .map_err(|e| e.to_string())?;
                Way::Lines { talk, wants, heard }
            }
            To::Url { host, path, .. } => {
                let (tell, heard) = channel();
                let (host, path) = (host.clone(), path.clone());
                let session = None;
                Way::Url {
                    host,
                    path,
                    session,
                    tell,
                    heard,
                }
            }
        };
        let mut server = Server {
            way,
            name: String::new(),
            next: 1,
            held: HashMap::new(),
            reading: false,
        };
        server.shake_hands()?;
        Ok(server)
    }

    /// Kills a server, and what runs beside it, with no warning.
    pub(super) fn kill(&mut self, server: Server) {
        // Both at once, as the end of a container has it: first what has the effects. Whoever speaks for it neither tells
        // of that nor starts another.
        if let Way::Lines { talk, .. } = &server.way {
            talk.freeze();
        }
        drop(self.daemon.take());
        drop(server);
    }
}

impl Server {
    fn shake_hands(&mut self) -> Told<()> {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "semel-conformance", "version": env!("CARGO_PKG_VERSION")},
        });
        let id = self.send("initialize", &hello)?;
        let told = self.wait(id, MOST)?;
        let info = &told["result"]["serverInfo"];
        if told.get("result").is_none() {
            return Err(format!("it does not shake hands: {}", told["error"]["message"]));
        }
        let word = |name: &str| info[name].as_str().unwrap_or_default().to_owned();
        self.name = format!("{} {}", word("name"), word("version")).trim().to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}});
        self.write(&ready)
    }

    pub(super) fn tools(&mut self) -> Told<Vec<Value>> {
        let (mut tools, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let params = if cursor.is_null() {
                json!({})
            } else {
                json!({"cursor": cursor})
            };
            let id = self.send("tools/list", &params)?;
            let mut page = self.wait(id, MOST)?;
            if let Some(Value::Array(more)) = page.pointer_mut("/result/tools").map(Value::take) {
                tools.extend(more);
            }
            cursor = page.pointer("/result/nextCursor").cloned().unwrap_or_default();
            if !cursor.is_string() || tools.len() > 1000 {
                return Ok(tools);
            }
        }
    }

    fn message(id: u64, method: &str, params: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    fn send(&mut self, method: &str, params: &Value) -> Told<u64> {
        let id = self.next;
        self.next += 1;
        self.write(&Self::message(id, method, params))?;
        Ok(id)
    }

    /// Sends a call; its answer is waited for, or not.
    pub(super) fn begin(&mut self, call: &Call) -> Told<u64> {
        self.send("tools/call", &call.0)
    }

    /// Sends a call again as it was, its id and all.
    pub(super) fn begin_again(&mut self, id: u64, call: &Call) -> Told<()> {
        self.write(&Self::message(id, "tools/call", &call.0))
    }

    /// Sends a call whose answer nobody will read.
    pub(super) fn begin_unheard(&mut self, call: &Call) -> Told<()> {
        let message = Self::message(self.next, "tools/call", &call.0);
        self.next += 1;
        match &self.way {
            Way::Lines { .. } => self.write(&message),
            Way::Url { host, .. } => http::send_and_leave(host, &self.request(&message)),
        }
    }

    fn write(&mut self, message: &Value) -> Told<()> {
        match &self.way {
            Way::Lines { talk, .. } => write_line(&talk.input, message.to_string().as_bytes()).map_err(hands),
            Way::Url { host, tell, .. } => {
                let (request, host, tell) = (self.request(message), host.clone(), tell.clone());
                if message.get("id").is_none() {
                    return http::send(&host, &request).map(drop);
                }
                if self.name.is_empty() {
                    return self.first(&host, &request);
                }
                let asking = move || {
                    if let Ok(answer) = http::send(&host, &request) {
                        messages(&answer)
                            .into_iter()
                            .for_each(|message| drop(tell.send(message)));
                    }
                };
                std::thread::Builder::new()
                    .spawn(asking)
                    .map(drop)
                    .map_err(|e| e.to_string())
            }
        }
    }

    /// Sends the first request, whose answer may begin a session.
    fn first(&mut self, host: &str, request: &[u8]) -> Told<()> {
        let answer = http::send(host, request)?;
        if let Way::Url { session, tell, .. } = &mut self.way {
            *session = answer.header("mcp-session-id").map(str::to_owned);
            messages(&answer)
                .into_iter()
                .for_each(|message| drop(tell.send(message)));
        }
        Ok(())
    }

    fn request(&self, message: &Value) -> Vec<u8> {
        let Way::Url {
            host, path, session, ..
        } = &self.way
        else {
            return Vec::new();
        };
        let body = message.to_string();
        let session = session
            .as_ref()
            .map_or_else(String::new, |id| format!("mcp-session-id: {id}\r\n"));
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n{session}\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    /// Waits for the answer with an id.
    pub(super) fn wait(&mut self, id: u64, most: Duration) -> Told<Value> {
        let until = Instant::now() + most;
        loop {
            if let Some(answer) = self.held.remove(&id) {
                return Ok(answer);
            }
            let left = until.saturating_duration_since(Instant::now());
            let message = match &self.way {
                Way::Lines { wants, heard, talk } => {
                    if !self.reading {
                        wants.send(()).map_err(|e| e.to_string())?;
                        self.reading = true;
                    }
                    let line = heard
                        .recv_timeout(left)
                        .map_err(|_| "it gives no answer".to_owned())?;
                    self.reading = false;
                    let line = line.ok_or_else(|| format!("it has ended: {}", talk.last_words()))?;
                    serde_json::from_slice(&line).unwrap_or_default()
                }
                Way::Url { heard, .. } => heard
                    .recv_timeout(left)
                    .map_err(|_| "it gives no answer".to_owned())?,
            };
            if let (Some(id), None) = (message["id"].as_u64(), message.get("method")) {
                self.held.insert(id, message);
            }
        }
    }

    /// Calls, and waits for the answer.
    pub(super) fn call(&mut self, call: &Call) -> Told<Heard> {
        let id = self.begin(call)?;
        Ok(Heard::of(&self.wait(id, MOST)?))
    }

    pub(super) fn heard(&mut self, id: u64) -> Told<Heard> {
        Ok(Heard::of(&self.wait(id, MOST)?))
    }

    /// Goes away as a client that dies: it reads nothing more, and the server ends by itself.
    pub(super) fn leave(mut self) -> Told<()> {
        match &mut self.way {
            Way::Lines { talk, .. } => talk.hang_up(Duration::from_secs(10)).map_err(hands),
            Way::Url { .. } => Ok(()),
        }
    }
}

/// Reads the messages of an answer: one, or those of a stream.
fn messages(answer: &http::Answer) -> Vec<Value> {
    match serde_json::from_slice(&answer.body) {
        Ok(message) => vec![message],
        Err(_) => {
            let text = answer.text();
            let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
            data.filter_map(|data| serde_json::from_str(data.trim()).ok())
                .collect()
        }
    }
}

impl Heard {
    fn of(message: &Value) -> Self {
        let result = &message["result"];
        let text: String = match result["content"].as_array() {
            Some(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            None => String::new(),
        };
        let done = result.is_object() && result["isError"] != json!(true);
        let short = |text: &str| text.chars().take(100).collect::<String>().replace('\n', " ");
        let told = match (done, result.is_object()) {
            (true, _) => "done".to_owned(),
            (false, true) => format!("refused ({})", short(&text)),
            (false, false) => format!(
                "error ({})",
                short(message["error"]["message"].as_str().unwrap_or("?"))
            ),
        };
        Self { done, told, text }
    }

    /// Tells of it, and that it ought to be a success.
    pub(super) fn ought_to_be_done(&self, what: &str, tale: &mut Tale) {
        if !self.done {
            tale.wrong(format!("{what}: {} instead of a success", self.told));
        }
    }
}
