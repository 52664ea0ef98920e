//! The guarded side's daemon of a drill: `semel serve` as a child, its volumes, calls and log.

use crate::engine::trial::http::{Answer, request, send};
use crate::engine::trial::stage::{Background, Stage};
use crate::engine::trial::{Told, hands};
use semel_host::process::Output;
use serde_json::Value;
use std::path::PathBuf;

/// Is the running daemon.
pub(super) struct Daemon<'a> {
    stage: &'a Stage,
    /// Host and port of the app listener.
    pub(super) app: String,
    /// Host and port of the probe listener.
    pub(super) probe: String,
    running: Background,
}

/// Is an open volume.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    /// Its generation.
    pub(super) generation: String,
    /// Its token.
    pub(super) token: String,
    /// Its tree on the disk, to look at past the gateway.
    pub(super) tree: PathBuf,
}

/// Is one event of a key in the log.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// What it was.
    pub(super) name: String,
    /// The execution that it is linked to.
    pub(super) execution: String,
}

/// Is what the log says.
#[derive(Clone, Debug)]
pub(super) struct Log {
    /// Its events of one key, in order.
    pub(super) events: Vec<Event>,
    /// What the verification said.
    pub(super) verified: String,
}

impl<'a> Daemon<'a> {
    /// Starts it, and waits until it listens.
    pub(super) fn start(stage: &'a Stage) -> Told<Self> {
        let place = |name: &str| stage.scratch.place(format!("probe-replay/{name}")).map_err(hands);
        let (out, err) = (place("serve.out")?, place("serve.err")?);
        stage.scratch.directory("probe-replay").map_err(hands)?;
        let local = "127.0.0.1:0";
        let mut command = stage.semel(
            stage.scratch.path(),
            ["serve", "--listen", local, "--probe", local],
        )?;
        command.deadline = None;
        command.output = Output::Files {
            stdout: out.clone(),
            stderr: err.clone(),
            cap_bytes: 1 << 20,
        };
        let running = stage.start(command)?;
        let about: Value = stage.until("semel serve listens", || {
            let said = stage.scratch.read(&out).map_err(hands)?.unwrap_or_default();
            match serde_json::from_slice(&said) {
                Ok(about) => Ok(Some(about)),
                Err(_) if running.ended() => {
                    let said = stage.scratch.read(&err).map_err(hands)?.unwrap_or_default();
                    Err(format!(
                        "semel serve ended: {}",
                        String::from_utf8_lossy(&said).trim()
                    ))
                }
                Err(_) => Ok(None),
            }
        })?;
        let host = |name: &str| {
            let url = about[name].as_str().and_then(|url| url.strip_prefix("http://"));
            url.map(str::to_owned)
                .ok_or_else(|| format!("semel serve names no {name}"))
        };
        let (app, probe) = (host("url")?, host("probe_url")?);
        Ok(Self {
            stage,
            app,
            probe,
            running,
        })
    }

    /// Ends it.
    pub(super) fn end(self) -> Told<()> {
        self.running.end().map(drop)
    }

    fn json(&self, args: &[&str]) -> Told<Value> {
        let said = self.stage.run(
            &self
                .stage
                .semel(self.stage.scratch.path(), args.iter().copied())?,
        )?;
        let said = said.ok(&format!("semel {}", args.join(" ")))?;
        said.json()
            .ok_or_else(|| format!("semel {} gave no JSON", args.join(" ")))
    }

    /// Reads the records of the log as they are kept.
    fn records(&self, choice: &[&str]) -> Told<Vec<Value>> {
        let args = ["log", "--raw"].iter().chain(choice).copied();
        let said = self
            .stage
            .run(&self.stage.semel(self.stage.scratch.path(), args)?)?;
        let said = said.ok("semel log --raw")?;
        let out = said.out();
        let entries = out.lines().map(|line| {
            let entry: Value = serde_json::from_str(line).map_err(|e| format!("semel log --raw: {e}"))?;
            Ok(entry["record"].clone())
        });
        entries.collect()
    }

    /// Opens a volume of a job with these files.
    pub(super) fn open(&self, job: &str, files: &[(&str, &str)]) -> Told<Opened> {
        let from = format!("probe-replay/checkouts/{}", self.stage.unique());
        let from = self.stage.scratch.directory(from).map_err(hands)?;
        for (name, text) in files {
            self.stage.scratch.write(from.join(name), text).map_err(hands)?;
        }
        let opened = self.json(&["volume", "open", job, "--from", &from.display().to_string()])?;
        let text = |name: &str| {
            let text = opened[name].as_str().map(str::to_owned);
            text.ok_or_else(|| format!("semel volume open names no {name}"))
        };
        Ok(Opened {
            generation: text("generation")?,
            token: text("token")?,
            tree: text("tree")?.into(),
        })
    }

    /// Ends a volume clean.
    pub(super) fn finish(&self, opened: &Opened) -> Told<()> {
        self.json(&["volume", "end", &opened.generation]).map(drop)
    }

    /// Makes the request of a call.
    pub(super) fn request(&self, token: &str, key: Option<&str>, tool: &str, body: &str) -> Vec<u8> {
        let bearer = format!("Bearer {token}");
        let mut head = vec![
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        head.extend(key.map(|key| ("Idempotency-Key", key)));
        request(
            &self.app,
            ("POST", &format!("/v1/tools/{tool}")),
            &head,
            body.as_bytes(),
        )
    }

    /// Sends a call over a connection of its own.
    pub(super) fn call(&self, opened: &Opened, key: Option<&str>, tool: &str, body: &str) -> Told<Answer> {
        send(&self.app, &self.request(&opened.token, key, tool, body))
    }

    /// Counts the calls of all volumes that the journal knows to have begun or ended.
    ///
    /// # Errors
    /// Also where it knows none: then it is not the journal of this drill.
    pub(super) fn effects(&self) -> Told<usize> {
        const MOST: usize = 100_000;
        let log = self.records(&["--limit", &MOST.to_string()])?;
        let kinds = log.iter().filter_map(|record| record["kind"].as_str());
        let effects = kinds
            .filter(|kind| ["call_intended", "call_receipted"].contains(kind))
            .count();
        match (effects, log.len()) {
            (0, _) => Err("the log shows no call at all".to_owned()),
            (_, MOST..) => Err("the log is too long to be counted".to_owned()),
            (effects, _) => Ok(effects),
        }
    }

    /// Reads the log of a key in a job, and has the whole chain verified.
    pub(super) fn log(&self, job: &str, key: &str) -> Told<Log> {
        let log = self.records(&["--job", job, "--key", key])?;
        let events = log.iter().map(Event::of).collect();
        let verified = match self.json(&["log", "verify"]) {
            Ok(report) if report["report"]["faults"].as_array().is_some_and(Vec::is_empty) => {
                "no fault".to_owned()
            }
            Ok(report) => format!("faults: {report}"),
            Err(why) => why,
        };
        Ok(Log { events, verified })
    }

    /// Lists every route of this build, from its own OpenAPI document, with places filled in.
    pub(super) fn routes(&self) -> Told<Vec<String>> {
        let answer = send(
            &self.app,
            &request(&self.app, ("GET", "/v1/openapi.json"), &[], b""),
        )?;
        let document = answer.json();
        let paths = document["paths"]
            .as_object()
            .ok_or("the OpenAPI document has no paths")?;
        let mut routes: Vec<String> = Vec::new();
        for path in paths.keys() {
            if path.contains("{tool}") {
                routes.extend(
                    ["delete_file", "write_file", "read_file"].map(|tool| path.replace("{tool}", tool)),
                );
            } else {
                routes.push(
                    path.replace("{key}", "delete-once")
                        .replace("{generation}", "g-0")
                        .replace("{id}", "1"),
                );
            }
        }
        routes.sort();
        Ok(routes)
    }
}

impl Event {
    fn of(record: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let name = match record["kind"].as_str() {
            Some("call_intended") => "intended".to_owned(),
            Some("call_receipted") => format!("receipted {}", text(&record["receipt"]["outcome"]["outcome"])),
            Some("call_noted") => {
                let event = &record["event"];
                match (event["code"].as_str(), event["reason"].as_str()) {
                    (Some(code), Some(finer)) => format!("{} {code} ({finer})", text(&event["event"])),
                    (Some(code), None) => format!("{} {code}", text(&event["event"])),
                    (None, _) => text(&event["event"]),
                }
            }
            other => other.unwrap_or("no kind").to_owned(),
        };
        Self {
            name,
            execution: record["execution_id"].as_str().unwrap_or_default().to_owned(),
        }
    }
}
