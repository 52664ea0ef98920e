//! The gate: whether a certificate covers exactly the tree to be merged.
//!
//! Pure, offline, repeatable. Every check is evaluated and named, also after another has failed. It does *not*
//! read repositories or policies' whereabouts, does *not* approve, and does *not* take a refusal for a pass.

use crate::certificate::{self, BaseCommit, KeyId, Opened, PublicKey};
use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::git_tree::ObjectId;
use crate::ids::{Generation, UnixMs};
use crate::path::RelPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod checks;
mod consume;
mod github;
mod markdown;
mod policy;

pub use consume::{Consumed, Target, consume};
pub use policy::{ConsumptionRule, DropRule, Policy, RecipeRule, UnboundRule, policy_base};

/// How far a certificate's time may lie ahead of the gate's clock, in milliseconds.
pub const CLOCK_SKEW_MS: u64 = 5 * 60 * 1000;

/// Holds what is known of the commit that is to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The commit, given by id.
    pub commit: ObjectId,
    /// The tree it names.
    pub tree: ObjectId,
    /// The digest of every lockfile's blob in that tree.
    pub locks: BTreeMap<RelPath, Sha256>,
    /// The base that it is to be merged onto; `None` where the caller names none.
    pub base: Option<BaseCommit>,
}

/// Holds one check of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Its stable name, such as `tree`.
    pub name: String,
    /// The lockfile or tool that it is about, where there is one check for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Whether it held.
    pub ok: bool,
    /// What was demanded.
    pub expected: String,
    /// What the certificate says, or the candidate holds.
    pub actual: String,
    /// Why it did not hold, or what limits that it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Check {
    fn new(name: &str, expected: impl Into<String>, actual: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            about: None,
            ok: true,
            expected: expected.into(),
            actual: actual.into(),
            why: None,
        }
    }

    fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// Lets the check fail where there is a reason for it.
    fn unless(mut self, why: Option<impl Into<String>>) -> Self {
        if let Some(why) = why {
            self.ok = false;
            self.why = Some(why.into());
        }
        self
    }

    /// Gives the name, with what it is about.
    #[must_use]
    pub fn label(&self) -> String {
        match &self.about {
            Some(about) => format!("{}:{about}", self.name),
            None => self.name.clone(),
        }
    }
}

/// Says whether a certificate was consumed with this verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsumptionState {
    /// No journal was asked.
    NotChecked,
    /// It was consumed, for the first time.
    First,
    /// It had been consumed for the same tuple.
    Same,
    /// It had been consumed for another.
    Refused,
}

/// Holds what the gate found.
///
/// # Shape
/// `{"pass":false,"commit":…,"tree":…,"certificate":…,"consumption":"not_checked","checks":[{"name":"signature",
/// "ok":true,"expected":…,"actual":…},…]}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Whether every check held.
    pub pass: bool,
    /// The candidate commit.
    pub commit: ObjectId,
    /// Its tree.
    pub tree: ObjectId,
    /// The digest of the envelope.
    pub certificate: Sha256,
    /// The generation that the certificate names, proven or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The key that it verifies with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// Whether it was consumed.
    pub consumption: ConsumptionState,
    /// Every check, in a fixed order.
    pub checks: Vec<Check>,
}

/// Decides whether a certificate covers exactly the candidate.
///
/// `record` is the digest of an install record that lies beside the certificate, where one does. `revoked` lists
/// keys that are refused even where a policy still trusts them.
///
/// # Shape
/// Checks, in this order: `signature`, `key_trusted`, `key_revoked`, `predicate`, `verdict_pass`, `tree`, `locks`,
/// one `lock` a lockfile, `record_verdict`, `tests`, `test_surface`, `recipe`, `toolchain` (one a pinned tool), `confinement`,
/// `weak`, `unbound_install`, `attempts`, `age`.
#[must_use]
pub fn verdict(
    policy: &Policy,
    envelope: &[u8],
    record: Option<Sha256>,
    candidate: &Candidate,
    now: UnixMs,
    revoked: &[KeyId],
) -> Verdict {
    let opened = certificate::open(envelope, &policy.keys).unwrap_or_else(|refusal| Opened {
        signer: Err(refusal.clone()),
        key_ids: Vec::new(),
        statement: Err(refusal),
    });
    let mut checks = checks::signature(&opened, policy, revoked);
    let statement = opened.statement.as_ref();
    checks.push(
        Check::new(
            "predicate",
            certificate::PREDICATE_TYPE,
            if statement.is_ok() {
                certificate::PREDICATE_TYPE
            } else {
                "something else"
            },
        )
        .unless(statement.err().map(ToString::to_string)),
    );
    let known = statement.ok();
    let rest = [
        checks::content(known, policy, candidate, record),
        checks::demands(known, policy, now),
    ];
    for mut check in rest.into_iter().flatten() {
        if known.is_none() {
            check = check.unless(Some("the certificate cannot be read"));
        } else if check.ok && opened.signer.is_err() {
            check.why = Some("only claimed: the certificate is not verified".to_owned());
        }
        checks.push(check);
    }
    Verdict {
        pass: checks.iter().all(|check| check.ok),
        commit: candidate.commit,
        tree: candidate.tree,
        certificate: Sha256::of(envelope),
        generation: known.map(|statement| statement.predicate.generation.clone()),
        key: opened.signer.as_ref().ok().map(PublicKey::id),
        consumption: ConsumptionState::NotChecked,
        checks,
    }
}

impl Verdict {
    /// Gives the refusal that names every failed check; `None` for a pass.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let failed: Vec<&Check> = self.checks.iter().filter(|check| !check.ok).collect();
        let first = failed.first()?;
        let why = format!("{} of {} checks failed", failed.len(), self.checks.len());
        Some(
            Refusal::new(Code::GateRefused, why)
                .reason(&first.name)
                .names(failed.iter().map(|check| check.label())),
        )
    }

    /// Adds the check `policy`, which holds and tells of its limit: the candidate has a file with the very bytes of the
    /// policy, and nothing says that it was there before.
    #[must_use]
    pub fn with_policy_in_candidate(mut self, path: &RelPath) -> Verdict {
        let expected = "of the host, not of the tree under test";
        let mut check = Check::new(
            "policy",
            expected,
            format!("the same bytes as {path} of the candidate"),
        );
        check.why = Some(
            "see that it was not copied from there; with --base it is compared with what was there before"
                .to_owned(),
        );
        self.checks.push(check);
        self
    }

    /// Adds the check `consumption`; `None` says that no journal was asked.
    #[must_use]
    pub fn with_consumption(
        mut self,
        policy: &Policy,
        consumed: Option<&Result<Consumed, Refusal>>,
    ) -> Verdict {
        let (state, actual, why) = match consumed {
            None => {
                let why = (policy.consumption == ConsumptionRule::Required)
                    .then(|| "the policy demands that a journal is asked".to_owned());
                (ConsumptionState::NotChecked, "not_checked", why)
            }
            Some(Ok(Consumed::First)) => (ConsumptionState::First, "first", None),
            Some(Ok(Consumed::AlreadySame)) => (ConsumptionState::Same, "already_consumed: same", None),
            Some(Err(refusal)) => (
                ConsumptionState::Refused,
                "already_consumed: other",
                Some(refusal.to_string()),
            ),
        };
        let expected = match policy.consumption {
            ConsumptionRule::Required => "consumed for this target alone",
            ConsumptionRule::Optional => "not consumed for another target",
        };
        self.checks
            .push(Check::new("consumption", expected, actual).unless(why));
        self.consumption = state;
        self.pass = self.checks.iter().all(|check| check.ok);
        self
    }
}

#[cfg(test)]
mod tests;
