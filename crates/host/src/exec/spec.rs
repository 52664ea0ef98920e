//! What is to be run, and what it finds around it.

use crate::error::{Error, Result};
use crate::plain;
use crate::process::letter;
use crate::sandbox::spec::{Text, Walls};
use crate::sandbox::{Network, Require, Sandbox, TreeAccess};
use crate::volume::Volume;
use semel_core::{Bounds, Code, Refusal, RelPath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SHELL: &str = "/bin/sh";

/// Runs its arguments in its own place: so a program is looked up where it runs, and a missing one is told as a shell
/// tells it.
const EXEC: &str = "exec \"$@\"";

/// Variables that no caller sets.
const OURS: [&str; 2] = ["HOME", "TMPDIR"];

/// Says what is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A line for the shell.
    Shell(OsString),
    /// A program, looked up in `PATH` or from the working directory, and its arguments.
    Argv(Vec<OsString>),
}

/// Says what a command finds around it, beside its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Around {
    /// Where programs are looked up.
    pub path: Vec<PathBuf>,
    /// Further variables of every command of the volume; those of one command go before them.
    pub env: BTreeMap<OsString, OsString>,
    /// What it never sees, such as the state root and the homes.
    pub hide: Vec<PathBuf>,
    /// What it reads beside the system's own directories, such as toolchains.
    pub read_only: Vec<PathBuf>,
    /// What it reaches of the network.
    pub network: Network,
    /// What is done where a part of the sandbox cannot be had.
    pub require: Require,
    /// What bounds it, with all that it starts.
    pub bounds: Bounds,
}

/// Is a command to be run at most once; its standard input is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What is run.
    pub what: What,
    /// Where, beneath the root.
    pub cwd: RelPath,
    /// Further variables.
    pub env: BTreeMap<OsString, OsString>,
    /// After how long it is asked to end; the shim counts, whoever else lives.
    pub timeout: Duration,
    /// How long after being asked it is killed.
    pub grace: Duration,
    /// The most bytes kept of each output stream.
    pub cap_bytes: u64,
    /// What it finds around it.
    pub around: Around,
}

/// Names an output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Holds the private places of a volume, which its agent and all its commands share, and which go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The home.
    pub home: PathBuf,
    /// The place of temporary files.
    pub tmp: PathBuf,
}

/// Gives the private places of a volume, and makes them where they are missing.
///
/// # Shape
/// `<generation>/work/{home,tmp}`
///
/// # Errors
/// `io_failed`.
pub fn private_places(volume: &Volume) -> Result<Places> {
    let work = volume.path().join("work");
    let places = Places {
        home: work.join("home"),
        tmp: work.join("tmp"),
    };
    for place in [&work, &places.home, &places.tmp] {
        plain::private_directory(place)?;
    }
    Ok(places)
}

/// What travels to the shim; both ends are this very binary.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    pub(super) program: Text,
    pub(super) args: Vec<Text>,
    pub(super) env: Vec<(Text, Text)>,
    pub(super) cwd: Text,
    pub(super) cwd_is: (u64, u64),
    pub(super) timeout: Duration,
    pub(super) grace: Duration,
    pub(super) cap_bytes: u64,
    pub(super) walls: Walls,
}

impl Spec {
    /// Finds out whether this command could be started in a volume; nothing is on the disk but its private places.
    ///
    /// # Errors
    /// As [`super::start`], as far as they can be told before.
    pub fn check(&self, volume: &Volume) -> Result<()> {
        self.order(volume).map(drop)
    }

    /// Writes the order of this command in a volume, where the shim reads it by its descriptor; it is never in a file.
    ///
    /// # Errors
    /// `bad_input`; as [`crate::root::Root::directory`] for the working directory; `io_failed`.
    pub(super) fn order(&self, volume: &Volume) -> Result<OwnedFd> {
        let args = self.args()?;
        let (directory, resolved) = volume.tree().directory(&self.cwd)?;
        let facts = rustix::fs::fstat(&directory)
            .map_err(|e| Error::io("examine", OsStr::from_bytes(self.cwd.as_bytes()), e))?;
        let places = private_places(volume)?;
        let env = self.environment(&places)?;
        // Whatever else is to be hidden: what it could forge its own status in.
        let mut hide = self.around.hide.clone();
        hide.push(volume.path().to_owned());
        let sandbox = Sandbox {
            tree: volume.tree_path(),
            tree_access: TreeAccess::Writable,
            home: places.home,
            tmp: places.tmp,
            hide,
            read_only: self.around.read_only.clone(),
            writable: Vec::new(),
            network: self.around.network,
            require: self.around.require,
            bounds: self.around.bounds,
        };
        letter(&Order {
            program: Text::of(SHELL),
            args: args.iter().map(Text::of).collect(),
            env: env.iter().map(|(n, v)| (Text::of(n), Text::of(v))).collect(),
            cwd: Text::of(cwd_path(volume, &resolved)),
            cwd_is: (facts.st_dev, facts.st_ino),
            timeout: self.timeout,
            grace: self.grace,
            cap_bytes: self.cap_bytes,
            walls: Walls::of(&sandbox),
        })
    }

    fn args(&self) -> Result<Vec<OsString>> {
        let args = match &self.what {
            What::Shell(line) if line.is_empty() => return Err(bad("the command is empty", "command")),
            What::Shell(line) => vec!["-c".into(), line.clone()],
            What::Argv(argv) => {
                let program = argv.first().filter(|program| !program.is_empty());
                if program.is_none() {
                    return Err(bad("the command is empty", "command"));
                }
                // Not every shell's `exec` knows where its own options end.
                if let Some(program) = program.filter(|program| program.as_bytes().starts_with(b"-")) {
                    return Err(bad("the name of a program begins with '-'", program));
                }
                let fixed: [OsString; 3] = ["-c".into(), EXEC.into(), "sh".into()];
                fixed.into_iter().chain(argv.iter().cloned()).collect()
            }
        };
        match args.iter().find(|arg| arg.as_bytes().contains(&0)) {
            Some(arg) => Err(bad("an argument holds a NUL", arg)),
            None => Ok(args),
        }
    }

    fn environment(&self, places: &Places) -> Result<BTreeMap<OsString, OsString>> {
        let path = std::env::join_paths(&self.around.path)
            .map_err(|_| bad("a place of programs has a colon in its name", "PATH"))?;
        let fixed: [(&str, OsString); 5] = [
            ("PATH", path),
            ("LANG", "C.UTF-8".into()),
            ("GIT_OPTIONAL_LOCKS", "0".into()),
            ("HOME", places.home.clone().into()),
            ("TMPDIR", places.tmp.clone().into()),
        ];
        let mut env: BTreeMap<OsString, OsString> = fixed.map(|(n, v)| (n.into(), v)).into();
        for (name, value) in self.around.env.iter().chain(&self.env) {
            if OURS.iter().any(|ours| name == ours) {
                return Err(bad(
                    "a command has the home and temporary place of its volume",
                    name,
                ));
            }
            let bytes = name.as_bytes();
            if bytes.is_empty() || bytes.contains(&b'=') || bytes.contains(&0) {
                return Err(bad("a variable has no name, or one with '=' or a NUL", name));
            }
            if value.as_bytes().contains(&0) {
                return Err(bad("a variable holds a NUL", name));
            }
            env.insert(name.clone(), value.clone());
        }
        Ok(env)
    }
}

fn cwd_path(volume: &Volume, resolved: &RelPath) -> PathBuf {
    let tree = volume.tree_path();
    if resolved.is_root() {
        return tree;
    }
    tree.join(Path::new(OsStr::from_bytes(resolved.as_bytes())))
}

fn bad(why: &str, about: impl AsRef<OsStr>) -> Error {
    let shown = semel_core::path::shown(about.as_ref().as_bytes());
    Refusal::new(Code::BadInput, why).name(shown).into()
}
