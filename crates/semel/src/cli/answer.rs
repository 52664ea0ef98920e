//! What a command says: data to stdout, everything else to stderr, refusals in three lines.

use semel_core::Refusal;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Is what a command ends with when it was not refused.
#[derive(Debug)]
pub(crate) struct Answer {
    /// For people; ends without a newline.
    pub(crate) text: String,
    /// For machines; `schema` names its shape and version. Null where everything is printed already.
    pub(crate) json: Value,
    /// The exit status; not 0 only where a child's own status is passed through.
    pub(crate) exit: u8,
    /// Why it is a refusal all the same: the answer holds the whole account, the refusal its three lines.
    pub(crate) refusal: Option<Refusal>,
}

impl Answer {
    /// Makes an answer whose exit status is 0.
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        Self {
            text: text.into(),
            json,
            exit: 0,
            refusal: None,
        }
    }

    /// Makes the answer of a command that has printed all that it had to say.
    pub(crate) fn printed() -> Self {
        Self::new("", Value::Null)
    }

    /// Makes the answer a refusal that still prints its whole account.
    pub(crate) fn refused(self, refusal: Refusal) -> Self {
        Self {
            exit: refusal.code.exit(),
            refusal: Some(refusal),
            ..self
        }
    }
}

/// Says how the answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text for people.
    Human,
    /// One JSON object.
    Json,
}

/// Prints what a command ended with.
pub(crate) fn print(result: Result<Answer, Refusal>, format: Format) -> ExitCode {
    match result {
        Ok(answer) => {
            let text = match format {
                Format::Human => answer.text,
                Format::Json if answer.json.is_null() => String::new(),
                Format::Json => answer.json.to_string(),
            };
            if !text.is_empty() {
                out(&text);
            }
            if let Some(refusal) = &answer.refusal {
                err(&three_lines(refusal));
            }
            ExitCode::from(answer.exit)
        }
        Err(refusal) => {
            if format == Format::Json {
                out(&refusal_json(&refusal).to_string());
            }
            err(&three_lines(&refusal));
            ExitCode::from(refusal.code.exit())
        }
    }
}

/// Gives the machine's face of a refusal.
///
/// # Shape
/// `{"schema":"semel.refusal/v1","code":"…","reason":…,"why":"…","names":[…],"exit":N,"retry":"…","next":"…"}`
pub(crate) fn refusal_json(refusal: &Refusal) -> Value {
    json!({
        "schema": "semel.refusal/v1",
        "code": refusal.code,
        "reason": refusal.reason,
        "why": refusal.why,
        "names": refusal.names,
        "exit": refusal.code.exit(),
        "retry": refusal.code.retry(),
        "next": refusal.code.next(),
    })
}

fn three_lines(refusal: &Refusal) -> String {
    let reason = refusal
        .reason
        .as_deref()
        .map(|r| format!(" ({r})"))
        .unwrap_or_default();
    format!(
        "error: {}{reason}: {}\nwhy:   {refusal}\nnext:  {}",
        refusal.code,
        refusal.code.meaning(),
        refusal.code.next()
    )
}

/// Says whether anybody still reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// As far as is known.
    Reads,
    /// The other end of the pipe is closed.
    Gone,
}

/// Writes a line of data at once, and says whether anybody reads it.
pub(crate) fn line(text: &str) -> Reader {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Reader::Reads,
        Err(_) => Reader::Gone,
    }
}

/// Writes a line of data. A closed pipe ends nothing: the work is done by then.
pub(crate) fn out(text: &str) {
    drop(writeln!(std::io::stdout().lock(), "{text}"));
}

/// Writes a line that is not data.
pub(crate) fn err(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Writes another program's bytes to stderr, unchanged.
pub(crate) fn raw_err(bytes: &[u8]) {
    drop(std::io::stderr().lock().write_all(bytes));
}
