//! Removing a file once: one rename into `trash/` that leaves evidence, and can be undone.

use crate::error::{Error, Result};
use crate::files::exchange::{Syncs, as_unproven, changed, kept_digest, out_of_reach};
use crate::files::read::FileKind;
use crate::files::write::target_place;
use crate::files::{DIGEST_CAP, Durability, Expected, Step, Steps, digest_of, file_id, file_id_at};
use crate::root::{GitInternals, LastLink, failed};
use crate::volume::Volume;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use semel_core::call::{Before, Effect};
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::os::fd::{AsFd as _, OwnedFd};

/// States a removal.
#[derive(Clone, Copy, Debug)]
pub struct Remove<'a> {
    /// What; a link in the last place is itself removed.
    pub path: &'a RelPath,
    /// What is expected there.
    pub expected: Expected,
    /// Under which name the target is kept in `trash/`.
    pub execution: &'a ExecutionId,
    /// What has to survive.
    pub durability: Durability,
    /// Whether a policy rule allows what belongs to git.
    pub git: GitInternals,
}

/// Holds what an intent to remove has to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveEvidence {
    /// The path with every link but a last one followed.
    pub resolved: RelPath,
    /// What is to be removed. The digest is missing for a link, and above [`DIGEST_CAP`] unless it was asked for.
    pub before: Before,
}

impl RemoveEvidence {
    /// Gives the evidence as an intent records it.
    #[must_use]
    pub fn effect(&self) -> Effect {
        Effect::Remove {
            before: self.before.clone(),
        }
    }
}

/// Holds a removal that nothing shows yet.
#[derive(Debug)]
pub struct PreparedRemove {
    /// What the intent records.
    pub evidence: RemoveEvidence,
    expected: Expected,
    execution: ExecutionId,
    parent: OwnedFd,
    name: Vec<u8>,
    syncs: Option<Syncs>,
}

/// Says what a removal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The digest of what is now in `trash/`; `None` for a link, and above [`DIGEST_CAP`] unless it was asked
    /// for.
    pub before: Option<Sha256>,
}

/// Looks at what is to be removed; changes nothing.
///
/// # Errors
/// `not_found` where there is nothing, or no parent; `precondition_failed` where `expected` does not hold, and for a
/// directory; `path_escapes_root` for protected targets, devices, FIFOs and sockets.
pub fn prepare_remove(volume: &Volume, wanted: &Remove<'_>) -> Result<PreparedRemove> {
    let place = target_place(volume, wanted.path, LastLink::Keep, wanted.git).map_err(as_not_found)?;
    let path = &place.resolved;
    let failed_at = |errno| failed(errno, path);
    let found = volume
        .tree()
        .step(place.parent.as_fd(), &place.name, OFlags::PATH);
    let found = found.map_err(failed_at)?;
    let stat = rustix::fs::fstat(&found).map_err(failed_at)?;
    let refuse = |code, reason: &str, why: &str| -> Result<PreparedRemove> {
        Err(Refusal::new(code, why)
            .reason(reason)
            .name(path.to_string())
            .into())
    };
    let kind = FileKind::of(&stat);
    match (kind, wanted.expected) {
        (FileKind::Directory, _) => {
            return refuse(Code::PreconditionFailed, "is_directory", "it is a directory");
        }
        (FileKind::Special, _) => {
            let why = "it is a device, a FIFO or a socket";
            return refuse(Code::PathEscapesRoot, "special_file", why);
        }
        (FileKind::Symlink, Expected::Sha256(_)) => {
            let why = "it is a link, but a content was expected";
            return refuse(Code::PreconditionFailed, "is_symlink", why);
        }
        (_, Expected::Absent) => {
            return refuse(
                Code::PreconditionFailed,
                "exists",
                "there is a file, but none was expected",
            );
        }
        (FileKind::File | FileKind::Symlink, Expected::Any) | (FileKind::File, Expected::Sha256(_)) => {}
    }
    let asked = matches!(wanted.expected, Expected::Sha256(_));
    let small = u64::try_from(stat.st_size).unwrap_or_default() <= DIGEST_CAP;
    let target = file_id(&found)?;
    let sha256 = match super::read::open_regular(volume.tree(), &place) {
        _ if kind != FileKind::File || !(small || asked) => None,
        Ok((file, _)) if file_id(&file)? != target => {
            return Err(changed("another process replaced the file", path));
        }
        Ok((file, _)) => Some(digest_of(&file).map_err(|e| Error::io("read", path.to_string(), e))?),
        // A file that may not be read may be removed all the same, unless its content matters.
        Err(Error::Io { source, .. }) if unreadable(&source) && !asked => None,
        Err(error) => return Err(error),
    };
    if let (Expected::Sha256(wanted), Some(found)) = (wanted.expected, sha256)
        && wanted != found
    {
        let why = format!("the content's sha256 is {found}, expected was {wanted}");
        return refuse(Code::PreconditionFailed, "sha256_mismatch", &why);
    }
    Ok(PreparedRemove {
        evidence: RemoveEvidence {
            resolved: place.resolved.clone(),
            before: Before { id: target, sha256 },
        },
        expected: wanted.expected,
        execution: wanted.execution.clone(),
        syncs: Syncs::open(volume, &place, wanted.durability)?,
        parent: place.parent,
        name: place.name,
    })
}

/// Removes by one rename into `trash/<execution id>`, then verifies that the right thing went there.
///
/// # Errors
/// `not_found` where it was gone already; `precondition_failed` (reason `changed_meanwhile`) where another thing
/// was in the place, which is put back; `outcome_unknown` where it could not be put back and is kept in
/// `trash/`; [`Error::Unproven`] where the process has to end; `io_failed` where nothing began.
///
/// # Durability
/// With [`Durability::Power`] the removal and what was removed survive a power cut.
pub fn remove(volume: &Volume, prepared: &PreparedRemove, steps: &dyn Steps) -> Result<Removed> {
    let (name, path) = (prepared.execution.as_str(), &prepared.evidence.resolved);
    let last = prepared.name.as_slice();
    let into = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&prepared.parent, last, volume.trash(), name, into) {
        Ok(()) => steps.reached(Step::Removed),
        Err(Errno::NOENT) => return Err(failed(Errno::NOENT, path)),
        Err(Errno::EXIST) => {
            return Err(
                Refusal::new(Code::UnknownState, "this execution removed something before")
                    .reason("removed_twice")
                    .name(name)
                    .into(),
            );
        }
        Err(errno) => return Err(unremoved(volume, prepared, errno)),
    }
    let out = file_id_at(volume.trash(), name.as_bytes())
        .map_err(|e| as_unproven("examine what was removed at", path, e))?;
    let same = out.as_ref() == Some(&prepared.evidence.before.id);
    let digest = if same {
        kept_digest(volume.trash(), name, prepared.expected)
            .map_err(|e| as_unproven("examine what was removed at", path, e))?
    } else {
        None
    };
    let holds = match prepared.expected {
        Expected::Sha256(wanted) => digest == Some(wanted),
        Expected::Any | Expected::Absent => true,
    };
    if !same || !holds {
        give_back(volume, name, &prepared.parent, last, path)?;
        steps.reached(Step::PutBack);
        return Err(changed("another process changed the file", path));
    }
    if let Some(syncs) = &prepared.syncs {
        syncs.all()?;
        steps.reached(Step::RemoveSynced);
    }
    Ok(Removed { before: digest })
}

/// Puts what is in `trash/` back in its place, unless something new is there.
pub(super) fn give_back(
    volume: &Volume,
    name: &str,
    parent: &OwnedFd,
    last: &[u8],
    path: &RelPath,
) -> Result<()> {
    match rustix::fs::renameat_with(volume.trash(), name, parent, last, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(errno) if errno == Errno::EXIST || out_of_reach(errno) => {
            let kept = volume.path().join("vol/trash").join(name);
            let why = "another process changed the same path during the call; both contents are kept";
            Err(Refusal::new(Code::OutcomeUnknown, why)
                .reason("changed_outside")
                .names([path.to_string(), kept.display().to_string()])
                .into())
        }
        Err(errno) => Err(Error::unproven("put back", path.to_string(), errno)),
    }
}

pub(super) fn unreadable(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

/// Where the parent is gone, so is the file.
fn as_not_found(error: Error) -> Error {
    match error {
        Error::Refused(mut refusal) if refusal.code == Code::PreconditionFailed => {
            refusal.code = Code::NotFound;
            Error::Refused(refusal)
        }
        other => other,
    }
}

fn unremoved(volume: &Volume, prepared: &PreparedRemove, errno: Errno) -> Error {
    let shown = prepared.evidence.resolved.to_string();
    match file_id_at(volume.trash(), prepared.execution.as_str().as_bytes()) {
        Ok(None) => Error::io("remove", shown, errno),
        _ => Error::unproven("remove", shown, errno),
    }
}
