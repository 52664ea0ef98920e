//! Where a dependency leads in a lock of pnpm or Yarn, which name packages by what is asked for and not by place.

use super::npm::Project;
use super::{Dependency, Facts, Lockfile, Package, Scope, incomplete};
use crate::code::Refusal;
use std::collections::BTreeMap;

/// Finds packages of a lock by what asks for them.
pub(crate) struct Links<'a> {
    lock: &'a Lockfile,
    by_place: BTreeMap<&'a str, usize>,
    by_name: BTreeMap<&'a str, Vec<usize>>,
}

impl<'a> Links<'a> {
    /// Looks over a lock; `None` for one of another kind.
    pub(crate) fn of(lock: &'a Lockfile) -> Option<Self> {
        if !matches!(lock.facts, Facts::Pnpm(_) | Facts::Yarn(_) | Facts::Berry(_)) {
            return None;
        }
        let mut links = Self {
            lock,
            by_place: BTreeMap::new(),
            by_name: BTreeMap::new(),
        };
        for (at, package) in lock.packages.iter().enumerate() {
            links.by_name.entry(&package.name).or_default().push(at);
            if let Some(place) = &package.place {
                links.by_place.insert(place, at);
            }
        }
        Some(links)
    }

    /// Gives every package of a name.
    pub(crate) fn named(&self, name: &str) -> &[usize] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Gives what may answer an edge; nothing where it leads to a project of the tree.
    ///
    /// What was answered by hand (`resolutions`) is any package of the name.
    pub(crate) fn answers(&self, edge: &Dependency) -> Vec<usize> {
        let range = edge.version.as_deref().unwrap_or("");
        let exact = format!("{}@{range}", edge.name);
        let patterns = match &self.lock.facts {
            Facts::Pnpm(_) => return self.by_place.get(range).copied().into_iter().collect(),
            Facts::Yarn(facts) => &facts.patterns,
            Facts::Berry(facts) => &facts.patterns,
            _ => return Vec::new(),
        };
        let plain = format!("{}@npm:{range}", edge.name);
        let mut found: Vec<usize> = [exact.as_str(), plain.as_str()]
            .iter()
            .filter_map(|key| patterns.get(*key).copied())
            .collect();
        if found.is_empty() {
            let longer = format!("{exact}::");
            let more = patterns.range(longer.clone()..);
            found.extend(
                more.take_while(|(key, _)| key.starts_with(&longer))
                    .map(|(_, at)| *at),
            );
        }
        if found.is_empty() {
            found.extend(self.named(&edge.name));
        }
        // A patch that Yarn itself puts on a package has the name and the version of what it changes.
        let patched: Vec<usize> = found
            .iter()
            .flat_map(|at| {
                let package = &self.lock.packages[*at];
                let same = |other: &&usize| self.lock.packages[**other].version == package.version;
                self.named(&package.name)
                    .iter()
                    .filter(same)
                    .copied()
                    .collect::<Vec<_>>()
            })
            .collect();
        found.extend(patched);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Gives what the project beside the lock asks for; `manifest` is its `package.json`.
    ///
    /// # Errors
    /// `lock_incomplete` where the manifest does not parse.
    pub(crate) fn roots(&self, manifest: &str) -> Result<Vec<Dependency>, Refusal> {
        if let Facts::Pnpm(facts) = &self.lock.facts {
            return Ok(facts.roots.clone());
        }
        let project: Project =
            serde_json::from_str(manifest.trim_start_matches('\u{feff}')).map_err(|e| {
                incomplete(&self.lock.path, "has a manifest that does not parse").name(e.to_string())
            })?;
        let mut all: BTreeMap<&String, Dependency> = BTreeMap::new();
        for (map, scope) in [
            (&project.dev_dependencies, Scope::Dev("dev".to_owned())),
            (&project.dependencies, Scope::Always),
            (&project.optional_dependencies, Scope::Optional(String::new())),
        ] {
            for (name, range) in &map.0 {
                let edge = Dependency {
                    name: name.clone(),
                    version: Some(range.clone()),
                    extras: Vec::new(),
                    scope: scope.clone(),
                    marker: None,
                };
                all.insert(name, edge);
            }
        }
        Ok(all.into_values().collect())
    }

    /// Gives a package.
    pub(crate) fn package(&self, at: usize) -> &'a Package {
        &self.lock.packages[at]
    }
}
