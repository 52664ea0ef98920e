//! What Yarn 2 and later are asked for, and what they take for it: the few forms that bring data alone.
//!
//! Yarn knows protocols that run what they name (`exec:`, everything of git), and reads parameters behind `::` that lead
//! elsewhere (`__archiveUrl`). A range may hold another one, encoded, as `patch:` does. So a text is read as Yarn reads
//! it, at any depth, and what is none of these forms is refused.
//!
//! # Source
//! Yarn 4, `structUtils.parseRange`, `patchUtils.ts`, `semverUtils`, `tarballUtils`, and `TAG_REGEXP` of its npm plugin.

use super::{fetchable, resolve};
use crate::path::RelPath;

/// How deep ranges may lie in each other.
const DEEPEST: u8 = 4;
/// The patches that Yarn brings along.
const BUILTIN: [&str; 3] = ["compat/fsevents", "compat/resolve", "compat/typescript"];

const UNKNOWN: &str = "takes a package from where no checksum binds it";
const OUTSIDE: &str = "takes a package from outside of the tree";
const PARAMETERS: &str = "has a package with parameters that lead elsewhere";
const PATCH: &str = "has a patch that is not understood";

/// Says which half of an entry a text is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// What somebody asks for: a range, a tag, a path.
    Asked,
    /// What it was resolved to.
    Taken,
}

/// Names one of the forms, without its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A package of a registry, by its version or range.
    Npm(String),
    /// A project of the tree.
    Project(String),
    /// A directory of the tree that is linked.
    Linked(RelPath),
    /// A directory or tarball of the tree that is packed.
    Packed(RelPath),
    /// A tarball of the web, by its address.
    Tarball(String),
    /// Another package, with patches on it.
    Patched(Patched),
}

/// Holds a package with patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Patched {
    /// What is patched, decoded.
    pub(super) inner: String,
    /// The patches that are files of the tree.
    pub(super) files: Vec<RelPath>,
    /// How many of them Yarn brings along.
    pub(super) builtin: usize,
}

/// Splits `name@range`; the name is one that a registry could have.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    let from = usize::from(text.starts_with('@'));
    let at = text[from..].find('@')? + from;
    let (name, range) = (&text[..at], &text[at + 1..]);
    fetchable::is_name(name).then_some((name, range))
}

/// Reads the range or reference of a package; `home` is the directory of the lock.
///
/// # Errors
/// Why it is refused, in words that follow "the lockfile".
pub(super) fn read(side: Side, name: &str, range: &str, home: &RelPath) -> Result<Form, &'static str> {
    read_at(side, name, range, [home, home], 0)
}

/// Reads what the project in `project` asks for.
///
/// # Errors
/// Those of [`read`].
pub(super) fn read_of(
    project: &RelPath,
    name: &str,
    range: &str,
    home: &RelPath,
) -> Result<Form, &'static str> {
    read_at(Side::Asked, name, range, [home, project], 0)
}

/// Reads a range by the directory of the lock, and the one of the project that it belongs to.
fn read_at(
    side: Side,
    name: &str,
    range: &str,
    [home, project]: [&RelPath; 2],
    depth: u8,
) -> Result<Form, &'static str> {
    if !fetchable::is_name(name) || range.contains([',', '\n', '\r']) {
        return Err("has a package whose name no registry has");
    }
    let (body, given) = match range.split_once("::") {
        Some((body, given)) => (body, Some(given)),
        None => (range, None),
    };
    let (kind, rest) = body.split_once(':').unwrap_or(("", body));
    let allowed: &[&str] = match kind {
        "patch" => &["version", "hash", "locator"],
        "file" => &["hash", "locator"],
        "link" | "portal" => &["locator"],
        _ => &[],
    };
    let given = parameters(given, allowed, [home, project])?;
    let inside = |path: &str| resolve(&given, path).ok_or(OUTSIDE);
    match (kind, side) {
        ("", Side::Asked) if is_range(rest) => Ok(Form::Npm(rest.to_owned())),
        ("npm", Side::Asked) if is_range(rest) || is_alias(rest) => Ok(Form::Npm(rest.to_owned())),
        ("npm", Side::Taken) if fetchable::check(name, rest, "").is_ok() => Ok(Form::Npm(rest.to_owned())),
        ("workspace", Side::Asked) if !rest.contains('#') => Ok(Form::Project(rest.to_owned())),
        ("workspace", Side::Taken) => resolve(home, rest)
            .map(|_| Form::Project(rest.to_owned()))
            .ok_or(OUTSIDE),
        ("link" | "portal", _) => inside(rest).map(Form::Linked),
        ("file", _) => {
            let (path, again) = rest.split_once('#').unwrap_or((rest, rest));
            inside(again)?;
            inside(path).map(Form::Packed)
        }
        ("https" | "http", _) if fetchable::is_repository(body) => {
            Err("takes a package from git, which no hash binds")
        }
        ("https" | "http", _) if is_address(body) => Ok(Form::Tarball(body.to_owned())),
        ("patch", _) => patched(side, name, rest, [home, &given], depth).map(Form::Patched),
        _ => Err(UNKNOWN),
    }
}

fn patched(
    side: Side,
    name: &str,
    rest: &str,
    [home, base]: [&RelPath; 2],
    depth: u8,
) -> Result<Patched, &'static str> {
    let (source, patches) = rest.split_once('#').ok_or(PATCH)?;
    let (inner, patches) = (decoded(source).ok_or(PATCH)?, decoded(patches).ok_or(PATCH)?);
    let (of, range) = split(&inner).ok_or(PATCH)?;
    if of != name || depth >= DEEPEST {
        return Err(PATCH);
    }
    match read_at(side, of, range, [home, base], depth + 1)? {
        Form::Npm(_) | Form::Packed(_) | Form::Tarball(_) | Form::Patched(_) => {}
        Form::Project(_) | Form::Linked(_) => return Err(PATCH),
    }
    let (mut files, mut builtin) = (Vec::new(), 0);
    for patch in patches.split('&') {
        let patch = patch.strip_prefix("optional!").unwrap_or(patch);
        // Yarn 2 and 3 wrote `~` for what may fail; later ones, for the directory of the project.
        let known = patch.trim_start_matches('~');
        match known
            .strip_prefix("builtin<")
            .and_then(|known| known.strip_suffix('>'))
        {
            Some(known) if BUILTIN.contains(&known) => builtin += 1,
            Some(_) => return Err(PATCH),
            None => {
                let path = match patch.strip_prefix("~/") {
                    Some(path) => resolve(home, path),
                    None => resolve(base, patch.strip_prefix('~').unwrap_or(patch)),
                };
                files.push(path.filter(|path| !path.is_root()).ok_or(OUTSIDE)?);
            }
        }
    }
    Ok(Patched {
        inner,
        files,
        builtin,
    })
}

/// Checks the parameters of a range; gives the directory of the project that it belongs to.
fn parameters(
    given: Option<&str>,
    allowed: &[&str],
    [home, project]: [&RelPath; 2],
) -> Result<RelPath, &'static str> {
    let mut base = project.clone();
    let mut seen = Vec::new();
    for one in given.into_iter().flat_map(|given| given.split('&')) {
        let (key, value) = one.split_once('=').ok_or(PARAMETERS)?;
        if !allowed.contains(&key) || seen.contains(&key) || value.contains('+') {
            return Err(PARAMETERS);
        }
        seen.push(key);
        let value = decoded(value).ok_or(PARAMETERS)?;
        let plain = match key {
            "hash" => !value.is_empty() && value.bytes().all(|b| b.is_ascii_hexdigit()),
            "version" => fetchable::check("x", &value, "").is_ok(),
            _ => {
                let project = split(&value).and_then(|(_, at)| at.strip_prefix("workspace:"));
                base = project.and_then(|at| resolve(home, at)).ok_or(PARAMETERS)?;
                true
            }
        };
        if !plain {
            return Err(PARAMETERS);
        }
    }
    Ok(base)
}

/// Decodes as `decodeURIComponent` does, once.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let hex = core::str::from_utf8(after.get(..2)?).ok()?;
        if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = &after[2..];
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.contains(char::is_control)).then_some(text)
}

/// Says whether a text is a range of versions or a tag, and can be nothing else: no path, address or repository.
fn is_range(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || " .-+*^~<>=|_".contains(c);
    text.chars().all(known) && !text.starts_with('.')
}

/// Says whether a text is the name of another package, with a range of it.
fn is_alias(text: &str) -> bool {
    split(text).is_some_and(|(_, range)| is_range(range))
}

/// Says whether an address can be nothing but a tarball's.
fn is_address(url: &str) -> bool {
    let plain = url.split('?').next().unwrap_or(url);
    fetchable::is_web(url)
        && !url.contains(['#', ' '])
        && (plain.ends_with(".tgz") || plain.ends_with(".tar.gz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> RelPath {
        RelPath::root()
    }

    #[test]
    fn what_brings_data_alone_is_taken() {
        for (side, range) in [
            (Side::Asked, "^2.1.3"),
            (Side::Asked, "npm:^2.0.0 || >= 3"),
            (Side::Asked, "npm:latest"),
            (Side::Asked, "npm:@a/b@^1.0.0"),
            (Side::Taken, "npm:2.1.3"),
            (Side::Asked, "workspace:^"),
            (Side::Taken, "workspace:packages/b"),
            (Side::Asked, "link:./b::locator=app%40workspace%3A."),
            (
                Side::Taken,
                "file:./ms.tgz#./ms.tgz::hash=0123ab&locator=app%40workspace%3Apackages%2Fb",
            ),
            (Side::Taken, "https://host.example/ms-2.1.3.tgz"),
            (
                Side::Taken,
                "patch:ms@npm%3A2.1.3#~/.yarn/patches/ms.patch::version=2.1.3&hash=0123ab",
            ),
            (
                Side::Asked,
                "patch:ms@^2.1.3#./ms.patch::locator=app%40workspace%3A.",
            ),
            (Side::Asked, "patch:ms@^2.1.3#~builtin<compat/fsevents>"),
            (
                Side::Asked,
                "patch:ms@npm%3A^2.1.3#optional!builtin<compat/resolve>",
            ),
            (
                Side::Taken,
                "patch:ms@patch%3Ams@npm%253A2.1.3%23~/a.patch#~/b.patch",
            ),
        ] {
            assert!(read(side, "ms", range, &home()).is_ok(), "{range}");
        }
    }

    #[test]
    fn whatever_runs_or_leads_elsewhere_is_refused_at_any_depth() {
        let bad = [
            "exec:./gen.cjs",
            "user/repo",
            "github:user/repo",
            "git@host.example:user/repo.git",
            "git+https://host.example/x.git",
            "git://host.example/x",
            "ssh://git@host.example/x.tgz",
            "http://127.0.0.1:7798/evil.git#commit=0123",
            "https://host.example/x.git",
            "https://github.com/user/repo.tgz",
            "https://host.example/x.git#y.tgz",
            "https://host.example/x",
            "npm:user/repo",
            "npm:exec:./gen.cjs",
            "npm:2.1.2::__archiveUrl=http%3A%2F%2F127.0.0.1%2Fms-2.1.2.tgz",
            "npm:ms@2.1.2::__archiveUrl=x",
            "npm::2.1.2",
            "npm:2.1.2::",
            "virtual:0123ab#npm:2.1.3",
            "jsr:1.0.0",
            "catalog:",
            "file:../x.tgz",
            "file:./x.tgz::locator=evil%40npm%3A1.0.0",
            "link:/etc",
            "portal:../x",
            "1.0.0, evil@exec:./x",
            "",
        ];
        let encoded = |text: &str| text.replace('%', "%25").replace(':', "%3A").replace('#', "%23");
        for range in bad {
            let inner = format!("patch:ms@{}#~/a.patch", encoded(range));
            let twice = format!("patch:ms@{}#~/a.patch", encoded(&inner));
            let all = [range, &inner, &twice];
            for text in &all[usize::from(range.is_empty())..] {
                assert!(
                    read(Side::Asked, "ms", text, &home()).is_err() || range.is_empty(),
                    "{text}"
                );
                assert!(read(Side::Taken, "ms", text, &home()).is_err(), "{text}");
            }
        }
        for range in [
            "patch:ms@npm%3A2.1.3",
            "patch:ms@npm%3A2.1.3#../a.patch",
            "patch:ms@npm%3A2.1.3#/etc/passwd",
            "patch:ms@npm%3A2.1.3#~builtin<other>",
            "patch:ms@npm%3A2.1.3#",
            "patch:other@npm%3A2.1.3#~/a.patch",
            "patch:ms@workspace%3A.#~/a.patch",
            "patch:ms@npm%ZZ2.1.3#~/a.patch",
            "patch:ms@npm%3A2.1.3#~/a.patch::__archiveUrl=x",
            "patch:ms@npm%3A2.1.3#~/a.patch::hash=0&hash=1",
            "patch:ms@npm%3A2.1.3%3A%3A__archiveUrl=x#~/a.patch",
        ] {
            assert!(read(Side::Taken, "ms", range, &home()).is_err(), "{range}");
        }
    }
}
