//! What the clients do until the power is cut: seeded chains of calls, each in a directory of its own.
//!
//! What stands after each call of a chain is said by plain file operations of the test. A client makes its calls one
//! after the other; so at the cut at most one call of each is open.

use crate::crash::tools::{self, Case};
use crate::crash::tree::{Entry, Picture, below, chmod, make, picture, put};
use crate::harness::{Conn, Home, Reply, Volume};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Numbers that follow from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Gives a number below another (splitmix64).
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum Ask {
    Tool(&'static str, Value),
    /// The undoing of the call before it.
    Undo,
}

/// One call of a chain, and what stands after it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) ask: Ask,
    pub(super) after: Picture,
    /// What it keeps in `trash/`, where the test knows.
    pub(super) kept: Option<Vec<Picture>>,
}

/// What was heard of a call.
#[derive(Debug)]
pub(super) enum Heard {
    /// It was acknowledged, with this answer.
    Done(Value),
    /// No answer came, or one that is no acknowledgement: its status and code. One that came after the power was gone
    /// is none either: what the kernel says of syncs while a filesystem goes down is not to be counted on.
    Open(Option<(u16, String)>),
}

/// Calls that follow each other in one directory.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) dir: String,
    pub(super) before: Picture,
    pub(super) steps: Vec<Step>,
    /// What was heard of each call that was made.
    pub(super) heard: Vec<Heard>,
}

impl Chain {
    pub(super) fn key(&self, volume: &Volume, step: usize) -> String {
        match self.steps[step].ask {
            Ask::Tool(..) => format!("{}-{step}-{}", self.dir, volume.generation),
            Ask::Undo => format!("undo-{}", self.undone(step)),
        }
    }

    /// Gives the execution that a step undoes.
    fn undone(&self, step: usize) -> &str {
        match &self.heard[step - 1] {
            Heard::Done(body) => body["execution_id"].as_str().expect("it has an execution"),
            Heard::Open(_) => panic!("nothing comes behind an open call"),
        }
    }

    /// Makes a call; `None` where no answer comes.
    pub(super) fn send(&self, home: &Home, url: &str, volume: &Volume, step: usize) -> Option<Reply> {
        match &self.steps[step].ask {
            Ask::Tool(tool, arguments) => {
                let stream = std::net::TcpStream::connect(url.strip_prefix("http://")?).ok()?;
                Conn::over(stream).try_call(volume, tool, &self.key(volume, step), arguments)
            }
            Ask::Undo => {
                let path = format!("/v1/admin/executions/{}/undo", self.undone(step));
                home.try_admin("POST", &path, &Value::Null)
            }
        }
    }
}

/// Writes a chain down while its calls are modelled on a scratch directory.
struct Script<'a> {
    dir: &'a str,
    scratch: tempfile::TempDir,
    before: Picture,
    steps: Vec<Step>,
}

impl<'a> Script<'a> {
    fn new(dir: &'a str, before: impl Fn(&Path)) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        chmod(scratch.path(), 0o755);
        before(scratch.path());
        Self {
            dir,
            before: picture(scratch.path()),
            scratch,
            steps: Vec::new(),
        }
    }

    fn last(&self) -> &Picture {
        self.steps.last().map_or(&self.before, |step| &step.after)
    }

    fn step(&mut self, tool: &'static str, arguments: Value, kept: &[&str], effect: impl Fn(&Path)) {
        let kept = kept.iter().map(|path| below(self.last(), path)).collect();
        effect(self.scratch.path());
        self.steps.push(Step {
            ask: Ask::Tool(tool, arguments),
            after: picture(self.scratch.path()),
            kept: Some(kept),
        });
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.dir)
    }

    fn done(self) -> Chain {
        Chain {
            dir: self.dir.to_owned(),
            before: self.before,
            steps: self.steps,
            heard: Vec::new(),
        }
    }
}

/// One case of the crash tests, and now and then its undoing.
fn of_case(dir: &str, case: &'static Case, undone: bool) -> Chain {
    let mut script = Script::new(dir, case.before);
    script.step(case.tool, (case.arguments)(dir), case.kept, case.effect);
    let mut chain = script.done();
    if undone {
        let mut after = chain.before.clone();
        let done = &chain.steps[0].after;
        // What a patch made around its new files stays.
        let stays = ["new", "new/deep"].iter().map(Path::new);
        after.extend(stays.filter_map(|path| Some((path.to_owned(), done.get(path)?.clone()))));
        // An empty directory is made anew, as any that is made.
        if let (None, Some(Entry::Directory { mode })) =
            (done.get(Path::new("d")), after.get_mut(Path::new("d")))
            && case.kept.is_empty()
            && case.tool == "delete_directory"
        {
            *mode = 0o755;
        }
        chain.steps.push(Step {
            ask: Ask::Undo,
            after,
            kept: None,
        });
    }
    chain
}

/// A file that is written again and again, with contents of all lengths.
fn rewritten(dir: &str, dice: &mut Dice) -> Chain {
    let mut script = Script::new(dir, |_| {});
    for n in 0..2 + dice.below(4) {
        let line = format!("{n} of {dir}\n");
        let length = 1 << dice.below(17);
        let content: String = line.chars().cycle().take(length).collect();
        let arguments = json!({"path": script.at("f"), "content": content});
        let kept: &[&str] = if n == 0 { &[] } else { &["f"] };
        script.step("write_file", arguments, kept, |dir| {
            put(&dir.join("f"), &content, 0o644);
        });
    }
    script.done()
}

/// A directory that is made, filled, moved, and removed.
fn lived_in(dir: &str) -> Chain {
    let mut script = Script::new(dir, |_| {});
    let (a, f, g) = (script.at("a"), script.at("a/b/f"), script.at("a/b/g"));
    script.step(
        "create_directory",
        json!({"path": script.at("a/b")}),
        &[],
        |dir| {
            make(&dir.join("a"), 0o755);
            make(&dir.join("a/b"), 0o755);
        },
    );
    script.step(
        "write_file",
        json!({"path": f, "content": "one\ntwo\n"}),
        &[],
        |dir| {
            put(&dir.join("a/b/f"), "one\ntwo\n", 0o644);
        },
    );
    let edit = json!({"path": f, "old_string": "two", "new_string": "2"});
    script.step("edit_file", edit, &["a/b/f"], |dir| {
        put(&dir.join("a/b/f"), "one\n2\n", 0o644);
    });
    script.step("set_mode", json!({"path": f, "mode": "0700"}), &[], |dir| {
        chmod(&dir.join("a/b/f"), 0o700);
    });
    script.step("move_file", json!({"source": f, "destination": g}), &[], |dir| {
        std::fs::rename(dir.join("a/b/f"), dir.join("a/b/g")).unwrap();
    });
    let to = script.at("c");
    script.step("move_file", json!({"source": a, "destination": to}), &[], |dir| {
        std::fs::rename(dir.join("a"), dir.join("c")).unwrap();
    });
    script.step(
        "delete_directory",
        json!({"path": to, "recursive": true}),
        &["c"],
        |dir| {
            std::fs::remove_dir_all(dir.join("c")).unwrap();
        },
    );
    script.done()
}

/// Makes the chains of one client, and what stands before them in the tree.
pub(super) fn chains(dice: &mut Dice, tree: &Path, client: usize) -> Vec<Chain> {
    let cases: Vec<&'static Case> = tools::all().collect();
    let mut chains: Vec<Chain> = Vec::new();
    for n in 0..8 {
        let dir = format!("c{client}-{n}");
        let place = tree.join(&dir);
        make(&place, 0o755);
        chains.push(match dice.below(6) {
            0 => rewritten(&dir, dice),
            1 => lived_in(&dir),
            _ => {
                let case = cases[dice.below(cases.len() as u64) as usize];
                (case.before)(&place);
                of_case(&dir, case, dice.below(3) == 0)
            }
        });
    }
    chains
}

/// What the clients and the one who cuts the power know of each other.
#[derive(Default)]
pub(super) struct Progress {
    /// How many calls were acknowledged.
    pub(super) acknowledged: AtomicUsize,
    /// How many clients came to an end.
    pub(super) ended: AtomicUsize,
    /// Whether the power goes.
    pub(super) dark: AtomicBool,
}

/// Makes the calls of chains until one is not acknowledged.
pub(super) fn run(home: &Home, url: &str, volume: &Volume, chains: &mut [Chain], progress: &Progress) {
    for chain in chains {
        for step in 0..chain.steps.len() {
            let reply = chain.send(home, url, volume, step);
            match reply {
                Some(reply) if reply.status == 200 && !progress.dark.load(Ordering::SeqCst) => {
                    chain.heard.push(Heard::Done(reply.body));
                    progress.acknowledged.fetch_add(1, Ordering::SeqCst);
                }
                other => {
                    let said = other.map(|reply| (reply.status, reply.code().to_owned()));
                    chain.heard.push(Heard::Open(said));
                    return;
                }
            }
        }
    }
}
