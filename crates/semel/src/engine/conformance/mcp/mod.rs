//! Conformance of a server of tools that speaks the Model Context Protocol: real effects on files, counted in fault cases.
//!
//! It needs to know nothing of a server but how it is started: tools that write, edit and read are found by their names
//! and arguments, and where the files lie by looking for one that was written.

mod cases;
mod server;
mod tools;

use super::table::{Report, Row, Tale};
use super::{Keep, Stage, Told, host, interrupt};
use cases::{Bench, CASES};
use semel_core::{Code, Refusal, words};
use semel_host::scratch::Scratch;
use serde_json::json;
use server::{Server, Started, To};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use tools::Tools;

/// Says what is to be tried.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// A command in one line, `semel` for this very program, or a URL.
    pub(crate) server: String,
    /// Where the files of a server lie that listens.
    pub(crate) files: Option<PathBuf>,
    /// How often a case is played that chance has a hand in.
    pub(crate) rounds: u32,
    /// Whether the directory stays.
    pub(crate) keep: Keep,
    /// Where programs are looked for.
    pub(crate) path: Vec<PathBuf>,
}

/// How this very program is started: a bridge, with a daemon of its own.
const SEMEL: &str = "{semel} --quiet --state {state} --config {config} mcp --job conformance";

/// Plays all cases; `begin` hears the name of each before it is played.
///
/// # Errors
/// `bad_config` where the server has no tools that write and edit files, or its effects cannot be seen;
/// `daemon_unreachable` where it does not start; `usage`, `bad_input` for a command that is none; `io_failed`.
pub(crate) fn run(wanted: Wanted, begin: &mut dyn FnMut(&'static str)) -> Result<Report, Refusal> {
    let interrupt = interrupt::watch()?;
    let stage = Stage {
        scratch: Scratch::create("semel-conformance", wanted.keep).map_err(host)?,
        path: wanted.path,
        cancel: interrupt.cancel().clone(),
        numbers: AtomicU32::new(0),
    };
    let to = to(&wanted.server, wanted.files, &stage)?;
    let down = |why: String| {
        Refusal::new(
            Code::DaemonUnreachable,
            format!("the server cannot be used: {why}"),
        )
        .reason("target_unusable")
    };
    let blind = |why: String| {
        Refusal::new(
            Code::BadConfig,
            format!("the server's effects cannot be seen: {why}"),
        )
    };
    let mut started = Started::new(&stage, to);
    let mut server = started.start().map_err(down)?;
    let name = server.name.clone();
    let listed = server.tools().map_err(down)?;
    let tools = Tools::find(&listed).map_err(blind)?;
    let files = find_files(&stage, &started, &mut server, &tools).map_err(blind)?;
    drop(server);
    let mut bench = Bench {
        started: &mut started,
        tools: &tools,
        files: &files,
        outside: Scratch::lent(stage.scratch.directory("outside").map_err(host)?).map_err(host)?,
        rounds: wanted.rounds.max(1),
        numbers: 0,
    };
    let mut rows = Vec::new();
    for case in CASES {
        begin(case.name);
        if interrupt.status().is_some() {
            break;
        }
        rows.push(match (case.unfit)(&bench) {
            Some(why) => Row::not_applicable(case.name, case.expected, why),
            None => {
                let mut tale = Tale::default();
                let end = (case.play)(&mut bench, &mut tale);
                Row::of(case.name, case.expected, tale, end)
            }
        });
    }
    drop(bench);
    drop(started);
    let kept = stage.scratch.close().map_err(host)?;
    Ok(Report {
        name,
        host: wanted.server,
        rows,
        kept,
        interrupted: interrupt.status(),
    })
}

/// Reads how the server is reached, and lays out what it finds.
fn to(server: &str, files: Option<PathBuf>, stage: &Stage) -> Result<To, Refusal> {
    if server.starts_with("http://") {
        let files = files.ok_or_else(|| {
            Refusal::new(
                Code::Usage,
                "of a server that listens, --files says where its files lie",
            )
        })?;
        return To::url(server, Scratch::lent(files).map_err(host)?);
    }
    let ours = server == "semel";
    let state = stage.scratch.directory("state").map_err(host)?;
    let dir = stage.scratch.directory("files").map_err(host)?;
    stage.scratch.directory("home").map_err(host)?;
    // Its volumes are plain directories: nothing is left mounted.
    let config = stage
        .scratch
        .write("config.toml", "[volumes]\nbackend = \"dir\"\n")
        .map_err(host)?;
    let fill = |text: &str| {
        text.replace("{dir}", &dir.display().to_string())
            .replace("{state}", &state.display().to_string())
            .replace("{config}", &config.display().to_string())
            .replace("{semel}", &Stage::semel_path().display().to_string())
    };
    let split = |line: &str| -> Result<Vec<String>, Refusal> {
        Ok(words::split(line)?.iter().map(|word| fill(word)).collect())
    };
    Ok(To::Command {
        command: split(if ours { SEMEL } else { server })?,
        daemon: match ours {
            true => split("{semel} --quiet --json --state {state} --config {config} serve")?,
            false => Vec::new(),
        },
        files: files.map(Scratch::lent).transpose().map_err(host)?,
    })
}

/// Finds where the files of a server lie: one is written, and looked for.
fn find_files(stage: &Stage, started: &Started<'_>, server: &mut Server, tools: &Tools) -> Told<Scratch> {
    let name = "semel-first-look.txt";
    let (text, mut told) = ("a first look\n", Vec::new());
    let absolute = started.dir().map(|dir| dir.join(name).display().to_string());
    for path in [Some(name.to_owned()), absolute].into_iter().flatten() {
        let heard = server.call(&tools.write.call(&path, text))?;
        let found = match &started.to {
            To::Url { files, .. }
            | To::Command {
                files: Some(files), ..
            } => files
                .exists(name)
                .is_ok_and(|there| there)
                .then(|| files.path().to_owned()),
            To::Command { files: None, .. } => {
                stage.scratch.find(name).map_err(super::super::trial::hands)?
            }
        };
        if let Some(root) = found {
            let files = Scratch::lent(&root).map_err(super::super::trial::hands)?;
            if files.read(name).ok().flatten().as_deref() == Some(text.as_bytes()) {
                files.remove(name).map_err(super::super::trial::hands)?;
                tools.rooted(if path == name { None } else { Some(root) });
                return Ok(files);
            }
        }
        told.push(heard.told);
    }
    Err(format!("a file that was written is not found: {}", json!(told)))
}
