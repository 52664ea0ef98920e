//! The test surface: what changed against the base that can change what the tests say.
//!
//! A tree can lie about its own tests; this list shows a reviewer where to look. It judges nothing.

use super::super::proposal::BaseTree;
use super::super::{Engine, host, store};
use super::attempt::Evidence;
pub(super) use super::concern::concerns_tests;
use super::sign;
use crate::engine::job::say::Say;
use semel_core::certificate::{self, BaseCommit, BaseTests};
use semel_core::git_tree::{BlobHasher, Mode, ObjectFormat, ObjectId};
use semel_core::install::InstallRecord;
use semel_core::manifest::{Entry, FileMode, Manifest};
use semel_core::{Refusal, RelPath, Sha256};
use semel_host::files::read_file;
use semel_host::plain;
use semel_host::root::Root;
use std::collections::{BTreeMap, BTreeSet};

const LARGEST: u64 = 64 << 20;

/// Is what a proposal is compared with.
pub(super) struct Against<'a> {
    pub(super) base: Option<BaseTree>,
    pub(super) manifest: &'a Manifest,
    pub(super) root: &'a Root,
}

impl Against<'_> {
    /// Tells the evidence of the base, of the paths that concern the tests, and of the base's own tests.
    pub(super) fn tell(&self, engine: &Engine, evidence: &mut Evidence, say: Say<'_>) -> Result<(), Refusal> {
        evidence.surface = self.changed(&concerns_tests)?;
        let Some(base) = &self.base else {
            say.line("surface  no base was given: nothing is compared");
            return Ok(());
        };
        evidence.base = Some(BaseCommit {
            commit: base.commit,
            tree: base.tree,
        });
        evidence.base_tests = base_tests(engine, &base.tree)?;
        Ok(())
    }

    /// Tells it of root modules, too, that have the name of an installed one.
    pub(super) fn tell_modules(
        &self,
        records: &[InstallRecord],
        evidence: &mut Evidence,
    ) -> Result<(), Refusal> {
        let modules = modules(records);
        let shadows = |path: &RelPath| stands_for(path, &modules) && !concerns_tests(path);
        evidence.surface.extend(self.changed(&shadows)?);
        evidence.surface.sort();
        Ok(())
    }

    /// Lists the paths that were changed, added or removed, of those that concern the tests; all of them where there is no
    /// base.
    fn changed(&self, concerns: &dyn Fn(&RelPath) -> bool) -> Result<Vec<RelPath>, Refusal> {
        let Some(base) = &self.base else {
            let all = self
                .manifest
                .entries
                .iter()
                .map(Entry::path)
                .filter(|path| concerns(path));
            return Ok(all.cloned().collect());
        };
        let before = base.leaves.iter().filter(|leaf| concerns(&leaf.path));
        let mut before: BTreeMap<&RelPath, (Mode, ObjectId)> =
            before.map(|leaf| (&leaf.path, (leaf.mode, leaf.id))).collect();
        let mut changed = Vec::new();
        for entry in self
            .manifest
            .entries
            .iter()
            .filter(|entry| concerns(entry.path()))
        {
            let now = identity(entry, self.root, base.repository.format())?;
            if before.remove(entry.path()) != Some(now) {
                changed.push(entry.path().clone());
            }
        }
        changed.extend(before.into_keys().cloned());
        changed.sort();
        Ok(changed)
    }
}

/// Finds what the last certificate of the base's tree counted; `None` where there is none, or it is gone.
fn base_tests(engine: &Engine, tree: &ObjectId) -> Result<Option<BaseTests>, Refusal> {
    let judged = engine.journal.tree_judgements(tree.to_string()).map_err(store)?;
    let Some(last) = judged.into_iter().rfind(|judgement| judgement.refusal.is_none()) else {
        return Ok(None);
    };
    let place = sign::paths(&engine.config.state, &last.generation).envelope;
    // The journal says which bytes these are; other ones, or none, count nothing.
    let Ok(envelope) = plain::read_file(&place, LARGEST) else {
        return Ok(None);
    };
    if Sha256::of(&envelope) != last.certificate {
        return Ok(None);
    }
    let statement = certificate::open(&envelope, &[])?.statement?;
    Ok(statement.predicate.report.map(|report| BaseTests {
        certificate: last.certificate,
        counts: report.counts,
        generation: last.generation,
    }))
}

fn identity(entry: &Entry, root: &Root, format: ObjectFormat) -> Result<(Mode, ObjectId), Refusal> {
    let (mode, bytes) = match entry {
        Entry::Symlink { target, .. } => (Mode::Symlink, target.clone().into_bytes()),
        Entry::File { path, mode, .. } => {
            let mode = match mode {
                FileMode::Executable => Mode::Executable,
                FileMode::Plain => Mode::File,
            };
            (mode, read_file(root, path, LARGEST).map_err(host)?.bytes)
        }
    };
    let mut hasher = BlobHasher::new(format, bytes.len() as u64);
    hasher.update(&bytes);
    Ok((mode, hasher.finish()?))
}

/// Says whether a path is code that would be loaded in place of an installed module of that name.
pub(super) fn shadows(path: &RelPath) -> bool {
    let code: [&[u8]; 13] = [
        b".py", b".so", b".pyd", b".js", b".mjs", b".cjs", b".node", b".ts", b".mts", b".cts", b".jsx",
        b".tsx", b".wasm",
    ];
    let installed = path.components().any(|part| part == b"node_modules");
    !installed && code.iter().any(|end| path.as_bytes().ends_with(end))
}

/// Says whether a path is source that compilers and runners find by themselves where it lies beside other source.
pub(super) fn is_found(path: &RelPath) -> bool {
    let source: [&[u8]; 12] = [
        b".rs", b".go", b".rb", b".php", b".java", b".kt", b".scala", b".cs", b".swift", b".ex", b".exs",
        b".pyc",
    ];
    shadows(path) || source.iter().any(|end| path.as_bytes().ends_with(end))
}

/// Gives the names of the modules of Python that were installed, and those of test runners.
pub(super) fn modules(records: &[InstallRecord]) -> BTreeSet<Vec<u8>> {
    let runners: [&[u8]; 6] = [
        b"pytest",
        b"_pytest",
        b"pluggy",
        b"unittest",
        b"doctest",
        b"coverage",
    ];
    let mut names: BTreeSet<Vec<u8>> = runners.iter().map(|name| name.to_vec()).collect();
    for path in records.iter().flat_map(|record| record.entries.keys()) {
        let mut parts = path.components().skip_while(|part| *part != b"site-packages");
        if let Some(name) = parts.nth(1) {
            names.insert(stem(name).to_vec());
        }
    }
    names
}

/// Says whether a path is a module at the root of the tree that would be loaded in place of one of these names.
pub(super) fn stands_for(path: &RelPath, modules: &BTreeSet<Vec<u8>>) -> bool {
    let parts: Vec<&[u8]> = path.components().collect();
    match parts[..] {
        [file] => shadows(path) && modules.contains(stem(file)),
        [package, b"__init__.py" | b"__main__.py"] => modules.contains(package),
        _ => false,
    }
}

fn stem(name: &[u8]) -> &[u8] {
    name.split(|b| *b == b'.').next().unwrap_or_default()
}
