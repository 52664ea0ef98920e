//! What travels between this process and the one that enters the sandbox: an order in, reports out.
//!
//! Both ends are this very binary, so the form has no versions.

use super::{Network, Require, Sandbox, TreeAccess, own_user};
use semel_core::Bounds;
use semel_core::bounds::Met;
use semel_core::confinement::Level;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The bytes of a path, argument or variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Text(Vec<u8>);

impl Text {
    pub(crate) fn of(text: impl AsRef<OsStr>) -> Self {
        Self(text.as_ref().as_bytes().to_vec())
    }

    pub(crate) fn os(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

/// What is done once everything stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Act {
    /// Runs this program. Device and inode are what its path named outside; inside it must name the same.
    Exec {
        program: Text,
        dev: u64,
        ino: u64,
        args: Vec<Text>,
        env: Vec<(Text, Text)>,
        cwd: Text,
        /// Device and inode that the working directory must have, where that was said.
        cwd_is: Option<(u64, u64)>,
    },
    /// Only says how well everything stands.
    Probe,
}

/// Whose terminal the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Session {
    /// None: it leads a session of its own.
    Own,
    /// The caller's: it stays in the caller's process group.
    Caller,
}

/// The walls to be put up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Walls {
    pub(crate) tree: Text,
    pub(crate) tree_writable: bool,
    pub(crate) home: Text,
    pub(crate) tmp: Text,
    pub(crate) hide: Vec<Text>,
    pub(crate) read_only: Vec<Text>,
    pub(crate) writable: Vec<Text>,
    pub(crate) loopback: bool,
    pub(crate) required: bool,
    pub(crate) bounds: Bounds,
    /// Whom the program runs as, where this process is root.
    pub(crate) user: u32,
}

impl Walls {
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        let all = |paths: &[PathBuf]| paths.iter().map(Text::of).collect();
        Self {
            tree: Text::of(&sandbox.tree),
            tree_writable: sandbox.tree_access == TreeAccess::Writable,
            home: Text::of(&sandbox.home),
            tmp: Text::of(&sandbox.tmp),
            hide: all(&sandbox.hide),
            read_only: all(&sandbox.read_only),
            writable: all(&sandbox.writable),
            loopback: sandbox.network == Network::Loopback,
            required: sandbox.require == Require::Full,
            bounds: sandbox.bounds,
            user: own_user(),
        }
    }

    /// Gives back the sandbox that they are the walls of.
    pub(crate) fn sandbox(&self) -> Sandbox {
        let all = |texts: &[Text]| texts.iter().map(|text| text.path().to_owned()).collect();
        Sandbox {
            tree: self.tree.path().to_owned(),
            tree_access: if self.tree_writable {
                TreeAccess::Writable
            } else {
                TreeAccess::ReadOnly
            },
            home: self.home.path().to_owned(),
            tmp: self.tmp.path().to_owned(),
            hide: all(&self.hide),
            read_only: all(&self.read_only),
            writable: all(&self.writable),
            network: if self.loopback {
                Network::Loopback
            } else {
                Network::Host
            },
            require: if self.required {
                Require::Full
            } else {
                Require::BestEffort
            },
            bounds: self.bounds,
        }
    }

    /// Lists what the program may write.
    pub(crate) fn writable(&self) -> impl Iterator<Item = &Path> {
        let tree = self.tree_writable.then_some(&self.tree);
        let fixed = [&self.home, &self.tmp].into_iter().chain(tree);
        fixed.chain(&self.writable).map(Text::path)
    }

    /// Lists what the program may read, beside what it may write and the system's own directories.
    pub(crate) fn read_only(&self) -> impl Iterator<Item = &Path> {
        let tree = (!self.tree_writable).then_some(&self.tree);
        tree.into_iter().chain(&self.read_only).map(Text::path)
    }
}

/// The whole order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) act: Act,
    pub(crate) session: Session,
    pub(crate) walls: Option<Walls>,
    /// Before what the program begins, by the wall clock in nanoseconds.
    pub(crate) since: i64,
    /// Descriptors that the program inherits.
    pub(crate) keep: Vec<i32>,
    /// Descriptors that those around the program hold to the end, and the program has not.
    pub(crate) hold: Vec<i32>,
}

/// What is reported back, one datagram each, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Report {
    /// The sandbox is required in full, and this is missing. Nothing was run.
    Unavailable { missing: Vec<String> },
    /// Everything stands; the program is begun next.
    Level { level: Level },
    /// The program did not begin after all.
    NotBegun {
        operation: String,
        path: Text,
        errno: i32,
    },
    /// The tree met a bound, and is ended for it.
    Met { met: Met },
    /// The program ended: by exit, else by this signal.
    Main { exited: Option<i32>, signal: i32 },
    /// Every descendant was reaped.
    Gone,
}

/// What the caller may ask while the program runs; one byte each.
pub(crate) mod ask {
    /// SIGTERM to the program.
    pub(crate) const TERM: u8 = b'T';
    /// SIGKILL to everything.
    pub(crate) const KILL: u8 = b'K';
}
