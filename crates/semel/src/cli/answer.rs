//! What a command says: data to stdout, everything else to stderr, refusals in three lines.

use semel_core::{Code, Refusal};
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
    /// The exit status; not 0 only where a child's own status is passed through, or the answer is no.
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
            let lost = if text.is_empty() { None } else { line(&text).err() };
            for refusal in answer.refusal.iter().chain(&lost) {
                err(&three_lines(refusal));
            }
            let lost = lost.map_or(0, |lost| lost.code.exit());
            ExitCode::from(if answer.exit == 0 { lost } else { answer.exit })
        }
        Err(refusal) => {
            if format == Format::Json {
                // The three lines say the same.
                drop(line(&refusal_json(&refusal).to_string()));
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
        "next": refusal.next(),
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
        refusal.meaning(),
        refusal.next()
    )
}

/// Counts things in plain words: `1 call`, `2 calls`.
pub(crate) fn count(n: impl TryInto<u64>, thing: &str) -> String {
    counts(n, thing, &format!("{thing}s"))
}

/// Counts things whose plural is a word of its own: `1 directory`, `2 directories`.
pub(crate) fn counts(n: impl TryInto<u64>, one: &str, many: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Says whether anybody still reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// As far as is known.
    Reads,
    /// The other end of the pipe is closed.
    Gone,
}

/// Writes a line of data at once, and says whether anybody reads it. A closed pipe is no failure: whoever closed it wants
/// no more.
///
/// # Errors
/// `outcome_unknown`, reason `answer_lost`, where it could not be written, such as to a full disk.
pub(crate) fn line(text: &str) -> Result<Reader, Refusal> {
    let mut stdout = std::io::stdout().lock();
    read(writeln!(stdout, "{text}").and_then(|()| stdout.flush()))
}

/// Says what became of what was written to standard output.
///
/// # Errors
/// As [`line()`].
pub(super) fn read(written: std::io::Result<()>) -> Result<Reader, Refusal> {
    match written {
        Ok(()) => Ok(Reader::Reads),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(e) => {
            let why = format!("the command did its work, but what it had to say could not be written ({e})");
            Err(Refusal::new(Code::OutcomeUnknown, why).reason("answer_lost"))
        }
    }
}

/// Writes a line of what goes on; that nobody can read it ends nothing.
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
