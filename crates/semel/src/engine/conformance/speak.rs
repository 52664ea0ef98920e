//! Calls as they go to the target, and answers as they are understood.
//!
//! Nothing is sent again by itself, but where a case says so.

use super::adapter::{Adapter, Template, fill};
use super::respell;
use super::target::Workspace;
use crate::engine::trial::Told;
use crate::engine::trial::http::{Answer, request, send, send_and_leave};
use semel_core::Sha256;
use std::time::{Duration, Instant};

/// How long a caller goes on asking while it is told that the first call still runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names what is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb<'a> {
    /// A file is deleted.
    Delete,
    /// This is written as the whole file.
    Write(&'a str),
    /// A file is read.
    Read,
    /// A file is deleted if this is its content.
    DeleteIf(&'a str),
}

/// Is one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// What is called.
    pub(super) verb: Verb<'a>,
    /// About which file.
    pub(super) path: &'a str,
    /// Under which key; none where the call is to come without one.
    pub(super) key: Option<&'a str>,
}

/// Says how an answer is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The call was carried out.
    Done,
    /// It was carried out before.
    Replayed,
    /// A success that does not say which, since the adapter names no mark.
    Unmarked,
    /// It was not carried out, and the caller is told so.
    Refused,
    /// It is neither.
    Unclear,
}

/// Is an answer, understood; or that none came.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// How it is understood.
    pub(super) kind: Kind,
    /// In short.
    pub(super) told: String,
    later: bool,
}

impl Heard {
    /// Makes an answer of a kind, in short.
    #[cfg(test)]
    pub(super) fn new(kind: Kind, told: &str) -> Self {
        Self {
            kind,
            told: told.to_owned(),
            later: false,
        }
    }

    /// Says whether a success was told.
    pub(super) fn success(&self) -> bool {
        matches!(self.kind, Kind::Done | Kind::Replayed | Kind::Unmarked)
    }
}

/// Speaks to the target.
#[derive(Clone, Copy)]
pub(super) struct Speaker<'a> {
    /// How it is spoken to.
    pub(super) adapter: &'a Adapter,
    /// Host and port.
    pub(super) host: &'a str,
}

impl<'a> Speaker<'a> {
    fn template(&self, verb: Verb<'_>) -> Told<&'a Template> {
        let calls = &self.adapter.calls;
        let (found, name) = match verb {
            Verb::Delete => (Some(&calls.delete), "delete"),
            Verb::Write(_) => (calls.write.as_ref(), "write"),
            Verb::Read => (calls.read.as_ref(), "read"),
            Verb::DeleteIf(_) => (calls.conditional_delete.as_ref(), "conditional_delete"),
        };
        found.ok_or_else(|| format!("the adapter has no {name}"))
    }

    fn places(call: &Call<'_>, workspace: &Workspace) -> Vec<(String, String)> {
        let mut places = workspace.places.clone();
        let mut add = |name: &str, value: String| places.push((name.to_owned(), value));
        add("path", call.path.to_owned());
        add("key", call.key.unwrap_or_default().to_owned());
        match call.verb {
            Verb::Write(content) => add("content", content.to_owned()),
            Verb::DeleteIf(content) => add("sha256", Sha256::of(content.as_bytes()).to_string()),
            Verb::Delete | Verb::Read => {}
        }
        places
    }

    /// Gives the body of a call; without a key, it has no member that would hold it.
    pub(super) fn body(&self, call: &Call<'_>, workspace: &Workspace) -> Told<String> {
        let template = self.template(call.verb)?;
        let body = match call.key {
            Some(_) => template.body.clone(),
            None => respell::without(&template.body, "{key}"),
        };
        Ok(fill(&body, &Self::places(call, workspace)))
    }

    /// Makes the request of a call, with this body.
    pub(super) fn raw(&self, call: &Call<'_>, workspace: &Workspace, body: &str) -> Told<Vec<u8>> {
        let template = self.template(call.verb)?;
        self.shaped(call, workspace, (&template.method, &template.path), body)
    }

    /// Makes a request with the headers of a call, whatever its method and route.
    pub(super) fn shaped(
        &self,
        call: &Call<'_>,
        workspace: &Workspace,
        line: (&str, &str),
        body: &str,
    ) -> Told<Vec<u8>> {
        let template = self.template(call.verb)?;
        let places = Self::places(call, workspace);
        let headers = template.headers.iter();
        let headers: Vec<(&str, String)> = headers
            .filter(|(_, value)| call.key.is_some() || !value.contains("{key}"))
            .map(|(name, value)| (name.as_str(), fill(value, &places)))
            .collect();
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let path = fill(line.1, &places);
        Ok(request(self.host, (line.0, &path), &headers, body.as_bytes()))
    }

    /// Sends a call.
    pub(super) fn call(&self, call: &Call<'_>, workspace: &Workspace) -> Told<Heard> {
        let body = self.body(call, workspace)?;
        self.with_body(call, workspace, &body)
    }

    /// Sends a call with another body.
    pub(super) fn with_body(&self, call: &Call<'_>, workspace: &Workspace, body: &str) -> Told<Heard> {
        let raw = self.raw(call, workspace, body)?;
        Ok(self.heard(send(self.host, &raw)))
    }

    /// Sends a call, and again while the caller is told that it still runs.
    pub(super) fn call_until_settled(&self, call: &Call<'_>, workspace: &Workspace) -> Told<Heard> {
        let began = Instant::now();
        loop {
            let heard = self.call(call, workspace)?;
            if !heard.later || began.elapsed() > PATIENCE {
                return Ok(heard);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a part of a call, and goes away.
    pub(super) fn break_off(&self, raw: &[u8], part: usize) -> Told<()> {
        send_and_leave(self.host, raw.get(..part).unwrap_or(raw))
    }

    /// Understands an answer.
    pub(super) fn heard(&self, answer: Told<Answer>) -> Heard {
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => {
                return Heard {
                    kind: Kind::Unclear,
                    told: format!("no answer ({why})"),
                    later: false,
                };
            }
        };
        let body = answer.json();
        let pointer = self.adapter.refused_member.as_deref();
        let denied = pointer
            .and_then(|pointer| body.pointer(pointer))
            .is_some_and(|v| !v.is_null());
        let kind = match answer.status {
            200..=299 if denied => Kind::Refused,
            200..=299 => self.success(&answer),
            400..=499 => Kind::Refused,
            _ => Kind::Unclear,
        };
        let told = match (kind, answer.json().get("code").and_then(|code| code.as_str())) {
            (Kind::Done, _) => format!("{} done", answer.status),
            (Kind::Replayed, _) => format!("{} replayed", answer.status),
            (_, Some(_)) => answer.coded(),
            (_, None) => answer.status.to_string(),
        };
        Heard {
            kind,
            told,
            later: matches!(answer.status, 409 | 423 | 425 | 429 | 503),
        }
    }

    fn success(&self, answer: &Answer) -> Kind {
        let marks = &self.adapter.replayed;
        let body = answer.json();
        let header = |name: &str| answer.header(name).map(str::to_owned);
        let on = marks.iter().filter(|mark| mark.is_on(header, &body)).count();
        match (marks.len(), on) {
            (0, _) => Kind::Unmarked,
            (_, 0) => Kind::Done,
            (all, some) if all == some => Kind::Replayed,
            // Half of the marks: its caller cannot know.
            _ => Kind::Unclear,
        }
    }
}
