//! Test commands whose exit status is not that of the tests.

/// Says what is weak in a test command whose exit status is not that of the tests.
pub(super) fn weakness(command: &[String]) -> Option<String> {
    let why = "a pipe in the test command, without pipefail, loses the exit status of the tests";
    loses_the_status(command).then(|| why.to_owned())
}

/// Says whether a command is a shell's, with a pipe in it and without `pipefail`: then the status is that of the last program of
/// the pipe, and what failed before it is not seen.
///
/// # Limits
/// It reads the words of `-c` alone; what a script in the tree does is not seen.
fn loses_the_status(command: &[String]) -> bool {
    let shell = |program: &String| {
        let name = program.rsplit('/').next().unwrap_or_default();
        matches!(name, "sh" | "bash" | "dash" | "ash" | "ksh" | "zsh")
    };
    let mut rest = command.iter().skip_while(|word| !shell(word)).skip(1);
    let given = command
        .iter()
        .any(|word| word == "pipefail" || word.contains("-o pipefail"));
    let flag = |word: &&String| word.starts_with('-') && !word.starts_with("--") && word.contains('c');
    let script = rest.find(flag).and_then(|_| rest.next());
    !given && script.is_some_and(|script| pipes(script))
}

/// Finds a `|` that is no `||`, and neither quoted nor escaped.
fn pipes(script: &str) -> bool {
    let mut quote = None;
    let mut letters = script.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None | Some('"'), '\\') => drop(letters.next()),
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, '|') if letters.peek() == Some(&'|') => drop(letters.next()),
            // `>|` writes over a file.
            (None, '|') if before != '>' => return true,
            _ => {}
        }
        before = letter;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_loses_the_status_of_what_is_before_it() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            loses_the_status(&words)
        };
        for yes in [
            "a | tee {report}",
            "a|b",
            "set -e; a 2>&1 |& b",
            "a || b | c",
            "x='a' | b",
            "a |\nb",
        ] {
            assert!(of(&["sh", "-c", yes]), "{yes}");
        }
        assert!(of(&["/bin/bash", "-ec", "a | b"]));
        assert!(of(&["env", "A=b", "bash", "-e", "-c", "a | b"]));
        for no in [
            "a > {report}",
            "a || b",
            "grep 'a|b' c",
            "grep \"a|b\" c",
            "grep a\\|b c",
            "a >| b",
            "set -o pipefail; a | b",
        ] {
            assert!(!of(&["sh", "-c", no]), "{no}");
        }
        assert!(!of(&["bash", "-o", "pipefail", "-c", "a | b"]));
        assert!(!of(&["node", "--test", "a|b"]));
        assert!(!of(&["sh", "run.sh", "a | b"]));
    }
}
