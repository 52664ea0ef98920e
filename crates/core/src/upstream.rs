//! Other servers of tools behind the gateway: their names, how their tools are called here, how they are described, and
//! what is recorded of an answer.
//!
//! It speaks to nobody; what a call of such a tool means is the call machine's.

use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

mod listed;

pub use listed::{Effects, KeyArgument, Listed, OWN_KEY, Tool, list};

/// Is the operator's name for another server.
///
/// # Shape
/// A lower-case letter, then lower-case letters, digits and `-`; at most 16.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UpstreamName(String);

impl UpstreamName {
    /// Parses a name.
    ///
    /// # Errors
    /// `bad_input`.
    pub fn parse(text: impl Into<String>) -> Result<Self, Refusal> {
        let text = text.into();
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let begins = text.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if begins && text.len() <= 16 && text.bytes().all(fits) {
            return Ok(Self(text));
        }
        let why = "the name of another server is a lower-case letter, then lower-case letters, digits and -; at most 16";
        Err(Refusal::new(Code::BadInput, why).name(crate::path::shown(text.as_bytes())))
    }

    /// Gives it as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Gives the name of a tool of this server here.
    ///
    /// # Shape
    /// `NAME__TOOL`, where that has at most [`LONGEST`] characters, all of them letters, digits, `_` and `-`. Else every
    /// other character is `_`, what is too long is cut, and the first eight digits of the SHA-256 of `TOOL` follow.
    #[must_use]
    pub fn exposed(&self, tool: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let whole = format!("{}{BETWEEN}{tool}", self.0);
        if !tool.is_empty() && whole.len() <= LONGEST && whole.chars().all(plain) {
            return whole;
        }
        let mut name: String = whole.chars().map(|c| if plain(c) { c } else { '_' }).collect();
        name.truncate(LONGEST - 9);
        let digest = Sha256::of(tool.as_bytes()).to_string();
        format!("{name}_{}", digest.get(..8).unwrap_or_default())
    }
}

/// Gives the name of the server that a tool is of by its name here, where it can be one.
#[must_use]
pub fn server_of(exposed: &str) -> Option<UpstreamName> {
    let (name, tool) = exposed.split_once(BETWEEN)?;
    (!tool.is_empty()).then_some(())?;
    UpstreamName::parse(name).ok()
}

/// What divides the name of a server from that of its tool; no tool of our own has it.
pub const BETWEEN: &str = "__";
/// The longest name of a tool here. Models take 64 characters, and agents put a prefix such as `mcp__semel__` before.
pub const LONGEST: usize = 48;

impl TryFrom<String> for UpstreamName {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

impl From<UpstreamName> for String {
    fn from(name: UpstreamName) -> String {
        name.0
    }
}

impl core::fmt::Display for UpstreamName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says which member of a message an answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// `result`.
    Result,
    /// `error`.
    Error,
}

/// Is what another server answered to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// Whether it was a result or an error.
    pub said: Said,
    /// It, as JSON.
    pub text: String,
    /// How long it was, where it was too long to be kept, and `text` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out_bytes: Option<u64>,
}

impl Heard {
    /// Keeps an answer, if it has no more than so many bytes; else that there was one.
    #[must_use]
    pub fn keep(said: Said, answer: &Value, most: usize) -> Self {
        let text = answer.to_string();
        if text.len() <= most {
            return Self {
                said,
                text,
                left_out_bytes: None,
            };
        }
        let bytes = text.len() as u64;
        let line = format!(
            "The server answered with {bytes} bytes, more than is kept; the answer is left out. The call is over."
        );
        let short = match said {
            Said::Result => {
                let mut short = json!({"content": [{"type": "text", "text": line}]});
                if let Some(wrong) = answer.get("isError") {
                    short["isError"] = json!(wrong == &json!(true));
                }
                short
            }
            Said::Error => {
                json!({"code": answer.get("code").and_then(Value::as_i64).unwrap_or(-32000), "message": line})
            }
        };
        Self {
            said,
            text: short.to_string(),
            left_out_bytes: Some(bytes),
        }
    }

    /// Gives it as JSON.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

#[cfg(test)]
mod tests;
