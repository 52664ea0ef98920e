//! Reads what `cargo test` prints: the blocks of every test binary, doc-tests included.
//!
//! Each block announces `running N tests` and ends in a `test result:` line; the two must agree, and one
//! without the other is no evidence. A custom harness that prints neither is not counted, and what was only compiled did not run.

use super::{Ending, Report, without_report};
use crate::code::{Code, Refusal};

/// How the line of a doc-test ends that is `no_run`: it was compiled, and that is all.
const COMPILED: &str = " - compile ... ok";

/// Sums the blocks of a `cargo test` run over all binaries.
///
/// # Shape
/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`
///
/// # Errors
/// `evidence_foreign` where a command that exited with status 0 printed a block that is cut or does not add up;
/// where none was printed, what [`without_report`] says.
pub fn cargo_test(stdout: &[u8], ending: Ending) -> Result<Report, Refusal> {
    let mut report = Report::default();
    let mut announced: Option<u64> = None;
    let mut blocks = 0_usize;
    let mut compiled = 0_u64;
    let mut flaw: Option<&str> = None;
    for line in stdout.split(|b| *b == b'\n') {
        let Ok(line) = core::str::from_utf8(line) else {
            continue;
        };
        let line = line.trim_end();
        if let Some(count) = announcement(line) {
            if announced.replace(count).is_some() {
                flaw = Some("a block of tests has no result");
            }
        } else if let Some(result) = line.strip_prefix("test result: ") {
            blocks += 1;
            let tally = Tally::parse(result).map(|tally| tally.without(core::mem::take(&mut compiled)));
            match (announced.take(), tally) {
                (Some(count), Some(tally)) if tally.total() == count => tally.add_to(&mut report),
                (_, Some(tally)) => {
                    tally.add_to(&mut report);
                    flaw = Some("a result does not add up to the tests announced");
                }
                (_, None) => flaw = Some("a result line is malformed"),
            }
        } else if line.starts_with("test ") && line.ends_with(COMPILED) {
            compiled += 1;
        } else if let Some(name) = failed_test(line) {
            report.name_failure(name);
        }
    }
    if announced.is_some() {
        flaw = Some("the last block of tests has no result");
    }
    if blocks == 0 && flaw.is_none() {
        return Err(without_report(ending));
    }
    match (flaw, ending) {
        (Some(flaw), Ending::Exit(0)) => {
            Err(Refusal::new(Code::EvidenceForeign, flaw).reason("report_malformed"))
        }
        _ => Ok(report),
    }
}

fn announcement(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let count = rest
        .strip_suffix(" tests")
        .or_else(|| rest.strip_suffix(" test"))?;
    count.parse().ok()
}

fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    measured: u64,
    filtered: u64,
}

impl Tally {
    fn parse(result: &str) -> Option<Self> {
        let rest = result
            .strip_prefix("ok. ")
            .or_else(|| result.strip_prefix("FAILED. "))?;
        let mut parts = rest.split("; ");
        let mut next = |label: &str| -> Option<u64> {
            parts.next()?.strip_suffix(label)?.strip_suffix(' ')?.parse().ok()
        };
        let tally = Self {
            passed: next("passed")?,
            failed: next("failed")?,
            ignored: next("ignored")?,
            measured: next("measured")?,
            filtered: next("filtered out")?,
        };
        (result.starts_with("ok. ") == (tally.failed == 0)).then_some(tally)
    }

    /// Counts those that were compiled and not run apart from those that passed.
    fn without(self, compiled: u64) -> Self {
        let compiled = compiled.min(self.passed);
        Self {
            passed: self.passed - compiled,
            ignored: self.ignored.saturating_add(compiled),
            ..self
        }
    }

    fn total(&self) -> u64 {
        self.passed
            .saturating_add(self.failed)
            .saturating_add(self.ignored)
            .saturating_add(self.measured)
    }

    fn add_to(&self, report: &mut Report) {
        let counts = &mut report.counts;
        counts.passed = counts
            .passed
            .saturating_add(self.passed)
            .saturating_add(self.measured);
        counts.failed = counts.failed.saturating_add(self.failed);
        counts.skipped = counts.skipped.saturating_add(self.ignored);
        let before = counts.deselected.unwrap_or(0);
        counts.deselected = Some(before.saturating_add(self.filtered));
    }
}
