//! How a command ended, in the form in which its shim leaves it behind.

use crate::error::Error;
use crate::process::{self, End, TreeEnded};
use semel_core::command::Ended;
pub use semel_core::command::{Asker, Kept};
use semel_core::{Code, Level, Refusal};
use serde::{Deserialize, Serialize};

/// The only version of the form.
const VERSION: u32 = 1;

/// Tells what came of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It ran, and ended.
    Ended(Ended),
    /// It is proven not to have begun.
    NotBegun {
        /// Why.
        refusal: Refusal,
    },
}

/// Tells how a command ended, and what it left.
///
/// # Shape
/// `{"version":1,"outcome":{"ended":{"end":"exited","code":0}},"tree_ended":"proved","level":{…},"took_ms":12,"stdout":{…},"stderr":{…}}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// The version of this form.
    pub version: u32,
    /// How it ended.
    pub outcome: Outcome,
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

impl Status {
    /// Makes the status of a command that was run, or could not be.
    pub(super) fn of(run: Result<process::Ended, Error>, asker: Asker, stdout: Kept, stderr: Kept) -> Self {
        let (outcome, tree_ended, level, took_ms) = match run {
            Ok(ended) => {
                let how = match ended.end {
                    End::Exited(code) => Ended::Exited { code },
                    End::Signalled(signal) => Ended::Signalled { signal },
                    End::TimedOut => Ended::TimedOut,
                    End::Bounded(met) => Ended::Bounded { met },
                    End::Cancelled => Ended::Asked { by: asker },
                };
                let took_ms = u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX);
                (Outcome::Ended(how), ended.tree_ended, ended.level, took_ms)
            }
            Err(error) => {
                let refusal = error.into_refusal();
                let level = Level::none("it did not begin");
                (Outcome::NotBegun { refusal }, TreeEnded::Proved, level, 0)
            }
        };
        Self {
            version: VERSION,
            outcome,
            tree_ended,
            level,
            took_ms,
            stdout,
            stderr,
        }
    }

    /// Reads a status.
    ///
    /// # Errors
    /// `unknown_state` where it is not one, or of another version.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let odd = || Refusal::new(Code::UnknownState, "the status of an execution cannot be read");
        let status: Self = serde_json::from_slice(bytes).map_err(|_| odd())?;
        if status.version == VERSION {
            Ok(status)
        } else {
            Err(odd().reason("other_version"))
        }
    }
}
