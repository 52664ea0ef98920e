//! The workspaces of the drill: a small project, an attempt's script over it, and `semel contract`.
//!
//! It makes situations and runs what is asked; it judges no guard.

use super::python::{Pip, Python, Runner};
use super::table::Naive;
use crate::engine::trial::stage::{Background, Said, Stage};
use crate::engine::trial::{Told, hands};
use semel_host::process::Command;
use std::path::{Path, PathBuf};

const CUT: usize = 40 * 1024;
/// The contract's state file.
pub(super) const STATE: &str = ".workspace_contract.json";
/// The generation of attempt 1.
pub(super) const GENERATION: &str = "g-1844";
const TEST: &str = "import unittest\n\nimport leaf\n\n\nclass Limit(unittest.TestCase):\n    \
    def test_the_limit_is_one(self):\n        self.assertEqual(leaf.LIMIT, 1)\n";
/// What a check that passes answers.
pub(super) const PASS: &str = "0 clean";

/// Is what workspaces are made with.
pub(super) struct Workspaces<'a> {
    /// Where they lie.
    pub(super) stage: &'a Stage,
    /// The shell of the script.
    pub(super) sh: PathBuf,
    /// The interpreter of the project.
    pub(super) python: Python,
    /// Where both versions of the package are.
    pub(super) wheels: PathBuf,
    /// The attempt's script.
    pub(super) attempt: PathBuf,
    /// The lockfile as the draft would have written it.
    pub(super) next_lock: PathBuf,
    /// How long that is.
    pub(super) next_bytes: usize,
    /// The naive volume, after attempt 1 was cut short.
    pub(super) naive: PathBuf,
}

/// Is what an attempt of the naive script came to.
pub(super) struct Attempt {
    /// Its exit status.
    pub(super) exit: i32,
    /// Whether it installed: `done` or `skipped`.
    pub(super) sync: String,
    /// The version that is installed.
    pub(super) installed: String,
    /// The last line of its tests.
    pub(super) tests: String,
}

impl Attempt {
    /// Reads what the script said.
    pub(super) fn of(said: &Said) -> Self {
        let (out, err) = (said.out(), String::from_utf8_lossy(&said.stderr).into_owned());
        let after = |word: &str| {
            let found = out.lines().find_map(|line| line.strip_prefix(word));
            found.map_or_else(|| "?".to_owned(), |rest| rest.trim().to_owned())
        };
        let words = ["passed", "failed", "error"];
        let pytest = out
            .lines()
            .rev()
            .find(|line| words.iter().any(|word| line.contains(word)));
        let unittest = err.lines().find(|line| line.starts_with("Ran "));
        let verdict = err
            .lines()
            .rev()
            .find(|line| line.starts_with("OK") || line.starts_with("FAILED"));
        let tests = match (pytest, unittest, verdict) {
            (Some(line), _, _) => line.trim_matches(['=', ' ']).to_owned(),
            (None, Some(ran), Some(verdict)) => format!("{ran}: {verdict}"),
            _ => format!("no tests ran: {}", said.last_error()),
        };
        Self {
            exit: said.exit(),
            sync: after("sync "),
            installed: after("installed "),
            tests,
        }
    }

    /// Says whether the tests ran and passed over an older package: the green that meant nothing.
    pub(super) fn is_false_green(&self) -> Option<String> {
        let green = self.exit == 0 && self.sync == "skipped" && self.installed == "1.0";
        green.then(|| {
            format!(
                "the sync was skipped since .venv was there; exit 0 ({}) importing leaf {}",
                self.tests, self.installed
            )
        })
    }

    /// Tells all of it.
    pub(super) fn seen(&self) -> String {
        format!(
            "sync {}, leaf {} installed, exit {} ({})",
            self.sync, self.installed, self.exit, self.tests
        )
    }

    /// Judges it: a green over an older package is the damage.
    pub(super) fn naive(&self, beside: &str) -> Naive {
        match self.is_false_green() {
            Some(told) => Naive::Damage(format!("{told}, {beside}")),
            None => Naive::Unharmed(self.seen()),
        }
    }
}

/// Makes a lockfile that is longer than the cut.
pub(super) fn lock_text(version: &str) -> String {
    let mut text = format!(
        "version = 1\nrequires-python = \">=3.9\"\n\n[[package]]\nname = \"leaf\"\nversion = \"{version}\"\n\
         source = {{ registry = \"wheels\" }}\n"
    );
    for number in 0..1200 {
        text.push_str(&format!(
            "\n[[package]]\nname = \"other-{number}\"\nversion = \"1.0\"\nsource = {{ registry = \"wheels\" }}\n"
        ));
    }
    text
}

impl<'a> Workspaces<'a> {
    /// Makes the wheels, the script and the shared naive volume.
    pub(super) fn build(stage: &'a Stage, sh: PathBuf, python: Python) -> Told<Self> {
        let place = |name: &str| {
            stage
                .scratch
                .place(format!("reused-volume/{name}"))
                .map_err(hands)
        };
        let wheels = stage.scratch.directory("reused-volume/wheels").map_err(hands)?;
        let make = python.script(
            stage,
            "wheels.py",
            include_str!("wheels.py"),
            stage.scratch.path(),
        )?;
        stage
            .run(&make.arg(&wheels))?
            .ok("the wheels could not be made")?;
        let write = |name: &str, text: &str| stage.scratch.write(place(name)?, text).map_err(hands);
        let next = lock_text("2.0");
        let world = Self {
            attempt: write("naive_attempt.sh", include_str!("naive_attempt.sh"))?,
            next_lock: write("next.lock", &next)?,
            next_bytes: next.len(),
            naive: place("naive")?,
            stage,
            sh,
            python,
            wheels,
        };
        world.fill(&world.naive)?;
        Ok(world)
    }

    /// Fills a workspace with the project as it was before attempt 1.
    pub(super) fn fill(&self, workspace: &Path) -> Told<()> {
        let files = [
            ("requirements.txt", "leaf==1.0\n".to_owned()),
            ("uv.lock", lock_text("1.0")),
            ("test_app.py", TEST.to_owned()),
        ];
        for (name, text) in files {
            self.stage
                .scratch
                .write(workspace.join(name), text)
                .map_err(hands)?;
        }
        Ok(())
    }

    /// Makes a workspace of its own for one guard, which passed its first check.
    pub(super) fn workspace(&self, name: &str) -> Told<PathBuf> {
        let workspace = self
            .stage
            .scratch
            .directory(format!("reused-volume/{name}"))
            .map_err(hands)?;
        self.fill(&workspace)?;
        let first = self.check(&workspace, Some(GENERATION), Some("1"))?;
        if first != PASS {
            return Err(format!("the first check of a fresh workspace gave {first}"));
        }
        Ok(workspace)
    }

    /// Makes a command of `semel contract` with the identity in its environment.
    pub(super) fn contract(
        &self,
        workspace: &Path,
        verb: &str,
        who: (Option<&str>, Option<&str>),
    ) -> Told<Command> {
        let mut command = self
            .stage
            .semel(workspace, ["contract", verb])?
            .var("WORKSPACE", workspace);
        for (name, value) in [("VOLUME_GENERATION", who.0), ("JOB_ATTEMPT", who.1)] {
            if let Some(value) = value {
                command = command.var(name, value);
            }
        }
        Ok(command)
    }

    /// Asks `semel contract check`, and gives exit status and name.
    pub(super) fn check(
        &self,
        workspace: &Path,
        generation: Option<&str>,
        attempt: Option<&str>,
    ) -> Told<String> {
        let command = self.contract(workspace, "check", (generation, attempt))?;
        Ok(self.stage.run(&command)?.named())
    }

    /// Runs the attempt's script in a workspace, as it is.
    pub(super) fn attempt(&self, workspace: &Path, who: (Option<&str>, Option<&str>)) -> Told<Attempt> {
        let (runner, pytest) = match &self.python.runner {
            Runner::Pytest(place) => ("pytest", place.clone()),
            Runner::Unittest => ("unittest", PathBuf::new()),
        };
        let mut command = self
            .stage
            .command(&self.sh, workspace)?
            .arg(&self.attempt)
            .var("PYTHON", &self.python.program)
            .var(
                "PIP",
                if self.python.pip == Some(Pip::Inside) {
                    "inside"
                } else {
                    "outside"
                },
            )
            .var("PYTEST", pytest)
            .var("RUNNER", runner)
            .var("WHEELS", &self.wheels)
            .var("PIP_CONFIG_FILE", "/dev/null")
            .var("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        for (name, value) in [("VOLUME_GENERATION", who.0), ("JOB_ATTEMPT", who.1)] {
            if let Some(value) = value {
                command = command.var(name, value);
            }
        }
        Ok(Attempt::of(&self.stage.run(&command)?))
    }

    /// Gives the words of the draft that hangs after the first part of the new lockfile.
    pub(super) fn draft(&self) -> Told<Vec<std::ffi::OsString>> {
        let command = self.python.script(
            self.stage,
            "draft.py",
            include_str!("draft.py"),
            self.stage.scratch.path(),
        )?;
        let mut words = vec![command.program.into_os_string()];
        words.extend(command.args);
        words.extend([self.next_lock.clone().into_os_string(), CUT.to_string().into()]);
        Ok(words)
    }

    /// Waits until the draft has written the first part of the new lockfile.
    pub(super) fn half_written(&self, workspace: &Path, draft: &Background) -> Told<()> {
        self.stage.until("the draft writes uv.lock", || {
            match self.lock_bytes(workspace)? {
                Some(CUT) => Ok(Some(())),
                _ if draft.ended() => Err("the draft ended before it wrote uv.lock".to_owned()),
                _ => Ok(None),
            }
        })
    }

    /// Ends the draft by `kill -9`, and says how much of the lockfile stays.
    pub(super) fn cut(&self, workspace: &Path, draft: Background) -> Told<usize> {
        let said = draft.kill()?;
        match self.lock_bytes(workspace)? {
            Some(CUT) => Ok(CUT),
            other => Err(format!("uv.lock has {other:?} bytes: {}", said.last_error())),
        }
    }

    /// Says how long `uv.lock` is.
    pub(super) fn lock_bytes(&self, workspace: &Path) -> Told<Option<usize>> {
        let bytes = self
            .stage
            .scratch
            .read(workspace.join("uv.lock"))
            .map_err(hands)?;
        Ok(bytes.map(|bytes| bytes.len()))
    }

    /// Reads the line of `requirements.txt`.
    pub(super) fn requirement(&self, workspace: &Path) -> Told<String> {
        let bytes = self
            .stage
            .scratch
            .read(workspace.join("requirements.txt"))
            .map_err(hands)?;
        Ok(bytes.map_or_else(
            || "nothing".to_owned(),
            |bytes| String::from_utf8_lossy(&bytes).trim().to_owned(),
        ))
    }

    /// Reads the contract's state file.
    pub(super) fn state(&self, workspace: &Path) -> Told<Option<Vec<u8>>> {
        self.stage.scratch.read(workspace.join(STATE)).map_err(hands)
    }
}
