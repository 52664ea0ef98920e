//! Records what was installed, and looks again later.
//!
//! It observes and hands over; core binds the observation to the locks and compares.

use super::plan::Plan;
use super::toolchain::Tools;
use super::{cargo, environment, npm, observe, pnpm, poetry, registry, there, uv, yarn};
use crate::error::{Error, Result};
use crate::files::{Stamp, stamps};
use crate::root::Root;
use semel_core::artifact::Supply;
use semel_core::ids::Generation;
use semel_core::install::node::Modules;
use semel_core::install::{self, Bound, InstallRecord, Kind, Observed, Place, compare};
use semel_core::installer::{Installer, ProjectInstall};
use semel_core::lockset::{Lockfile, Source};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Binds what was installed to the locks it was installed from, and makes the record of it.
///
/// # Errors
/// `record_mismatch` and `record_outside_root` as core's binding has them, `unknown_state` where nothing is
/// installed, `io_failed` where it cannot be read.
pub fn record(
    plan: &Plan,
    generation: &Generation,
    locks: &[&Lockfile],
    supply: &Supply,
) -> Result<InstallRecord> {
    let observed = observe_environment(plan)?;
    let place = place(plan)?;
    let mut beside: Vec<Beside<'_>> = Vec::new();
    let bound = match plan.tools.installer() {
        Installer::Uv => {
            let selection = uv::selected(plan, locks)?;
            let seen: Vec<Lockfile> = locks
                .iter()
                .map(|lock| as_installed(lock, plan.project))
                .collect();
            let seen: Vec<&Lockfile> = seen.iter().collect();
            install::python::bind(&observed, &seen, &selection, &place, supply)?
        }
        Installer::Pip => install::python::bind(&observed, locks, &Default::default(), &place, supply)?,
        Installer::Poetry => {
            let certain = poetry::certain(plan);
            install::python::bind(&observed, locks, &certain, &place, supply)?
        }
        Installer::Pnpm | Installer::Yarn => {
            let selection = match plan.tools.installer() {
                Installer::Pnpm => pnpm::selected(plan),
                _ => yarn::selected(plan),
            };
            let manifest = plan.text("package.json")?.unwrap_or_default();
            let setting = registry::machine(plan)?;
            let lock = only(locks)?;
            install::linked::bind(&observed, lock, &manifest, &selection, &setting, &place, supply)?
        }
        Installer::Npm => {
            let lock = only(locks)?;
            beside = beside_npm(plan, lock, &place)?;
            let main = Modules {
                home: "",
                observed: &observed,
                place: &place,
            };
            let all: Vec<Modules> = [main]
                .into_iter()
                .chain(beside.iter().map(Beside::modules))
                .collect();
            install::node::bind(&all, lock, &npm::selected(plan), supply)?
        }
        Installer::Cargo => {
            let lock = only(locks)?;
            for directory in cargo::vendored(plan)? {
                let root = plan.tree.join(OsStr::from_bytes(directory.as_bytes()));
                install::rust::bind_vendored(&observe(&root, Kind::Rust, &directory)?, lock, supply)?;
            }
            install::rust::bind(&observed, lock, &place, supply)?
        }
    };
    // What is proved is said once, of all of them.
    let nothing = Bound::default();
    let mut parts = vec![(&observed, &bound)];
    parts.extend(beside.iter().map(|one| (&one.observed, &nothing)));
    Ok(InstallRecord::make(
        generation,
        identity(&plan.tools),
        locks,
        supply,
        &parts,
    )?)
}

/// Is the `node_modules` of a workspace.
struct Beside<'a> {
    /// The directory of the workspace, as the lock writes it.
    home: &'a str,
    observed: Observed,
    place: Place,
}

impl Beside<'_> {
    fn modules(&self) -> Modules<'_> {
        Modules {
            home: self.home,
            observed: &self.observed,
            place: &self.place,
        }
    }
}

/// Observes the `node_modules` of each workspace of a lock of npm; `main` is where the project's own are.
fn beside_npm<'a>(plan: &Plan, lock: &'a Lockfile, main: &Place) -> Result<Vec<Beside<'a>>> {
    let workspaces = lock.npm_workspaces().into_iter();
    let beside = workspaces.map(|(home, path)| {
        let root = RelPath::parse(&[b"tree/", path.as_bytes(), b"/node_modules"].concat())?;
        let observed = observe_root(plan, &root, Kind::Node)?;
        let root = on_host(plan, &observed.root)?.into_os_string().into_vec();
        Ok(Beside {
            home,
            observed,
            place: Place { root, ..main.clone() },
        })
    });
    beside.collect()
}

/// Compares a record with what stands there now: the locks and every installed entry.
///
/// # Errors
/// `evidence_foreign` for a record of another generation, `lockfile_drift` for a lock that changed or vanished,
/// `record_mismatch` for any entry that changed, vanished or appeared, `record_outside_root` for a mount or a hard
/// link, `unknown_state` where the installed root is gone.
pub fn verify_again(plan: &Plan, record: &InstallRecord, generation: &Generation) -> Result<()> {
    let locks = locks_now(&plan.tree, record)?;
    let roots = record.roots.iter();
    let observed: Vec<Observed> = roots
        .map(|root| observe_root(plan, &root.place, root.kind))
        .collect::<Result<_>>()?;
    let observed: Vec<&Observed> = observed.iter().collect();
    Ok(compare(record, generation, &locks, &observed)?)
}

/// Digests the recorded lockfiles as they are now; one that is no plain file any more is left out.
pub(super) fn locks_now(tree: &Path, record: &InstallRecord) -> Result<BTreeMap<RelPath, Sha256>> {
    let mut locks = BTreeMap::new();
    for path in record.locks.keys() {
        let place = tree.join(OsStr::from_bytes(path.as_bytes()));
        let plain = std::fs::symlink_metadata(&place).is_ok_and(|facts| facts.is_file());
        if plain {
            let bytes = std::fs::read(&place).map_err(|e| Error::io("read", &place, e))?;
            locks.insert(path.clone(), Sha256::of(&bytes));
        }
    }
    Ok(locks)
}

/// Looks at every entry of a record for what shows that it was touched, though it may be as it was.
///
/// # Errors
/// `record_mismatch` where one is gone; `unknown_state` where nothing is installed; `io_failed`.
pub fn stamps_of(plan: &Plan, record: &InstallRecord) -> Result<Vec<Stamp>> {
    let mut all = Vec::with_capacity(record.entries.len());
    // The entries of one root stand side by side, and so do the roots.
    for root in &record.roots {
        let entries = record.entries.keys().filter(|path| path.is_below(&root.place));
        let below: Vec<RelPath> = entries
            .map(|path| {
                Ok(RelPath::parse(
                    &path.as_bytes()[root.place.as_bytes().len() + 1..],
                )?)
            })
            .collect::<Result<_>>()?;
        if !below.is_empty() {
            let open = Root::open(&on_host(plan, &root.place)?).map_err(|error| gone(error, &root.place))?;
            all.extend(stamps(&open, &below).map_err(|error| gone(error, &root.place))?);
        }
    }
    Ok(all)
}

/// Tells of an entry that is not there any more as of one that was touched.
pub(super) fn gone(error: Error, place: &RelPath) -> Error {
    let named = |refusal: &Refusal| {
        let first = refusal.names.first();
        first.map_or_else(|| place.to_string(), |name| format!("{place}/{name}"))
    };
    match error {
        Error::Refused(refusal) if refusal.code == Code::NotFound => {
            let why = "an installed entry is gone";
            Refusal::new(Code::RecordMismatch, why)
                .reason("touched")
                .name(named(&refusal))
                .into()
        }
        Error::Refused(_) | Error::Io { .. } | Error::Unproven { .. } | Error::Git(_) => error,
    }
}

/// Observes what the installer of a plan installed; a package manager of Node that had nothing to install makes no
/// directory, and then there is nothing.
///
/// # Errors
/// As [`observe`].
pub fn observe_environment(plan: &Plan) -> Result<Observed> {
    let kind = match plan.tools.installer() {
        Installer::Uv | Installer::Pip | Installer::Poetry => Kind::Python,
        Installer::Npm | Installer::Pnpm | Installer::Yarn => Kind::Node,
        Installer::Cargo => Kind::Rust,
    };
    observe_root(plan, &in_volume(plan)?, kind)
}

/// Observes one installed root by its place in the volume, as [`observe_environment`] does.
fn observe_root(plan: &Plan, place: &RelPath, kind: Kind) -> Result<Observed> {
    let root = on_host(plan, place)?;
    if kind == Kind::Node && !there(&root) {
        return Ok(Observed {
            root: place.clone(),
            kind,
            entries: BTreeMap::new(),
            texts: BTreeMap::new(),
        });
    }
    if let Some(parent) = root.parent() {
        let real = std::fs::canonicalize(parent).map_err(|e| Error::io("resolve", parent, e))?;
        if real != parent {
            let why = "what is installed lies behind a link";
            return Err(Refusal::new(Code::RecordOutsideRoot, why)
                .name(place.to_string())
                .into());
        }
    }
    observe(&root, kind, place)
}

/// Gives where a place in the volume lies on the host.
fn on_host(plan: &Plan, place: &RelPath) -> Result<PathBuf> {
    let mut parts = place.as_bytes().splitn(2, |byte| *byte == b'/');
    let (base, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let base = match base {
        b"tree" => &plan.tree,
        b"home" => &plan.home,
        _ => {
            let why = "an installed root lies neither in the tree nor in the home of its generation";
            return Err(Refusal::new(Code::UnknownState, why)
                .name(place.to_string())
                .into());
        }
    };
    Ok(base.join(OsStr::from_bytes(rest)))
}

/// Where the installed root lies in the volume: beneath `tree` or beneath `home`.
fn in_volume(plan: &Plan) -> Result<RelPath> {
    let root = environment(plan);
    let within = |base: &Path, name: &[u8]| {
        let rest = root.strip_prefix(base).ok()?;
        Some([name, b"/", rest.as_os_str().as_bytes()].concat())
    };
    let path = within(&plan.tree, b"tree").or_else(|| within(&plan.home, b"home"));
    let path = path.ok_or_else(|| {
        Refusal::new(Code::Internal, "an environment lies outside of its generation")
            .name(shown(root.as_os_str().as_bytes()))
    })?;
    Ok(RelPath::parse(&path)?)
}

/// Where things lie, without links on the way.
fn place(plan: &Plan) -> Result<Place> {
    let real = |path: &Path| -> Result<Vec<u8>> {
        let real = std::fs::canonicalize(path).map_err(|e| Error::io("resolve", path, e))?;
        Ok(real.as_os_str().as_bytes().to_vec())
    };
    let python = plan.tools.python();
    let root = environment(plan);
    let root = match there(&root) {
        true => real(&root)?,
        // Its parent is real: that of a tree or of a home, both of which were given by their real paths.
        false => root.as_os_str().as_bytes().to_vec(),
    };
    Ok(Place {
        tree: real(&plan.tree)?,
        root,
        interpreters: python
            .into_iter()
            .map(|tool| tool.path.as_os_str().as_bytes().to_vec())
            .collect(),
    })
}

/// A project that is not installed counts as one of which only the dependencies are.
fn as_installed(lock: &Lockfile, project: ProjectInstall) -> Lockfile {
    let mut seen = lock.clone();
    if project == ProjectInstall::Skip {
        for package in &mut seen.packages {
            if let Source::Local(at) = &package.source {
                package.source = Source::Virtual(at.clone());
            }
        }
    }
    seen
}

fn only<'a>(locks: &[&'a Lockfile]) -> Result<&'a Lockfile> {
    match locks {
        [lock] => Ok(lock),
        _ => {
            let names = locks.iter().map(|lock| lock.path.to_string());
            let why = "this installer installs from exactly one lock";
            Err(Refusal::new(Code::BadConfig, why).names(names).into())
        }
    }
}

fn identity(tools: &Tools) -> install::InstalledBy {
    let identity = tools.program().identity.clone();
    install::InstalledBy {
        command: Vec::new(),
        name: install::By::Installer(tools.installer()),
        sha256: identity.sha256,
        version: identity.version,
    }
}
