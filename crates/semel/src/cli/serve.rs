//! `semel serve`: run the daemon in the foreground.

use super::answer::{Answer, Format, err, out};
use super::{Context, Progress};
use crate::engine::daemon::serve as daemon;
use crate::engine::gateway::crash::{CrashPoint, Hold, Hooks, Moment};
use crate::http::{self, Activity, App};
use crate::telemetry::Phase;
use crate::{limits, probe, wire};
use semel_core::{Code, Refusal};
use serde_json::json;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Run the daemon: the tool gateway, and its probe listener in a process of its own.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where the app listener listens [default: 127.0.0.1:0, a free port]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Where the probe listener listens [default: 127.0.0.1:0, a free port]
    #[arg(long, value_name = "HOST:PORT")]
    probe: Option<String>,
    /// End when idle and no volume is held open
    #[arg(long)]
    transient: bool,
    /// For crash tests: kill this process at a named point (semel generate crash-points)
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
    /// For tests: pause a call at a named point
    #[arg(long, hide = true, value_name = "POINT:MS")]
    pause_at: Option<String>,
    /// For tests: hold a call at a named point while a file is there
    #[arg(long, hide = true, value_name = "POINT=PATH")]
    hold_at: Option<String>,
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
        let hold = self.hold_at.as_deref().map(Hold::parse).transpose()?;
        Ok(Hooks {
            crash,
            pause,
            hold,
            tell: self.tell_points.clone(),
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

/// Runs the command until SIGTERM, SIGINT, `shutdown`, idleness (`--transient`) or a failure of the journal.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let hooks = args.hooks()?;
    let listen = args.listen.clone().unwrap_or_else(|| config.listen.clone());
    let probe_listen = args.probe.clone().unwrap_or_else(|| config.probe.clone());
    let state = config.state.clone();
    let left = daemon::announced(&state);
    // Recovery is over before any listener opens.
    let made = wire::daemon(config, hooks)?;
    let (tcp, url) = bind_again(&listen, left.as_ref().and_then(|about| about["url"].as_str()))?;
    let (probe_tcp, probe_url) = bind_again(
        &probe_listen,
        left.as_ref().and_then(|about| about["probe_url"].as_str()),
    )?;
    let gateway = made.gateway.clone();
    let about = json!({
        "schema": "semel.daemon/v1",
        "url": url,
        "probe_url": probe_url,
        "incarnation": made.incarnation,
        "version": env!("CARGO_PKG_VERSION"),
        "transient": args.transient,
        "pid": std::process::id(),
    });
    // From this very thread, which lives as long as the process: the probe dies with it.
    let companion = daemon::start_probe(&state, probe_tcp)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(limits::IN_FLIGHT + 64)
        .build()
        .map_err(|e| Refusal::new(Code::IoFailed, format!("cannot start threads: {e}")))?;
    let life = if args.transient {
        Life::Transient
    } else {
        Life::Lasting
    };
    runtime.block_on(until_over(&made, tcp, &about, life, context))?;
    daemon::withdraw(&made.root);
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(companion);
    ended(&gateway)
}

fn ended(gateway: &crate::engine::gateway::Gateway) -> Result<Answer, Refusal> {
    match daemon::poisoned(gateway) {
        Some(refusal) => Err(refusal),
        None => Ok(Answer::new("", json!({"schema": "semel.serve.ended/v1"}))),
    }
}

/// Says how long the daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Until it is asked to end.
    Lasting,
    /// Until it is idle.
    Transient,
}

/// Opens the listeners, serves, and ends when the gateway drains or is poisoned.
async fn until_over(
    made: &wire::Daemon,
    tcp: TcpListener,
    about: &serde_json::Value,
    life: Life,
    context: &Context,
) -> Result<(), Refusal> {
    let fail = |e: std::io::Error| Refusal::new(Code::IoFailed, format!("cannot listen: {e}"));
    let gateway = &made.gateway;
    let app = App {
        gateway: gateway.clone(),
        operator: made.operator,
        about: Arc::new(about.clone()),
        activity: Activity::new(),
    };
    let tcp = tokio::net::TcpListener::from_std(tcp).map_err(fail)?;
    let unix = tokio::net::UnixListener::from_std(wire::bind_socket(&made.root)?).map_err(fail)?;
    gateway.enter(Phase::Ready);
    daemon::announce(&made.root, about)?;
    tokio::spawn(daemon::heartbeats(
        gateway.clone(),
        made.root.clone(),
        made.incarnation,
    ));
    if life == Life::Transient {
        let activity = app.activity.clone();
        tokio::spawn(daemon::end_when_idle(gateway.clone(), move || activity.idle()));
    }
    tokio::spawn(drain_on_signal(gateway.clone()));
    say(context, &made.recovery, about);
    let (mut phase, root) = (gateway.phase(), made.root.clone());
    tokio::spawn(async move {
        drop(
            phase
                .wait_for(|phase| matches!(phase, Phase::Draining | Phase::Poisoned))
                .await,
        );
        wire::unbind_socket(&root);
    });
    http::serve(app, tcp, unix).await;
    Ok(())
}

async fn drain_on_signal(gateway: Arc<crate::engine::gateway::Gateway>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    gateway.enter(Phase::Draining);
}

fn say(context: &Context, recovery: &crate::engine::gateway::recover::Recovery, about: &serde_json::Value) {
    if context.progress == Progress::Lines {
        for (generation, reason) in &recovery.ended {
            err(&format!("{generation} ended dirty: {reason}"));
        }
        if recovery.finished + recovery.freed + recovery.unknown > 0 {
            err(&format!(
                "recovered: {} calls had happened, {} had not, {} cannot be told",
                recovery.finished, recovery.freed, recovery.unknown
            ));
        }
    }
    match context.format {
        Format::Json => out(&about.to_string()),
        Format::Human => out(&format!(
            "app    {}\nprobe  {}",
            about["url"].as_str().unwrap_or_default(),
            about["probe_url"].as_str().unwrap_or_default()
        )),
    }
}
