//! The python3 of a drill: which one, and what it has. It installs nothing into it.

use crate::engine::trial::stage::Stage;
use crate::engine::trial::{Told, hands};
use serde_json::Value;
use std::path::PathBuf;

/// Runs the tests, and says whether they ran under this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Runner {
    /// pytest, importable by the interpreter from this directory, which may be that of an environment of its own.
    Pytest(PathBuf),
    /// unittest, which every interpreter has.
    Unittest,
}

/// Says who installs into an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pip {
    /// The interpreter's own pip, pointed at the environment.
    Outside,
    /// The pip that venv puts into the environment.
    Inside,
}

/// Is the interpreter.
#[derive(Clone, Debug)]
pub(super) struct Python {
    /// Where it is.
    pub(super) program: PathBuf,
    /// Its version.
    pub(super) version: String,
    /// What runs the tests.
    pub(super) runner: Runner,
    /// Who installs; none where nothing can.
    pub(super) pip: Option<Pip>,
    /// The version of that pip.
    pip_version: String,
}

const QUESTION: &str = r#"
import importlib.util as u, json, os, platform
def has(n): return u.find_spec(n) is not None
pip = ""
if has("pip"):
    import pip as p
    pip = p.__version__
inside = ""
if has("venv") and has("ensurepip"):
    import ensurepip
    inside = ensurepip.version()
pytest = u.find_spec("pytest")
pytest = os.path.dirname(os.path.dirname(pytest.origin)) if pytest and pytest.origin else ""
print(json.dumps({"version": platform.python_version(), "pytest": pytest, "venv": has("venv"), "pip": pip, "inside": inside}))
"#;

impl Python {
    /// Finds the python3 that can do most: pytest and an installer, else an installer, else any.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn find(stage: &Stage) -> Told<Self> {
        let mut best: Option<Self> = None;
        let mut last = "no python3 on PATH".to_owned();
        for dir in &stage.path {
            let stand_in = dir.join("python3");
            let Ok(program) = semel_host::sandbox::resolve_program(stand_in.as_os_str(), &stage.path) else {
                continue;
            };
            match Self::ask(stage, program) {
                Ok(found) if best.as_ref().is_none_or(|b| found.rank() > b.rank()) => best = Some(found),
                Ok(_) => {}
                Err(why) => last = why,
            }
        }
        best.ok_or(last)
    }

    fn rank(&self) -> (usize, usize) {
        (
            usize::from(self.pip.is_some()),
            usize::from(self.runner != Runner::Unittest),
        )
    }

    fn ask(stage: &Stage, program: PathBuf) -> Told<Self> {
        let command = stage
            .command(&program, stage.scratch.path())?
            .args(["-I", "-c", QUESTION]);
        let said = stage.run(&command)?.ok("python3 does not answer")?;
        let json = said.json().ok_or("python3 does not answer in JSON")?;
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let (outside, inside) = (text("pip"), text("inside"));
        // `pip --python` came with 22.3.
        let can_point = outside
            .split('.')
            .next()
            .and_then(|n| n.parse().ok())
            .is_some_and(|n: u32| n >= 23);
        let (pip, pip_version) = match (json["venv"] == Value::Bool(true), can_point, inside.is_empty()) {
            (true, true, _) => (Some(Pip::Outside), outside),
            (true, false, false) => (Some(Pip::Inside), inside),
            _ => (None, String::new()),
        };
        Ok(Self {
            program,
            version: text("version"),
            runner: match text("pytest") {
                none if none.is_empty() => Runner::Unittest,
                place => Runner::Pytest(place.into()),
            },
            pip,
            pip_version,
        })
    }

    /// Says what it is, for the account.
    pub(super) fn describe(&self) -> String {
        format!("python3 {} at {}", self.version, self.program.display())
    }

    /// Says what runs the tests and what installs.
    pub(super) fn describe_tools(&self) -> String {
        let runner = match &self.runner {
            Runner::Pytest(_) => "pytest",
            Runner::Unittest => "unittest (pytest is not importable by a python3 on PATH that can install)",
        };
        format!("venv, pip {}, tests by {runner}", self.pip_version)
    }

    /// Writes a script beside the drill's files and gives a command that runs it.
    pub(super) fn script(
        &self,
        stage: &Stage,
        name: &str,
        text: &str,
        cwd: &std::path::Path,
    ) -> Told<semel_host::process::Command> {
        let script = stage
            .scratch
            .write(format!("scripts/{name}"), text)
            .map_err(hands)?;
        Ok(stage.command(&self.program, cwd)?.arg("-I").arg(script))
    }
}
