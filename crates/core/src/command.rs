//! What came of a command that a call ran: the words of receipts, answers and status files.
//!
//! It runs nothing, and does not decide whether a command may run.

use crate::bounds::Met;
use crate::confinement::Level;
use crate::digest::Sha256;
use serde::{Deserialize, Serialize};

/// Tells who had a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asker {
    /// Somebody asked for it: a person, or the end of its volume.
    Request,
    /// Whoever sent its shim SIGTERM or SIGINT, such as a service manager.
    Signal,
}

/// Says whether every descendant of a process is known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeEnded {
    /// Every descendant was reaped before the answer.
    Proved,
    /// A descendant may live on.
    Unproved,
}

/// Tells what is left of an output stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// How many bytes the command wrote.
    pub total_bytes: u64,
    /// How many of them were kept: the first ones.
    pub kept_bytes: u64,
    /// The digest of those.
    pub sha256: Sha256,
}

/// Tells how a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ended {
    /// It exited.
    Exited {
        /// Its exit status.
        code: i32,
    },
    /// A signal ended it that was not sent by us.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// Its time was up, and it was ended.
    TimedOut,
    /// It met one of its bounds, and was ended for it.
    Bounded {
        /// Which.
        met: Met,
    },
    /// It was ended because somebody asked for it.
    Asked {
        /// Who asked.
        by: Asker,
    },
}

/// Is what came of a command that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    /// How it ended.
    pub ended: Ended,
    /// Whether every one of its descendants is known to have ended.
    pub tree_ended: TreeEnded,
    /// How well it was confined.
    pub level: Level,
    /// How long it ran.
    pub took_ms: u64,
    /// What it wrote to standard output.
    pub stdout: Kept,
    /// What it wrote to standard error.
    pub stderr: Kept,
}
