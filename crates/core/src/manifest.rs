//! The manifest of a proposal: every entry, and the rules that make an archive unambiguous.
//!
//! It is plain data. It reads no archive and no directory: `host` does, and asks here whether what it found may
//! be held.

use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::path::{RelPath, ignorable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use unicode_normalization::UnicodeNormalization as _;

/// Says which of the two modes a sealed file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileMode {
    /// `0644`
    #[serde(rename = "644")]
    Plain,
    /// `0755`
    #[serde(rename = "755")]
    Executable,
}

impl FileMode {
    /// Takes the mode of a file: executable if its owner may execute it.
    #[must_use]
    pub const fn of(mode: u32) -> Self {
        if mode & 0o100 == 0 {
            Self::Plain
        } else {
            Self::Executable
        }
    }

    /// Gives the permission bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Plain => 0o644,
            Self::Executable => 0o755,
        }
    }
}

/// Describes one entry of a proposal.
///
/// # Shape
/// `{"kind":"file","path":"a/b","mode":"644","size":4,"sha256":"…"}` or
/// `{"kind":"symlink","path":"l","target":"a/b"}`. Directories are implied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// A regular file.
    File {
        /// Where it lies beneath the root.
        path: RelPath,
        /// Plain or executable.
        mode: FileMode,
        /// Its length in bytes.
        size: u64,
        /// The digest of its content.
        sha256: Sha256,
    },
    /// A symbolic link.
    Symlink {
        /// Where it lies beneath the root.
        path: RelPath,
        /// What it points at, as it is written.
        target: String,
    },
}

impl Entry {
    /// Gives the place of the entry.
    #[must_use]
    pub const fn path(&self) -> &RelPath {
        match self {
            Self::File { path, .. } | Self::Symlink { path, .. } => path,
        }
    }
}

/// Says why something in the tree is not in the proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyLeftOut {
    /// The ignore rules of the base commit name it.
    Ignored,
    /// An archive of files cannot hold it.
    EmptyDirectory,
    /// It belongs to git.
    GitInternals,
}

/// Names something in the tree that is not in the proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Where it lies; a directory stands for everything beneath it.
    pub path: RelPath,
    /// Why it was left out.
    pub why: WhyLeftOut,
}

/// Lists what a proposal holds.
///
/// # Shape
/// One JSON object with its fields in this order; entries are sorted by the bytes of their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The rules by which it was made.
    pub version: u16,
    /// The digest of the archive's bytes: the proposal's name.
    pub archive_sha256: Sha256,
    /// The length of the archive in bytes.
    pub archive_size: u64,
    /// The id of the git tree that the entries make, once it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// Every file and link.
    pub entries: Vec<Entry>,
    /// What was left out when it was sealed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

impl Manifest {
    /// The rules that new manifests are made by.
    pub const VERSION: u16 = 1;

    /// Gives the one JSON text of the manifest.
    ///
    /// # Errors
    /// `internal` where it cannot be written.
    pub fn to_json(&self) -> Result<Vec<u8>, Refusal> {
        serde_json::to_vec(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("a manifest cannot be written: {e}")))
    }

    /// Reads a manifest and checks it.
    ///
    /// # Errors
    /// `proposal_refused` where it is malformed or [`Manifest::check`] refuses.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Refusal> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|e| refused("manifest_shape", &format!("the manifest is malformed: {e}")))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that the entries make one unambiguous tree.
    ///
    /// # Errors
    /// `proposal_refused` with a reason: `manifest_version`, `order`, or one of [`check_entries`].
    pub fn check(&self) -> Result<(), Refusal> {
        if self.version != Self::VERSION {
            let why = format!("manifest version {} is not known", self.version);
            return Err(refused("manifest_version", &why));
        }
        let sorted = self.entries.is_sorted_by(|a, b| a.path() < b.path());
        if !sorted {
            return Err(refused("order", "entries are not in the order of their paths"));
        }
        check_entries(&self.entries)
    }
}

/// Refuses a name that two systems could read as two things.
///
/// # Errors
/// `proposal_refused` with reason `root`, `name_encoding`, `control_character`, `name_form`, `foreign_root` or
/// `git_internals`.
pub fn check_name(path: &RelPath) -> Result<(), Refusal> {
    if path.is_root() {
        return Err(refused("root", "an entry names the root itself"));
    }
    let Some(text) = path.as_utf8() else {
        return Err(refused("name_encoding", "a name is not UTF-8").name(path.to_string()));
    };
    if text.chars().any(char::is_control) {
        let why = "a name holds a control character";
        return Err(refused("control_character", why).name(path.to_string()));
    }
    if !composed(text) {
        // bsdtar composes such a name of an extended header, and others do not.
        let why = "a name is not in the composed form of Unicode (NFC)";
        return Err(refused("name_form", why).name(path.to_string()));
    }
    if begins_like_a_root(path.as_bytes()) {
        // bsdtar takes such a beginning away, on every system.
        let why = "a path begins like a drive or a root of another system";
        return Err(refused("foreign_root", why).name(path.to_string()));
    }
    if path.may_lead_to_git() {
        return Err(refused("git_internals", "a name belongs to git").name(path.to_string()));
    }
    Ok(())
}

/// Checks that entries make one unambiguous tree; their order does not matter.
///
/// # Errors
/// `proposal_refused` with a reason: those of [`check_name`], `duplicate`, `parent_not_directory`,
/// `name_collision`, `link_outside`, `link_target`; `name_form` of a target. `tree_not_empty` where a link that leads out
/// is one of a virtual environment.
pub fn check_entries(entries: &[Entry]) -> Result<(), Refusal> {
    let mut all: HashMap<&[u8], Option<&str>> = HashMap::with_capacity(entries.len());
    for entry in entries {
        check_name(entry.path())?;
        let target = match entry {
            Entry::File { .. } => None,
            Entry::Symlink { path, target } => {
                check_target(path, target)?;
                Some(target.as_str())
            }
        };
        if all.insert(entry.path().as_bytes(), target).is_some() {
            return Err(refused("duplicate", "a name comes twice").name(entry.path().to_string()));
        }
    }
    let mut folded: HashMap<Vec<u8>, &[u8]> = HashMap::with_capacity(entries.len());
    let mut seen: HashSet<&[u8]> = HashSet::with_capacity(entries.len());
    for entry in entries {
        let path = entry.path().as_bytes();
        // From the end on: above a directory that was seen, all were.
        let ends = path.iter().enumerate().rev().filter(|(_, b)| **b == b'/');
        for end in std::iter::once(path.len()).chain(ends.map(|(at, _)| at)) {
            let part = &path[..end];
            if end < path.len() && all.contains_key(part) {
                let why = "an entry lies beneath something that is not a directory";
                return Err(refused("parent_not_directory", why).name(entry.path().to_string()));
            }
            if !seen.insert(part) {
                break;
            }
            if let Some(other) = folded.insert(fold(part), part) {
                let why = "two names are one on a filesystem that folds case or normalises";
                let names = [other, part].map(crate::path::shown);
                return Err(refused("name_collision", why).names(names));
            }
        }
    }
    let links: BTreeMap<&[u8], &str> = all.iter().filter_map(|(p, t)| t.map(|t| (*p, t))).collect();
    for link in links.keys() {
        if let Err((guilty, why)) = stays_inside(link, &links) {
            return Err(leaves(&guilty, why, &links, &all));
        }
    }
    Ok(())
}

/// Tells of a link that leads out; the interpreter of a virtual environment always does, and then it is the environment
/// that does not belong there.
fn leaves(
    link: &[u8],
    why: &str,
    links: &BTreeMap<&[u8], &str>,
    all: &HashMap<&[u8], Option<&str>>,
) -> Refusal {
    let target = links.get(link).copied().unwrap_or_default();
    let shown = format!("{} -> {}", crate::path::shown(link), target.escape_debug());
    let above = link.iter().enumerate().rev().filter(|(_, b)| **b == b'/');
    let mut marks = above.map(|(at, _)| [&link[..at], b"/pyvenv.cfg"].concat());
    match marks.find(|mark| matches!(all.get(mark.as_slice()), Some(None))) {
        Some(mark) => {
            let why = "a virtual environment came with the input, and its interpreter lies elsewhere";
            Refusal::new(Code::TreeNotEmpty, why).names([crate::path::shown(&mark), shown])
        }
        None => refused("link_outside", why).name(shown),
    }
}

fn check_target(path: &RelPath, target: &str) -> Result<(), Refusal> {
    let long = target.is_empty() || target.len() > 4095;
    if long || target.chars().any(char::is_control) {
        let why = "a link's target is empty, longer than 4,095 bytes, or holds a control character";
        return Err(refused("link_target", why).name(path.to_string()));
    }
    if !composed(target) {
        let why = "a link's target is not in the composed form of Unicode (NFC)";
        return Err(refused("name_form", why).name(path.to_string()));
    }
    Ok(())
}

/// Follows a link as a kernel would, over the links of the same tree; gives the one that leads out, and how.
fn stays_inside(link: &[u8], links: &BTreeMap<&[u8], &str>) -> Result<(), (Vec<u8>, &'static str)> {
    let parts = |text: &str| -> Vec<Vec<u8>> { text.rsplit('/').map(|p| p.as_bytes().to_vec()).collect() };
    let mut todo = parts(core::str::from_utf8(link).unwrap_or_default());
    let mut at: Vec<Vec<u8>> = Vec::new();
    let mut last = link.to_vec();
    let mut followed = 0;
    while let Some(part) = todo.pop() {
        match part.as_slice() {
            b"" | b"." => continue,
            b".." => {
                at.pop().ok_or((last.clone(), "a link leads out of the tree"))?;
                continue;
            }
            _ => at.push(part),
        }
        let here = at.join(&b'/');
        if let Some(target) = links.get(here.as_slice()) {
            last = here;
            followed += 1;
            if target.starts_with('/') {
                return Err((last, "a link is absolute"));
            }
            if followed > 40 {
                return Err((link.to_vec(), "links lead in a circle"));
            }
            at.pop();
            todo.extend(parts(target));
        }
    }
    Ok(())
}

/// Makes equal what a filesystem that folds case, normalises, and looks past some characters would make equal.
fn fold(path: &[u8]) -> Vec<u8> {
    match core::str::from_utf8(path) {
        Ok(text) if !text.is_ascii() => {
            let text: String = text.chars().filter(|c| !ignorable(*c)).collect();
            let upper: String = text.nfd().flat_map(char::to_uppercase).collect();
            let lower: String = upper.nfd().flat_map(char::to_lowercase).nfc().collect();
            lower.into_bytes()
        }
        _ => path.to_ascii_lowercase(),
    }
}

/// Knows `C:` and a backslash.
///
/// # Source
/// libarchive 3.6.2, `tar/util.c`, `strip_absolute_path`.
const fn begins_like_a_root(path: &[u8]) -> bool {
    match path {
        [b'\\', ..] => true,
        [letter, b':', ..] => letter.is_ascii_alphabetic(),
        _ => false,
    }
}

fn composed(text: &str) -> bool {
    text.is_ascii() || unicode_normalization::is_nfc(text)
}

fn refused(reason: &str, why: &str) -> Refusal {
    Refusal::new(Code::ProposalRefused, why).reason(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn file(at: &str) -> Entry {
        Entry::File {
            path: path(at),
            mode: FileMode::Plain,
            size: 1,
            sha256: Sha256::of(b"x"),
        }
    }

    fn link(at: &str, target: &str) -> Entry {
        Entry::Symlink {
            path: path(at),
            target: target.to_owned(),
        }
    }

    fn reason(entries: &[Entry]) -> String {
        match check_entries(entries) {
            Ok(()) => "ok".to_owned(),
            Err(refusal) => {
                assert_eq!(refusal.code, Code::ProposalRefused);
                refusal.reason.unwrap()
            }
        }
    }

    #[test]
    fn ambiguous_trees_are_refused_by_name() {
        for (entries, wanted) in [
            (
                vec![file("a/b"), file("a/c"), link("l", "a/b"), link("a/up", "../l")],
                "ok",
            ),
            (vec![file("a"), file("a")], "duplicate"),
            (vec![file("a"), file("a/b")], "parent_not_directory"),
            (
                vec![link("l", "d"), file("d/x"), file("l/x")],
                "parent_not_directory",
            ),
            (vec![file("Readme"), file("README")], "name_collision"),
            (vec![file("Dir/a"), file("dir/b")], "name_collision"),
            (vec![file("caf\u{e9}"), file("cafe\u{301}")], "name_form"),
            (vec![link("l", "cafe\u{301}")], "name_form"),
            (vec![file("CAF\u{c9}"), file("caf\u{e9}")], "name_collision"),
            (vec![file("stra\u{df}e"), file("STRASSE")], "name_collision"),
            (vec![file("a\u{200b}b"), file("ab")], "name_collision"),
            (vec![file("d\u{ad}/a"), file("d/b")], "name_collision"),
            (vec![file("x\u{b2}"), file("x2")], "ok"),
            (vec![file("C:")], "foreign_root"),
            (vec![file("c:/x")], "foreign_root"),
            (vec![file("\\x")], "foreign_root"),
            (
                vec![file("a/C:"), file("a:b/\\x"), file("ab:"), file("1:")],
                "foreign_root",
            ),
            (vec![file("a/C:"), file("ab:/\\x"), file("1:")], "ok"),
            (vec![file("a/b/c"), file("a.b"), file("a/b.c")], "ok"),
            (vec![file("a\nb")], "control_character"),
            (vec![file("x/.GIT/config")], "git_internals"),
            (vec![file(".g\u{200c}it/config")], "git_internals"),
            (vec![file("GIT~1/config")], "git_internals"),
            (vec![file(".git./config")], "git_internals"),
            (vec![file(".g\u{ad}it/config")], "git_internals"),
            (vec![file(".git::$INDEX_ALLOCATION/x")], "git_internals"),
            (vec![link("l", "/etc/passwd")], "link_outside"),
            (vec![link("l", "../x")], "link_outside"),
            (vec![link("l", "l")], "link_outside"),
            (vec![link("l", "")], "link_target"),
            (vec![link("l", "dangling/but/inside")], "ok"),
            // Lexically inside; a kernel would go up from where the first link leads.
            (
                vec![
                    file("d/e/f/x"),
                    link("d/e/f/top", "../../.."),
                    link("y", "d/e/f/top/.."),
                ],
                "link_outside",
            ),
        ] {
            assert_eq!(reason(&entries), wanted, "{entries:?}");
        }
    }

    #[test]
    fn the_link_that_leads_out_is_named_and_so_is_the_environment_that_it_is_of() {
        let plain = [
            link("a/one", "two"),
            link("a/three", "one"),
            link("a/two", "/opt/py/bin/python"),
        ];
        for _ in 0..8 {
            let refusal = check_entries(&plain).unwrap_err();
            assert_eq!(refusal.reason.as_deref(), Some("link_outside"));
            assert_eq!(refusal.names, ["a/two -> /opt/py/bin/python"]);
        }
        let refusal = check_entries(&[link("a/b/up", "../../.."), link("z", "a/b/up")]).unwrap_err();
        assert_eq!(refusal.names, ["a/b/up -> ../../.."]);
        // As `python -m venv` and uv make one.
        let venv = [
            file("app/.venv/pyvenv.cfg"),
            file("app/main.py"),
            link("app/.venv/bin/python", "/opt/py/bin/python"),
            link("app/.venv/bin/python3", "python"),
        ];
        let refusal = check_entries(&venv).unwrap_err();
        assert_eq!(refusal.code, Code::TreeNotEmpty);
        assert_eq!(
            refusal.names,
            [
                "app/.venv/pyvenv.cfg",
                "app/.venv/bin/python -> /opt/py/bin/python"
            ]
        );
        // A link elsewhere is not the environment's.
        let beside = [file("app/.venv/pyvenv.cfg"), link("app/l", "/x")];
        assert_eq!(reason(&beside), "link_outside");
    }

    #[test]
    fn names_that_only_look_like_git_pass() {
        assert_eq!(
            reason(&[file(".gitignore"), file(".github/x"), file("git"), file("a.git")]),
            "ok"
        );
    }

    #[test]
    fn the_json_is_one_text_and_is_checked() {
        let manifest = Manifest {
            version: Manifest::VERSION,
            archive_sha256: Sha256::of(b"archive"),
            archive_size: 7,
            tree: None,
            entries: vec![file("a"), link("b", "a")],
            left_out: vec![LeftOut {
                path: path("c"),
                why: WhyLeftOut::EmptyDirectory,
            }],
        };
        let json = manifest.to_json().unwrap();
        assert_eq!(Manifest::from_json(&json).unwrap(), manifest);
        let text = String::from_utf8(json).unwrap();
        assert!(
            text.contains(r#"{"kind":"file","path":"a","mode":"644","size":1,"sha256":""#),
            "{text}"
        );
        let odd = text.replacen(r#""kind":"symlink""#, r#""kind":"symlink","odd":1"#, 1);
        assert_eq!(
            Manifest::from_json(odd.as_bytes()).unwrap_err().code,
            Code::ProposalRefused
        );
        let mut unsorted = manifest;
        unsorted.entries.reverse();
        assert_eq!(unsorted.check().unwrap_err().reason.as_deref(), Some("order"));
    }
}
