//! The collision texts of Git: whether a foreign `git read-tree` said that `index.lock` was in its way, and nothing
//! else.
//!
//! For callers that run Git themselves. It compares the whole of standard error with what Git prints, byte for byte:
//! a prefix or a piece of it can be forged by a filter after files were written. It knows the English texts alone, so
//! Git has to run under `LC_ALL=C`; it looks at no file, and does not say whether the lock is there, what it is, or
//! who holds it.
//!
//! # Source
//! Git's `lockfile.c` (`unable_to_lock_message`) and `usage.c` (`vreportf`), of 2.9 to 2.53 and of 2.54 and later.

use crate::code::{Code, Refusal};
use crate::path::shown;
use serde::{Deserialize, Serialize};

/// The exit status of a Git that died.
const DIED: i32 = 128;
/// The most that Git writes of one message, its newline included.
const MESSAGE: usize = 4096;
/// More than any collision text has: what is kept of standard error to know one.
///
/// # Limits
/// Two messages of Git, and then something to see that there is more.
pub const LONGEST: usize = 3 * MESSAGE;

const BEFORE: &[u8] = b"Unable to create '";
const BEHIND: &[u8] = b"': File exists.";
const LOCK: &[u8] = b"/index.lock";

const CLASSIC: &str = "Another git process seems to be running in this repository, e.g.\n\
     an editor opened by 'git commit'. Please make sure all processes\n\
     are terminated then try again. If it still fails, a git process\n\
     may have crashed in this repository earlier:\n\
     remove the file manually to continue.";
const NOBODY: &str =
    "Another git process seems to be running in this repository, or the lock file may be stale";
const LIVE: [&str; 2] = [
    "Lock may be held by process ",
    "; if no git process is running, the lock file may be stale (PIDs can be reused)",
];
const GONE: [&str; 2] = [
    "Lock was held by process ",
    ", which is no longer running; the lock file appears to be stale",
];

/// Names the text that Git printed. What it says of an owner proves nothing: process ids are used again, and mean
/// nothing in another PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// That of 2.9 to 2.53.
    Classic,
    /// That of 2.54 and later, which knows no owner.
    Nobody,
    /// That of 2.54 and later, before which it warned of a malformed file with the owner's id.
    Malformed,
    /// That of 2.54 and later, with an owner whose id is in use.
    LiveOwner,
    /// That of 2.54 and later, with an owner whose id is free.
    DeadOwner,
}

/// Is the path of the `index.lock` of a worktree, as Git prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPath(Vec<u8>);

impl LockPath {
    /// Takes the path of a lock.
    ///
    /// # Errors
    /// `bad_input` unless it is absolute, holds no NUL, and ends in `/index.lock`.
    pub fn parse(path: &[u8]) -> Result<Self, Refusal> {
        if path.starts_with(b"/") && path.ends_with(LOCK) && !path.contains(&0) {
            return Ok(Self(printed(path)));
        }
        let refusal = Refusal::new(Code::BadInput, "not the absolute path of an index.lock");
        Err(refusal.name(shown(path)))
    }

    /// Gives the path as Git prints it: control bytes but tab and newline are `?`.
    #[must_use]
    pub fn printed(&self) -> &[u8] {
        &self.0
    }
}

/// Says whether a Git that ended so met exactly this lock, and in which words; `None` is every other failure.
///
/// # Limits
/// Git prints 4,095 bytes of a message. Where the path is so long that its end is not among them, nobody can know
/// which lock it was: `None`.
#[must_use]
pub fn classify(exit: i32, stderr: &[u8], lock: &LockPath) -> Option<Form> {
    if exit != DIED {
        return None;
    }
    classify_text(stderr, lock.printed())
}

/// Says whether a Git that ended so met the `index.lock` of any worktree, and gives its path as it was printed.
///
/// A path that itself holds what Git says behind it is taken for none: two texts in a row look the same.
#[must_use]
pub fn of_any_lock(exit: i32, stderr: &[u8]) -> Option<(LockPath, Form)> {
    if exit != DIED {
        return None;
    }
    let end = rfind(stderr, BEHIND)?;
    let before = [b"fatal: ", BEFORE].concat();
    let head = stderr.get(..end)?;
    let path = if head.starts_with(&before) {
        head.get(before.len()..)?
    } else {
        let warned = head.strip_prefix(b"warning: malformed lock pid file '")?;
        // The warning names the path, too: half of what is left, but for what is known.
        let known = [b"~pid.lock'\n", before.as_slice()].concat();
        let twice = warned.len().checked_sub(known.len())?;
        let at = twice.checked_sub(b".lock".len())? / 2;
        warned.get(at + known.len()..)?
    };
    if rfind(path, BEHIND).is_some() {
        return None;
    }
    let lock = LockPath::parse(path).ok()?;
    let form = classify_text(stderr, lock.printed())?;
    Some((lock, form))
}

/// Says whether a text holds the sentence that names this lock, wherever it stands: for a report, never for a verdict.
#[must_use]
pub fn names(text: &[u8], lock: &LockPath) -> bool {
    rfind(text, &[BEFORE, lock.printed(), BEHIND].concat()).is_some()
}

fn classify_text(stderr: &[u8], lock: &[u8]) -> Option<Form> {
    // A message that was cut inside of the path names no lock.
    if b"fatal: ".len() + BEFORE.len() + lock.len() + BEHIND.len() >= MESSAGE {
        return None;
    }
    for (form, sentence) in [(Form::Classic, CLASSIC), (Form::Nobody, NOBODY)] {
        if stderr == fatal(lock, sentence.as_bytes()) {
            return Some(form);
        }
    }
    let rest = stderr.strip_prefix(malformed(lock).as_slice());
    if rest.is_some_and(|rest| rest == fatal(lock, NOBODY.as_bytes())) {
        return Some(Form::Malformed);
    }
    for (form, [before, behind]) in [(Form::LiveOwner, LIVE), (Form::DeadOwner, GONE)] {
        let opening = [BEFORE, lock, BEHIND, b"\n\n", before.as_bytes()].concat();
        let pid = stderr
            .strip_prefix(b"fatal: ")
            .and_then(|text| text.strip_prefix(opening.as_slice()))
            .map(digits)
            .unwrap_or_default();
        if is_pid(pid) && stderr == fatal(lock, &[before.as_bytes(), pid, behind.as_bytes()].concat()) {
            return Some(form);
        }
    }
    None
}

/// Writes what Git prints when it dies of a lock, from its first to its last byte.
fn fatal(lock: &[u8], sentence: &[u8]) -> Vec<u8> {
    message(&[b"fatal: ", BEFORE, lock, BEHIND, b"\n\n", sentence].concat())
}

/// Writes the warning of a file `index~pid.lock` that holds no process id.
fn malformed(lock: &[u8]) -> Vec<u8> {
    let stem = lock.strip_suffix(b".lock").unwrap_or(lock);
    message(&[b"warning: malformed lock pid file '", stem, b"~pid.lock'"].concat())
}

/// Cuts a message where Git's buffer ends.
fn message(text: &[u8]) -> Vec<u8> {
    let mut message = text.get(..MESSAGE - 1).unwrap_or(text).to_vec();
    message.push(b'\n');
    message
}

fn printed(path: &[u8]) -> Vec<u8> {
    let control = |b: u8| (b < 0x20 || b == 0x7f) && b != b'\t' && b != b'\n';
    path.iter().map(|b| if control(*b) { b'?' } else { *b }).collect()
}

fn digits(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// Says whether these digits are what Git prints for a process id: a number from 1 on, without leading zeros.
fn is_pid(digits: &[u8]) -> bool {
    let number = core::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    number.is_some_and(|number| number > 0) && !digits.starts_with(b"0")
}

fn rfind(text: &[u8], piece: &[u8]) -> Option<usize> {
    text.windows(piece.len()).rposition(|window| window == piece)
}

#[cfg(test)]
mod tests;
