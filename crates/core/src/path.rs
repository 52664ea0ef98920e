//! `RelPath`: the lexical half of confinement.
//!
//! It keeps absolute paths and `..` that leaves out before the kernel sees them, for a stable error. It does
//! *not* look at the filesystem: links, mounts and races are the business of the root handle.

use crate::code::{Code, Refusal};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization as _;

/// Names a place beneath a root, lexically normalised: no `.`, no `..`, no empty component.
///
/// Paths are bytes; they need not be UTF-8. The empty path is the root itself.
///
/// # Shape
/// In JSON and in the journal the lossless text of [`RelPath::to_wire`]; a caller may send raw bytes as `path_b64`.
///
/// # Limits
/// 4,096 bytes in all, 255 bytes a component, 64 components.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(Vec<u8>);

const LONGEST: usize = 4096;
const LONGEST_COMPONENT: usize = 255;
const DEEPEST: usize = 64;

impl RelPath {
    /// Gives the root itself.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Normalises a path that a caller sent.
    ///
    /// `a/./b`, `a//b` and `a/x/../b` become `a/b`; `a/` becomes `a`.
    ///
    /// # Errors
    /// `path_escapes_root` for an absolute path, for `..` that leaves, for a leading `~`; `bad_input` for a NUL
    /// byte and past the limits.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let escapes = |why: &str| Refusal::new(Code::PathEscapesRoot, why).name(shown(bytes));
        if bytes.contains(&0) {
            return Err(Refusal::new(Code::BadInput, "a path holds no NUL byte").name(shown(bytes)));
        }
        if bytes.first() == Some(&b'/') {
            return Err(escapes("an absolute path leads out of the root"));
        }
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in bytes.split(|b| *b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts
                        .pop()
                        .ok_or_else(|| escapes("the path leaves the root by .."))?;
                }
                _ => parts.push(part),
            }
        }
        // Asked of the normal form, which the journal keeps and reads again: `./~` is `~`.
        if parts.first().is_some_and(|part| part.starts_with(b"~")) {
            return Err(escapes("a home directory lies outside of the root"));
        }
        let long = parts.iter().any(|part| part.len() > LONGEST_COMPONENT);
        if bytes.len() > LONGEST || long || parts.len() > DEEPEST {
            return Err(Refusal::new(
                Code::BadInput,
                format!(
                    "a path has at most {LONGEST} bytes, {LONGEST_COMPONENT} a component, {DEEPEST} components"
                ),
            ));
        }
        Ok(Self(parts.join(&b'/')))
    }

    /// Gives the normalised bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Says whether this is the root itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives the components in order.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|part| !part.is_empty())
    }

    /// Splits into the parent and the last component; `None` for the root.
    #[must_use]
    pub fn split_last(&self) -> Option<(RelPath, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|b| *b == b'/') {
            Some(at) => (RelPath(self.0[..at].to_vec()), &self.0[at + 1..]),
            None => (RelPath::root(), &self.0),
        })
    }

    /// Adds one component.
    ///
    /// # Errors
    /// `bad_input` where the component is not a plain name or the result is past the limits.
    pub fn join(&self, name: &[u8]) -> Result<RelPath, Refusal> {
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
            return Err(Refusal::new(Code::BadInput, "not the name of an entry").name(shown(name)));
        }
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        RelPath::parse(&bytes)
    }

    /// Adds the name of an entry that was seen, on a disk or in a tree of git.
    ///
    /// What callers may not write can lie there all the same: a name that begins with `~` is a plain one, and a path may
    /// be deeper and longer than any that is taken from a caller. Such a path is for walking and for showing; its wire
    /// form does not parse.
    ///
    /// # Errors
    /// `bad_input` where it is no name that an entry can have.
    pub fn observed(&self, name: &[u8]) -> Result<RelPath, Refusal> {
        let plain = !name.is_empty() && name != b"." && name != b"..";
        if !plain || name.contains(&b'/') || name.contains(&0) {
            return Err(Refusal::new(Code::BadInput, "not the name of an entry").name(shown(name)));
        }
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Ok(Self(bytes))
    }

    /// Says whether it lies below another path.
    #[must_use]
    pub fn is_below(&self, other: &RelPath) -> bool {
        let (mut mine, theirs) = (self.components(), other.components());
        theirs.into_iter().all(|part| mine.next() == Some(part)) && mine.next().is_some()
    }

    /// Says whether the path lies in a directory that belongs to git.
    #[must_use]
    pub fn in_git_dir(&self) -> bool {
        self.components().any(|part| part.eq_ignore_ascii_case(b".git"))
    }

    /// Says whether some filesystem might find, by this path, a directory that belongs to git: by another case, by
    /// characters that it ignores, by an NTFS stream or a short name.
    ///
    /// # Source
    /// Git's `is_hfs_dotgit` and `is_ntfs_dotgit`: a name that git takes for `.git` cannot be checked out, either.
    #[must_use]
    pub fn may_lead_to_git(&self) -> bool {
        self.components().any(|part| {
            // Most names are settled by their first letter.
            if part.is_ascii() && !matches!(part.first(), Some(b'.' | b'g' | b'G')) {
                return false;
            }
            let name = folded(part);
            let rest = name.strip_prefix(b".git").or_else(|| name.strip_prefix(b"git~1"));
            rest.is_some_and(|rest| {
                let behind = rest.iter().find(|b| !matches!(b, b' ' | b'.'));
                matches!(behind, None | Some(b':' | b'\\'))
            })
        })
    }

    /// Gives the path as text where it is UTF-8.
    #[must_use]
    pub fn as_utf8(&self) -> Option<&str> {
        core::str::from_utf8(&self.0).ok()
    }

    /// Gives a lossless text: the path itself where it is UTF-8 and does not begin with `b64:`, else `b64:` and
    /// its base64.
    #[must_use]
    pub fn to_wire(&self) -> String {
        match self.as_utf8() {
            Some(text) if !text.starts_with("b64:") => text.to_owned(),
            _ => format!("b64:{}", BASE64_STANDARD.encode(&self.0)),
        }
    }
}

impl TryFrom<String> for RelPath {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        match text.strip_prefix("b64:") {
            Some(coded) => {
                let bytes = BASE64_STANDARD
                    .decode(coded)
                    .map_err(|_| Refusal::new(Code::BadInput, "not base64 after b64:").name(&text))?;
                RelPath::parse(&bytes)
            }
            None => RelPath::parse(text.as_bytes()),
        }
    }
}

impl From<RelPath> for String {
    fn from(path: RelPath) -> String {
        path.to_wire()
    }
}

impl core::fmt::Display for RelPath {
    /// Prints for people: control characters escaped, bytes that are not UTF-8 as `\xNN`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&shown(if self.is_root() { b"." } else { &self.0 }))
    }
}

impl core::fmt::Debug for RelPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Knows the characters that some filesystem looks past in a name.
///
/// # Source
/// Unicode's `Default_Ignorable_Code_Point`, as ext4 and f2fs have it in directories that fold case; HFS+ ignores some
/// of them.
pub(crate) const fn ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Folds a name so that all names that some filesystem takes for one become equal: by case, by composition, and by
/// characters that it looks past.
///
/// Different names may become equal, too: it is for locks, never for deciding what a name names.
#[must_use]
pub fn folded(name: &[u8]) -> Vec<u8> {
    let Ok(text) = core::str::from_utf8(name) else {
        return name.to_ascii_lowercase();
    };
    if text.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let text: String = text.chars().filter(|c| !ignorable(*c)).collect();
    let upper: String = text.nfkd().flat_map(char::to_uppercase).collect();
    let lower: String = upper.nfkd().flat_map(char::to_lowercase).collect();
    lower.into_bytes()
}

/// Makes bytes fit to be shown: printable text stays, everything else is escaped.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<String, Code> {
        RelPath::parse(text.as_bytes())
            .map(|p| p.to_wire())
            .map_err(|e| e.code)
    }

    #[test]
    fn normalises_and_refuses() {
        for (given, normal) in [
            ("a/b", "a/b"),
            ("./a//b/", "a/b"),
            ("a/x/../b", "a/b"),
            ("", ""),
            (".", ""),
            ("a/..", ""),
        ] {
            assert_eq!(parse(given), Ok(normal.to_owned()), "{given}");
        }
        for given in ["/a", "..", "a/../..", "../a", "~", "~/x", "//", "./~", "a/../~x"] {
            assert_eq!(parse(given), Err(Code::PathEscapesRoot), "{given}");
        }
        assert_eq!(parse("a\0b"), Err(Code::BadInput));
        assert_eq!(parse(&"n".repeat(256)), Err(Code::BadInput));
        assert_eq!(parse(&"a/".repeat(65)), Err(Code::BadInput));
        assert_eq!(
            parse(&"a/".repeat(64)).as_deref(),
            Ok("a/".repeat(64).trim_end_matches('/'))
        );
    }

    #[test]
    fn what_was_seen_is_not_judged_as_what_a_caller_wrote() {
        let root = RelPath::root();
        for name in [&b"~"[..], b"~$doc.docx", &[b'n'; 300], b"\xff", b"..."] {
            let seen = root.observed(name).unwrap();
            assert_eq!(
                (seen.as_bytes(), seen.split_last()),
                (name, Some((RelPath::root(), name)))
            );
        }
        assert_eq!(root.join(b"~x").unwrap_err().code, Code::PathEscapesRoot);
        let deep = (0..5000)
            .try_fold(RelPath::root(), |at, _| at.observed(b"k"))
            .unwrap();
        assert_eq!(deep.components().count(), 5000);
        assert_eq!(deep.join(b"k").unwrap_err().code, Code::BadInput);
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(root.observed(name).unwrap_err().code, Code::BadInput, "{name:?}");
        }
    }

    #[test]
    fn git_internals_are_seen_in_any_case() {
        for path in [".git", ".git/config", "sub/.GIT/hooks", "a/.Git"] {
            assert!(RelPath::parse(path.as_bytes()).unwrap().in_git_dir(), "{path}");
        }
        assert!(!RelPath::parse(b".gitignore").unwrap().in_git_dir());
    }

    #[test]
    fn what_some_filesystem_takes_for_git_is_seen() {
        for path in [
            ".git",
            "a/.GiT/config",
            "GIT~1",
            "git~1/hooks/x",
            ".g\u{200c}it/config",
            ".git\u{feff}",
            ".git ",
            "sub/.git. ./x",
            ".git::$INDEX_ALLOCATION/config",
            ".GIT:x",
        ] {
            assert!(
                RelPath::parse(path.as_bytes()).unwrap().may_lead_to_git(),
                "{path}"
            );
        }
        for path in [
            ".gitignore",
            ".github/x",
            "git",
            "a.git",
            "git~10",
            ".git-x",
            "git~2",
        ] {
            assert!(
                !RelPath::parse(path.as_bytes()).unwrap().may_lead_to_git(),
                "{path}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_path_that_parses_is_normal_and_survives_the_wire(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(b"./~b64:".to_vec())], 0..40,
            ),
        ) {
            if let Ok(path) = RelPath::parse(&bytes) {
                prop_assert!(path.components().all(|c| c != b".." && c != b"." && !c.is_empty()));
                prop_assert_eq!(RelPath::parse(path.as_bytes()).unwrap(), path.clone());
                prop_assert_eq!(RelPath::try_from(path.to_wire()).unwrap(), path);
            }
        }
    }

    #[test]
    fn names_that_a_filesystem_may_take_for_one_fold_to_one() {
        for (a, b) in [
            ("readme", "README"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{e9}", "e\u{301}"),
            ("\u{17f}", "S"),
            ("\u{212b}", "\u{e5}"),
            ("a\u{200b}b", "AB"),
        ] {
            assert_eq!(folded(a.as_bytes()), folded(b.as_bytes()), "{a} {b}");
        }
        assert_ne!(folded(b"a"), folded(b"b"));
        assert_eq!(folded(b"\xffA"), folded(b"\xffa"));
    }
}
