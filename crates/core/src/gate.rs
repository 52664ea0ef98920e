//! The gate: whether a certificate covers exactly the tree to be merged.
//!
//! Pure, offline, repeatable. Every check is evaluated and named, also after another has failed. It does *not*
//! read repositories or policies' whereabouts, does *not* approve, and does *not* take a refusal for a pass.

use crate::certificate::{self, KeyId, Opened, Outcome, PublicKey, Statement};
use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::git_tree::ObjectId;
use crate::ids::{Generation, UnixMs};
use crate::path::RelPath;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod consume;
mod markdown;
mod policy;

pub use consume::{Consumed, Consumption, consume};
pub use policy::{ConsumptionRule, Policy, RecipeRule, policy_base};

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
/// one `lock` a lockfile, `record_verdict`, `tests`, `recipe`, `toolchain` (one a pinned tool), `confinement`,
/// `weak`, `attempts`, `age`.
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
    let mut checks = signature_checks(&opened, policy, revoked);
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
        content_checks(known, policy, candidate, record),
        policy_checks(known, policy, now),
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

fn signature_checks(opened: &Opened, policy: &Policy, revoked: &[KeyId]) -> Vec<Check> {
    let ids = if opened.key_ids.is_empty() {
        "none".to_owned()
    } else {
        opened.key_ids.join(", ")
    };
    let trusted = |id: &String| policy.keys.iter().any(|key| key.is(id));
    let untrusted = opened.key_ids.is_empty() || !opened.key_ids.iter().all(trusted);
    let is_revoked = revoked.iter().any(|id| match &opened.signer {
        Ok(key) => key.is(id.as_str()),
        Err(_) => {
            opened.key_ids.iter().any(|claimed| claimed == id.as_str())
                || policy
                    .keys
                    .iter()
                    .any(|key| key.is(id.as_str()) && opened.key_ids.iter().any(|claimed| key.is(claimed)))
        }
    });
    let fit = match &opened.signer {
        Ok(_) => "fits".to_owned(),
        Err(refusal) => refusal
            .reason
            .clone()
            .unwrap_or_else(|| "does not fit".to_owned()),
    };
    vec![
        Check::new("signature", "fits", fit).unless(opened.signer.as_ref().err().map(ToString::to_string)),
        Check::new(
            "key_trusted",
            format!("one of {} trusted keys", policy.keys.len()),
            ids.clone(),
        )
        .unless(untrusted.then_some("the policy does not trust the key that the certificate names")),
        Check::new("key_revoked", "no revoked key", ids)
            .unless(is_revoked.then_some("the key has been revoked")),
    ]
}

const UNREADABLE: &str = "unreadable";

fn said<T>(known: Option<T>, show: impl FnOnce(T) -> String) -> String {
    known.map_or_else(|| UNREADABLE.to_owned(), show)
}

fn content_checks(
    known: Option<&Statement>,
    policy: &Policy,
    candidate: &Candidate,
    record: Option<Sha256>,
) -> Vec<Check> {
    let ended = said(known, |s| match &s.predicate.verdict {
        Outcome::Pass => "pass".to_owned(),
        Outcome::Refused(refusal) => refusal.code.wire().to_owned(),
    });
    let refused = (ended != "pass").then_some("the certificate is of a refused attempt");
    let tree = said(known, |s| s.subjects.tree.to_string());
    let other = (tree != candidate.tree.to_string())
        .then_some("the tree that was certified is not the tree to be merged");
    let mut checks = vec![
        Check::new("verdict_pass", "pass", ended).unless(refused),
        Check::new("tree", candidate.tree.to_string(), tree).unless(other),
    ];
    checks.extend(lock_checks(known, policy, candidate));

    let certified = known.and_then(|s| s.subjects.record);
    let why = match (certified, record) {
        (None, _) => Some("no install record was certified"),
        (Some(certified), Some(beside)) if certified != beside => {
            Some("the install record beside the certificate is another")
        }
        _ => None,
    };
    let expected = record.map_or_else(|| "an install record".to_owned(), |digest| digest.to_string());
    let actual = certified.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
    checks.push(Check::new("record_verdict", expected, actual).unless(why));

    let counts = known.and_then(|s| s.predicate.report.as_ref().map(|report| report.counts));
    let actual = counts.map_or_else(
        || "no report".to_owned(),
        |c| {
            format!(
                "{} passed, {} failed, {} errors, {} skipped of {}",
                c.passed, c.failed, c.errors, c.skipped, c.tests
            )
        },
    );
    let least = policy.min_tests.max(1);
    let why = match counts {
        None => Some("there is no test report"),
        Some(counts) => counts
            .not_a_pass()
            .or((counts.passed < least).then_some("fewer tests passed than the policy demands")),
    };
    checks.push(Check::new("tests", format!("at least {least} passed, none failed"), actual).unless(why));
    checks
}

fn lock_checks(known: Option<&Statement>, policy: &Policy, candidate: &Candidate) -> Vec<Check> {
    let nothing = BTreeMap::new();
    let certified = known.map_or(&nothing, |s| &s.subjects.locks);
    let all: BTreeSet<&RelPath> = candidate
        .locks
        .keys()
        .chain(certified.keys())
        .chain(&policy.locks)
        .collect();
    let why = all.is_empty().then_some("no lockfile binds the tree");
    let mut checks = vec![
        Check::new(
            "locks",
            "at least one lockfile, each certified",
            format!("{} certified", certified.len()),
        )
        .unless(why),
    ];
    for path in all {
        let (here, there) = (candidate.locks.get(path), certified.get(path));
        let show = |digest: Option<&Sha256>| digest.map_or_else(|| "absent".to_owned(), ToString::to_string);
        let why = match (here, there) {
            (Some(a), Some(b)) if a == b => None,
            (Some(_), Some(_)) => Some("the candidate's lockfile is not the certified one"),
            (Some(_), None) => Some("the candidate's lockfile was not certified"),
            (None, Some(_)) => Some("a certified lockfile is absent from the candidate"),
            (None, None) => Some("the policy requires this lockfile"),
        };
        checks.push(
            Check::new("lock", show(here), show(there))
                .about(path.to_string())
                .unless(why),
        );
    }
    checks
}

fn policy_checks(known: Option<&Statement>, policy: &Policy, now: UnixMs) -> Vec<Check> {
    let recipe = said(known, |s| s.predicate.recipe.to_string());
    let other = match policy.recipe {
        RecipeRule::Any => None,
        RecipeRule::Only(pinned) => (recipe != pinned.to_string())
            .then_some("the attempt was made by another recipe than the pinned one"),
    };
    let mut checks = vec![Check::new("recipe", policy.recipe.to_string(), recipe).unless(other)];
    checks.extend(tool_checks(known, policy));

    let level = known.map(|s| s.predicate.confinement.level);
    let why = level
        .is_some_and(|level| level < policy.confinement)
        .then_some("the attempt was confined less than the policy demands");
    let actual = said(known, |s| {
        let confinement = &s.predicate.confinement;
        match confinement.missing.as_slice() {
            [] => confinement.level.name().to_owned(),
            missing => format!("{}, missing {}", confinement.level.name(), missing.join(", ")),
        }
    });
    let expected = format!("at least {}", policy.confinement.name());
    checks.push(Check::new("confinement", expected, actual).unless(why));

    let weak: Vec<String> = known
        .map(|s| s.predicate.weak.as_slice())
        .unwrap_or_default()
        .iter()
        .filter(|weak| !policy.weak_allowed.contains(&weak.name))
        .map(|weak| format!("{} ({})", weak.name, weak.about))
        .collect();
    let why = (!weak.is_empty()).then_some("something is bound less than the policy demands");
    let actual = if weak.is_empty() {
        said(known, |_| "none else".to_owned())
    } else {
        weak.join(", ")
    };
    let allowed: Vec<&str> = policy.weak_allowed.iter().map(String::as_str).collect();
    let expected = format!("no weak binding but [{}]", allowed.join(", "));
    checks.push(Check::new("weak", expected, actual).unless(why));
    checks.push(attempts_check(known, policy));
    checks.push(age_check(known, policy, now));
    checks
}

fn tool_checks(known: Option<&Statement>, policy: &Policy) -> Vec<Check> {
    if policy.toolchain.is_empty() {
        let actual = said(known, |s| format!("{} tools", s.predicate.toolchain.len()));
        return vec![Check::new("toolchain", "any: the policy pins no tool", actual)];
    }
    let tools = known
        .map(|s| s.predicate.toolchain.as_slice())
        .unwrap_or_default();
    let check = |(name, pinned): (&String, &Sha256)| {
        let found: Vec<&Sha256> = tools
            .iter()
            .filter(|t| t.name == *name)
            .map(|t| &t.sha256)
            .collect();
        let why = if found.is_empty() {
            Some("the pinned tool took no part")
        } else {
            (!found.iter().all(|digest| *digest == pinned)).then_some("the tool is not the pinned one")
        };
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        let actual = if shown.is_empty() {
            "absent".to_owned()
        } else {
            shown.join(", ")
        };
        Check::new("toolchain", pinned.to_string(), actual)
            .about(name)
            .unless(why)
    };
    policy.toolchain.iter().map(check).collect()
}

fn attempts_check(known: Option<&Statement>, policy: &Policy) -> Check {
    let count = known.map(|s| s.predicate.earlier.len() as u64 + 1);
    let why = known.and_then(Statement::history_is_wrong).or(count
        .is_some_and(|count| count > u64::from(policy.max_attempts))
        .then_some("the proposal took more attempts than the policy allows"));
    Check::new(
        "attempts",
        format!("at most {}", policy.max_attempts),
        said(count, |count| count.to_string()),
    )
    .unless(why)
}

fn age_check(known: Option<&Statement>, policy: &Policy, now: UnixMs) -> Check {
    const HOUR_MS: u64 = 3_600_000;
    let issued = known.map(|s| s.predicate.issued_at);
    let expected = match policy.max_age_hours {
        Some(hours) => format!("at most {hours} hours before {now}"),
        None => format!("before {now}"),
    };
    let why = issued.and_then(|UnixMs(at)| {
        let age = now.0.saturating_sub(at);
        if at > now.0.saturating_add(CLOCK_SKEW_MS) {
            Some("the certificate is of the future: a clock is wrong")
        } else {
            policy
                .max_age_hours
                .is_some_and(|hours| age > hours.saturating_mul(HOUR_MS))
                .then_some("the certificate is older than the policy allows")
        }
    });
    Check::new("age", expected, said(issued, |at| at.to_string())).unless(why)
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
