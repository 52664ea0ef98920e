//! The sums that a suite of a JUnit report states of itself, held against its cases.
//!
//! Sums are missing, and are counted differently, in the reports of honest writers. So only two contradictions are
//! told: more failures than were written down, and fewer tests than ran.

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
    /// Cases of its own that ran, but for those that failed.
    pub(super) own: u64,
    /// Those of all suites in it.
    pub(super) all: u64,
    /// Elements that tell of a failure, those of cases to do included.
    pub(super) failures: u64,
    /// Elements that tell of an earlier run of a case, which some writers count and others do not.
    pub(super) reruns: u64,
}

impl Suite {
    /// Reads what a suite says of itself; a sum that is no number says nothing.
    pub(super) fn entered(element: &BytesStart<'_>, depth: usize) -> Result<Self, Refusal> {
        let sum = |name: &str| -> Result<Option<u64>, Refusal> {
            Ok(attribute(element, name)?.and_then(|text| text.trim().parse().ok()))
        };
        let failures = sum("failures")?.unwrap_or(0);
        Ok(Self {
            depth,
            name: attribute(element, "name")?.unwrap_or_else(|| "(a suite)".to_owned()),
            whole: element.local_name().as_ref() == "testsuites",
            tests: sum("tests")?,
            broken: failures.saturating_add(sum("errors")?.unwrap_or(0)),
            own: 0,
            all: 0,
            failures: 0,
            reruns: 0,
        })
    }

    /// Says how its sums contradict its cases, if they do.
    ///
    /// `node --test` counts the direct children of a suite, and pytest each subtest that passed; so a suite may state fewer
    /// tests than lie in the suites within it, and any suite more than are written down.
    pub(super) fn contradicts_itself(&self) -> Option<String> {
        let told = self.failures.saturating_add(self.reruns);
        if self.broken > told {
            let broken = self.broken;
            return Some(format!(
                "a suite states {broken} failures and errors, and holds {told}"
            ));
        }
        let tests = self.tests?;
        let ran = if self.whole || tests == 0 {
            self.all
        } else {
            self.own
        };
        let least = if self.reruns > 0 { ran.min(1) } else { ran };
        (tests < least)
            .then(|| format!("a suite states {tests} tests, and {ran} are said to have passed in it"))
    }
}
