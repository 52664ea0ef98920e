//! What a command did and wrote, as answers tell it: from its receipt, and from its spool beside the tree.

use super::Gateway;
use super::answer::{Replayed, Success, of_done, put_path};
use crate::engine::{host, store};
use crate::limits;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use semel_core::call::{CallState, Done, Intent, Receipt};
use semel_core::command::{Ended, Kept};
use semel_core::effect::Effect;
use semel_core::ids::ExecutionId;
use semel_core::volume::Volume;
use semel_core::{Code, Refusal, Sha256};
use semel_host::exec::{self, Urgency};
use semel_host::volume::Volume as Disk;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(crate) use semel_host::exec::Stream;

/// Asks for the end of a command through the admin API.
///
/// # Shape
/// `{"urgency":"ask"}` or `{"urgency":"kill"}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndExecution {
    urgency: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    Ask,
    Kill,
}

/// Says what a receipt knows of a command, without its output.
///
/// # Shape
/// `cwd`, `end` (`exited`, `signalled`, `timed_out`, `asked`, or `unseen` where a person settled the call),
/// `exit_code`, `signal`, `timed_out`, `took_ms`, `tree_ended`, `confinement`, `confinement_missing`, and of each stream
/// `…_total_bytes`, `…_kept_bytes`, `…_sha256`.
pub(super) fn facts(intent: &Intent, done: &Done) -> Map<String, Value> {
    let mut place = Map::new();
    put_path(&mut place, &intent.path);
    let mut body: Map<String, Value> = place
        .into_iter()
        .map(|(name, value)| (name.replacen("path", "cwd", 1), value))
        .collect();
    let Some(ran) = &done.command else {
        body.insert("end".to_owned(), json!("unseen"));
        return body;
    };
    let (end, code, signal) = match ran.ended {
        Ended::Exited { code } => ("exited", Some(code), None),
        Ended::Signalled { signal } => ("signalled", None, Some(signal)),
        Ended::TimedOut => ("timed_out", None, None),
        Ended::Bounded { .. } => ("bounded", None, None),
        Ended::Asked { .. } => ("asked", None, None),
    };
    let mut put = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    put("end", json!(end));
    put("exit_code", json!(code));
    put("signal", json!(signal));
    put("timed_out", json!(ran.ended == Ended::TimedOut));
    if let Ended::Asked { by } = ran.ended {
        put("asked_by", json!(by));
    }
    if let Ended::Bounded { met } = ran.ended {
        put("bound", json!(met));
    }
    put("took_ms", json!(ran.took_ms));
    put("tree_ended", json!(ran.tree_ended));
    put("confinement", json!(ran.level.confinement));
    put("confinement_missing", json!(ran.level.missing));
    put("user", json!(ran.level.user));
    for (name, kept) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        put(&format!("{name}_total_bytes"), json!(kept.total_bytes));
        put(&format!("{name}_kept_bytes"), json!(kept.kept_bytes));
        put(&format!("{name}_sha256"), json!(kept.sha256));
    }
    body
}

impl Gateway {
    /// Makes the answer of a call that did what it asked; of a command, with what it wrote.
    pub(super) fn success(
        &self,
        intent: &Intent,
        receipt: &Receipt,
        done: &Done,
        replayed: Replayed,
    ) -> Success {
        let mut success = of_done(intent, receipt, done, replayed);
        let Some(ran) = &done.command else { return success };
        let disk = self.spool(intent);
        for (stream, name, kept) in [
            (Stream::Stdout, "stdout", &ran.stdout),
            (Stream::Stderr, "stderr", &ran.stderr),
        ] {
            let piece = |from: u64, most: usize| {
                exec::read_output(disk.as_ref()?, &intent.execution_id, stream, from, most).ok()
            };
            put_stream(&mut success.body, name, kept, piece);
        }
        success
    }

    /// Finds where the output of an execution lies; `None` where it went with its volume.
    fn spool(&self, intent: &Intent) -> Option<Disk> {
        let volumes = &self.engine.volumes;
        volumes.look(&intent.scope.job, &intent.generation).ok()
    }

    /// Reads a piece of what a command wrote, also while it runs.
    ///
    /// # Errors
    /// `not_found` for an execution that is no command of this lease; `replay_conflict`, reason `stale_generation`;
    /// `io_failed`, `unknown_state`.
    ///
    /// # Shape
    /// `offset`, `data` or, where it is not UTF-8, `data_b64`; `next_offset`, where the next piece begins; `running`:
    /// once it is false, an empty piece is the end.
    pub(crate) fn output(
        &self,
        lease: &Volume,
        execution: &ExecutionId,
        stream: Stream,
        offset: u64,
    ) -> Result<Map<String, Value>, Refusal> {
        lease.live()?;
        // Whether it runs is asked first: what it wrote before it ended is then there.
        let state = self.engine.journal.execution(execution.clone()).map_err(store)?;
        let ours = |intent: &Intent| {
            intent.generation == lease.generation && intent.scope.principal == lease.principal && runs(intent)
        };
        let state = state.filter(|state| ours(state.intent())).ok_or_else(|| {
            let why = "the generation has no command of this execution";
            Refusal::new(Code::NotFound, why).name(execution.as_str())
        })?;
        let running = matches!(state, CallState::Running { .. });
        let disk = self.disk(lease)?;
        let read = exec::read_output(&disk, execution, stream, offset, limits::OUTPUT_READ);
        let mut bytes = read.map_err(host)?;
        if running || bytes.len() == limits::OUTPUT_READ {
            bytes.truncate(whole_characters(&bytes));
        }
        let next = offset.saturating_add(bytes.len() as u64);
        let mut body = Map::new();
        body.insert("offset".to_owned(), json!(offset));
        put_bytes(&mut body, "data", bytes);
        body.insert("next_offset".to_owned(), json!(next));
        body.insert("running".to_owned(), json!(running));
        Ok(body)
    }

    /// Asks that a command be ended, for a person.
    ///
    /// # Errors
    /// `bad_input`; `not_found`; `precondition_failed`, reason `not_running`.
    pub(crate) async fn end_execution(
        self: &Arc<Self>,
        execution: ExecutionId,
        body: &[u8],
    ) -> Result<Value, Refusal> {
        let asked: EndExecution = crate::engine::daemon::admin::read(body)?;
        self.blocking(move |gateway| gateway.end_command(&execution, asked.urgency))
            .await?
    }

    /// Asks that a command be ended. It blocks.
    pub(super) fn end_command(&self, execution: &ExecutionId, how: How) -> Result<Value, Refusal> {
        let state = self.engine.journal.execution(execution.clone()).map_err(store)?;
        let state = state.ok_or_else(|| {
            Refusal::new(Code::NotFound, "there is no such execution").name(execution.as_str())
        })?;
        let intent = state.intent();
        if !matches!(state, CallState::Running { .. }) || !runs(intent) {
            let why = "no command of this execution runs";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("not_running")
                .name(execution.as_str()));
        }
        let volumes = &self.engine.volumes;
        let disk = volumes
            .look(&intent.scope.job, &intent.generation)
            .map_err(host)?;
        let urgency = match how {
            How::Ask => Urgency::Ask,
            How::Kill => Urgency::Kill,
        };
        let seen = exec::end(&disk, execution, urgency).map_err(host)?;
        Ok(json!({
            "schema": "semel.execution.end/v1",
            "execution_id": execution,
            "state": match seen {
                exec::Observation::Running | exec::Observation::NotBegun => "asked",
                exec::Observation::NeverBegan => "never_began",
                exec::Observation::Ended(_) => "ended",
                exec::Observation::Lost => "lost",
            },
        }))
    }
}

/// Says whether a call runs a command.
pub(super) fn runs(intent: &Intent) -> bool {
    intent
        .effects
        .iter()
        .any(|effect| matches!(effect, Effect::Run { .. }))
}

/// Writes what is left of a stream: all of it, or its beginning and its end, with how much is left out between.
fn put_stream(
    body: &mut Map<String, Value>,
    name: &str,
    kept: &Kept,
    piece: impl Fn(u64, usize) -> Option<Vec<u8>>,
) {
    let (head, tail) = (limits::COMMAND_HEAD, limits::COMMAND_TAIL);
    let most = (head + tail) as u64;
    let gone = |body: &mut Map<String, Value>| {
        body.insert(name.to_owned(), Value::Null);
        body.insert(format!("{name}_gone"), json!(true));
    };
    if kept.kept_bytes <= most {
        match piece(0, head + tail).filter(|bytes| Sha256::of(bytes) == kept.sha256) {
            Some(whole) => put_bytes(body, name, whole),
            None => gone(body),
        }
        return;
    }
    let pieces = piece(0, head).zip(piece(kept.kept_bytes - tail as u64, tail));
    let Some((mut first, last)) = pieces.filter(|(a, b)| a.len() == head && b.len() == tail) else {
        return gone(body);
    };
    first.truncate(whole_characters(&first));
    // No character is longer than four bytes: its last three may be left of one that was cut.
    let cut = last.iter().take(3).take_while(|b| *b & 0xc0 == 0x80).count();
    let last = last.get(cut..).unwrap_or_default().to_vec();
    let omitted = kept.kept_bytes - first.len() as u64 - last.len() as u64;
    put_bytes(body, name, first);
    body.insert(format!("{name}_omitted_bytes"), json!(omitted));
    put_bytes(body, &format!("{name}_tail"), last);
}

/// Writes bytes as text, or as base64 under another name where they are none.
fn put_bytes(body: &mut Map<String, Value>, name: &str, bytes: Vec<u8>) {
    match String::from_utf8(bytes) {
        Ok(text) => body.insert(name.to_owned(), json!(text)),
        Err(error) => {
            let coded = BASE64_STANDARD.encode(error.as_bytes());
            body.insert(format!("{name}_b64"), json!(coded))
        }
    };
}

/// Says how many bytes are left once a character that is cut at the end is left out.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(written: &[u8]) -> Map<String, Value> {
        let kept = Kept {
            total_bytes: written.len() as u64,
            kept_bytes: written.len() as u64,
            sha256: Sha256::of(written),
        };
        let mut body = Map::new();
        let piece = |from: u64, most: usize| {
            let rest = &written[usize::try_from(from).unwrap()..];
            Some(rest[..rest.len().min(most)].to_vec())
        };
        put_stream(&mut body, "stdout", &kept, piece);
        body
    }

    #[test]
    fn what_is_short_is_whole_and_what_is_long_has_two_ends() {
        let most = limits::COMMAND_HEAD + limits::COMMAND_TAIL;
        let whole = shown(&vec![b'x'; most]);
        assert_eq!(whole["stdout"].as_str().unwrap().len(), most);
        assert!(!whole.contains_key("stdout_tail"));
        for character in ["x", "é", "€", "𝄞"] {
            for lead in 0..4 {
                let text = "l".repeat(lead) + &character.repeat(most + 1);
                let body = shown(text.as_bytes());
                let (first, last) = (&body["stdout"], &body["stdout_tail"]);
                let (first, last) = (first.as_str().unwrap(), last.as_str().unwrap());
                let omitted = usize::try_from(body["stdout_omitted_bytes"].as_u64().unwrap()).unwrap();
                assert!(text.starts_with(first) && text.ends_with(last));
                assert_eq!(first.len() + omitted + last.len(), text.len());
                assert!(first.len() + last.len() > most - 8, "{character} {lead}");
            }
        }
        let body = shown(&[0xff, 0xfe]);
        assert_eq!(body["stdout_b64"], "//4=");
        assert!(!body.contains_key("stdout"));
    }

    #[test]
    fn what_is_not_what_the_receipt_says_is_gone() {
        let kept = Kept {
            total_bytes: 2,
            kept_bytes: 2,
            sha256: Sha256::of(b"ab"),
        };
        for there in [None, Some(b"".to_vec()), Some(b"xx".to_vec())] {
            let mut body = Map::new();
            put_stream(&mut body, "stderr", &kept, |_, _| there.clone());
            assert_eq!(
                (&body["stderr"], &body["stderr_gone"]),
                (&Value::Null, &json!(true))
            );
        }
    }
}
