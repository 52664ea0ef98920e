//! The test stage: a command of the job in the sandbox, and the fresh report that it has to leave.
//!
//! Installed and source trees are read-only, the network is a loopback device, the environment is a list. It
//! counts nothing itself: core reads the report.

mod dry;
mod evidence;
mod runner;

pub use runner::check_report;

use super::plan::{Isolation, Plan};
use super::toolchain::CommandTools;
use crate::error::{Error, Result};
use crate::plain::{hand_over, private_directory};
use crate::process::{Cancel, Command, Confinement, End, Ended, Output, TreeEnded, run};
use crate::sandbox::{Network, Sandbox, TreeAccess};
use evidence::{read_report, refuse_present, too_long};
use runner::{Runner, Source, search};
use semel_core::confinement::Level;
use semel_core::installer::Installer;
use semel_core::path::shown;
use semel_core::report::{self, Counts, Ending, Format};
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

const CAPTURED: u64 = report::LONGEST_REPORT;

/// Says where the report of a test command comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportFrom {
    /// From the command itself: pytest and others are told to write one, `cargo test` prints one, and any other command
    /// has an argument with `{report}` in it.
    Command,
    /// From a file of JUnit or TAP beneath the tree, inside a declared writable directory.
    File(RelPath),
}

/// Says where the tests find what a command installed.
#[derive(Clone, Debug)]
pub struct Commanded<'a> {
    /// The directories of programs in the environments that it made.
    pub bins: Vec<PathBuf>,
    /// The tools that it had.
    pub tools: &'a CommandTools,
}

/// Says what is tested, and how.
#[derive(Clone, Debug)]
pub struct TestPlan<'a> {
    /// The tree of the generation.
    pub tree: PathBuf,
    /// A directory for this one run: homes, report, build output. It must not be there yet.
    pub home: PathBuf,
    /// What was installed.
    pub installed: &'a [Plan],
    /// What a command of the job installed.
    pub commanded: Option<Commanded<'a>>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Where the report comes from.
    pub report: ReportFrom,
    /// The variables that the job names; none that says where things are.
    pub env: BTreeMap<OsString, OsString>,
    /// Directories beneath the tree that tools write into, such as caches.
    pub writable: Vec<RelPath>,
    /// How long it may take.
    pub deadline: Duration,
    /// How long after being asked to end it is killed.
    pub grace: Duration,
    /// What surrounds it.
    pub isolation: Isolation,
}

/// Holds what came of a test command that began.
#[derive(Clone, Debug)]
pub struct TestRun {
    /// The counts of a run in which every test held, or why it proves nothing.
    pub verdict: std::result::Result<Counts, Refusal>,
    /// The report, where a fresh one was left; what `cargo test` printed.
    pub report: Option<Vec<u8>>,
    /// Its digest.
    pub report_sha256: Option<Sha256>,
    /// Its format.
    pub format: Option<Format>,
    /// The end of what the command wrote to standard output.
    pub stdout: Vec<u8>,
    /// The end of what the command wrote to standard error.
    pub stderr: Vec<u8>,
    /// How well it was confined.
    pub level: Level,
    /// Whether every process of it is known to have ended.
    pub tree_ended: TreeEnded,
    /// How long it ran.
    pub took: Duration,
}

/// Runs a test command once, and reads the report that it left.
///
/// The verdict refuses with `tests_failed` for failed tests (naming up to twenty) or a failing exit, with
/// `timed_out` past the deadline, and with `evidence_foreign` where no test ran or no fresh report was left.
///
/// # Errors
/// Where the command did not begin: `evidence_foreign` where a report, or the directory of the run, is there
/// before it; `bad_config` for an empty command, or one whose report is not known; `not_found` for an unknown program; else as
/// [`run`](crate::process::run).
pub fn run_tests(plan: &TestPlan<'_>, cancel: &Cancel) -> Result<TestRun> {
    let places = Places::make(plan)?;
    let runner = Runner::of(plan, &places)?;
    if let ReportFrom::File(path) = &plan.report {
        refuse_present(plan, path)?;
    }
    let command = build(plan, &places, &runner)?;
    let began = crate::clock::now();
    let mut ended = run(&command, cancel)?;
    let ending = match ended.end {
        End::Exited(status) => Ending::Exit(status),
        End::Signalled(signal) => Ending::Signal(signal),
        End::TimedOut => {
            let seconds = plan.deadline.as_secs_f64();
            let why = format!("the tests did not end within {seconds} seconds");
            return Ok(outcome(ended, Err(Refusal::new(Code::TimedOut, why)), None));
        }
        End::Bounded(met) => return Ok(outcome(ended, Err(met.refusal("the test command")), None)),
        End::Cancelled => {
            let why = Refusal::new(Code::TestsFailed, "the tests were cancelled").reason("cancelled");
            return Ok(outcome(ended, Err(why), None));
        }
    };
    let (bytes, parsed) = match &runner.source {
        Source::Stdout => {
            let whole = ended.truncated.stdout_bytes == 0;
            let bytes = std::mem::take(&mut ended.stdout);
            let parsed = if whole {
                report::cargo_test(&bytes, ending)
            } else {
                Err(too_long())
            };
            ended.stdout = tail(&bytes);
            (Some(bytes), parsed)
        }
        Source::File { root, path } => match read_report(root, path, began) {
            Ok(Some(bytes)) => {
                let parsed = report::file(&bytes);
                (Some(bytes), parsed)
            }
            Ok(None) => (None, Err(report::without_report(ending))),
            Err(Error::Refused(refusal)) => (None, Err(refusal)),
            Err(error) => return Err(error),
        },
    };
    let format = bytes.as_deref().map(|bytes| match &runner.source {
        Source::Stdout => Format::CargoTest,
        Source::File { .. } => Format::of_file(bytes),
    });
    let verdict = parsed.and_then(|mut report| {
        report.leave_out_files(|name| is_file_of(plan, name));
        report::of_this_run(&report, began)?;
        report::verdict(&report, ending)
    });
    Ok(TestRun {
        format,
        ..outcome(ended, verdict, bytes)
    })
}

/// Says whether the name of a test is the path of what the command could run: beneath the tree or the directories of the run,
/// be it there still or not, or any that is there. One that is relative, as any word may be, is a module, or stands in the
/// command.
fn is_file_of(plan: &TestPlan<'_>, name: &str) -> bool {
    let path = std::path::Path::new(name);
    if path.is_absolute() {
        return path.starts_with(&plan.tree) || path.starts_with(&plan.home) || path.is_file();
    }
    let said = |argument: &OsString| {
        argument
            .to_string_lossy()
            .split_whitespace()
            .any(|word| word == name)
    };
    plan.tree.join(path).exists() && (report::is_module(name) || plan.command.iter().any(said))
}

fn outcome(ended: Ended, verdict: std::result::Result<Counts, Refusal>, bytes: Option<Vec<u8>>) -> TestRun {
    TestRun {
        verdict,
        report_sha256: bytes.as_deref().map(Sha256::of),
        report: bytes,
        format: None,
        stdout: tail(&ended.stdout),
        stderr: tail(&ended.stderr),
        level: ended.level,
        tree_ended: ended.tree_ended,
        took: ended.took,
    }
}

/// Keeps the end of a stream.
fn tail(bytes: &[u8]) -> Vec<u8> {
    const KEPT: usize = 64 << 10;
    bytes[bytes.len().saturating_sub(KEPT)..].to_vec()
}

/// The directories of one run.
struct Places {
    home: PathBuf,
    user: PathBuf,
    tmp: PathBuf,
    report: PathBuf,
}

impl Places {
    fn make(plan: &TestPlan<'_>) -> Result<Self> {
        if super::there(&plan.home) {
            let why = "the directory of this run is there before the run";
            let name = shown(plan.home.as_os_str().as_bytes());
            return Err(Refusal::new(Code::EvidenceForeign, why)
                .reason("not_fresh")
                .name(name)
                .into());
        }
        let places = Self {
            home: plan.home.clone(),
            user: plan.home.join("user"),
            tmp: plan.home.join("tmp"),
            report: plan.home.join("report"),
        };
        for dir in [&places.user, &places.tmp, &places.report] {
            private_directory(dir)?;
        }
        Ok(places)
    }
}

fn build(plan: &TestPlan<'_>, places: &Places, runner: &Runner) -> Result<Command> {
    let path = std::env::join_paths(search(plan))
        .map_err(|_| Refusal::new(Code::BadConfig, "a directory of a toolchain holds a colon"))?;
    let mut command = Command::new(&runner.program, &plan.tree)
        .args(&runner.args)
        .var("PATH", path)
        .var("HOME", places.user.as_os_str())
        .var("TMPDIR", places.tmp.as_os_str())
        .var("LANG", "C.UTF-8")
        .var("PYTHONDONTWRITEBYTECODE", "1")
        .var("PYTHONNOUSERSITE", "1");
    let mut read_only = plan.isolation.read_only.clone();
    read_only.extend(
        plan.commanded
            .iter()
            .flat_map(|commanded| commanded.tools.roots()),
    );
    for installed in plan.installed {
        read_only.extend(installed.tools.roots());
        if let super::Tools::Cargo { rustc, .. } = &installed.tools {
            let home = super::cargo::home(installed);
            command = command
                .var("CARGO_HOME", home.as_os_str())
                .var("CARGO_TARGET_DIR", places.home.join("target"))
                .var("CARGO_NET_OFFLINE", "true")
                .var("RUSTC", rustc.path.as_os_str());
            read_only.push(home);
        }
    }
    let installed = |of: &[Installer]| {
        let mut all = plan.installed.iter().map(|installed| installed.tools.installer());
        plan.commanded.is_some() || all.any(|one| of.contains(&one))
    };
    let node = installed(&[Installer::Npm, Installer::Pnpm, Installer::Yarn]);
    for (name, value) in dry::variables(node, installed(&[Installer::Cargo])) {
        command = command.var(name, value);
    }
    if let Some(name) = plan
        .env
        .keys()
        .find(|name| command.env.contains_key(*name) && *name != "LANG")
    {
        let why = "a job may not set a variable that says where the tests find and put things";
        return Err(Refusal::new(Code::BadConfig, why)
            .name(shown(name.as_bytes()))
            .into());
    }
    command.env.extend(plan.env.clone());
    command.deadline = Some(plan.deadline);
    command.grace = plan.grace;
    command.output = Output::Capture { cap_bytes: CAPTURED };
    command.confinement = Confinement::Sandbox(Sandbox {
        tree: plan.tree.clone(),
        tree_access: TreeAccess::ReadOnly,
        home: places.home.clone(),
        tmp: places.tmp.clone(),
        hide: plan.isolation.hide.clone(),
        read_only,
        writable: writable(plan)?,
        network: Network::Loopback,
        require: plan.isolation.require,
        bounds: plan.isolation.bounds,
    });
    Ok(command)
}

/// Makes the declared directories; a link on the way is refused.
fn writable(plan: &TestPlan<'_>) -> Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    for declared in &plan.writable {
        let mut dir = plan.tree.clone();
        for part in declared.components() {
            dir.push(OsStr::from_bytes(part));
            match std::fs::symlink_metadata(&dir) {
                Ok(facts) if facts.is_dir() => {}
                Ok(_) => {
                    let why = "a declared writable directory leads through what is no directory";
                    let name = declared.to_string();
                    return Err(Refusal::new(Code::PathEscapesRoot, why).name(name).into());
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    private_directory(&dir)?;
                    hand_over(&dir)?;
                }
                Err(e) => return Err(Error::io("look at", &dir, e)),
            }
        }
        dirs.push(dir);
    }
    Ok(dirs)
}
