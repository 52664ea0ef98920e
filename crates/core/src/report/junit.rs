//! Reads JUnit XML, as pytest, `node --test`, jest and others write it.
//!
//! It counts `testcase` elements, and doubts a report whose own sums say that fewer of them ran or more of them failed.
//! It expands no entity of a document type and follows nothing.

use super::sums::{Cases, Suite};
use super::{Report, Stamp, Writer, stands_for_a_file};
use crate::code::{Code, Refusal};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

const DEEPEST: usize = 64;

/// What `status` and `result` say of a case that was not run, as GoogleTest, CTest, behave, NUnit and others write it, without
/// case and separators.
const NOT_RUN: [&str; 22] = [
    "notrun",
    "notexecuted",
    "notstarted",
    "unexecuted",
    "disabled",
    "skipped",
    "skip",
    "suppressed",
    "pending",
    "ignored",
    "ignore",
    "untested",
    "untestedpending",
    "untestedundefined",
    "undefined",
    "inconclusive",
    "incomplete",
    "deselected",
    "excluded",
    "filtered",
    "listed",
    "dryrun",
];
/// What they say of one that did not hold.
const NOT_HELD: [&str; 12] = [
    "fail",
    "failed",
    "failure",
    "error",
    "errored",
    "hookerror",
    "cleanuperror",
    "broken",
    "crashed",
    "aborted",
    "timeout",
    "timedout",
];
/// What they say of one that ran.
const RAN: [&str; 6] = ["run", "completed", "passed", "pass", "success", "ok"];

#[derive(Default)]
struct Case {
    name: String,
    own_name: String,
    depth: usize,
    failed: bool,
    skipped: bool,
    todo: bool,
    file: bool,
    said: bool,
}

/// Is what was read so far.
#[derive(Default)]
struct Reading {
    report: Report,
    /// The names of the tests that passed: who wrote the report is known at its end.
    names: Vec<String>,
    suites: Vec<Suite>,
    case: Option<Case>,
}

/// Counts the test cases of a JUnit report.
///
/// A case with a `failure` or `error` inside, or a status that says so, failed, unless it is marked `todo`; so did a
/// suite with one outside of its cases. A case with a `skipped` child, or a status that says so, was not run, nor one that is only listed; any other
/// one passed, but for the one that stands for a file without a test. The report is doubted where the sums of a suite
/// contradict its cases.
///
/// # Errors
/// `evidence_foreign` for a report that is cut, malformed, nested deeper than 64 elements, carries a document
/// type, or has another root element than `testsuites` or `testsuite`.
pub fn junit(bytes: &[u8]) -> Result<Report, Refusal> {
    let text = core::str::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    let mut reading = Reading::default();
    let mut depth = 0_usize;
    let mut rooted = false;
    let mut passed: Option<u64> = None;
    loop {
        match reader.read_event().map_err(|e| malformed(&e.to_string()))? {
            Event::Start(element) => {
                root(&element, depth, &mut rooted)?;
                depth += 1;
                if depth > DEEPEST {
                    return Err(malformed("it is nested too deep"));
                }
                reading.enter(&element, depth)?;
            }
            Event::Empty(element) => {
                root(&element, depth, &mut rooted)?;
                reading.enter(&element, depth + 1)?;
                reading.leave(depth + 1);
            }
            Event::End(_) => {
                reading.leave(depth);
                depth -= 1;
            }
            Event::DocType(_) => return Err(malformed("it carries a document type")),
            Event::Eof => break,
            // Behind all cases, in the root: only `node --test` sums up there.
            Event::Comment(comment) if depth == 1 => {
                let stated = comment.trim().strip_prefix("pass ").and_then(|n| n.parse().ok());
                passed = stated.or(passed);
            }
            Event::Text(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::GeneralRef(_) => {}
        }
    }
    if depth > 0 || !rooted {
        return Err(malformed("it is cut"));
    }
    let Reading {
        mut report, names, ..
    } = reading;
    let writer = match passed {
        Some(passed) => {
            report.at_most(passed);
            Writer::Node
        }
        None => Writer::Other,
    };
    report.rooted = names
        .into_iter()
        .filter(|name| name.starts_with('/') || writer == Writer::Node)
        .collect();
    Ok(report)
}

fn malformed(why: &str) -> Refusal {
    Refusal::new(
        Code::EvidenceForeign,
        format!("the report is not whole JUnit XML: {why}"),
    )
    .reason("report_malformed")
}

fn root(element: &BytesStart<'_>, depth: usize, rooted: &mut bool) -> Result<(), Refusal> {
    if depth > 0 {
        return Ok(());
    }
    let known = matches!(element.local_name().as_ref(), "testsuites" | "testsuite");
    if *rooted || !known {
        return Err(malformed("its root is not one testsuites or testsuite"));
    }
    *rooted = true;
    Ok(())
}

/// Keeps the earliest time that a suite states; a time that cannot be read says nothing.
fn stamped(element: &BytesStart<'_>, report: &mut Report) -> Result<(), Refusal> {
    let stamp = attribute(element, "timestamp")?.and_then(|text| Stamp::parse(&text));
    report.earliest = match (report.earliest, stamp) {
        (Some(one), Some(other)) => Some(one.earlier(other)),
        (one, other) => one.or(other),
    };
    Ok(())
}

impl Reading {
    fn enter(&mut self, element: &BytesStart<'_>, depth: usize) -> Result<(), Refusal> {
        let name = element.local_name();
        match (name.as_ref(), self.case.as_mut()) {
            ("testsuites" | "testsuite", None) => {
                stamped(element, &mut self.report)?;
                self.suites.push(Suite::entered(element, depth)?);
            }
            ("testcase" | "testsuites" | "testsuite", Some(_)) => {
                return Err(malformed("a testcase or a suite lies inside a testcase"));
            }
            ("testcase", None) => self.case = Some(Case::entered(element, depth)?),
            ("failure" | "error", Some(case)) => {
                case.failed = true;
                self.each_suite(|suite| suite.failures += 1);
            }
            ("failure" | "error", None) => {
                let suite = self.suites.last().map(|suite| suite.name.clone());
                self.report
                    .fail(&suite.unwrap_or_else(|| "(no suite)".to_owned()));
                self.each_suite(|suite| suite.failures += 1);
            }
            ("flakyFailure" | "flakyError" | "rerunFailure" | "rerunError", Some(_)) => {
                self.each_suite(|suite| suite.reruns += 1);
            }
            ("skipped", Some(case)) if depth == case.depth + 1 => {
                case.skipped = true;
                case.todo = attribute(element, "type")?.is_some_and(|kind| kind == "todo");
            }
            _ => {}
        }
        Ok(())
    }

    fn leave(&mut self, depth: usize) {
        if let Some(ended) = self.case.take_if(|case| case.depth == depth) {
            if ended.failed && !ended.todo {
                self.report.fail(&ended.name);
            } else if ended.skipped {
                self.report.counts.skipped += 1;
                self.each_count(|cases| cases.not_run += 1);
            } else {
                if !ended.file {
                    self.report.counts.passed += 1;
                    self.names.push(ended.own_name);
                }
                let said = u64::from(ended.said);
                self.each_count(|cases| {
                    cases.ran += 1;
                    cases.said += said;
                });
            }
        } else if let Some(ended) = self.suites.pop_if(|suite| suite.depth == depth)
            && let Some(doubt) = ended.contradicts_itself()
        {
            self.report.doubt.get_or_insert(doubt);
        }
    }

    /// Counts a case: in its own suite, and in all that it lies in.
    fn each_count(&mut self, count: impl Fn(&mut Cases)) {
        if let Some(suite) = self.suites.last_mut() {
            count(&mut suite.own);
        }
        self.each_suite(|suite| count(&mut suite.all));
    }

    fn each_suite(&mut self, change: impl FnMut(&mut Suite)) {
        self.suites.iter_mut().for_each(change);
    }
}

impl Case {
    fn entered(element: &BytesStart<'_>, depth: usize) -> Result<Self, Refusal> {
        let says = |words: &[&str]| -> Result<bool, Refusal> {
            let mut found = false;
            for key in ["status", "result"] {
                let value = attribute(element, key)?.unwrap_or_default();
                let letters = value.chars().filter(char::is_ascii_alphanumeric);
                let word: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
                found |= words.contains(&word.as_str());
            }
            Ok(found)
        };
        let own_name = attribute(element, "name")?.unwrap_or_default();
        // Newer versions of node name it as the command does, and say which file it is.
        let named = attribute(element, "file")?.is_some_and(|file| {
            let before = file.strip_suffix(own_name.as_str());
            !own_name.is_empty() && before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        });
        Ok(Self {
            name: case_name(element)?,
            file: named || stands_for_a_file(&own_name),
            own_name,
            depth,
            failed: says(&NOT_HELD)?,
            skipped: says(&NOT_RUN)? || is_listed(element)?,
            todo: false,
            said: says(&RAN)?,
        })
    }
}

/// Says whether a case is only listed, as by `--gtest_list_tests`: where it stands is told, and nothing of how it ran.
fn is_listed(element: &BytesStart<'_>) -> Result<bool, Refusal> {
    let has = |name: &str| attribute(element, name).map(|found| found.is_some());
    for run in ["time", "status", "result", "classname"] {
        if has(run)? {
            return Ok(false);
        }
    }
    Ok(has("file")? && has("line")?)
}

fn case_name(element: &BytesStart<'_>) -> Result<String, Refusal> {
    let name = attribute(element, "name")?.unwrap_or_else(|| "(unnamed)".to_owned());
    Ok(match attribute(element, "classname")? {
        Some(class) if !class.is_empty() => format!("{class}::{name}"),
        _ => name,
    })
}

pub(super) fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, Refusal> {
    let found = element
        .try_get_attribute(name)
        .map_err(|e| malformed(&e.to_string()))?;
    found
        .map(|attribute| {
            attribute
                .normalized_value(quick_xml::XmlVersion::Implicit1_0)
                .map(std::borrow::Cow::into_owned)
                .map_err(|e| malformed(&e.to_string()))
        })
        .transpose()
}
