//! An installation by a command of the job: run in the sandbox, with the host's network and none of the operator's
//! credentials; then everything that it left in the tree is observed.
//!
//! Nobody knows what it fetched, so no artifact is compared. What it left is recorded byte by byte, and guarded from
//! there on as any other installation is.

use super::observe::{Regard, observe_part};
use super::plan::{Isolation, SYSTEM_PATH, last_lines};
use super::record::{gone, locks_now};
use super::toolchain::CommandTools;
use crate::contract::signs;
use crate::error::{Error, Result};
use crate::files::{FileKind, Stamp, list_directory, stamps};
use crate::plain::private_directory;
use crate::process::{Cancel, Command, Confinement, End, Output, TreeEnded, run};
use crate::root::Root;
use crate::sandbox::{Network, Sandbox, TreeAccess};
use rustix::fs::{Mode, OFlags};
use semel_core::artifact::Supply;
use semel_core::confinement::Level;
use semel_core::ids::Generation;
use semel_core::install::commanded::{self, Filled};
use semel_core::install::kept::{Named, Signs, Tree};
use semel_core::install::{InstallRecord, Kind, Observed, Place, compare};
use semel_core::installer::InstallCommand;
use semel_core::lockset::Lockfile;
use semel_core::manifest::{Entry, Manifest};
use semel_core::{Code, Refusal, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

const CAPTURED: u64 = 1 << 20;
const MOST_ENTRIES: usize = 2_000_000;
/// The place in its generation of what is of no known layout.
const TREE: &[u8] = b"tree";

/// Says which command is to install for one generation.
#[derive(Clone, Debug)]
pub struct CommandPlan {
    /// The tree of the generation; absolute, and real.
    pub tree: PathBuf,
    /// A directory of this command alone, outside of the tree, for its HOME and TMPDIR.
    pub home: PathBuf,
    /// The command.
    pub command: InstallCommand,
    /// Its tools.
    pub tools: CommandTools,
    /// How long it may take.
    pub deadline: Duration,
    /// How long after being asked to end it is killed.
    pub grace: Duration,
    /// What surrounds it.
    pub isolation: Isolation,
}

/// Holds what came of a command that began.
#[derive(Clone, Debug)]
pub struct CommandRun {
    /// Whether it succeeded, or why not.
    pub verdict: std::result::Result<(), Refusal>,
    /// The end of what it wrote to standard output.
    pub stdout: Vec<u8>,
    /// The end of what it wrote to standard error.
    pub stderr: Vec<u8>,
    /// How well it was confined.
    pub level: Level,
    /// Whether every process of it is known to have ended.
    pub tree_ended: TreeEnded,
    /// How long it ran.
    pub took: Duration,
}

/// Runs the command once. Whatever it started and left behind is ended with it.
///
/// The verdict refuses with `install_failed`, reason `command`, and the last lines, for a failing exit and a signal;
/// `timed_out` past the deadline; `quota_exceeded` past a bound.
///
/// # Errors
/// Only where it did not begin, as [`run`](crate::process::run).
pub fn run_command(plan: &CommandPlan, cancel: &Cancel) -> Result<CommandRun> {
    let [user, tmp] = ["user", "tmp"].map(|name| plan.home.join(name));
    for directory in [&plan.home, &user, &tmp] {
        private_directory(directory)?;
    }
    let dirs = plan.tools.dirs().into_iter();
    let path = std::env::join_paths(dirs.chain(SYSTEM_PATH.split(':').map(PathBuf::from)))
        .map_err(|_| Refusal::new(Code::BadConfig, "a directory of a toolchain holds a colon"))?;
    let mut command = Command::new(plan.tools.path(), &plan.tree)
        .args(plan.command.args())
        .var("PATH", path)
        .var("HOME", user.as_os_str())
        .var("TMPDIR", tmp.as_os_str())
        .var("LANG", "C.UTF-8")
        .var("PYTHONDONTWRITEBYTECODE", "1")
        .var("PIP_NO_COMPILE", "1");
    // Of what the operator configured for fetching, nothing: a command is the job's, and would read it. The authorities
    // of the machine are nobody's secret.
    let mut trusted = BTreeMap::new();
    super::trust_machine(&mut trusted);
    command.env.extend(trusted);
    command.deadline = Some(plan.deadline);
    command.grace = plan.grace;
    command.output = Output::Capture { cap_bytes: CAPTURED };
    let mut read_only = plan.tools.roots();
    read_only.extend(plan.isolation.read_only.iter().cloned());
    command.confinement = Confinement::Sandbox(Sandbox {
        tree: plan.tree.clone(),
        tree_access: TreeAccess::Writable,
        home: user,
        tmp,
        hide: plan.isolation.hide.clone(),
        read_only,
        writable: Vec::new(),
        network: Network::Host,
        require: plan.isolation.require,
        bounds: plan.isolation.bounds,
    });
    let ended = run(&command, cancel)?;
    let failed = |how: String| {
        let lines = last_lines(&ended, &[]);
        Err(Refusal::new(Code::InstallFailed, how)
            .reason("command")
            .names(lines))
    };
    let verdict = match ended.end {
        End::Exited(0) => Ok(()),
        End::Exited(status) => failed(format!("the install command exited with status {status}")),
        End::Signalled(signal) => failed(format!("signal {signal} ended the install command")),
        End::Cancelled => failed("the install command was cancelled".to_owned()),
        End::TimedOut => {
            let seconds = plan.deadline.as_secs_f64();
            let why = format!("the install command did not end within {seconds} seconds");
            Err(Refusal::new(Code::TimedOut, why))
        }
        End::Bounded(met) => Err(met.refusal("the install command")),
    };
    Ok(CommandRun {
        verdict,
        stdout: ended.stdout,
        stderr: ended.stderr,
        level: ended.level,
        tree_ended: ended.tree_ended,
        took: ended.took,
    })
}

/// Says what of a tree is none of the command's: what was sealed, and what lies apart, such as what an installer
/// installed before.
#[derive(Debug)]
pub struct Sealed<'a> {
    files: BTreeSet<&'a RelPath>,
    links: BTreeSet<&'a RelPath>,
    directories: BTreeSet<RelPath>,
    apart: &'a [RelPath],
}

impl<'a> Sealed<'a> {
    /// Gathers it.
    #[must_use]
    pub fn of(manifest: &'a Manifest, apart: &'a [RelPath]) -> Self {
        let files: BTreeSet<&RelPath> = manifest.entries.iter().map(|entry| entry.path()).collect();
        let links = manifest.entries.iter().filter_map(|entry| match entry {
            Entry::Symlink { path, .. } => Some(path),
            Entry::File { .. } => None,
        });
        let mut directories = BTreeSet::from([RelPath::root()]);
        for file in &files {
            let mut at = (*file).clone();
            while let Some((parent, _)) = at.split_last() {
                if !directories.insert(parent.clone()) {
                    break;
                }
                at = parent;
            }
        }
        Self {
            links: links.collect(),
            files,
            directories,
            apart,
        }
    }

    /// Says whether sealed entries lie in a directory.
    #[must_use]
    pub fn has(&self, directory: &RelPath) -> bool {
        self.directories.contains(directory)
    }

    /// Says whether a path is a sealed entry, or a directory in which one lies.
    #[must_use]
    pub fn holds(&self, path: &RelPath) -> bool {
        self.files.contains(path) || self.directories.contains(path)
    }

    /// Gives every sealed entry.
    pub fn entries(&self) -> impl Iterator<Item = &RelPath> {
        self.files.iter().copied()
    }

    /// Says whether a path is a sealed link, or leads through one.
    #[must_use]
    pub fn leads_on(&self, path: &RelPath) -> bool {
        let mut links = self.links.iter();
        links.any(|link| path == *link || path.is_below(link))
    }

    fn regard(&self, path: &RelPath) -> Regard {
        if self.apart.contains(path) || self.files.contains(path) {
            Regard::Skip
        } else if self.directories.contains(path) {
            Regard::Through
        } else {
            Regard::Keep
        }
    }

    fn is_in_sealed(&self, path: &RelPath) -> bool {
        path.split_last()
            .is_none_or(|(parent, _)| self.directories.contains(&parent))
    }
}

/// Observes everything that a command left in the tree: installed trees of a known kind, each on its own, and the rest.
///
/// # Errors
/// `install_failed`, reason `nothing_installed`, where it left nothing; `record_outside_root` for a mount, and for a file
/// with a second name; `record_mismatch` where an entry changes while it is read; `too_large`; `io_failed`.
pub fn filled_by(plan: &CommandPlan, sealed: &Sealed<'_>) -> Result<Vec<Filled>> {
    let roots = recognised(plan, sealed)?;
    let mut filled = Vec::new();
    for (path, tree) in &roots {
        let kind = match tree {
            Tree::Venv => Kind::Python,
            Tree::NodeModules => Kind::Node,
            Tree::CargoHome | Tree::CargoVendor => Kind::Rust,
        };
        let wanted = |path: &RelPath| tree.wants_text(path);
        let observed = part(plan, path, kind, &wanted, &|_| Regard::Keep)?;
        filled.push(one(plan, Some(*tree), path, observed));
    }
    let regard = |path: &RelPath| match roots.contains_key(path) {
        true => Regard::Skip,
        false => sealed.regard(path),
    };
    let rest = part(plan, &RelPath::root(), Kind::Other, &|_| None, &regard)?;
    if !rest.entries.is_empty() {
        filled.push(one(plan, None, &RelPath::root(), rest));
    }
    if filled.is_empty() {
        let why = "the install command succeeded, and left nothing in the tree";
        return Err(Refusal::new(Code::InstallFailed, why)
            .reason("nothing_installed")
            .into());
    }
    Ok(filled)
}

/// Finds the installed trees of a known kind, wherever nothing was sealed.
fn recognised(plan: &CommandPlan, sealed: &Sealed<'_>) -> Result<BTreeMap<RelPath, Tree>> {
    let root = Root::open(&plan.tree)?;
    let mut found = BTreeMap::new();
    let mut open = vec![RelPath::root()];
    let mut left = MOST_ENTRIES;
    while let Some(directory) = open.pop() {
        let listed = list_directory(&root, &directory, left)?;
        left = left.saturating_sub(listed.len());
        for entry in listed
            .into_iter()
            .filter(|entry| entry.kind == FileKind::Directory)
        {
            let path = directory.join(&entry.name)?;
            match sealed.regard(&path) {
                Regard::Skip => continue,
                Regard::Through => {}
                Regard::Keep => {
                    let signs = signs_at(&root, &path).map_err(|e| {
                        Error::io("list", plan.tree.join(OsStr::from_bytes(path.as_bytes())), e)
                    })?;
                    if let Some(tree) = Tree::recognise(&entry.name, signs, Named::No) {
                        found.insert(path, tree);
                        continue;
                    }
                }
            }
            open.push(path);
        }
    }
    Ok(found)
}

fn signs_at(root: &Root, path: &RelPath) -> std::io::Result<Signs> {
    let (place, _) = root.directory(path).map_err(std::io::Error::other)?;
    // What a root gives names a place, and cannot be listed itself.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::openat(&place, ".", flags, Mode::empty())?;
    Ok(signs(open.as_fd())?)
}

/// Observes beneath a directory of the tree, and refuses a file with a second name.
fn part(
    plan: &CommandPlan,
    path: &RelPath,
    kind: Kind,
    wanted: &(dyn Fn(&RelPath) -> Option<u64> + Sync),
    regard: &(dyn Fn(&RelPath) -> Regard + Sync),
) -> Result<Observed> {
    let root = plan.tree.join(OsStr::from_bytes(path.as_bytes()));
    let (observed, mut linked) = observe_part(&root, kind, &in_generation(path)?, wanted, regard)?;
    if linked.is_empty() {
        return Ok(observed);
    }
    let why = "an installed file has a second name, through which it could be changed";
    linked.truncate(20);
    Err(Refusal::new(Code::RecordOutsideRoot, why)
        .reason("hard_link")
        .names(linked)
        .into())
}

fn in_generation(path: &RelPath) -> Result<RelPath> {
    let whole = match path.is_root() {
        true => TREE.to_vec(),
        false => [TREE, b"/", path.as_bytes()].concat(),
    };
    Ok(RelPath::parse(&whole)?)
}

/// Gives the path in the tree of what lies at a path in the generation.
fn in_tree(path: &RelPath) -> Result<RelPath> {
    let below = path.as_bytes().strip_prefix(TREE).unwrap_or_default();
    Ok(RelPath::parse(below.strip_prefix(b"/").unwrap_or_default())?)
}

fn one(plan: &CommandPlan, tree: Option<Tree>, path: &RelPath, observed: Observed) -> Filled {
    let interpreters = plan.tools.python.iter();
    let bytes = |path: &OsStr| path.as_bytes().to_vec();
    Filled {
        tree,
        observed,
        place: Place {
            tree: bytes(plan.tree.as_os_str()),
            root: bytes(plan.tree.join(OsStr::from_bytes(path.as_bytes())).as_os_str()),
            interpreters: interpreters.map(|tool| bytes(tool.path.as_os_str())).collect(),
        },
    }
}

/// Binds what was observed to the locks, as far as anything binds it, and makes the record of it.
///
/// # Errors
/// As [`commanded::bind`].
pub fn record_command(
    plan: &CommandPlan,
    generation: &Generation,
    filled: &[Filled],
    locks: &[Lockfile],
) -> Result<InstallRecord> {
    let bounds = commanded::bind(&plan.command, filled, locks)?;
    let parts: Vec<_> = filled.iter().map(|one| &one.observed).zip(&bounds).collect();
    let locks: Vec<&Lockfile> = locks.iter().collect();
    let by = plan.tools.installed_by(&plan.command);
    Ok(InstallRecord::make(
        generation,
        by,
        &locks,
        &Supply::default(),
        &parts,
    )?)
}

/// Compares a record of [`record_command`] with what stands there now. What came into a sealed directory since is not
/// looked at: it is none of the command's.
///
/// # Errors
/// As [`verify_again`](super::verify_again).
pub fn verify_command(
    plan: &CommandPlan,
    sealed: &Sealed<'_>,
    record: &InstallRecord,
    generation: &Generation,
) -> Result<()> {
    let roots = record
        .roots
        .iter()
        .map(|root| Ok((in_tree(&root.place)?, root.kind)));
    let roots: BTreeMap<RelPath, Kind> = roots.collect::<Result<_>>()?;
    let regard = |path: &RelPath| {
        if roots.contains_key(path) {
            return Regard::Skip;
        }
        let known = in_generation(path).is_ok_and(|path| record.entries.contains_key(&path));
        match sealed.regard(path) {
            Regard::Keep if !known && sealed.is_in_sealed(path) => Regard::Skip,
            regard => regard,
        }
    };
    let mut observed = Vec::new();
    for (path, kind) in &roots {
        observed.push(match kind {
            Kind::Other => part(plan, path, *kind, &|_| None, &regard)?,
            Kind::Python | Kind::Node | Kind::Rust => part(plan, path, *kind, &|_| None, &|_| Regard::Keep)?,
        });
    }
    let observed: Vec<&Observed> = observed.iter().collect();
    Ok(compare(
        record,
        generation,
        &locks_now(&plan.tree, record)?,
        &observed,
    )?)
}

/// Looks at every entry of a record of [`record_command`] for what shows that it was touched.
///
/// # Errors
/// As [`stamps_of`](super::stamps_of).
pub fn stamps_of_command(plan: &CommandPlan, record: &InstallRecord) -> Result<Vec<Stamp>> {
    let paths = record.entries.keys().map(in_tree).collect::<Result<Vec<_>>>()?;
    let tree = RelPath::parse(TREE)?;
    stamps(&Root::open(&plan.tree)?, &paths).map_err(|error| gone(error, &tree))
}

/// Gives the directories of programs in what was recorded.
#[must_use]
pub fn programs_of(plan: &CommandPlan, record: &InstallRecord) -> Vec<PathBuf> {
    let bins = record.roots.iter().filter_map(|root| {
        let bin = match root.kind {
            Kind::Python => "bin",
            Kind::Node => ".bin",
            Kind::Rust | Kind::Other => return None,
        };
        let path = in_tree(&root.place).ok()?;
        Some(plan.tree.join(OsStr::from_bytes(path.as_bytes())).join(bin))
    });
    bins.collect()
}

/// Gives every place, in the tree, of a record of [`record_command`]: whole trees, and single entries of the rest.
///
/// # Errors
/// `path_escapes_root` for a record of something else.
pub fn places_of(record: &InstallRecord) -> Result<Vec<RelPath>> {
    let roots = record.roots.iter().filter(|root| root.kind != Kind::Other);
    let roots: BTreeSet<&RelPath> = roots.map(|root| &root.place).collect();
    let single = record
        .entries
        .keys()
        .filter(|path| !roots.iter().any(|root| path.is_below(root)));
    roots.iter().copied().chain(single).map(in_tree).collect()
}
