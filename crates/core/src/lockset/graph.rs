//! The part of closing a lock that is the same in every format with a graph.

use super::{Dependency, Lockfile, Package, incomplete, label};
use crate::code::Refusal;
use std::collections::BTreeMap;

/// Bounds how many entries one edge may lead to, so that a hostile lock costs no more than its size.
const MOST_VERSIONS: usize = 256;

/// Finds packages by name, and says where each edge leads.
pub(super) struct Graph<'a> {
    lock: &'a Lockfile,
    by_name: BTreeMap<&'a str, Vec<usize>>,
}

/// Says whether an edge may lead nowhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// It may: the tool leaves such a dependency out.
    Allowed,
    /// It is the sign of a cut.
    Refused,
}

impl<'a> Graph<'a> {
    /// Looks over the packages of a lockfile.
    pub(super) fn new(lock: &'a Lockfile) -> Self {
        let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, package) in lock.packages.iter().enumerate() {
            by_name.entry(&package.name).or_default().push(at);
        }
        Self { lock, by_name }
    }

    /// Gives every package of a name.
    pub(super) fn named(&self, name: &str) -> &[usize] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Gives where an edge leads: by name, and by version where the edge says one.
    pub(super) fn find(&self, edge: &Dependency) -> Vec<usize> {
        let fits = |at: &&usize| edge.version.is_none() || self.lock.packages[**at].version == edge.version;
        self.named(&edge.name).iter().filter(fits).copied().collect()
    }

    /// Proves that every edge leads somewhere by name; gives where, for each package.
    pub(super) fn edges(
        &self,
        lost: impl Fn(&Package, &Dependency) -> Lost,
    ) -> Result<Vec<Vec<usize>>, Refusal> {
        self.edges_by(|_, edge| self.find(edge), lost)
    }

    /// Proves that every edge leads somewhere, as the format finds it; gives where, for each package.
    pub(super) fn edges_by(
        &self,
        find: impl Fn(&Package, &Dependency) -> Vec<usize>,
        lost: impl Fn(&Package, &Dependency) -> Lost,
    ) -> Result<Vec<Vec<usize>>, Refusal> {
        let mut all = Vec::with_capacity(self.lock.packages.len());
        for package in &self.lock.packages {
            let mut targets = Vec::new();
            for edge in &package.dependencies {
                let found = find(package, edge);
                if found.is_empty() && lost(package, edge) == Lost::Refused {
                    let asked = match &edge.version {
                        Some(key) if key.starts_with(&edge.name) => key.clone(),
                        Some(version) => format!("{}@{version}", edge.name),
                        None => edge.name.clone(),
                    };
                    return Err(
                        incomplete(&self.lock.path, "names a dependency that it does not hold")
                            .name(format!("{asked} of {}", label(package))),
                    );
                }
                if found.len() > MOST_VERSIONS {
                    return Err(incomplete(
                        &self.lock.path,
                        "holds more versions of a package than anybody needs",
                    )
                    .name(&edge.name));
                }
                targets.extend(found);
            }
            all.push(targets);
        }
        Ok(all)
    }

    /// Proves that every package is asked for, from the roots on.
    pub(super) fn no_orphan(&self, edges: &[Vec<usize>], roots: Vec<usize>) -> Result<(), Refusal> {
        let reached = reach(edges, roots);
        match self
            .lock
            .packages
            .iter()
            .zip(&reached)
            .find(|(_, reached)| !**reached)
        {
            Some((orphan, _)) => {
                Err(incomplete(&self.lock.path, "holds a package that nothing asks for").name(label(orphan)))
            }
            None => Ok(()),
        }
    }
}

/// Marks what the roots lead to.
pub(super) fn reach(edges: &[Vec<usize>], roots: Vec<usize>) -> Vec<bool> {
    let mut reached = vec![false; edges.len()];
    let mut queue = roots;
    while let Some(at) = queue.pop() {
        if !core::mem::replace(&mut reached[at], true) {
            queue.extend(&edges[at]);
        }
    }
    reached
}
