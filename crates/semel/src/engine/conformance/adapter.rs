//! The adapter: how a target is started, spoken to and looked at, as a small TOML file.
//!
//! # Shape
//! See `docs/conformance.md`. It starts nothing and sends nothing.

use semel_core::code::toml_refusal;
use semel_core::{Code, Refusal};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const SHAPE: &str = "semel.conformance.adapter/v1";

/// Is an adapter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Adapter {
    /// Name and version of its shape.
    adapter: String,
    /// What the target is called in the account.
    pub(super) name: String,
    /// How it is started; where this is missing it has to run already.
    pub(super) target: Option<Start>,
    /// Where its files lie.
    pub(super) workspace: Workspace,
    /// How it is spoken to.
    pub(super) calls: Calls,
    /// What a replay is marked by: every one of these.
    #[serde(default)]
    pub(super) replayed: Vec<Mark>,
    /// A member of the answer that makes a success a refusal all the same, as a JSON pointer.
    pub(super) refused_member: Option<String>,
    /// Routes that a probe may ask for.
    #[serde(default)]
    pub(super) probes: Probes,
}

/// Says how a target is started.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    /// The program and its arguments.
    pub(super) start: Vec<String>,
    /// Variables of its environment.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// What is asked for by GET until anything is answered.
    #[serde(default = "root")]
    pub(super) ready: String,
    /// Further arguments that make it kill itself at `{point}`.
    #[serde(default)]
    pub(super) crash: Vec<String>,
    /// At which points, one list a trial: each life of the target takes one.
    #[serde(default)]
    pub(super) crash_points: Vec<Vec<String>>,
}

/// Says where files lie, and who may touch them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Workspace {
    /// The directory of the files on the disk.
    pub(super) files: String,
    /// The command that opens a workspace for `{job}`, and prints JSON.
    pub(super) open: Option<Vec<String>>,
    /// What is taken from that JSON: names of placeholders, with JSON pointers.
    #[serde(default)]
    pub(super) take: BTreeMap<String, String>,
    /// The command that ends a workspace.
    pub(super) end: Option<Vec<String>>,
}

/// Holds the calls of a target.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Calls {
    /// Deletes the file `{path}`.
    pub(super) delete: Template,
    /// Writes `{content}` as the whole file `{path}`.
    pub(super) write: Option<Template>,
    /// Reads the file `{path}`.
    pub(super) read: Option<Template>,
    /// Deletes the file `{path}` if its content has the digest `{sha256}`.
    pub(super) conditional_delete: Option<Template>,
}

/// Is the request of a call, with places to be filled in.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Template {
    /// The method.
    #[serde(default = "post")]
    pub(super) method: String,
    /// The route.
    pub(super) path: String,
    /// The headers.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// The body.
    #[serde(default)]
    pub(super) body: String,
}

/// Is what an answer has that was given from a record.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    /// The header.
    pub(super) header: Option<String>,
    /// The member of the body, as a JSON pointer.
    pub(super) member: Option<String>,
    /// Its value; a header only has to be there where none is named.
    pub(super) equals: Option<Value>,
}

/// Says what a probe may ask for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Probes {
    /// Routes beside those of the calls.
    #[serde(default)]
    pub(super) routes: Vec<String>,
    /// Where the target gives an OpenAPI document that lists more.
    pub(super) routes_from: Option<String>,
}

fn root() -> String {
    "/".to_owned()
}

fn post() -> String {
    "POST".to_owned()
}

impl Adapter {
    /// Reads an adapter.
    ///
    /// # Errors
    /// `bad_config`, naming what does not fit.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        let adapter: Self =
            toml::from_str(text).map_err(|e| toml_refusal(Code::BadConfig, "the adapter", text, &e))?;
        adapter.check()?;
        Ok(adapter)
    }

    fn check(&self) -> Result<(), Refusal> {
        let bad = |why: &str, name: &str| Err(Refusal::new(Code::BadConfig, why).name(name));
        if self.adapter != SHAPE {
            return bad(&format!("the adapter is not of shape {SHAPE}"), "adapter");
        }
        if let Some(start) = &self.target {
            if start.start.is_empty() {
                return bad("the command is empty", "target.start");
            }
            if !start.start.iter().any(|arg| arg.contains("{port}")) {
                return bad(
                    "the command that starts the target has to take {port}",
                    "target.start",
                );
            }
            if start.crash.is_empty() != start.crash_points.is_empty() {
                return bad("crash and crash_points go together", "target.crash");
            }
            if start.crash_points.iter().any(Vec::is_empty) {
                return bad("a list of crash points is empty", "target.crash_points");
            }
        }
        for (name, call, places) in self.calls.all() {
            if let Some(missing) = places.iter().find(|place| !call.names(place)) {
                return bad(&format!("the call has no place for {missing}"), name);
            }
        }
        let commands = [&self.workspace.open, &self.workspace.end];
        if commands.into_iter().flatten().any(Vec::is_empty) {
            return bad("a command is empty", "workspace");
        }
        if self.workspace.open.is_none() && (self.workspace.end.is_some() || !self.workspace.take.is_empty())
        {
            return bad(
                "only what was opened is ended, or gives anything",
                "workspace.open",
            );
        }
        if self
            .replayed
            .iter()
            .any(|m| m.header.is_some() == m.member.is_some())
        {
            return bad("a mark is either a header or a member", "replayed");
        }
        Ok(())
    }
}

impl Calls {
    /// Lists the calls that there are, each with the places that it needs.
    fn all(&self) -> Vec<(&'static str, &Template, &'static [&'static str])> {
        let some = [
            ("calls.delete", Some(&self.delete), &["{path}", "{key}"][..]),
            (
                "calls.write",
                self.write.as_ref(),
                &["{path}", "{key}", "{content}"],
            ),
            ("calls.read", self.read.as_ref(), &["{path}"]),
            (
                "calls.conditional_delete",
                self.conditional_delete.as_ref(),
                &["{path}", "{key}", "{sha256}"],
            ),
        ];
        some.into_iter()
            .filter_map(|(name, call, places)| Some((name, call?, places)))
            .collect()
    }

    /// Lists the routes of all calls.
    pub(super) fn routes(&self) -> Vec<&str> {
        self.all()
            .into_iter()
            .map(|(_, call, _)| call.path.as_str())
            .collect()
    }
}

impl Template {
    fn names(&self, place: &str) -> bool {
        let headers = self.headers.values();
        std::iter::once(&self.path)
            .chain(std::iter::once(&self.body))
            .chain(headers)
            .any(|text| text.contains(place))
    }
}

impl Mark {
    /// Says whether an answer has it, from a look at its header and at its body.
    pub(super) fn is_on(&self, header: impl Fn(&str) -> Option<String>, body: &Value) -> bool {
        let found = match (&self.header, &self.member) {
            (Some(name), _) => header(name).map(Value::String),
            (None, Some(pointer)) => body.pointer(pointer).cloned(),
            (None, None) => None,
        };
        match (&self.equals, found) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(wanted), Some(found)) => *wanted == found,
        }
    }
}

/// Fills places such as `{path}` in; a brace that belongs to no place stays.
pub(super) fn fill(template: &str, places: &[(String, String)]) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    'text: while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        for (name, value) in places {
            let after = from
                .get(1..)
                .and_then(|inside| inside.strip_prefix(name.as_str()));
            if let Some(after) = after.and_then(|after| after.strip_prefix('}')) {
                text.push_str(value);
                rest = after;
                continue 'text;
            }
        }
        text.push('{');
        rest = from.get(1..).unwrap_or_default();
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::conformance::{NAIVE, SEMEL};

    #[test]
    fn places_are_filled_once_and_other_braces_stay() {
        let places = [("path", "a{key}"), ("key", "k")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(
            fill(r#"{"path": "{path}", "k": "{key}", "o": {}}{"#, &places),
            r#"{"path": "a{key}", "k": "k", "o": {}}{"#
        );
    }

    #[test]
    fn the_built_in_adapters_are_whole() {
        assert_eq!(Adapter::parse(SEMEL).unwrap().name, "semel");
        assert_eq!(Adapter::parse(NAIVE).unwrap().name, "naive");
    }

    /// The adapter of the docs is taken as it stands, and with all that it leaves out.
    #[test]
    fn the_documented_adapter_is_whole() {
        let page = include_str!("../../../../../docs/conformance.md");
        let from = page.find("    adapter = ").unwrap();
        let to = from + page[from..].find("\n- ").unwrap();
        let text = page[from..to].replace("\n    ", "\n");
        let adapter = Adapter::parse(text.trim()).unwrap();
        assert_eq!(
            (adapter.name.as_str(), adapter.calls.all().len()),
            ("my-gateway", 2)
        );
        let whole = Adapter::parse(text.replace("\n# ", "\n").trim()).unwrap();
        assert!(whole.workspace.end.is_some() && whole.probes.routes_from.is_some());
        assert_eq!(whole.target.unwrap().crash_points.len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (from, to, name) in [
            ("\"127.0.0.1:{port}\"", "\"127.0.0.1:80\"", "target.start"),
            ("adapter/v1", "adapter/v2", "adapter"),
            ("crash_points = [", "crash_points = [[],", "target.crash_points"),
            ("header = \"Idempotency-Replayed\"\n", "", "replayed"),
            ("name = \"semel\"", "name = \"semel\"\nother = 1", "line 4"),
            ("\"content\": \"{content}\"", "\"content\": \"\"", "calls.write"),
        ] {
            assert!(SEMEL.contains(from), "{from}");
            let refusal = Adapter::parse(&SEMEL.replace(from, to)).unwrap_err();
            assert_eq!(refusal.code, Code::BadConfig, "{from}");
            assert!(refusal.names.contains(&name.to_owned()), "{from}: {refusal:?}");
        }
    }
}
