//! `semel retry`: a whole command, run again only while nothing has taken ownership of the work.
//!
//! Each try: look at the stream, run, look again, decide; then wait for the lock, look once more, and only then run
//! again. Nothing is stored but counts, and those only if a daemon runs: no stderr, path or content.

use super::restore::target;
use super::{command, host};
use crate::config::{self, Reach};
use crate::engine::job::interrupt::Interrupt;
use crate::wire;
use semel_core::Refusal;
use semel_core::collision::LONGEST;
use semel_core::command::TreeEnded;
use semel_core::retry::{self, Counts, End, Ending, Next, Retrial, Tried, Work};
use semel_host::clock;
use semel_host::git::{Git, Require, Waited, Worktree};
use semel_host::process::{self, Command, End as Ended, Output};
use semel_host::stream::Stream;
use semel_store::Journal as _;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Says where the event stream of the run lies.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// At this path.
    File(PathBuf),
    /// In the worktree, where a template says for a run.
    Template {
        /// The template; it holds `{run}` once.
        template: OsString,
        /// The id of the run that writes it: the inner one.
        run: OsString,
    },
}

/// Says what is to be run, and what it is held against.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The worktree that the command restores.
    pub(crate) worktree: PathBuf,
    /// The tree that it restores it to.
    pub(crate) tree: String,
    /// The event stream of the run.
    pub(crate) stream: Place,
    /// How often it is tried at most.
    pub(crate) tries: u32,
    /// How long a lock is waited for before another try.
    pub(crate) wait: Duration,
    /// The command, and its arguments.
    pub(crate) command: Vec<OsString>,
}

/// Is what came of all tries.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Why there is no further try.
    pub(crate) end: End,
    /// The exit status of the last try, to be passed through.
    pub(crate) status: u8,
    /// Whether anything of the last try may live on.
    pub(crate) tree_ended: TreeEnded,
    /// What was counted.
    pub(crate) counts: Counts,
}

/// Runs a command, and again while it may be.
///
/// # Errors
/// Only where the command never began: `stream_unsafe`, `ownership_taken` (the stream is being written),
/// `worktree_redirected`, `bad_input`, `object_missing`, `not_found`, `io_failed`. And `outcome_unknown` where nobody
/// can say whether it did.
pub(crate) fn retry(reach: &Reach, asked: &Asked, interrupt: &Interrupt) -> Result<Outcome, Refusal> {
    let result = prepared(reach, asked, interrupt).and_then(Tries::all);
    let (end, counts) = match &result {
        Ok(outcome) => (outcome.end.recorded(), outcome.counts),
        Err(refusal) => (Ending::Refused(refusal.code), Counts::default()),
    };
    report(reach, end, counts);
    result
}

/// Tells the daemon what was counted, if one runs. No try depends on it.
fn report(reach: &Reach, end: Ending, counts: Counts) {
    let Some(config) = &reach.config else { return };
    let at = clock::now();
    drop(wire::telling(config.clone()).retried(Retrial { end, counts, at }));
}

/// Looks at all that a command is held against, before its first try.
fn prepared<'a>(reach: &Reach, asked: &Asked, interrupt: &'a Interrupt) -> Result<Tries<'a>, Refusal> {
    let mut run = command::own(&asked.command, Path::new("."))?;
    run.output = Output::Through {
        keep_bytes: LONGEST as u64,
    };
    let git = Git::find(&reach.path).map_err(host)?;
    let target = target(reach, &asked.worktree, Require::Nothing);
    let spellings = config::spellings(&asked.worktree);
    let target = target.and_then(|target| Worktree::find(&git, &spellings, target, interrupt.cancel()));
    let target = target.map_err(host)?;
    let tree = target.tree(&asked.tree).map_err(host)?;
    let (stream, sight) = match &asked.stream {
        Place::File(path) => Stream::open(path, target.owner()),
        Place::Template { template, run } => {
            let place = retry::place_of_template(template.as_bytes(), run.as_bytes())?;
            Stream::open_within(target.worktree(), &place, target.owner())
        }
    }
    .map_err(host)?;
    let work = Work {
        tree,
        locks: target.locks().map_err(host)?,
        stream: sight,
        tries: asked.tries,
    };
    Ok(Tries {
        run,
        target,
        stream,
        work,
        wait: asked.wait,
        interrupt,
        counts: Counts::default(),
    })
}

/// Is everything that is known before the first try.
struct Tries<'a> {
    run: Command,
    target: Worktree,
    stream: Stream,
    work: Work,
    wait: Duration,
    interrupt: &'a Interrupt,
    counts: Counts,
}

impl Tries<'_> {
    fn all(mut self) -> Result<Outcome, Refusal> {
        let mut last: Option<(u8, TreeEnded)> = None;
        loop {
            let ended = match (process::run(&self.run, self.interrupt.cancel()), last) {
                (Ok(ended), _) => ended,
                (Err(error), None) => return Err(host(error)),
                // What the try before it ended with stands.
                (Err(error), Some(last)) => return Ok(self.outcome(End::Refused(host(error)), last)),
            };
            self.counts.tries += 1;
            let now = (
                command::status(self.interrupt.signal(), ended.end),
                ended.tree_ended,
            );
            last = Some(now);
            let tried = self.tried(ended);
            let next = self.work.judge(self.counts.tries, &tried);
            if tried.exit != Some(0) {
                self.counts.add(self.work.predicates(&tried));
            }
            let end = match next {
                _ if self.interrupt.signal().is_some() => Some(End::Interrupted),
                Next::End(end) => Some(end),
                Next::Again => self.before_another().err(),
            };
            if let Some(end) = end {
                // A signal that came while the lock was waited for.
                let status = self.interrupt.status().unwrap_or(now.0);
                return Ok(self.outcome(end, (status, now.1)));
            }
        }
    }

    fn tried(&self, ended: process::Ended) -> Tried {
        Tried {
            exit: match ended.end {
                Ended::Exited(status) => Some(status),
                Ended::Signalled(_) | Ended::TimedOut | Ended::Cancelled | Ended::Bounded(_) => None,
            },
            stderr: ended.stderr,
            beyond: ended.truncated.stderr_bytes,
            stream: self.stream.look(),
            tree_ended: ended.tree_ended,
        }
    }

    /// Waits until the lock is gone, and looks once more whether anything has taken ownership meanwhile.
    fn before_another(&mut self) -> Result<(), End> {
        let cancel = self.interrupt.cancel();
        let refused = |error| End::Refused(host(error));
        let waited = self.target.wait_for_lock(self.wait, cancel).map_err(refused)?;
        let (Waited::Gone(time) | Waited::Refused(_, time) | Waited::Cancelled(time)) = &waited;
        self.counts.waits += 1;
        self.counts.waited_ms += u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match waited {
            Waited::Gone(_) => {}
            Waited::Refused(refusal, _) => return Err(End::Refused(refusal)),
            Waited::Cancelled(_) => return Err(End::Interrupted),
        }
        self.target
            .still_there()
            .map_err(|error| match self.interrupt.signal() {
                Some(_) => End::Interrupted,
                None => refused(error),
            })?;
        match retry::compare(&self.work.stream, &self.stream.look()) {
            Some(change) => Err(End::Refused(change.refusal())),
            None => Ok(()),
        }
    }

    fn outcome(self, end: End, (status, tree_ended): (u8, TreeEnded)) -> Outcome {
        Outcome {
            end,
            status,
            tree_ended,
            counts: self.counts,
        }
    }
}
