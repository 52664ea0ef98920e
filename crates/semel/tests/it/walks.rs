//! `docs/architecture.md` and the source say the same: every file it names exists, every hop of a walk is a call.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/architecture.md")).unwrap()
}

fn source(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Is one line of a walk: a function in a file, and how far it is indented.
#[derive(Debug)]
struct Hop {
    depth: usize,
    file: String,
    function: String,
}

fn walks() -> Vec<Vec<Hop>> {
    let page = page();
    let texts = page.split("<!-- walk -->").skip(1);
    texts
        .map(|text| {
            let lines = text.lines().skip_while(|line| line.trim().is_empty());
            lines
                .take_while(|line| line.starts_with("    "))
                .map(hop)
                .collect()
        })
        .collect()
}

fn hop(line: &str) -> Hop {
    let place = line.split_whitespace().next().unwrap();
    let (file, function) = place
        .split_once("::")
        .unwrap_or_else(|| panic!("no function: {line}"));
    Hop {
        depth: line.len() - line.trim_start().len(),
        file: file.to_owned(),
        function: function.to_owned(),
    }
}

/// Gives the bodies of all functions of a name: from `fn name` to the brace at its own indentation.
fn bodies(source: &str, function: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let defines = |open: char| line.contains(&format!("fn {function}{open}"));
        if !(defines('(') || defines('<')) || line.trim_start().starts_with("//") {
            continue;
        }
        let end = format!("{}}}", " ".repeat(line.len() - line.trim_start().len()));
        let body = lines[at + 1..].iter().take_while(|line| **line != end);
        found.push(body.copied().collect::<Vec<_>>().join("\n"));
    }
    found
}

/// Says whether a text names a function as something that is called or handed on.
fn names(text: &str, function: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(function).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = &text[at + function.len()..];
        let reached = matches!(before, Some('.' | ':')) || after.starts_with('(');
        before.is_none_or(|c| !part(c)) && after.chars().next().is_none_or(|c| !part(c)) && reached
    })
}

#[test]
fn every_hop_of_a_walk_is_a_call() {
    let walks = walks();
    assert!(
        walks.len() >= 3 && walks.iter().map(Vec::len).sum::<usize>() > 40,
        "the walks were found"
    );
    let mut wrong = Vec::new();
    for walk in &walks {
        for (at, hop) in walk.iter().enumerate() {
            if bodies(&source(&hop.file), &hop.function).is_empty() {
                wrong.push(format!("{} has no fn {}", hop.file, hop.function));
            }
            let Some(caller) = walk[..at].iter().rev().find(|other| other.depth < hop.depth) else {
                assert_eq!(at, 0, "only the first line of a walk has no caller: {hop:?}");
                continue;
            };
            let callers = bodies(&source(&caller.file), &caller.function);
            if !callers.iter().any(|body| names(body, &hop.function)) {
                wrong.push(format!(
                    "{}::{} does not call {}",
                    caller.file, caller.function, hop.function
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/architecture.md is out of date:\n  {}",
        wrong.join("\n  ")
    );
}

/// The tables name files in full, and neighbours of one by their name alone.
#[test]
fn every_file_that_is_named_exists() {
    let page = page();
    let mut checked = 0;
    for line in page.lines() {
        let mut beside = PathBuf::new();
        for word in line.split(|c: char| c.is_whitespace() || "`,()|".contains(c)) {
            let file = word.split("::").next().unwrap_or(word);
            let known = [".rs", ".toml", ".md"].iter().any(|end| file.ends_with(end));
            if !known {
                continue;
            }
            let place = if file.contains('/') {
                PathBuf::from(file)
            } else {
                beside.join(file)
            };
            let here = root().join(&place);
            assert!(
                here.is_file() || root().join("docs").join(file).is_file(),
                "{file} in: {line}"
            );
            beside = place.parent().unwrap().to_owned();
            checked += 1;
        }
    }
    assert!(checked > 60, "the files were found: {checked}");
}
