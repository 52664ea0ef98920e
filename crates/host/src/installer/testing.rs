//! The test stage: a command of the job in the sandbox, and the fresh report that it has to leave.
//!
//! Installed and source trees are read-only, the network is a loopback device, the environment is a list. It
//! counts nothing itself: core reads the report.

use super::plan::{Isolation, Plan, SYSTEM_PATH, private_dir};
use crate::error::{Error, Result};
use crate::process::{Cancel, Command, Confinement, End, Ended, Output, TreeEnded, run};
use crate::sandbox::{Network, Sandbox, TreeAccess};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use semel_core::confinement::Level;
use semel_core::installer::Installer;
use semel_core::path::shown;
use semel_core::report::{self, Counts, Ending};
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An argument of a test command in which this text stands for the path of the report.
const PLACEHOLDER: &str = "{report}";
const CAPTURED: u64 = report::LONGEST_REPORT;

/// Says where the report of a test command comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportFrom {
    /// From the command itself: pytest is told to write one, `cargo test` prints one, and any other command has
    /// an argument with `{report}` in it.
    Command,
    /// From a JUnit file beneath the tree, inside a declared writable directory.
    File(RelPath),
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
    let mut ended = run(&command, cancel)?;
    let ending = match ended.end {
        End::Exited(status) => Ending::Exit(status),
        End::Signalled(signal) => Ending::Signal(signal),
        End::TimedOut => {
            let seconds = plan.deadline.as_secs_f64();
            let why = format!("the tests did not end within {seconds} seconds");
            return Ok(outcome(ended, Err(Refusal::new(Code::TimedOut, why)), None));
        }
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
        Source::File { root, path } => match read_report(root, path) {
            Ok(Some(bytes)) => {
                let parsed = report::junit(&bytes);
                (Some(bytes), parsed)
            }
            Ok(None) => (None, Err(report::without_report(ending))),
            Err(Error::Refused(refusal)) => (None, Err(refusal)),
            Err(error) => return Err(error),
        },
    };
    let verdict = parsed.and_then(|report| report::verdict(&report, ending));
    Ok(outcome(ended, verdict, bytes))
}

fn outcome(ended: Ended, verdict: std::result::Result<Counts, Refusal>, bytes: Option<Vec<u8>>) -> TestRun {
    TestRun {
        verdict,
        report_sha256: bytes.as_deref().map(Sha256::of),
        report: bytes,
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

fn too_long() -> Refusal {
    Refusal::new(Code::EvidenceForeign, "the report is longer than 64 MiB").reason("report_too_long")
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
            private_dir(dir)?;
        }
        Ok(places)
    }
}

/// Where the report is found.
enum Source {
    Stdout,
    File { root: PathBuf, path: RelPath },
}

/// The command as it is run.
struct Runner {
    program: PathBuf,
    args: Vec<OsString>,
    source: Source,
}

const REPORT_NAME: &[u8] = b"report/junit.xml";

impl Runner {
    fn of(plan: &TestPlan<'_>, places: &Places) -> Result<Self> {
        let Some((name, args)) = plan.command.split_first() else {
            return Err(Refusal::new(Code::BadConfig, "the test command is empty").into());
        };
        let mut args = args.to_vec();
        let program = find_program(plan, name)?;
        let ours = places.home.join(OsStr::from_bytes(REPORT_NAME));
        let placed = args
            .iter_mut()
            .filter(|arg| contains(arg, PLACEHOLDER))
            .map(|arg| {
                *arg = replaced(arg, PLACEHOLDER, ours.as_os_str());
            });
        let placed = placed.count() > 0;
        let beneath_home = || -> Result<Source> {
            Ok(Source::File {
                root: places.home.clone(),
                path: RelPath::parse(REPORT_NAME)?,
            })
        };
        let source = if let ReportFrom::File(path) = &plan.report {
            Source::File {
                root: plan.tree.clone(),
                path: path.clone(),
            }
        } else if placed {
            beneath_home()?
        } else if is_pytest(name, &args) {
            let mut report = OsString::from("--junitxml=");
            report.push(&ours);
            let mut cache = OsString::from("cache_dir=");
            cache.push(places.home.join("pytest-cache"));
            insert(&mut args, [report, "-o".into(), cache]);
            beneath_home()?
        } else if let Some(at) = cargo_test_at(name, &args) {
            for flag in ["--offline", "--locked"] {
                if !args.iter().any(|arg| arg == flag) {
                    args.insert(at + 1, flag.into());
                }
            }
            Source::Stdout
        } else {
            let why = "the test command leaves no report that is known; name one with `report`, or put {report} \
                       into an argument";
            return Err(Refusal::new(Code::BadConfig, why)
                .name(shown(name.as_bytes()))
                .into());
        };
        Ok(Self {
            program,
            args,
            source,
        })
    }
}

fn base_name(name: &OsStr) -> &[u8] {
    Path::new(name).file_name().unwrap_or_default().as_bytes()
}

/// `pytest …`, `py.test …`, `python3 -m pytest …`.
fn is_pytest(name: &OsStr, args: &[OsString]) -> bool {
    let name = base_name(name);
    if matches!(name, b"pytest" | b"py.test") {
        return true;
    }
    let module = args
        .iter()
        .position(|arg| arg == "-m")
        .and_then(|at| args.get(at + 1));
    name.starts_with(b"python") && module.is_some_and(|module| module == "pytest")
}

/// Finds `test` in `cargo [+toolchain] [options] test …`.
fn cargo_test_at(name: &OsStr, args: &[OsString]) -> Option<usize> {
    let command = args.iter().position(|arg| !arg.as_bytes().starts_with(b"-"))?;
    let known = base_name(name) == b"cargo" && matches!(args[command].as_bytes(), b"test" | b"t");
    known.then_some(command)
}

/// Puts options before the `--` of a command, or at its end.
fn insert(args: &mut Vec<OsString>, options: [OsString; 3]) {
    let at = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    args.splice(at..at, options);
}

fn contains(arg: &OsStr, part: &str) -> bool {
    arg.as_bytes()
        .windows(part.len())
        .any(|window| window == part.as_bytes())
}

fn replaced(arg: &OsStr, part: &str, with: &OsStr) -> OsString {
    let bytes = arg.as_bytes();
    let at = bytes
        .windows(part.len())
        .position(|window| window == part.as_bytes());
    let Some(at) = at else {
        return arg.to_owned();
    };
    let mut whole = bytes[..at].to_vec();
    whole.extend_from_slice(with.as_bytes());
    whole.extend_from_slice(&bytes[at + part.len()..]);
    OsString::from_vec(whole)
}

/// The directories in which programs are found by name: what was installed, its toolchains, the system.
fn search(plan: &TestPlan<'_>) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for installed in plan.installed {
        match installed.tools.installer() {
            Installer::Uv | Installer::Pip => dirs.push(super::environment(installed).join("bin")),
            Installer::Npm => dirs.push(super::environment(installed).join(".bin")),
            Installer::Cargo => {}
        }
    }
    for installed in plan.installed {
        dirs.extend(installed.tools.program_dirs());
    }
    dirs.extend(SYSTEM_PATH.split(':').map(PathBuf::from));
    dirs
}

fn find_program(plan: &TestPlan<'_>, name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(plan.tree.join(name));
    }
    let found = search(plan)
        .into_iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let why = "the test program is neither installed nor one of the system";
        Refusal::new(Code::NotFound, why)
            .name(shown(name.as_bytes()))
            .into()
    })
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
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => private_dir(&dir)?,
                Err(e) => return Err(Error::io("look at", &dir, e)),
            }
        }
        dirs.push(dir);
    }
    Ok(dirs)
}

/// A report that is there before the tests proves nothing about them.
fn refuse_present(plan: &TestPlan<'_>, path: &RelPath) -> Result<()> {
    if open_beneath(&plan.tree, path)?.is_none() {
        return Ok(());
    }
    let why = "the report is there before the tests ran";
    Err(Refusal::new(Code::EvidenceForeign, why)
        .reason("not_fresh")
        .name(path.to_string())
        .into())
}

/// Opens a file beneath a directory without following any link; `None` where it is not there.
fn open_beneath(root: &Path, path: &RelPath) -> Result<Option<OwnedFd>> {
    let root_fd = rustix::fs::openat(
        CWD,
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|e| Error::io("open", root, e))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let name = OsStr::from_bytes(path.as_bytes());
    match rustix::fs::openat2(root_fd.as_fd(), name, flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(Errno::LOOP | Errno::XDEV) => {
            let why = "the report lies behind a link";
            Err(Refusal::new(Code::EvidenceForeign, why)
                .name(path.to_string())
                .into())
        }
        Err(e) => Err(Error::io("open", root.join(name), e)),
    }
}

/// Reads the report that a run left; it must be a plain file with one name.
fn read_report(root: &Path, path: &RelPath) -> Result<Option<Vec<u8>>> {
    let Some(fd) = open_beneath(root, path)? else {
        return Ok(None);
    };
    let file = std::fs::File::from(fd);
    let place = root.join(OsStr::from_bytes(path.as_bytes()));
    let facts = file.metadata().map_err(|e| Error::io("look at", &place, e))?;
    if !facts.is_file() || facts.nlink() != 1 {
        let why = "the report is not a plain file with one name";
        return Err(Refusal::new(Code::EvidenceForeign, why)
            .name(path.to_string())
            .into());
    }
    let mut bytes = Vec::new();
    let mut bounded = file.take(report::LONGEST_REPORT + 1);
    bounded
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", &place, e))?;
    if bytes.len() as u64 > report::LONGEST_REPORT {
        return Err(too_long().name(path.to_string()).into());
    }
    Ok(Some(bytes))
}
