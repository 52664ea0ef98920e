//! Patches that real tools write, read and applied by the room of core: they make the second tree of the first.

use crate::harness::git_bytes;
use semel_core::patch::{Mode, Operation, apply, parse};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Is a file of a tree: its content, and whether it is a program.
type File = (Vec<u8>, Mode);
type Tree = BTreeMap<String, File>;

/// Gives numbers that look random and are the same on every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % most
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Few different lines, so that places are there twice; some texts have no last line feed.
    fn text(&mut self) -> Vec<u8> {
        let lines: &[&[u8]] = &[
            b"a",
            b"b",
            b"c",
            b"",
            b"  a",
            b"a ",
            b"a\r",
            b"-- a",
            b"++ b",
            b"@@ -1 +1 @@",
            b"\\ a",
            b"\xff\xfe",
        ];
        let count = self.below(30);
        let mut text = Vec::new();
        for _ in 0..count {
            text.extend(self.pick(lines));
            text.push(b'\n');
        }
        if self.below(4) == 0 {
            text.pop();
        }
        text
    }

    /// Another text that has most lines of the first.
    fn edited(&mut self, text: &[u8]) -> Vec<u8> {
        let mut lines: Vec<Vec<u8>> = text
            .split_inclusive(|b| *b == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        for _ in 0..1 + self.below(4) {
            let at = self.below(lines.len() + 1);
            match self.below(3) {
                0 => lines.insert(at, b"new\n".to_vec()),
                1 if at < lines.len() => drop(lines.remove(at)),
                _ => lines.insert(at, b"a\n".to_vec()),
            }
        }
        // A line in the middle needs its line feed; the last one may lack it.
        let last = lines.len().saturating_sub(1);
        for line in lines.iter_mut().take(last).filter(|line| !line.ends_with(b"\n")) {
            line.push(b'\n');
        }
        lines.concat()
    }
}

fn first_tree(dice: &mut Dice) -> Tree {
    let names = [
        "f",
        "dir/g",
        "dir/sub/h",
        "sp ace",
        "\u{e4}\u{fc}",
        "q\"u\\o",
        "t\tab",
        "a/b",
        "b/a",
        "x y x",
    ];
    let mut tree = Tree::new();
    for name in names {
        for number in 0..3 {
            let mode = if dice.below(4) == 0 {
                Mode::Executable
            } else {
                Mode::Regular
            };
            tree.insert(format!("{name}{number}"), (dice.text(), mode));
        }
    }
    tree
}

fn second_tree(dice: &mut Dice, first: &Tree) -> Tree {
    let mut tree = Tree::new();
    for (name, (content, mode)) in first {
        let other = match mode {
            Mode::Regular => Mode::Executable,
            Mode::Executable => Mode::Regular,
        };
        match dice.below(8) {
            0 => {}
            1 => drop(tree.insert(name.clone(), (content.clone(), other))),
            2 => drop(tree.insert(name.clone(), (dice.edited(content), other))),
            3 => drop(tree.insert(format!("{name}.moved"), (dice.edited(content), *mode))),
            4 => drop(tree.insert(name.clone(), (content.clone(), *mode))),
            5 => drop(tree.insert(name.clone(), (dice.text(), *mode))),
            _ => drop(tree.insert(name.clone(), (dice.edited(content), *mode))),
        }
    }
    tree.insert("new/file".to_owned(), (dice.text(), Mode::Regular));
    tree.insert("empty".to_owned(), (Vec::new(), Mode::Executable));
    tree
}

fn write(tree: &Tree, dir: &Path) {
    for (name, (content, mode)) in tree {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        let bits = match mode {
            Mode::Regular => 0o644,
            Mode::Executable => 0o755,
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
    }
}

/// Applies a patch as the engine has to, on a tree that is a map.
fn patched(patch: &[u8], first: &Tree) -> Tree {
    let shown = || String::from_utf8_lossy(patch).into_owned();
    let operations = parse(patch).unwrap_or_else(|r| panic!("{r:?} of\n{}", shown()));
    let mut tree = first.clone();
    for operation in operations.into_operations() {
        let name = operation.path().as_utf8().unwrap().to_owned();
        match operation {
            Operation::Add { content, mode, .. } => {
                assert!(tree.insert(name.clone(), (content, mode)).is_none(), "{name}");
            }
            Operation::Delete { content, .. } => {
                let (was, _) = tree.remove(&name).unwrap();
                assert_eq!(content.unwrap_or_default(), was, "{name}");
            }
            Operation::Update {
                move_to, hunks, mode, ..
            } => {
                let (content, old_mode) = tree.remove(&name).unwrap();
                let applied =
                    apply(&hunks, &content).unwrap_or_else(|r| panic!("{r:?} of {name}\n{}", shown()));
                assert_eq!(applied.inexact().count(), 0, "{name}: {:?}", applied.places);
                let name = move_to.map_or(name, |path| path.as_utf8().unwrap().to_owned());
                assert!(
                    tree.insert(name.clone(), (applied.content, mode.unwrap_or(old_mode)))
                        .is_none(),
                    "{name}"
                );
            }
        }
    }
    tree
}

#[test]
fn what_git_writes_makes_the_second_tree_of_the_first() {
    let mut dice = Dice(0x5e_3e_10);
    for round in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let first = first_tree(&mut dice);
        let second = second_tree(&mut dice, &first);
        git_bytes(dir.path(), &["init", "-q"]);
        write(&first, dir.path());
        git_bytes(dir.path(), &["add", "-A"]);
        git_bytes(dir.path(), &["commit", "-q", "-m", "first"]);
        for name in first.keys() {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        write(&second, dir.path());
        git_bytes(dir.path(), &["add", "-A"]);
        let ways: &[&[&str]] = &[
            &["diff", "--cached", "-M"],
            &["diff", "--cached", "--no-renames", "-U1"],
            &["diff", "--cached", "-M", "--no-prefix", "-U8"],
            &["-c", "diff.mnemonicPrefix=true", "diff", "--cached", "-M30%"],
            &[
                "-c",
                "core.quotePath=false",
                "diff",
                "--cached",
                "--full-index",
                "--patience",
            ],
            &[
                "diff",
                "--cached",
                "--diff-algorithm=histogram",
                "--inter-hunk-context=5",
            ],
        ];
        for way in ways {
            let patch = git_bytes(dir.path(), way);
            assert!(patch.len() > 500, "{way:?}");
            assert_eq!(patched(&patch, &first), second, "round {round}, git {way:?}");
            let reversed = git_bytes(dir.path(), &[way, &["-R"][..]].concat());
            assert_eq!(
                patched(&reversed, &second),
                first,
                "round {round}, git {way:?} -R"
            );
        }
    }
}

#[test]
fn what_diff_writes_makes_the_second_text_of_the_first() {
    if Command::new("diff").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no diff here");
        return;
    }
    let mut dice = Dice(0x0_d1ff);
    let dir = tempfile::tempdir().unwrap();
    let mut differed = 0;
    for _ in 0..60 {
        let before = dice.text();
        let after = if dice.below(2) == 0 {
            dice.text()
        } else {
            dice.edited(&before)
        };
        std::fs::write(dir.path().join("old"), &before).unwrap();
        std::fs::write(dir.path().join("new"), &after).unwrap();
        let out = Command::new("diff")
            .args(["-a", "-u", "--label", "a/f", "--label", "b/f", "old", "new"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        if before == after {
            continue;
        }
        differed += 1;
        let tree = |content: &[u8]| Tree::from([("f".to_owned(), (content.to_vec(), Mode::Regular))]);
        assert_eq!(patched(&out.stdout, &tree(&before)), tree(&after));
    }
    assert!(differed > 40, "{differed}");
}
