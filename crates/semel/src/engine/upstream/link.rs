//! A connection with another server: the handshake of its revision, its tools, and one request at a time of many.

use super::child::Child;
use super::http::Http;
use crate::config::upstream::Way;
use semel_core::mcp::{Era, era, rpc};
use semel_core::upstream::Said;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Is what came of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Came {
    /// An answer.
    Answer(Said, Value),
    /// None, and it is proven that the server never had the request whole.
    Never(String),
    /// None: it does not know the session. By the protocol it had no part of the request; but a server that says so again, of
    /// a session that it has just made, may have ended it in doing what it was asked for.
    Disowned(String),
    /// None: by the protocol it was refused before it was applied, and would be again.
    Refused(String),
    /// None, and the server may have had it.
    Perhaps(String),
}

impl Came {
    /// Gives the answer; else why there is none, for whoever need not know whether the server had the request.
    pub(super) fn answered(self) -> Result<(Said, Value), String> {
        match self {
            Self::Answer(said, answer) => Ok((said, answer)),
            Self::Never(why) | Self::Disowned(why) | Self::Refused(why) | Self::Perhaps(why) => Err(why),
        }
    }
}

/// Is told of how a request goes on: how far it is, of how much, and in words.
pub(crate) type Hears = Arc<dyn Fn(u64, Option<u64>, &str) + Send + Sync>;

/// Is a request.
pub(crate) struct Wanted<'a> {
    /// The method.
    pub(crate) method: &'a str,
    /// Its parameters; what the revision adds is added here.
    pub(crate) params: Map<String, Value>,
    /// Headers beyond those of the revision.
    pub(crate) headers: Vec<(String, String)>,
    /// How long it may take.
    pub(crate) timeout: Duration,
    /// Who is told how it goes on.
    pub(crate) hears: Option<Hears>,
}

impl<'a> Wanted<'a> {
    fn plain(method: &'a str, params: Value) -> Self {
        Self {
            method,
            params: match params {
                Value::Object(params) => params,
                _ => Map::new(),
            },
            headers: Vec::new(),
            timeout: crate::limits::UPSTREAM_START,
            hears: None,
        }
    }
}

/// Is a connection.
#[derive(Debug)]
pub(crate) struct Link {
    way: Ways,
    /// The revision that was agreed on.
    spoken: Spoken,
}

#[derive(Debug)]
enum Ways {
    Child(Child),
    Http(Http),
}

/// Is the revision that is spoken with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    /// None yet.
    Nothing,
    /// One with a handshake, by its name.
    Legacy(String),
    /// The newest: every request says all.
    Modern,
}

/// Revisions with a handshake; of all of them tools are listed and called alike.
const LEGACY: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// How many pages of a list are read.
const PAGES: usize = 100;
/// How many tools of a list are taken.
const TOOLS: usize = 1000;

/// Starts a server, or reaches it, and agrees with it on a revision.
///
/// # Errors
/// Why not, in words.
pub(super) async fn start(
    way: &Way,
    path: &[PathBuf],
    home: &Path,
    stale: &Arc<AtomicBool>,
) -> Result<Link, String> {
    let way = match way {
        Way::Command { command, cwd, env } => {
            let (command, env) = (command.clone(), env.clone());
            let (path, home, cwd, stale) = (path.to_vec(), home.to_owned(), cwd.clone(), stale.clone());
            let started = tokio::task::spawn_blocking(move || {
                Child::start(&command, env, &path, (&home, cwd.as_deref()), stale)
            });
            Ways::Child(started.await.map_err(|e| e.to_string())??)
        }
        Way::Url(url) => Ways::Http(Http::new(url.clone(), stale.clone())),
    };
    let mut link = Link {
        way,
        spoken: Spoken::Nothing,
    };
    match link.shake_hands().await {
        Ok(spoken) => {
            link.spoken = spoken;
            Ok(link)
        }
        Err(why) => {
            let said = match &link.way {
                Ways::Child(child) => child.last_words(),
                Ways::Http(_) => String::new(),
            };
            link.end();
            Err(if said.is_empty() {
                why
            } else {
                format!("{why}; it said: {said}")
            })
        }
    }
}

impl Link {
    /// Says whether requests can be sent.
    pub(crate) fn lives(&self) -> bool {
        match &self.way {
            Ways::Child(child) => child.lives(),
            Ways::Http(http) => http.lives(),
        }
    }

    /// Ends it: a program is killed.
    pub(crate) fn end(&self) {
        match &self.way {
            Ways::Child(child) => child.end("it was ended"),
            Ways::Http(http) => http.end(),
        }
    }

    /// Agrees on a revision. One with a handshake is tried first, since servers of those know no other beginning; one
    /// that refuses it is asked what it speaks.
    async fn shake_hands(&self) -> Result<Spoken, String> {
        let hello = json!({
            "protocolVersion": Era::NEWEST_LEGACY.name(),
            "capabilities": {},
            "clientInfo": me(),
        });
        let came = self
            .send(Wanted::plain("initialize", hello), &Spoken::Nothing)
            .await;
        let refused = match came.answered()? {
            (Said::Result, result) => {
                let version = result["protocolVersion"].as_str().unwrap_or_default();
                if !LEGACY.contains(&version) {
                    return Err(format!("it speaks {version:?}, which is not spoken here"));
                }
                let spoken = Spoken::Legacy(version.to_owned());
                self.tell("notifications/initialized", json!({}), &spoken).await?;
                return Ok(spoken);
            }
            (Said::Error, error) => error,
        };
        let came = self
            .send(Wanted::plain("server/discover", json!({})), &Spoken::Modern)
            .await;
        match came.answered()? {
            (Said::Result, result)
                if result["supportedVersions"]
                    .as_array()
                    .is_some_and(|all| all.contains(&json!(Era::V2026_07_28.name()))) =>
            {
                Ok(Spoken::Modern)
            }
            _ => Err(format!("it refuses initialize: {}", refused["message"])),
        }
    }

    /// Lists its tools, page by page.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) async fn tools(&self) -> Result<Vec<Value>, String> {
        let mut tools = Vec::new();
        let mut cursor = Value::Null;
        for _ in 0..PAGES {
            let params = if cursor.is_null() {
                json!({})
            } else {
                json!({"cursor": cursor})
            };
            match self
                .request(Wanted::plain("tools/list", params))
                .await
                .answered()?
            {
                (Said::Result, Value::Object(mut page)) => {
                    if let Some(Value::Array(more)) = page.remove("tools") {
                        tools.extend(more);
                    }
                    cursor = page.remove("nextCursor").unwrap_or_default();
                    if !cursor.is_string() || tools.len() > TOOLS {
                        tools.truncate(TOOLS);
                        return Ok(tools);
                    }
                }
                (Said::Result, _) => {
                    return Err("it answers tools/list with no object".to_owned());
                }
                (Said::Error, error) => {
                    return Err(format!("it does not list its tools: {}", error["message"]));
                }
            }
        }
        Err("its list of tools has no end".to_owned())
    }

    /// Sends a request, and waits for its answer.
    pub(crate) async fn request(&self, wanted: Wanted<'_>) -> Came {
        self.send(wanted, &self.spoken).await
    }

    async fn send(&self, mut wanted: Wanted<'_>, spoken: &Spoken) -> Came {
        if *spoken == Spoken::Modern {
            let meta = wanted.params.entry("_meta").or_insert(json!({}));
            meta[era::VERSION] = json!(Era::V2026_07_28.name());
            meta[era::CAPABILITIES] = json!({});
            meta[era::CLIENT] = me();
        }
        match &self.way {
            Ways::Child(child) => child.request(wanted).await,
            Ways::Http(http) => http.request(wanted, spoken).await,
        }
    }

    async fn tell(&self, method: &str, params: Value, spoken: &Spoken) -> Result<(), String> {
        let message = rpc::notification(method, params);
        match &self.way {
            Ways::Child(child) => {
                child.tell(message);
                Ok(())
            }
            Ways::Http(http) => http.tell(message, spoken).await,
        }
    }
}

fn me() -> Value {
    json!({"name": "semel", "version": env!("CARGO_PKG_VERSION")})
}
