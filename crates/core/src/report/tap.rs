//! Reads TAP, as `node --test`, tap, tape, bats and prove write it: versions 12 to 14, with subtests.
//!
//! Each plan and its test lines must agree, at every depth, and the last line must be whole; without that, it is no
//! evidence. A test line that follows a subtest sums it up and is counted for no test of its own. Lines that are no
//! TAP are passed over, as the format demands.

use super::{Report, Writer, stands_for_a_file};
use crate::code::{Code, Refusal};
use std::collections::BTreeSet;

const DEEPEST: usize = 64;
/// What `node --test` says of a suite, in the block behind its line.
const SUITE: &str = "type: 'suite'";
/// The columns by which a subtest is indented.
const STEP: usize = 4;

#[derive(Default)]
struct Frame {
    planned: Option<u64>,
    seen: u64,
    numbers: BTreeSet<u64>,
    failed: bool,
    /// The subtest that waits for the line that sums it up: whether a test of it failed.
    subtest: Option<bool>,
    /// Whether the last line here counted a test as passed.
    passed: bool,
}

impl Frame {
    fn close(self) -> Result<bool, Refusal> {
        if self.subtest.is_some() {
            return Err(malformed("a subtest is not summed up: it is cut"));
        }
        match self.planned {
            None => Err(malformed("there is no plan")),
            Some(planned) if planned != self.seen || self.numbers.last().is_some_and(|n| *n > planned) => {
                Err(malformed("the tests are not those of the plan"))
            }
            Some(_) => Ok(self.failed),
        }
    }
}

/// Says whether a report looks like TAP.
pub(super) fn is_tap(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|b| *b == b'\n').map(<[u8]>::trim_ascii_end);
    lines.any(|line| {
        let plan = line
            .strip_prefix(b"1..")
            .and_then(|rest| rest.first())
            .is_some_and(u8::is_ascii_digit);
        plan || line.starts_with(b"TAP version ")
    })
}

/// Counts the tests of a TAP report.
///
/// `not ok` failed, unless it is marked `TODO`; with `TODO`, and `ok` with `SKIP`, it counts as not run: a test that is only
/// planned is `ok`, too. Any other `ok` passed, but for the one that stands for a file without a test, and for a suite of
/// `node --test` without one.
///
/// # Errors
/// `evidence_foreign` for a report that is cut, whose plan is missing or does not add up, or that is nested deeper than
/// 64 subtests.
pub fn tap(bytes: &[u8]) -> Result<Report, Refusal> {
    let text = core::str::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8"))?;
    if !text.ends_with('\n') {
        return Err(malformed("its last line is cut"));
    }
    let writer = writer(text);
    let mut report = Report::default();
    let mut stack = vec![Frame::default()];
    let mut yaml: Option<usize> = None;
    for line in text.lines() {
        let rest = line.trim_start_matches(' ');
        let indent = line.len() - rest.len();
        let rest = rest.trim_end();
        if let Some(block) = yaml {
            if indent == block && rest == "..." {
                yaml = None;
            } else if indent == block && rest == SUITE && writer == Writer::Node {
                // `node --test` writes a suite in which no test is as a test that passed.
                if let Some(frame) = stack.last_mut()
                    && core::mem::take(&mut frame.passed)
                {
                    report.take_back();
                }
            }
            continue;
        }
        if rest == "---" && indent % STEP == 2 {
            yaml = Some(indent);
            continue;
        }
        if rest.starts_with("Bail out!") {
            report.fail(rest);
            continue;
        }
        let (test, plan) = (Line::parse(rest), plan(rest));
        if test.is_none() && plan.is_none() {
            continue;
        }
        if !indent.is_multiple_of(STEP) {
            return Err(malformed("a line of TAP is indented by halves"));
        }
        reach(&mut stack, indent / STEP)?;
        let Some(frame) = stack.last_mut() else {
            return Err(malformed("it is nested wrongly"));
        };
        match (test, plan) {
            (Some(test), _) => test.count(frame, &mut report, writer)?,
            (None, Some(planned)) if frame.planned.is_none() => frame.planned = Some(planned),
            (None, _) => return Err(malformed("there is more than one plan")),
        }
    }
    if yaml.is_some() {
        return Err(malformed("a block of diagnostics is cut"));
    }
    reach(&mut stack, 0)?;
    stack.pop().map_or(Ok(false), Frame::close)?;
    Ok(report)
}

/// Closes what is deeper than `depth`, and opens one subtest where it is one deeper.
fn reach(stack: &mut Vec<Frame>, depth: usize) -> Result<(), Refusal> {
    while stack.len() > depth + 1 {
        let failed = stack.pop().map_or(Ok(false), Frame::close)?;
        if let Some(parent) = stack.last_mut() {
            parent.subtest = Some(failed);
        }
    }
    if depth == stack.len() && depth <= DEEPEST {
        if stack.last().is_some_and(|frame| frame.subtest.is_some()) {
            return Err(malformed("a subtest is not summed up: it is cut"));
        }
        stack.push(Frame::default());
    }
    if stack.len() == depth + 1 {
        Ok(())
    } else {
        Err(malformed("it is nested wrongly"))
    }
}

fn plan(rest: &str) -> Option<u64> {
    let count = rest.strip_prefix("1..")?;
    let end = count.find(|c: char| !c.is_ascii_digit()).unwrap_or(count.len());
    let after = count[end..].trim_start();
    (after.is_empty() || after.starts_with('#'))
        .then(|| count[..end].parse().ok())
        .flatten()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Directive {
    None,
    Skip,
    Todo,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Ok,
    NotOk,
}

struct Line<'a> {
    outcome: Outcome,
    number: Option<u64>,
    name: &'a str,
    directive: Directive,
}

impl<'a> Line<'a> {
    fn parse(rest: &'a str) -> Option<Self> {
        let (outcome, after) = match rest.strip_prefix("not ok") {
            Some(after) => (Outcome::NotOk, after),
            None => (Outcome::Ok, rest.strip_prefix("ok")?),
        };
        if !after.is_empty() && !after.starts_with(' ') {
            return None;
        }
        let after = after.trim_start();
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, name) = match after[..digits].parse() {
            Ok(number) if after[digits..].is_empty() || after[digits..].starts_with(' ') => {
                (Some(number), &after[digits..])
            }
            _ => (None, after),
        };
        let name = name.trim_start();
        Some(Self {
            outcome,
            number,
            name: name.strip_prefix("- ").unwrap_or(name),
            directive: directive(name),
        })
    }

    fn count(self, frame: &mut Frame, report: &mut Report, writer: Writer) -> Result<(), Refusal> {
        frame.seen += 1;
        // `node --test` numbers the tests of each file anew, behind those of others.
        if let Some(number) = self.number
            && (number == 0 || !frame.numbers.insert(number))
            && writer != Writer::Node
        {
            return Err(malformed("a test has a number that another one has"));
        }
        let subtest = frame.subtest.take();
        frame.passed = false;
        match (self.outcome, self.directive, subtest) {
            (_, Directive::Todo, None) | (Outcome::Ok, Directive::Skip, None) => report.counts.skipped += 1,
            (Outcome::NotOk, Directive::Todo, Some(_)) => {}
            (Outcome::NotOk, _, Some(true)) => frame.failed = true,
            (Outcome::NotOk, _, None | Some(false)) => {
                frame.failed = true;
                report.fail(self.name);
            }
            (Outcome::Ok, _, Some(failed)) => frame.failed |= failed,
            (Outcome::Ok, _, None) if stands_for_a_file(self.name) => {}
            (Outcome::Ok, _, None) => {
                frame.passed = true;
                report.pass_of(writer, self.name);
            }
        }
        Ok(())
    }
}

/// Says whether `node --test` wrote a report: no other writer sums up suites and a duration at its end.
fn writer(text: &str) -> Writer {
    let has = |start: &str| text.lines().any(|line| line.starts_with(start));
    match has("# suites ") && has("# duration_ms ") {
        true => Writer::Node,
        false => Writer::Other,
    }
}

/// Finds a directive behind an unescaped `#`.
fn directive(name: &str) -> Directive {
    for (at, _) in name.match_indices('#') {
        let before = &name[..at];
        let escaped = before.len() - before.trim_end_matches('\\').len();
        if escaped % 2 == 1 || !(before.is_empty() || before.ends_with(' ')) {
            continue;
        }
        let word: String = name[at + 1..]
            .trim_start()
            .chars()
            .take(4)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        match word.as_str() {
            "skip" => return Directive::Skip,
            "todo" => return Directive::Todo,
            _ => {}
        }
    }
    Directive::None
}

fn malformed(why: &str) -> Refusal {
    Refusal::new(
        Code::EvidenceForeign,
        format!("the report is not whole TAP: {why}"),
    )
    .reason("report_malformed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Counts;
    use proptest::prelude::*;

    /// As Node 20 writes it.
    const NODE: &str = "TAP version 13
# Subtest: top
ok 1 - top
  ---
  duration_ms: 0.5
  not ok 9 - no line of TAP
  ...
# Subtest: suite
    # Subtest: in
    ok 1 - in
      ---
      duration_ms: 0.1
      ...
    # Subtest: bad
    not ok 2 - bad
      ---
      error: 'x'
      ...
    1..2
not ok 2 - suite
  ---
  failureType: 'subtestsFailed'
  ...
# Subtest: later
not ok 3 - later # TODO
# Subtest: off \\# todo is no directive
ok 4 - off \\# todo is no directive # SKIP why
1..4
# tests 5
# pass 2
";

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
            deselected: None,
        }
    }

    #[test]
    fn leaves_are_counted_and_subtests_are_summed_up() {
        let report = tap(NODE.as_bytes()).unwrap();
        assert_eq!(report.counts, counts(2, 1, 2));
        assert_eq!(report.failures, ["bad"]);
        for (text, wanted) in [
            ("1..2\nok\nnot ok a # todo\n", counts(1, 0, 1)),
            ("ok 2 - b\nnoise\nok 1\n1..2\n", counts(2, 0, 0)),
            // As `node --test` writes a test that has no body yet.
            ("1..2\nok 1 - later # TODO\nok 2 - now\n", counts(1, 0, 1)),
            ("1..0 # SKIP nothing here\n", counts(0, 0, 0)),
            ("1..1\nnot ok 1 # SKIP it\n", counts(0, 1, 0)),
            ("1..1\nok 1\nBail out! disk full\n", counts(1, 1, 0)),
            ("    1..0\nok 1 - an empty suite\n1..1\n", counts(0, 0, 0)),
            (
                "    ok 1\n    1..1\nnot ok 1 - after hook\n1..1\n",
                counts(1, 1, 0),
            ),
            ("1..1\nok 1 - /v/tree/test/empty.test.js\n", counts(0, 0, 0)),
            ("1..1\nnot ok 1 - /v/tree/test/broken.test.js\n", counts(0, 1, 0)),
            ("okay\nnot okay\n1..1\nok 1 - handles\\# skip\n", counts(1, 0, 0)),
        ] {
            assert_eq!(tap(text.as_bytes()).unwrap().counts, wanted, "{text}");
        }
    }

    #[test]
    fn a_suite_without_a_test_is_none() {
        let text = "TAP version 13
# Subtest: empty
ok 1 - empty
  ---
  duration_ms: 1
  type: 'suite'
  ...
# Subtest: outer
    # Subtest: inner
    ok 1 - inner
      ---
      type: 'suite'
      ...
    # Subtest: real
    ok 2 - real
      ---
      duration_ms: 1
      ...
    1..2
ok 2 - outer
  ---
  type: 'suite'
  ...
1..2
";
        let node = format!("{text}# tests 1\n# suites 3\n# pass 1\n# duration_ms 9\n");
        let report = tap(node.as_bytes()).unwrap();
        assert_eq!(report.counts, counts(1, 0, 0));
        assert_eq!(report.rooted, ["real"]);
        // Node 20 begins to count anew with each file.
        let files = node.replace("1..2\n# tests", "ok 2 - /v/b.test.js\n1..3\n# tests");
        assert_eq!(tap(files.as_bytes()).unwrap().counts, counts(1, 0, 0));
        let other = "TAP version 13\nok 1 - a\nok 1 - b\n1..2\n";
        assert!(tap(other.as_bytes()).is_err());
        // Of another writer it is not known what its words mean.
        assert_eq!(tap(text.as_bytes()).unwrap().counts, counts(3, 0, 0));
    }

    /// Newer versions of node name a file without a test as the command does; to others a file may well be a test.
    #[test]
    fn whoever_wrote_it_says_what_may_stand_for_a_file() {
        let text = "TAP version 13\n# Subtest: runall\nok 1 - runall\n# Subtest: adds\nok 2 - adds\n1..2\n";
        assert_eq!(tap(text.as_bytes()).unwrap().rooted, [""; 0]);
        let text = format!("{text}# tests 2\n# suites 0\n# pass 2\n# duration_ms 40.2\n");
        let mut report = tap(text.as_bytes()).unwrap();
        assert_eq!(report.rooted, ["runall", "adds"]);
        report.leave_out_files(|name| name == "runall");
        assert_eq!(report.counts, counts(1, 0, 0));
    }

    #[test]
    fn what_does_not_add_up_is_no_evidence() {
        for text in [
            "",
            "ok 1\n",
            "1..2\nok 1\n",
            "1..1\nok 1\nok 2\n",
            "1..1\nok 1",
            "1..2\nok 1\nok 1\n",
            "1..2\nok 1\nok 3\n",
            "1..1\nok 0\n",
            "1..1\n1..1\nok 1\n",
            "1..1\n  ok 1\n",
            "1..1\n        ok 1\nok 1\n",
            "1..1\nok 1\n    ok 1\n    1..1\n",
            "1..1\n    ok 1\nok 1\n",
            "1..1\nok 1\n  ---\n  cut\n",
        ] {
            let refusal = tap(text.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, Code::EvidenceForeign, "{text}");
        }
    }

    /// Wherever a report is cut before its plan is complete, it is none.
    #[test]
    fn a_cut_report_is_never_whole() {
        let whole = NODE.find("1..4").unwrap() + "1..4\n".len();
        for end in 0..whole {
            assert!(tap(&NODE.as_bytes()[..end]).is_err(), "{end}");
        }
        for end in whole..=NODE.len() {
            let whole = tap(&NODE.as_bytes()[..end]);
            assert!(
                whole.is_err() || whole.is_ok_and(|r| r.counts == counts(2, 1, 2)),
                "{end}"
            );
        }
    }

    proptest! {
        #[test]
        fn noise_never_panics(text in "(( {0,8}|)(ok|not ok|1\\.\\.[0-9]{1,3}|---|\\.\\.\\.|#|x)( [0-9]{1,20}|)( # (skip|TODO)|)\n){0,20}") {
            drop(tap(text.as_bytes()));
        }

        #[test]
        fn what_was_written_is_counted(kinds in proptest::collection::vec(0_u8..4, 0..30)) {
            let mut text = format!("TAP version 14\n1..{}\n", kinds.len());
            for (at, kind) in kinds.iter().enumerate() {
                text.push_str(&match kind {
                    0 => format!("ok {} - p\n", at + 1),
                    1 => format!("not ok {} - f\n", at + 1),
                    2 => format!("ok {} - s # SKIP\n", at + 1),
                    _ => format!("not ok {} - t # TODO\n", at + 1),
                });
            }
            let of = |kind: u8| kinds.iter().filter(|k| **k == kind).count() as u64;
            prop_assert_eq!(tap(text.as_bytes()).unwrap().counts, counts(of(0), of(1), of(2) + of(3)));
        }
    }
}
