//! The ignore rules of git, computed by us: which untracked entries would `git add -A` leave out?
//!
//! It parses the `.gitignore` files of one commit and judges paths; it does *not* walk directories, and it does
//! not know which paths are tracked (a tracked path is never ignored: that is the walker's rule). Excludes that
//! are not part of a commit (`info/exclude`, a person's own file) play no part.

use crate::glob::{Matcher, Slash};
use crate::path::RelPath;
use std::collections::BTreeMap;

/// Says what kind of entry is judged; some patterns match directories alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory itself, never a link to one.
    Directory,
    /// Anything else.
    Other,
}

/// Holds the ignore rules of a tree: one list of patterns for each directory that has a `.gitignore`.
///
/// # Source
/// gitignore(5); the order of git's `dir.c`: the deepest file first, in a file the last pattern first.
#[derive(Clone, Debug, Default)]
pub struct Ignore {
    files: BTreeMap<RelPath, Vec<Pattern>>,
}

impl Ignore {
    /// Starts without any rule.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the text of the `.gitignore` that lies in a directory.
    pub fn add(&mut self, directory: RelPath, text: &[u8]) {
        self.files.insert(directory, parse(text));
    }

    /// Judges one entry by itself, taking it that no directory above it is ignored.
    #[must_use]
    pub fn matches(&self, path: &RelPath, kind: EntryKind) -> bool {
        let Some((mut directory, name)) = path.split_last() else {
            return false;
        };
        loop {
            if let Some(patterns) = self.files.get(&directory) {
                let below = directory.as_bytes().len() + usize::from(!directory.is_root());
                let rest = &path.as_bytes()[below..];
                let hit = patterns.iter().rev().find(|p| p.hits(rest, name, kind));
                if let Some(pattern) = hit {
                    return !pattern.negative;
                }
            }
            match directory.split_last() {
                Some((parent, _)) => directory = parent,
                None => return false,
            }
        }
    }

    /// Judges an entry together with the directories above it: below an ignored directory all is ignored, and no
    /// pattern takes anything back.
    #[must_use]
    pub fn ignored(&self, path: &RelPath, kind: EntryKind) -> bool {
        let (mut at, mut kind) = (path.clone(), kind);
        loop {
            if self.matches(&at, kind) {
                return true;
            }
            match at.split_last() {
                Some((parent, _)) => (at, kind) = (parent, EntryKind::Directory),
                None => return false,
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Pattern {
    negative: bool,
    directories_only: bool,
    /// The pattern holds a slash, so that it is matched against the path below its file, not against a name.
    anchored: bool,
    glob: Matcher,
}

impl Pattern {
    fn hits(&self, path: &[u8], name: &[u8], kind: EntryKind) -> bool {
        if self.directories_only && kind != EntryKind::Directory {
            return false;
        }
        let text = if self.anchored { path } else { name };
        self.glob.matches(text)
    }
}

fn parse(text: &[u8]) -> Vec<Pattern> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.split(|b| *b == b'\n').filter_map(line).collect()
}

/// Parses one line; `None` where it can match nothing.
fn line(line: &[u8]) -> Option<Pattern> {
    if line.first() == Some(&b'#') {
        return None;
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // Git reads lines as C strings: whatever follows a NUL byte does not exist.
    let line = line.split(|b| *b == 0).next().unwrap_or(line);
    let mut body = without_trailing_spaces(line);
    let negative = body.first() == Some(&b'!');
    if negative {
        body = &body[1..];
    }
    let directories_only = body.last() == Some(&b'/');
    if directories_only {
        body = &body[..body.len() - 1];
    }
    let anchored = body.contains(&b'/');
    if anchored {
        body = body.strip_prefix(b"/").unwrap_or(body);
    }
    let slash = if anchored { Slash::Divides } else { Slash::Plain };
    let glob = Matcher::compile(body, slash)?;
    (!glob.is_empty()).then_some(Pattern {
        negative,
        directories_only,
        anchored,
        glob,
    })
}

fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut end = 0;
    let mut at = 0;
    while at < line.len() {
        match line[at] {
            b' ' => at += 1,
            b'\\' if at + 1 == line.len() => return line,
            b'\\' => {
                at += 2;
                end = at;
            }
            _ => {
                at += 1;
                end = at;
            }
        }
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn rules(files: &[(&str, &str)]) -> Ignore {
        let mut ignore = Ignore::new();
        for (directory, text) in files {
            ignore.add(path(directory), text.as_bytes());
        }
        ignore
    }

    #[test]
    fn patterns_mean_what_the_manual_says() {
        use EntryKind::{Directory, Other};
        for (pattern, name, kind, ignored) in [
            ("*.o", "a/b.o", Other, true),
            ("*.o", "a/b.oo", Other, false),
            ("/a.o", "a.o", Other, true),
            ("/a.o", "b/a.o", Other, false),
            ("build/", "x/build", Directory, true),
            ("build/", "build", Other, false),
            ("build/", "build/x/y", Other, true),
            ("doc/*.txt", "doc/a.txt", Other, true),
            ("doc/*.txt", "doc/a/b.txt", Other, false),
            ("doc/*.txt", "x/doc/a.txt", Other, false),
            ("**/foo", "foo", Other, true),
            ("**/foo", "a/b/foo", Other, true),
            ("a/**/b", "a/b", Other, true),
            ("a/**/b", "a/x/y/b", Other, true),
            ("a/**/b", "ab", Other, false),
            ("abc/**", "abc/x/y", Other, true),
            ("abc/**", "abc", Directory, false),
            ("foo**/bar", "foox/bar", Other, true),
            ("foo**/bar", "foo/x/bar", Other, false),
            ("\\#x", "#x", Other, true),
            ("#x", "#x", Other, false),
            ("\\!x", "!x", Other, true),
            ("x\\ ", "x ", Other, true),
            ("x  ", "x", Other, true),
            ("x\r", "x", Other, true),
            ("a[b-d]e", "ace", Other, true),
            ("a[!b-d]e", "ace", Other, false),
            ("a[]-]e", "a]e", Other, true),
            ("a[]-]e", "a-e", Other, true),
            ("a[[:digit:]x]", "a7", Other, true),
            ("a[[:nope:]]", "an", Other, false),
            ("a[b", "a[b", Other, false),
            ("x\\", "x\\", Other, false),
            ("a?c", "abc", Other, true),
            ("a/?c", "a/bc", Other, true),
            ("a/?/c", "a///c", Other, false),
            ("*", "anything", Directory, true),
            ("", "a", Other, false),
            ("/", "a", Directory, false),
        ] {
            let ignore = rules(&[("", pattern)]);
            assert_eq!(ignore.ignored(&path(name), kind), ignored, "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn the_last_and_the_deepest_pattern_wins_but_not_below_an_ignored_directory() {
        let ignore = rules(&[
            ("", "*.log\n!keep.log\nout/\n!out/keep\n"),
            ("sub", "!*.log\n/only\n"),
        ]);
        let seen = |p: &str| ignore.ignored(&path(p), EntryKind::Other);
        assert!(seen("a.log") && !seen("keep.log"));
        assert!(!seen("sub/a.log"));
        assert!(seen("out/keep"));
        assert!(seen("sub/only") && !seen("sub/x/only"));
        assert!(!rules(&[("", "\u{feff}*.a")]).ignored(&path("b"), EntryKind::Other));
        assert!(rules(&[("", "\u{feff}*.a")]).ignored(&path("b.a"), EntryKind::Other));
    }

    #[test]
    fn a_hostile_pattern_costs_no_more_than_its_size() {
        let pattern = "*a".repeat(500) + "b";
        let name = "a".repeat(250);
        assert!(!rules(&[("", &pattern)]).ignored(&path(&name), EntryKind::Other));
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in proptest::collection::vec(any::<u8>(), 0..60), name in "[a-c/]{1,8}") {
            let mut ignore = Ignore::new();
            ignore.add(RelPath::root(), &text);
            if let Ok(path) = RelPath::parse(name.as_bytes()) {
                let once = ignore.ignored(&path, EntryKind::Other);
                prop_assert_eq!(once, ignore.ignored(&path, EntryKind::Other));
            }
        }
    }
}
