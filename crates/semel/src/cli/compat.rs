//! `semel restore --compat`: for callers that have to run Git themselves.

use super::answer::Answer;
use crate::config::Reach;
use crate::engine::compat::{self, Ended, Met, Now};
use crate::engine::look::read_input;
use clap::Args as ClapArgs;
use semel_core::collision::LONGEST;
use semel_core::{Code, Refusal};
use serde_json::json;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The exit status that says no; no refusal has it.
const NO: u8 = 1;

#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "For callers that run git themselves")]
pub(super) struct Compat {
    /// Restore nothing: say whether a git that ended so met exactly this worktree's index.lock: exit 0, or 1 if not
    #[arg(
        long,
        requires_all = ["exit", "stderr"],
        conflicts_with_all = [
            "tree", "job", "record", "require_pin", "git", "wait", "stale", "stale_grace", "verify", "clean", "remove_nested", "passthrough"
        ]
    )]
    compat: bool,
    /// The exit status of that git
    #[arg(long, value_name = "N", requires = "compat", allow_negative_numbers = true)]
    exit: Option<i32>,
    /// All that it wrote to stderr, under LC_ALL=C; - is standard input
    #[arg(long, value_name = "FILE", requires = "compat")]
    stderr: Option<PathBuf>,
}

impl Compat {
    /// Reads how that git ended, where that is asked.
    ///
    /// # Errors
    /// `not_found`, `bad_input`, `io_failed` for a file that cannot be read.
    pub(super) fn ended(&self) -> Result<Option<Ended>, Refusal> {
        let (true, Some(exit), Some(file)) = (self.compat, self.exit, &self.stderr) else {
            return Ok(None);
        };
        let stderr = match read(file) {
            Ok(bytes) if bytes.len() <= LONGEST => Some(bytes),
            Ok(_) => None,
            Err(refusal) if refusal.code == Code::TooLarge => None,
            Err(refusal) => return Err(refusal),
        };
        Ok(Some(Ended { exit, stderr }))
    }
}

/// Reads to the end, as a shell's user expects of a pipe, a FIFO, or `/dev/stdin`: whoever writes is waited for. Of what
/// is longer than any text of Git no more is read.
fn read(file: &Path) -> Result<Vec<u8>, Refusal> {
    if file != Path::new("-") && file != Path::new("/dev/stdin") {
        return read_input(file, LONGEST as u64);
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(LONGEST as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Refusal::new(Code::IoFailed, format!("cannot read standard input: {e}")))?;
    Ok(bytes)
}

/// Says what that git met.
pub(super) fn run(reach: &Reach, worktree: &Path, ended: &Ended) -> Result<Answer, Refusal> {
    let (text, form, lock, exit) = match compat::classify(reach, worktree, ended)? {
        Met::Collision(form, Now::Gone) => ("collision; the lock is gone", Some(form), Some("gone"), 0),
        Met::Collision(form, Now::Held) => ("collision; the lock is held", Some(form), Some("held"), 0),
        Met::Other => ("not a collision", None, None, NO),
    };
    let status = if form.is_some() { "collision" } else { "other" };
    let json = json!({"schema": "semel.compat/v1", "status": status, "form": form, "lock": lock});
    Ok(Answer {
        exit,
        ..Answer::new(text, json)
    })
}
