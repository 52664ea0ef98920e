//! The rows of the page, and what was seen.

use crate::harness::said;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Output;

/// What a command answered.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    exit: Option<i32>,
    code: String,
    reason: String,
    /// Everything that it names, and why.
    told: Vec<String>,
}

impl Seen {
    /// Reads the answer of a command that was asked for JSON.
    pub(crate) fn of(out: &Output) -> Self {
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", said(out)));
        let word = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let names = answer["names"].as_array().into_iter().flatten();
        let mut told: Vec<String> = names
            .filter_map(|name| name.as_str().map(ToOwned::to_owned))
            .collect();
        told.push(word("why"));
        Self {
            exit: out.status.code(),
            code: word("code"),
            reason: word("reason"),
            told,
        }
    }

    pub(crate) fn passed(&self) -> bool {
        self.exit == Some(0) && self.code.is_empty()
    }
}

/// One row: a vector, or another way to do it.
struct Row {
    key: String,
    what: String,
    answer: String,
    named: Vec<String>,
    by: String,
}

fn rows() -> Vec<Row> {
    let page = include_str!("../../../../../docs/vectors.md");
    let lines = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = lines.filter_map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [key, what, answer, named, by] = cells.as_slice() else {
            return None;
        };
        key.contains(|c: char| c.is_ascii_digit()).then(|| Row {
            key: (*key).to_owned(),
            what: (*what).to_owned(),
            answer: (*answer).to_owned(),
            named: named
                .split('`')
                .skip(1)
                .step_by(2)
                .map(ToOwned::to_owned)
                .collect(),
            by: by.trim_matches('`').to_owned(),
        })
    });
    rows.collect()
}

/// Prints what was seen of a vector, and holds it against its row.
#[track_caller]
pub(crate) fn show(key: &str, seen: &Seen) {
    let rows = rows();
    let row = rows.iter().find(|row| row.key == key);
    let row = row.unwrap_or_else(|| panic!("docs/vectors.md has no row {key}: {seen:?}"));
    let answer = match seen.passed() {
        true => "  0 certified: no effect".to_owned(),
        false => {
            let exit = seen.exit.map_or("?".to_owned(), |exit| exit.to_string());
            let reason = match seen.reason.as_str() {
                "" => String::new(),
                reason => format!(" ({reason})"),
            };
            format!("{exit:>3} {}{reason}", seen.code)
        }
    };
    let first = seen
        .told
        .first()
        .filter(|_| !seen.passed())
        .map_or("", String::as_str);
    let first: String = first.chars().take(60).collect();
    let mut err = std::io::stderr().lock();
    writeln!(err, "vector {key:>4} {answer:<44} {first:<60} {}", row.what).unwrap();
    drop(err);
    if row.answer.starts_with("no effect") {
        assert!(seen.passed(), "{key}: {seen:?}");
        return;
    }
    assert_eq!(row.answer.replace('`', ""), answer.trim(), "{key}: {seen:?}");
    for named in &row.named {
        let told = seen.told.iter().any(|told| told.contains(named.as_str()));
        assert!(told, "{key} does not name {named}: {seen:?}");
    }
}

/// Every number has a row, no row stands twice, and each is shown by a test that is there and shows it.
#[test]
fn every_vector_has_a_row_and_every_row_a_test() {
    let rows = rows();
    let keys: BTreeSet<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys.len(), rows.len(), "a row stands twice");
    for number in 1..=50 {
        assert!(keys.contains(number.to_string().as_str()), "no row {number}");
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/vectors");
    for row in &rows {
        let (room, test) = row
            .by
            .split_once("::")
            .unwrap_or_else(|| panic!("{}: {}", row.key, row.by));
        let source = std::fs::read_to_string(here.join(format!("{room}.rs"))).unwrap();
        assert!(
            source.contains(&format!("fn {test}()")),
            "{}: {}",
            row.key,
            row.by
        );
        // Rows with an r may be made of the numbers of the others.
        let keys = [row.key.as_str(), row.key.trim_start_matches('r')];
        let shown = keys.iter().any(|key| source.contains(&format!("\"{key}\"")));
        assert!(shown, "{}: {}", row.key, row.by);
    }
}
