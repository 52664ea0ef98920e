//! What one installer is to do for one generation, and how a step of it is run.
//!
//! A step is one command in the sandbox. Which steps there are is the business of each installer's file.

use super::toolchain::Tools;
use crate::artifact::Store;
use crate::error::Result;
use crate::files::read_file;
use crate::plain::private_directory;
use crate::process::{Cancel, Command, Confinement, End, Ended, Output, TreeEnded, run};
use crate::root::Root;
use crate::sandbox::{Network, Require, Sandbox, TreeAccess};
use semel_core::confinement::Level;
use semel_core::installer::ProjectInstall;
use semel_core::path::shown;
use semel_core::{Bounds, Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where programs of the system are found inside.
pub(super) const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const CAPTURED: u64 = 16 << 20;
/// The largest manifest, lock or local archive that is read.
pub(super) const LARGEST_TEXT: u64 = 256 << 20;
const LAST_LINES: usize = 40;
const LONGEST_LINE: usize = 300;

/// Says what surrounds every command of a job.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// Directories whose content is never seen inside, such as the state root and the homes.
    pub hide: Vec<PathBuf>,
    /// Further things that are read at their own paths, also below hidden ones.
    pub read_only: Vec<PathBuf>,
    /// What is done where a part of the sandbox cannot be had.
    pub require: Require,
    /// What bounds each command, with all that it starts.
    pub bounds: Bounds,
}

/// Says what one installer is to do for one generation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tree of the generation; absolute.
    pub tree: PathBuf,
    /// Where manifest and lock lie beneath the tree; the root itself for most projects.
    pub directory: RelPath,
    /// A directory of this generation alone, outside of the tree, for homes, caches and fetched artifacts.
    pub home: PathBuf,
    /// The resolved toolchain; it decides which installer runs.
    pub tools: Tools,
    /// Where artifacts are kept beyond this generation.
    pub artifacts: Store,
    /// What becomes of the project's own package.
    pub project: ProjectInstall,
    /// Selections such as `--all-groups`; everything else is refused.
    pub args: Vec<String>,
    /// The operator's index, proxy, CA and credentials: for the fetch stage alone.
    pub network_env: BTreeMap<OsString, OsString>,
    /// How long a whole stage may take.
    pub deadline: Duration,
    /// How long after being asked to end a command is killed.
    pub grace: Duration,
    /// What surrounds every command.
    pub isolation: Isolation,
}

impl Plan {
    /// Gives the directory of this installer beneath `home`.
    pub(super) fn place(&self) -> PathBuf {
        self.home.join(self.tools.installer().name())
    }

    /// Gives the directory of this generation's own copies of artifacts, which is read-only for every step.
    pub(super) fn linked(&self) -> PathBuf {
        self.home.join("linked").join(self.tools.installer().name())
    }

    /// Gives the directory of manifest and lock.
    pub(super) fn project_dir(&self) -> PathBuf {
        if self.directory.is_root() {
            return self.tree.clone();
        }
        self.tree.join(OsStr::from_bytes(self.directory.as_bytes()))
    }

    /// Reads a file beside the manifest; `None` where there is none. The tree is another's: no link leads out of it,
    /// and nothing but a plain file is read.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let path = self.directory.join(name.as_bytes())?;
        match read_file(&Root::open(&self.tree)?, &path, LARGEST_TEXT) {
            Ok(content) => String::from_utf8(content.bytes).map(Some).map_err(|_| {
                let refusal = Refusal::new(Code::LockIncomplete, "a manifest is not UTF-8");
                refusal.name(path.to_string()).into()
            }),
            Err(error) if error.code() == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the step of a program.
    pub(super) fn step(&self, program: &Path, network: Network) -> Step {
        Step {
            command: Command::new(program, self.project_dir()),
            home: self.place(),
            network,
            access: TreeAccess::ReadOnly,
        }
    }
}

/// Says how a stage went.
#[derive(Clone, Debug)]
pub struct StageOutcome {
    /// The weakest confinement of its commands; `None` where none had to run.
    pub level: Option<Level>,
    /// Whether every process of it is known to have ended.
    pub tree_ended: TreeEnded,
    /// How long it took.
    pub took: Duration,
}

impl StageOutcome {
    /// Combines two stages: the weaker confinement, the weaker end, the sum of times.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let level = match (self.level, other.level) {
            (Some(one), Some(two)) => Some(one.and(two)),
            (one, two) => one.or(two),
        };
        let proved = self.tree_ended == TreeEnded::Proved && other.tree_ended == TreeEnded::Proved;
        Self {
            level,
            tree_ended: if proved {
                TreeEnded::Proved
            } else {
                TreeEnded::Unproved
            },
            took: self.took.saturating_add(other.took),
        }
    }
}

/// One command of a stage.
pub(super) struct Step {
    pub(super) command: Command,
    pub(super) home: PathBuf,
    pub(super) network: Network,
    pub(super) access: TreeAccess,
}

impl Step {
    pub(super) fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command = self.command.args(args);
        self
    }

    pub(super) fn var(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.command = self.command.var(name, value);
        self
    }

    /// Runs the command by another program, which is told of it behind its own arguments and a file.
    pub(super) fn through<const N: usize>(mut self, program: &Path, args: [&str; N], file: &Path) -> Self {
        let inner = std::mem::take(&mut self.command.args);
        let before = std::mem::replace(&mut self.command.program, program.to_path_buf());
        let mut all: Vec<OsString> = args.iter().map(OsString::from).collect();
        all.push(file.into());
        all.push(before.into());
        all.extend(inner);
        self.command.args = all;
        self
    }

    pub(super) fn home(mut self, home: PathBuf) -> Self {
        self.home = home;
        self
    }

    pub(super) fn cwd(mut self, cwd: PathBuf) -> Self {
        self.command.cwd = cwd;
        self
    }

    pub(super) fn writes_tree(mut self) -> Self {
        self.access = TreeAccess::Writable;
        self
    }
}

/// Runs the steps of a stage in order, under one deadline.
pub(super) fn run_steps(plan: &Plan, steps: Vec<Step>, cancel: &Cancel) -> Result<StageOutcome> {
    let started = Instant::now();
    let mut outcome = StageOutcome {
        level: None,
        tree_ended: TreeEnded::Proved,
        took: Duration::ZERO,
    };
    for step in steps {
        let left = plan.deadline.saturating_sub(started.elapsed());
        let ended = run_step(plan, step, left, cancel)?;
        outcome.level = Some(match outcome.level.take() {
            Some(level) => level.and(ended.level),
            None => ended.level,
        });
        if ended.tree_ended == TreeEnded::Unproved {
            outcome.tree_ended = TreeEnded::Unproved;
        }
    }
    outcome.took = started.elapsed();
    Ok(outcome)
}

/// Runs one step for what it prints.
///
/// # Errors
/// As [`run_steps`]; `dirty_volume` where a process of it may still be there; `install_failed` where it printed more
/// than is kept.
pub(super) fn ask(plan: &Plan, step: Step, cancel: &Cancel) -> Result<Vec<u8>> {
    let ended = run_step(plan, step, plan.deadline, cancel)?;
    if ended.tree_ended == TreeEnded::Unproved {
        let why = "it cannot be proved that every process of the installer has ended";
        return Err(Refusal::new(Code::DirtyVolume, why)
            .reason("process_tree_unproved")
            .into());
    }
    if ended.truncated.stdout_bytes > 0 {
        let why = "the installer printed more than is read";
        return Err(Refusal::new(Code::InstallFailed, why).into());
    }
    Ok(ended.stdout)
}

/// Runs one step; gives what it said, where it succeeded.
pub(super) fn run_step(plan: &Plan, step: Step, left: Duration, cancel: &Cancel) -> Result<Ended> {
    let installer = plan.tools.installer();
    if left.is_zero() {
        return Err(timed_out(plan).into());
    }
    let tmp = plan.home.join("tmp");
    private_directory(&step.home)?;
    private_directory(&tmp)?;
    private_directory(&plan.linked())?;
    let mut command = step.command;
    let network = step.network;
    // What a step says of itself stands: no setting of the operator leads it to a cache that others write to.
    if network == Network::Host {
        for (name, value) in &plan.network_env {
            command.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    for (name, value) in [
        ("HOME", step.home.as_os_str()),
        ("TMPDIR", tmp.as_os_str()),
        ("LANG", OsStr::new("C.UTF-8")),
        ("PATH", OsStr::new(SYSTEM_PATH)),
    ] {
        command.env.entry(name.into()).or_insert_with(|| value.to_owned());
    }
    command.deadline = Some(left);
    command.grace = plan.grace;
    command.output = Output::Capture { cap_bytes: CAPTURED };
    let mut read_only = plan.tools.roots();
    read_only.extend(plan.isolation.read_only.iter().cloned());
    read_only.push(plan.linked());
    if network == Network::Host {
        read_only.extend(files_named(&plan.network_env));
    }
    command.confinement = Confinement::Sandbox(Sandbox {
        tree: plan.tree.clone(),
        tree_access: step.access,
        home: step.home,
        tmp,
        hide: plan.isolation.hide.clone(),
        read_only,
        writable: Vec::new(),
        network,
        require: plan.isolation.require,
        bounds: plan.isolation.bounds,
    });
    let ended = run(&command, cancel)?;
    let how = match ended.end {
        End::Exited(0) => return Ok(ended),
        End::TimedOut => return Err(timed_out(plan).into()),
        End::Bounded(met) => return Err(met.refusal(installer.name()).into()),
        End::Exited(status) => format!("{installer} exited with status {status}"),
        End::Signalled(signal) => format!("signal {signal} ended {installer}"),
        End::Cancelled => format!("{installer} was cancelled"),
    };
    let stage = match network {
        Network::Host => "fetch",
        Network::Loopback => "install",
    };
    let lines = last_lines(&ended, &secrets(&plan.network_env));
    Err(Refusal::new(Code::InstallFailed, how)
        .reason(stage)
        .names(lines)
        .into())
}

fn timed_out(plan: &Plan) -> Refusal {
    let installer = plan.tools.installer();
    let seconds = plan.deadline.as_secs_f64();
    Refusal::new(
        Code::TimedOut,
        format!("{installer} did not end within {seconds} seconds"),
    )
}

/// CA bundles and configuration files that the operator names by absolute path must be readable inside.
fn files_named(env: &BTreeMap<OsString, OsString>) -> Vec<PathBuf> {
    let paths = env.values().map(PathBuf::from);
    paths.filter(|path| path.is_absolute() && path.exists()).collect()
}

/// Values that must never reach a refusal, a journal or a certificate.
fn secrets(env: &BTreeMap<OsString, OsString>) -> Vec<String> {
    const MARKS: [&str; 6] = ["TOKEN", "PASSWORD", "SECRET", "AUTH", "CREDENTIAL", "KEY"];
    let secret = |name: &OsStr| {
        let name = shown(name.as_bytes()).to_ascii_uppercase();
        MARKS.iter().any(|mark| name.contains(mark))
    };
    let mut values: Vec<String> = env
        .iter()
        .filter(|(name, value)| secret(name) && value.len() >= 4)
        .map(|(_, value)| shown(value.as_bytes()))
        .collect();
    values.extend(
        env.values()
            .filter_map(|value| userinfo(&shown(value.as_bytes()))),
    );
    values
}

/// The `user:password` of a URL.
fn userinfo(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?;
    let (user, _) = authority.rsplit_once('@')?;
    (!user.is_empty()).then(|| user.to_owned())
}

pub(super) fn last_lines(ended: &Ended, secrets: &[String]) -> Vec<String> {
    let errors = ended.stderr.split(|b| *b == b'\n');
    let output = ended.stdout.split(|b| *b == b'\n');
    let lines: Vec<&[u8]> = output
        .chain(errors)
        .filter(|line| !line.trim_ascii().is_empty())
        .collect();
    let from = lines.len().saturating_sub(LAST_LINES);
    let mut said = Vec::new();
    for line in &lines[from..] {
        let mut line = shown(line.trim_ascii_end());
        for secret in secrets {
            line = line.replace(secret.as_str(), "***");
        }
        said.push(line.chars().take(LONGEST_LINE).collect());
    }
    said
}

/// Refuses every argument but the selections that an installer's lock gives a meaning to.
pub(super) fn selections(args: &[String], alone: &[&str], with_value: &[&str]) -> Result<Vec<OsString>> {
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        let fits = match value {
            Some(value) => with_value.contains(&name) && !value.is_empty(),
            None if with_value.contains(&name) => words.next().is_some_and(|next| !next.starts_with('-')),
            None => alone.contains(&name),
        };
        if !fits {
            let taken: Vec<&str> = alone.iter().chain(with_value).copied().collect();
            let why = "an installer argument is not one of the selections that keep it strict";
            let why = match taken.is_empty() {
                true => format!("{why}: this one takes none"),
                false => format!("{why}: {}", taken.join(", ")),
            };
            return Err(Refusal::new(Code::BadConfig, why).name(word.clone()).into());
        }
    }
    Ok(args.iter().map(OsString::from).collect())
}

/// Gives the values of an option, as `--name value` or `--name=value`.
pub(super) fn values_of(args: &[String], name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let attached = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
        let value = if word == name {
            words.next().map(String::as_str)
        } else {
            attached
        };
        found.extend(value.map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selections_pass() {
        let try_args = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
            selections(&args, &["--all-groups"], &["--group"])
        };
        assert!(try_args(&["--all-groups", "--group", "dev", "--group=docs"]).is_ok());
        for bad in [
            &["--index-url=x"][..],
            &["--group"],
            &["--group", "--refresh"],
            &["--all-groups=1"],
            &["dev"],
            &["--group="],
        ] {
            assert_eq!(try_args(bad).unwrap_err().code(), Code::BadConfig, "{bad:?}");
        }
    }

    #[test]
    fn secrets_are_never_told() {
        let env = BTreeMap::from([
            (OsString::from("NPM_TOKEN"), OsString::from("hunter22")),
            (
                OsString::from("INDEX"),
                OsString::from("https://me:pass@host.invalid/simple"),
            ),
        ]);
        let ended = Ended {
            end: End::Exited(1),
            stdout: b"with hunter22\n".to_vec(),
            stderr: b"at https://me:pass@host.invalid/x\n\n".to_vec(),
            truncated: Default::default(),
            level: Level::none("test"),
            tree_ended: TreeEnded::Proved,
            took: Duration::ZERO,
        };
        let said = last_lines(&ended, &secrets(&env));
        assert_eq!(said, ["with ***", "at https://***@host.invalid/x"]);
    }
}
