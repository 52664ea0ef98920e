//! The target: started, killed and started again at the same address, and its workspaces opened and ended.
//!
//! A target that runs already is never started, killed or ended. It sends no call.

use super::adapter::{Adapter, Start, fill};
use crate::engine::trial::http::{request, send};
use crate::engine::trial::stage::{Background, Stage};
use crate::engine::trial::{Told, hands};
use semel_host::process::{Command, Output};
use semel_host::scratch::Scratch;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Is the target of a run.
pub(super) struct Target<'a> {
    /// Where everything of the run lies.
    pub(super) stage: &'a Stage,
    /// How it is started and spoken to.
    pub(super) adapter: &'a Adapter,
    /// Host and port.
    pub(super) host: String,
    /// What placeholders stand for, whatever the workspace.
    places: Places,
    life: Life,
    lives: u32,
    open: Mutex<Vec<Places>>,
}

/// Holds what placeholders stand for.
type Places = Vec<(String, String)>;

/// Says whose the process is.
enum Life {
    /// Somebody else's, and it runs already.
    Foreign,
    /// Ours, and it runs.
    Runs(Background),
    /// Ours, and it does not run.
    Over,
}

/// Is an open workspace of the target.
pub(super) struct Workspace {
    /// Its files, looked at past the target.
    pub(super) files: Scratch,
    /// What its placeholders stand for.
    pub(super) places: Places,
}

/// Says where the target and what belongs to it are.
pub(super) struct Whereabouts {
    /// Host and port of a target that runs already.
    pub(super) running: Option<String>,
    /// The directory of the adapter, with what lies beside it.
    pub(super) adapter: PathBuf,
    /// The state root of a target that runs already.
    pub(super) state: Option<PathBuf>,
}

impl<'a> Target<'a> {
    /// Finds the target: one that runs already, or one that is to be started on a free port of loopback.
    pub(super) fn find(stage: &'a Stage, adapter: &'a Adapter, at: Whereabouts) -> Told<Self> {
        let (host, life) = match at.running {
            Some(host) => (host, Life::Foreign),
            None => (format!("127.0.0.1:{}", free_port()?), Life::Over),
        };
        let state = match at.state {
            Some(state) => state,
            None => stage.scratch.directory("target").map_err(hands)?,
        };
        let port = host.rsplit(':').next().unwrap_or_default().to_owned();
        let places = [
            ("semel", Stage::semel_path().display().to_string()),
            ("adapter", at.adapter.display().to_string()),
            ("state", state.display().to_string()),
            ("port", port),
        ];
        Ok(Self {
            stage,
            adapter,
            host,
            places: places.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            life,
            lives: 0,
            open: Mutex::default(),
        })
    }

    /// Gives what starts it, unless it runs already and is somebody else's.
    pub(super) fn own(&self) -> Option<&'a Start> {
        match self.life {
            Life::Foreign => None,
            Life::Runs(_) | Life::Over => self.adapter.target.as_ref(),
        }
    }

    /// Says whether a person wants no more.
    pub(super) fn go_on(&self) -> Told<()> {
        match self.stage.cancel.is_cancelled() {
            true => Err("interrupted".to_owned()),
            false => Ok(()),
        }
    }

    fn command(&self, argv: &[String], places: &[(String, String)]) -> Told<Command> {
        let argv: Vec<String> = argv.iter().map(|arg| fill(arg, places)).collect();
        let (program, args) = argv.split_first().ok_or("a command is empty")?;
        let program = match Path::new(program) {
            path if path.is_absolute() => path.to_owned(),
            path if program.contains('/') => self.beside(path),
            _ => self.stage.tool(program)?,
        };
        Ok(self.stage.command(program, self.stage.scratch.path())?.args(args))
    }

    /// Gives a path relative to the adapter.
    fn beside(&self, path: &Path) -> PathBuf {
        let adapter = self.places.iter().find(|(name, _)| name == "adapter");
        adapter.map_or_else(|| path.to_owned(), |(_, dir)| Path::new(dir).join(path))
    }

    /// Starts it if it is ours and does not run, and waits until it answers.
    pub(super) fn up(&mut self) -> Told<()> {
        self.go_on()?;
        if let Life::Runs(running) = &self.life
            && running.ended()
        {
            self.life = Life::Over;
        }
        match self.life {
            Life::Over => {}
            Life::Runs(_) => return Ok(()),
            Life::Foreign => {
                let ask = request(&self.host, ("GET", "/"), &[], b"");
                return send(&self.host, &ask).map(drop);
            }
        }
        self.live(&[])
    }

    /// Starts it, and waits until it answers.
    fn live(&mut self, further: &[String]) -> Told<()> {
        let running = self.begin(further)?;
        let ready = self.own().map_or("/", |start| start.ready.as_str());
        let ready = request(&self.host, ("GET", ready), &[], b"");
        let lives = self.lives;
        self.stage.until("the target answers", || {
            if running.ended() {
                return Err(format!("the target ended at once: {}", self.last_words(lives)?));
            }
            Ok(send(&self.host, &ready).ok())
        })?;
        self.life = Life::Runs(running);
        Ok(())
    }

    /// Starts it so that it kills itself at a point while it serves.
    pub(super) fn up_to_crash(&mut self, point: &str) -> Told<()> {
        self.kill()?;
        let crash = self.crash_at(point)?;
        self.live(&crash)
    }

    /// Starts it so that it kills itself at a point before it serves, and waits until it has.
    pub(super) fn up_and_down(&mut self, point: &str) -> Told<()> {
        self.kill()?;
        let crash = self.crash_at(point)?;
        let running = self.begin(&crash)?;
        let ended = || Ok(running.ended().then_some(()));
        let ended = self.stage.until(&format!("the target ends at {point}"), ended);
        drop(running);
        ended
    }

    /// Waits until it has killed itself.
    pub(super) fn fell(&mut self) -> Told<()> {
        match &self.life {
            Life::Runs(running) => {
                let ended = || Ok(running.ended().then_some(()));
                self.stage.until("the target kills itself", ended)
            }
            Life::Foreign | Life::Over => Ok(()),
        }
    }

    fn crash_at(&self, point: &str) -> Told<Vec<String>> {
        let start = self.own().ok_or("the target is not ours to start")?;
        let places = [("point".to_owned(), point.to_owned())];
        Ok(start.crash.iter().map(|arg| fill(arg, &places)).collect())
    }

    /// Kills it as kill -9 does; when this returns it is gone.
    pub(super) fn kill(&mut self) -> Told<()> {
        match std::mem::replace(&mut self.life, Life::Over) {
            Life::Runs(running) => running.kill().map(drop),
            Life::Over => Ok(()),
            Life::Foreign => {
                self.life = Life::Foreign;
                Err("the target is not ours to kill".to_owned())
            }
        }
    }

    fn begin(&mut self, further: &[String]) -> Told<Background> {
        let start = self.own().ok_or("nothing starts the target")?;
        let argv = [start.start.as_slice(), further].concat();
        let mut command = self.command(&argv, &self.places)?;
        for (name, value) in &start.env {
            command = command.var(name, fill(value, &self.places));
        }
        self.lives += 1;
        command.deadline = None;
        command.output = Output::Files {
            stdout: self.said("out", self.lives)?,
            stderr: self.said("err", self.lives)?,
            cap_bytes: 1 << 20,
        };
        self.stage.start(command)
    }

    fn said(&self, stream: &str, life: u32) -> Told<PathBuf> {
        self.stage.scratch.directory("said").map_err(hands)?;
        let name = format!("said/{life}.{stream}");
        self.stage.scratch.place(name).map_err(hands)
    }

    fn last_words(&self, life: u32) -> Told<String> {
        let said = self.stage.scratch.read(self.said("err", life)?).map_err(hands)?;
        let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.iter().rev().take(3).rev();
        Ok(last.copied().collect::<Vec<_>>().join(" | "))
    }

    /// Makes the directory of a workspace that is not opened by a command, before the target starts.
    pub(super) fn lay_out(&self) -> Told<()> {
        if self.adapter.workspace.open.is_some() {
            return Ok(());
        }
        let place = fill(&self.adapter.workspace.files, &self.places);
        match self.own() {
            Some(_) => self.stage.scratch.directory(place).map(drop).map_err(hands),
            None => Ok(()),
        }
    }

    /// Opens a workspace of a job; where the target knows none, gives the one that there is.
    pub(super) fn open(&self, job: &str) -> Told<Workspace> {
        let mut places = self.places.clone();
        places.push(("job".to_owned(), job.to_owned()));
        if let Some(open) = &self.adapter.workspace.open {
            let said = self.stage.run(&self.command(open, &places)?)?;
            let said = said.ok("the command that opens a workspace")?;
            let json = said
                .json()
                .ok_or("the command that opens a workspace gave no JSON")?;
            for (name, pointer) in &self.adapter.workspace.take {
                let value = match json.pointer(pointer) {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Number(number)) => number.to_string(),
                    _ => return Err(format!("what opened a workspace has no {pointer}")),
                };
                places.push((name.clone(), value));
            }
        }
        if let Ok(mut open) = self.open.lock() {
            open.push(places.clone());
        }
        let files = Scratch::lent(fill(&self.adapter.workspace.files, &places)).map_err(hands)?;
        Ok(Workspace { files, places })
    }

    /// Ends a workspace.
    pub(super) fn end(&self, workspace: &Workspace) -> Told<()> {
        if let Ok(mut open) = self.open.lock() {
            open.retain(|places| *places != workspace.places);
        }
        self.end_by(&workspace.places)
    }

    /// Ends every workspace that is open yet, so that a target that lives on keeps none of them.
    pub(super) fn end_all(&self) {
        let open = self.open.lock().map(|mut open| std::mem::take(&mut *open));
        if self.adapter.workspace.end.is_some() {
            for places in open.unwrap_or_default() {
                // One that cannot be ended any more, since its target is gone, holds nobody up.
                self.end_by(&places).ok();
            }
        }
    }

    fn end_by(&self, places: &[(String, String)]) -> Told<()> {
        let end = self
            .adapter
            .workspace
            .end
            .as_ref()
            .ok_or("no command ends a workspace")?;
        let said = self.stage.run(&self.command(end, places)?)?;
        said.ok("the command that ends a workspace").map(drop)
    }
}

fn free_port() -> Told<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no port: {e}"))?;
    let address = listener.local_addr().map_err(|e| format!("no port: {e}"))?;
    Ok(address.port())
}
