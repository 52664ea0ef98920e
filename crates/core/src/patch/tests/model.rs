//! Laws: what a plain model makes of two texts, both grammars say, and the room does.

use crate::Refusal;
use crate::patch::{Anchor, Applied, Operation, apply, parse};
use proptest::prelude::*;

/// Is one line of an edit script, its line feed included if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step<'a> {
    Keep(&'a [u8]),
    Remove(&'a [u8]),
    Add(&'a [u8]),
}

fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|b| *b == b'\n').collect()
}

/// Makes an edit script by the longest common subsequence, by the textbook.
fn script<'a>(old: &[&'a [u8]], new: &[&'a [u8]]) -> Vec<Step<'a>> {
    let mut longest = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            longest[i][j] = match old[i] == new[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut steps = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            steps.push(Step::Keep(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || longest[i + 1][j] >= longest[i][j + 1]) {
            steps.push(Step::Remove(old[i]));
            i += 1;
        } else {
            steps.push(Step::Add(new[j]));
            j += 1;
        }
    }
    steps
}

/// Cuts a script into hunks with so many lines of context; gives where each begins in the script.
fn hunks(steps: &[Step<'_>], context: usize) -> Vec<(usize, usize)> {
    let mut cut: Vec<(usize, usize)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if matches!(step, Step::Keep(_)) {
            continue;
        }
        let (from, to) = (at.saturating_sub(context), (at + 1 + context).min(steps.len()));
        match cut.last_mut() {
            Some(last) if last.1 >= from => last.1 = to,
            _ => cut.push((from, to)),
        }
    }
    cut
}

fn signed<'a>(step: &Step<'a>) -> (u8, &'a [u8]) {
    match step {
        Step::Keep(line) => (b' ', line),
        Step::Remove(line) => (b'-', line),
        Step::Add(line) => (b'+', line),
    }
}

fn unified(steps: &[Step<'_>], context: usize) -> Vec<u8> {
    let mut text = b"--- a/f\n+++ b/f\n".to_vec();
    for (from, to) in hunks(steps, context) {
        let count =
            |steps: &[Step<'_>], without: u8| steps.iter().filter(|step| signed(step).0 != without).count();
        let range = |without: u8| {
            let (before, inside) = (count(&steps[..from], without), count(&steps[from..to], without));
            format!("{},{inside}", before + usize::from(inside > 0))
        };
        text.extend(format!("@@ -{} +{} @@ f()\n", range(b'+'), range(b'-')).bytes());
        for step in &steps[from..to] {
            let (sign, line) = signed(step);
            text.push(sign);
            text.extend(line);
            if !line.ends_with(b"\n") {
                text.extend(b"\n\\ No newline at end of file\n");
            }
        }
    }
    text
}

fn begun(steps: &[Step<'_>], context: usize, anchor: Anchor) -> Vec<u8> {
    let mut text = b"*** Begin Patch\n*** Update File: f\n".to_vec();
    for (from, to) in hunks(steps, context) {
        text.extend(b"@@\n");
        for step in &steps[from..to] {
            let (sign, line) = signed(step);
            text.push(sign);
            text.extend(line.strip_suffix(b"\n").unwrap_or(line));
            text.push(b'\n');
        }
        if to == steps.len() && anchor == Anchor::EndOfFile {
            text.extend(b"*** End of File\n");
        }
    }
    text.extend(b"*** End Patch\n");
    text
}

fn applied(patch: &[u8], before: &[u8]) -> Result<Applied, Refusal> {
    let operations = parse(patch)?.into_operations();
    match &operations[..] {
        [Operation::Update { hunks, .. }] => apply(hunks, before),
        other => panic!("not one update: {other:?}"),
    }
}

/// Gives texts of few different lines, so that places are there twice; some have no last line feed.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        &b"a"[..],
        b"b",
        b"",
        b" ",
        b"a ",
        b"a\r",
        b"-- a",
        b"++ a",
        b"@@ -1 +1 @@",
        b"*** End Patch",
        b"\\ a",
        b"\xff\xfe",
    ]);
    let lines = prop::collection::vec(line, 0..12);
    (lines, any::<bool>()).prop_map(|(lines, ended)| {
        let mut text = lines.join(&b'\n');
        text.extend((ended && !lines.is_empty()).then_some(b'\n'));
        text
    })
}

/// Makes each line of a text another one, so that each place is there once.
fn numbered(text: &[u8]) -> Vec<u8> {
    let lines = split(text).into_iter().enumerate();
    let numbered = lines.map(|(n, line)| [format!("{n}").as_bytes(), line].concat());
    numbered.collect::<Vec<_>>().concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_unified_diff_makes_the_second_text_of_the_first(
        before in text(), after in text(), context in 1usize..4,
    ) {
        prop_assume!(before != after);
        let patch = unified(&script(&split(&before), &split(&after)), context);
        let done = applied(&patch, &before);
        let done = done.map_err(|r| TestCaseError::fail(format!("{r:?} of {}", patch.escape_ascii())))?;
        prop_assert_eq!(done.content.escape_ascii().to_string(), after.escape_ascii().to_string());
        prop_assert_eq!(done.places.iter().filter(|p| Some(p.line) != p.stated).count(), 0);
    }

    /// `*** Begin Patch` has no line numbers: what it makes is right, or it is refused; where each line is there
    /// once, it is made.
    #[test]
    fn a_begun_patch_makes_the_second_text_or_nothing(
        before in text(), after in text(), context in 1usize..4, ended in any::<bool>(), once in any::<bool>(),
        anchor in prop::sample::select(vec![Anchor::Anywhere, Anchor::EndOfFile]),
    ) {
        // Both texts end alike, since this grammar cannot say anything else.
        let end = |text: Vec<u8>| {
            let mut text = text.strip_suffix(b"\n").map_or(text.clone(), <[u8]>::to_vec);
            text.extend((ended && !text.is_empty()).then_some(b'\n'));
            text
        };
        let number = |text: Vec<u8>| if once { numbered(&text) } else { text };
        let (before, after) = (end(number(before)), end(number(after)));
        let bare = |text: &[u8]| -> Vec<Vec<u8>> {
            split(text).iter().map(|line| line.strip_suffix(b"\n").unwrap_or(line).to_vec()).collect()
        };
        let (old, new) = (bare(&before), bare(&after));
        let (old, new): (Vec<&[u8]>, Vec<&[u8]>) =
            (old.iter().map(Vec::as_slice).collect(), new.iter().map(Vec::as_slice).collect());
        prop_assume!(old != new);
        let steps = script(&old, &new);
        let patch = begun(&steps, context, anchor);
        match applied(&patch, &before) {
            Ok(done) => {
                let lines: Vec<Vec<u8>> = bare(&done.content);
                prop_assert_eq!(lines, bare(&after), "{}", patch.escape_ascii());
                let last = steps.iter().rev().find(|s| !matches!(s, Step::Remove(_)));
                let last_added = matches!(last, Some(Step::Add(line)) if !line.is_empty());
                if last_added && !before.is_empty() && !after.is_empty() {
                    prop_assert_eq!(done.content.ends_with(b"\n"), before.ends_with(b"\n"));
                }
            }
            Err(refusal) => {
                let reason = refusal.reason.as_deref();
                prop_assert_eq!(reason, Some("ambiguous"), "{:?} of {}", refusal, patch.escape_ascii());
                prop_assert!(!once, "{:?} of {}", refusal, patch.escape_ascii());
            }
        }
    }

    /// No text makes the room panic, and the line ends of a text are no part of what it says.
    #[test]
    fn no_text_is_too_strange(
        lines in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..16), before in text(),
    ) {
        for frame in FRAMES {
            let text = [frame, &lines.join("\n"), "\n*** End Patch\n"].concat();
            let understood = parse(text.as_bytes());
            let crlf = parse(text.replace('\n', "\r\n").as_bytes());
            prop_assert_eq!(understood.as_ref().ok(), crlf.as_ref().ok());
            let Ok(patch) = understood else { continue };
            for operation in patch.operations() {
                if let Operation::Update { hunks, .. } = operation {
                    let _seen = apply(hunks, &before);
                }
            }
        }
    }
}

const FRAMES: [&str; 5] = [
    "",
    "*** Begin Patch\n*** Update File: f\n",
    "--- a/f\n+++ b/f\n",
    "diff --git a/f b/f\n",
    "<<EOF\n",
];

const WORDS: &[&str] = &[
    "",
    " ",
    " a",
    "-a",
    "+b",
    "-",
    "+",
    "@@",
    "@@ a",
    "@@ -1 +1 @@",
    "@@ -1,2 +1,2 @@ a",
    "@@ -0,0 +1 @@",
    "@@ -2,1 +1,0 @@",
    "\\ No newline at end of file",
    "*** End of File",
    "*** Begin Patch",
    "*** End Patch",
    "*** Add File: g",
    "*** Delete File: h",
    "*** Update File: i",
    "*** Move to: j",
    "--- a/g",
    "+++ b/g",
    "--- /dev/null",
    "+++ /dev/null",
    "diff --git a/g b/g",
    "diff --git \"a/\\303\" b/g",
    "rename from f",
    "rename to g",
    "old mode 100644",
    "new mode 100755",
    "new file mode 100644",
    "deleted file mode 100644",
    "index 1..2 100644",
    "Index: f",
    "===",
    "EOF",
    "```",
];
