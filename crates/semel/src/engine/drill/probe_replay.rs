//! Incident 2: a readiness probe replayed a one-shot delete.
//!
//! The naive side is a worker in a process of its own that keeps the last raw request, behind one recycled directory.
//! The guarded side is `semel serve` with volumes of its own for every step.

use super::gateway::{Daemon, Opened};
use super::python::Python;
use super::step;
use super::table::{Guarded, Naive, Row};
use super::worker::{FILE, KEY, OF_A, OF_B, OTHER, Worker, naive_delete};
use crate::engine::trial::http::{Answer, request, send};
use crate::engine::trial::stage::Stage;
use crate::engine::trial::{Told, hands};

const STALE: &str = "409 replay_conflict (stale_generation)";
const EMPTY: &str = "400 empty_body_not_replayable";
const INTACT: &str = "both files of B intact";

/// Plays the incident.
///
/// # Errors
/// Why it cannot be played here.
pub(super) fn play(stage: &Stage, tools: &mut Vec<String>) -> Told<Vec<Row>> {
    let python = Python::find(stage)?;
    tools.push(format!(
        "{} for the naive worker, over HTTP on loopback",
        python.describe()
    ));
    let naive = Worker::start(stage, &python)?;
    let daemon = Daemon::start(stage)?;
    let world = World { stage, naive, daemon };
    let rows = vec![
        world.whole_incident(),
        world.empty_bodies(),
        world.cached_request(),
        world.same_key_again(),
        world.same_key_other_call(),
        world.no_key(),
        world.probes(),
        world.no_replay_route(),
        world.outside(),
        world.log(),
    ];
    world.daemon.end()?;
    Ok(rows)
}

struct World<'a> {
    stage: &'a Stage,
    naive: Worker<'a>,
    daemon: Daemon<'a>,
}

fn delete(path: &str) -> String {
    serde_json::json!({"path": path}).to_string()
}

impl World<'_> {
    /// Opens job A's volume and carries out its one delete; gives the request as it went over the wire.
    fn delete_for_a(&self) -> Told<(Opened, Vec<u8>, Answer)> {
        let a = self.daemon.open("job-a", &[(FILE, OF_A)])?;
        let raw = self
            .daemon
            .request(&a.token, Some(KEY), "delete_file", &delete(FILE));
        let answer = send(&self.daemon.app, &raw)?;
        if answer.named() != "200 first" {
            return Err(format!(
                "the delete in A gave {} {}",
                answer.named(),
                answer.text()
            ));
        }
        Ok((a, raw, answer))
    }

    /// Ends A and opens B in its stead, with files of the same names.
    fn recycle(&self, a: &Opened) -> Told<Opened> {
        self.daemon.finish(a)?;
        self.daemon.open("job-b", &OF_B)
    }

    /// Reads both files of B from the disk, not through the gateway.
    fn intact(&self, b: &Opened) -> Told<&'static str> {
        for (name, text) in OF_B {
            if self
                .stage
                .scratch
                .read(b.tree.join(name))
                .map_err(hands)?
                .as_deref()
                != Some(text.as_bytes())
            {
                return Ok("B is damaged");
            }
        }
        Ok(INTACT)
    }

    fn whole_incident(&self) -> Row {
        let naive = || {
            let before = self.naive.log_lines()?.len();
            let kept = self.naive.delete_for_a()?;
            self.naive.recycle(&OF_B)?;
            let (ready, fallback) = self.naive.probe()?;
            let logged = self.naive.log_lines()?.len() - before;
            let fallback =
                fallback.map_or_else(|| "nothing".to_owned(), |a| format!("{} {}", a.status, a.text()));
            self.naive.judge(format!(
                "A was answered {}; the probe got {ready}, posted {{}} to /internal/replay-last and got {fallback}; \
                 the log shows {logged} delete",
                kept.answer
            ))
        };
        let guarded = || {
            let (a, _, first) = self.delete_for_a()?;
            let b = self.recycle(&a)?;
            let ready = send(
                &self.daemon.probe,
                &request(&self.daemon.probe, ("GET", "/readyz"), &[], b""),
            )?;
            let post = |host: &str| {
                send(
                    host,
                    &request(host, ("POST", "/internal/replay-last"), &[], b"{}"),
                )
                .map(|a| a.status)
            };
            let (probe, app) = (post(&self.daemon.probe)?, post(&self.daemon.app)?);
            let got = format!(
                "delete {}, ready {}, fallback {probe} on the probe listener and {app} on the app listener, {}",
                first.named(),
                ready.status,
                self.intact(&b)?
            );
            self.daemon.finish(&b)?;
            let tool = request(&self.daemon.probe, ("GET", "/v1/tools/read_file"), &[], b"");
            let tool = send(&self.daemon.probe, &tool)?.status;
            Ok(Guarded::new(
                got,
                format!("the probe listener answers GET /v1/tools/read_file with {tool}"),
            ))
        };
        step(
            "the incident itself",
            "job A deletes tmp/gen_schema.sql once; the volume is recycled to job B; one tick of the readiness probe, \
             which falls back to POST {} /internal/replay-last",
            naive,
            format!(
                "delete 200 first, ready 200, fallback 405 on the probe listener and 404 on the app listener, {INTACT}"
            ),
            guarded,
        )
    }

    fn empty_bodies(&self) -> Row {
        let bodies = ["", " \n", "{}", "[]", "null", "\"\""];
        let naive = || {
            self.naive.delete_for_a()?;
            self.naive.recycle(&OF_B)?;
            let answer = self.naive.post("/internal/replay-last", "{}")?;
            self.naive.judge(format!(
                "POST {{}} was answered {} {}",
                answer.status,
                answer.text()
            ))
        };
        let guarded = || {
            let (a, _, _) = self.delete_for_a()?;
            let b = self.recycle(&a)?;
            let mut got = Vec::new();
            for body in bodies {
                got.push(self.daemon.call(&b, Some(KEY), "delete_file", body)?.named());
            }
            let same = got.iter().all(|name| name == EMPTY);
            let of_b = if same {
                format!("{} x {EMPTY}", got.len())
            } else {
                got.join(", ")
            };
            let of_a = self.daemon.call(&a, Some(KEY), "delete_file", "{}")?.named();
            let none = send(
                &self.daemon.app,
                &request(&self.daemon.app, ("POST", "/v1/tools/delete_file"), &[], b"{}"),
            )?;
            let got = format!(
                "B's token {of_b}; A's token {of_a}; no token {}; {}",
                none.named(),
                self.intact(&b)?
            );
            self.daemon.finish(&b)?;
            Ok(Guarded::new(got, ""))
        };
        step(
            "an empty body",
            "after the recycle, bodies that hold nothing: absent, white space, {}, [], null, \"\"; {} with A's token; {} \
             without a token",
            naive,
            format!("B's token 6 x {EMPTY}; A's token {STALE}; no token 401 unauthorized; {INTACT}"),
            guarded,
        )
    }

    fn cached_request(&self) -> Row {
        let naive = || {
            let kept = self.naive.delete_for_a()?;
            self.naive.recycle(&OF_B)?;
            let answer = send(&self.naive.host, &kept.raw)?;
            self.naive.judge(format!(
                "the same {} bytes were answered {} {}",
                kept.raw.len(),
                answer.status,
                answer.text()
            ))
        };
        let guarded = || {
            let (a, raw, _) = self.delete_for_a()?;
            let b = self.recycle(&a)?;
            let again = send(&self.daemon.app, &raw)?;
            let got = format!("{}, {}", again.named(), self.intact(&b)?);
            self.daemon.finish(&b)?;
            Ok(Guarded::new(
                got,
                format!("the same {} bytes, with A's token", raw.len()),
            ))
        };
        step(
            "the cached request",
            "after the recycle, A's delete is sent again byte for byte",
            naive,
            format!("{STALE}, {INTACT}"),
            guarded,
        )
    }

    fn same_key_again(&self) -> Row {
        let mine = "-- made again by its owner\n";
        let naive = || {
            self.naive.delete_for_a()?;
            self.naive.put(FILE, mine)?;
            let answer = self.naive.post("/tool", &naive_delete(FILE))?;
            let told = format!("the second send was answered {} {}", answer.status, answer.text());
            Ok(if self.naive.there(FILE)? {
                Naive::Unharmed(format!("{told}; the new file is there"))
            } else {
                Naive::Damage(format!(
                    "{told}; the file that its owner had made again meanwhile is gone"
                ))
            })
        };
        let guarded = || {
            let (a, _, first) = self.delete_for_a()?;
            let write = serde_json::json!({"path": FILE, "content": mine}).to_string();
            let written = self.daemon.call(&a, Some("write-again"), "write_file", &write)?;
            if written.named() != "200 first" {
                return Err(format!("the owner's write gave {}", written.named()));
            }
            let again = self.daemon.call(&a, Some(KEY), "delete_file", &delete(FILE))?;
            let execution = |answer: &Answer| answer.json().get("execution_id").cloned();
            let one = if execution(&first).is_some() && execution(&first) == execution(&again) {
                "same"
            } else {
                "another"
            };
            let new = match self
                .stage
                .scratch
                .read(a.tree.join(FILE))
                .map_err(hands)?
                .as_deref()
            {
                Some(bytes) if bytes == mine.as_bytes() => "there",
                _ => "gone",
            };
            self.daemon.finish(&a)?;
            let over = self.daemon.call(&a, Some(KEY), "delete_file", &delete(FILE))?;
            let got = format!(
                "{}, {}, {one} execution_id, the new file is {new}; after its end {}",
                first.named(),
                again.named(),
                over.named()
            );
            Ok(Guarded::new(got, ""))
        };
        step(
            "the same key from another connection",
            "while A lives: delete, its owner makes the file again, the same call with the same key; and once more after \
             A's generation ended",
            naive,
            format!(
                "200 first, 200 replayed, same execution_id, the new file is there; after its end {STALE}"
            ),
            guarded,
        )
    }

    fn same_key_other_call(&self) -> Row {
        let naive = || {
            self.naive.delete_for_a()?;
            self.naive.put(OTHER, "-- another file\n")?;
            let answer = self.naive.post("/tool", &naive_delete(OTHER))?;
            let told = format!("the same key with another path was answered {}", answer.status);
            Ok(if self.naive.there(OTHER)? {
                Naive::Unharmed(format!("{told}; {OTHER} is there"))
            } else {
                Naive::Damage(format!("{told}; {OTHER} is gone"))
            })
        };
        let guarded = || {
            let a = self
                .daemon
                .open("job-a", &[(FILE, OF_A), (OTHER, "-- another file\n")])?;
            let write = |text: &str| serde_json::json!({"path": "notes", "content": text}).to_string();
            let calls = [
                ("delete-one", "delete_file", delete(FILE)),
                ("delete-one", "delete_file", delete(OTHER)),
                ("write-one", "write_file", write("one")),
                ("write-one", "write_file", write("two")),
                ("write-one", "delete_file", delete("notes")),
            ];
            let mut got = Vec::new();
            for (key, tool, body) in calls {
                got.push(self.daemon.call(&a, Some(key), tool, &body)?.named());
            }
            let read = |name: &str| self.stage.scratch.read(a.tree.join(name)).map_err(hands);
            let other = if read(OTHER)?.is_some() { "there" } else { "gone" };
            let notes = read("notes")?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            self.daemon.finish(&a)?;
            let notes = notes.unwrap_or_else(|| "nothing".to_owned());
            Ok(Guarded::new(
                format!(
                    "{}; the other file is {other}, notes hold {notes}",
                    got.join(", ")
                ),
                "",
            ))
        };
        let conflict = |reason: &str| format!("409 replay_conflict ({reason})");
        step(
            "the same key for another call",
            "a delete, its key with another path; a write, its key with other content, its key with another tool",
            naive,
            format!(
                "200 first, {}, 200 first, {}, {}; the other file is there, notes hold one",
                conflict("path_mismatch"),
                conflict("body_mismatch"),
                conflict("tool_mismatch")
            ),
            guarded,
        )
    }

    fn no_key(&self) -> Row {
        let naive = || {
            self.naive.recycle(&OF_B)?;
            let head = [("Content-Type", "application/json")];
            let body = naive_delete(FILE);
            let answer = send(
                &self.naive.host,
                &request(&self.naive.host, ("POST", "/tool"), &head, body.as_bytes()),
            )?;
            self.naive
                .judge(format!("a delete without a key was answered {}", answer.status))
        };
        let guarded = || {
            let b = self.daemon.open("job-b", &OF_B)?;
            let deleted = self.daemon.call(&b, None, "delete_file", &delete(FILE))?;
            let read = self.daemon.call(&b, None, "read_file", &delete(FILE))?;
            let got = format!(
                "delete {}, read {}, {}",
                deleted.named(),
                read.status,
                self.intact(&b)?
            );
            self.daemon.finish(&b)?;
            Ok(Guarded::new(got, ""))
        };
        step(
            "no key",
            "a delete without a key; a read without a key",
            naive,
            format!("delete 400 missing_idempotency_key, read 200, {INTACT}"),
            guarded,
        )
    }

    fn probes(&self) -> Row {
        const TICKS: usize = 25;
        let naive = || {
            self.naive.delete_for_a()?;
            self.naive.recycle(&OF_B)?;
            let mut gone = 0;
            for _ in 0..TICKS {
                self.naive.put(FILE, OF_B[0].1)?;
                self.naive.probe()?;
                gone += usize::from(!self.naive.there(FILE)?);
            }
            let told =
                format!("of {TICKS} ticks, before each of which B's file was there, {gone} deleted it");
            Ok(if gone > 0 {
                Naive::Damage(told)
            } else {
                Naive::Unharmed(told)
            })
        };
        let guarded = || {
            let (a, _, _) = self.delete_for_a()?;
            let b = self.recycle(&a)?;
            let before = self.daemon.effects()?;
            let mut sent = 0;
            let mut successes = Vec::new();
            for token in [None, Some(&a.token), Some(&b.token)] {
                for route in self.daemon.routes()? {
                    for (method, body) in [("GET", ""), ("HEAD", ""), ("POST", ""), ("POST", "{}")] {
                        let bearer = token.map(|token| format!("Bearer {token}"));
                        let head: Vec<_> = bearer.iter().map(|b| ("Authorization", b.as_str())).collect();
                        let raw = request(&self.daemon.app, (method, &route), &head, body.as_bytes());
                        let answer = send(&self.daemon.app, &raw)?;
                        sent += 1;
                        if answer.status < 300 && !(matches!(method, "GET" | "HEAD") && is_read(&route)) {
                            successes.push(format!("{method} {route} {}", answer.status));
                        }
                    }
                }
            }
            let after = self.daemon.effects()?;
            let odd = match successes.is_empty() {
                true => "no success but the two that only read".to_owned(),
                false => successes.join(", "),
            };
            let got = format!("{odd}, {} new effects, {}", after - before, self.intact(&b)?);
            self.daemon.finish(&b)?;
            Ok(Guarded::new(
                got,
                format!("{sent} requests over every route of this build"),
            ))
        };
        step(
            "requests such as probes send",
            "GET, HEAD, POST with no body and POST {} on every route of the app listener, without a token, with A's old \
             one and with B's",
            naive,
            format!("no success but the two that only read, 0 new effects, {INTACT}"),
            guarded,
        )
    }

    fn no_replay_route(&self) -> Row {
        let paths = [
            "/internal/replay-last",
            "/replay",
            "/v1/replay",
            "/v1/tools/replay_last",
            "/v1/tools/",
        ];
        let naive = || {
            self.naive.delete_for_a()?;
            self.naive.recycle(&OF_B)?;
            let answer = self.naive.post("/internal/replay-last", "{}")?;
            self.naive
                .judge(format!("the route is there and answered {}", answer.status))
        };
        let guarded = || {
            let (a, _, _) = self.delete_for_a()?;
            let b = self.recycle(&a)?;
            let mut got = Vec::new();
            for path in paths {
                let bearer = format!("Bearer {}", b.token);
                let head = [("Authorization", bearer.as_str()), ("Idempotency-Key", KEY)];
                let raw = request(&self.daemon.app, ("POST", path), &head, delete(FILE).as_bytes());
                got.push(send(&self.daemon.app, &raw)?.status.to_string());
            }
            let got = format!("{}, {}", got.join(" "), self.intact(&b)?);
            self.daemon.finish(&b)?;
            Ok(Guarded::new(got, ""))
        };
        step(
            "no route replays the last call",
            format!(
                "POST to {} with B's token, a key and a whole body",
                paths.join(", ")
            ),
            naive,
            format!("{}, {INTACT}", ["404"; 5].join(" ")),
            guarded,
        )
    }

    fn outside(&self) -> Row {
        let naive = || {
            self.naive.recycle(&[(FILE, OF_A)])?;
            let place = "probe-replay/naive/neighbour.sql";
            self.stage.scratch.write(place, OF_B[0].1).map_err(hands)?;
            let answer = self.naive.post("/tool", &naive_delete("../neighbour.sql"))?;
            let told = format!("../neighbour.sql was answered {}", answer.status);
            Ok(if self.stage.scratch.exists(place).map_err(hands)? {
                Naive::Unharmed(format!("{told}; the file beside the root is there"))
            } else {
                Naive::Damage(format!("{told}; the file beside the root is gone"))
            })
        };
        let guarded = || {
            let b = self.daemon.open("job-b", &OF_B)?;
            let a = self.daemon.open("job-a", &[(FILE, OF_A)])?;
            // What an agent with a shell could plant.
            self.stage
                .scratch
                .link(&b.tree, a.tree.join("way-out"))
                .map_err(hands)?;
            let absolute = b.tree.join(FILE).display().to_string();
            let up = format!("../../../../job-b/{}/vol/tree/{FILE}", b.generation);
            let mut got = Vec::new();
            for (number, path) in [up, absolute, format!("way-out/{FILE}"), ".".to_owned()]
                .iter()
                .enumerate()
            {
                let key = format!("outside-{number}");
                got.push(
                    self.daemon
                        .call(&a, Some(&key), "delete_file", &delete(path))?
                        .coded(),
                );
            }
            let same = got.iter().all(|name| name == ESCAPES);
            let got = if same {
                format!("{} x {ESCAPES}", got.len())
            } else {
                got.join(", ")
            };
            let got = format!("{got}, {}", self.intact(&b)?);
            self.daemon.finish(&a)?;
            self.daemon.finish(&b)?;
            Ok(Guarded::new(got, ""))
        };
        step(
            "a path outside the root",
            "deletes by .. into job B's tree, by its absolute path, through a link that leads there, and of the root",
            naive,
            format!("4 x {ESCAPES}, {INTACT}"),
            guarded,
        )
    }

    fn log(&self) -> Row {
        let naive = || {
            let before = self.naive.log_lines()?.len();
            self.naive.delete_for_a()?;
            self.naive.recycle(&OF_B)?;
            let deletes =
                1 + usize::from(matches!(self.naive.probe()?, (_, Some(answer)) if answer.status == 200));
            let lines = self.naive.log_lines()?.split_off(before);
            let told = format!(
                "{deletes} deletes were carried out; the log has {}: {}",
                lines.len(),
                lines.join(" | ")
            );
            Ok(if deletes > lines.len() {
                Naive::Damage(told)
            } else {
                Naive::Unharmed(told)
            })
        };
        let guarded = || {
            let job = format!("job-log-{}", self.stage.unique());
            let a = self.daemon.open(&job, &[(FILE, OF_A)])?;
            let first = self.daemon.call(&a, Some(KEY), "delete_file", &delete(FILE))?;
            self.daemon.call(&a, Some(KEY), "delete_file", &delete(FILE))?;
            self.daemon.finish(&a)?;
            self.daemon.call(&a, Some(KEY), "delete_file", &delete(FILE))?;
            let seen = self.daemon.log(&job, KEY)?;
            let execution = first.json()["execution_id"]
                .as_str()
                .ok_or("the delete has no execution_id")?
                .to_owned();
            let linked = seen
                .events
                .iter()
                .filter(|event| event.execution == execution)
                .count();
            let names: Vec<&str> = seen.events.iter().map(|event| event.name.as_str()).collect();
            Ok(Guarded::new(
                format!(
                    "{}; {linked} of them carry the execution_id; log verify: {}",
                    names.join(", "),
                    seen.verified
                ),
                format!("read by --key {KEY}; execution_id {execution}"),
            ))
        };
        step(
            "the log",
            "one delete, its replay, and a third send after the end (naive: the probe's repetition); then the log is read",
            naive,
            "intended, receipted done, replayed, refused replay_conflict (stale_generation); 3 of them carry the \
             execution_id; log verify: no fault",
            guarded,
        )
    }
}

const ESCAPES: &str = "403 path_escapes_root";

/// Names the two routes that answer a GET with 200: they only read.
fn is_read(route: &str) -> bool {
    route == "/v1/openapi.json" || route.starts_with("/v1/receipts/")
}
