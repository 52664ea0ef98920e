//! The naive side of a replayed probe: a tool worker in a process of its own, behind one recycled directory.

use super::python::Python;
use super::table::Naive;
use crate::engine::trial::http::{Answer, request, send};
use crate::engine::trial::stage::{Background, Stage};
use crate::engine::trial::{Told, hands};
use std::path::PathBuf;

/// The file of which both jobs have one.
pub(super) const FILE: &str = "tmp/gen_schema.sql";
/// Another file of job B.
pub(super) const OTHER: &str = "tmp/seed.sql";
/// What job A has in it.
pub(super) const OF_A: &str = "-- schema of job a\n";
/// What job B has in its files.
pub(super) const OF_B: [(&str, &str); 2] = [(FILE, "-- fixture of job b\n"), (OTHER, "-- seed of job b\n")];
/// The key of the one delete.
pub(super) const KEY: &str = "delete-once";

/// Is the naive worker with its one recycled directory; it ends with this value.
pub(super) struct Worker<'a> {
    /// Where it runs.
    pub(super) stage: &'a Stage,
    /// Host and port.
    pub(super) host: String,
    /// Its directory.
    pub(super) root: PathBuf,
    /// Its log.
    pub(super) log: PathBuf,
    _running: Background,
}

/// Is a delete that the naive side carried out for job A, with what was kept of it.
pub(super) struct Kept {
    /// The request, as it went over the wire.
    pub(super) raw: Vec<u8>,
    /// What was answered.
    pub(super) answer: String,
}

impl<'a> Worker<'a> {
    /// Starts it, and waits until it listens.
    pub(super) fn start(stage: &'a Stage, python: &Python) -> Told<Self> {
        let place = |name: &str| {
            stage
                .scratch
                .place(format!("probe-replay/naive/{name}"))
                .map_err(hands)
        };
        let (port, root, log) = (place("port")?, place("vol")?, place("worker.log")?);
        stage.scratch.directory(&root).map_err(hands)?;
        let text = include_str!("naive_worker.py");
        let command = python.script(stage, "naive_worker.py", text, stage.scratch.path())?;
        let running = stage.start(command.arg(&port).arg(&root).arg(&log))?;
        let number = stage.until("the naive worker listens", || {
            if running.ended() {
                return Err("the naive worker ended at once".to_owned());
            }
            stage.scratch.read(&port).map_err(hands)
        })?;
        Ok(Self {
            stage,
            host: format!("127.0.0.1:{}", String::from_utf8_lossy(&number).trim()),
            root,
            log,
            _running: running,
        })
    }

    /// Puts a file into its directory.
    pub(super) fn put(&self, name: &str, text: &str) -> Told<()> {
        self.stage
            .scratch
            .write(self.root.join(name), text)
            .map(drop)
            .map_err(hands)
    }

    /// Puts another checkout where the old one was, as a recycled volume has it: a directory of its own, same path.
    pub(super) fn recycle(&self, files: &[(&str, &str)]) -> Told<()> {
        let ended = format!("probe-replay/naive/ended-{}", self.stage.unique());
        self.stage.scratch.rename(&self.root, ended).map_err(hands)?;
        files.iter().try_for_each(|(name, text)| self.put(name, text))
    }

    /// Sends JSON to one of its routes.
    pub(super) fn post(&self, path: &str, body: &str) -> Told<Answer> {
        send(&self.host, &self.raw(path, body))
    }

    /// Makes a request as a client that knows keys sends it.
    pub(super) fn raw(&self, path: &str, body: &str) -> Vec<u8> {
        let json = [("Content-Type", "application/json"), ("Idempotency-Key", KEY)];
        request(&self.host, ("POST", path), &json, body.as_bytes())
    }

    /// Plays job A up to its one delete.
    pub(super) fn delete_for_a(&self) -> Told<Kept> {
        self.recycle(&[(FILE, OF_A)])?;
        let raw = self.raw("/tool", &naive_delete(FILE));
        let answer = send(&self.host, &raw)?;
        if answer.status != 200 || self.there(FILE)? {
            return Err(format!(
                "the naive delete gave {} and left the file",
                answer.status
            ));
        }
        Ok(Kept {
            raw,
            answer: answer.text(),
        })
    }

    /// Says whether a file is in its directory.
    pub(super) fn there(&self, name: &str) -> Told<bool> {
        self.stage.scratch.exists(self.root.join(name)).map_err(hands)
    }

    /// Asks for readiness as the probe of the incident did: and where that fails, falls back to the last request.
    pub(super) fn probe(&self) -> Told<(u16, Option<Answer>)> {
        let ready = send(&self.host, &request(&self.host, ("GET", "/readyz"), &[], b""))?;
        if ready.status == 200 {
            return Ok((ready.status, None));
        }
        let fallback = self.post("/internal/replay-last", "{}")?;
        Ok((ready.status, Some(fallback)))
    }

    /// Reads its log.
    pub(super) fn log_lines(&self) -> Told<Vec<String>> {
        let bytes = self
            .stage
            .scratch
            .read(&self.log)
            .map_err(hands)?
            .unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes)
            .lines()
            .map(str::to_owned)
            .collect())
    }

    /// Judges by what is left of job B's file.
    pub(super) fn judge(&self, told: String) -> Told<Naive> {
        Ok(if self.there(FILE)? {
            Naive::Unharmed(format!("{told}; job B's {FILE} is there"))
        } else {
            Naive::Damage(format!("{told}; job B's {FILE} is gone"))
        })
    }
}

/// Makes the body of a naive delete.
pub(super) fn naive_delete(path: &str) -> String {
    serde_json::json!({"tool": "delete_file", "path": path, "id": "t-441"}).to_string()
}
