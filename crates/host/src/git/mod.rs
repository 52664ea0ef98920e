//! Git as hands: one resolved executable, every child in a closed environment.
//!
//! Restoring a worktree under our own `index.lock`, pinning, making and removing worktrees, preparing a draft's private repository, reading objects
//! (each one hashed again by us), selecting what a seal packs, delivering a certified tree. It does not decide
//! how long a lock is waited for ([`semel_core::restore`]) and keeps no journal.
//!
//! Nothing of the caller's environment and no configuration outside of the repository reaches git. A git that restores
//! is not shown the repository either, which whoever works there can write, but a view of ours (`view`); where git has to work in
//! the repository itself, for its refs, the programs that it configures are switched off by name.

mod attributes;
mod checkout;
mod clear;
mod deliver;
mod draft;
mod gather;
mod held;
mod index;
mod line;
mod linked;
mod listing;
mod lock;
mod memo;
mod nested;
mod objects;
mod obstacles;
mod one_commit;
mod overlays;
mod own;
mod pin;
mod place;
mod presence;
mod processes;
mod record;
mod removal;
mod repository;
mod restore;
mod retry;
mod seek;
mod select;
mod settings;
mod stale;
mod survey;
mod verify;
mod view;
mod wait;
mod watch;
mod witness;
mod worktree;

pub use deliver::{Delivery, Import, Patch, Sealed, deliver_branch, make_patch};
pub use draft::{Draft, prepare_draft};
pub use gather::Gathered;
pub use linked::{Add, Begun, Discard, Locked, Milestone, Remove, Removed, Tell, Unfinished, add, remove};
pub use objects::Leaf;
pub use one_commit::{leads_to, one_commit};
pub use pin::{KeptPin, PinState, Pins, Repin, Require};
pub use repository::{Config, Repository};
pub use restore::{
    Failed, Identity, Leftovers, Nested, Outcome, RestoreOptions, Touched, Verify, restore, restore_watched,
};
pub use retry::{Waited, Worktree};
pub use select::{LeftOut, Selection, Why, select, tree_of};
pub use witness::{Nobody, Point, Waiting, Witness};
pub use worktree::Target;

use self::memo::{Before, Look, Shelf};
use self::view::View;
use crate::error::{Error, Result};
use crate::plain::digest_file;
use crate::process::{self, Cancel, Command, End, Orphan, Output, Stdin};
use semel_core::digest::Sha256;
use semel_core::git_tree::ObjectId;
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
/// How long one may run that only reads something small.
const BRIEF: Duration = Duration::from_secs(60);
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
    /// Its first two numbers.
    numbers: (u32, u32),
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
    /// What git sees in place of the repository, whose objects it uses; `None`: the repository itself.
    pub(crate) view: Option<Arc<View>>,
    /// The tree whose attributes are all that there are, for a git that knows to take them from there.
    pub(crate) attributes: Option<ObjectId>,
}

impl Place {
    /// Is in no repository at all.
    pub(crate) fn nowhere() -> Self {
        Self::of("/nonexistent".into(), "/nonexistent".into())
    }

    /// A git directory and the one that all worktrees share, and nothing else that is told apart.
    pub(super) fn of(gitdir: PathBuf, common: PathBuf) -> Self {
        Self {
            gitdir,
            common,
            worktree: None,
            index: None,
            objects: None,
            config: Vec::new(),
            view: None,
            attributes: None,
        }
    }

    /// Gives where a child starts: where nothing is to be found that git would read by itself.
    fn cwd(&self) -> &Path {
        match (&self.worktree, &self.view) {
            (Some(worktree), _) => worktree,
            (None, Some(view)) => view.path(),
            (None, None) if self.gitdir.is_dir() => &self.gitdir,
            (None, None) => Path::new("/"),
        }
    }
}

/// What a git that succeeded printed.
pub(crate) struct Said {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// One run of git.
pub(crate) struct Call<'a> {
    pub(crate) args: Vec<OsString>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    pub(crate) keep: Vec<Arc<OwnedFd>>,
    pub(crate) deadline: Duration,
    pub(crate) cancel: &'a Cancel,
}

/// Gives a run little time: of a git that reads something small.
pub(crate) fn brief(call: Call<'_>) -> Call<'_> {
    Call {
        deadline: BRIEF,
        ..call
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new<S: Into<OsString>>(args: impl IntoIterator<Item = S>, cancel: &'a Cancel) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            stdin: Vec::new(),
            env: Vec::new(),
            keep: Vec::new(),
            deadline: DEADLINE,
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
        Self::at(&Self::locate(dirs)?)
    }

    /// Gives where the first of these directories that has an executable has it.
    fn locate(dirs: &[PathBuf]) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt;
        let usable = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        let found = dirs.iter().map(|dir| dir.join("git")).find(usable);
        let none = || Refusal::new(Code::NotFound, "no git in the given directories");
        Ok(found.ok_or_else(none)?)
    }

    /// Takes an executable of which nothing is known: for a use where nothing depends on which one it is.
    fn unasked(program: PathBuf) -> Self {
        Self {
            program,
            version: String::new(),
            numbers: OLDEST,
            sha256: Sha256::of(b""),
        }
    }

    /// Takes an executable by its path.
    ///
    /// # Errors
    /// `not_found` where it is not there, else as [`Git::find`].
    pub fn at(path: &Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let program = std::fs::canonicalize(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Refusal::new(Code::NotFound, "there is no such git")
                .name(semel_core::path::shown(path.as_os_str().as_bytes()))
                .into(),
            _ => Error::io("resolve", path, e),
        })?;
        let before = Before::now();
        let look = Look::of_path(&program).ok().flatten();
        if let Some(look) = look
            && let Some(git) = KNOWN.get(&(program.clone(), look))
        {
            return Ok(git);
        }
        let git = Self::learn(program)?;
        if let Some(look) = look.filter(|look| look.settled(before))
            && git.answers_for_itself(look)
        {
            KNOWN.put((git.program.clone(), look), git.clone(), 1);
        }
        Ok(git)
    }

    /// Says whether what an executable answers depends on nothing but its bytes, and these are still those that were
    /// looked at: a script may run whatever another day.
    fn answers_for_itself(&self, look: Look) -> bool {
        use std::io::Read;
        let mut magic = [0; 4];
        let program = std::fs::File::open(&self.program).and_then(|mut file| file.read_exact(&mut magic));
        program.is_ok()
            && magic == *b"\x7fELF"
            && memo::provable(&self.program)
            && Look::of_path(&self.program) == Ok(Some(look))
    }

    /// Asks an executable for its version, and digests it meanwhile.
    fn learn(program: PathBuf) -> Result<Self> {
        let mut git = Self::unasked(program);
        let cancel = Cancel::new()?;
        let command = git.closed(Path::new("/"), &[], &[]).arg("version");
        let program = git.program.clone();
        let (said, sha256) = beside(|| finish(&command, "version", &cancel), || digest_file(&program));
        git.sha256 = sha256?;
        let said = said?;
        let text = String::from_utf8(said.stdout).unwrap_or_default();
        let version = text.trim().strip_prefix("git version ").unwrap_or_default();
        let mut numbers = version.split('.').map(|n| n.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) if (major, minor) >= OLDEST => git.numbers = (major, minor),
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
        self.said(place, call).map(|said| said.stdout)
    }

    /// Runs git in a place, and gives what it printed on both streams.
    pub(crate) fn said(&self, place: &Place, call: Call<'_>) -> Result<Said> {
        let mut command = self.closed(place.cwd(), &place.config, &call.env);
        let (gitdir, common) = match &place.view {
            Some(view) => (view.path(), view.path()),
            None => (place.gitdir.as_path(), place.common.as_path()),
        };
        command = command.var("GIT_DIR", gitdir).var("GIT_COMMON_DIR", common);
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
        } else if place.view.is_some() {
            command = command.var("GIT_OBJECT_DIRECTORY", place.common.join("objects"));
        }
        if let Some(tree) = &place.attributes {
            command = command.var("GIT_ATTR_SOURCE", tree.to_string());
        }
        let name = call.args.first().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().to_owned();
        command.args = call.args;
        command.keep = call.keep;
        command.keep.extend(place.view.as_ref().map(|view| view.handle()));
        command.deadline = Some(call.deadline);
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

/// The executables that are known, by how they looked.
static KNOWN: Shelf<(PathBuf, Look), Git> = Shelf::new(16);

/// Does two things at once; where there can be no second thread, one after the other.
pub(crate) fn beside<A, B: Send>(here: impl FnOnce() -> A, there: impl Fn() -> B + Sync) -> (A, B) {
    std::thread::scope(|scope| {
        let begun = std::thread::Builder::new().spawn_scoped(scope, &there);
        let first = here();
        let second = match begun {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => there(),
        };
        (first, second)
    })
}

/// Runs a git command; anything but exit 0 with whole output is a failure.
fn finish(command: &Command, name: &str, cancel: &Cancel) -> Result<Said> {
    let ended = process::run(command, cancel)?;
    let (exit, how) = match ended.end {
        End::Exited(0) if !ended.truncated.any() => {
            return Ok(Said {
                stdout: ended.stdout,
                stderr: ended.stderr,
            });
        }
        End::Exited(0) => (Some(0), "printed more than can be kept".to_owned()),
        End::Exited(code) => (Some(code), format!("exited with {code}")),
        End::Signalled(signal) => (None, format!("was ended by signal {signal}")),
        End::TimedOut => (None, "ran past its deadline".to_owned()),
        End::Cancelled => (None, "was cancelled".to_owned()),
        End::Bounded(met) => (None, format!("was ended: {}", met.in_words())),
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
