//! What a command of the job installed: recorded byte by byte, and bound to its locks as far as anything binds it.
//!
//! No artifact is compared, since nobody but the command knows what it fetched. What is compared is what the tree says
//! of itself, as [`super::kept`] does, and the set of packages with that of the locks, both ways.

use super::kept::Tree;
use super::python::{self, Origin};
use super::survey::{self, Surveyed};
use super::venv::Venv;
use super::{Bound, Fact, MOST_NAMES, Observed, Place, commands, mismatch, stays};
use crate::code::Refusal;
use crate::installer::InstallCommand;
use crate::lockset::{Lockfile, Selection};
use std::collections::BTreeSet;

/// The installers whose locks name what lies in a virtual environment.
const OF_PYTHON: [&str; 5] = ["uv", "pip", "poetry", "pdm", "pipenv"];
/// The installers whose locks name what lies in `node_modules`.
const OF_NODE: [&str; 3] = ["npm", "pnpm", "yarn"];
/// What `python -m venv` and virtualenv put into an environment by themselves.
const SEEDS: [&str; 3] = ["pip", "setuptools", "wheel"];

/// Holds one place that a command filled, as it was seen.
#[derive(Clone, Debug)]
pub struct Filled {
    /// What it was recognised as; `None` for everything that is no installed tree of a known kind.
    pub tree: Option<Tree>,
    /// Every entry of it.
    pub observed: Observed,
    /// Where it lies on the host.
    pub place: Place,
}

/// Binds what a command installed to the locks that it is held against, as far as that goes.
///
/// # Errors
/// `record_mismatch` for an installed tree that is not as it says itself, for a package that no lock names or of another
/// version, for a locked one that is missing, and for a package of an ecosystem of which there is no lock;
/// `record_outside_root` for whatever leads out of this generation.
pub fn bind(command: &InstallCommand, filled: &[Filled], locks: &[Lockfile]) -> Result<Vec<Bound>, Refusal> {
    let mut all = Vec::new();
    for one in filled {
        all.push(match one.tree {
            Some(tree) => recognised(tree, one, filled, locks)?,
            None => other(one)?,
        });
    }
    let found: BTreeSet<String> = all
        .iter()
        .flat_map(|bound| bound.packages.iter().cloned())
        .collect();
    let found: BTreeSet<&str> = found
        .iter()
        .filter_map(|package| package.rsplit_once("=="))
        .map(|(name, _)| name)
        .collect();
    let of_node: Vec<&Lockfile> = locks.iter().filter(|lock| is_of(lock, &OF_NODE)).collect();
    let linked = commands::linked_projects(filled, &of_node);
    let known = locks
        .iter()
        .filter(|lock| is_of(lock, &OF_PYTHON) || is_of(lock, &OF_NODE));
    for lock in known {
        let certain = lock.must_be_installed(&Selection::default());
        let there = |name: &&str| found.contains(name) || linked.contains(*name);
        let missing: Vec<&str> = certain.into_iter().filter(|name| !there(name)).collect();
        if !missing.is_empty() {
            return Err(mismatch("a locked package is not installed")
                .name(lock.path.to_string())
                .names(missing.into_iter().take(MOST_NAMES)));
        }
    }
    let about = format!(
        "by the command `{command}`: its bytes are recorded and kept, no artifact was compared with a lock"
    );
    match all.first_mut() {
        Some(first) => first.weak.push(about),
        None => return Err(mismatch("a command installed nothing")),
    }
    Ok(all)
}

fn is_of(lock: &Lockfile, installers: &[&str]) -> bool {
    installers.contains(&lock.format.installer())
}

fn recognised(tree: Tree, one: &Filled, all: &[Filled], locks: &[Lockfile]) -> Result<Bound, Refusal> {
    let root = &one.observed.root;
    // What leads away is told of as such, whatever else is wrong: it comes again with each attempt.
    survey::leads_out(tree, &one.observed, &one.place)?;
    let Surveyed {
        installed,
        warnings,
        unlocked,
    } = survey::survey(tree, &one.observed, &one.place, locks)?;
    // Of what no lock holds, each is told by itself.
    let told = warnings.iter().filter(|why| !why.starts_with(survey::IN_NO_LOCK));
    let mut weak: Vec<String> = told.map(|why| format!("{root}: {why}")).collect();
    let excused = match tree {
        Tree::Venv => of_venv(one, locks, &mut weak)?,
        Tree::NodeModules => {
            let own: Vec<&Lockfile> = locks.iter().filter(|lock| is_of(lock, &OF_NODE)).collect();
            if own.is_empty() {
                let why = "modules of Node are installed, and no lock of Node names any";
                return Err(mismatch(why).name(root.to_string()));
            }
            commands::are_declared(one, all, &own)?;
            BTreeSet::new()
        }
        Tree::CargoHome | Tree::CargoVendor => BTreeSet::new(),
    };
    let more: Vec<&String> = unlocked.iter().filter(|name| !excused.contains(*name)).collect();
    if !more.is_empty() {
        return Err(mismatch("a package is installed that no lock names")
            .name(root.to_string())
            .names(more.into_iter().take(MOST_NAMES)));
    }
    Ok(Bound {
        packages: installed,
        weak,
    })
}

/// Checks where each distribution comes from, as far as its installer wrote it down; gives those that need no lock.
fn of_venv(one: &Filled, locks: &[Lockfile], weak: &mut Vec<String>) -> Result<BTreeSet<String>, Refusal> {
    let root = &one.observed.root;
    let venv = Venv::open(&one.observed, &one.place)?;
    let locks: Vec<&Lockfile> = locks.iter().filter(|lock| is_of(lock, &OF_PYTHON)).collect();
    let mut excused = BTreeSet::new();
    for info in venv.distributions()? {
        let dist = venv.read(&info)?;
        let shown = format!("{}=={}", dist.name, dist.version);
        let locked = locks
            .iter()
            .any(|lock| lock.packages.iter().any(|package| package.name == dist.name));
        if !locked && python::built_from(&dist, &one.place) {
            weak.push(format!(
                "{root}: {} was built from the tree by an unlocked backend",
                dist.name
            ));
            excused.insert(shown);
        } else if !locked && SEEDS.contains(&dist.name.as_str()) {
            weak.push(format!(
                "{root}: {shown} is in no lock; who makes an environment puts it there"
            ));
            excused.insert(shown);
        } else {
            match dist.origin(&locks, &one.place)? {
                Origin::Tree => {
                    weak.push(format!(
                        "{root}: {} was built from the tree by an unlocked backend",
                        dist.name
                    ));
                }
                Origin::Lock(_) => {}
            }
        }
    }
    Ok(excused)
}

/// Checks that nothing in what is of no known layout leads away.
fn other(one: &Filled) -> Result<Bound, Refusal> {
    let (mut entries, mut first) = (0_usize, None);
    for (path, fact) in &one.observed.entries {
        match fact {
            Fact::Symlink { target } => drop(stays(&one.place, path, target)?),
            Fact::Directory { .. } => continue,
            Fact::File { .. } | Fact::Other => {}
        }
        entries += 1;
        first = first.or(Some(path));
    }
    let mut weak = Vec::new();
    if let Some(first) = first {
        weak.push(match entries {
            1 => format!("{first} is of no known layout: it is recorded, and compared with nothing"),
            n => format!(
                "{first} and {} more files are of no known layout: they are recorded, and compared with nothing",
                n - 1
            ),
        });
    }
    Ok(Bound {
        packages: BTreeSet::new(),
        weak,
    })
}
