//! The composition root: from a configuration to an engine, in the daemon or in a command.

use crate::client::{Ask, Place, Unanswered, ask};
use crate::config::Config;
use crate::engine::daemon::mark;
use crate::engine::gateway::Gateway;
use crate::engine::gateway::crash::Hooks;
use crate::engine::gateway::recover::{Recovery, recover};
use crate::engine::{Engine, host, store};
use crate::limits;
use semel_core::digest::{Sha256, to_hex};
use semel_core::ids::Incarnation;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::daemon::{Detached, Keep, StateRoot, spawn_detached, this_binary};
use semel_host::volume::Volumes;
use semel_store::{OwnerLock, Remote, SqliteJournal, Transport, Verb};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOCKET: &str = "semel.sock";
const OPERATOR_TOKEN: &str = "operator.token";
const TOKEN_CAP: u64 = 4096;
/// What a daemon that a command started says of its failure to start.
const START_LOG: &str = "run/start.log";
const LOG_CAP: u64 = 64 << 10;

/// Becomes a sandbox's first process where the arguments say so; gives its exit status.
pub(crate) fn sandbox_entry() -> Option<u8> {
    semel_host::sandbox::entered().map(|status| u8::try_from(status).unwrap_or(u8::MAX))
}

/// Is the daemon before it listens: it holds the owner's lock, and has recovered.
pub(crate) struct Daemon {
    /// The gateway; still starting.
    pub(crate) gateway: Arc<Gateway>,
    /// The handle on the state root.
    pub(crate) root: Arc<StateRoot>,
    /// The digest of the operator's token.
    pub(crate) operator: Sha256,
    /// Which life of the daemon this is.
    pub(crate) incarnation: Incarnation,
    /// What recovery did.
    pub(crate) recovery: Recovery,
}

/// Makes the daemon: state root, owner's lock, journal, recovery, operator's token.
///
/// # Errors
/// `store_unavailable`, reason `owned_elsewhere`, where another daemon runs; `bad_config`, `io_failed`.
pub(crate) fn daemon(config: Config, hooks: Hooks) -> Result<Daemon, Refusal> {
    let root = Arc::new(StateRoot::make(&config.state).map_err(host)?);
    root.make_dir("run").map_err(host)?;
    let lock = OwnerLock::take(&config.state).map_err(store)?;
    // What the last life said of itself is no sign of this one's.
    root.remove(crate::engine::daemon::health::HEARTBEAT_FILE)
        .map_err(host)?;
    let options = semel_store::sqlite::Options {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: clock::boot_id().map_err(host)?,
        now: clock::now(),
    };
    let journal = SqliteJournal::open(lock, &options).map_err(store)?;
    let incarnation = journal.incarnation();
    let journal = Arc::new(journal);
    let engine = Engine {
        journal: journal.clone(),
        volumes: Arc::new(Volumes::open(&config.state).map_err(host)?),
        config: Arc::new(config),
    };
    let age = mark::compare(&engine, &root)?;
    let recovery = recover(&engine, &hooks, age)?;
    mark::write(&engine, &root)?;
    let operator = operator_token(&root)?;
    let gateway = Gateway::new(engine, hooks);
    // A failed note or heartbeat is nobody's call, and ends the daemon all the same.
    let told = Arc::downgrade(&gateway);
    journal.when_poisoned(move |why| {
        if let Some(gateway) = told.upgrade() {
            gateway.poison(&Refusal::new(Code::StoreUnavailable, why));
        }
    });
    Ok(Daemon {
        gateway,
        root,
        operator: Sha256::of(operator.as_bytes()),
        incarnation,
        recovery,
    })
}

/// Reads the operator's token, and makes it where there is none.
fn operator_token(root: &StateRoot) -> Result<String, Refusal> {
    if let Some(token) = read_token(root)? {
        return Ok(token);
    }
    let token = format!("smlop1_{}", to_hex(&clock::random::<32>().map_err(host)?));
    root.replace(OPERATOR_TOKEN, format!("{token}\n").as_bytes(), Keep::Synced)
        .map_err(host)?;
    Ok(token)
}

fn read_token(root: &StateRoot) -> Result<Option<String>, Refusal> {
    let bytes = root.read(OPERATOR_TOKEN, TOKEN_CAP).map_err(host)?;
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    Ok(text.filter(|text| !text.is_empty()))
}

/// Binds the daemon's socket: under another name first, so that nobody connects before it is private.
///
/// # Errors
/// `io_failed`.
pub(crate) fn bind_socket(root: &StateRoot) -> Result<std::os::unix::net::UnixListener, Refusal> {
    let fail = |e: std::io::Error| Refusal::new(Code::IoFailed, format!("the socket cannot be bound: {e}"));
    let temporary = "semel.sock.new";
    root.remove(temporary).map_err(host)?;
    let listener = std::os::unix::net::UnixListener::bind(root.short(temporary)).map_err(fail)?;
    root.private(temporary).map_err(host)?;
    root.rename(temporary, SOCKET).map_err(host)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Takes the socket away, so that a command finds no daemon rather than one that ends.
pub(crate) fn unbind_socket(root: &StateRoot) {
    drop(root.remove(SOCKET));
}

/// Says whether a command that finds no daemon may start one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It starts a transient one.
    Start,
    /// It is refused.
    Refuse,
}

/// Is the way from a command to the daemon.
#[derive(Debug)]
pub(crate) struct Link {
    config: Arc<Config>,
    absent: Absent,
}

impl Link {
    /// Makes a link; nothing is sent yet.
    pub(crate) fn new(config: Arc<Config>, absent: Absent) -> Self {
        Self { config, absent }
    }

    /// Sends a request with the operator's token, and starts a daemon first where none answers.
    ///
    /// # Errors
    /// `daemon_unreachable`; the daemon's refusal.
    pub(crate) fn admin(&self, method: &'static str, path: &str, body: Vec<u8>) -> Result<Value, Refusal> {
        self.reach(|root| {
            let token = read_token(root)
                .ok()
                .flatten()
                .ok_or_else(|| Unanswered::NotConnected("there is no operator's token".to_owned()))?;
            ask(
                &Place::Unix(root.short(SOCKET)),
                &Ask {
                    method,
                    path: path.to_owned(),
                    token: &token,
                    headers: Vec::new(),
                    body: body.clone(),
                    within: None,
                },
            )
        })
    }

    /// Gives the URL at which the daemon takes calls, and starts one first where none answers.
    ///
    /// # Errors
    /// `daemon_unreachable`.
    pub(crate) fn url(&self) -> Result<String, Refusal> {
        let status = self.admin("GET", "/v1/admin/status", Vec::new())?;
        let url = status.pointer("/daemon/url").and_then(Value::as_str);
        url.map(str::to_owned).ok_or_else(|| {
            Refusal::new(
                Code::DaemonUnreachable,
                "the daemon does not say where it listens",
            )
        })
    }

    /// Sends a request as a job, over the daemon's socket.
    ///
    /// # Errors
    /// `daemon_unreachable`; the daemon's refusal.
    pub(crate) fn job(&self, request: &Ask<'_>) -> Result<Value, Refusal> {
        self.reach(|root| ask(&Place::Unix(root.short(SOCKET)), request))
    }

    fn reach(
        &self,
        mut send: impl FnMut(&StateRoot) -> Result<Result<Value, Refusal>, Unanswered>,
    ) -> Result<Value, Refusal> {
        let mut try_once = || match StateRoot::open(&self.config.state) {
            Ok(root) => send(&root),
            Err(error) => Err(Unanswered::NotConnected(error.to_string())),
        };
        let first = match try_once() {
            Ok(answer) => return answer,
            Err(first @ Unanswered::BrokenOff(_)) => return Err(first.into_refusal()),
            Err(first) => first,
        };
        if self.absent == Absent::Refuse {
            return Err(first.into_refusal());
        }
        let mut started = self.start()?;
        let since = Instant::now();
        loop {
            match try_once() {
                Ok(answer) => return answer,
                Err(Unanswered::NotConnected(_)) if since.elapsed() < limits::DAEMON_START => {
                    // Another command may have started one at the same time: then ours ends, and that one answers.
                    if started.ended().is_some() && !self.said().contains("owned_elsewhere") {
                        return Err(self.start_failed());
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Unanswered::NotConnected(_)) => return Err(self.start_failed()),
                Err(last) => return Err(last.into_refusal()),
            }
        }
    }

    /// Gives what the daemon that was started last said of its failure.
    fn said(&self) -> String {
        let log = StateRoot::open(&self.config.state).and_then(|root| root.read(START_LOG, LOG_CAP));
        let said = log.ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&said).trim().replace('\n', "; ")
    }

    /// Says why the daemon that was started does not answer, in its own words.
    fn start_failed(&self) -> Refusal {
        let said = self.said();
        let why = if said.is_empty() {
            "the daemon that was started does not answer".to_owned()
        } else {
            format!("the daemon that was started does not answer; it said: {said}")
        };
        Refusal::new(Code::DaemonUnreachable, why)
    }

    fn start(&self) -> Result<Detached, Refusal> {
        let root = StateRoot::make(&self.config.state).map_err(host)?;
        root.make_dir("run").map_err(host)?;
        let log = root.fresh(START_LOG).map_err(host)?;
        let args = ["--state".into(), self.config.state.clone().into_os_string()];
        let args: Vec<std::ffi::OsString> = args
            .into_iter()
            .chain(["--quiet".into(), "serve".into(), "--transient".into()])
            .collect();
        spawn_detached(&this_binary().map_err(host)?, &args, log).map_err(host)
    }
}

impl Transport for Link {
    fn ask(&self, verb: &Verb) -> semel_store::Result<Value> {
        let body = serde_json::to_vec(verb)
            .map_err(|e| Refusal::new(Code::Internal, format!("a verb has no JSON form: {e}")))?;
        Ok(self.admin("POST", "/v1/admin/journal", body)?)
    }
}

/// Makes the engine of a command: its journal is the daemon's, its hands are its own.
///
/// # Errors
/// `daemon_unreachable` where no daemon answers and none could be started; `bad_config`, `io_failed`.
pub(crate) fn command(config: Config) -> Result<Engine, Refusal> {
    StateRoot::make(&config.state).map_err(host)?;
    connected(config, Absent::Start)
}

/// Makes the engine of a command on a state root that stands.
///
/// # Errors
/// `io_failed` where it does not.
pub(crate) fn connected(config: Config, absent: Absent) -> Result<Engine, Refusal> {
    let config = Arc::new(config);
    let link = Link::new(config.clone(), absent);
    Ok(Engine {
        volumes: Arc::new(Volumes::open(&config.state).map_err(host)?),
        journal: Arc::new(Remote(link)),
        config,
    })
}

/// Says whether there is a journal that a command could look at.
pub(crate) fn has_journal(config: &Config) -> bool {
    SqliteJournal::exists(&config.state)
}

/// Makes the engine of a command that only looks: it reads the journal's file, whether or not a daemon runs.
///
/// # Errors
/// `store_unavailable` where there is no journal.
pub(crate) fn reader(config: Config) -> Result<Engine, Refusal> {
    let journal = SqliteJournal::open_read_only(&config.state).map_err(store)?;
    Ok(Engine {
        journal: Arc::new(journal),
        volumes: Arc::new(Volumes::open(&config.state).map_err(host)?),
        config: Arc::new(config),
    })
}
