//! The sums that a suite of a JUnit report states of itself, held against its cases.
//!
//! Sums are missing, and are counted differently, in the reports of honest writers. So only these contradictions are
//! told: more failures than were written down, fewer tests than ran, more that were not run than that leaves room for, and a
//! sum that is no number.

use super::junit::attribute;
use crate::code::Refusal;
use quick_xml::events::BytesStart;

/// Is a suite that was entered: what it says, and what was counted in it so far.
pub(super) struct Suite {
    pub(super) depth: usize,
    pub(super) name: String,
    /// `testsuites`, whose sums are over all suites in it.
    whole: bool,
    tests: Option<u64>,
    broken: u64,
    skipped: u64,
    disabled: u64,
    /// What it states that is no number, where it does.
    odd: Option<String>,
    /// Cases of its own.
    pub(super) own: Cases,
    /// Those of all suites in it.
    pub(super) all: Cases,
    /// Elements that tell of a failure, those of cases to do included.
    pub(super) failures: u64,
    /// Elements that tell of an earlier run of a case, which some writers count and others do not.
    pub(super) reruns: u64,
}

/// Counts cases, but for those that failed.
#[derive(Clone, Copy, Default)]
pub(super) struct Cases {
    /// They ran.
    pub(super) ran: u64,
    /// They ran, and say so themselves, in a word.
    pub(super) said: u64,
    /// They were not run.
    pub(super) not_run: u64,
}

impl Suite {
    /// Reads what a suite says of itself; a sum that is empty says nothing.
    pub(super) fn entered(element: &BytesStart<'_>, depth: usize) -> Result<Self, Refusal> {
        let mut odd = None;
        let mut sum = |name: &str| -> Result<Option<u64>, Refusal> {
            let text = attribute(element, name)?.unwrap_or_default();
            let number = text.trim().parse().ok();
            if number.is_none() && !text.trim().is_empty() {
                let text: String = text.chars().take(LONGEST_SUM).collect();
                let why = format!("a suite states {text:?} {name}, which is no number");
                odd.get_or_insert(why);
            }
            Ok(number)
        };
        let failures = sum("failures")?.unwrap_or(0);
        Ok(Self {
            depth,
            name: attribute(element, "name")?.unwrap_or_else(|| "(a suite)".to_owned()),
            whole: element.local_name().as_ref() == "testsuites",
            tests: sum("tests")?,
            broken: failures.saturating_add(sum("errors")?.unwrap_or(0)),
            skipped: sum("skipped")?.unwrap_or(0),
            disabled: sum("disabled")?.unwrap_or(0),
            own: Cases::default(),
            all: Cases::default(),
            failures: 0,
            reruns: 0,
            odd,
        })
    }

    /// Says how its sums contradict its cases, if they do.
    ///
    /// `node --test` counts the direct children of a suite, and pytest each subtest that passed; so a suite may state fewer
    /// tests than lie in the suites within it, and any suite more than are written down. Some writers leave those that were not
    /// run out of the tests. `GoogleTest` states as disabled also what it was told to run all the same; such a case says that it ran.
    pub(super) fn contradicts_itself(&self) -> Option<String> {
        if self.odd.is_some() {
            return self.odd.clone();
        }
        let told = self.failures.saturating_add(self.reruns);
        if self.broken > told {
            let broken = self.broken;
            return Some(format!(
                "a suite states {broken} failures and errors, and holds {told}"
            ));
        }
        let tests = self.tests?;
        let cases = if self.whole || tests == 0 {
            self.all
        } else {
            self.own
        };
        let ran = cases.ran;
        let least = if self.reruns > 0 { ran.min(1) } else { ran };
        if tests < least {
            return Some(format!(
                "a suite states {tests} tests, and {ran} are said to have passed in it"
            ));
        }
        let disabled = self.disabled.min(ran.saturating_sub(cases.said));
        let stated = self.skipped.saturating_add(disabled);
        let among_them = tests >= ran.saturating_add(cases.not_run);
        let unseen = if among_them {
            stated
        } else {
            stated.saturating_sub(cases.not_run)
        };
        (stated > cases.not_run && tests.saturating_sub(unseen) < least).then(|| {
            format!(
                "of {tests} tests a suite states {stated} as not run, and {ran} are said to have passed in it"
            )
        })
    }
}

/// How much of a sum that is none is told, in characters.
const LONGEST_SUM: usize = 40;
