//! Conformance: real effects, counted in fault cases against any gateway that deletes and writes files over HTTP.
//!
//! An adapter says how the target is started, spoken to and looked at; the cases are the same for all of them, and see
//! nothing of a target but its answers and the disk. It is a trial of guards, not a bench: it measures no time.

mod adapter;
mod cases;
mod effect;
pub(crate) mod mcp;
mod respell;
mod speak;
mod table;
mod target;

pub(crate) use semel_host::scratch::Keep;
pub(crate) use table::{Report, Skips};

use super::host;
use super::job::interrupt;
use super::trial::Told;
use super::trial::stage::Stage;
use adapter::Adapter;
use cases::{Bench, CASES, Case, FATAL, Fatal, LAST};
use effect::Watched;
use semel_core::digest::to_hex;
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use semel_host::scratch::Scratch;
use semel_host::{clock, plain};
use speak::{Call, Verb};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use table::{Row, Tale};
use target::{Target, Whereabouts};

const SEMEL: &str = include_str!("adapters/semel.toml");
const NAIVE: &str = include_str!("adapters/naive.toml");
const NAIVE_WORKER: &str = include_str!("../drill/naive_worker.py");

/// The longest adapter.
const ADAPTER_BYTES: u64 = 1 << 20;

/// Says which adapter is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// That of Semel's own gateway.
    Semel,
    /// That of the worker of the incident.
    Naive,
    /// One of a file.
    File(PathBuf),
}

/// Says what is to be tried.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The adapter.
    pub(crate) adapter: Chosen,
    /// Host and port of a target that runs already, with its state root.
    pub(crate) running: Option<Running>,
    /// How often a case is played that chance has a hand in.
    pub(crate) rounds: u32,
    /// Whether the directory stays.
    pub(crate) keep: Keep,
    /// Where programs are looked for.
    pub(crate) path: Vec<PathBuf>,
}

/// Says where a target runs already.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Host and port.
    pub(crate) host: String,
    /// The state root that stands for `{state}`.
    pub(crate) state: PathBuf,
}

/// Plays all cases; `begin` hears the name of each before it is played.
///
/// # Errors
/// `bad_config` where the adapter does not fit or the target's effects cannot be seen; `daemon_unreachable` where
/// the target does not answer; `io_failed` where no directory is to be had. Whatever else goes wrong is a case that is
/// not right.
pub(crate) fn run(wanted: Wanted, begin: &mut dyn FnMut(&'static str)) -> Result<Report, Refusal> {
    let interrupt = interrupt::watch()?;
    let stage = Stage {
        scratch: Scratch::create("semel-conformance", wanted.keep).map_err(host)?,
        path: wanted.path,
        cancel: interrupt.cancel().clone(),
        numbers: AtomicU32::new(0),
    };
    let (adapter, beside) = chosen(&wanted.adapter, &stage)?;
    let running = wanted.running;
    if running.is_none() && adapter.target.is_none() {
        let why = "the adapter starts no target: name one that runs already with --target";
        return Err(Refusal::new(Code::BadConfig, why).name("target.start"));
    }
    let whereabouts = Whereabouts {
        state: running.as_ref().map(|running| running.state.clone()),
        running: running.map(|running| running.host),
        adapter: beside,
    };
    let down = |why: String| {
        Refusal::new(
            Code::DaemonUnreachable,
            format!("the target cannot be used: {why}"),
        )
        .reason("target_unusable")
    };
    let mut bench = Bench {
        target: Target::find(&stage, &adapter, whereabouts).map_err(down)?,
        rounds: wanted.rounds.max(1),
        run: to_hex(&clock::random::<6>().map_err(host)?),
    };
    let ready = bench
        .target
        .lay_out()
        .and_then(|()| bench.target.up())
        .map_err(down);
    let rows = match ready.and_then(|()| seen_at_all(&bench)) {
        Ok(()) => play(&mut bench, begin),
        // Whoever gave up is told so, and nothing of the target.
        Err(_) if interrupt.status().is_some() => Vec::new(),
        Err(refusal) => return Err(refusal),
    };
    let (name, address) = (adapter.name.clone(), bench.target.host.clone());
    drop(bench);
    let kept = stage.scratch.close().map_err(host)?;
    Ok(Report {
        name,
        host: address,
        rows,
        kept,
        interrupted: interrupt.status(),
    })
}

/// Reads the adapter, and says in which directory it lies with what belongs to it.
fn chosen(chosen: &Chosen, stage: &Stage) -> Result<(Adapter, PathBuf), Refusal> {
    let beside = stage.scratch.directory("adapter").map_err(host)?;
    match chosen {
        Chosen::Semel => {
            stage.scratch.write("adapter/semel.toml", "").map_err(host)?;
            Ok((Adapter::parse(SEMEL)?, beside))
        }
        Chosen::Naive => {
            let worker = stage.scratch.write("adapter/naive_worker.py", NAIVE_WORKER);
            worker.map_err(host)?;
            Ok((Adapter::parse(NAIVE)?, beside))
        }
        Chosen::File(file) => {
            let named = || shown(file.as_os_str().as_bytes());
            let bytes = plain::read_file(file, ADAPTER_BYTES).map_err(host)?;
            let text = String::from_utf8(bytes);
            let text =
                text.map_err(|_| Refusal::new(Code::BadConfig, "the adapter is not text").name(named()))?;
            let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            let parent = parent
                .canonicalize()
                .map_err(|e| Refusal::new(Code::BadConfig, format!("no directory: {e}")).name(named()))?;
            Ok((
                Adapter::parse(&text).map_err(|refusal| refusal.name(named()))?,
                parent,
            ))
        }
    }
}

/// Makes sure that effects can be seen: a trial that looks at the wrong disk would find everything right.
fn seen_at_all(bench: &Bench<'_>) -> Result<(), Refusal> {
    let told = try_once(bench);
    bench.target.end_all();
    told.map_err(|why| {
        Refusal::new(
            Code::BadConfig,
            format!("the target's effects cannot be seen: {why}"),
        )
    })
}

fn try_once(bench: &Bench<'_>) -> Told<()> {
    let target = &bench.target;
    let speak = bench.speak();
    let (name, key) = (bench.fresh("first-look"), bench.fresh("k"));
    let workspace = bench.open()?;
    let mut file = Watched::deleted(&workspace.files, name.clone())?;
    if target.adapter.calls.read.is_some() {
        let call = Call {
            verb: Verb::Read,
            path: &name,
            key: None,
        };
        let heard = speak.call(&call, &workspace)?;
        if !heard.success() {
            return Err(format!(
                "a file that was put there cannot be read: {}",
                heard.told
            ));
        }
    }
    let call = Call {
        verb: Verb::Delete,
        path: &name,
        key: Some(&key),
    };
    let heard = speak.call(&call, &workspace)?;
    match (heard.success(), file.look()?) {
        (true, 1) => {}
        (_, 0) => return Err(format!("a delete left its file: {}", heard.told)),
        (_, _) => return Err(format!("a delete took its file, and told: {}", heard.told)),
    }
    if target.adapter.calls.write.is_some() {
        let key = format!("{key}-write");
        let mut file = Watched::written(&workspace.files, format!("{name}-write"), "a first look")?;
        let path = file.name.clone();
        let call = Call {
            verb: Verb::Write("a first look"),
            path: &path,
            key: Some(&key),
        };
        let heard = speak.call(&call, &workspace)?;
        if !heard.success() || file.look()? == 0 {
            return Err(format!("a write is not on the disk: {}", heard.told));
        }
    }
    Ok(())
}

fn play(bench: &mut Bench<'_>, begin: &mut dyn FnMut(&'static str)) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in CASES {
        rows.push(ordinary(case, bench, begin));
    }
    for case in FATAL {
        rows.push(fatal(case, bench, begin));
    }
    rows.push(ordinary(LAST, bench, begin));
    rows
}

fn ordinary(case: &Case, bench: &mut Bench<'_>, begin: &mut dyn FnMut(&'static str)) -> Row {
    begin(case.name);
    if let Some(why) = (case.unfit)(bench) {
        return Row::not_applicable(case.name, case.expected, why);
    }
    let mut tale = Tale::default();
    let end = bench.target.up().and_then(|()| (case.play)(bench, &mut tale));
    bench.target.end_all();
    Row::of(case.name, case.expected, tale, end)
}

fn fatal(case: &Fatal, bench: &mut Bench<'_>, begin: &mut dyn FnMut(&'static str)) -> Row {
    begin(case.name);
    if bench.target.own().is_none() {
        let why = "the target runs already and is not ours to kill; let the adapter start it".to_owned();
        return Row::not_applicable(case.name, case.expected, why);
    }
    let mut tale = Tale::default();
    let end = bench.target.up().and_then(|()| (case.play)(bench, &mut tale));
    bench.target.end_all();
    Row::of(case.name, case.expected, tale, end)
}
