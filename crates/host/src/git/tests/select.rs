//! What a seal packs, against what real git stages.

use super::*;
use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};
use semel_core::RelPath;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

/// A small generator of numbers: the same seed gives the same trees.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}

const NAMES: &[&str] = &[
    "a", "b", "ab", "a.o", "b.o", "x y", "é", "[a]", "#c", "build", "!d", "a\\b", "z-",
];
const PATTERNS: &[&str] = &[
    "*.o",
    "/a",
    "a/",
    "build/",
    "!a.o",
    "!b",
    "**/b",
    "a/**",
    "a/**/b",
    "**",
    "*",
    "!*/",
    "[ab]",
    "[!a]*",
    "[a-z]/",
    "x\\ y",
    "x y",
    "\\#c",
    "#c",
    "\\!d",
    "!\\!d",
    "a?o",
    "*b*",
    "/*/b",
    "a/*",
    "[[:alpha:]]",
    "*[.]o",
    "é",
    "\\[a\\]",
    "a\\\\b",
    "[a-]*",
    "z[-]",
    "?",
    "??",
    "*.*",
    "/**/a",
    "**/",
    "a/b/",
    "!a/b",
    "b.o ",
    "ab\\",
    "[",
    "[]a]",
    "build/**",
    "!build/a",
    "/build/*",
    "!/build/a",
    "[[:x:]]",
    "***",
    "a***",
    "*a",
    "[\\[]*",
    "é/",
    "ab*/",
];

/// Builds a random tree with ignore files, commits a part of it, then changes it; gives the base commit.
fn build(lab: &Lab, dice: &mut Dice) -> String {
    let mut dirs = vec!["r".to_owned()];
    for _ in 0..dice.roll(6) {
        let parent = dirs[dice.roll(dirs.len())].clone();
        let dir = format!("{parent}/{}", dice.pick(NAMES));
        if std::fs::create_dir(lab.path(&dir)).is_ok() {
            dirs.push(dir);
        }
    }
    let fill = |lab: &Lab, dice: &mut Dice, dirs: &[String], how_many: usize| {
        for _ in 0..how_many {
            let file = format!("{}/{}", dirs[dice.roll(dirs.len())], dice.pick(NAMES));
            if std::fs::symlink_metadata(lab.path(&file)).is_ok() {
                continue;
            }
            match dice.roll(8) {
                0 => std::os::unix::fs::symlink("a", lab.path(&file)).unwrap(),
                1 => executable(&lab.path(&file), "run\n"),
                _ => lab.write(&file, file.as_bytes()),
            }
        }
    };
    fill(lab, dice, &dirs, 8);
    for dir in &dirs {
        if dice.roll(3) > 0 {
            continue;
        }
        let lines: Vec<&str> = (0..dice.roll(4)).map(|_| dice.pick(PATTERNS)).collect();
        lab.write(&format!("{dir}/.gitignore"), lines.join("\n"));
    }
    let lines: Vec<&str> = (0..dice.roll(5)).map(|_| dice.pick(PATTERNS)).collect();
    lab.write("r/.gitignore", lines.join("\n") + "\n");
    // Some ignored files are tracked all the same.
    lab.sh("r", &["add", "-A"]);
    for dir in &dirs {
        if dice.roll(2) == 0 {
            let name = format!("{dir}/{}", dice.pick(NAMES));
            if lab.path(&name).is_file() {
                lab.sh("r", &["add", "-f", "--", &format!(":(literal){}", &name[2..])]);
            }
        }
    }
    for ignore in ignore_files(lab) {
        lab.sh("r", &["add", "-f", "--", &ignore]);
    }
    lab.sh("r", &["commit", "-q", "--allow-empty", "-m", "base"]);
    fill(lab, dice, &dirs, 8);
    if dice.roll(3) == 0
        && let Some(dir) = dirs.pop().filter(|_| !dirs.is_empty())
    {
        // A directory becomes a file: what was tracked below it is gone.
        let path = lab.path(&dir);
        let aside = lab.path("aside");
        std::fs::rename(&path, aside).unwrap();
        lab.write(&dir, "now a file");
    }
    lab.sh("r", &["rev-parse", "HEAD"])
}

fn ignore_files(lab: &Lab) -> Vec<String> {
    let mut todo = vec![lab.path("r")];
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() && !path.ends_with(".git") {
                todo.push(path);
            } else if path.ends_with(".gitignore") {
                let relative = path.strip_prefix(lab.path("r")).unwrap();
                found.push(format!(":(literal){}", relative.to_str().unwrap()));
            }
        }
    }
    found
}

fn staged(lab: &Lab) -> BTreeSet<Vec<u8>> {
    let listed = lab.try_sh("r", &["ls-files", "-z"]).stdout;
    listed
        .split(|b| *b == 0)
        .filter(|p| !p.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

#[test]
fn it_packs_what_git_add_would() {
    let mut compared = 0;
    for git in gits() {
        for seed in 1..=40_u64 {
            let lab = Lab::new(&git);
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let base = build(&lab, &mut dice);
            let repo = Repository::open(&git, &lab.path("r"), &cancel()).unwrap();
            let tree = repo.read_commit(&repo.parse_id(&base).unwrap()).unwrap().tree;
            let leaves = repo.list_tree(&tree).unwrap();
            let ignore = repo.ignore_rules(&leaves).unwrap();
            let tracked: BTreeSet<RelPath> = leaves.iter().map(|l| l.path.clone()).collect();
            let dir = worktree::open_dir(&lab.path("r")).unwrap();
            let found = select(dir.as_fd(), &tracked, &ignore).unwrap();
            let ours: BTreeSet<Vec<u8>> = found.chosen.iter().map(|p| p.as_bytes().to_vec()).collect();
            let id = tree_of(dir.as_fd(), repo.format(), &found.chosen).unwrap();

            // Where the tree changed its ignore files, git would follow the new ones; this draft did not.
            lab.sh("r", &["add", "-A"]);
            let theirs = staged(&lab);
            let show = |set: &BTreeSet<Vec<u8>>| -> Vec<String> {
                set.iter()
                    .map(|p| String::from_utf8_lossy(p).into_owned())
                    .collect()
            };
            assert_eq!(show(&ours), show(&theirs), "git {} seed {seed}", git.version());
            assert_eq!(id.to_string(), lab.sh("r", &["write-tree"]), "seed {seed}");
            compared += theirs.len();
        }
    }
    assert!(
        compared > 300,
        "the trees were too small to say anything: {compared}"
    );
}

/// Names and one pattern, judged by `git check-ignore` and by us.
#[test]
fn patterns_are_judged_as_git_does() {
    const PIECES: &[&str] = &[
        "a",
        "b",
        "-",
        "*",
        "**",
        "?",
        "/",
        "/**/",
        "[ab]",
        "[!a]",
        "[a-c]",
        "[^-a]",
        "[]]",
        "[[:digit:]]",
        "\\*",
        "\\a",
        "[",
        ".",
        "]",
        "!",
        " ",
        "\\ ",
        "[a\\]b]",
        "[b-a]",
        "[--0]",
        "[a-]",
    ];
    const CHARS: &[&str] = &["a", "b", "c", "-", "*", "/", ".", "1", "]", "["];
    let mut judged = 0;
    for git in gits() {
        let lab = Lab::new(&git);
        let mut dice = Dice(77);
        for round in 0..120 {
            let mut pattern = String::new();
            for _ in 0..=dice.roll(5) {
                pattern.push_str(dice.pick(PIECES));
            }
            // Older gits let `text**/` cross slashes by mistake; it is not compared.
            let older = pattern
                .match_indices("**")
                .any(|(at, _)| at > 0 && !pattern[..at].ends_with('/'));
            if older && pattern.contains('/') {
                continue;
            }
            lab.write("r/.gitignore", format!("{pattern}\n"));
            let names = names(&mut dice, CHARS);
            let theirs = checked(&lab, &names);
            let mut ignore = semel_core::ignore::Ignore::new();
            ignore.add(RelPath::root(), pattern.as_bytes());
            for name in &names {
                let ours = ignore.ignored(name, semel_core::ignore::EntryKind::Other);
                let git_says = theirs.contains(name);
                assert_eq!(
                    ours,
                    git_says,
                    "round {round}: {pattern:?} on {name} by {}",
                    git.version()
                );
                judged += 1;
            }
        }
    }
    assert!(judged > 1000, "{judged}");
}

fn names(dice: &mut Dice, chars: &[&str]) -> BTreeSet<RelPath> {
    let mut names = BTreeSet::new();
    for _ in 0..40 {
        let text: String = (0..=dice.roll(6)).map(|_| dice.pick(chars)).collect();
        if let Ok(path) = RelPath::parse(text.as_bytes())
            && !path.is_root()
            && path.as_bytes() == text.as_bytes()
        {
            names.insert(path);
        }
    }
    names
}

/// Asks git which of these names its ignore files name.
fn checked(lab: &Lab, names: &BTreeSet<RelPath>) -> BTreeSet<RelPath> {
    let mut stdin = Vec::new();
    for name in names {
        stdin.extend_from_slice(name.as_bytes());
        stdin.push(0);
    }
    let mut child = lab
        .command("r", &["check-ignore", "--no-index", "-z", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&stdin).unwrap();
    let said = child.wait_with_output().unwrap().stdout;
    let listed = said.split(|b| *b == 0).filter(|p| !p.is_empty());
    listed.map(|p| RelPath::parse(p).unwrap()).collect()
}

fn plain(dir: &Path, tracked: &[&str], ignore: &str) -> Result<Selection> {
    let mut rules = semel_core::ignore::Ignore::new();
    rules.add(RelPath::root(), ignore.as_bytes());
    let tracked = tracked
        .iter()
        .map(|p| RelPath::parse(p.as_bytes()).unwrap())
        .collect();
    let dir = worktree::open_dir(dir).unwrap();
    select(dir.as_fd(), &tracked, &rules)
}

#[test]
fn what_stays_is_listed_and_what_cannot_be_sealed_is_refused() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    for dir in [".git", "empty/inner", ".venv/lib", "kept"] {
        std::fs::create_dir_all(at(dir)).unwrap();
    }
    for file in [".venv/lib/x", "kept/t.o", "kept/u.o", "src"] {
        std::fs::write(at(file), "x").unwrap();
    }
    let odd = OsString::from_vec(b"n\xff".to_vec());
    std::fs::write(lab.path().join(odd), "x").unwrap();
    let found = plain(lab.path(), &["kept/t.o"], ".venv/\n*.o\n").unwrap();
    let chosen: Vec<String> = found.chosen.iter().map(ToString::to_string).collect();
    assert_eq!(chosen, ["kept/t.o", "n\\xff", "src"]);
    let left: Vec<(String, Why)> = found
        .left_out
        .iter()
        .map(|l| (l.path.to_string(), l.why))
        .collect();
    let expected = [
        (".git", Why::GitDir),
        (".venv", Why::Ignored),
        ("empty/inner", Why::EmptyDirectory),
        ("kept/u.o", Why::Ignored),
    ];
    let expected: Vec<(String, Why)> = expected.map(|(p, w)| (p.to_owned(), w)).into();
    assert_eq!(left, expected);

    // Ignored things are never looked into.
    std::fs::create_dir_all(at(".venv/src/x/.git")).unwrap();
    mknodat(CWD, at("pipe.o"), FileType::Fifo, FileMode::RWXU, 0).unwrap();
    assert_eq!(plain(lab.path(), &[], ".venv/\n*.o\n").unwrap().chosen.len(), 2);
    let refused = plain(lab.path(), &["pipe.o"], ".venv/\n*.o\n").unwrap_err();
    assert_eq!(refused.code(), Code::ProposalRefused);
    let refused = plain(lab.path(), &[], "*.o\n").unwrap_err();
    assert_eq!(refused.code(), Code::ProposalRefused, "a nested repository");
    std::fs::remove_file(at("pipe.o")).unwrap();
    std::os::unix::net::UnixListener::bind(at("sock")).unwrap();
    let refused = plain(lab.path(), &[], ".venv/\n").unwrap_err().into_refusal();
    assert_eq!(
        (refused.code, refused.names),
        (Code::ProposalRefused, vec!["sock".to_owned()])
    );
}
