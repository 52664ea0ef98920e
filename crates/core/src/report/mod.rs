//! What a test run reported: parsed counts, and the verdict over them.
//!
//! An exit code alone proves nothing: a hidden exit code, zero tests and a fully deselected suite all look green.
//! So the counts come from the report, and the exit code has to agree with them. It reads no file; it cannot know
//! whether a report is fresh, which is the business of the host that made its place empty before.

mod cargo;
mod junit;
mod stamp;
mod sums;
mod tap;

pub use cargo::cargo_test;
pub use junit::junit;
pub use stamp::Stamp;
pub use tap::tap;

use crate::code::{Code, Refusal};
use crate::ids::UnixMs;
use serde::{Deserialize, Serialize};

/// The longest report that is read.
pub const LONGEST_REPORT: u64 = 64 << 20;
/// How many failed tests a refusal names.
pub const NAMED_FAILURES: usize = 20;
const LONGEST_NAME: usize = 300;

/// Counts the tests of one run.
///
/// # Shape
/// `{"passed":613,"failed":0,"skipped":2,"deselected":null}`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Ran and held.
    pub passed: u64,
    /// Ran and did not hold, or broke before they could run.
    pub failed: u64,
    /// Were found and not run: skipped, ignored, expected to fail.
    pub skipped: u64,
    /// Were filtered out; none where the format has no place to say so, as JUnit and TAP.
    pub deselected: Option<u64>,
}

impl Counts {
    /// Gives how many tests truly ran.
    #[must_use]
    pub const fn ran(self) -> u64 {
        self.passed.saturating_add(self.failed)
    }

    /// Says in words how many were filtered out: a number that is not known is none, and not 0.
    #[must_use]
    pub fn told_deselected(self) -> String {
        self.deselected.map_or_else(
            || "deselected not told".to_owned(),
            |deselected| format!("{deselected} deselected"),
        )
    }
}

/// Holds what a report says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The counts of all suites together.
    pub counts: Counts,
    /// The first failed tests, at most [`NAMED_FAILURES`].
    pub failures: Vec<String>,
    /// The earliest time that the report states for itself, where it states one.
    pub earliest: Option<Stamp>,
    /// The names of tests that passed and are named like a path: an absolute one, or, where `node --test` wrote the report, any. Whether
    /// there is such a file is not known here.
    pub rooted: Vec<String>,
    /// How the report contradicts itself, where it does.
    pub doubt: Option<String>,
}

/// Names a format of report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JUnit XML.
    Junit,
    /// The Test Anything Protocol.
    Tap,
    /// What `cargo test` prints.
    CargoTest,
}

impl Format {
    /// Gives the name that a certificate states.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Junit => "junit",
            Self::Tap => "tap",
            Self::CargoTest => "cargo-test",
        }
    }

    /// Says which format a report file is of; what is not TAP is read as JUnit.
    #[must_use]
    pub fn of_file(bytes: &[u8]) -> Self {
        if bytes.trim_ascii_start().starts_with(b"<") || !tap::is_tap(bytes) {
            Self::Junit
        } else {
            Self::Tap
        }
    }
}

/// Reads a report file of either format.
///
/// # Errors
/// Those of [`junit`] and [`tap`].
pub fn file(bytes: &[u8]) -> Result<Report, Refusal> {
    match Format::of_file(bytes) {
        Format::Tap => tap(bytes),
        Format::Junit | Format::CargoTest => junit(bytes),
    }
}

/// Refuses a report that says of itself that it was written before the tests began: a copy from a cache, or from an
/// earlier attempt.
///
/// # Errors
/// `evidence_foreign` with reason `cached_result`.
///
/// # Limits
/// A time with an offset may lie 5 minutes before the beginning, one without 26 hours, since its zone is not known. A
/// report that states no time passes: that it is fresh is seen by its file.
pub fn of_this_run(report: &Report, began: UnixMs) -> Result<(), Refusal> {
    match report.earliest {
        Some(stamp) if stamp.is_before(began) => {
            let why = format!(
                "the report was written at {}, the tests began at {began}",
                stamp.at()
            );
            Err(Refusal::new(Code::EvidenceForeign, why).reason("cached_result"))
        }
        _ => Ok(()),
    }
}

/// Recognises what `node --test` reports for a file in which no test is: a test that is named by the path of the file.
fn stands_for_a_file(name: &str) -> bool {
    name.starts_with('/') && is_module(name)
}

/// Says whether a name is that of a module that `node --test` runs.
#[must_use]
pub fn is_module(name: &str) -> bool {
    const MODULES: [&str; 6] = [".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"];
    MODULES.iter().any(|end| name.ends_with(end))
}

/// Says who wrote a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// `node --test`.
    Node,
    /// Somebody else, for whom a file may well be a test.
    Other,
}

impl Report {
    /// Takes out of those that passed what stands for a file: `node --test` names a file without a test by its path.
    pub fn leave_out_files(&mut self, mut is_file: impl FnMut(&str) -> bool) {
        let before = self.rooted.len();
        self.rooted.retain(|name| !is_file(name));
        let files = u64::try_from(before - self.rooted.len()).unwrap_or(u64::MAX);
        self.counts.passed = self.counts.passed.saturating_sub(files);
    }

    /// Counts the last test that passed no more, since it was none; `node --test` wrote it, so its name was kept.
    fn take_back(&mut self) {
        self.counts.passed = self.counts.passed.saturating_sub(1);
        self.rooted.pop();
    }

    /// Holds what passed against what its writer states, suites without a test being counted as cases, too.
    fn at_most(&mut self, stated: u64) {
        self.counts.passed = self.counts.passed.min(stated);
    }

    /// Counts a test that passed, as its writer names it.
    fn pass_of(&mut self, writer: Writer, name: &str) {
        self.counts.passed += 1;
        if name.starts_with('/') || writer == Writer::Node {
            self.rooted.push(name.to_owned());
        }
    }

    fn fail(&mut self, name: &str) {
        self.counts.failed += 1;
        self.name_failure(name);
    }

    fn name_failure(&mut self, name: &str) {
        if self.failures.len() < NAMED_FAILURES {
            let shown = crate::path::shown(name.as_bytes());
            self.failures.push(shown.chars().take(LONGEST_NAME).collect());
        }
    }
}

/// Says how the test command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Decides over a run whose report was read; `Ok` means that tests ran and all of them held.
///
/// # Errors
/// `tests_failed` for a failed test, naming the first ones, and for any ending but exit 0;
/// `evidence_foreign` where no test ran, or the report contradicts itself.
pub fn verdict(report: &Report, ending: Ending) -> Result<Counts, Refusal> {
    let counts = report.counts;
    if counts.failed > 0 {
        let why = format!("{} of {} tests failed", counts.failed, counts.ran());
        return Err(Refusal::new(Code::TestsFailed, why).names(report.failures.iter().cloned()));
    }
    if let (0, Ending::Exit(status)) = (counts.ran(), ending) {
        let mut why = format!(
            "no test ran: {} skipped, {}",
            counts.skipped,
            counts.told_deselected()
        );
        // A runner that could make nothing of its arguments says so by its status alone.
        if status != 0 {
            why.push_str(&format!("; the test command exited with status {status}"));
        }
        return Err(Refusal::new(Code::EvidenceForeign, why).reason("no_test_ran"));
    }
    match ending {
        Ending::Exit(0) => match &report.doubt {
            None => Ok(counts),
            Some(doubt) => {
                let why = format!("the report contradicts itself: {doubt}");
                Err(Refusal::new(Code::EvidenceForeign, why).reason("report_malformed"))
            }
        },
        Ending::Exit(status) => Err(Refusal::new(
            Code::TestsFailed,
            format!("the report names no failure, but the test command exited with status {status}"),
        )
        .reason("exit_status")),
        Ending::Signal(signal) => Err(Refusal::new(
            Code::TestsFailed,
            format!("the report names no failure, but signal {signal} ended the test command"),
        )
        .reason("signal")),
    }
}

/// Decides over a run that left no readable report.
///
/// # Errors
/// Always: `evidence_foreign` after exit 0, which proves nothing by itself; else `tests_failed`.
pub fn without_report(ending: Ending) -> Refusal {
    match ending {
        Ending::Exit(0) => Refusal::new(
            Code::EvidenceForeign,
            "the test command exited with status 0 and left no fresh report",
        )
        .reason("no_report"),
        Ending::Exit(status) => Refusal::new(
            Code::TestsFailed,
            format!("the test command exited with status {status} and left no report"),
        )
        .reason("exit_status"),
        Ending::Signal(signal) => Refusal::new(
            Code::TestsFailed,
            format!("signal {signal} ended the test command before it left a report"),
        )
        .reason("signal"),
    }
}

#[cfg(test)]
mod tests;
