//! `semel restore`: restore a git worktree to a tree, under our own lock.

use super::answer::{Answer, err, raw_err};
use super::{Context, Progress, compat};
use crate::engine::job::interrupt;
use crate::engine::prepared::{self, Recording};
use crate::engine::restore::{self, Leftovers, Nested, Point, Refused, Stale, Stops, Waiting, Witness};
use crate::limits;
use clap::{Args as ClapArgs, ValueEnum};
use semel_core::Refusal;
use semel_core::ids::JobId;
use semel_core::job::Span;
use serde_json::json;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

/// Restore a git worktree to a tree, under our own lock.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The worktree
    #[arg(long, value_name = "DIR")]
    worktree: PathBuf,
    /// The tree, by its full object id; with --job the one that was recorded, where none is named
    #[arg(long, value_name = "ID", required_unless_present_any = ["job", "compat"])]
    tree: Option<String>,
    /// The job it is for: its recorded tree is restored, and no other
    #[arg(long, value_name = "JOB")]
    job: Option<JobId>,
    /// Record the tree with the job once it is restored; needs a pinned worktree
    #[arg(long, requires_all = ["job", "tree"])]
    record: bool,
    /// The git that is used [default: the first one in the configured directories]
    #[arg(long, value_name = "PATH")]
    git: Option<PathBuf>,
    /// How long index.lock is waited for
    #[arg(
        long,
        value_name = "TIME",
        help = "How long index.lock is waited for [default: 60s]"
    )]
    wait: Option<Span>,
    /// Whether a lock that another program left may be adopted
    #[arg(long, value_enum, default_value_t = StaleOn::Evidence)]
    stale: StaleOn,
    /// For how long such a lock must be seen unchanged
    #[arg(
        long,
        value_name = "TIME",
        help = "For how long such a lock must be seen unchanged [default: 10s]"
    )]
    stale_grace: Option<Span>,
    /// How much is proved before the index is published
    #[arg(long, value_enum, default_value_t = Verify::Bytes)]
    verify: Verify,
    /// Refuse a worktree that is not pinned
    #[arg(long)]
    require_pin: bool,
    /// Remove what is not of the tree, untracked and ignored
    #[arg(long)]
    clean: bool,
    /// Remove repositories that lie where a file or directory of the tree has to go, or in what --clean removes
    #[arg(long)]
    remove_nested: bool,
    /// End as git itself did: its exit status and its stderr, and nothing else
    #[arg(long)]
    passthrough: bool,
    #[command(flatten)]
    compat: compat::Compat,
    /// Kill the process at this point, for a test
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
    /// Hold the process at this point while a file is there, for a test
    #[arg(long, hide = true, value_name = "POINT=PATH")]
    hold_at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StaleOn {
    /// On complete evidence that its owner is gone
    Evidence,
    /// Never: it is waited for
    Never,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Verify {
    /// The index writes exactly the tree
    Tree,
    /// And every file was read back and hashed
    Bytes,
    /// And nothing else lies in the worktree, untracked or ignored
    Pristine,
}

/// Tells a person at a terminal what is waited for, and stops where a test wants it.
struct Teller {
    lines: Progress,
    next: Mutex<Duration>,
    stops: Stops,
}

/// After how long of a wait a person is told, and between two lines.
const TELL_AFTER: Duration = Duration::from_secs(1);
const TELL_AGAIN: Duration = Duration::from_secs(5);

impl Witness for Teller {
    fn reached(&self, point: Point) {
        self.stops.reached(point);
    }

    fn waiting(&self, waiting: &Waiting) {
        let mut next = self
            .next
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.lines == Progress::Quiet || waiting.waited < *next {
            return;
        }
        *next = waiting.waited + TELL_AGAIN;
        err(&format!(
            "waiting for index.lock: {} of {} s; held by {}, changed {} s ago",
            waiting.waited.as_secs(),
            waiting.bound.as_secs(),
            waiting.owner.as_deref().unwrap_or("nobody that can be seen"),
            waiting.age.as_secs(),
        ));
    }
}

impl Args {
    fn asked(&self) -> restore::Asked {
        restore::Asked {
            worktree: self.worktree.clone(),
            tree: self.tree.clone().unwrap_or_default(),
            git: self.git.clone(),
            wait: self.wait.map_or(limits::LOCK_WAIT, Span::get),
            stale: match self.stale {
                StaleOn::Never => Stale::Never,
                StaleOn::Evidence => Stale::Evidence {
                    grace: self.stale_grace.map_or(limits::LOCK_STALE, Span::get),
                },
            },
            verify: match self.verify {
                Verify::Tree => restore::Verify::Tree,
                Verify::Bytes => restore::Verify::Bytes,
                Verify::Pristine => restore::Verify::Pristine,
            },
            leftovers: if self.clean {
                Leftovers::Removed
            } else {
                Leftovers::Kept
            },
            nested: if self.remove_nested {
                Nested::Removed
            } else {
                Nested::Refused
            },
            require: if self.require_pin {
                restore::Require::Pin
            } else {
                restore::Require::Nothing
            },
            job: None,
        }
    }

    fn recording(&self) -> Recording {
        if self.record {
            Recording::Record
        } else {
            Recording::Recall
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let reach = context.reach()?;
    if let Some(ended) = args.compat.ended()? {
        return compat::run(&reach, &args.worktree, &ended);
    }
    let stops = Stops::parse(args.crash_at.as_deref(), args.hold_at.as_deref())?;
    let interrupt = interrupt::watch()?;
    // A pipe is read by a machine, which has the outcome; and git's bytes stand alone where they are passed through.
    let lines = if args.passthrough || !std::io::stderr().is_terminal() {
        Progress::Quiet
    } else {
        context.progress
    };
    let teller = Teller {
        lines,
        next: Mutex::new(TELL_AFTER),
        stops,
    };
    let (asked, tree) = (args.asked(), args.tree.as_deref());
    let cancel = interrupt.cancel();
    let result = match &args.job {
        Some(job) => prepared::restore_for(
            context.config()?,
            asked,
            tree,
            job,
            args.recording(),
            cancel,
            &teller,
        )
        .map(|(restored, recorded)| (restored, Some(recorded))),
        None => restore::restore(&reach, &asked, cancel, &teller).map(|restored| (restored, None)),
    };
    match result {
        Ok((restored, recorded)) => {
            raw_err(restored.stderr());
            let record = recorded.map(|recorded| recorded.facts());
            let json = json!({"schema": "semel.restore/v1", "status": "restored",
                "outcome": restored.facts(), "record": record});
            let text = if args.passthrough {
                String::new()
            } else {
                restored.residue_line()
            };
            Ok(Answer::new(text, json))
        }
        Err(refused) => Ok(refusal(*refused, &args, interrupt.status())),
    }
}

/// Tells of a refusal; `signal` is the exit status of a signal that came meanwhile: whatever was under way, that it came
/// is why.
fn refusal(refused: Refused, args: &Args, signal: Option<u8>) -> Answer {
    // Git's own bytes come first, unchanged.
    raw_err(&refused.stderr);
    let mut json = super::answer::refusal_json(&refused.refusal);
    json["schema"] = "semel.restore/v1".into();
    json["status"] = signal.map_or("refused", |_| "cancelled").into();
    json["git_exit"] = refused.git_exit.into();
    json["touched"] = refused.touched.into();
    json["counts"] = json!(refused.counts);
    json["git"] = json!(refused.git);
    let own = refused.git_exit.and_then(|status| u8::try_from(status).ok());
    let passed = own.filter(|_| args.passthrough);
    let exit = signal.or(passed).unwrap_or(refused.refusal.code.exit());
    json["exit"] = exit.into();
    let answer = Answer::new("", json);
    if passed.is_some() && signal.is_none() {
        return Answer { exit, ..answer };
    }
    Answer {
        exit,
        ..answer.refused(refused.refusal)
    }
}
