//! Writing a file once: staged, journaled by the caller, then installed by one rename that leaves evidence.

use crate::error::{Error, Result};
use crate::files::attributes;
use crate::files::exchange::{
    Syncs, as_unproven, changed, exchange, keep_pre_image, kept_digest, undo_exchange,
};
use crate::files::read::open_regular;
use crate::files::{DIGEST_CAP, Durability, Expected, Step, Steps, digest_of, file_id, file_id_at, sync};
use crate::root::{GitInternals, LastLink, Place, check_target};
use crate::volume::Volume;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use semel_core::call::{Before, Effect};
use semel_core::ids::{ExecutionId, FileId};
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};

/// States a write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where to; a link in the last place is followed if it stays inside.
    pub path: &'a RelPath,
    /// The whole new content.
    pub bytes: &'a [u8],
    /// What is expected there.
    pub expected: Expected,
    /// Under which name the content is staged and the pre-image kept.
    pub execution: &'a ExecutionId,
    /// What has to survive.
    pub durability: Durability,
    /// Whether a policy rule allows what belongs to git.
    pub git: GitInternals,
}

/// Holds what an intent to write has to record: by it, recovery tells whether the effect happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteEvidence {
    /// The path with every link followed.
    pub resolved: RelPath,
    /// The file that is to be replaced; `None` where a new one is made. Its digest is missing above
    /// [`DIGEST_CAP`] unless it was asked for.
    pub before: Option<Before>,
    /// The identity of the staged file.
    pub staged: FileId,
    /// The digest of the new content.
    pub after: Sha256,
    /// The length of the new content in bytes.
    pub size_bytes: u64,
    /// How many other names the target has, which will keep the old content; `None` where it has none.
    pub hard_link_broken: Option<u64>,
}

impl WriteEvidence {
    /// Gives the evidence as an intent records it.
    #[must_use]
    pub fn effect(&self) -> Effect {
        Effect::Install {
            staged: self.staged.clone(),
            sha256: self.after,
            size_bytes: self.size_bytes,
            before: self.before.clone(),
        }
    }
}

/// Holds a staged write that nothing outside of `staging/` shows yet.
#[derive(Debug)]
pub struct Prepared {
    /// What the intent records.
    pub evidence: WriteEvidence,
    expected: Expected,
    execution: ExecutionId,
    parent: OwnedFd,
    name: Vec<u8>,
    staged: std::fs::File,
    syncs: Option<Syncs>,
    staged_synced: bool,
}

/// Says what an installed write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The digest of the pre-image as it was taken out; `None` where there was none, and above [`DIGEST_CAP`]
    /// unless it was asked for.
    pub before: Option<Sha256>,
    /// The digest of the content that is in place.
    pub after: Sha256,
}

impl Prepared {
    /// Makes the staged file and `staging/` durable; may run beside the commit of the intent.
    ///
    /// Does nothing for [`Durability::Process`], and nothing a second time.
    ///
    /// # Errors
    /// [`Error::Unproven`] where a sync fails: the process has to end.
    pub fn sync_staged(&mut self, steps: &dyn Steps) -> Result<()> {
        if let (Some(syncs), false) = (&self.syncs, self.staged_synced) {
            sync(&self.staged, "a staged file")?;
            sync(&syncs.staging, "staging")?;
            self.staged_synced = true;
            steps.reached(Step::StagedSynced);
        }
        Ok(())
    }
}

/// Stages a write: new content and attributes in `staging/<execution id>`, nothing changed in `tree/`.
///
/// # Errors
/// `precondition_failed` where `expected` does not hold, the parent is missing, or a directory is in the place;
/// `path_escapes_root` for protected targets, devices, FIFOs and sockets; `unknown_state` where the execution
/// was staged before; `io_failed`.
pub fn prepare_write(volume: &Volume, write: &Write<'_>, steps: &dyn Steps) -> Result<Prepared> {
    let place = target_place(volume, write.path, LastLink::Follow, write.git)?;
    let target = pre_image(volume, &place, write.expected)?;
    let syncs = Syncs::open(volume, &place, write.durability)?;
    let staged = create_staged(volume, write.execution)?;
    let filled = fill(volume, write, target.as_ref(), &staged);
    let staged_id = match filled.and_then(|()| file_id(&staged)) {
        Ok(id) => id,
        Err(error) => {
            let name = write.execution.as_str();
            // The first error is what the caller must hear; what stays behind is swept as an orphan.
            rustix::fs::unlinkat(volume.staging(), name, AtFlags::empty()).ok();
            return Err(error);
        }
    };
    steps.reached(Step::Staged);
    let (before, hard_link_broken) = match target {
        Some(found) => {
            let others = super::read::links(&found.stat).saturating_sub(1);
            (Some(found.before), (others > 0).then_some(others))
        }
        None => (None, None),
    };
    Ok(Prepared {
        evidence: WriteEvidence {
            resolved: place.resolved,
            before,
            staged: staged_id,
            after: Sha256::of(write.bytes),
            size_bytes: write.bytes.len() as u64,
            hard_link_broken,
        },
        expected: write.expected,
        execution: write.execution.clone(),
        parent: place.parent,
        name: place.name,
        staged,
        syncs,
        staged_synced: false,
    })
}

/// Installs a staged write by one rename, and keeps the pre-image in `trash/<execution id>`.
///
/// The precondition is decided on the pre-image that came out of the exchange: if it is another file, or has
/// other content where content was expected, the exchange is undone.
///
/// # Errors
/// `precondition_failed` (reason `changed_meanwhile`) with nothing changed and the content still staged;
/// `outcome_unknown` where something outside changed the path at the same time, with both sides kept;
/// [`Error::Unproven`] where the process has to end; `io_failed` where nothing began.
///
/// # Durability
/// With [`Durability::Power`]: content, name and kept pre-image survive a power cut.
pub fn install(volume: &Volume, mut prepared: Prepared, steps: &dyn Steps) -> Result<Installed> {
    prepared.sync_staged(steps)?;
    let before = match prepared.evidence.before.clone() {
        None => {
            place_new(volume, &prepared, steps)?;
            None
        }
        Some(target) => replace(volume, &prepared, &target.id, steps)?,
    };
    if let Some(syncs) = &prepared.syncs {
        syncs.all()?;
        steps.reached(Step::InstallSynced);
    }
    Ok(Installed {
        before,
        after: prepared.evidence.after,
    })
}

fn place_new(volume: &Volume, prepared: &Prepared, steps: &dyn Steps) -> Result<()> {
    let renamed = rustix::fs::renameat_with(
        volume.staging(),
        prepared.execution.as_str(),
        &prepared.parent,
        prepared.name.as_slice(),
        RenameFlags::NOREPLACE,
    );
    match renamed {
        Ok(()) => {
            steps.reached(Step::Installed);
            Ok(())
        }
        Err(Errno::EXIST) => Err(changed(
            "something appeared in the place",
            &prepared.evidence.resolved,
        )),
        Err(errno) => Err(unrenamed(volume, prepared, errno)),
    }
}

fn replace(
    volume: &Volume,
    prepared: &Prepared,
    target: &FileId,
    steps: &dyn Steps,
) -> Result<Option<Sha256>> {
    let (name, path) = (prepared.execution.as_str(), &prepared.evidence.resolved);
    match exchange(volume, name, &prepared.parent, &prepared.name) {
        Ok(()) => steps.reached(Step::Installed),
        Err(Errno::NOENT) => return Err(changed("the file went away", path)),
        Err(errno) => return Err(unrenamed(volume, prepared, errno)),
    }
    let out = taken_out(volume, name, target, prepared.expected)
        .map_err(|error| as_unproven("examine the pre-image of", path, error))?;
    let Some(before) = out else {
        undo_exchange(
            volume,
            name,
            (&prepared.parent, &prepared.name),
            path,
            &prepared.evidence.staged,
        )?;
        steps.reached(Step::ExchangedBack);
        return Err(changed("another process changed the file", path));
    };
    steps.reached(Step::PreImageVerified);
    keep_pre_image(volume, name)?;
    steps.reached(Step::PreImageKept);
    Ok(before)
}

/// Looks at what the exchange took out: `None` if it is not what was read, else its digest.
fn taken_out(
    volume: &Volume,
    name: &str,
    target: &FileId,
    expected: Expected,
) -> Result<Option<Option<Sha256>>> {
    if file_id_at(volume.staging(), name.as_bytes())?.as_ref() != Some(target) {
        return Ok(None);
    }
    let digest = kept_digest(volume.staging(), name, expected)?;
    Ok(match (expected, digest) {
        (Expected::Sha256(wanted), found) if found != Some(wanted) => None,
        (_, found) => Some(found),
    })
}

/// Finds what a mutation is aimed at; a missing parent is a precondition that does not hold.
pub(super) fn target_place(
    volume: &Volume,
    path: &RelPath,
    last: LastLink,
    git: GitInternals,
) -> Result<Place> {
    check_target(path, git)?;
    let place = volume.tree().place(path, last).map_err(|error| match error {
        Error::Refused(mut refusal) if refusal.code == Code::NotFound => {
            refusal.code = Code::PreconditionFailed;
            Error::Refused(refusal)
        }
        other => other,
    })?;
    check_target(&place.resolved, git)?;
    Ok(place)
}

struct PreImage {
    before: Before,
    stat: Stat,
    file: std::fs::File,
}

fn pre_image(volume: &Volume, place: &Place, expected: Expected) -> Result<Option<PreImage>> {
    let path = &place.resolved;
    let failed = |reason: &str, why: String| {
        Err(Refusal::new(Code::PreconditionFailed, why)
            .reason(reason)
            .name(path.to_string())
            .into())
    };
    let (file, stat) = match open_regular(volume.tree(), place) {
        Ok(found) => found,
        Err(Error::Refused(refusal)) if refusal.code == Code::NotFound => {
            return match expected {
                Expected::Any | Expected::Absent => Ok(None),
                Expected::Sha256(_) => {
                    failed("absent", "there is no file, but a content was expected".into())
                }
            };
        }
        Err(Error::Refused(refusal)) if refusal.code == Code::BadInput => {
            return failed("is_directory", refusal.why);
        }
        Err(error) => return Err(error),
    };
    if expected == Expected::Absent {
        return failed("exists", "there is a file, but none was expected".into());
    }
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let sha256 = if size <= DIGEST_CAP || matches!(expected, Expected::Sha256(_)) {
        Some(digest_of(&file).map_err(|e| Error::io("read", path.to_string(), e))?)
    } else {
        None
    };
    if let (Expected::Sha256(wanted), Some(found)) = (expected, sha256)
        && wanted != found
    {
        return failed(
            "sha256_mismatch",
            format!("the content's sha256 is {found}, expected was {wanted}"),
        );
    }
    let id = file_id(&file)?;
    Ok(Some(PreImage {
        before: Before { id, sha256 },
        stat,
        file,
    }))
}

fn create_staged(volume: &Volume, execution: &ExecutionId) -> Result<std::fs::File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(volume.staging(), execution.as_str(), flags, mode) {
        Ok(file) => Ok(file.into()),
        Err(Errno::EXIST) => Err(
            Refusal::new(Code::UnknownState, "this execution was staged before")
                .reason("staged_twice")
                .name(execution.to_string())
                .into(),
        ),
        Err(errno) => Err(Error::io("create", "a staged file", errno)),
    }
}

fn fill(
    volume: &Volume,
    write: &Write<'_>,
    target: Option<&PreImage>,
    mut staged: &std::fs::File,
) -> Result<()> {
    let shown = write.path.to_string();
    staged
        .write_all(write.bytes)
        .map_err(|e| Error::io("write", &shown, e))?;
    if let Some(found) = target {
        return attributes::keep(found.file.as_fd(), &found.stat, staged.as_fd(), &shown);
    }
    let root = rustix::fs::fstat(volume.tree().handle()).map_err(|e| Error::io("examine", "the root", e))?;
    attributes::own(staged.as_fd(), root.st_uid, root.st_gid, &shown)?;
    attributes::chmod(staged.as_fd(), 0o644, &shown)
}

/// Names the failure of a rename: nothing began if our file is still staged.
fn unrenamed(volume: &Volume, prepared: &Prepared, errno: Errno) -> Error {
    let shown = prepared.evidence.resolved.to_string();
    match file_id_at(volume.staging(), prepared.execution.as_str().as_bytes()) {
        Ok(Some(id)) if id == prepared.evidence.staged => Error::io("install", shown, errno),
        _ => Error::unproven("install", shown, errno),
    }
}
