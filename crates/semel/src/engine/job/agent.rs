//! The agent stage: one command in the sandbox of its draft, with a token for the gateway.
//!
//! It is run once. Whether its draft may be sealed is decided by how its process tree ended, never by what it says.

use super::draft::Draft;
use super::say::Say;
use crate::engine::gateway::quota;
use crate::engine::surroundings::{SYSTEM, Surroundings};
use crate::engine::{Engine, host};
use crate::wire::Reached;
use crate::{config, limits};
use semel_core::ids::Generation;
use semel_core::job::{Confine, Job, Span};
use semel_core::{Code, Refusal, RelPath};
use semel_host::plain;
use semel_host::process::{self, Cancel, Command, Confinement, End, Ended, Output, TreeEnded};
use semel_host::sandbox::{Network, Require, Sandbox, TreeAccess, resolve_program, toolchain_roots};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// How long the path of a Unix socket may be, its end included.
const SOCKET_PATH: usize = 108;

/// Is the agent's surroundings: its private places, and the programs that it finds.
struct Around {
    home: PathBuf,
    tmp: PathBuf,
    program: PathBuf,
    read_only: Vec<PathBuf>,
    path: OsString,
    gateway: Reached,
}

/// Runs the agent of a job in its draft.
///
/// # Errors
/// `timed_out` past its deadline; `quota_exceeded`, by the name of the bound that it met; `dirty_volume`, reason `agent_failed`, for any other end than exit 0, and reason
/// `process_tree_unproved` where something of it may live on; reason `cancelled` where a person ended it;
/// `sandbox_unavailable`; `not_found` for a program that is not there.
pub(crate) fn run(
    engine: &Engine,
    job: &Job,
    beside: &Path,
    draft: &Draft,
    say: Say<'_>,
    cancel: &Cancel,
) -> Result<(), Refusal> {
    let around = surroundings(engine, job, beside, draft)?;
    let command = command(engine, job, draft, &around)?;
    say.line(&format!("agent    {}", job.agent.command.join(" ")));
    let generation = &draft.opened.volume.generation;
    let ended = attended(engine, generation, cancel, || process::run(&command, cancel)).map_err(host)?;
    say.line(&format!(
        "agent    {}, {:.1} s, confinement {}",
        in_words(ended.end),
        ended.took.as_secs_f64(),
        ended.level.confinement
    ));
    for missing in &ended.level.missing {
        say.line(&format!("agent    without {missing}"));
    }
    if is_over_quota(engine, generation) {
        let why = "the draft was over its quota, and the agent was ended; its draft is dirty";
        return Err(Refusal::new(Code::QuotaExceeded, why)
            .reason(quota::REASON)
            .name(generation.as_str()));
    }
    let said = draft.opened.disk.path().join("work").join("stderr");
    judge(&ended, job, &said)
}

/// Does something while the daemon is looked after: one that died is started again at its place, so that an agent that
/// sends its call again finds it. The work is cancelled where the daemon ended the volume for being over its quota.
fn attended<T>(engine: &Engine, generation: &Generation, cancel: &Cancel, work: impl FnOnce() -> T) -> T {
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while wait.recv_timeout(limits::HEARTBEAT) == Err(mpsc::RecvTimeoutError::Timeout) {
                if is_over_quota(engine, generation) {
                    return cancel.cancel();
                }
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// Asks the daemon; one that does not answer says nothing.
fn is_over_quota(engine: &Engine, generation: &Generation) -> bool {
    let volume = engine.journal.volume(generation.clone()).ok().flatten();
    volume.is_some_and(|volume| volume.dirty.as_deref() == Some(quota::REASON))
}

fn judge(ended: &Ended, job: &Job, said: &Path) -> Result<(), Refusal> {
    let said = said.display().to_string();
    let dirty =
        |reason: &str, why: String| Err(Refusal::new(Code::DirtyVolume, why).reason(reason).name(&said));
    match (ended.end, ended.tree_ended) {
        (End::Cancelled, _) => dirty("cancelled", "the agent was ended before it was done".to_owned()),
        (End::TimedOut, _) => {
            let after = timeout(job).as_secs();
            Err(Refusal::new(
                Code::TimedOut,
                format!("the agent did not end within {after} s; its draft is dirty"),
            )
            .name(&said))
        }
        (End::Bounded(met), _) => Err(met.refusal("the agent").name(&said)),
        (_, TreeEnded::Unproved) => dirty(
            "process_tree_unproved",
            "something of the agent may live on".to_owned(),
        ),
        (End::Exited(0), TreeEnded::Proved) => Ok(()),
        (end, TreeEnded::Proved) => dirty("agent_failed", format!("the agent {}", in_words(end))),
    }
}

fn in_words(end: End) -> String {
    match end {
        End::Exited(status) => format!("exited with {status}"),
        End::Signalled(signal) => format!("was ended by signal {signal}"),
        End::TimedOut => "passed its deadline".to_owned(),
        End::Cancelled => "was cancelled".to_owned(),
        End::Bounded(met) => format!("was ended: {}", met.in_words()),
    }
}

fn timeout(job: &Job) -> std::time::Duration {
    job.agent.timeout.map_or(limits::AGENT_TIMEOUT, Span::get)
}

fn surroundings(engine: &Engine, job: &Job, beside: &Path, draft: &Draft) -> Result<Around, Refusal> {
    let agent = &job.agent;
    let work = draft.opened.disk.path().join("work");
    let (home, tmp) = (work.join("home"), work.join("tmp"));
    for place in [&work, &home, &tmp] {
        plain::private_directory(place).map_err(host)?;
    }
    for (name, from) in &agent.files {
        let name = RelPath::parse(name.as_bytes())?;
        let to = home.join(OsStr::from_bytes(name.as_bytes()));
        plain::copy_file(&beside.join(from), &to).map_err(host)?;
    }
    let mut read_only: BTreeSet<PathBuf> = draft.alternates.iter().cloned().collect();
    let mut path: Vec<PathBuf> = Vec::new();
    let mut find = |name: &str| -> Result<PathBuf, Refusal> {
        let program = match name.strip_prefix("~/") {
            Some(rest) => home.join(rest),
            None => {
                let program = resolve_program(OsStr::new(name), &engine.config.path).map_err(host)?;
                read_only.extend(toolchain_roots(&program).map_err(host)?);
                program
            }
        };
        if let Some(dir) = program
            .parent()
            .filter(|dir| !path.iter().any(|known| known == dir))
        {
            path.push(dir.to_owned());
        }
        Ok(program)
    };
    let program = find(agent.command.first().map_or("", String::as_str))?;
    for tool in &agent.tools {
        find(tool)?;
    }
    path.extend(
        SYSTEM
            .iter()
            .map(PathBuf::from)
            .filter(|dir| !path.contains(dir))
            .collect::<Vec<_>>(),
    );
    let told = Surroundings {
        path: path.clone(),
        read_only: read_only.iter().cloned().collect(),
        confinement: job.confinement,
        limits: job.limits,
    };
    told.tell(&draft.opened.disk)?;
    let path = std::env::join_paths(path).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
    let gateway = engine.gateway()?;
    // The directory, not the socket: the next life of the daemon makes a new one in it.
    read_only.extend(gateway.socket.parent().map(Path::to_owned));
    Ok(Around {
        home,
        tmp,
        program,
        read_only: read_only.into_iter().collect(),
        path,
        gateway,
    })
}

fn command(engine: &Engine, job: &Job, draft: &Draft, around: &Around) -> Result<Command, Refusal> {
    let volume = &draft.opened.volume;
    let in_home = |arg: &String| match arg.strip_prefix("~/") {
        Some(rest) => around.home.join(rest).into_os_string(),
        None => arg.into(),
    };
    let mut command = Command::new(&around.program, draft.opened.disk.tree_path())
        .args(job.agent.command.iter().skip(1).map(in_home));
    let given = config::environment();
    let passed = job.agent.pass.iter().filter_map(|name| {
        let name = OsString::from(name);
        given.get(&name).map(|value| (name.clone(), value.clone()))
    });
    command.env.extend(passed);
    command.env.extend(
        job.agent
            .env
            .iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    // A client can name no longer path than this to the system.
    let socket = &around.gateway.socket;
    if socket.as_os_str().len() < SOCKET_PATH {
        command.env.insert("SEMEL_SOCKET".into(), socket.into());
    }
    let ours: [(&str, OsString); 11] = [
        ("PATH", around.path.clone()),
        ("HOME", around.home.clone().into()),
        ("TMPDIR", around.tmp.clone().into()),
        ("LANG", "C.UTF-8".into()),
        ("GIT_OPTIONAL_LOCKS", "0".into()),
        ("SEMEL_URL", around.gateway.url.clone().into()),
        ("SEMEL_MCP_URL", format!("{}/mcp", around.gateway.url).into()),
        ("SEMEL_TOKEN", draft.opened.token.clone().into()),
        ("SEMEL_JOB", volume.job.as_str().into()),
        ("SEMEL_ATTEMPT", volume.attempt.to_string().into()),
        ("SEMEL_GENERATION", volume.generation.as_str().into()),
    ];
    command.env.extend(ours.map(|(name, value)| (name.into(), value)));
    command.deadline = Some(timeout(job));
    command.grace = limits::GRACE;
    let meta = draft.opened.disk.path().join("work");
    command.output = Output::Files {
        stdout: meta.join("stdout"),
        stderr: meta.join("stderr"),
        cap_bytes: limits::OUTPUT,
    };
    command.confinement = Confinement::Sandbox(Sandbox {
        tree: draft.opened.disk.tree_path(),
        tree_access: TreeAccess::Writable,
        home: around.home.clone(),
        tmp: around.tmp.clone(),
        hide: engine.config.hidden(),
        read_only: around.read_only.clone(),
        writable: Vec::new(),
        network: Network::Host,
        require: match job.confinement {
            Confine::Require => Require::Full,
            Confine::BestEffort => Require::BestEffort,
        },
        bounds: engine.config.bounds(job.limits),
    });
    Ok(command)
}
