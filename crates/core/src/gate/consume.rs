//! Whether a certificate may be used up for a merge: once, or again for the very same one.

use crate::code::{Code, Refusal};
use crate::record::Consumption;
use serde::{Deserialize, Serialize};

/// Says how a certificate may be consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consumed {
    /// For the first time.
    First,
    /// Again, for the same tuple.
    AlreadySame,
}

/// Names the ref that is merged into.
///
/// # Shape
/// `refs/heads/main`: a full name, as git takes it; never empty, abbreviated, or with a blank in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(String);

impl Target {
    /// Parses the name.
    ///
    /// # Errors
    /// `bad_input`, reason `target_not_a_ref`: what cannot be a merge would use the certificate up for none.
    ///
    /// # Source
    /// `git check-ref-format` of git 2.47.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        const NEVER: [char; 9] = [' ', '~', '^', ':', '?', '*', '[', '\\', '\u{7f}'];
        let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
        let whole = text.strip_prefix("refs/").is_some_and(|rest| rest.contains('/'));
        let letters = !text
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || NEVER.contains(&c));
        let pairs = !text.contains("..") && !text.contains("@{") && !text.ends_with('.');
        if whole && letters && pairs && text.len() <= 1024 && text.split('/').all(part) {
            return Ok(Self(text.to_owned()));
        }
        let why = "the target of a merge is a ref by its full name, such as refs/heads/main";
        let shown: String = crate::path::shown(text.as_bytes()).chars().take(80).collect();
        Err(Refusal::new(Code::BadInput, why)
            .reason("target_not_a_ref")
            .name(if shown.is_empty() {
                "(empty)".to_owned()
            } else {
                shown
            }))
    }

    /// Gives the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Decides whether a certificate may be consumed, given what its generation was consumed for.
///
/// Everything but the time counts.
///
/// # Errors
/// `gate_refused` with reason `already_consumed`, naming each field that differs.
pub fn consume(prior: Option<&Consumption>, new: &Consumption) -> Result<Consumed, Refusal> {
    let Some(prior) = prior else {
        return Ok(Consumed::First);
    };
    let differs: Vec<&str> = [
        ("generation", prior.generation != new.generation),
        ("certificate", prior.certificate != new.certificate),
        ("repository", prior.repository != new.repository),
        ("target", prior.target != new.target),
        ("tree", prior.tree != new.tree),
    ]
    .into_iter()
    .filter_map(|(field, other)| other.then_some(field))
    .collect();
    if differs.is_empty() {
        return Ok(Consumed::AlreadySame);
    }
    Err(Refusal::new(
        Code::GateRefused,
        "the certificate has been consumed with another value of",
    )
    .reason("already_consumed")
    .names(differs))
}
