//! The checks themselves: what is demanded, what is said, and why that does not fit.
//!
//! Each takes what is known of the certificate, which may be nothing; none looks at another's outcome.

use super::{CLOCK_SKEW_MS, Candidate, Check, DropRule, Policy, RecipeRule, UnboundRule};
use crate::certificate::{EarlierVerdict, KeyId, Opened, Outcome, Statement, UNBOUND_INSTALL, not_a_pass};
use crate::digest::Sha256;
use crate::ids::UnixMs;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn signature(opened: &Opened, policy: &Policy, revoked: &[KeyId]) -> Vec<Check> {
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

pub(super) fn content(
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
                "{} passed, {} failed, {} skipped, {}",
                c.passed,
                c.failed,
                c.skipped,
                c.told_deselected()
            )
        },
    );
    let least = policy.min_tests.max(1);
    let why = match counts {
        None => Some("there is no test report"),
        Some(counts) => not_a_pass(&counts)
            .or((counts.passed < least).then_some("fewer tests passed than the policy demands")),
    };
    checks.push(Check::new("tests", format!("at least {least} passed, none failed"), actual).unless(why));
    checks.push(surface_check(known, policy, candidate));
    checks
}

/// Says why what a certificate tells of its base tells nothing of the base that the candidate is to be merged onto.
///
/// Trees are compared, not commits: another commit with an equal tree is the same base.
fn not_compared(statement: &Statement, candidate: &Candidate) -> Option<&'static str> {
    match (&statement.predicate.base, &candidate.base) {
        (None, _) => Some("not compared: the certificate was made without a base"),
        (Some(_), None) => Some("not compared: the gate was given no base"),
        (Some(_), Some(wanted)) if wanted.tree == candidate.tree => {
            Some("not compared: the base that the gate was given is the candidate itself")
        }
        (Some(made), Some(wanted)) if made.tree != wanted.tree => {
            Some("not compared: the certificate was made against another base than the gate was given")
        }
        (Some(_), Some(_)) => None,
    }
}

/// Names the changed paths of the test surface, the first few of them.
fn changed_paths(statement: &Statement) -> String {
    const SHOWN: usize = 5;
    let paths = &statement.predicate.test_surface;
    let first: Vec<String> = paths.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = match paths.len() - first.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match (&statement.predicate.base, paths.len()) {
        (None, 0) => "compared with no base: no path concerns tests".to_owned(),
        (None, all) => format!(
            "compared with no base: {all} paths concern tests: {}{more}",
            first.join(", ")
        ),
        (Some(_), 0) => "no path changed".to_owned(),
        (Some(_), all) => format!("{all} paths changed: {}{more}", first.join(", ")),
    }
}

/// Shows what can change the meaning of the tests: changed paths, and fewer tests than the base had.
fn surface_check(known: Option<&Statement>, policy: &Policy, candidate: &Candidate) -> Check {
    let onto = candidate.base.map(|base| format!(" {}", base.commit));
    let onto = onto.unwrap_or_default();
    let expected = match policy.test_drop {
        DropRule::Shown => "any, shown to a reviewer".to_owned(),
        DropRule::Refused => format!("no fewer tests than the last certificate of the base{onto}"),
    };
    let actual = said(known, |s| {
        let against = match &s.predicate.base {
            Some(base) => format!("against {}: ", base.commit),
            None => String::new(),
        };
        let named = changed_paths(s);
        let tests = match (&s.predicate.base_tests, s.predicate.report.as_ref()) {
            (Some(base), Some(now)) => {
                format!(
                    "{} tests passed, {} for the base",
                    now.counts.passed, base.counts.passed
                )
            }
            (Some(_), None) => "no report".to_owned(),
            (None, _) => "no certificate of the base is known".to_owned(),
        };
        format!("{against}{named}; {tests}")
    });
    let check = Check::new("test_surface", expected, actual);
    if let Some(why) = known.and_then(|s| not_compared(s, candidate)) {
        return match policy.test_drop {
            DropRule::Refused => check.unless(Some(why)),
            DropRule::Shown => Check {
                why: Some(why.to_owned()),
                ..check
            },
        };
    }
    let fewer = known.map(|s| s.predicate.fewer_tests());
    let dropped = |fewer: u64| format!("{fewer} fewer tests passed than for the base");
    match (policy.test_drop, fewer) {
        (_, None) | (_, Some(Some(0))) | (DropRule::Shown, Some(None)) => check,
        (DropRule::Refused, Some(None)) => check.unless(Some(
            "it cannot be told whether there are fewer tests than for the base",
        )),
        (DropRule::Refused, Some(Some(fewer))) => check.unless(Some(dropped(fewer))),
        (DropRule::Shown, Some(Some(fewer))) => Check {
            why: Some(dropped(fewer)),
            ..check
        },
    }
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
        let expected = match (here, there) {
            (None, None) => "present, and certified".to_owned(),
            _ => show(here),
        };
        let why = match (here, there) {
            (Some(a), Some(b)) if a == b => None,
            (Some(_), Some(_)) => Some("the candidate's lockfile is not the certified one"),
            (Some(_), None) => Some("the candidate's lockfile was not certified"),
            (None, Some(_)) => Some("a certified lockfile is absent from the candidate"),
            (None, None) => Some("the policy requires this lockfile"),
        };
        checks.push(
            Check::new("lock", expected, show(there))
                .about(path.to_string())
                .unless(why),
        );
    }
    checks
}

pub(super) fn demands(known: Option<&Statement>, policy: &Policy, now: UnixMs) -> Vec<Check> {
    let recipe = said(known, |s| s.predicate.recipe.to_string());
    let other = match policy.recipe {
        RecipeRule::Any => None,
        RecipeRule::Only(pinned) => (recipe != pinned.to_string())
            .then_some("the attempt was made by another recipe than the pinned one"),
    };
    let mut checks = vec![Check::new("recipe", policy.recipe.to_string(), recipe).unless(other)];
    checks.extend(tool_checks(known, policy));

    let level = known.map(|s| s.predicate.confinement.confinement);
    let why = level
        .is_some_and(|level| level < policy.confinement)
        .then_some("the attempt was confined less than the policy demands");
    let actual = said(known, |s| {
        let confinement = &s.predicate.confinement;
        match confinement.missing.as_slice() {
            [] => confinement.confinement.to_string(),
            missing => format!("{}, missing {}", confinement.confinement, missing.join(", ")),
        }
    });
    let expected = format!("at least {}", policy.confinement);
    checks.push(Check::new("confinement", expected, actual).unless(why));

    checks.push(weak_check(known, policy));
    checks.push(unbound_check(known, policy));
    checks.push(attempts_check(known, policy));
    checks.push(age_check(known, policy, now));
    checks
}

fn weak_check(known: Option<&Statement>, policy: &Policy) -> Check {
    let weak = known.map(|s| s.predicate.weak.as_slice()).unwrap_or_default();
    let refused = |name: &String| {
        let allowed = policy.weak_allowed.as_ref();
        allowed.is_some_and(|allowed| !allowed.contains(name))
    };
    let why = weak
        .iter()
        .any(|weak| refused(&weak.name))
        .then_some("something is bound less than the policy demands");
    let expected = match &policy.weak_allowed {
        None => "any weak binding, named".to_owned(),
        Some(allowed) if allowed.is_empty() => "no weak binding".to_owned(),
        Some(allowed) => {
            let names: Vec<&str> = allowed.iter().map(String::as_str).collect();
            format!("no weak binding but {}", names.join(", "))
        }
    };
    let actual = said(known, |_| {
        let shown: Vec<String> = weak.iter().map(|w| format!("{} ({})", w.name, w.about)).collect();
        if shown.is_empty() {
            "none".to_owned()
        } else {
            shown.join("; ")
        }
    });
    Check::new("weak", expected, actual).unless(why)
}

/// Refuses what a command of the job installed where nobody asked for it: no artifact binds those bytes.
fn unbound_check(known: Option<&Statement>, policy: &Policy) -> Check {
    let unbound: Vec<&str> = known
        .map(|s| s.predicate.weak.as_slice())
        .unwrap_or_default()
        .iter()
        .filter(|weak| weak.name == UNBOUND_INSTALL)
        .map(|weak| weak.about.as_str())
        .collect();
    let expected = match policy.unbound_install {
        UnboundRule::Refused => "installed by known installers alone",
        UnboundRule::Accepted => "any, shown to a reviewer",
    };
    // Which command it was stands before what is said of single places.
    let first = unbound.iter().find(|about| about.starts_with("by the command"));
    let actual = said(known, |_| match (first.or(unbound.first()), unbound.len()) {
        (None, _) => "installed by known installers alone".to_owned(),
        (Some(first), 0 | 1) => (*first).to_owned(),
        (Some(first), all) => format!("{first}; and {} more, listed as weak", all - 1),
    });
    let refused = policy.unbound_install == UnboundRule::Refused && !unbound.is_empty();
    Check::new(UNBOUND_INSTALL, expected, actual).unless(refused.then_some(
        "what a command installed is bound to no artifact, and the policy does not say unbound_install = \"accepted\"",
    ))
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
    // An earlier pass is nothing to hold against a proposal; everything else is, also what died without a verdict, and what
    // had not ended: else attempts at the same time would count for nothing.
    let refused = |s: &Statement| {
        s.predicate
            .earlier
            .iter()
            .filter(|e| e.verdict != EarlierVerdict::Pass)
            .count()
    };
    let open = known.map_or(0, |s| s.predicate.open.len());
    let count = known.map(|s| (refused(s) + open) as u64 + 1);
    let why = known.and_then(Statement::history_is_wrong).or(count
        .is_some_and(|count| count > u64::from(policy.max_attempts))
        .then_some("the proposal took more attempts than the policy allows"));
    let tries = if policy.max_attempts == 1 { "try" } else { "tries" };
    Check::new(
        "attempts",
        format!("at most {} {tries} at this proposal", policy.max_attempts),
        said(count, |count| match open {
            0 => count.to_string(),
            open => format!("{count}, {open} of them still open when this one was signed"),
        }),
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
