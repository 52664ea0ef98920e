//! What a refusal of a test run says beside its reason: where the output is kept, and the last words of a command that
//! named no test.

use semel_core::ids::Generation;
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use semel_host::installer::TestRun;

/// How many of its last lines are told, and how much of each.
const LINES: usize = 3;
const LINE: usize = 200;

/// Adds to a refusal where the output of the test command is kept; where it names no failed test, the last lines that the
/// command wrote, too.
pub(super) fn with_words(refusal: &Refusal, generation: &Generation, run: &TestRun) -> Refusal {
    let of_the_run = matches!(
        refusal.code,
        Code::TestsFailed | Code::EvidenceForeign | Code::TimedOut | Code::QuotaExceeded
    );
    if !of_the_run {
        return refusal.clone();
    }
    let mut told = refusal.clone();
    told.why.push_str(&format!(
        "; what it printed is kept in reports/{generation}/ of the state root"
    ));
    if told.names.is_empty() && matches!(told.code, Code::TestsFailed | Code::EvidenceForeign) {
        told.names = last_words(&run.stderr, &run.stdout);
    }
    told
}

/// Gives the end of standard error, or of standard output where nothing was said there.
fn last_words(stderr: &[u8], stdout: &[u8]) -> Vec<String> {
    let said = last_lines(stderr);
    if said.is_empty() {
        return last_lines(stdout);
    }
    said
}

fn last_lines(bytes: &[u8]) -> Vec<String> {
    let lines = bytes.rsplit(|byte| *byte == b'\n');
    let lines = lines.map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let mut last: Vec<String> = lines
        .take(LINES)
        .map(|line| shown(line).chars().take(LINE).collect())
        .collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_that_say_something_are_told_in_their_order() {
        let long = "x".repeat(LINE * 2);
        let text = format!("first\nsecond\n\n  third \n{long}\n\n");
        assert_eq!(last_lines(text.as_bytes()), ["second", "third", &long[..LINE]]);
        assert_eq!(last_lines(b""), Vec::<String>::new());
        assert_eq!(last_words(b"wrong\n", b"right\n"), ["wrong"]);
        assert_eq!(last_words(b" \n", b"2 deselected\n"), ["2 deselected"]);
    }
}
