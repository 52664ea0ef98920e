//! Incident 3, from outside: a whole command is tried again, as long as nothing owns the work.
//!
//! The guarded side is `semel retry`; what is waited for inside is shown by its neighbour.

use super::step;
use super::table::{Guarded, Naive, Row};
use super::transient_lock::{Met, RESTORED, find, longer};
use super::worktree::{Repo, Worktrees};
use crate::engine::trial::stage::Said;
use crate::engine::trial::{Told, hands};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const TRIES: &str = "4";

impl Worktrees<'_> {
    /// Plays the steps.
    pub(super) fn whole_commands(&self) -> Vec<Row> {
        vec![self.while_nothing_owns(), self.owned(), self.of_the_outer_run()]
    }

    fn stream(&self, repo: &Repo) -> Told<PathBuf> {
        let stream = repo.worktree.with_file_name("events.ndjson");
        self.stage.scratch.write(&stream, "").map_err(hands)?;
        Ok(stream)
    }

    /// Runs `semel retry` around a command; `stream` says where the events are.
    fn retry(&self, repo: &Repo, stream: &[OsString], command: Vec<OsString>) -> Told<Said> {
        let retry = self
            .stage
            .semel(&repo.worktree, ["retry", "--tries", TRIES, "--worktree"])?;
        let retry = retry.arg(&repo.worktree).args(["--tree", &repo.tree]);
        self.stage
            .run(&retry.args(stream.to_vec()).arg("--").args(command))
    }

    fn read_tree_words(&self, repo: &Repo) -> Told<Vec<OsString>> {
        let git = self.git(&repo.worktree, ["read-tree", "--reset", "-u", &repo.tree])?;
        let mut words = vec![git.program.into_os_string()];
        words.extend(git.args);
        Ok(words)
    }

    fn while_nothing_owns(&self) -> Row {
        const SECONDS: &[&str] = &["0.25", "0.5", "1", "2"];
        let naive = || {
            longer(SECONDS, |seconds| {
                let repo = self.repo("naive")?;
                let holder = self.holder(&repo, seconds)?;
                let said = self.read_tree(&repo)?;
                drop(holder);
                let told = format!("exit {}; f is {}", said.exit(), self.state(&repo)?);
                let met = said.exit() == 128;
                let told = if met {
                    Naive::Damage(told)
                } else {
                    Naive::Unharmed(told)
                };
                Ok((Met::from(met), told))
            })
        };
        let guarded = || {
            longer(SECONDS, |seconds| {
                let repo = self.repo("guarded")?;
                let stream = self.stream(&repo)?;
                let words = self.read_tree_words(&repo)?;
                let holder = self.holder(&repo, seconds)?;
                let said = self.retry(&repo, &by_path(&stream), words)?;
                let owner = holder.wait()?;
                let account = account(&said);
                let got = format!("{}, its owner exit {}", self.outcome(&repo, &said)?, owner.exit());
                let told = format!(
                    "{} tries, the owner held it for {seconds} s",
                    count(&account, "tries")
                );
                let met = count(&account, "failed") > 0 || said.exit() != 0;
                Ok((Met::from(met), Guarded::new(got, told)))
            })
        };
        step(
            "a whole command, again",
            "a git holds index.lock for 250 ms; a command that restores, run once (guarded: under semel retry, with an \
             event stream that nobody writes)",
            naive,
            format!("{RESTORED}, its owner exit 0"),
            guarded,
        )
    }

    fn owned(&self) -> Row {
        let naive = || {
            let repo = self.repo("naive")?;
            let stream = self.stream(&repo)?;
            let mut exits = Vec::new();
            for _ in 0..4 {
                exits.push(
                    self.helper(&repo, "0.4", &stream, self.read_tree_words(&repo)?)?
                        .exit(),
                );
            }
            let told = format!("exit {exits:?}; the stream holds {}", self.events(&stream)?);
            Ok(if exits.iter().all(|exit| *exit == 128) {
                Naive::Damage(told)
            } else {
                Naive::Unharmed(told)
            })
        };
        let guarded = || {
            let repo = self.repo("guarded")?;
            let stream = self.stream(&repo)?;
            let command = self.helper_words(&repo, "0.4", &stream, self.read_tree_words(&repo)?)?;
            let said = self.retry(&repo, &by_path(&stream), command)?;
            let account = account(&said);
            let text = |name: &str| account[name].as_str().unwrap_or_default().to_owned();
            let got = format!(
                "{} {} ({}), {} try; {}",
                said.exit(),
                text("end"),
                text("reason"),
                count(&account, "tries"),
                self.events(&stream)?
            );
            let told = format!(
                "exact command {}, exact lock {}, stream identical {}",
                count(&account, "exact_command"),
                count(&account, "exact_lock"),
                count(&account, "stream_identical")
            );
            Ok(Guarded::new(got, told))
        };
        step(
            "a run that took ownership",
            "the helper that takes the lock itself writes RunStarted in every run; naive: it is tried four times since each \
             failure is the lock's; guarded: under semel retry --tries 4",
            naive,
            "128 ownership_taken (appended), 1 try; 1 RunStarted, 1 RunFailed, 0 NodeStarted",
            guarded,
        )
    }

    fn of_the_outer_run(&self) -> Row {
        let guarded = || {
            let repo = self.repo("guarded")?;
            let inner = repo.worktree.join("runs/inner/stream.ndjson");
            self.stage.scratch.write(&inner, "").map_err(hands)?;
            let of = |run: &str| {
                ["--stream-template", "runs/{run}/stream.ndjson", "--run", run].map(OsString::from)
            };
            let outer = self.retry(&repo, &of("outer"), self.read_tree_words(&repo)?)?;
            let state = self.state(&repo)?;
            let after = self.retry(&repo, &of("inner"), self.read_tree_words(&repo)?)?;
            let tries = count(&account(&outer), "tries");
            let got = format!(
                "{}, {tries} tries, f is {state}; by the inner run's id {}",
                outer.named(),
                self.outcome(&repo, &after)?
            );
            Ok(Guarded::new(
                got,
                "the template leads to no file of the outer run",
            ))
        };
        step(
            "the stream of the outer run",
            "the stream is looked for under the id of the outer run, which has none; then under that of the inner one",
            || {
                Ok(Naive::NoSide(
                    "then it ended in ENOENT, and did no damage of its own",
                ))
            },
            format!("48 stream_unsafe, 0 tries, f is unchanged; by the inner run's id {RESTORED}"),
            guarded,
        )
    }
}

fn by_path(stream: &Path) -> [OsString; 2] {
    ["--stream".into(), stream.into()]
}

/// Gives the account of a `semel retry`: the last line, behind what its command wrote.
fn account(said: &Said) -> Value {
    let out = said.out();
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_default()
}

fn count(account: &Value, name: &str) -> u64 {
    find(account, name).and_then(Value::as_u64).unwrap_or_default()
}
