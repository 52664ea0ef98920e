//! The text of an account: lines, and named texts broken at words.

const WIDTH: usize = 118;
const INDENT: usize = 15;

/// Adds a line.
pub(in crate::engine) fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// Writes a named text, broken at words.
pub(in crate::engine) fn field(out: &mut String, name: &str, text: &str) {
    let mut current = format!("{:INDENT$}", format!("      {name}"));
    let mut width = 0;
    for word in text.split_whitespace() {
        if width > 0 && current.chars().count() + 1 + word.chars().count() > WIDTH {
            line(out, current.trim_end());
            current = " ".repeat(INDENT);
            width = 0;
        }
        if width > 0 {
            current.push(' ');
        }
        current.push_str(word);
        width += 1;
    }
    line(out, current.trim_end());
}
