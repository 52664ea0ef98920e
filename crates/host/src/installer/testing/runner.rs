//! Recognises a test command, and arranges for the report that it leaves.
//!
//! It knows pytest, `cargo test`, `cargo nextest run`, `node --test`, mocha and vitest; every other command names the place of its report itself.

use super::super::{environment, plan::SYSTEM_PATH};
use super::{Places, ReportFrom, TestPlan, dry};
use crate::error::Result;
use semel_core::installer::Installer;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// An argument of a test command in which this text stands for the path of the report.
const PLACEHOLDER: &str = "{report}";

/// Where the report is found.
pub(super) enum Source {
    Stdout,
    File { root: PathBuf, path: RelPath },
}

/// The command as it is run.
pub(super) struct Runner {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) source: Source,
}

const REPORT_NAME: &[u8] = b"report/junit.xml";

impl Runner {
    pub(super) fn of(plan: &TestPlan<'_>, places: &Places) -> Result<Self> {
        let Some((name, args)) = plan.command.split_first() else {
            return Err(Refusal::new(Code::BadConfig, "the test command is empty").into());
        };
        dry::refuse(&plan.command)?;
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
        } else if let Some((at, flags)) = node_runner(name, &args) {
            let ours = ours.as_os_str();
            args.splice(
                at..at,
                flags
                    .iter()
                    .map(|flag| replaced(flag.as_ref(), PLACEHOLDER, ours)),
            );
            beneath_home()?
        } else if let Some(at) = nextest_run_at(name, &args) {
            let mut given = OsString::from("semel:");
            given.push(nextest_config(places, &ours)?);
            args.splice(at + 1..at + 1, ["--tool-config-file".into(), given]);
            for flag in ["--offline", "--locked"] {
                if !args.iter().any(|arg| arg == flag) {
                    args.insert(at + 1, flag.into());
                }
            }
            beneath_home()?
        } else {
            return Err(no_report(name).into());
        };
        dry::override_settings(name, &mut args);
        Ok(Self {
            program,
            args,
            source,
        })
    }
}

/// Checks, before anything is installed, that a test command leaves a report that is known.
///
/// # Errors
/// `bad_config` for an empty command, for one whose report is not known, and, reason `dry_run`, for one that asks for a run
/// without tests.
pub fn check_report(command: &[OsString], report: &ReportFrom) -> Result<()> {
    let Some((name, args)) = command.split_first() else {
        return Err(Refusal::new(Code::BadConfig, "the test command is empty").into());
    };
    dry::refuse(command)?;
    let known = matches!(report, ReportFrom::File(_))
        || args.iter().any(|arg| contains(arg, PLACEHOLDER))
        || is_pytest(name, args)
        || node_runner(name, args).is_some()
        || cargo_test_at(name, args).is_some()
        || nextest_run_at(name, args).is_some();
    if known {
        Ok(())
    } else {
        Err(no_report(name).into())
    }
}

fn no_report(name: &OsStr) -> Refusal {
    let why = "the test command leaves no report that is known; name one with `report` in the job file, or put \
               {report} into an argument";
    Refusal::new(Code::BadConfig, why).name(shown(name.as_bytes()))
}

pub(super) fn base_name(name: &OsStr) -> &[u8] {
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

/// Finds `test` in `cargo [flags] test …`; the toolchain was chosen before, so there is no `+name`.
fn cargo_test_at(name: &OsStr, args: &[OsString]) -> Option<usize> {
    let command = args.iter().position(|arg| !arg.as_bytes().starts_with(b"-"))?;
    let known = base_name(name) == b"cargo" && matches!(args[command].as_bytes(), b"test" | b"t");
    known.then_some(command)
}

/// Says where a runner of JavaScript is told to write its report, and how; one that is told of a reporter already is the
/// job's own business.
fn node_runner(name: &OsStr, args: &[OsString]) -> Option<(usize, &'static [&'static str])> {
    let told = |arg: &OsString| {
        let marks: [&[u8]; 3] = [b"--reporter", b"--test-reporter", b"-R"];
        marks.iter().any(|mark| arg.as_bytes().starts_with(mark))
    };
    if args.iter().any(told) {
        return None;
    }
    match base_name(name) {
        b"node" => {
            let at = args.iter().position(|arg| !arg.as_bytes().starts_with(b"-"));
            let flags = &args[..at.unwrap_or(args.len())];
            let at = flags.iter().position(|arg| arg == "--test")?;
            Some((
                at + 1,
                // TAP, since in its JUnit XML a suite without a test looks like a test.
                &["--test-reporter=tap", "--test-reporter-destination={report}"],
            ))
        }
        b"mocha" => Some((
            0,
            &["--reporter", "xunit", "--reporter-option", "output={report}"],
        )),
        b"vitest" => {
            let run = args.first().is_some_and(|arg| arg == "run");
            run.then_some((1, &["--reporter=junit", "--outputFile={report}"]))
        }
        _ => None,
    }
}

/// Finds `run` in `cargo [flags] nextest run …`.
fn nextest_run_at(name: &OsStr, args: &[OsString]) -> Option<usize> {
    let mut words = (0..args.len()).filter(|at| !args[*at].as_bytes().starts_with(b"-"));
    let (first, second) = (words.next()?, words.next()?);
    let known = base_name(name) == b"cargo"
        && args[first] == "nextest"
        && matches!(args[second].as_bytes(), b"run" | b"r");
    known.then_some(second)
}

/// Tells nextest where its report goes, and its own notes, since it keeps them in the tree otherwise.
fn nextest_config(places: &Places, report: &Path) -> Result<PathBuf> {
    let text = |path: &Path| {
        let path = path.to_str().ok_or_else(|| {
            let why = "nextest takes no path that is not UTF-8";
            Refusal::new(Code::BadConfig, why).name(shown(path.as_os_str().as_bytes()))
        })?;
        // As TOML writes a text, a JSON text is one.
        Ok::<_, Refusal>(serde_json::Value::from(path).to_string())
    };
    let config = format!(
        "[store]\ndir = {}\n[profile.default.junit]\npath = {}\n",
        text(&places.home.join("nextest"))?,
        text(report)?
    );
    let place = places.home.join("nextest.toml");
    crate::plain::write_file(&place, config.as_bytes())?;
    Ok(place)
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
    let (mut whole, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some(at) = rest
        .windows(part.len())
        .position(|window| window == part.as_bytes())
    {
        whole.extend_from_slice(&rest[..at]);
        whole.extend_from_slice(with.as_bytes());
        rest = &rest[at + part.len()..];
    }
    whole.extend_from_slice(rest);
    OsString::from_vec(whole)
}

/// The directories in which programs are found by name: what was installed, its toolchains, the system. What a command of
/// the job installed, which nothing binds, stands before the system alone.
pub(super) fn search(plan: &TestPlan<'_>) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for installed in plan.installed {
        match installed.tools.installer() {
            Installer::Uv | Installer::Pip | Installer::Poetry => {
                dirs.push(environment(installed).join("bin"));
            }
            Installer::Npm | Installer::Pnpm | Installer::Yarn => {
                dirs.push(environment(installed).join(".bin"))
            }
            Installer::Cargo => {}
        }
    }
    let tools = plan
        .installed
        .iter()
        .flat_map(|installed| installed.tools.program_dirs());
    // A toolchain of the system stands there, or `python` would be that of the system, too.
    let (of_system, own): (Vec<PathBuf>, Vec<PathBuf>) =
        tools.partition(|dir| SYSTEM_PATH.split(':').any(|system| Path::new(system) == dir));
    dirs.extend(own);
    dirs.extend(plan.commanded.iter().flat_map(|commanded| commanded.bins.clone()));
    dirs.extend(of_system);
    dirs.extend(
        plan.commanded
            .iter()
            .flat_map(|commanded| commanded.tools.node_dir()),
    );
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
            .reason("test_program")
            .name(shown(name.as_bytes()))
            .into()
    })
}
