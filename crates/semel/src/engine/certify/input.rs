//! The input of an attempt: the sealed tree, unpacked, and what may not have come with it.

use super::super::proposal::{self, BaseRules, Proposal};
use super::super::{binding, host};
use crate::limits;
use semel_core::backend::Backend;
use semel_core::ignore::{EntryKind, Ignore};
use semel_core::install::leftover::{self, What};
use semel_core::installer::{InstallCommand, Installer, Installs};
use semel_core::lockset::{self, Declared, Format, Lockfile, Yarn};
use semel_core::manifest::{Entry, Manifest};
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::files::{FileKind, Stamp, list_directory, read_file, stamps};
use semel_host::git::tree_of;
use semel_host::root::Root;
use semel_host::tarball;
use semel_host::volume::Volume as Disk;
use std::collections::{BTreeMap, BTreeSet};

/// A manifest of dependencies, or a lockfile, is never larger.
const LARGEST_TEXT: u64 = 256 << 20;

/// The reason where the tree beneath an overlay is not what was unpacked.
pub(super) const SEALED_TREE: &str = "sealed_tree";

/// Unpacks the proposal, where it is not the sealed tree beneath already, and checks that it is what it says it is.
///
/// # Errors
/// `proposal_refused`; `tree_not_empty` for a leftover environment, looked for first; `tree_mismatch` for an entry that
/// the proposal's own rules ignore and the base does not track, and for another git tree than was sealed.
pub(super) fn take(proposal: &Proposal, rules: &BaseRules, disk: &Disk) -> Result<Manifest, Refusal> {
    let root = disk.tree();
    let manifest = match disk.backend() {
        Backend::Overlay => sealed(proposal, root)?,
        Backend::Dir | Backend::Tmpfs => proposal::unpack(proposal, root, Some(proposal.tree.format()))?,
    };
    refuse_leftovers(&manifest, rules, root)?;
    refuse_ignored(&manifest, rules, root)?;
    proposal::same_tree(proposal, &manifest)?;
    Ok(manifest)
}

/// Reads the sealed tree that the volume lies over, every byte of it: an earlier attempt may have read it, too, and none
/// is believed to have left it alone.
///
/// # Errors
/// `tree_mismatch`, reason `sealed_tree`, naming what differs.
fn sealed(proposal: &Proposal, root: &Root) -> Result<Manifest, Refusal> {
    let differs = |refusal: Refusal| match refusal.code {
        Code::TreeMismatch => refusal.reason(SEALED_TREE),
        _ => refusal,
    };
    still_there(&proposal.manifest, root).map_err(differs)?;
    // A directory is seen, too, by whoever looks for one or imports it; none is there but for what was unpacked into it.
    let mut more = new_files(&proposal.manifest, &BTreeSet::new(), root)?;
    more.extend(empty_directories(&proposal.manifest, root)?);
    if !more.is_empty() {
        let why = "the sealed tree is not what was unpacked";
        let names = more.iter().take(20).map(ToString::to_string);
        return Err(differs(Refusal::new(Code::TreeMismatch, why).names(names)));
    }
    let paths: Vec<RelPath> = proposal
        .manifest
        .entries
        .iter()
        .map(|entry| entry.path().clone())
        .collect();
    let tree = tree_of(root.handle(), proposal.tree.format(), &paths).map_err(host)?;
    Ok(Manifest {
        tree: Some(tree.to_string()),
        ..proposal.manifest.clone()
    })
}

/// Is what the entries of the manifest look like, once everything is installed.
pub(super) struct Untouched(Vec<Stamp>);

impl Untouched {
    /// Looks at every entry.
    pub(super) fn now(manifest: &Manifest, root: &Root) -> Result<Self, Refusal> {
        stamps(root, manifest.entries.iter().map(Entry::path))
            .map(Self)
            .map_err(host)
    }

    /// Checks that no entry was touched since, not even to be put back.
    ///
    /// # Errors
    /// `tree_mismatch`, reason `touched`, naming the entries.
    pub(super) fn still(&self, manifest: &Manifest, root: &Root) -> Result<(), Refusal> {
        let now = Self::now(manifest, root)?;
        let entries = manifest.entries.iter();
        let touched: Vec<String> = entries
            .zip(self.0.iter().zip(&now.0))
            .filter(|(_, (before, now))| before != now)
            .map(|(entry, _)| entry.path().to_string())
            .take(20)
            .collect();
        if touched.is_empty() {
            return Ok(());
        }
        let why = "the source tree was changed after it was installed, though it may be what it was";
        Err(Refusal::new(Code::TreeMismatch, why)
            .reason("touched")
            .names(touched))
    }
}

/// Checks that the entries of the manifest are still exactly what was sealed.
///
/// # Errors
/// `tree_mismatch`, naming the first entry that is not.
pub(super) fn still_there(manifest: &Manifest, root: &Root) -> Result<(), Refusal> {
    tarball::verify(manifest, root).map_err(host)
}

/// Lists the files and links that are in the tree, but neither in the manifest nor beneath `apart`: what was installed,
/// and declared caches.
///
/// # Errors
/// `too_large` past the entries of the largest proposal; `io_failed`.
pub(super) fn new_files(
    manifest: &Manifest,
    apart: &BTreeSet<RelPath>,
    root: &Root,
) -> Result<Vec<RelPath>, Refusal> {
    let sealed: BTreeSet<&RelPath> = manifest.entries.iter().map(Entry::path).collect();
    let mut found = Vec::new();
    walk(root, &mut |path, kind| match kind {
        _ if apart.contains(path) || sealed.contains(path) => Enter::No,
        FileKind::Directory => Enter::Yes,
        FileKind::File | FileKind::Symlink | FileKind::Special => {
            found.push(path.clone());
            Enter::No
        }
    })?;
    found.sort();
    Ok(found)
}

/// Lists the directories that hold nothing of the manifest, the outermost ones.
fn empty_directories(manifest: &Manifest, root: &Root) -> Result<Vec<RelPath>, Refusal> {
    let mut holding = BTreeSet::new();
    for entry in &manifest.entries {
        let above = |path: &RelPath| path.split_last().map(|(directory, _)| directory);
        let mut next = above(entry.path());
        while let Some(directory) = next.filter(|directory| !holding.contains(directory)) {
            next = above(&directory);
            holding.insert(directory);
        }
    }
    let mut found = Vec::new();
    walk(root, &mut |path, kind| match kind {
        FileKind::Directory if holding.contains(path) => Enter::Yes,
        FileKind::Directory => {
            found.push(path.clone());
            Enter::No
        }
        FileKind::File | FileKind::Symlink | FileKind::Special => Enter::No,
    })?;
    found.sort();
    Ok(found)
}

/// Says whether a directory is entered.
enum Enter {
    Yes,
    No,
}

/// Shows every entry of a tree.
fn walk(root: &Root, each: &mut dyn FnMut(&RelPath, FileKind) -> Enter) -> Result<(), Refusal> {
    let mut open = vec![RelPath::root()];
    let mut left = 4 * limits::PROPOSAL_ENTRIES;
    while let Some(directory) = open.pop() {
        let listed = list_directory(root, &directory, left).map_err(host)?;
        left = left.saturating_sub(listed.len());
        for entry in listed {
            let path = directory.join(&entry.name)?;
            match each(&path, entry.kind) {
                Enter::Yes => open.push(path),
                Enter::No => {}
            }
        }
    }
    Ok(())
}

fn text(root: &Root, path: &RelPath, most: u64) -> Result<Vec<u8>, Refusal> {
    read_file(root, path, most)
        .map(|content| content.bytes)
        .map_err(host)
}

fn refuse_leftovers(manifest: &Manifest, rules: &BaseRules, root: &Root) -> Result<(), Refusal> {
    for entry in manifest
        .entries
        .iter()
        .filter(|entry| !rules.tracked.contains(entry.path()))
    {
        let content = match (entry, leftover::wants_text(entry.path())) {
            (Entry::File { size, .. }, Some(most)) => {
                let mut bytes = text(root, entry.path(), (*size).max(1))?;
                bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
                Some(bytes)
            }
            (Entry::File { .. }, None) | (Entry::Symlink { .. }, _) => None,
        };
        let what = match entry {
            Entry::File { .. } => What::File(content.as_deref()),
            Entry::Symlink { .. } => What::Symlink,
        };
        if let Some(of) = leftover::recognise(entry.path(), what) {
            return Err(
                Refusal::new(Code::TreeNotEmpty, format!("{of} came with the proposal"))
                    .name(entry.path().to_string()),
            );
        }
    }
    Ok(())
}

fn refuse_ignored(manifest: &Manifest, rules: &BaseRules, root: &Root) -> Result<(), Refusal> {
    let mut own = Ignore::new();
    for entry in &manifest.entries {
        if let Entry::File { path, size, .. } = entry
            && let Some((parent, b".gitignore")) = path.split_last()
        {
            own.add(parent, &text(root, path, (*size).max(1))?);
        }
    }
    let ignored: Vec<String> = manifest
        .entries
        .iter()
        .map(Entry::path)
        .filter(|path| !rules.tracked.contains(*path) && own.ignored(path, EntryKind::Other))
        .take(20)
        .map(ToString::to_string)
        .collect();
    if ignored.is_empty() {
        return Ok(());
    }
    let why = "git would ignore these entries, so that no merge would hold them";
    Err(Refusal::new(Code::TreeMismatch, why)
        .reason("ignored_entry")
        .names(ignored))
}

/// Is what binds the tree.
#[derive(Debug)]
pub(super) struct Locks {
    /// Every lockfile that binds, with its digest.
    pub(super) digests: BTreeMap<RelPath, Sha256>,
    /// The parsed lockfile of each installer that the job uses, and what that one includes.
    pub(super) parsed: BTreeMap<Installer, Vec<Lockfile>>,
    /// The lockfiles that the command of the job is held against, and what they include.
    pub(super) commanded: Vec<Lockfile>,
    /// What they cannot show, one clause each.
    pub(super) weak: Vec<String>,
}

/// Digests every lockfile, and parses and closes those of the installers that the job uses.
///
/// # Errors
/// `no_lockfile` where an installer has none, or nothing binds the tree; `lock_incomplete`.
pub(super) fn bind(manifest: &Manifest, installs: &Installs, root: &Root) -> Result<Locks, Refusal> {
    let mut digests = BTreeMap::new();
    let mut formats: BTreeMap<RelPath, Format> = BTreeMap::new();
    let mut declared = Declared::default();
    for entry in &manifest.entries {
        let path = entry.path();
        if let Some(format) = binding::binds(path) {
            let Entry::File { sha256, .. } = entry else {
                let why = "a lockfile is a plain file";
                return Err(Refusal::new(Code::UnknownState, why).name(path.to_string()));
            };
            digests.insert(path.clone(), *sha256);
            formats.insert(path.clone(), format);
        }
        if lockset::wants_manifest(path) && matches!(entry, Entry::File { .. }) {
            declared
                .texts
                .insert(path.clone(), text(root, path, LARGEST_TEXT)?);
        }
    }
    if digests.is_empty() {
        return Err(
            Refusal::new(Code::NoLockfile, "no lockfile binds this tree").names(lockset::binding_names())
        );
    }
    let mut locks = Locks {
        digests,
        parsed: BTreeMap::new(),
        commanded: Vec::new(),
        weak: Vec::new(),
    };
    for installer in &installs.known {
        let lock = lock_of(*installer, &formats)?;
        let parsed = lockset::parse(lock, &text(root, lock, LARGEST_TEXT)?)?;
        // Yarn 2 and later never write a checksum for a package with conditions; whether one of these is for this machine
        // is known where it would be installed, and refused there.
        if parsed.yarn() != Some(Yarn::Modern) {
            lockset::require_hashes(&parsed)?;
        }
        let all = locks.close(parsed, &declared)?;
        locks.parsed.insert(*installer, all);
    }
    if let Some(command) = &installs.command {
        for lock in locks_of_command(command, &installs.known, &formats) {
            let parsed = lockset::parse(lock, &text(root, lock, LARGEST_TEXT)?)?;
            if !parsed.unbound.is_empty() {
                let count = parsed.unbound.len();
                locks
                    .weak
                    .push(format!("{lock}: {count} packages have no hash in it"));
            }
            let all = locks.close(parsed, &declared)?;
            locks.commanded.extend(all);
        }
    }
    Ok(locks)
}

impl Locks {
    /// Closes a lock over its manifest; gives it with what it includes.
    fn close(&mut self, parsed: Lockfile, declared: &Declared) -> Result<Vec<Lockfile>, Refusal> {
        self.weak.extend(lockset::close_over(&parsed, declared)?);
        let included = lockset::included(&parsed, declared)?;
        let all: Vec<Lockfile> = std::iter::once(parsed).chain(included).collect();
        self.weak
            .extend(all.iter().flat_map(|lock| lock.weak.iter().cloned()));
        Ok(all)
    }
}

/// Finds the lockfiles that a command is held against: those that it names as arguments; else those of the tool that it
/// runs; else all that no installer of the job reads.
fn locks_of_command<'f>(
    command: &InstallCommand,
    known: &[Installer],
    formats: &'f BTreeMap<RelPath, Format>,
) -> Vec<&'f RelPath> {
    let named: BTreeSet<RelPath> = command
        .args()
        .iter()
        .filter_map(|arg| RelPath::parse(arg.rsplit('=').next()?.as_bytes()).ok())
        .collect();
    let tool = match command.program_name() {
        "bundle" => "bundler",
        name => name,
    };
    let read = |format: &Format| known.iter().any(|known| known.name() == format.installer());
    let of = |rule: &dyn Fn(&RelPath, &Format) -> bool| -> Vec<&'f RelPath> {
        let found = formats.iter().filter(|(path, format)| rule(path, format));
        found.map(|(path, _)| path).collect()
    };
    let found = [
        of(&|path, _| named.contains(path)),
        of(&|_, format| format.installer() == tool),
        of(&|_, format| !read(format)),
    ];
    found
        .into_iter()
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Checks that every lockfile is what it was when it was bound.
///
/// # Errors
/// `lockfile_drift`, naming those that are not, or are gone.
pub(super) fn locks_stand(digests: &BTreeMap<RelPath, Sha256>, root: &Root) -> Result<(), Refusal> {
    let moved = digests.iter().filter(|(path, digest)| {
        let now = text(root, path, LARGEST_TEXT);
        now.map_or(true, |bytes| Sha256::of(&bytes) != **digest)
    });
    let moved: Vec<String> = moved.map(|(path, _)| path.to_string()).collect();
    if moved.is_empty() {
        return Ok(());
    }
    let why = "a lockfile is not what it was when the installation began";
    Err(Refusal::new(Code::LockfileDrift, why).names(moved))
}

/// Finds the lockfile that an installer reads.
fn lock_of(installer: Installer, formats: &BTreeMap<RelPath, Format>) -> Result<&RelPath, Refusal> {
    let mut own: Vec<&RelPath> = formats
        .iter()
        .filter(|(_, format)| format.installer() == installer.name())
        // The step that installs with pip reads requirements files alone.
        .filter(|(_, format)| **format != Format::Pylock)
        .map(|(path, _)| path)
        .collect();
    // npm prefers a shrinkwrap; pip reads `requirements.txt` unless it is told otherwise.
    own.sort_by_key(|path| match path.as_bytes() {
        b"npm-shrinkwrap.json" | b"requirements.txt" => 0,
        _ => 1,
    });
    own.first().copied().ok_or_else(|| {
        Refusal::new(
            Code::NoLockfile,
            format!("the job installs with {installer}, and no lockfile of it is there"),
        )
        .name(installer.name())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_held_against_the_locks_that_it_means() {
        let at = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let names = [
            "pdm.lock",
            "package-lock.json",
            "requirements.txt",
            "requirements-dev.txt",
            "Gemfile.lock",
        ];
        let formats: BTreeMap<RelPath, Format> = names
            .iter()
            .map(|name| (at(name), Format::recognise(name.as_bytes()).unwrap()))
            .collect();
        let of = |words: &str, known: &[Installer]| {
            let command = InstallCommand::new(words.split(' ').map(str::to_owned).collect()).unwrap();
            let found = locks_of_command(&command, known, &formats);
            found.into_iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("pdm sync --prod", &[]), ["pdm.lock"]);
        assert_eq!(of("/opt/bin/bundle install", &[]), ["Gemfile.lock"]);
        assert_eq!(of("npm ci", &[]), ["package-lock.json"]);
        assert_eq!(of("uv pip sync ./requirements.txt", &[]), ["requirements.txt"]);
        assert_eq!(
            of("x --requirement=requirements-dev.txt", &[]),
            ["requirements-dev.txt"]
        );
        assert_eq!(of("sh install.sh", &[]).len(), 5);
        assert_eq!(
            of("sh install.sh", &[Installer::Npm, Installer::Pip]),
            ["Gemfile.lock", "pdm.lock"]
        );
    }
}
