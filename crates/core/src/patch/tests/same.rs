//! When two patches are the same call.

use super::begin;
use crate::canonical::to_canonical;
use crate::patch::parse;
use serde_json::json;

fn form(text: &str) -> String {
    String::from_utf8(to_canonical(&parse(text.as_bytes()).unwrap().canonical())).unwrap()
}

#[test]
fn the_form_shows_all_that_is_said() {
    let text = "*** Update File: a\n*** Move to: b\n@@ f\n x\n-y\n+b64:\n*** End of File\n*** Add File: c\n+z\n\
                *** Delete File: ./d\n";
    let expected = json!([
        {"op": "update", "path": "a", "move_to": "b", "hunks": [
            {"headers": ["f"], "lines": ["  x", "- y", "+ b64:YjY0Og=="], "anchor": "end_of_file"},
        ]},
        {"op": "add", "path": "c", "content": "z\n"},
        {"op": "delete", "path": "d"},
    ]);
    assert_eq!(parse(begin(text).as_bytes()).unwrap().canonical(), expected);
    let text = "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n--- a/a\n+++ b/a\n@@ -3 +3 @@\n-x\n+y\n\
                \\ No newline at end of file\n--- a/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-z\n\
                diff --git a/c b/c\nnew file mode 100755\n";
    let expected = json!([
        {"op": "update", "path": "a", "mode": "executable", "hunks": [
            {"stated": 2, "lines": ["- x", "+\\y"], "anchor": "end_of_file"},
        ]},
        {"op": "delete", "path": "b", "content": "z\n"},
        {"op": "add", "path": "c", "content": "", "mode": "executable"},
    ]);
    assert_eq!(parse(text.as_bytes()).unwrap().canonical(), expected);
}

#[test]
fn spellings_that_mean_the_same_have_one_form() {
    let first = begin("*** Update File: a/b\n@@ f\n x\n-y\n+z\n*** Delete File: c\n*** Add File: d\n+\n");
    for same in [
        format!("apply_patch <<'EOF'\n{first}EOF\n"),
        first.replace('\n', "\r\n"),
        begin(
            "*** Delete File:  c \n*** Add File: ./d\n+\n\n*** Update File: a/x/../b\n@@  f\n x\n+z\n-y\n\n",
        ),
    ] {
        assert_eq!(form(&same), form(&first), "{same}");
    }
    let diff =
        "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@ fn f() {\n x\n-y\n+z\n";
    for same in [
        "--- f\t2024\n+++ f\t2025\n@@ -1,2 +9,2 @@\n x\n+z\n-y\n",
        "```diff\n\n--- \"a/./f\"\n+++ b/./f\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n\n```\n",
    ] {
        assert_eq!(form(same), form(diff), "{same}");
    }
    let added = begin("*** Add File: f\n+x\n");
    let created = "diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n";
    assert_eq!(form(&added), form(created));
}

#[test]
fn what_means_something_else_has_another_form() {
    let one = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n";
    let texts = [
        one.to_owned(),
        one.replace("-1,2", "-2,2"),
        one.replace("+z", "+z "),
        one.replace("+z", "+z\n\\ No newline at end of file"),
        one.replace("/f", "/g"),
        begin("*** Update File: f\n x\n-y\n+z\n"),
        begin("*** Update File: f\n@@ h\n x\n-y\n+z\n"),
        begin("*** Update File: f\n x\n-y\n+z\n*** End of File\n"),
        begin("*** Update File: f\n*** Move to: g\n x\n-y\n+z\n"),
        begin("*** Update File: f\n-x\n-y\n+z\n"),
        begin("*** Update File: f\n@@\n x\n-y\n@@\n+z\n"),
        begin("*** Delete File: f\n"),
        begin("*** Add File: f\n"),
        "diff --git a/f b/f\nnew file mode 100755\n".to_owned(),
        "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n".to_owned(),
    ];
    let mut forms: Vec<String> = texts.iter().map(|text| form(text)).collect();
    forms.sort();
    forms.dedup();
    assert_eq!(forms.len(), texts.len());
}
