//! Git as hands: one resolved executable, every child in a closed environment.
//!
//! Restoring a worktree under our own `index.lock`, preparing a draft's private repository, reading objects
//! (each one hashed again by us), selecting what a seal packs, delivering a certified tree. It does not decide
//! how long a lock is waited for ([`semel_core::restore`]) and keeps no journal.
//!
//! Nothing of the caller's environment and no configuration outside of the repository reaches git. What the
//! repository itself configures is taken only where it cannot run a program or redirect a write.

mod deliver;
mod draft;
mod gather;
mod held;
mod lock;
mod objects;
mod obstacles;
mod record;
mod repository;
mod restore;
mod select;
mod verify;
mod watch;
mod worktree;

pub use deliver::{Delivery, Import, Patch, Sealed, deliver_branch, make_patch};
pub use draft::{Draft, prepare_draft};
pub use gather::Gathered;
pub use objects::Leaf;
pub use repository::{Config, Repository};
pub use restore::{Failed, Identity, Outcome, RestoreOptions, Touched, Verify, restore};
pub use select::{LeftOut, Selection, Why, select, tree_of};

use crate::error::{Error, Result};
use crate::plain::digest_file;
use crate::process::{self, Cancel, Command, End, Orphan, Output, Stdin};
use semel_core::digest::Sha256;
use semel_core::{Code, Refusal};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most that is kept of what one git child prints.
const OUTPUT_CAP_BYTES: u64 = 2 << 30;
/// How long one git child may run.
const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// The oldest git whose environment can be closed (`GIT_CONFIG_COUNT`, explicit object formats).
const OLDEST: (u32, u32) = (2, 31);

/// Configuration that every child gets; it outranks what the repository says.
const CLOSED: &[(&str, &str)] = &[
    ("safe.directory", "*"),
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.trustctime", "true"),
    ("core.checkStat", "default"),
    ("core.fileMode", "true"),
    ("core.symlinks", "true"),
    ("core.ignoreCase", "false"),
    ("core.autocrlf", "false"),
    ("core.eol", "lf"),
    ("core.safecrlf", "false"),
    ("i18n.commitEncoding", "UTF-8"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("submodule.recurse", "false"),
    ("protocol.allow", "never"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
];

/// Holds the git executable, resolved once.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
    version: String,
    sha256: Sha256,
}

/// Carries what git itself said when it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The subcommand, such as `read-tree`.
    pub command: String,
    /// Its exit code; `None` where a signal, a deadline or a cancellation ended it.
    pub exit: Option<i32>,
    /// How it ended, in words.
    pub how: String,
    /// What it wrote to standard error, byte for byte.
    pub stderr: Vec<u8>,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "git {} {}", self.command, self.how)
    }
}

impl core::error::Error for Failure {}

impl Failure {
    /// Names the refusal, with the first line of what git said.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let first = self.stderr.split(|b| *b == b'\n').next().unwrap_or_default();
        let refusal = Refusal::new(Code::GitFailed, self.to_string());
        if first.is_empty() {
            return refusal;
        }
        refusal.name(semel_core::path::shown(first))
    }
}

/// Says where a git child works; every part that matters is explicit, so that nothing is discovered.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) gitdir: PathBuf,
    pub(crate) common: PathBuf,
    pub(crate) worktree: Option<PathBuf>,
    pub(crate) index: Option<PathBuf>,
    /// Where new objects go, and where existing ones are borrowed from; `None`: the repository's own.
    pub(crate) objects: Option<(PathBuf, PathBuf)>,
    /// Further configuration, such as filter drivers that are switched off.
    pub(crate) config: Vec<(OsString, OsString)>,
}

/// One run of git.
pub(crate) struct Call<'a> {
    pub(crate) args: Vec<OsString>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    pub(crate) keep: Vec<Arc<OwnedFd>>,
    pub(crate) cancel: &'a Cancel,
}

impl<'a> Call<'a> {
    pub(crate) fn new<S: Into<OsString>>(args: impl IntoIterator<Item = S>, cancel: &'a Cancel) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            stdin: Vec::new(),
            env: Vec::new(),
            keep: Vec::new(),
            cancel,
        }
    }

    pub(crate) fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = bytes;
        self
    }
}

impl Git {
    /// Finds the executable in the first of these directories that has one.
    ///
    /// # Errors
    /// `not_found` where none has one, `bad_config` where it is older than 2.31 or does not say its version,
    /// `io_failed` where it cannot be read or started.
    pub fn find(dirs: &[PathBuf]) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let usable = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        let found = dirs.iter().map(|dir| dir.join("git")).find(usable);
        let Some(found) = found else {
            return Err(Refusal::new(Code::NotFound, "no git in the given directories").into());
        };
        let program = std::fs::canonicalize(&found).map_err(|e| Error::io("resolve", &found, e))?;
        let sha256 = digest_file(&program)?;
        let mut git = Self {
            program,
            version: String::new(),
            sha256,
        };
        let cancel = Cancel::new()?;
        let command = git.closed(Path::new("/"), &[], &[]).arg("version");
        let said = finish(&command, "version", &cancel)?;
        let text = String::from_utf8(said).unwrap_or_default();
        let version = text.trim().strip_prefix("git version ").unwrap_or_default();
        let mut numbers = version.split('.').map(|n| n.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) if (major, minor) >= OLDEST => {}
            _ => {
                let why = format!("git {}.{} or later is needed", OLDEST.0, OLDEST.1);
                return Err(Refusal::new(Code::BadConfig, why).name(version).into());
            }
        }
        version.clone_into(&mut git.version);
        Ok(git)
    }

    /// Gives the absolute path of the executable, links resolved.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Gives the version, such as `2.47.3`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Gives the digest of the executable.
    #[must_use]
    pub fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// Runs git in a place, and gives what it printed.
    pub(crate) fn run(&self, place: &Place, call: Call<'_>) -> Result<Vec<u8>> {
        let cwd = place.worktree.as_ref().unwrap_or(&place.gitdir);
        let mut command = self.closed(cwd, &place.config, &call.env);
        command = command
            .var("GIT_DIR", &place.gitdir)
            .var("GIT_COMMON_DIR", &place.common);
        if let Some(worktree) = &place.worktree {
            command = command.var("GIT_WORK_TREE", worktree);
        }
        if let Some(index) = &place.index {
            command = command.var("GIT_INDEX_FILE", index);
        }
        if let Some((own, borrowed)) = &place.objects {
            command = command
                .var("GIT_OBJECT_DIRECTORY", own)
                .var("GIT_ALTERNATE_OBJECT_DIRECTORIES", quoted(borrowed));
        }
        let name = call.args.first().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().to_owned();
        command.args = call.args;
        command.keep = call.keep;
        if !call.stdin.is_empty() {
            command.stdin = Stdin::Bytes(call.stdin);
        }
        finish(&command, &name, call.cancel)
    }

    /// Makes a command with the closed environment and no repository.
    fn closed(
        &self,
        cwd: &Path,
        config: &[(OsString, OsString)],
        env: &[(&'static str, OsString)],
    ) -> Command {
        let mut command = Command::new(&self.program, cwd)
            .var("PATH", "/usr/bin:/bin")
            .var("HOME", "/nonexistent")
            .var("LC_ALL", "C")
            .var("TZ", "UTC")
            .var("GIT_CONFIG_NOSYSTEM", "1")
            .var("GIT_CONFIG_GLOBAL", "/dev/null")
            .var("GIT_ATTR_NOSYSTEM", "1")
            .var("GIT_TERMINAL_PROMPT", "0")
            .var("GIT_OPTIONAL_LOCKS", "0")
            .var("GIT_NO_LAZY_FETCH", "1")
            .var("GIT_NO_REPLACE_OBJECTS", "1")
            .var("GIT_ADVICE", "0");
        let own = CLOSED.iter().map(|(k, v)| (OsString::from(k), OsString::from(v)));
        let all: Vec<_> = own.chain(config.iter().cloned()).collect();
        command = command.var("GIT_CONFIG_COUNT", all.len().to_string());
        for (at, (key, value)) in all.into_iter().enumerate() {
            command = command
                .var(format!("GIT_CONFIG_KEY_{at}"), key)
                .var(format!("GIT_CONFIG_VALUE_{at}"), value);
        }
        for (name, value) in env {
            command = command.var(*name, value);
        }
        command.deadline = Some(DEADLINE);
        // Git takes its locks away when it is asked to end; killed, it would leave them in everybody's way.
        command.orphan = Orphan::Asked;
        command.output = Output::Capture {
            cap_bytes: OUTPUT_CAP_BYTES,
        };
        command
    }
}

/// Runs a git command; anything but exit 0 with whole output is a failure.
fn finish(command: &Command, name: &str, cancel: &Cancel) -> Result<Vec<u8>> {
    let ended = process::run(command, cancel)?;
    let (exit, how) = match ended.end {
        End::Exited(0) if !ended.truncated.any() => return Ok(ended.stdout),
        End::Exited(0) => (Some(0), "printed more than can be kept".to_owned()),
        End::Exited(code) => (Some(code), format!("exited with {code}")),
        End::Signalled(signal) => (None, format!("was ended by signal {signal}")),
        End::TimedOut => (None, "ran past its deadline".to_owned()),
        End::Cancelled => (None, "was cancelled".to_owned()),
    };
    Err(Error::Git(Box::new(Failure {
        command: name.to_owned(),
        exit,
        how,
        stderr: ended.stderr,
    })))
}

/// Writes a path so that a list of paths separated by colons holds it whole.
fn quoted(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut text = vec![b'"'];
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', *byte]),
            0..0x20 | 0x7f.. => text.extend(format!("\\{byte:03o}").bytes()),
            _ => text.push(*byte),
        }
    }
    text.push(b'"');
    OsString::from_vec(text)
}

#[cfg(test)]
mod tests;
