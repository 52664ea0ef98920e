//! Incident 3: a restoration failed on a transient index lock.
//!
//! Every step has a repository and a linked worktree of its own for each side. Who holds a lock is a real git, stopped
//! in a filter or in an editor, wherever the incident had a git; the guarded side is `semel restore`, and `semel retry`
//! around a whole command.

use super::table::{Guarded, Naive, Row};
use super::worktree::{CHANGED, Repo, Worktrees};
use super::{Length, step};
use crate::engine::trial::stage::{Background, Said, Stage};
use crate::engine::trial::{Told, hands};
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

pub(super) const RESTORED: &str = "0 restored";

/// Plays the incident.
///
/// # Errors
/// Why it cannot be played here.
pub(super) fn play(stage: &Stage, length: Length, tools: &mut Vec<String>) -> Told<Vec<Row>> {
    let world = Worktrees {
        stage,
        git: stage.tool("git")?,
        sh: stage.tool("sh")?,
    };
    let version = stage.run(&stage.command(&world.git, stage.scratch.path())?.arg("--version"))?;
    tools.push(format!(
        "{} at {}",
        version.ok("git --version")?.out(),
        world.git.display()
    ));
    let mut rows = vec![world.held(&INCIDENT)];
    match length {
        Length::Short => rows.push(world.held(&SHORT)),
        Length::Long => rows.extend([world.held(&SIX), world.held(&SEVEN)]),
    }
    rows.extend([
        world.wait_inside(),
        world.orphan(),
        world.own_orphan(),
        world.living_owner(),
        world.unrelated_error(),
        world.symlinked_lock(),
    ]);
    rows.extend(world.whole_commands());
    rows.push(world.left_over());
    Ok(rows)
}

/// Is a lock that a living git holds for a while.
struct Hold {
    name: &'static str,
    done: &'static str,
    /// For how long; where a slow side outlasts it, the next longer one is taken.
    seconds: &'static [&'static str],
    /// How often the naive side tries, with 50 ms in between.
    tries: u32,
}

const INCIDENT: Hold = Hold {
    name: "the incident itself",
    done: "a git holds index.lock for 250 ms, taken 50 ms before; git read-tree --reset -u, once (guarded: semel restore)",
    seconds: &["0.25", "0.5", "1", "2"],
    tries: 1,
};
const SHORT: Hold = Hold {
    name: "a slow disk's owner",
    done: "the lock is held for 2 s against 16 tries, 50 ms apart (then it was 6 s against 101 tries; --long plays that, \
           and 7.5 s)",
    seconds: &["2", "4"],
    tries: 16,
};
const SIX: Hold = Hold {
    name: "a slow disk's owner, 6 s",
    done: "the lock is held for 6 s against 101 tries, 50 ms apart",
    seconds: &["6", "9"],
    tries: 101,
};
const SEVEN: Hold = Hold {
    name: "a slow disk's owner, 7.5 s",
    done: "the lock is held for 7.5 s against 101 tries, 50 ms apart",
    seconds: &["7.5", "11"],
    tries: 101,
};

impl Worktrees<'_> {
    fn held(&self, hold: &Hold) -> Row {
        let naive = || {
            longer(hold.seconds, |seconds| {
                let repo = self.repo("naive")?;
                let holder = self.holder(&repo, seconds)?;
                let began = std::time::Instant::now();
                let (mut tries, mut last) = (1, self.read_tree(&repo)?);
                while last.exit() != 0 && tries < hold.tries {
                    std::thread::sleep(Duration::from_millis(50));
                    (tries, last) = (tries + 1, self.read_tree(&repo)?);
                }
                let took = began.elapsed().as_millis();
                let alive = if holder.ended() {
                    "had let go"
                } else {
                    "still held it"
                };
                drop(holder);
                let told = format!(
                    "tried {tries} x in {took} ms, the last time exit {}, {} bytes of stderr; the owner {alive} (of \
                     {seconds} s); f is {}",
                    last.exit(),
                    last.stderr.len(),
                    self.state(&repo)?
                );
                let told = if last.exit() == 128 {
                    Naive::Damage(told)
                } else {
                    Naive::Unharmed(told)
                };
                Ok((Met::from(last.exit() != 0), told))
            })
        };
        let guarded = || {
            longer(hold.seconds, |seconds| {
                let repo = self.repo("guarded")?;
                let holder = self.holder(&repo, seconds)?;
                let said = self.restore(&repo, "60s")?;
                let owner = holder.wait()?;
                let got = format!("{}, its owner exit {}", self.outcome(&repo, &said)?, owner.exit());
                let told = format!("one call, the owner held it for {seconds} s, {}", waited(&said));
                Ok((met(&said), Guarded::new(got, told)))
            })
        };
        step(
            hold.name,
            hold.done,
            naive,
            format!("{RESTORED}, its owner exit 0"),
            guarded,
        )
    }

    /// Gives the words that run the helper once, around a restoration.
    pub(super) fn helper_words(
        &self,
        repo: &Repo,
        seconds: &str,
        stream: &Path,
        restore: Vec<OsString>,
    ) -> Told<Vec<OsString>> {
        let script = self
            .stage
            .scratch
            .write("scripts/helper.sh", include_str!("helper.sh"))
            .map_err(hands)?;
        let lock = repo.lock.clone().into_os_string();
        let mut words = vec![
            self.sh.clone().into(),
            script.into(),
            lock,
            seconds.into(),
            stream.into(),
        ];
        words.extend(restore);
        Ok(words)
    }

    /// Runs the helper once, around a restoration.
    pub(super) fn helper(
        &self,
        repo: &Repo,
        seconds: &str,
        stream: &Path,
        restore: Vec<OsString>,
    ) -> Told<Said> {
        let mut words = self.helper_words(repo, seconds, stream, restore)?.into_iter();
        let program = words.next().unwrap_or_default();
        self.stage
            .run(&self.stage.command(program, &repo.worktree)?.args(words))
    }

    /// Counts the events of a stream.
    pub(super) fn events(&self, stream: &Path) -> Told<String> {
        let bytes = self
            .stage
            .scratch
            .read(stream)
            .map_err(hands)?
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let count = |event: &str| text.matches(&format!("\"{event}\"")).count();
        let names = ["RunStarted", "RunFailed", "NodeStarted"];
        Ok(names.map(|name| format!("{} {name}", count(name))).join(", "))
    }

    fn wait_inside(&self) -> Row {
        const TRIES: usize = 4;
        let naive = || {
            let repo = self.repo("naive")?;
            let stream = repo.worktree.with_file_name("events.ndjson");
            let mut exits = Vec::new();
            while exits.len() < TRIES && !exits.contains(&0) {
                let read_tree = self.git(&repo.worktree, ["read-tree", "--reset", "-u", &repo.tree])?;
                let mut words = vec![read_tree.program.into_os_string()];
                words.extend(read_tree.args);
                exits.push(self.helper(&repo, "0.4", &stream, words)?.exit());
            }
            let failed = exits.iter().filter(|exit| **exit == 128).count();
            let told = format!(
                "{} whole tries, exit {exits:?}; the stream holds {}",
                exits.len(),
                self.events(&stream)?
            );
            Ok(if failed == TRIES {
                Naive::Damage(told)
            } else {
                Naive::Unharmed(told)
            })
        };
        let guarded = || {
            longer(&["0.4", "1", "3"], |seconds| {
                let repo = self.repo("guarded")?;
                let stream = repo.worktree.with_file_name("events.ndjson");
                let restore = self.stage.semel(&repo.worktree, ["restore", "--worktree"])?;
                let restore = restore
                    .arg(&repo.worktree)
                    .args(["--tree", &repo.tree, "--wait", "60s"]);
                let mut words = vec![Stage::semel_path().into_os_string()];
                words.extend(restore.args);
                let said = self.helper(&repo, seconds, &stream, words)?;
                let got = format!(
                    "1 try, {}; {}",
                    self.outcome(&repo, &said)?,
                    self.events(&stream)?
                );
                let told = format!("the helper held it for {seconds} s, {}", waited(&said));
                Ok((met(&said), Guarded::new(got, told)))
            })
        };
        step(
            "the wait belongs inside",
            "a helper that takes the lock itself in every run and restores: naive: the whole helper is tried again, four \
             times; guarded: the helper calls semel restore, once",
            naive,
            format!("1 try, {RESTORED}; 1 RunStarted, 0 RunFailed, 1 NodeStarted"),
            guarded,
        )
    }

    fn orphan(&self) -> Row {
        let naive = || {
            let repo = self.repo("naive")?;
            self.orphan_of(&repo)?;
            let first = self.read_tree(&repo)?;
            std::thread::sleep(Duration::from_millis(500));
            let second = self.read_tree(&repo)?;
            let lock = if self.locked(&repo)? {
                "the lock is still there"
            } else {
                "the lock is gone"
            };
            let told = format!(
                "exit {}, half a second later exit {}; {lock}",
                first.exit(),
                second.exit()
            );
            Ok(match (first.exit(), second.exit()) {
                (128, 128) => Naive::Damage(told),
                _ => Naive::Unharmed(told),
            })
        };
        let guarded = || {
            let repo = self.repo("guarded")?;
            self.orphan_of(&repo)?;
            let said = self.restore(&repo, "1s")?;
            let lock = if self.locked(&repo)? {
                "the lock is kept"
            } else {
                "the lock is gone"
            };
            let got = format!("{}, {lock}, f is {}", said.named(), self.state(&repo)?);
            Ok(Guarded::new(got, why(&said)))
        };
        step(
            "an orphan of a killed git",
            "a git is killed with kill -9 while it holds index.lock (guarded: --wait 1s, too short for any proof that its \
             owner is dead)",
            naive,
            "40 lock_timeout, the lock is kept, f is unchanged",
            guarded,
        )
    }

    /// Kills a `semel restore` while it holds the lock, by a git that stops where it would write.
    fn own_orphan(&self) -> Row {
        let guarded = || {
            let repo = self.repo("guarded")?;
            let before = self.stage.scratch.names(&repo.gitdir).map_err(hands)?;
            let bin = repo.worktree.with_file_name("bin");
            let shim = format!(
                "#!/bin/sh\ncase \" $* \" in *\" read-tree \"*) exec sleep 60;; esac\nexec '{}' \"$@\"\n",
                self.git.display()
            );
            self.stage.scratch.program(bin.join("git"), shim).map_err(hands)?;
            let mut path = vec![bin];
            path.extend(self.stage.path.iter().cloned());
            let path = std::env::join_paths(path).map_err(|e| e.to_string())?;
            let restore = self
                .stage
                .semel(&repo.worktree, ["restore", "--worktree"])?
                .var("PATH", path);
            let restore = self
                .stage
                .start(restore.arg(&repo.worktree).args(["--tree", &repo.tree]))?;
            self.stage
                .until("semel restore takes index.lock", || match restore.ended() {
                    true => Err("semel restore ended before it was seen to hold the lock".to_owned()),
                    false => Ok(self.locked(&repo)?.then_some(())),
                })?;
            restore.kill()?;
            let orphan = if self.locked(&repo)? {
                "it left its lock"
            } else {
                "it left no lock"
            };
            let said = self.restore(&repo, "30s")?;
            let json = said.json().unwrap_or_default();
            let adopted = find(&json, "adopted").and_then(Value::as_u64).unwrap_or_default();
            let left = self.new_names(&repo, &before)?;
            let got = format!(
                "{orphan}, {}, adopted {adopted}, left over: {left}",
                self.outcome(&repo, &said)?
            );
            Ok(Guarded::new(got, waited(&said)))
        };
        step(
            "an orphan of our own",
            "a semel restore is killed with kill -9 while it holds the lock; the next one adopts it in place",
            || Ok(Naive::NoSide("its naive side is the step before")),
            format!("it left its lock, {RESTORED}, adopted 1, left over: nothing"),
            guarded,
        )
    }

    fn living_owner(&self) -> Row {
        let committed = |repo: &Repo| self.git_ok(&repo.worktree, &["show", "HEAD:f"]);
        let finish = |commit: Background, go: &Path| {
            self.stage.scratch.write(go, "").map_err(hands)?;
            commit.wait()
        };
        let naive = || {
            let repo = self.repo("naive")?;
            let (commit, go) = self.editing(&repo)?;
            // What a rule by age or by open descriptors comes to: the lock is empty of users, so it is removed.
            self.stage.scratch.remove(&repo.lock).map_err(hands)?;
            let said = self.read_tree(&repo)?;
            let under = self.state(&repo)?;
            let owner = finish(commit, &go)?;
            let told = format!(
                "the lock was removed under a living git commit; read-tree exit {}, the work in f is {under}; the \
                 owner's commit then: exit {}, {}; HEAD has {:?}",
                said.exit(),
                owner.exit(),
                owner.first_error(),
                committed(&repo)?
            );
            Ok(match (under, owner.exit()) {
                ("unchanged", 0) => Naive::Unharmed(told),
                _ => Naive::Damage(told),
            })
        };
        let guarded = || {
            let repo = self.repo("guarded")?;
            let (commit, go) = self.editing(&repo)?;
            let said = self.restore(&repo, "1s")?;
            let lock = if self.locked(&repo)? { "kept" } else { "gone" };
            let under = self.state(&repo)?;
            let owner = finish(commit, &go)?;
            let head = if committed(&repo)? == CHANGED.trim() {
                "its work"
            } else {
                "something else"
            };
            let got = format!(
                "{}, lock {lock}, f {under}; the owner's commit exit {}, HEAD has {head}",
                said.named(),
                owner.exit()
            );
            Ok(Guarded::new(got, why(&said)))
        };
        step(
            "a living owner in its editor",
            "git commit -a has taken the lock and waits in its editor; naive: the lock is removed as if it were stale; \
             guarded: --wait 1s",
            naive,
            "40 lock_timeout, lock kept, f unchanged; the owner's commit exit 0, HEAD has its work",
            guarded,
        )
    }

    fn unrelated_error(&self) -> Row {
        const TRIES: usize = 4;
        let spoil = |repo: &Repo| {
            let bytes = "this is no index of git, whatever its name says\n";
            self.stage
                .scratch
                .write(repo.gitdir.join("index"), bytes)
                .map_err(hands)
        };
        let naive = || {
            let repo = self.repo("naive")?;
            spoil(&repo)?;
            let mut exits = Vec::new();
            let mut last = String::new();
            for _ in 0..TRIES {
                let said = self.read_tree(&repo)?;
                exits.push(said.exit());
                last = said.last_error();
            }
            let told = format!("exit 128 taken for a lock: {TRIES} tries, exit {exits:?}, each time {last}");
            let same = exits.iter().all(|exit| *exit == 128);
            Ok(if same {
                Naive::Damage(told)
            } else {
                Naive::Unharmed(told)
            })
        };
        let guarded = || {
            let repo = self.repo("guarded")?;
            spoil(&repo)?;
            let git = self.read_tree(&repo)?.stderr;
            let said = self.restore(&repo, "60s")?;
            let first = if said.stderr.starts_with(&git) && !git.is_empty() {
                "git's words first, byte for byte"
            } else {
                "git's words differ"
            };
            let soon = if said.took < Duration::from_secs(20) {
                "at once"
            } else {
                "late"
            };
            Ok(Guarded::new(
                format!("{}, {soon}, {first}", said.named()),
                format!(
                    "{} bytes: {}",
                    git.len(),
                    String::from_utf8_lossy(&git).trim().replace('\n', " | ")
                ),
            ))
        };
        step(
            "an unrelated error",
            "the index is no index: git fails with the same exit 128 as for a lock",
            naive,
            "46 git_failed, at once, git's words first, byte for byte",
            guarded,
        )
    }

    fn symlinked_lock(&self) -> Row {
        let link = |repo: &Repo| {
            let target = repo.worktree.with_file_name("elsewhere");
            self.stage.scratch.link(&target, &repo.lock).map_err(hands)?;
            Ok::<_, String>(target)
        };
        let naive = || {
            let repo = self.repo("naive")?;
            link(&repo)?;
            let wait =
                "for i in 1 2 3; do [ -e \"$1\" ] || { echo free; exit 0; }; sleep 0.05; done; echo held";
            let command = self
                .stage
                .command(&self.sh, &repo.worktree)?
                .args(["-c", wait, "wait"]);
            let seen = self.stage.run(&command.arg(&repo.lock))?.out();
            let said = self.read_tree(&repo)?;
            let told = format!(
                "a wait by [ -e index.lock ] called it {seen}; then read-tree exit {}",
                said.exit()
            );
            Ok(if seen == "free" && said.exit() == 128 {
                Naive::Damage(told)
            } else {
                Naive::Unharmed(told)
            })
        };
        let guarded = || {
            let repo = self.repo("guarded")?;
            let target = link(&repo)?;
            let said = self.restore(&repo, "60s")?;
            let soon = if said.took < Duration::from_secs(20) {
                "at once"
            } else {
                "late"
            };
            let lock = if self.locked(&repo)? {
                "the link is kept"
            } else {
                "the link is gone"
            };
            let made = match self.stage.scratch.exists(&target).map_err(hands)? {
                true => "its target was made",
                false => "its target was not made",
            };
            let got = format!(
                "{}, {soon}, {lock}, {made}, f is {}",
                said.named(),
                self.state(&repo)?
            );
            Ok(Guarded::new(got, why(&said)))
        };
        step(
            "a symlinked lock",
            "index.lock is a symbolic link that leads nowhere (guarded: --wait 60s, and no second of it is used)",
            naive,
            "41 lock_unsafe, at once, the link is kept, its target was not made, f is unchanged",
            guarded,
        )
    }

    fn left_over(&self) -> Row {
        let guarded = || {
            let repo = self.repo("guarded")?;
            let before = self.stage.scratch.names(&repo.gitdir).map_err(hands)?;
            let holder = self.holder(&repo, "0.25")?;
            let restored = self.restore(&repo, "60s")?;
            holder.wait()?;
            let locked = self.stage.scratch.create_new(&repo.lock, b"").map_err(hands)?;
            let refused = self.restore(&repo, "1s")?;
            self.stage.scratch.remove(locked).map_err(hands)?;
            let left = self.new_names(&repo, &before)?;
            let got = format!("{}, {}, left over: {left}", restored.exit(), refused.named());
            Ok(Guarded::new(
                got,
                "names in the worktree's git directory before and after",
            ))
        };
        step(
            "nothing is left over",
            "a restoration that waited and one that was refused; then the worktree's git directory is listed",
            || Ok(Naive::NoSide("there is no damage to show")),
            "0, 40 lock_timeout, left over: nothing",
            guarded,
        )
    }
}

/// Says whether a side came while the lock was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// It did.
    Yes,
    /// It came too late.
    No,
}

impl From<bool> for Met {
    fn from(met: bool) -> Self {
        if met { Self::Yes } else { Self::No }
    }
}

/// Plays one side with the first of these times at which it meets the lock: a slow machine comes late.
pub(super) fn longer<T>(seconds: &[&str], mut play: impl FnMut(&str) -> Told<(Met, T)>) -> Told<T> {
    for seconds in seconds {
        if let (Met::Yes, told) = play(seconds)? {
            return Ok(told);
        }
    }
    Err("the owner had let go before it could be met, each time".to_owned())
}

/// Says whether a restoration met the lock: by its own count, or by being refused.
fn met(said: &Said) -> Met {
    let json = said.json().unwrap_or_default();
    let collisions = find(&json, "collisions")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    Met::from(collisions > 0 || said.exit() != 0)
}

/// Says how long a restoration says that it waited.
fn waited(said: &Said) -> String {
    match said
        .json()
        .as_ref()
        .and_then(|json| find(json, "waited_ms"))
        .and_then(Value::as_u64)
    {
        Some(ms) => format!("it waited {ms} ms by its own count"),
        None => "it did not say how long it waited".to_owned(),
    }
}

/// Finds a value by its name, wherever in an object it is.
pub(super) fn find<'a>(json: &'a Value, name: &str) -> Option<&'a Value> {
    let object = json.as_object()?;
    object
        .get(name)
        .or_else(|| object.values().find_map(|value| find(value, name)))
}

fn why(said: &Said) -> String {
    let json = said.json().unwrap_or_default();
    json["why"].as_str().unwrap_or_default().to_owned()
}
