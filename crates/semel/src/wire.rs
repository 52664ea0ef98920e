//! The composition root: from a configuration to an engine, in the daemon or in a command.

use crate::client::{Ask, ask};
pub(crate) use crate::client::{Place, Unanswered, host_of};
use crate::config::Config;
use crate::engine::daemon::mark;
use crate::engine::daemon::supervise::Watchdog;
use crate::engine::gateway::Gateway;
use crate::engine::gateway::crash::Hooks;
use crate::engine::gateway::policy;
use crate::engine::gateway::recover::{Recovery, recover};
use crate::engine::gateway::standing::{self, Standing};
use crate::engine::{Engine, certify, checkpoint, host, signing, store};
use crate::limits;
use semel_core::digest::{Sha256, to_hex};
use semel_core::ids::Incarnation;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::daemon::{Detached, Keep, StateRoot, spawn_detached, this_binary};
use semel_host::process::Cancel;
use semel_host::volume::Volumes;
use semel_store::{Journal, OwnerLock, Remote, SqliteJournal, Transport, Verb};
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Where the operator reaches the daemon, below the state root.
const SOCKET: &str = "semel.sock";
/// Where agents reach it: alone in its directory, which a sandbox can be shown without anything else of the state root.
const APP_SOCKET: &str = "run/app/app.sock";
const OPERATOR_TOKEN: &str = "operator.token";
const TOKEN_CAP: u64 = 4096;
/// What a daemon that a command started says of its failure to start.
const START_LOG: &str = "run/start.log";
const LOG_CAP: usize = 64 << 10;
/// How long after one that ended since another had the journal, a daemon is started again.
const START_AGAIN: Duration = Duration::from_millis(250);

/// Becomes a sandbox's first process, or the shim of a command, where the arguments say so; gives its exit status.
pub(crate) fn sandbox_entry() -> Option<u8> {
    let status = semel_host::sandbox::entered().or_else(semel_host::exec::entered)?;
    Some(u8::try_from(status).unwrap_or(u8::MAX))
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
/// `store_unavailable`, reason `owned_elsewhere`, where another daemon runs; `bad_config`, also for a policy that
/// cannot be read; `io_failed`.
pub(crate) fn daemon(config: Config, hooks: Hooks, watchdog: Option<&Watchdog>) -> Result<Daemon, Refusal> {
    let in_force = policy::load(&config)?;
    let root = Arc::new(StateRoot::make(&config.state).map_err(host)?);
    root.make_dir("run").map_err(host)?;
    let lock = OwnerLock::take(&config.state).map_err(store)?;
    // What the last life said of itself is no sign of this one's.
    root.remove(crate::engine::daemon::health::HEARTBEAT_FILE)
        .map_err(host)?;
    let options = semel_store::sqlite::Options {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: clock::boot_id().map_err(host)?,
        policy_sha256: in_force.as_ref().map(|policy| policy.sha256),
        now: clock::now(),
        on_commit: watchdog.map(Watchdog::on_commit),
    };
    let journal = Arc::new(SqliteJournal::open(lock, &options).map_err(store)?);
    let incarnation = journal.incarnation();
    if let Some(watchdog) = watchdog {
        watchdog.watch(&journal)?;
    }
    let engine = Engine {
        journal,
        volumes: Arc::new(Volumes::open(&config.state).map_err(host)?),
        config: Arc::new(config),
        standing: Arc::default(),
    };
    let age = mark::compare(&engine, &root)?;
    let recovery = recover(&engine, &hooks, age)?;
    mark::write(&engine, &root)?;
    // A key that cannot be used is told now, not when the first checkpoint is due.
    signing::log_key_or_new(&engine.config)?;
    checkpoint::sweep(&engine.config)?;
    certify::clear(&engine.config.state)?;
    let operator = operator_token(&root)?;
    Ok(Daemon {
        gateway: Gateway::new(engine, hooks, in_force),
        root,
        operator: Sha256::of(operator.as_bytes()),
        incarnation,
        recovery,
    })
}

/// Tells a daemon that a command started to end, and waits until it has: one that lasts takes its place, and its volumes. One that
/// does not end in time keeps the lock, and whoever asks for it is told so.
pub(crate) fn succeed_transient(config: &Config) {
    let transient =
        crate::engine::daemon::face::announced(&config.state).is_some_and(|about| about["transient"] == true);
    if !transient {
        return;
    }
    let link = Link::new(Arc::new(config.clone()), Absent::Refuse);
    // Where it was killed, nobody answers, and the lock is free.
    drop(link.admin("POST", "/v1/admin/shutdown", b"null".to_vec()));
    let since = Instant::now();
    while OwnerLock::take(&config.state).is_err() && since.elapsed() < limits::DAEMON_START {
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// Binds the daemon's sockets, the operator's and the agents': under another name first, so that nobody connects before
/// they are private.
///
/// # Errors
/// `io_failed`.
pub(crate) fn bind_sockets(root: &StateRoot, operator: Bind) -> Result<Sockets, Refusal> {
    root.make_dir("run/app").map_err(host)?;
    Ok(Sockets {
        operator: match operator {
            Bind::Anew => Some(bind_socket(root, SOCKET)?),
            Bind::Given => None,
        },
        app: bind_socket(root, APP_SOCKET)?,
    })
}

/// Says whether a socket is bound, or was handed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bind {
    /// It is bound.
    Anew,
    /// Another process listens on it, and handed it down.
    Given,
}

/// Are the daemon's own sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The operator's, where it was not handed down.
    pub(crate) operator: Option<UnixListener>,
    /// The agents'.
    pub(crate) app: UnixListener,
}

fn bind_socket(root: &StateRoot, name: &str) -> Result<UnixListener, Refusal> {
    let fail = |e: std::io::Error| Refusal::new(Code::IoFailed, format!("the socket cannot be bound: {e}"));
    let temporary = format!("{name}.new");
    root.remove(&temporary).map_err(host)?;
    let listener = UnixListener::bind(root.short(&temporary)).map_err(fail)?;
    root.private(&temporary).map_err(host)?;
    root.rename(&temporary, name).map_err(host)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Takes the sockets away, so that a command finds no daemon rather than one that ends.
pub(crate) fn unbind_sockets(root: &StateRoot, operator: Bind) {
    if operator == Bind::Anew {
        drop(root.remove(SOCKET));
    }
    drop(root.remove(APP_SOCKET));
}

/// Gives the path of the operator's socket.
pub(crate) fn operator_socket(state: &Path) -> PathBuf {
    state.join(SOCKET)
}

/// Gives the path of the agents' socket.
pub(crate) fn app_socket(state: &Path) -> PathBuf {
    state.join(APP_SOCKET)
}

/// Gives the agents' socket as a place that no path is too long for, with the handle by which it is reached: it is good
/// while that is open.
///
/// # Errors
/// `not_found` where there is no state root; `bad_config`, `io_failed`.
pub(crate) fn app_place(config: &Config) -> Result<(StateRoot, Place), Refusal> {
    let root = StateRoot::open(&config.state).map_err(host)?;
    let place = Place::Unix(root.short(APP_SOCKET));
    Ok((root, place))
}

/// Makes a private directory, and those above it, where it is not there.
///
/// # Errors
/// `bad_config` where it is a link, is another user's, or others may write it; `io_failed`.
pub(crate) fn private_directory(place: &Path) -> Result<StateRoot, Refusal> {
    StateRoot::make(place).map_err(host)
}

/// Says where agents reach the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// By plain HTTP, from this machine.
    pub(crate) url: String,
    /// By HTTP over a Unix socket.
    pub(crate) socket: PathBuf,
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
    within: Option<Duration>,
    until: Option<Cancel>,
    /// Once the command holds a job, by which hold it asks.
    standing: Arc<OnceLock<Standing>>,
}

impl Link {
    /// Makes a link, on which an answer is waited for as long as it takes; nothing is sent yet.
    pub(crate) fn new(config: Arc<Config>, absent: Absent) -> Self {
        Self {
            config,
            absent,
            within: None,
            until: None,
            standing: Arc::default(),
        }
    }

    /// Makes a link by which a daemon, if one runs and answers soon, is told of what happened: nothing depends on it.
    pub(crate) fn telling(config: Arc<Config>) -> Self {
        Self::new(config, Absent::Refuse).within(limits::HEARD)
    }

    /// Bounds how long an answer is waited for.
    fn within(mut self, within: Duration) -> Self {
        self.within = Some(within);
        self
    }

    /// Names who may end every wait for an answer.
    fn until(mut self, cancel: &Cancel) -> Self {
        self.until = Some(cancel.clone());
        self
    }

    /// Sends a request with the operator's token, and starts a daemon first where none answers.
    ///
    /// # Errors
    /// `daemon_unreachable`; the daemon's refusal.
    pub(crate) fn admin(&self, method: &'static str, path: &str, body: Vec<u8>) -> Result<Value, Refusal> {
        self.asked(method, path, body, self.within)
    }

    fn asked(
        &self,
        method: &'static str,
        path: &str,
        body: Vec<u8>,
        within: Option<Duration>,
    ) -> Result<Value, Refusal> {
        let standing = self.standing.get();
        let by: Vec<_> = standing
            .map(|by| (standing::HEADER, by.to_string()))
            .into_iter()
            .collect();
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
                    headers: by.clone(),
                    body: body.clone(),
                    within,
                    until: self.until.clone(),
                },
            )
        })
    }

    /// Gives where agents reach the daemon, and starts one first where none answers.
    ///
    /// # Errors
    /// `daemon_unreachable`; `io_failed` where no port can be opened.
    pub(crate) fn reached(&self) -> Result<Reached, Refusal> {
        let asked = br#"{"network":"loopback"}"#.to_vec();
        let answer = self.admin("POST", "/v1/admin/listen", asked)?;
        let url = answer["url"].as_str().map(str::to_owned).ok_or_else(|| {
            Refusal::new(
                Code::DaemonUnreachable,
                "the daemon does not say where it listens",
            )
        })?;
        Ok(Reached {
            url,
            socket: app_socket(&self.config.state),
        })
    }

    /// Sends a request as a job, over the agents' socket.
    ///
    /// # Errors
    /// `daemon_unreachable`; the daemon's refusal.
    pub(crate) fn job(&self, request: &Ask<'_>) -> Result<Value, Refusal> {
        self.reach(|root| ask(&Place::Unix(root.short(APP_SOCKET)), request))
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
            Err(first @ (Unanswered::BrokenOff(_) | Unanswered::Cancelled)) => {
                return Err(first.into_refusal());
            }
            Err(first) => first,
        };
        if self.absent == Absent::Refuse {
            return Err(first.into_refusal());
        }
        let since = Instant::now();
        let (mut started, mut begun) = (self.start()?, since);
        loop {
            match try_once() {
                Ok(answer) => return answer,
                Err(Unanswered::NotConnected(_)) if since.elapsed() < limits::DAEMON_START => {
                    if started.ended().is_some() {
                        // Another command may have started one at the same time: then ours ends, and that one answers.
                        // Or it was the last of one that was killed, which a child of it has a copy of: then the next one
                        // finds nobody.
                        if !said(&started).contains("owned_elsewhere") {
                            return Err(start_failed(&started));
                        }
                        if begun.elapsed() >= START_AGAIN {
                            (started, begun) = (self.start()?, Instant::now());
                        }
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Unanswered::NotConnected(_)) => return Err(start_failed(&started)),
                Err(last) => return Err(last.into_refusal()),
            }
        }
    }

    fn start(&self) -> Result<Detached, Refusal> {
        let root = StateRoot::make(&self.config.state).map_err(host)?;
        root.make_dir("run").map_err(host)?;
        let log = root.fresh(START_LOG).map_err(host)?;
        let args = ["--state".into(), self.config.state.clone().into_os_string()];
        // Without its configuration it would serve by another one, and without the policy.
        let file = self.config.file.iter();
        let file = file.flat_map(|file| ["--config".into(), file.clone().into_os_string()]);
        let args: Vec<std::ffi::OsString> = args
            .into_iter()
            .chain(file)
            .chain(["--quiet".into(), "serve".into(), "--transient".into()])
            .collect();
        spawn_detached(&this_binary().map_err(host)?, &args, log).map_err(host)
    }
}

/// Gives what the daemon that this process started said of its failure.
fn said(started: &Detached) -> String {
    let said = started.said(LOG_CAP);
    String::from_utf8_lossy(&said).trim().replace('\n', "; ")
}

/// Says why the daemon that was started does not answer, in its own words.
fn start_failed(started: &Detached) -> Refusal {
    let said = said(started);
    let why = if said.is_empty() {
        "the daemon that was started does not answer".to_owned()
    } else {
        format!("the daemon that was started does not answer; it said: {said}")
    };
    Refusal::new(Code::DaemonUnreachable, why)
}

impl Transport for Link {
    fn ask(&self, verb: &Verb) -> semel_store::Result<Value> {
        let body = serde_json::to_vec(verb)
            .map_err(|e| Refusal::new(Code::Internal, format!("a verb has no JSON form: {e}")))?;
        // A commit takes a moment. One that takes longer is of a daemon that is stopped, or stuck.
        let within = self.within.unwrap_or(limits::JOURNAL_ANSWER);
        Ok(self.asked("POST", "/v1/admin/journal", body, Some(within))?)
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

/// Makes such an engine, whose waits for the daemon end when the command is told to.
///
/// # Errors
/// As [`command`].
pub(crate) fn command_until(config: Config, cancel: &Cancel) -> Result<Engine, Refusal> {
    StateRoot::make(&config.state).map_err(host)?;
    let config = Arc::new(config);
    by(Link::new(config.clone(), Absent::Start).until(cancel), config)
}

/// Makes the engine of a command on a state root that stands.
///
/// # Errors
/// `io_failed` where it does not.
pub(crate) fn connected(config: Config, absent: Absent) -> Result<Engine, Refusal> {
    let config = Arc::new(config);
    by(Link::new(config.clone(), absent), config)
}

fn by(link: Link, config: Arc<Config>) -> Result<Engine, Refusal> {
    Ok(Engine {
        volumes: Arc::new(Volumes::open(&config.state).map_err(host)?),
        standing: link.standing.clone(),
        journal: Arc::new(Remote(link)),
        config,
    })
}

/// Makes a journal that is told of what happened, if a daemon runs and answers soon.
pub(crate) fn telling(config: Config) -> impl Journal {
    Remote(Link::telling(Arc::new(config)))
}

/// Says whether there is a journal that a command could look at.
///
/// # Errors
/// `bad_config` where the state root is no directory; `io_failed` where it cannot be opened.
pub(crate) fn has_journal(config: &Config) -> Result<bool, Refusal> {
    match StateRoot::open(&config.state) {
        Ok(_) => Ok(SqliteJournal::exists(&config.state)),
        Err(error) if error.code() == Code::NotFound => Ok(false),
        Err(error) => Err(host(error)),
    }
}

/// Makes the engine of a command that only looks: it reads the journal's file, whether or not a daemon runs. One that runs
/// first records what it was told of.
///
/// # Errors
/// `store_unavailable` where there is no journal.
pub(crate) fn reader(config: Config) -> Result<Engine, Refusal> {
    let config = Arc::new(config);
    // Where no daemon runs, or none that answers, there is what there is.
    drop(Remote(Link::telling(config.clone())).heard());
    let journal = SqliteJournal::open_read_only(&config.state).map_err(store)?;
    Ok(Engine {
        journal: Arc::new(journal),
        volumes: Arc::new(Volumes::open(&config.state).map_err(host)?),
        config,
        standing: Arc::default(),
    })
}
