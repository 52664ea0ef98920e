//! A command in one line, as an operator writes it: its words, without a shell.
//!
//! Nothing is looked up, expanded or joined; what only a shell could mean is refused, so that nobody expects it to be.

use crate::code::{Code, Refusal};

/// Divides a line into words.
///
/// # Shape
/// White space divides. In single quotes everything is itself; in double quotes everything but `\` before `"` and `\`;
/// outside of quotes `\` takes the next character as it is.
///
/// # Errors
/// `bad_input` for no word at all, a quote without its end, a `\` at the end, and, outside of quotes, for what a shell
/// would take for more than itself: one of `|`| & ; < > ( ) $ ` * ? [ # ~ = %` at a place where it would.;<>()$*?` or a backtick.
pub fn split(line: &str) -> Result<Vec<String>, Refusal> {
    let wrong = |why: &str| Refusal::new(Code::BadInput, format!("the command: {why}"));
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err(wrong("a ' has no end")),
                    }
                }
            }
            '"' => quoted(&mut rest, word.get_or_insert_default()).ok_or_else(|| wrong("a \" has no end"))?,
            '\\' => {
                let next = rest.next().ok_or_else(|| wrong("it ends in a \\"))?;
                word.get_or_insert_default().push(next);
            }
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '$' | '`' | '*' | '?' => {
                let why = format!("no shell reads it: {c} is written in quotes, or in a script");
                return Err(wrong(&why));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if words.is_empty() {
        return Err(wrong("it has no word"));
    }
    Ok(words)
}

fn quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match rest.next()? {
            '"' => return Some(()),
            '\\' => match rest.next()? {
                c @ ('"' | '\\') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_was_written() {
        let cases: [(&str, &[&str]); 7] = [
            ("a b  c\t", &["a", "b", "c"]),
            ("'a b' \"c d\"", &["a b", "c d"]),
            ("a'b'\"c\"", &["abc"]),
            ("'' \"\"", &["", ""]),
            (r#""a\"b\\c\d""#, &[r#"a"b\c\d"#]),
            (r"a\ b \'", &["a b", "'"]),
            (
                "npx -y @scope/pkg@1 ~/x a=b '$HOME'",
                &["npx", "-y", "@scope/pkg@1", "~/x", "a=b", "$HOME"],
            ),
        ];
        for (line, wanted) in cases {
            assert_eq!(split(line).unwrap(), wanted, "{line}");
        }
    }

    #[test]
    fn what_only_a_shell_could_mean_is_refused() {
        for line in [
            "", "  ", "'a", "\"a", "a\\", "a | b", "a && b", "a;b", "a > b", "$HOME/x", "`x`", "a*", "a?",
            "(a)",
        ] {
            assert_eq!(split(line).unwrap_err().code, Code::BadInput, "{line:?}");
        }
    }
}
