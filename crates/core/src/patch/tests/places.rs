//! Where hunks lie, and when that is not known.

use super::{begin, patched, reason};
use crate::Code;
use crate::patch::How;

fn update(hunks: &str) -> String {
    begin(&format!("*** Update File: f\n{hunks}"))
}

#[test]
fn what_has_no_one_place_is_refused() {
    for (hunks, before, named) in [
        ("-x\n+y\n", "a\nb\n", "no_match"),
        ("-a\n-b\n", "b\na\n", "no_match"),
        ("-a\n+y\n", "", "no_match"),
        ("-a\n+y\n", "a\nb\na\n", "ambiguous"),
        // Two places that overlap.
        ("-a\n-a\n+y\n", "a\na\na\n", "ambiguous"),
        // White space at the beginning of a line, and what only looks alike, is another line.
        ("-  a\n+y\n", "a\n", "no_match"),
        ("-\ta\n+y\n", "    a\n", "no_match"),
        ("-\u{201c}a\u{201d}\n+y\n", "\"a\"\n", "no_match"),
        ("-a\u{a0}b\n+y\n", "a b\n", "no_match"),
        ("-a\n+y\n*** End of File\n", "a\nb\n", "no_match"),
        ("@@ def g\n-a\n+y\n", "def f\na\n", "no_header"),
        ("@@ def f\n-a\n+y\n", "a\ndef f\n", "no_match"),
        ("@@ def f\n-a\n+y\n", "def f\na\ndef f\na\n", "ambiguous"),
        (
            "@@ class A\n@@ def f\n-a\n+y\n",
            "class A\ndef g\na\n",
            "no_header",
        ),
        (
            "@@ class A\n@@ def f\n-a\n+y\n",
            "def f\nclass A\na\n",
            "no_header",
        ),
        ("+x\n", "a\n", "no_context"),
        ("@@ a\n+x\n", "a\n", "no_context"),
        ("-b\n+x\n@@\n-a\n+y\n", "a\nb\n", "out_of_order"),
        ("-a\n-b\n+x\n@@\n-b\n-c\n+y\n", "a\nb\nc\n", "out_of_order"),
        // Looser levels refuse as the exact one does.
        ("-a\n+y\n", "a \na\t\n", "ambiguous"),
        ("-a\n+y\n", "a\r\na\r\n", "ambiguous"),
    ] {
        let refusal = patched(&update(hunks), before).unwrap_err();
        assert_eq!(
            reason(&refusal),
            (Code::PreconditionFailed, named),
            "{hunks} on {before:?}: {refusal:?}"
        );
        assert!(refusal.names[0].starts_with("hunk "), "{refusal:?}");
        assert!(refusal.names[1].starts_with("patch line "), "{refusal:?}");
    }
}

#[test]
fn a_refusal_tells_where() {
    let refusal = patched(&update("@@\n-a\n+b\n@@\n-x\n+y\n"), "a\nx\nx\nx\n").unwrap_err();
    assert_eq!(
        refusal.names,
        ["hunk 2", "patch line 6", "line 2", "line 3", "line 4"]
    );
    assert_eq!(refusal.why, "the hunk fits 3 places equally well");
}

#[test]
fn headers_make_one_place_the_best() {
    let file = "class A:\n  def f():\n    x\n  def g():\n    x\nclass B:\n  def f():\n    x\n";
    for (headers, line) in [
        ("@@ class B:\n", 8),
        ("@@ def g():\n", 5),
        ("@@   def g():  \n", 5),
        ("@@ class A:\n@@ def f():\n", 3),
        ("@@ class B:\n@@ def f():\n", 8),
        ("@@ class A:\n@@ def g():\n", 5),
    ] {
        let applied = patched(&update(&format!("{headers}-    x\n+    y\n")), file).unwrap();
        assert_eq!(applied.places[0].line, line, "{headers}");
        let line_of = String::from_utf8(applied.content).unwrap();
        assert_eq!(line_of.lines().nth(line - 1), Some("    y"), "{headers}");
    }
    for headers in ["", "@@\n", "@@ def f():\n"] {
        let refusal = patched(&update(&format!("{headers}-    x\n+    y\n")), file).unwrap_err();
        assert_eq!(reason(&refusal).1, "ambiguous", "{headers}");
    }
    // A header that stands twice, once above a place.
    let applied = patched(&update("@@ def f\n-a\n+y\n"), "def f\nq\ndef f\na\n").unwrap();
    assert_eq!(applied.places[0].line, 4);
    let twice = "class A\ndef f\nq\ndef f\na\n";
    let refusal = patched(&update("@@ class A\n@@ def f\n-a\n+y\n"), twice).unwrap_err();
    assert_eq!(reason(&refusal).1, "no_match");
    // A header may be the first line of context as well.
    let applied = patched(&update("@@ class B:\n class B:\n+  z\n"), file).unwrap();
    assert_eq!(applied.places[0].line, 6);
}

#[test]
fn line_ends_follow_the_file_and_are_reported() {
    let applied = patched(&update(" a\n-b\n+x\n+y\n"), "a\r\nb\r\nc\r\n").unwrap();
    assert_eq!(applied.content, b"a\r\nx\r\ny\r\nc\r\n");
    assert_eq!(applied.places[0].how, How::LineEnds);
    assert_eq!(applied.inexact().count(), 1);

    let applied = patched(&update(" b\n+x\n"), "a\r\nb").unwrap();
    assert_eq!(
        (applied.content, applied.places[0].how),
        (b"a\r\nb\nx".to_vec(), How::Exact)
    );

    let applied = patched(&update("+x\n*** End of File\n"), "a\r\n").unwrap();
    assert_eq!(
        (applied.content, applied.places[0].how),
        (b"a\r\nx\r\n".to_vec(), How::LineEnds)
    );

    // A patch that has carriage returns of its own means them.
    let applied = patched(&update("-b\r\n+x\r\n"), "a\nb\r\nc\n").unwrap();
    assert_eq!(
        (applied.content, applied.places[0].how),
        (b"a\nx\r\nc\n".to_vec(), How::Exact)
    );

    // So does one that adds one to a file whose lines have them already.
    let applied = patched(&update(" a\n+x\r\n"), "a\r\nb\r\n").unwrap();
    assert_eq!(applied.content, b"a\r\nx\r\nb\r\n");
    assert_eq!(applied.places[0].how, How::TrailingSpace);

    // In a file of both kinds nobody knows which to add, so the patch's own stay.
    let applied = patched(&update(" a\n b\n+x\n"), "a\r\nb\nc\n").unwrap();
    assert_eq!(applied.content, b"a\r\nb\nx\nc\n");
    assert_eq!(applied.places[0].how, How::TrailingSpace);
}

#[test]
fn white_space_at_the_end_is_overlooked_kept_and_reported() {
    let applied = patched(&update(" a\n-b\n+x\n c  \n"), "a \t\nb  \nc\nd\n").unwrap();
    assert_eq!(applied.content, b"a \t\nx\nc\nd\n");
    assert_eq!(applied.places[0].how, How::TrailingSpace);
    // The exact place is taken, though a looser look would find two.
    let applied = patched(&update("-a\n+x\n"), "a \na\n").unwrap();
    assert_eq!(
        (applied.content, applied.places[0].how),
        (b"a \nx\n".to_vec(), How::Exact)
    );
}

fn diff(hunks: &str) -> String {
    format!("--- a/f\n+++ b/f\n{hunks}")
}

#[test]
fn numbers_are_believed_together_or_not_at_all() {
    // Both hunks lie where they say, so their lines may be there again elsewhere.
    let two = diff("@@ -2 +2 @@\n-x\n+y\n@@ -4 +4 @@\n-x\n+z\n");
    let applied = patched(&two, "x\nx\nx\nx\n").unwrap();
    assert_eq!(applied.content, b"x\ny\nx\nz\n");
    assert_eq!(applied.inexact().count(), 0);
    // One does not: then the other has to be sure of its place, too.
    let refusal = patched(&two, "x\nx\nx\nw\n").unwrap_err();
    assert_eq!(reason(&refusal), (Code::PreconditionFailed, "ambiguous"));

    let one = diff("@@ -2,2 +2,2 @@\n a\n-x\n+y\n");
    let applied = patched(&one, "0\n0\n0\na\nx\n").unwrap();
    assert_eq!(applied.content, b"0\n0\n0\na\ny\n");
    let moved: Vec<_> = applied.inexact().collect();
    assert_eq!(
        (moved[0].line, moved[0].stated, moved[0].how),
        (4, Some(2), How::Exact)
    );
    let refusal = patched(&one, "a\nx\na\nx\n").unwrap_err();
    assert_eq!(reason(&refusal).1, "ambiguous");
    assert_eq!(reason(&patched(&one, "a\n").unwrap_err()).1, "no_match");

    // A number alone is no place.
    let bare = diff("@@ -2,0 +3 @@\n+y\n");
    assert_eq!(reason(&patched(&bare, "a\nb\nc\n").unwrap_err()).1, "no_context");
    let bare = diff("@@ -0,0 +1 @@\n+y\n\\ No newline at end of file\n");
    assert_eq!(reason(&patched(&bare, "a\n").unwrap_err()).1, "no_context");
    assert_eq!(patched(&bare, "").unwrap().content, b"y");
}

#[test]
fn the_end_of_a_file_is_what_the_diff_says() {
    const NONE: &str = "\\ No newline at end of file\n";
    for (hunk, before, after) in [
        (format!("@@ -1 +1 @@\n-a\n+a\n{NONE}"), "a\n", "a"),
        (format!("@@ -1 +1 @@\n-a\n{NONE}+a\n"), "a", "a\n"),
        (format!("@@ -1 +1 @@\n-a\n{NONE}+b\n{NONE}"), "a", "b"),
        (format!("@@ -1 +1,2 @@\n+x\n a\n{NONE}"), "a", "x\na"),
        (format!("@@ -1 +1,2 @@\n-a\n{NONE}+a\n+b\n"), "a", "a\nb\n"),
    ] {
        let applied = patched(&diff(&hunk), before).unwrap();
        assert_eq!(String::from_utf8(applied.content).unwrap(), after, "{hunk}");
        assert_eq!(applied.places[0].how, How::Exact, "{hunk}");
    }
    // The end is a fact about the file: a file that goes on is another one.
    let ended = diff(&format!("@@ -1 +1 @@\n-a\n+b\n{NONE}"));
    assert_eq!(reason(&patched(&ended, "a\nc\n").unwrap_err()).1, "no_match");
    let ended = diff(&format!("@@ -1 +1 @@\n-a\n{NONE}+b\n"));
    assert_eq!(reason(&patched(&ended, "z").unwrap_err()).1, "no_match");
    // A diff written by hand forgets to say that the line feed is missing: overlooked, reported, nothing joined.
    let applied = patched(&diff("@@ -1 +1,2 @@\n a\n+b\n"), "a").unwrap();
    assert_eq!(
        (applied.content, applied.places[0].how),
        (b"a\nb\n".to_vec(), How::TrailingSpace)
    );
}
