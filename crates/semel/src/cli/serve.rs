//! `semel serve`: run the daemon in the foreground.

use super::answer::{Answer, Format, count, err, out};
use super::{Context, Progress};
use crate::config;
use crate::engine::daemon::face::{self, Face};
use crate::engine::daemon::supervise::{self, Given, Listener, Manager};
use crate::engine::daemon::{keeper, serve as daemon};
use crate::engine::gateway::crash::{CrashPoint, Hold, Hooks, Moment};
use crate::engine::gateway::hands::Hands;
use crate::engine::gateway::quota;
use crate::engine::gateway::reaping;
use crate::http::{self, Activity, App, Door, Name, Network, Patience, Side};
use crate::telemetry::Phase;
use crate::wire::{self, Bind};
use crate::{limits, mcp, probe};
use semel_core::{Code, Refusal};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Run the daemon: the tool gateway, and its probe listener in a process of its own.
///
/// It listens on Unix sockets below the state root. A TCP port is opened where --listen or the configuration names one,
/// or, on the loopback device, when a job first needs one.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Listen on TCP, too; port 0 is a free one
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Where the probe listener listens [default: 127.0.0.1:0, a free port]
    #[arg(long, value_name = "HOST:PORT")]
    probe: Option<String>,
    /// The policy of tool calls [default: from the configuration file]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Put the guard in front of another MCP server, too: NAME='command …' or NAME=http://HOST/PATH; its tools are NAME__TOOL
    #[arg(long, value_name = "NAME=SERVER")]
    upstream: Vec<String>,
    /// End when idle and no volume is held open
    #[arg(long)]
    transient: bool,
    /// For crash tests: kill this process at a named point (semel generate crash-points)
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
    /// For tests: pause a call at a named point
    #[arg(long, hide = true, value_name = "POINT:MS")]
    pause_at: Option<String>,
    /// For tests: let approvals expire as if it were so many milliseconds later
    #[arg(long, hide = true, value_name = "MS", default_value_t = 0)]
    approvals_ahead: u64,
    /// For tests: divide the listeners' patience
    #[arg(long, hide = true, value_name = "BY", default_value_t = 1)]
    hasten: u32,
    /// For tests: stop the journal's writer once this file exists
    #[arg(long, hide = true, value_name = "FILE")]
    wedge_writer: Option<PathBuf>,
    /// For tests: hold a call at a named point while a file is there
    #[arg(long, hide = true, value_name = "POINT=PATH")]
    hold_at: Option<String>,
    /// For tests: the tools that the conformance suite of the Model Context Protocol asks for
    #[arg(long, hide = true)]
    conformance_fixture: bool,
    /// For tests: write the name of each point that is reached to a file
    #[arg(long, hide = true, value_name = "PATH")]
    tell_points: Option<PathBuf>,
}

/// Serve the probe listener that stands at standard input; started by semel serve.
#[derive(clap::Args, Debug)]
pub(crate) struct ProbeArgs {
    /// The heartbeat file
    #[arg(long)]
    heartbeat: PathBuf,
}

/// Runs the probe process.
pub(crate) fn run_probe(args: ProbeArgs) -> Result<Answer, Refusal> {
    probe::serve(args.heartbeat)?;
    Ok(Answer::new("", json!({})))
}

impl Args {
    fn hooks(&self) -> Result<Hooks, Refusal> {
        let crash = self.crash_at.as_deref().map(Moment::parse).transpose()?;
        let pause = match self.pause_at.as_deref().map(|text| text.split_once(':')) {
            None => None,
            Some(Some((point, ms))) if ms.parse::<u64>().is_ok() => Some((
                CrashPoint::parse(point)?,
                Duration::from_millis(ms.parse().unwrap_or_default()),
            )),
            Some(_) => return Err(Refusal::new(Code::Usage, "--pause-at takes POINT:MS")),
        };
        let ahead = Duration::from_millis(self.approvals_ahead);
        let hold = self.hold_at.as_deref().map(Hold::parse).transpose()?;
        Ok(Hooks {
            crash,
            pause,
            hold,
            tell: self.tell_points.clone(),
            ahead,
        })
    }
}

fn bind(place: &str) -> Result<(TcpListener, String), Refusal> {
    let fail = |e: std::io::Error| Refusal::new(Code::BadConfig, format!("cannot listen: {e}")).name(place);
    let listener = TcpListener::bind(place).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    let url = format!("http://{}", listener.local_addr().map_err(fail)?);
    Ok((listener, url))
}

/// Binds a place; where it leaves the port open, that of a daemon that was killed here, so that its clients find the
/// next one.
fn bind_again(place: &str, left: Option<&str>) -> Result<(TcpListener, String), Refusal> {
    let host = place.strip_suffix(":0");
    let same = left.and_then(|url| url.strip_prefix("http://")).filter(|left| {
        host.is_some_and(|host| left.strip_prefix(host).is_some_and(|port| port.starts_with(':')))
    });
    match same.map(bind) {
        Some(Ok(bound)) => Ok(bound),
        Some(Err(_)) | None => bind(place),
    }
}

/// Are the listeners of a life that are open before it serves.
struct Listeners {
    doors: Vec<Listener>,
    admin: Option<std::os::unix::net::UnixListener>,
    probe: TcpListener,
    url: Option<String>,
    probe_url: String,
}

/// Opens what is asked for, and takes what was handed down.
///
/// Without a place for TCP there is no port, unless an earlier life told one to agents whose volumes are still open:
/// they look for the daemon there.
fn open(
    args: &Args,
    config: &config::Config,
    given: Given,
    made: &wire::Daemon,
    context: &Context,
) -> Result<Listeners, Refusal> {
    let (reached, left) = (face::reached(&config.state), face::announced(&config.state));
    let mut doors = given.app;
    let mut url = doors.iter().find_map(|door| match door {
        Listener::Tcp(listener) => Some(format!("http://{}", listener.local_addr().ok()?)),
        Listener::Unix(..) => None,
    });
    let bound = match (args.listen.as_ref().or(config.listen.as_ref()), &reached) {
        (Some(place), left) => Some(bind_again(place, left.as_deref())?),
        (None, Some(place)) if url.is_none() && made.gateway.held_open() => {
            let again = place.strip_prefix("http://").map(bind);
            if let (Some(Err(refusal)), Progress::Lines) = (&again, context.progress) {
                err(&format!(
                    "agents of open volumes look for {place}, and do not find this daemon: {refusal}"
                ));
            }
            again.and_then(Result::ok)
        }
        (None, _) => None,
    };
    if let Some((listener, place)) = bound {
        doors.push(Listener::Tcp(listener));
        url = Some(place);
    }
    let (probe, probe_url) = match given.probe {
        Some(listener) => {
            let place = listener
                .local_addr()
                .map_err(|e| Refusal::new(Code::BadConfig, e.to_string()).name("probe"))?;
            (listener, format!("http://{place}"))
        }
        None => bind_again(
            args.probe.as_ref().unwrap_or(&config.probe),
            left.as_ref().and_then(|about| about["probe_url"].as_str()),
        )?,
    };
    Ok(Listeners {
        doors,
        admin: given.admin,
        probe,
        url,
        probe_url,
    })
}

/// Runs the command until SIGTERM, SIGINT, `shutdown`, idleness (`--transient`) or a failure of the journal.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context
        .config()?
        .with_policy(args.policy.clone())
        .with_upstreams(&args.upstream)?;
    let said = config::supervisor();
    let hooks = args.hooks()?;
    let manager = Manager::of(&said)?;
    let given = supervise::given(&said, &config.state)?;
    let watchdog = manager.watchdog(&said, args.wedge_writer.clone())?;
    manager.say("STATUS=recovering");
    if !args.transient {
        wire::succeed_transient(&config);
    }
    // Recovery is over before any listener opens.
    let made = wire::daemon(config.clone(), hooks, watchdog.as_ref())?;
    let open = open(&args, &config, given, &made, context)?;
    let about = json!({
        "schema": "semel.daemon/v1",
        "url": open.url,
        "socket": wire::app_socket(&config.state),
        "probe_url": open.probe_url,
        "incarnation": made.incarnation,
        "version": env!("CARGO_PKG_VERSION"),
        "transient": args.transient,
        "pid": std::process::id(),
    });
    // From this very thread, which lives as long as the process: the probe dies with it.
    let companion = daemon::start_probe(&config.state, open.probe)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(limits::IN_FLIGHT + 64)
        .build()
        .map_err(|e| Refusal::new(Code::IoFailed, format!("cannot start threads: {e}")))?;
    let hands = Hands::start()?;
    drop(made.gateway.hands.set(hands.way()));
    let life = Life {
        span: if args.transient {
            Span::Transient
        } else {
            Span::Lasting
        },
        patience: Patience::divided(args.hasten),
        manager,
        fixture: if args.conformance_fixture {
            mcp::Fixture::Conformance
        } else {
            mcp::Fixture::Absent
        },
    };
    runtime.block_on(until_over(&made, open.doors, open.admin, about, &life, context))?;
    if let Err(refusal) = keeper::last_words(&made.gateway) {
        err(&format!(
            "no checkpoint of the log was made at the end: {refusal}"
        ));
    }
    daemon::withdraw(&made.root);
    hands.end(Duration::from_secs(1));
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(companion);
    ended(&made.gateway)
}

fn ended(gateway: &crate::engine::gateway::Gateway) -> Result<Answer, Refusal> {
    match daemon::poisoned(gateway) {
        Some(refusal) => Err(refusal),
        None => Ok(Answer::new("", json!({"schema": "semel.serve.ended/v1"}))),
    }
}

/// Says how long the daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// Until it is asked to end.
    Lasting,
    /// Until it is idle.
    Transient,
}

/// Is how this life of the daemon is led.
struct Life {
    span: Span,
    patience: Patience,
    manager: Manager,
    fixture: mcp::Fixture,
}

/// Makes the doors: those that were opened or handed down, and the daemon's own sockets.
fn doors(
    made: &wire::Daemon,
    open: Vec<Listener>,
    admin: Option<std::os::unix::net::UnixListener>,
) -> Result<(Vec<Door>, Bind), Refusal> {
    use tokio::net::{TcpListener, UnixListener};
    let fail = |e: std::io::Error| Refusal::new(Code::IoFailed, format!("cannot listen: {e}"));
    let operator = if admin.is_some() { Bind::Given } else { Bind::Anew };
    let own = wire::bind_sockets(&made.root, operator)?;
    let unix = |listener, side, name| -> Result<Door, Refusal> {
        Ok(Door::Unix(
            UnixListener::from_std(listener).map_err(fail)?,
            side,
            name,
        ))
    };
    let mut doors = vec![unix(own.app, Side::App, Name::Ours)?];
    if let Some(listener) = own.operator {
        doors.push(unix(listener, Side::Operator, Name::Ours)?);
    }
    if let Some(listener) = admin {
        doors.push(unix(listener, Side::Operator, Name::Held)?);
    }
    for listener in open {
        doors.push(match listener {
            Listener::Tcp(listener) => Door::Tcp(TcpListener::from_std(listener).map_err(fail)?),
            Listener::Unix(listener, _) => unix(listener, Side::App, Name::Held)?,
        });
    }
    Ok((doors, operator))
}

/// Opens the listeners, serves, and ends when the gateway drains or is poisoned.
async fn until_over(
    made: &wire::Daemon,
    open: Vec<Listener>,
    admin: Option<std::os::unix::net::UnixListener>,
    about: Value,
    life: &Life,
    context: &Context,
) -> Result<(), Refusal> {
    let gateway = &made.gateway;
    // Who waits for a command of an earlier life finds it under way.
    gateway.attach(made.recovery.running.clone())?;
    let (network, asked) = Network::new();
    let app = App {
        gateway: gateway.clone(),
        operator: made.operator,
        mcp: Arc::new(mcp::Server::new(gateway.clone(), life.fixture)),
        face: Face::new(made.root.clone(), about.clone()),
        network,
        patience: life.patience,
        activity: Activity::new(),
    };
    let (doors, operator) = doors(made, open, admin)?;
    gateway.enter(Phase::Ready);
    drain_on_signal(gateway.clone());
    app.face.announce()?;
    tokio::spawn(daemon::heartbeats(
        gateway.clone(),
        made.root.clone(),
        made.incarnation,
    ));
    tokio::spawn(keeper::keep(gateway.clone()));
    tokio::spawn(quota::keep(gateway.clone()));
    tokio::spawn(reaping::keep(gateway.clone()));
    let progress = context.progress;
    gateway.upstreams.begin(move |line| {
        if progress == Progress::Lines {
            err(line);
        }
    });
    if life.span == Span::Transient {
        let activity = app.activity.clone();
        tokio::spawn(daemon::end_when_idle(gateway.clone(), move || activity.idle()));
    }
    say(context, &made.recovery, &about);
    life.manager.say(&format!(
        "READY=1\nSTATUS=serving, incarnation {}",
        made.incarnation.0
    ));
    let (mut phase, root, manager) = (gateway.phase(), made.root.clone(), life.manager.clone());
    let ending = tokio::spawn(async move {
        let ends = phase.wait_for(|phase| matches!(phase, Phase::Draining | Phase::Poisoned));
        let poisoned = ends.await.is_ok_and(|phase| *phase == Phase::Poisoned);
        manager.say(if poisoned {
            "STOPPING=1\nSTATUS=a failure left it open what is on the disk; it ends, to recover"
        } else {
            "STOPPING=1\nSTATUS=draining"
        });
        wire::unbind_sockets(&root, operator);
    });
    http::serve(app, doors, asked).await;
    // A daemon with nothing to wait for ends so soon that nobody would be told.
    drop(ending.await);
    gateway.upstreams.end().await;
    reaping::end(gateway).await;
    Ok(())
}

/// Hears the signals that ask for its end from now on: before anybody is told that it is there, since whoever waits for that may
/// ask at once, and a signal that nobody hears kills.
fn drain_on_signal(gateway: Arc<crate::engine::gateway::Gateway>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        gateway.enter(Phase::Draining);
    });
}

fn say(context: &Context, recovery: &crate::engine::gateway::recover::Recovery, about: &Value) {
    if context.progress == Progress::Lines {
        for (generation, reason) in &recovery.ended {
            err(&format!("{generation} ended dirty: {reason}"));
        }
        if recovery.finished + recovery.freed + recovery.unknown > 0 {
            err(&format!(
                "recovered: {} had happened, {} had not, {} cannot be told",
                count(recovery.finished, "call"),
                recovery.freed,
                recovery.unknown
            ));
        }
    }
    match context.format {
        Format::Json => out(&about.to_string()),
        Format::Human => {
            let word = |name: &str| about[name].as_str().unwrap_or_default();
            out(&format!("app    {}", word("socket")));
            if let Some(url) = about["url"].as_str() {
                out(&format!("       {url}"));
            }
            out(&format!("probe  {}", word("probe_url")));
        }
    }
}
