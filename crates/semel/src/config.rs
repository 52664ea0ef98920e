//! Every setting, from the command line and the operator's file; the one place that reads the environment.
//!
//! State root, keys, policy and job roots come from a flag or the file alone. HOME and XDG_* count only for a
//! person's own command: inside a job's process tree they are an agent's to set, and are refused.

pub(crate) mod upstream;

use semel_core::backend::Wanted;
use semel_core::bounds::{Asked, Bounds};
use semel_core::certificate::KeyId;
use semel_core::job::Confine;
use semel_core::upstream::UpstreamName;
use semel_core::{Code, Refusal};
use semel_host::sandbox::{default_bounds, resolve_program};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// Is the operator's file.
///
/// # Shape
/// TOML; an unknown key is an error. See `docs/configuration.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// The state root.
    pub(crate) state: Option<PathBuf>,
    /// Where the app listener listens on TCP, such as `127.0.0.1:7600`; it always listens on its Unix socket.
    pub(crate) listen: Option<String>,
    /// Where the probe listener listens.
    pub(crate) probe: Option<String>,
    /// Settings of the fetch stage.
    #[serde(default)]
    pub(crate) fetch: Fetch,
    /// Ids of signing keys that the gate takes no more.
    #[serde(default)]
    pub(crate) revoked_keys: Vec<KeyId>,
    /// Where programs are looked for, in order; else the operator's PATH.
    #[serde(default)]
    pub(crate) path: Vec<PathBuf>,
    /// The policy of tool calls.
    pub(crate) policy: Option<PathBuf>,
    /// Whether a person may approve calls of processes that Semel did not confine.
    #[serde(default)]
    pub(crate) approvals_without_confinement: bool,
    /// Settings of commands that calls run.
    #[serde(default)]
    pub(crate) commands: Commands,
    /// How large a draft may become.
    #[serde(default)]
    pub(crate) quota: Quota,
    /// Settings of volumes.
    #[serde(default)]
    pub(crate) volumes: OfVolumes,
    /// Other servers of tools behind the gateway, by their names.
    #[serde(default)]
    pub(crate) upstream: BTreeMap<String, upstream::Written>,
    /// What bounds everything that is launched for a job.
    #[serde(default)]
    pub(crate) limits: Asked,
    /// Settings of every sandbox.
    #[serde(default)]
    pub(crate) sandbox: OfSandboxes,
}

/// Is what is asked of every sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfSandboxes {
    /// The number of the user as whom programs run where Semel runs as root.
    pub(crate) uid: Option<u32>,
}

/// Is what is asked of every volume that is not asked for otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfVolumes {
    /// What it lies on.
    #[serde(default)]
    pub(crate) backend: Wanted,
}

/// Is how large a draft may become, with all that is kept beside its tree; what is not said has no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// Bytes on the disk.
    pub(crate) volume_bytes: Option<u64>,
    /// Files, directories and links.
    pub(crate) volume_files: Option<u64>,
}

/// Is what the commands of volumes find that no job prepared, and what is asked of every sandbox of a command.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Commands {
    /// Programs whose toolchains are shown.
    #[serde(default)]
    pub(crate) tools: Vec<String>,
    /// What is done where a part of the sandbox cannot be had.
    #[serde(default)]
    pub(crate) confinement: Confine,
}

/// Is what reaches the fetch stage, and it alone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fetch {
    /// Variables with their values.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Names of variables that are handed on from the operator's own environment.
    #[serde(default)]
    pub(crate) pass: Vec<String>,
}

/// Is the configuration of this process, merged and checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The state root, absolute and real: without links and `..`, as the kernel says it to whoever looks from inside.
    pub(crate) state: PathBuf,
    /// Where the app listener listens on TCP, from the start.
    pub(crate) listen: Option<String>,
    /// Where the probe listener listens.
    pub(crate) probe: String,
    /// What reaches the fetch stage.
    pub(crate) fetch_env: BTreeMap<OsString, OsString>,
    /// Where programs are looked for.
    pub(crate) path: Vec<PathBuf>,
    /// Programs whose toolchains the commands of volumes find that no job prepared.
    pub(crate) tools: Vec<String>,
    /// What is done with a command where a part of its sandbox cannot be had.
    pub(crate) confinement: Confine,
    /// Ids of signing keys that the gate takes no more.
    pub(crate) revoked_keys: Vec<KeyId>,
    /// Homes, which no sandbox may see.
    pub(crate) homes: Vec<PathBuf>,
    /// The operator's files, which may hold credentials of the fetch stage: no sandbox may see them.
    pub(crate) files: Vec<PathBuf>,
    /// The operator's file that was read.
    pub(crate) file: Option<PathBuf>,
    /// The policy of tool calls, absolute.
    pub(crate) policy: Option<PathBuf>,
    /// Whether a person may approve calls of processes that Semel did not confine.
    pub(crate) unconfined: Unconfined,
    /// How large a draft may become.
    pub(crate) quota: Quota,
    /// What volumes lie on that are not asked for otherwise.
    pub(crate) backend: Wanted,
    /// Other servers of tools behind the gateway.
    pub(crate) upstreams: BTreeMap<UpstreamName, upstream::Upstream>,
    /// What the operator says of what bounds everything that is launched.
    pub(crate) limits: Asked,
}

/// Says whether a person may approve calls of processes that Semel did not confine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unconfined {
    /// It is refused: such a process could read the operator's token, and approve itself.
    Refused,
    /// The operator says that it cannot.
    Approved,
}

/// Variables that name a proxy, an index or a trust store: handed to the fetch stage of a person's own command.
const FETCH_DEFAULTS: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_DEFAULT_TIMEOUT",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_NATIVE_TLS",
    "npm_config_registry",
    "npm_config_cafile",
    "CARGO_HTTP_CAINFO",
    "CARGO_HTTP_PROXY",
];

/// The operator's file where nothing else is said.
const SYSTEM_FILE: &str = "/etc/semel/config.toml";

#[expect(
    clippy::disallowed_methods,
    reason = "this module is the one reader of the environment"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Gives a variable of the contract: `WORKSPACE`, `VOLUME_GENERATION` or `JOB_ATTEMPT`, set but empty included.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the one reader of the environment"
)]
pub(crate) fn contract(name: &'static str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Gives the whole environment, for a person's own command that is run on a person's own disk.
pub(crate) fn environment() -> BTreeMap<OsString, OsString> {
    std::env::vars_os().collect()
}

/// Gives where GitHub Actions wants to hear of a step.
pub(crate) fn github() -> crate::engine::gate::GithubFiles {
    crate::engine::gate::GithubFiles {
        summary: variable("GITHUB_STEP_SUMMARY").map(PathBuf::from),
        outputs: variable("GITHUB_OUTPUT").map(PathBuf::from),
    }
}

/// Gives the paths by which a program that was started here may spell a worktree: as the kernel says where we are, and as
/// `PWD` does, where that leads here, too. Git goes by `PWD` then.
pub(crate) fn spellings(worktree: &Path) -> Vec<PathBuf> {
    let mut all = vec![worktree.to_owned()];
    let here = |pwd: &Path| {
        let (Ok(pwd), Ok(here)) = (std::fs::metadata(pwd), std::fs::metadata(".")) else {
            return false;
        };
        (pwd.dev(), pwd.ino()) == (here.dev(), here.ino())
    };
    let pwd = variable("PWD").map(PathBuf::from);
    let Some(pwd) = pwd.filter(|pwd| pwd.is_absolute() && here(pwd)) else {
        return all;
    };
    let mut lexical = PathBuf::new();
    for part in pwd.join(worktree).components() {
        if part == Component::ParentDir {
            lexical.pop();
        } else {
            lexical.push(part);
        }
    }
    all.extend([pwd.join(worktree), lexical, pwd]);
    all
}

/// Gives the daemon's URL and the token that a job's own process was given, for `semel call` inside of a job.
pub(crate) fn job_access() -> (Option<String>, Option<String>) {
    let text = |name: &str| variable(name)?.into_string().ok();
    (text("SEMEL_URL"), text("SEMEL_TOKEN"))
}

/// Gives the daemon's Unix socket that a job's own process was given.
pub(crate) fn job_socket() -> Option<PathBuf> {
    variable("SEMEL_SOCKET").map(PathBuf::from)
}

/// Gives where a bridge keeps its spool that has no state root, inside of a job: in the private home of the agent.
pub(crate) fn spool_at_home() -> Option<PathBuf> {
    let home = home().filter(|home| home.is_absolute())?;
    Some(home.join(".local/state/semel/bridge"))
}

/// Is what a service manager says to the process that it started, and to no other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Supervisor {
    /// Where it wants to hear of the daemon.
    pub(crate) notify: Option<OsString>,
    /// How often it wants a sign of life, in microseconds, and from which process.
    pub(crate) watchdog: Option<OsString>,
    /// See [`Self::watchdog`].
    pub(crate) watchdog_pid: Option<OsString>,
    /// How many listeners it hands down, to which process, by which names.
    pub(crate) fds: Option<OsString>,
    /// See [`Self::fds`].
    pub(crate) fds_pid: Option<OsString>,
    /// See [`Self::fds`].
    pub(crate) fd_names: Option<OsString>,
}

/// Gives what a service manager said to this very process.
pub(crate) fn supervisor() -> Supervisor {
    Supervisor {
        notify: variable("NOTIFY_SOCKET"),
        watchdog: variable("WATCHDOG_USEC"),
        watchdog_pid: variable("WATCHDOG_PID"),
        fds: variable("LISTEN_FDS"),
        fds_pid: variable("LISTEN_PID"),
        fd_names: variable("LISTEN_FDNAMES"),
    }
}

fn bad(why: impl Into<String>) -> Refusal {
    Refusal::new(Code::BadConfig, why)
}

impl Config {
    /// Merges flags, the operator's file and, for a person's own command, the XDG defaults.
    ///
    /// # Errors
    /// `bad_config` for a file that does not parse, with its line; for a state root that only the environment of a
    /// job names; for a relative one, and one that leads nowhere.
    pub(crate) fn load(state: Option<&Path>, file: Option<&Path>) -> Result<Self, Refusal> {
        let in_job = variable("SEMEL_JOB").is_some();
        let place = file_place(file, in_job);
        let read = place.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let state = match (state, &read.state) {
            // What is typed is meant from where one stands, as any other path of a command.
            (Some(flag), _) => std::path::absolute(flag)
                .map_err(|e| bad(format!("the state root: {e}")).name(flag.display().to_string()))?,
            (None, Some(set)) => set.clone(),
            (None, None) if in_job => {
                let why = "inside a job no state root is taken from HOME or XDG_STATE_HOME";
                return Err(bad(why).reason(NO_STATE_ROOT).name("SEMEL_JOB"));
            }
            (None, None) => default_state()?,
        };
        if !state.is_absolute() {
            return Err(bad("the state root must be an absolute path").name(state.display().to_string()));
        }
        read.limits.check(Code::BadConfig)?;
        run_as(read.sandbox)?;
        Ok(Self {
            upstreams: upstream::of_file(&read)?,
            state: real(&state)?,
            listen: read.listen.clone(),
            probe: read.probe.clone().unwrap_or_else(|| "127.0.0.1:0".to_owned()),
            fetch_env: fetch_env(&read.fetch),
            path: programs(&read),
            tools: read.commands.tools.clone(),
            confinement: read.commands.confinement,
            revoked_keys: read.revoked_keys.clone(),
            homes: homes(),
            files: operator_files([place.as_deref(), read.policy.as_deref()]),
            file: place.and_then(|place| std::path::absolute(place).ok()),
            policy: read.policy,
            quota: read.quota,
            backend: read.volumes.backend,
            limits: read.limits,
            unconfined: if read.approvals_without_confinement {
                Unconfined::Approved
            } else {
                Unconfined::Refused
            },
        })
    }

    /// Takes the policy that a flag names in place of the file's.
    pub(crate) fn with_policy(mut self, policy: Option<PathBuf>) -> Self {
        if let Some(policy) = policy {
            self.files.extend(policy.canonicalize());
            self.policy = Some(policy);
        }
        self
    }

    /// Takes the servers that flags name beside the file's, or in their place.
    ///
    /// # Errors
    /// `usage` for one that is malformed, or a name that comes twice; `not_found` for a program that is not there. One that
    /// the file names may come later: no agent waits for it that needs another.
    pub(crate) fn with_upstreams(mut self, flags: &[String]) -> Result<Self, Refusal> {
        let mut named = std::collections::BTreeSet::new();
        for flag in flags {
            let (name, server) = upstream::of_flag(flag)?;
            if !named.insert(name.clone()) {
                let why = "two servers have one name";
                return Err(Refusal::new(Code::Usage, why).name(name.as_str()));
            }
            if let upstream::Way::Command { command, .. } = &server.way
                && let Some(program) = command.first()
            {
                resolve_program(program.as_ref(), &self.path)
                    .map_err(|e| e.into_refusal().name(name.as_str()))?;
            }
            self.upstreams.insert(name, server);
        }
        Ok(self)
    }

    /// Gives what bounds everything that is launched for a job.
    pub(crate) fn bounds(&self, job: Asked) -> Bounds {
        self.limits.narrower(job).or(default_bounds())
    }

    /// Gives what no sandbox may see, of what is there: state root, homes, the operator's files.
    pub(crate) fn hidden(&self) -> Vec<PathBuf> {
        let others = self
            .homes
            .iter()
            .chain(&self.files)
            .filter(|place| place.exists());
        std::iter::once(&self.state).chain(others).cloned().collect()
    }
}

/// The reason of a refusal where no state root is named.
const NO_STATE_ROOT: &str = "no_state_root";

/// Is what a command reaches that works without a state root, too, such as inside a job.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Where programs are looked for.
    pub(crate) path: Vec<PathBuf>,
    /// The state root and what belongs to it; without one no worktree is pinned, and nobody is told of counts.
    pub(crate) config: Option<Config>,
}

impl From<Config> for Reach {
    fn from(config: Config) -> Self {
        Self {
            path: config.path.clone(),
            config: Some(config),
        }
    }
}

impl Reach {
    /// Merges as [`Config::load`]; where no state root is named there is none.
    ///
    /// # Errors
    /// `bad_config` as [`Config::load`].
    pub(crate) fn load(state: Option<&Path>, file: Option<&Path>) -> Result<Self, Refusal> {
        match Config::load(state, file) {
            Ok(config) => Ok(config.into()),
            Err(refusal) if refusal.reason.as_deref() == Some(NO_STATE_ROOT) => {
                let place = file_place(file, variable("SEMEL_JOB").is_some());
                let read = place.as_deref().map(read_file).transpose()?.unwrap_or_default();
                Ok(Self {
                    path: programs(&read),
                    config: None,
                })
            }
            Err(refusal) => Err(refusal),
        }
    }
}

/// The files that were named, whatever their places, and the place of the system's.
fn operator_files(read: [Option<&Path>; 2]) -> Vec<PathBuf> {
    let system = Path::new(SYSTEM_FILE).parent().map(Path::to_owned);
    let read = read
        .into_iter()
        .flatten()
        .filter_map(|place| place.canonicalize().ok());
    system.into_iter().chain(read).collect()
}

fn file_place(named: Option<&Path>, in_job: bool) -> Option<PathBuf> {
    match named {
        Some(place) => Some(place.to_owned()),
        None => person_file(in_job)
            .filter(|place| place.exists())
            .or_else(|| Some(PathBuf::from(SYSTEM_FILE)).filter(|place| place.exists())),
    }
}

fn read_file(place: &Path) -> Result<File, Refusal> {
    #[expect(clippy::disallowed_methods, reason = "the operator's file is configuration")]
    let text = std::fs::read_to_string(place)
        .map_err(|e| bad(format!("cannot read the configuration: {e}")).name(place.display().to_string()))?;
    toml::from_str(&text).map_err(|e| {
        semel_core::code::toml_refusal(Code::BadConfig, "the configuration", &text, &e)
            .name(place.display().to_string())
    })
}

fn person_file(in_job: bool) -> Option<PathBuf> {
    if in_job {
        return None;
    }
    let base = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(home()?.join(".config")))?;
    Some(base.join("semel/config.toml"))
}

fn home() -> Option<PathBuf> {
    variable("HOME").map(PathBuf::from)
}

fn default_state() -> Result<PathBuf, Refusal> {
    variable("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(home()?.join(".local/state")))
        .map(|base| base.join("semel"))
        .ok_or_else(|| {
            bad("no state root: give --state, or set it in the configuration file").reason(NO_STATE_ROOT)
        })
}

/// Gives the real path of a place that need not be there yet.
fn real(place: &Path) -> Result<PathBuf, Refusal> {
    let wrong =
        |why: String| bad(format!("the state root leads nowhere: {why}")).name(place.display().to_string());
    let mut there = place;
    let mut absent = Vec::new();
    loop {
        match there.canonicalize() {
            Ok(real) => return Ok(absent.iter().rev().fold(real, |path, name| path.join(name))),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(wrong(error.to_string()));
            }
            Err(error) => match (there.parent(), there.file_name()) {
                // A link that leads nowhere is there, and its target is not ours to make.
                _ if there.is_symlink() => return Err(wrong(error.to_string())),
                (Some(parent), Some(name)) => {
                    absent.push(name);
                    there = parent;
                }
                _ => return Err(wrong(error.to_string())),
            },
        }
    }
}

/// Has programs run as the user that the operator names.
fn run_as(sandboxes: OfSandboxes) -> Result<(), Refusal> {
    match sandboxes.uid {
        None => Ok(()),
        // The last one is no user: the kernel has it for "none".
        Some(0 | u32::MAX) => Err(bad("programs run as a user that is not root").name("sandbox.uid")),
        Some(uid) => {
            semel_host::sandbox::run_as(uid);
            Ok(())
        }
    }
}

/// Says where programs are looked for.
fn programs(read: &File) -> Vec<PathBuf> {
    if read.path.is_empty() {
        search_path()
    } else {
        read.path.clone()
    }
}

pub(crate) fn search_path() -> Vec<PathBuf> {
    let path = variable("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .filter(|place| place.is_absolute())
        .collect()
}

fn homes() -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = vec!["/root".into(), "/home".into()];
    homes.extend(home().filter(|home| home.is_absolute() && home.parent().is_some()));
    homes.sort();
    homes.dedup();
    homes
}

fn fetch_env(fetch: &Fetch) -> BTreeMap<OsString, OsString> {
    let passed = fetch
        .pass
        .iter()
        .map(String::as_str)
        .chain(FETCH_DEFAULTS.iter().copied());
    let mut env: BTreeMap<OsString, OsString> = passed
        .filter_map(|name| Some((name.into(), variable(name)?)))
        .collect();
    env.extend(fetch.env.iter().map(|(name, value)| (name.into(), value.into())));
    semel_host::installer::trust_machine(&mut env);
    env
}
