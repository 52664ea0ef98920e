//! Leftover environments in an input tree: recognised by content, so that no install starts on top of one.
//!
//! It looks at one entry at a time and needs no whole tree. It does *not* know what is tracked: the caller hands over
//! what came with the input and is not the project's own.

use crate::path::RelPath;

/// Says what stands at a path of an input tree.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// A file, with the content that [`wants_text`] asked for; without it the name alone decides.
    File(Option<&'a [u8]>),
    /// A symbolic link.
    Symlink,
    /// A directory.
    Directory,
}

/// The first bytes of a `CACHEDIR.TAG`.
///
/// # Source
/// Cache Directory Tagging Specification, bford.info/cachedir.
pub const CACHEDIR_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// Says how many bytes of a file are needed to recognise it.
#[must_use]
pub fn wants_text(path: &RelPath) -> Option<u64> {
    let (_, name) = path.split_last()?;
    match name {
        b"CACHEDIR.TAG" => Some(CACHEDIR_SIGNATURE.len() as u64),
        b"pyvenv.cfg" | b".rustc_info.json" => Some(4096),
        _ => None,
    }
}

/// Recognises an entry of a leftover environment and says of what.
///
/// An `*.egg-info` is none: published source distributions carry one.
#[must_use]
pub fn recognise(path: &RelPath, what: What<'_>) -> Option<&'static str> {
    let (_, name) = path.split_last()?;
    let parts: Vec<&[u8]> = path.components().collect();
    match what {
        What::Directory => return None,
        // What a link leads to cannot be seen from here, and these names have no other use.
        What::Symlink => {
            return matches!(name, b".venv" | b"node_modules" | b"__pycache__")
                .then_some("a link to an installed environment");
        }
        What::File(text) => match name {
            b"pyvenv.cfg" if text.is_none_or(says_home) => return Some("a virtual environment"),
            b"CACHEDIR.TAG" if text.is_none_or(|t| t.starts_with(CACHEDIR_SIGNATURE)) => {
                return Some("a tagged cache");
            }
            b".rustc_info.json" if text.is_none_or(|t| holds(t, b"rustc_fingerprint")) => {
                return Some("a Cargo target directory");
            }
            _ => {}
        },
    }
    let has = |wanted: &[u8]| parts[..parts.len() - 1].contains(&wanted);
    if has(b"node_modules") {
        return node_modules(&parts).then_some("installed node_modules");
    }
    if has(b"site-packages") && (name == b"RECORD" || name == b"METADATA" || name.ends_with(b".pth")) {
        return Some("installed Python packages");
    }
    (has(b"__pycache__") && name.ends_with(b".pyc")).then_some("compiled Python files")
}

/// Finds the first entry of a leftover environment, with what it belongs to.
#[must_use]
pub fn first<'a>(
    entries: impl IntoIterator<Item = (&'a RelPath, What<'a>)>,
) -> Option<(&'a RelPath, &'static str)> {
    entries
        .into_iter()
        .find_map(|(path, what)| Some((path, recognise(path, what)?)))
}

/// Says whether a file lies where an installer puts it: its own state, or the manifest of a package.
fn node_modules(parts: &[&[u8]]) -> bool {
    let Some(at) = parts.iter().rposition(|p| *p == b"node_modules") else {
        return false;
    };
    match &parts[at + 1..] {
        [state] => matches!(
            *state,
            b".package-lock.json" | b".modules.yaml" | b".yarn-integrity" | b".yarn-state.yml"
        ),
        [bin, _] if *bin == b".bin" => true,
        [_, b"package.json"] => true,
        [scope, _, b"package.json"] => scope.starts_with(b"@"),
        _ => false,
    }
}

fn says_home(text: &[u8]) -> bool {
    text.split(|b| *b == b'\n').any(|line| {
        let key = line.split(|b| *b == b'=').next().unwrap_or(line);
        key.trim_ascii() == b"home"
    })
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, what: What<'_>) -> Option<&'static str> {
        recognise(&RelPath::parse(path.as_bytes()).unwrap(), what)
    }

    #[test]
    fn leftovers_are_known_by_content_and_sources_are_not_mistaken() {
        let venv: &[u8] = b"home = /usr/bin\ninclude-system-site-packages = false\n";
        for (path, text) in [
            ("any/name/pyvenv.cfg", venv),
            ("x/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n"),
            ("build/.rustc_info.json", b"{\"rustc_fingerprint\":1}"),
            ("node_modules/.package-lock.json", b"{}"),
            ("sub/node_modules/ms/package.json", b"{}"),
            ("node_modules/@a/b/package.json", b"{}"),
            ("node_modules/.bin/mocha", b"#!/bin/sh"),
            ("e/lib/python3.11/site-packages/six-1.dist-info/RECORD", b""),
            ("src/__pycache__/a.cpython-311.pyc", b""),
        ] {
            assert!(of(path, What::File(Some(text))).is_some(), "{path}");
        }
        for (path, text) in [
            ("docs/pyvenv.cfg", &b"an example"[..]),
            ("CACHEDIR.TAG", b"not the signature"),
            ("demo.egg-info/PKG-INFO", b"Name: demo"),
            ("src/package.json", b"{}"),
            ("Cargo.lock", b""),
            ("tests/node_modules/readme.md", b""),
        ] {
            assert_eq!(of(path, What::File(Some(text))), None, "{path}");
        }
        assert!(of("pyvenv.cfg", What::File(None)).is_some());
        assert!(of(".venv", What::Symlink).is_some());
        assert!(of("link", What::Symlink).is_none());
        assert!(of("node_modules", What::Directory).is_none());
    }
}
