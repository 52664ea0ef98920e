//! The grammar `*** Begin Patch`.

use super::{begin, patched, reason, told};
use crate::Code;
use crate::patch::parse;

#[test]
fn every_operation_is_read() {
    let text = "*** Begin Patch\n*** Add File: new.txt\n+one\n+\n+  two\n*** Delete File: ./old.txt\n\
                *** Update File: a/b.py\n*** Move to: c/d.py\n@@ def f():\n-x\n+y\n@@\n z\n+w\n\
                *** Update File: e.py\n-x\n+y\n*** End Patch\n";
    let expected = [
        "add new.txt Regular \"one\\n\\n  two\\n\"",
        "delete old.txt None",
        "update a/b.py Some(\"c/d.py\") 2 None",
        "update e.py None 1 None",
    ];
    assert_eq!(told(text), expected);
    for (open, close) in [
        ("apply_patch <<'EOF'\n", "EOF\n"),
        ("apply_patch << \"PATCH\"\n", "PATCH\n\n"),
        ("<<EOF\n", "EOF"),
        ("\n  \n```diff\n", "```\n"),
        ("", "\n\n"),
    ] {
        assert_eq!(told(&format!("{open}{text}{close}")), expected, "{open}");
    }
    assert_eq!(told(&text.replace('\n', "\r\n")), expected, "CRLF everywhere");
    assert_eq!(told(text.trim_end()), expected, "no line feed at the end");
}

#[test]
fn forms_that_agents_send() {
    for (inner, expected) in [
        ("*** Add File: empty\n", "add empty Regular \"\""),
        ("*** Add File:   spaced  \n+x\n", "add spaced Regular \"x\\n\""),
        (
            "*** Update File: a\n*** Move to: b\n",
            "update a Some(\"b\") 0 None",
        ),
        (
            "*** Update File: a\n@@\n x\n\n y\n-z\n\n\n@@ h\n-q\n",
            "update a None 2 None",
        ),
        (
            "*** Update File: a\n@@ class A\n@@ def f\n-q\n\n",
            "update a None 1 None",
        ),
        (
            "*** Update File: a\n@@ -1,2 +1,3 @@ def f():\n x\n+q\n",
            "update a None 1 None",
        ),
        (
            "*** Update File: a\n x\n+q\n*** End of File\n@@\n-r\n",
            "update a None 2 None",
        ),
    ] {
        assert_eq!(told(&begin(inner)), [expected], "{inner}");
    }
}

/// A text, the reason of its refusal, and the line that is named.
const REFUSED: &[(&str, &str, &str)] = &[
    ("", "not_a_patch", "line 1"),
    ("hello\n", "not_a_patch", "line 1"),
    ("*** a\n--- b\n", "not_a_patch", "line 1"),
    ("*** Begin Patch\n*** End Patch\n", "empty_patch", ""),
    ("*** Begin Patch\n*** Add File: a\n+x\n", "unfinished", "line 4"),
    (
        "*** Begin Patch\n*** Update File: a\n-x\n",
        "unfinished",
        "line 4",
    ),
    (
        "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a\nEOF\n",
        "unfinished",
        "line 4",
    ),
    (
        "*** Begin Patch\n*** Delete File: a\n*** End Patch\nmore\n",
        "unexpected_line",
        "line 4",
    ),
    (
        "*** Begin Patch\n*** Add File: a\nx\n*** End Patch\n",
        "unexpected_line",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Add File: a\n+x\n\n+y\n*** End Patch\n",
        "unexpected_line",
        "line 5",
    ),
    (
        "*** Begin Patch\n*** Delete File: a\n-x\n*** End Patch\n",
        "unexpected_line",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Frobnicate File: a\n*** End Patch\n",
        "unexpected_line",
        "line 2",
    ),
    (
        "*** Begin Patch\n*** Update File: a\nx\n*** End Patch\n",
        "unexpected_line",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Update File: a\n@@x\n-x\n*** End Patch\n",
        "unexpected_line",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Update File: a\n*** End Patch\n",
        "empty_update",
        "line 2",
    ),
    (
        "*** Begin Patch\n*** Update File: a\n@@ f\n*** End Patch\n",
        "empty_hunk",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Update File: a\n@@\n\n*** End Patch\n",
        "empty_hunk",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Update File: a\n@@\n x\n*** End Patch\n",
        "no_change",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Update File: a\n-x\n+x\n*** End Patch\n",
        "no_change",
        "line 3",
    ),
    (
        "*** Begin Patch\n*** Add File:\n+x\n*** End Patch\n",
        "bad_name",
        "line 2",
    ),
    (
        "*** Begin Patch\n*** Delete File: .\n*** End Patch\n",
        "bad_name",
        "line 2",
    ),
    (
        "*** Begin Patch\n*** Update File: a\r\n-x\n*** End Patch\n",
        "mixed_line_ends",
        "line 2",
    ),
    (
        "*** Begin Patch\r\n*** Update File: a\r\n-x\n+y\r\n*** End Patch\r\n",
        "mixed_line_ends",
        "line 3",
    ),
];

#[test]
fn refuses_by_name_and_line() {
    for (text, named, line) in REFUSED {
        let refusal = parse(text.as_bytes()).unwrap_err();
        assert_eq!(reason(&refusal), (Code::BadInput, *named), "{text}: {refusal:?}");
        let names: Vec<&str> = refusal.names.iter().map(String::as_str).collect();
        assert_eq!(names.join(" "), *line, "{text}");
    }
}

#[test]
fn paths_are_confined_and_no_file_is_there_twice() {
    for name in ["/etc/passwd", "../x", "a/../../x", "~/x"] {
        for operation in [
            format!("*** Add File: {name}\n+x\n"),
            format!("*** Delete File: {name}\n"),
            format!("*** Update File: a\n*** Move to: {name}\n"),
        ] {
            let refusal = parse(begin(&operation).as_bytes()).unwrap_err();
            assert_eq!(refusal.code, Code::PathEscapesRoot, "{operation}");
            assert!(
                refusal.names.iter().any(|n| n.starts_with("line ")),
                "{refusal:?}"
            );
        }
    }
    for inner in [
        "*** Delete File: a\n*** Delete File: a\n",
        "*** Delete File: a\n*** Add File: x/../a\n+x\n",
        "*** Update File: a\n-x\n*** Update File: ./a\n-y\n",
        "*** Update File: a\n*** Move to: b\n*** Delete File: b\n",
        "*** Update File: a\n*** Move to: a\n",
        "*** Update File: a\n*** Move to: c\n*** Update File: b\n*** Move to: c\n",
        "*** Delete File: a\n*** Add File: a/b/c\n+x\n",
        "*** Add File: a/b/c\n+x\n*** Delete File: a/b\n",
        "*** Update File: d\n*** Move to: d/e\n",
    ] {
        let refusal = parse(begin(inner).as_bytes()).unwrap_err();
        assert_eq!(reason(&refusal), (Code::BadInput, "file_twice"), "{inner}");
        assert_eq!(refusal.names.len(), 1, "{refusal:?}");
    }
    // Names that only look alike.
    let apart = "*** Delete File: a\n*** Delete File: ab\n*** Delete File: b/a\n*** Delete File: a.b/c\n";
    assert_eq!(told(&begin(apart)).len(), 4);
}

#[test]
fn what_becomes_of_a_file() {
    for (hunks, before, after) in [
        ("@@\n-b\n+B\n", "a\nb\nc\n", "a\nB\nc\n"),
        ("-b\n", "a\nb\nc\n", "a\nc\n"),
        (" a\n+x\n b\n", "a\nb\n", "a\nx\nb\n"),
        ("+x\n a\n", "a\nb\n", "x\na\nb\n"),
        ("+x\n-a\n", "a\n", "x\n"),
        ("-a\n+x\n@@\n-c\n+y\n+z\n", "a\nb\nc\nd\n", "x\nb\ny\nz\nd\n"),
        ("@@ -7,2 +7,2 @@ def f():\n a\n-b\n+c\n", "a\nb\n", "a\nc\n"),
        // A bare empty line is context.
        (" a\n\n-b\n", "a\n\nb\n", "a\n\n"),
        // The missing line feed at the end stays missing.
        ("-b\n+c\n", "a\nb", "a\nc"),
        (" b\n+c\n", "a\nb", "a\nb\nc"),
        ("-a\n", "a\nb", "b"),
        ("-a\n+x\n", "a\nb", "x\nb"),
        ("-b\n", "a\nb", "a\n"),
        ("-a\n", "a", ""),
        ("-a\n-b\n+c\n", "a\nb", "c"),
        (" a\n+\n", "a", "a\n\n"),
        // An empty file has one place.
        ("+x\n", "", "x\n"),
        ("+x\n*** End of File\n", "", "x\n"),
        ("+x\n*** End of File\n", "a\nb\n", "a\nb\nx\n"),
        ("+x\n*** End of File\n", "a\nb", "a\nb\nx"),
        (" a\n+x\n*** End of File\n", "a\nb\na\n", "a\nb\na\nx\n"),
    ] {
        let patch = begin(&format!("*** Update File: f\n{hunks}"));
        let applied = patched(&patch, before).unwrap_or_else(|r| panic!("{r:?} of {hunks} on {before:?}"));
        let content = String::from_utf8(applied.content.clone()).unwrap();
        assert_eq!(content, after, "{hunks} on {before:?}");
        assert_eq!(applied.inexact().count(), 0, "{hunks} on {before:?}");
    }
}
