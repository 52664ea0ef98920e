//! Proposals: a draft's output, sealed as one deterministic archive that its digest names.

use super::{Engine, host, store, volume};
use crate::limits;
use semel_core::git_tree::{ObjectFormat, ObjectId};
use semel_core::ids::{Generation, UnixMs};
use semel_core::ignore::Ignore;
use semel_core::lfs::Pointer;
use semel_core::manifest::{Manifest, WhyLeftOut};
use semel_core::record::Sealing;
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::files::FileKind;
use semel_host::git::{Git, Leaf, Repository, Selection, Why, select};
use semel_host::process::Cancel;
use semel_host::root::Root;
use semel_host::tarball::{self, Choice};
use semel_host::{clock, leftover, plain, volume as disk};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Says from where a draft began; kept in its `meta/`, out of the agent's reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Base {
    /// The repository; absolute.
    pub(crate) repository: PathBuf,
    /// The base commit, as hexadecimal digits.
    pub(crate) commit: String,
}

/// The record of a [`Base`] in `meta/`.
pub(crate) const BASE: &str = "base.json";
const LIMITS: tarball::Limits = tarball::Limits {
    entries: limits::PROPOSAL_ENTRIES,
    archive_bytes: limits::PROPOSAL_BYTES,
};
const LARGEST_BASE: u64 = 64 << 10;
const LARGEST_MANIFEST: u64 = 512 << 20;

/// Is a proposal with its manifest.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    /// What it holds; `tree` is filled.
    pub(crate) manifest: Manifest,
    /// Its git tree.
    pub(crate) tree: ObjectId,
    /// Where the archive lies.
    pub(crate) archive: PathBuf,
}

impl Proposal {
    /// Gives its name: the digest of the archive.
    pub(crate) const fn digest(&self) -> Sha256 {
        self.manifest.archive_sha256
    }
}

/// Is what a base commit says about the entries of a proposal.
#[derive(Clone, Debug, Default)]
pub(crate) struct BaseRules {
    /// Its leaves: what is tracked is never ignored.
    pub(crate) tracked: BTreeSet<RelPath>,
    /// Its ignore rules.
    pub(crate) ignore: Ignore,
}

/// Is a base commit, read once for all that is asked of it.
#[derive(Debug)]
pub(crate) struct BaseTree {
    /// The repository that has it.
    pub(crate) repository: Repository,
    /// The commit.
    pub(crate) commit: ObjectId,
    /// Its tree.
    pub(crate) tree: ObjectId,
    /// Every leaf of the tree.
    pub(crate) leaves: Vec<Leaf>,
}

impl BaseTree {
    /// Opens the repository of a base, and reads it.
    ///
    /// # Errors
    /// Those of the repository.
    pub(crate) fn read(git: &Git, base: &Base, cancel: &Cancel) -> Result<Self, Refusal> {
        let repository = Repository::open(git, &base.repository, cancel).map_err(host)?;
        let commit = repository.parse_id(&base.commit).map_err(host)?;
        Self::of(repository, commit)
    }

    /// Reads a commit of an opened repository.
    ///
    /// # Errors
    /// Those of the repository.
    pub(crate) fn of(repository: Repository, commit: ObjectId) -> Result<Self, Refusal> {
        let tree = repository.read_commit(&commit).map_err(host)?.tree;
        let leaves = repository.list_tree(&tree).map_err(host)?;
        Ok(Self {
            repository,
            commit,
            tree,
            leaves,
        })
    }

    /// Gives what is tracked and what is ignored.
    ///
    /// # Errors
    /// Those of the repository.
    pub(crate) fn rules(&self) -> Result<BaseRules, Refusal> {
        Ok(BaseRules {
            tracked: self.leaves.iter().map(|leaf| leaf.path.clone()).collect(),
            ignore: self.repository.ignore_rules(&self.leaves).map_err(host)?,
        })
    }

    /// Gives the pointers of what Git LFS keeps.
    ///
    /// # Errors
    /// Those of the repository.
    pub(crate) fn pointers(&self) -> Result<BTreeMap<RelPath, Pointer>, Refusal> {
        self.repository.lfs_pointers(&self.leaves).map_err(host)
    }
}

/// Gives the directory of the proposals.
pub(crate) fn directory(engine: &Engine) -> PathBuf {
    engine.config.state.join("proposals")
}

fn manifest_path(engine: &Engine, digest: &Sha256) -> PathBuf {
    tarball::manifest_path(&directory(engine), digest)
}

/// Reads from where a draft began; `None` where it began from no repository.
pub(crate) fn base_of(disk: &disk::Volume) -> Result<Option<Base>, Refusal> {
    let Some(bytes) = disk::read_record(disk, BASE, LARGEST_BASE).map_err(host)? else {
        return Ok(None);
    };
    let unknown =
        |e: serde_json::Error| Refusal::new(Code::UnknownState, e.to_string()).name("meta/base.json");
    serde_json::from_slice(&bytes).map(Some).map_err(unknown)
}

/// Is what of a draft is sealed: what `git add -A` would take under the rules of the base.
struct Chosen {
    entries: BTreeSet<RelPath>,
    above: BTreeSet<RelPath>,
    left_out: BTreeMap<RelPath, WhyLeftOut>,
}

impl Chosen {
    fn of(selection: Selection) -> Self {
        let mut above = BTreeSet::new();
        for path in &selection.chosen {
            let mut parent = path.split_last().map(|(parent, _)| parent);
            while let Some(path) = parent.filter(|path| !path.is_root()) {
                parent = path.split_last().map(|(parent, _)| parent);
                above.insert(path);
            }
        }
        let why = |why| match why {
            Why::Ignored => WhyLeftOut::Ignored,
            Why::EmptyDirectory => WhyLeftOut::EmptyDirectory,
            Why::GitDir => WhyLeftOut::GitInternals,
        };
        let left_out = selection
            .left_out
            .into_iter()
            .map(|left| (left.path, why(left.why)))
            .collect();
        Self {
            entries: selection.chosen.into_iter().collect(),
            above,
            left_out,
        }
    }

    /// Decides over one entry; a directory that leads to no chosen one is left out whole, and so is whatever came
    /// after the draft was looked at.
    fn choose(&self, path: &RelPath, kind: FileKind) -> Choice {
        let known = if kind == FileKind::Directory {
            &self.above
        } else {
            &self.entries
        };
        if known.contains(path) {
            return Choice::Take;
        }
        Choice::LeaveOut(self.left_out.get(path).copied().unwrap_or(WhyLeftOut::Ignored))
    }
}

/// Seals a draft that ended clean.
///
/// # Errors
/// `dirty_volume` for a draft that did not end clean, `volume_busy` while it is open; `tree_not_empty` for a leftover
/// environment; `proposal_refused` for what no
/// archive holds; those of the repository that it began from.
///
/// # Durability
/// Archive and manifest survive a power cut. Sealing again gives the same archive.
pub(crate) fn seal(engine: &Engine, generation: &Generation, cancel: &Cancel) -> Result<Proposal, Refusal> {
    let known = volume::find(engine, generation)?;
    known.sealable()?;
    let identity = known.identity.as_ref().ok_or_else(|| {
        Refusal::new(Code::UnknownState, "the volume was never ready").name(generation.as_str())
    })?;
    let disk = engine
        .volumes
        .reopen(&known.job, generation, identity)
        .map_err(host)?;
    if disk.is_dirty().map_err(host)? {
        let why = "the disk still says that the draft did not end cleanly";
        return Err(Refusal::new(Code::DirtyVolume, why).name(generation.as_str()));
    }
    let base = base_of(&disk)?;
    let git = Git::find(&engine.config.path).map_err(host)?;
    let (rules, pointers, format) = match base {
        None => (BaseRules::default(), BTreeMap::new(), ObjectFormat::Sha1),
        Some(base) => {
            let base = BaseTree::read(&git, &base, cancel)?;
            (base.rules()?, base.pointers()?, base.repository.format())
        }
    };
    let selection = select(disk.tree().handle(), &rules.tracked, &rules.ignore).map_err(unreadable)?;
    let chosen = Chosen::of(selection);
    refuse_leftover(&rules, &chosen, disk.tree())?;
    let mut choose = |path: &RelPath, kind| {
        Ok(match (chosen.choose(path, kind), pointers.get(path)) {
            (Choice::Take, Some(pointer)) => Choice::TakePointer(pointer.clone()),
            (choice, _) => choice,
        })
    };
    let sealed = tarball::pack(disk.tree(), &mut choose, LIMITS, format, &directory(engine));
    let sealed = sealed.map_err(unreadable)?;
    let proposal = Proposal {
        manifest: sealed.manifest,
        tree: sealed.tree,
        archive: sealed.path,
    };
    let text = proposal.manifest.to_json()?;
    tarball::keep_manifest(&directory(engine), &proposal.digest(), &text).map_err(host)?;
    engine
        .journal
        .sealed(Sealing {
            job: known.job,
            attempt: known.attempt,
            generation: generation.clone(),
            proposal: proposal.digest(),
            tree: proposal.tree.to_string(),
            entries: proposal.manifest.entries.len() as u64,
            at: clock::now(),
        })
        .map_err(store)?;
    Ok(proposal)
}

/// Refuses a leftover environment by its name, before anything in it is refused for a reason of its own.
fn refuse_leftover(rules: &BaseRules, chosen: &Chosen, root: &Root) -> Result<(), Refusal> {
    let skip = |path: &RelPath, kind: FileKind| {
        rules.tracked.contains(path) || matches!(chosen.choose(path, kind), Choice::LeaveOut(_))
    };
    match leftover::find(root.handle(), &skip).map_err(unreadable)? {
        None => Ok(()),
        Some((path, of)) => Err(
            Refusal::new(Code::TreeNotEmpty, format!("{of} was left in the draft")).name(path.to_string()),
        ),
    }
}

/// An entry that its owner closed is the draft's fault, not the system's: trying again would change nothing.
fn unreadable(error: semel_host::Error) -> Refusal {
    match &error {
        semel_host::Error::Io { path, source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Refusal::new(Code::ProposalRefused, "an entry of the draft cannot be read")
                .reason("unreadable")
                .name(path)
        }
        _ => host(error),
    }
}

/// Finds a proposal by its digest.
///
/// # Errors
/// `not_found`; `proposal_refused` where its manifest is malformed or of another archive.
pub(crate) fn find(engine: &Engine, digest: &Sha256) -> Result<Proposal, Refusal> {
    let archive = tarball::archive_path(&directory(engine), digest);
    let text =
        plain::read_file(&manifest_path(engine, digest), LARGEST_MANIFEST).map_err(|error| {
            match error.code() {
                Code::NotFound => {
                    Refusal::new(Code::NotFound, "there is no such proposal").name(digest.to_string())
                }
                _ => error.into_refusal(),
            }
        })?;
    let manifest = Manifest::from_json(&text)?;
    let refused = |why: &str| Refusal::new(Code::ProposalRefused, why).name(digest.to_string());
    if manifest.archive_sha256 != *digest {
        return Err(refused("its manifest is of another archive"));
    }
    let tree = manifest
        .tree
        .as_deref()
        .ok_or_else(|| refused("its manifest names no git tree"))?;
    let tree = ObjectId::parse(tree)?;
    Ok(Proposal {
        manifest,
        tree,
        archive,
    })
}

/// Unpacks a proposal into an empty root, and checks that it is the one that was named and holds what its manifest lists;
/// computes its git tree where a format is given.
///
/// # Errors
/// `proposal_refused` for a hostile or ambiguous archive, or another one than was named; `tree_mismatch` for what git does
/// not hold. Nothing is left then.
pub(crate) fn unpack(
    proposal: &Proposal,
    into: &Root,
    tree: Option<ObjectFormat>,
) -> Result<Manifest, Refusal> {
    let digest = proposal.digest();
    let mut reader = plain::open_file(&proposal.archive).map_err(host)?;
    let unpacked = tarball::unpack(&mut reader, LIMITS, into, tree);
    let manifest = match unpacked {
        Ok(manifest) => manifest,
        // That it is another archive says more than what is wrong with that one.
        Err(error) => {
            let found = plain::digest_file(&proposal.archive).map_err(host)?;
            return Err(if found == digest {
                host(error)
            } else {
                other(&digest, found)
            });
        }
    };
    match held_against(proposal, &manifest) {
        Ok(()) => Ok(manifest),
        Err(refusal) => {
            tarball::clear(into).map_err(host)?;
            Err(refusal)
        }
    }
}

fn other(named: &Sha256, found: Sha256) -> Refusal {
    Refusal::new(Code::ProposalRefused, format!("its bytes are those of {found}"))
        .reason("other_archive")
        .name(named.to_string())
}

/// Holds what was unpacked against what was sealed.
fn held_against(proposal: &Proposal, found: &Manifest) -> Result<(), Refusal> {
    if found.archive_sha256 != proposal.digest() {
        return Err(other(&proposal.digest(), found.archive_sha256));
    }
    if found.entries != proposal.manifest.entries {
        let why = "the archive does not hold what its manifest lists";
        return Err(Refusal::new(Code::ProposalRefused, why).reason("manifest_differs"));
    }
    Ok(())
}

/// Checks that what was unpacked makes the git tree that was sealed.
///
/// # Errors
/// `tree_mismatch`.
pub(crate) fn same_tree(proposal: &Proposal, unpacked: &Manifest) -> Result<(), Refusal> {
    let sealed = proposal.tree.to_string();
    match &unpacked.tree {
        Some(tree) if *tree == sealed => Ok(()),
        tree => {
            let found = tree.as_deref().unwrap_or("unknown");
            let why = format!("the source tree is {found}, sealed was {sealed}");
            Err(Refusal::new(Code::TreeMismatch, why))
        }
    }
}

/// Unpacks a proposal into a new directory of a person, whole or not at all.
///
/// # Errors
/// As [`find`] and [`unpack`]; `precondition_failed` where something has the name.
///
/// # Durability
/// Nothing is synced. What an unpacking that was killed left beside the directory is removed by the next one.
pub(crate) fn unseal(engine: &Engine, digest: &Sha256, into: &Path) -> Result<Manifest, Refusal> {
    let proposal = find(engine, digest)?;
    tarball::appear(into, |root| {
        // That the bytes are those that were named is enough; which git tree they make is asked by who certifies.
        unpack(&proposal, root, None)
    })
    .map_err(host)
}

/// Lists the proposals that are kept, with the time at which each was sealed.
///
/// # Errors
/// `io_failed`.
pub(crate) fn list(engine: &Engine) -> Result<Vec<(Sha256, UnixMs)>, Refusal> {
    let files = plain::list_files(&directory(engine).join("sha256")).map_err(host)?;
    let archives = files.into_iter().filter_map(|file| {
        let digest = Sha256::parse(file.name.strip_suffix(".tar")?).ok()?;
        Some((digest, file.changed))
    });
    Ok(archives.collect())
}

/// Removes a proposal; its archive goes last, so that a removal that was cut short is found again.
///
/// # Errors
/// `io_failed`.
pub(crate) fn remove(engine: &Engine, digest: &Sha256) -> Result<(), Refusal> {
    plain::remove_file(&manifest_path(engine, digest)).map_err(host)?;
    plain::remove_file(&tarball::archive_path(&directory(engine), digest)).map_err(host)
}
