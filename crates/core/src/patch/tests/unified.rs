//! The grammar of unified diffs.

use super::{patched, reason, told};
use crate::Code;
use crate::patch::parse;

/// A text, and what it does.
const READ: &[(&str, &str)] = &[
    ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "update x None 1 None"),
    ("--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n", "update x None 1 None"),
    (
        "--- x\t2024-01-01 10:00:00\n+++ x\t2024-01-02\n@@ -1 +1 @@\n-a\n+b\n",
        "update x None 1 None",
    ),
    (
        "Index: x\n=====\n--- x\told\n+++ x\tnew\n@@ -1 +1 @@\n-a\n+b\n",
        "update x None 1 None",
    ),
    (
        "diff -ru a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "update x None 1 None",
    ),
    (
        "--- /dev/null\n+++ b/d/x\n@@ -0,0 +1,2 @@\n+a\n+b\n",
        "add d/x Regular \"a\\nb\\n\"",
    ),
    (
        "--- a/d/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n",
        "delete d/x Some(\"a\\nb\\n\")",
    ),
    (
        "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@ fn f() {\n a\n-b\n+c\n d\n",
        "update x None 1 None",
    ),
    (
        "diff --git a/x b/x\nnew file mode 100755\nindex 0..2\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n\
             \\ No newline at end of file\n",
        "add x Executable \"a\"",
    ),
    (
        "diff --git a/x b/x\nnew file mode 100644\nindex 0..e69\n",
        "add x Regular \"\"",
    ),
    (
        "diff --git a/x b/x\ndeleted file mode 100644\nindex 1..0\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        "delete x Some(\"a\\n\")",
    ),
    ("diff --git a/x b/x\ndeleted file mode 100644\n", "delete x None"),
    (
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "update x None 0 Some(Executable)",
    ),
    (
        "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n",
        "update x Some(\"y\") 0 None",
    ),
    (
        "diff --git a/x b/d/y\nold mode 100755\nnew mode 100644\nsimilarity index 90%\nrename from x\n\
             rename to d/y\nindex 1..2\n--- a/x\n+++ b/d/y\n@@ -1 +1 @@\n-a\n+b\n",
        "update x Some(\"d/y\") 1 Some(Regular)",
    ),
    (
        "diff --git a/a b b/a b\nold mode 100644\nnew mode 100755\n",
        "update a b None 0 Some(Executable)",
    ),
    (
        "diff --git x/y x/y\nold mode 100644\nnew mode 100755\n",
        "update x/y None 0 Some(Executable)",
    ),
    (
        "diff --git \"a/\\303\\244\\tx\" \"b/\\303\\244\\tx\"\nold mode 100644\nnew mode 100755\n",
        "update ä\\tx None 0 Some(Executable)",
    ),
    (
        "--- \"a/q\\\"\\\\\"\n+++ \"b/q\\\"\\\\\"\n@@ -1 +1 @@\n-a\n+b\n",
        "update q\"\\ None 1 None",
    ),
    (
        "--- a/sp ace\t\n+++ b/sp ace\t\n@@ -1 +1 @@\n-a\n+b\n",
        "update sp ace None 1 None",
    ),
];

#[test]
fn every_operation_is_read() {
    for (text, expected) in READ {
        assert_eq!(told(text), [*expected], "{text}");
        assert_eq!(told(&format!("```diff\n{text}```\n")), [*expected], "{text}");
        assert_eq!(told(&text.replace('\n', "\r\n")), [*expected], "{text}");
    }
    let many = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n@@ -9 +9 @@\n-a\n+b\n\
                diff --git a/y b/y\nold mode 100644\nnew mode 100755\ndiff --git a/z b/z\nnew file mode 100644\n\
                \n--- a/w\n+++ b/w\n@@ -1 +1 @@\n-a\n+b\n";
    assert_eq!(told(many).len(), 4);
}

/// A text, the reason of its refusal, and the line that is named; NAMES are the two lines of one file.
const REFUSED: &[(&str, &str, usize)] = &[
    ("--- /dev/null\n+++ b/x\n@@ -5,0 +6 @@\n+a\n", "contradiction", 3),
    (
        "NAMES\n@@ -1 +1,2 @@\n-a\n+b\n\\ No newline\n+c\n",
        "wrong_count",
        7,
    ),
    ("--- a/x\n@@ -1 +1 @@\n-a\n+b\n", "unexpected_line", 2),
    ("NAMES\n", "empty_hunk", 3),
    ("NAMES\n@@ -1 +1 @\n-a\n+b\n", "hunk_header", 3),
    ("NAMES\n@@ ... @@\n-a\n+b\n", "hunk_header", 3),
    ("NAMES\n@@ -0 +1 @@\n-a\n+b\n", "hunk_header", 3),
    ("NAMES\n@@ -1,9999999999 +1 @@\n-a\n+b\n", "hunk_header", 3),
    ("NAMES\n@@ -1,2 +1 @@\n-a\n+b\n", "unfinished", 6),
    (
        "NAMES\n@@ -1,2 +1 @@\n-a\n+b\n@@ -5 +5 @@\n-a\n+b\n",
        "wrong_count",
        6,
    ),
    ("NAMES\n@@ -1 +1 @@\n-a\n-c\n+b\n", "wrong_count", 5),
    ("NAMES\n@@ -1 +1 @@\n-a\n+b\n+c\n", "wrong_count", 6),
    ("NAMES\n@@ -1 +1 @@\n-a\n+b\n \n", "wrong_count", 6),
    ("NAMES\n@@ -1 +1 @@\n-a\n+b\n-- \n2.39\n", "wrong_count", 6),
    (
        "NAMES\n@@ -1,2 +1,2 @@\n-a\n\\ No newline\n+b\n c\n",
        "wrong_count",
        7,
    ),
    ("NAMES\n@@ -1 +1 @@\n a\n", "no_change", 3),
    ("NAMES\n@@ -0,0 +0,0 @@\n", "empty_hunk", 3),
    (
        "NAMES\n@@ -5 +5 @@\n-a\n+b\n@@ -5 +6 @@\n-a\n+b\n",
        "out_of_order",
        6,
    ),
    ("NAMES\n@@ -1 +1 @@\n-a\n+b\nOnly in x: y\n", "unexpected_line", 6),
    ("NAMES\nIndex: y\n", "empty_hunk", 3),
    ("Index: y\n====\n", "unfinished", 3),
    ("diff -r a b\nOnly in a: x\n", "unexpected_line", 2),
    ("diff -r a b\nBinary files a and b differ\n", "binary", 2),
    (
        "diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 1\n",
        "binary",
        3,
    ),
    (
        "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
        "binary",
        2,
    ),
    ("diff --git a/x b/x\nindex 1..2 100644\n", "empty_update", 1),
    ("diff --git a/x b/x\nindex 1..2 120000\n", "mode_unsupported", 2),
    (
        "diff --git a/x b/x\nnew file mode 120000\n",
        "mode_unsupported",
        2,
    ),
    (
        "diff --git a/x b/x\nnew file mode 160000\n",
        "mode_unsupported",
        2,
    ),
    (
        "diff --git a/x b/x\nold mode 100644\nnew mode 100600\n",
        "mode_unsupported",
        3,
    ),
    ("diff --git a/x b/x\nold mode 100644\n", "contradiction", 1),
    (
        "diff --git a/x b/x\nnew file mode 100644\nnew file mode 100644\n",
        "contradiction",
        3,
    ),
    (
        "diff --git a/x b/x\nnew file mode 100644\ndeleted file mode 100644\n",
        "contradiction",
        1,
    ),
    ("diff --git a/x b/y\nrename from x\n", "contradiction", 1),
    (
        "diff --git a/x b/y\nold mode 100644\nnew mode 100755\n",
        "two_names",
        1,
    ),
    (
        "diff --git a/x b/y\ncopy from x\ncopy to y\n",
        "copy_unsupported",
        2,
    ),
    (
        "diff --git a/x b/x\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
        "two_names",
        3,
    ),
    (
        "diff --git a/x b/x\nnew file mode 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "contradiction",
        1,
    ),
    ("diff --cc x\nindex 1,2..3\n", "not_a_patch", 1),
    ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "two_names", 2),
    ("--- x.orig\n+++ x\n@@ -1 +1 @@\n-a\n+b\n", "two_names", 2),
    (
        "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n",
        "bad_name",
        2,
    ),
    ("--- a/x \n+++ b/x \n@@ -1 +1 @@\n-a\n+b\n", "bad_name", 1),
    ("--- \"a/x\n+++ \"b/x\n@@ -1 +1 @@\n-a\n+b\n", "bad_name", 1),
    (
        "--- \"a/\\9\"\n+++ \"b/\\9\"\n@@ -1 +1 @@\n-a\n+b\n",
        "bad_name",
        1,
    ),
    (
        "--- /dev/null\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "contradiction",
        3,
    ),
    (
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n@@ -0,0 +2 @@\n+a\n",
        "contradiction",
        5,
    ),
];

#[test]
fn refuses_by_name_and_line() {
    for (text, reasoned, line) in REFUSED {
        let text = text.replacen("NAMES\n", "--- a/x\n+++ b/x\n", 1);
        let refusal = parse(text.as_bytes()).unwrap_err();
        assert_eq!(
            reason(&refusal),
            (Code::BadInput, *reasoned),
            "{text}: {refusal:?}"
        );
        assert_eq!(refusal.names, [format!("line {line}")], "{text}");
    }
}

#[test]
fn counts_tell_what_markers_could_hide() {
    // Removed `-- old` and added `++ new` look like the names of a next file.
    let patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n c\n";
    assert_eq!(patched(patch, "-- old\nc\n").unwrap().content, b"++ new\nc\n");
    // A patch that was cut between two lines is not half applied.
    let whole = "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n";
    for (cut, _) in whole.match_indices('\n').take(6) {
        let text = &whole[..=cut];
        assert!(parse(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn paths_are_confined() {
    for name in ["/etc/passwd", "../x", "b/../../x"] {
        let text = format!("--- {name}\n+++ {name}\n@@ -1 +1 @@\n-a\n+b\n");
        assert_eq!(
            parse(text.as_bytes()).unwrap_err().code,
            Code::PathEscapesRoot,
            "{name}"
        );
    }
    let text = "diff --git a/x b/x\nrename from x\nrename to ../y\n";
    assert_eq!(parse(text.as_bytes()).unwrap_err().code, Code::PathEscapesRoot);
    let text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/./x\n+++ b/./x\n@@ -1 +1 @@\n-a\n+b\n";
    assert_eq!(reason(&parse(text.as_bytes()).unwrap_err()).1, "file_twice");
}
