//! What lies in the tree beside what was sealed: no merge will hold it, so none of it may change what the tests say.

use super::super::{input, surface};
use super::installed::Installed;
use super::{Attempt, Evidence};
use semel_core::install::Fact;
use semel_core::install::commanded::Filled;
use semel_core::job::InGit;
use semel_core::manifest::Manifest;
use semel_core::{Code, Confinement, Refusal, RelPath};
use semel_host::installer::Sealed;
use std::collections::BTreeSet;

/// How many files beside the tree are named at most.
const NAMED: usize = 100;

impl Attempt<'_> {
    /// Gives the file that leads to the repository of this attempt, where there is one.
    pub(super) fn gitlink(&self) -> Result<Option<RelPath>, Refusal> {
        match self.ask.certify.git {
            InGit::None => Ok(None),
            InGit::OneCommit => RelPath::parse(b".git").map(Some),
        }
    }

    /// Gives what is neither sealed nor installed, and known: declared caches, and what leads to the repository.
    pub(super) fn aside(&self) -> Result<Vec<RelPath>, Refusal> {
        let caches = self.ask.certify.caches.iter().cloned();
        Ok(caches.chain(self.gitlink()?).collect())
    }

    /// Lists what is in the tree and was neither sealed, nor installed, nor lies in a declared cache.
    fn beside(&self, installed: &Installed, manifest: &Manifest) -> Result<Vec<RelPath>, Refusal> {
        let environments = installed.environments().into_iter();
        let apart = environments.chain(installed.filled()?).chain(self.aside()?);
        input::new_files(manifest, &apart.collect(), self.disk.tree())
    }

    /// Sets apart what an installation left in the tree besides what it installed: no merge will hold it.
    ///
    /// The project's own build may write such files. Each is named as weak; one that can change what the tests say
    /// is refused, since the merged tree would be tested without it.
    pub(super) fn set_apart(
        &self,
        installed: &Installed,
        manifest: &Manifest,
        evidence: &mut Evidence,
    ) -> Result<Vec<RelPath>, Refusal> {
        let new = self.beside(installed, manifest)?;
        none_guilty(installed, &new, LEFT)?;
        if new.len() > NAMED {
            let more = format!("{} more files", new.len() - NAMED);
            evidence.weaken("new_file", [more]);
        }
        evidence.weaken("new_file", new.iter().take(NAMED).map(ToString::to_string));
        Ok(new)
    }

    /// Checks that nothing came into the tree while the tests ran. Where the sandbox stood whole they could not write
    /// there, so whoever did is none of this attempt; elsewhere what they left is named as weak.
    pub(super) fn nothing_appeared(
        &self,
        installed: &Installed,
        manifest: &Manifest,
        before: &[RelPath],
        evidence: &mut Evidence,
    ) -> Result<(), Refusal> {
        let now = self.beside(installed, manifest)?;
        let before: BTreeSet<&RelPath> = before.iter().collect();
        let new: Vec<&RelPath> = now.iter().filter(|path| !before.contains(path)).collect();
        let why = "files came into the tree while the tests ran";
        let whole = evidence.level.as_ref();
        if !new.is_empty() && whole.is_some_and(|level| level.confinement == Confinement::Full) {
            return Err(guilty(new.iter().map(ToString::to_string), why));
        }
        none_guilty(installed, new.iter().copied(), why)?;
        evidence.weaken("new_file", new.iter().take(NAMED).map(ToString::to_string));
        Ok(())
    }

    /// Refuses what a command left where it would be no installed thing: in a cache, which the tests write, and where a
    /// runner would take it for source.
    pub(super) fn none_astray(&self, filled: &[Filled], sealed: &Sealed<'_>) -> Result<(), Refusal> {
        let caches = &self.ask.certify.caches;
        let mut cached = Vec::new();
        let mut astray = Vec::new();
        for one in filled {
            let root = place_in_tree(&one.observed.root)?;
            for (path, fact) in &one.observed.entries {
                let path = path
                    .components()
                    .try_fold(root.clone(), |at, part| at.join(part))?;
                if caches.iter().any(|cache| path.is_below(cache) || path == *cache) {
                    cached.push(path.to_string());
                    continue;
                }
                let led = match fact {
                    Fact::Symlink { target } => leads_to_tests(&path, target, &one.place.tree, sealed)?,
                    Fact::File { .. } | Fact::Directory { .. } | Fact::Other => false,
                };
                let own = one.tree.is_none() && !matches!(fact, Fact::Directory { .. });
                if led || own && is_astray(&path, sealed)? {
                    astray.push(path.to_string());
                }
            }
        }
        if !cached.is_empty() {
            let why =
                "the install command wrote into a directory that the job declares as a cache of its tests";
            return Err(guilty(cached, why));
        }
        match astray.is_empty() {
            true => Ok(()),
            false => Err(guilty(astray, LEFT)),
        }
    }
}

const LEFT: &str = "the installation left files in the tree that can change what the tests say";

fn guilty(names: impl IntoIterator<Item = String>, why: &str) -> Refusal {
    let names = names.into_iter().take(NAMED);
    Refusal::new(Code::TreeMismatch, why)
        .reason("new_file")
        .names(names)
}

/// Refuses, by what it says of them, files that no merge will hold and that can change what the tests say.
fn none_guilty<'p>(
    installed: &Installed,
    files: impl IntoIterator<Item = &'p RelPath>,
    why: &str,
) -> Result<(), Refusal> {
    let built = installed.built();
    let found = files.into_iter().filter(|path| {
        // A build of the project may write modules; nothing else has a reason to.
        let found = !built && surface::is_found(path);
        surface::concerns_tests(path) || found || path.as_bytes().ends_with(b".pyc")
    });
    let found: Vec<String> = found.take(NAMED).map(ToString::to_string).collect();
    match found.is_empty() {
        true => Ok(()),
        false => Err(guilty(found, why)),
    }
}

pub(super) fn place_in_tree(root: &RelPath) -> Result<RelPath, Refusal> {
    let parts: Vec<&[u8]> = root.components().skip(1).collect();
    RelPath::parse(&parts.join(&b'/'))
}

/// Says whether a runner would take what a command left, of no known layout, for source: a file beside source that
/// concerns tests or is code, a directory of tests, a package of Python at the root; and, anywhere, code of tests, which a
/// runner that collects the whole tree would count.
fn is_astray(path: &RelPath, sealed: &Sealed<'_>) -> Result<bool, Refusal> {
    let parts: Vec<&[u8]> = path.components().collect();
    // The outermost directory in which nothing was sealed.
    let mut top = RelPath::root();
    for part in &parts[..parts.len().saturating_sub(1)] {
        top = top.join(part)?;
        if !sealed.has(&top) {
            break;
        }
    }
    if sealed.has(&top) {
        return Ok(surface::is_found(path) || surface::concerns_tests(path) || is_in_place_of(path, sealed)?);
    }
    // Where nextest and others keep their settings.
    let settings = matches!(parts.as_slice(), [b".config", _]) && surface::concerns_tests(path);
    let package = matches!(parts.as_slice(), [_, b"__init__.py" | b"__main__.py"]);
    let in_go = path.as_bytes().ends_with(b".go");
    let collected = (surface::shadows(path) || in_go) && surface::concerns_tests(path) || is_target(&parts);
    Ok(package || collected || settings || surface::concerns_tests(&top.join(b"x")?))
}

/// Says whether cargo finds a target by where its source lies.
fn is_target(parts: &[&[u8]]) -> bool {
    let of_targets = |two: &[&[u8]]| matches!(two, [b"src", b"bin"]);
    let found = parts.windows(2).any(of_targets)
        || parts.iter().any(|part| matches!(*part, b"examples" | b"benches"));
    found && parts.last().is_some_and(|name| name.ends_with(b".rs"))
}

/// Says whether Node would take a file of data for a module that is a sealed directory.
fn is_in_place_of(path: &RelPath, sealed: &Sealed<'_>) -> Result<bool, Refusal> {
    match path.as_bytes().strip_suffix(b".json") {
        Some(stem) => Ok(sealed.has(&RelPath::parse(stem)?)),
        None => Ok(false),
    }
}

/// Says whether a link by a command would have tests counted again: it has the name of a directory of tests, or it leads to
/// sealed tests, or to a directory around them that is no package of its own.
fn leads_to_tests(path: &RelPath, target: &[u8], tree: &[u8], sealed: &Sealed<'_>) -> Result<bool, Refusal> {
    let modules = path.components().any(|part| part == b"node_modules");
    let (_, name) = path.split_last().unwrap_or((RelPath::root(), b""));
    if !modules && surface::concerns_tests(&RelPath::parse(name)?.join(b"x")?) {
        return Ok(true);
    }
    let whole = match target.strip_prefix(tree) {
        Some(rest) if rest.first().is_none_or(|byte| *byte == b'/') => rest.to_vec(),
        // One that leads out is refused as that.
        _ if target.starts_with(b"/") => return Ok(false),
        _ => {
            let (parent, _) = path.split_last().unwrap_or((RelPath::root(), b""));
            [parent.as_bytes(), b"/", target].concat()
        }
    };
    let start = whole.iter().position(|byte| *byte != b'/').unwrap_or(whole.len());
    let Ok(led) = RelPath::parse(&whole[start..]) else {
        return Ok(false);
    };
    if sealed.leads_on(&led) {
        return Ok(true);
    }
    if !sealed.holds(&led) {
        return Ok(false);
    }
    // A package of a workspace brings its own tests along; tools link it as a whole.
    let manifests: [&[u8]; 2] = [b"package.json", b"composer.json"];
    let is_package = manifests
        .iter()
        .map(|manifest| led.join(manifest))
        .collect::<Result<Vec<_>, _>>()?;
    let package = !led.is_root() && sealed.entries().any(|entry| is_package.contains(entry));
    if package && !surface::concerns_tests(&led.join(b"x")?) {
        return Ok(false);
    }
    let inside = |entry: &&RelPath| led.is_root() || **entry == led || entry.is_below(&led);
    Ok(sealed.entries().filter(inside).any(surface::concerns_tests))
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::manifest::{Entry, FileMode};

    fn at(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_a_runner_takes_for_source_is_astray() {
        let file = |path: &str| Entry::File {
            path: at(path),
            mode: FileMode::Plain,
            sha256: semel_core::Sha256::of(b""),
            size: 0,
        };
        let manifest = Manifest {
            version: 1,
            archive_sha256: semel_core::Sha256::of(b""),
            archive_size: 0,
            tree: None,
            entries: vec![file("src/app.py"), file("tests/test_app.py")],
            left_out: Vec::new(),
        };
        let sealed = Sealed::of(&manifest, &[]);
        for (path, astray) in [
            ("conftest.py", true),
            ("src/idna.py", true),
            ("tests/data.txt", true),
            ("more/tests/x.txt", false),
            ("spec/x.txt", true),
            (".cargo/config.toml", true),
            ("pytest/__init__.py", true),
            ("src/x.pyc", true),
            ("src/app.mts", true),
            ("src/bin/e.rs", true),
            ("src/more.go", true),
            ("gen/more_test.go", true),
            ("gen/more.go", false),
            ("examples/e.rs", true),
            ("src.json", true),
            ("src/data.json", false),
            (".config/nextest.toml", true),
            (".config/other.toml", false),
            (".rspec", true),
            ("vend/a.test.mts", true),
            ("vendor/acme/test_a.py", true),
            ("vendor/acme/a.test.js", true),
            // What a tool vendors brings its own tests, in languages whose runners look at the project's own alone.
            ("vendor/acme/tests/a_test.php", false),
            ("vendor/acme/src/a.js", false),
            ("vendor/autoload.php", false),
            ("LICENSES.txt", false),
            ("src/data.bin", false),
        ] {
            assert_eq!(is_astray(&at(path), &sealed).unwrap(), astray, "{path}");
        }
    }

    #[test]
    fn a_link_that_has_tests_counted_again_is_astray() {
        let file = |path: &str| Entry::File {
            path: at(path),
            mode: FileMode::Plain,
            sha256: semel_core::Sha256::of(b""),
            size: 0,
        };
        let manifest = Manifest {
            version: 1,
            archive_sha256: semel_core::Sha256::of(b""),
            archive_size: 0,
            tree: None,
            entries: vec![
                file("src/app.js"),
                file("test/a.test.js"),
                file("lib/one.test.js"),
                file("packages/b/package.json"),
                file("packages/b/test/b.test.js"),
                file("data/x.bin"),
                Entry::Symlink {
                    path: at("again"),
                    target: "test".to_owned(),
                },
            ],
            left_out: Vec::new(),
        };
        let sealed = Sealed::of(&manifest, &[]);
        for (path, target, astray) in [
            ("tests2", "test", true),
            ("tests2", "./test/", true),
            ("tests2", "/v/tree/test", true),
            ("vendor/x", "../test", true),
            ("vendor/x", "../test/a.test.js", true),
            ("vendor/x", "..", true),
            ("more", ".", true),
            ("more", "lib", true),
            ("more", "again", true),
            ("more", "again/a.test.js", true),
            ("more", "packages", true),
            ("more", "packages/b/test", true),
            ("tests", "data", true),
            ("node_modules/x", "../test", true),
            ("node_modules/tests", "../data", false),
            ("node_modules/b", "../packages/b", false),
            ("vendor/acme/b", "../../packages/b/", false),
            ("vendor/in", "../src", false),
            ("vendor/in", "../data/x.bin", false),
            ("vendor/in", "/v/treetop/test", false),
        ] {
            let found = leads_to_tests(&at(path), target.as_bytes(), b"/v/tree", &sealed).unwrap();
            assert_eq!(found, astray, "{path} -> {target}");
        }
    }
}
