//! `kill -9` at any moment: what was answered is there.

use super::child;
use super::open;
use crate::Journal;
use semel_core::call::CallState;
use semel_core::ids::ExecutionId;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Lets a child write, kills it after so many answers, and gives every answer that it got out.
pub(super) fn killed_after(answers: usize, part: &str, dir: &Path) -> Vec<(String, ExecutionId)> {
    let mut child = child::command(&[], part, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    let take = |line: String, said: &mut Vec<_>| {
        if let Some((what, id)) = line.split_once(' ')
            && matches!(what, "began" | "finished")
        {
            said.push((what.to_owned(), ExecutionId::parse(id).unwrap()));
        }
    };
    while said.len() < answers {
        take(lines.next().expect("the child lives").unwrap(), &mut said);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for line in lines {
        take(line.unwrap(), &mut said);
    }
    said
}

fn kills(rounds: usize, part: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut total = 0;
    for round in 0..rounds {
        let said = killed_after(1 + round * 37, part, dir.path());
        total += said.len();
        let journal = open(dir.path()).unwrap();
        for (what, id) in &said {
            let known = journal.execution(id.clone()).unwrap();
            let kept = match what.as_str() {
                "began" => known.is_some(),
                _ => matches!(known, Some(CallState::Finished { .. })),
            };
            assert!(kept, "round {round}: {what} {id} was answered, and is {known:?}");
        }
        let report = journal.verify().unwrap();
        assert_eq!(report.faults, vec![], "round {round}");
    }
    assert!(total >= rounds, "only {total} answers in {rounds} rounds");
}

#[test]
fn every_answer_survives_kill_9() {
    kills(20, "write");
}

#[test]
fn every_answer_survives_kill_9_when_synced() {
    kills(5, "write-power");
}
