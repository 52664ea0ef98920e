//! What an installer was told to install, and what must therefore be there whatever the platform is.
//!
//! Markers are not evaluated: an edge that has one makes nothing certain.

use super::uv_inputs::default_groups;
use super::{Declared, Dependency, Format, Lockfile, Package, Scope, Source};
use crate::installer::{Installer, ProjectInstall};
use std::collections::BTreeSet;

/// Says whether the dependencies of the project itself are installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Own {
    /// They are.
    #[default]
    Included,
    /// Only the chosen groups are.
    LeftOut,
}

/// Says which parts of a lockfile the installer was told to install.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Extras of the project.
    pub extras: BTreeSet<String>,
    /// Development groups of the project.
    pub groups: BTreeSet<String>,
    /// The dependencies of the project itself.
    pub own: Own,
    /// The package of the project itself.
    pub project: ProjectInstall,
}

impl Selection {
    /// Reads the arguments that choose what an installer installs.
    ///
    /// # Limits
    /// For what is chosen in a way that is not understood (`--package` of uv), nothing is taken as certain; the set
    /// of what is there is still held against the lock.
    #[must_use]
    pub fn of(
        lock: &Lockfile,
        declared: &Declared,
        installer: Installer,
        args: &[String],
        project: ProjectInstall,
    ) -> Self {
        let mut chosen = Selection {
            project,
            ..Selection::default()
        };
        match installer {
            Installer::Uv => chosen.uv(lock, declared, args),
            Installer::Npm => {
                let omits = |value: &str| value == "dev";
                let joined = args.iter().any(|a| a.strip_prefix("--omit=").is_some_and(omits));
                let apart = args.windows(2).any(|pair| pair[0] == "--omit" && omits(&pair[1]));
                if !joined && !apart {
                    chosen.groups.insert("dev".to_owned());
                }
            }
            Installer::Pip | Installer::Poetry | Installer::Pnpm | Installer::Yarn | Installer::Cargo => {}
        }
        chosen
    }

    fn uv(&mut self, lock: &Lockfile, declared: &Declared, args: &[String]) {
        let scopes = || {
            lock.packages
                .iter()
                .flat_map(|p| &p.dependencies)
                .map(|d| &d.scope)
        };
        let all_groups = || {
            scopes().filter_map(|s| {
                if let Scope::Dev(name) = s {
                    Some(name.clone())
                } else {
                    None
                }
            })
        };
        let all_extras = || {
            scopes().filter_map(|s| {
                if let Scope::Optional(name) = s {
                    Some(name.clone())
                } else {
                    None
                }
            })
        };
        self.groups = match default_groups(lock, declared) {
            Some(named) => named,
            None => all_groups().collect(),
        };
        let (mut without, mut without_extras) = (BTreeSet::new(), BTreeSet::new());
        let mut words = args.iter().map(String::as_str);
        let mut only = BTreeSet::new();
        while let Some(word) = words.next() {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option, value),
                None if TAKES_VALUE.contains(&word) => (word, words.next().unwrap_or("")),
                None => (word, ""),
            };
            let name = super::normal_name(value);
            match option {
                "--no-dev" => drop(without.insert("dev".to_owned())),
                "--dev" => drop(self.groups.insert("dev".to_owned())),
                "--no-default-groups" => self.groups.clear(),
                "--all-groups" => self.groups.extend(all_groups()),
                "--group" => drop(self.groups.insert(name)),
                "--no-group" => drop(without.insert(name)),
                "--extra" => drop(self.extras.insert(name)),
                "--no-extra" => drop(without_extras.insert(name)),
                "--all-extras" => self.extras.extend(all_extras()),
                "--only-dev" => drop(only.insert("dev".to_owned())),
                "--only-group" => drop(only.insert(name)),
                "--no-editable" | "--all-packages" => {}
                _ => {
                    *self = Selection {
                        own: Own::LeftOut,
                        project: self.project,
                        ..Selection::default()
                    };
                    return;
                }
            }
        }
        if !only.is_empty() {
            self.own = Own::LeftOut;
            self.extras.clear();
            self.groups = only;
        }
        // What is both asked for and refused is left to uv: nothing of it is certain.
        self.groups.retain(|name| !without.contains(name));
        self.extras.retain(|name| !without_extras.contains(name));
    }
}

const TAKES_VALUE: &[&str] = &[
    "--extra",
    "--group",
    "--no-extra",
    "--no-group",
    "--only-group",
    "--package",
];

impl Lockfile {
    /// Names what must be there after an install whatever the platform is: everything that the root reaches over
    /// edges without a marker, with the chosen extras and groups.
    #[must_use]
    pub fn must_be_installed(&self, selection: &Selection) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        match self.format {
            Format::Uv => self.walk(selection, &mut found),
            // These name what may be needed, and the build decides.
            Format::Cargo | Format::GoSum => {}
            // Only its manifests say what Yarn 1 leaves out, and Bundler asks the Gemfile for groups.
            Format::Yarn | Format::Gemfile => {}
            Format::Requirements
            | Format::Poetry
            | Format::Pdm
            | Format::Pylock
            | Format::Pipfile
            | Format::Pnpm
            | Format::Composer => {
                let chosen = |p: &&Package| match &p.scope {
                    Scope::Always => true,
                    Scope::Optional(extra) => selection.extras.contains(extra),
                    Scope::Dev(group) => selection.groups.contains(group),
                };
                let certain = self
                    .packages
                    .iter()
                    .filter(|p| p.condition.is_none())
                    .filter(chosen);
                found.extend(certain.map(|p| p.name.as_str()));
            }
            Format::PackageLock | Format::Shrinkwrap => {
                let places = self.npm_certain(selection);
                let placed = |p: &&Package| p.place.as_deref().is_some_and(|at| places.contains(at));
                found.extend(self.packages.iter().filter(placed).map(|p| p.name.as_str()));
            }
        }
        found
    }

    fn walk<'a>(&'a self, selection: &Selection, found: &mut BTreeSet<&'a str>) {
        let chosen = |d: &&Dependency| match &d.scope {
            Scope::Always => selection.own == Own::Included,
            Scope::Optional(extra) => selection.extras.contains(extra),
            Scope::Dev(group) => selection.groups.contains(group),
        };
        let certain = |d: &&Dependency| d.marker.is_none();
        let built = |p: &Package| match p.source {
            Source::Hashed | Source::Bundled => true,
            Source::Local(_) => selection.project == ProjectInstall::UnboundBackend,
            Source::Virtual(_) => false,
        };
        let mut queue: Vec<&Dependency> = Vec::new();
        for root in self.packages.iter().filter(|p| self.is_root(p)) {
            if built(root) && selection.own == Own::Included {
                found.insert(&root.name);
            }
            queue.extend(root.dependencies.iter().filter(chosen).filter(certain));
        }
        let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
        while let Some(edge) = queue.pop() {
            let mut targets = self.packages.iter().filter(|p| p.name == edge.name);
            let (Some(target), None) = (targets.next(), targets.next()) else {
                continue;
            };
            if target.condition.is_some() {
                continue;
            }
            if built(target) {
                found.insert(&target.name);
            }
            for extra in core::iter::once("").chain(edge.extras.iter().map(String::as_str)) {
                if !seen.insert((&target.name, extra)) {
                    continue;
                }
                let taken = |d: &&Dependency| match &d.scope {
                    Scope::Always => extra.is_empty(),
                    Scope::Optional(name) => !extra.is_empty() && name == extra,
                    Scope::Dev(_) => false,
                };
                queue.extend(target.dependencies.iter().filter(taken).filter(certain));
            }
        }
    }

    /// Says whether a local package is the project that the lockfile lies beside.
    fn is_root(&self, package: &Package) -> bool {
        match &package.source {
            Source::Local(at) | Source::Virtual(at) => *at == self.directory(),
            Source::Hashed | Source::Bundled => false,
        }
    }
}
