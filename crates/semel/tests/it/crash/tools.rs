//! Every mutating tool as a case: what stands before, what is asked for, what stands after, what is kept in `trash/`.
//!
//! What stands after is said by plain file operations of the test, not by what the gateway did.

use super::tree::{chmod, make, put};
use serde_json::{Value, json};
use std::path::Path;

/// One call of a mutating tool in a directory of its own.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) tool: &'static str,
    /// Puts down what stands there before.
    pub(crate) before: fn(&Path),
    /// Gives the arguments for a directory of this name.
    pub(crate) arguments: fn(&str) -> Value,
    /// Does to what stands there what the call does.
    pub(crate) effect: fn(&Path),
    /// What of the tree before goes to `trash/`.
    pub(crate) kept: &'static [&'static str],
}

fn nothing(_: &Path) {}

fn patched_before(dir: &Path) {
    put(&dir.join("u"), "one\ntwo\nthree\n", 0o640);
    put(&dir.join("v"), "before\n", 0o600);
    put(&dir.join("m"), "moved\n", 0o644);
    put(&dir.join("gone"), "gone\n", 0o644);
}

fn patch_of(dir: &str) -> Value {
    let patch = format!(
        "*** Begin Patch\n\
         *** Add File: {dir}/new/deep/a\n+a\n\
         *** Add File: {dir}/new/b\n+b\n\
         *** Update File: {dir}/u\n@@\n one\n-two\n+2\n three\n\
         *** Update File: {dir}/v\n*** Move to: {dir}/new/v\n@@\n-before\n+after\n\
         *** Update File: {dir}/m\n*** Move to: {dir}/m2\n\
         *** Delete File: {dir}/gone\n\
         *** End Patch\n"
    );
    json!({"patch": patch})
}

fn patched(dir: &Path) {
    make(&dir.join("new"), 0o755);
    make(&dir.join("new/deep"), 0o755);
    put(&dir.join("new/deep/a"), "a\n", 0o644);
    put(&dir.join("new/b"), "b\n", 0o644);
    put(&dir.join("u"), "one\n2\nthree\n", 0o640);
    put(&dir.join("new/v"), "after\n", 0o600);
    std::fs::remove_file(dir.join("v")).unwrap();
    std::fs::rename(dir.join("m"), dir.join("m2")).unwrap();
    std::fs::remove_file(dir.join("gone")).unwrap();
}

fn full_directory(dir: &Path) {
    make(&dir.join("d"), 0o750);
    make(&dir.join("d/e"), 0o755);
    put(&dir.join("d/e/f"), "deep", 0o600);
    std::os::unix::fs::symlink("e/f", dir.join("d/link")).unwrap();
}

const WRITES: &[Case] = &[
    Case {
        name: "write_file new",
        tool: "write_file",
        before: nothing,
        arguments: |dir| json!({"path": format!("{dir}/f"), "content": "after"}),
        effect: |dir| put(&dir.join("f"), "after", 0o644),
        kept: &[],
    },
    Case {
        name: "write_file replace",
        tool: "write_file",
        before: |dir| put(&dir.join("f"), "before", 0o640),
        arguments: |dir| json!({"path": format!("{dir}/f"), "content": "after"}),
        effect: |dir| put(&dir.join("f"), "after", 0o640),
        kept: &["f"],
    },
    Case {
        name: "edit_file",
        tool: "edit_file",
        before: |dir| put(&dir.join("f"), "one\nbefore\n", 0o755),
        arguments: |dir| json!({"path": format!("{dir}/f"), "old_string": "before", "new_string": "after"}),
        effect: |dir| put(&dir.join("f"), "one\nafter\n", 0o755),
        kept: &["f"],
    },
    Case {
        name: "apply_patch",
        tool: "apply_patch",
        before: patched_before,
        arguments: patch_of,
        effect: patched,
        kept: &["u", "v", "gone"],
    },
    Case {
        name: "create_directory",
        tool: "create_directory",
        before: nothing,
        arguments: |dir| json!({"path": format!("{dir}/a/b/c")}),
        effect: |dir| {
            for path in ["a", "a/b", "a/b/c"] {
                make(&dir.join(path), 0o755);
            }
        },
        kept: &[],
    },
    Case {
        name: "set_mode",
        tool: "set_mode",
        before: |dir| put(&dir.join("f"), "same", 0o644),
        arguments: |dir| json!({"path": format!("{dir}/f"), "mode": "0750"}),
        effect: |dir| chmod(&dir.join("f"), 0o750),
        kept: &[],
    },
];

const MOVES: &[Case] = &[
    Case {
        name: "delete_file",
        tool: "delete_file",
        before: |dir| put(&dir.join("f"), "before", 0o640),
        arguments: |dir| json!({"path": format!("{dir}/f")}),
        effect: |dir| std::fs::remove_file(dir.join("f")).unwrap(),
        kept: &["f"],
    },
    Case {
        name: "delete_file of a link",
        tool: "delete_file",
        before: |dir| std::os::unix::fs::symlink("nowhere", dir.join("l")).unwrap(),
        arguments: |dir| json!({"path": format!("{dir}/l")}),
        effect: |dir| std::fs::remove_file(dir.join("l")).unwrap(),
        kept: &["l"],
    },
    Case {
        name: "delete_directory empty",
        tool: "delete_directory",
        before: |dir| make(&dir.join("d"), 0o750),
        arguments: |dir| json!({"path": format!("{dir}/d")}),
        effect: |dir| std::fs::remove_dir(dir.join("d")).unwrap(),
        kept: &[],
    },
    Case {
        name: "delete_directory recursive",
        tool: "delete_directory",
        before: full_directory,
        arguments: |dir| json!({"path": format!("{dir}/d"), "recursive": true}),
        effect: |dir| std::fs::remove_dir_all(dir.join("d")).unwrap(),
        kept: &["d"],
    },
    Case {
        name: "move_file",
        tool: "move_file",
        before: |dir| {
            put(&dir.join("f"), "moved", 0o600);
            make(&dir.join("to"), 0o755);
        },
        arguments: |dir| json!({"source": format!("{dir}/f"), "destination": format!("{dir}/to/g")}),
        effect: |dir| std::fs::rename(dir.join("f"), dir.join("to/g")).unwrap(),
        kept: &[],
    },
    Case {
        name: "move_file overwriting",
        tool: "move_file",
        before: |dir| {
            put(&dir.join("f"), "moved", 0o600);
            put(&dir.join("g"), "overwritten", 0o644);
        },
        arguments: |dir| {
            let (from, to) = (format!("{dir}/f"), format!("{dir}/g"));
            json!({"source": from, "destination": to, "overwrite": true})
        },
        effect: |dir| std::fs::rename(dir.join("f"), dir.join("g")).unwrap(),
        kept: &["g"],
    },
    Case {
        name: "move_file of a directory",
        tool: "move_file",
        before: full_directory,
        arguments: |dir| json!({"source": format!("{dir}/d"), "destination": format!("{dir}/e")}),
        effect: |dir| std::fs::rename(dir.join("d"), dir.join("e")).unwrap(),
        kept: &[],
    },
];

/// Gives every case.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    WRITES.iter().chain(MOVES)
}

/// Finds a case by its name.
pub(crate) fn named(name: &str) -> &'static Case {
    all().find(|case| case.name == name).unwrap()
}
