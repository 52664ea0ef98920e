//! Reads JUnit XML, as pytest, `node --test`, jest and others write it.
//!
//! It counts `testcase` elements and trusts no sum that a report states about itself. It expands no entity of a
//! document type and follows nothing.

use super::{Report, Stamp, stands_for_a_file};
use crate::code::{Code, Refusal};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

const DEEPEST: usize = 64;

#[derive(Default)]
struct Case {
    name: String,
    depth: usize,
    failed: bool,
    skipped: bool,
    todo: bool,
    file: bool,
}

/// Counts the test cases of a JUnit report.
///
/// A case with a `failure` or `error` child failed, unless it is marked `todo`; one with a `skipped` child was
/// not run; any other one passed, but for the one that stands for a file without a test.
///
/// # Errors
/// `evidence_foreign` for a report that is cut, malformed, nested deeper than 64 elements, carries a document
/// type, or has another root element than `testsuites` or `testsuite`.
pub fn junit(bytes: &[u8]) -> Result<Report, Refusal> {
    let text = core::str::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    let mut report = Report::default();
    let mut depth = 0_usize;
    let mut rooted = false;
    let mut case: Option<Case> = None;
    loop {
        match reader.read_event().map_err(|e| malformed(&e.to_string()))? {
            Event::Start(element) => {
                root(&element, depth, &mut rooted)?;
                stamped(&element, &mut report)?;
                depth += 1;
                if depth > DEEPEST {
                    return Err(malformed("it is nested too deep"));
                }
                enter(&element, depth, &mut case)?;
            }
            Event::Empty(element) => {
                root(&element, depth, &mut rooted)?;
                stamped(&element, &mut report)?;
                enter(&element, depth + 1, &mut case)?;
                leave(depth + 1, &mut case, &mut report);
            }
            Event::End(_) => {
                leave(depth, &mut case, &mut report);
                depth -= 1;
            }
            Event::DocType(_) => return Err(malformed("it carries a document type")),
            Event::Eof => break,
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
    if !matches!(element.local_name().as_ref(), "testsuites" | "testsuite") {
        return Ok(());
    }
    let stamp = attribute(element, "timestamp")?.and_then(|text| Stamp::parse(&text));
    report.earliest = match (report.earliest, stamp) {
        (Some(one), Some(other)) => Some(one.earlier(other)),
        (one, other) => one.or(other),
    };
    Ok(())
}

fn enter(element: &BytesStart<'_>, depth: usize, case: &mut Option<Case>) -> Result<(), Refusal> {
    match (element.local_name().as_ref(), case.as_mut()) {
        ("testcase", Some(_)) => return Err(malformed("a testcase lies inside another")),
        ("testcase", None) => {
            *case = Some(Case {
                name: case_name(element)?,
                file: attribute(element, "name")?.is_some_and(|name| stands_for_a_file(&name)),
                depth,
                ..Case::default()
            });
        }
        ("failure" | "error", Some(case)) if depth == case.depth + 1 => case.failed = true,
        ("skipped", Some(case)) if depth == case.depth + 1 => {
            case.skipped = true;
            case.todo = attribute(element, "type")?.is_some_and(|kind| kind == "todo");
        }
        _ => {}
    }
    Ok(())
}

fn leave(depth: usize, case: &mut Option<Case>, report: &mut Report) {
    let Some(ended) = case.take_if(|case| case.depth == depth) else {
        return;
    };
    if ended.failed && !ended.todo {
        report.fail(&ended.name);
    } else if ended.skipped {
        report.counts.skipped += 1;
    } else if !ended.file {
        report.counts.passed += 1;
    }
}

fn case_name(element: &BytesStart<'_>) -> Result<String, Refusal> {
    let name = attribute(element, "name")?.unwrap_or_else(|| "(unnamed)".to_owned());
    Ok(match attribute(element, "classname")? {
        Some(class) if !class.is_empty() => format!("{class}::{name}"),
        _ => name,
    })
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, Refusal> {
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
