//! Writing a file once: staged, journaled by the caller, then installed by one rename that leaves evidence.

use crate::error::{Error, Result};
use crate::files::attributes;
use crate::files::moves::{
    Left, as_unproven, changed, exchange, keep_pre_image, kept_digest, lacks_flags, still_there,
    take_free_name, undo_exchange, unmoved,
};
use crate::files::prepared::{Act, Prepared, Syncs, Terms};
use crate::files::read::{FileKind, open_regular};
use crate::files::remove::look;
use crate::files::{DIGEST_MOST, Expected, Step, Steps, digest_within, file_id, file_id_at, links};
use crate::root::{GitInternals, LastLink, Place, check_target};
use crate::volume::Volume;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use semel_core::effect::{Before, Content, Effect, Slot};
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// States a write.
#[derive(Debug)]
pub struct Write<'a> {
    /// Where to; a link in the last place is followed if it stays inside.
    pub path: &'a RelPath,
    /// The whole new content.
    pub bytes: &'a [u8],
    /// What is expected there.
    pub expected: Expected,
    /// The permissions that it gets; else those of the file that it replaces or is like.
    pub mode: Option<u32>,
    /// The file whose attributes it gets where it replaces none.
    pub like: Option<&'a RelPath>,
    /// The place, where it is known already: in a directory that is itself only staged.
    pub place: Option<Place>,
}

/// Holds a file in `staging/` that nothing else shows yet.
#[derive(Debug)]
pub(super) struct StagedFile {
    expected: Expected,
    parent: OwnedFd,
    name: Vec<u8>,
    staged: FileId,
    target: Option<FileId>,
}

/// Stages a write: new content and attributes in `staging/<slot>`, nothing changed in `tree/`.
///
/// # Errors
/// `precondition_failed` where `expected` does not hold, the parent is missing, a directory is in the place, or what it
/// is to be like is a link (reason `is_symlink`); `too_large` where it cannot be told whether `expected` holds;
/// `path_escapes_root` for protected targets, devices, FIFOs and sockets; `unknown_state` where the slot was used
/// before; `io_failed`.
pub fn prepare_write(
    volume: &Volume,
    write: Write<'_>,
    terms: Terms<'_>,
    steps: &dyn Steps,
) -> Result<Prepared> {
    let Write {
        path,
        bytes,
        expected,
        mode,
        like,
        place,
    } = write;
    let place = match place {
        Some(place) => place,
        None => target_place(volume, path, LastLink::Follow, terms.git)?,
    };
    let target = pre_image(volume, &place, expected, terms.gone)?;
    let mut syncs = Syncs::open(volume, &[&place], terms.durability)?;
    let model = match (&target, like) {
        (None, Some(like)) => {
            let like = volume.tree().place(like, LastLink::Keep)?;
            let seen = look(volume, &like)?;
            if seen.kind == FileKind::Symlink {
                let why = "it is a link: what it leads to is not moved by its name";
                return Err(seen.refuse("is_symlink", why));
            }
            Some(open_regular(volume.tree(), &like)?)
        }
        (Some(_), _) | (None, None) => None,
    };
    let like = match (&target, &model) {
        (Some(found), _) => Some((&found.file, &found.stat)),
        (None, model) => model.as_ref().map(|(file, stat)| (file, stat)),
    };
    let file = create_staged(volume, terms.slot)?;
    let filled = fill(volume, bytes, &place.resolved, like, &file).and_then(|()| match mode {
        Some(mode) => attributes::chmod(file.as_fd(), mode, &path.to_string()),
        None => Ok(()),
    });
    let staged = match filled.and_then(|()| file_id(&file)) {
        Ok(id) => id,
        Err(error) => {
            // The first error is what the caller must hear; what stays behind is swept as an orphan.
            rustix::fs::unlinkat(volume.staging(), terms.slot.as_str(), AtFlags::empty()).ok();
            return Err(error);
        }
    };
    syncs.staged(volume, file.as_fd())?;
    steps.reached(Step::Staged);
    let before = target.map(|found| found.before);
    Ok(Prepared {
        slot: terms.slot.clone(),
        act: Act::Install(StagedFile {
            expected,
            parent: place.parent,
            name: place.name,
            staged: staged.clone(),
            target: before.as_ref().map(|b| b.id.clone()),
        }),
        effect: Effect::Install {
            at: place.resolved,
            staged,
            content: Content::File {
                sha256: Sha256::of(bytes),
                size_bytes: bytes.len() as u64,
            },
            before,
        },
        syncs,
    })
}

impl StagedFile {
    /// Installs the staged file by one rename, and keeps the pre-image in `trash/<slot>`.
    pub(super) fn install(
        &self,
        volume: &Volume,
        prepared: &Prepared,
        steps: &dyn Steps,
    ) -> Result<Option<Sha256>> {
        let path = prepared.effect.at();
        match &self.target {
            None => self.place_new(volume, &prepared.slot, path, steps).map(|()| None),
            Some(target) => self.replace(volume, &prepared.slot, target, path, steps),
        }
    }

    fn place_new(&self, volume: &Volume, slot: &Slot, path: &RelPath, steps: &dyn Steps) -> Result<()> {
        let from = slot.as_str().as_bytes();
        match take_free_name(volume.staging(), from, self.parent.as_fd(), &self.name) {
            Ok(()) => {
                steps.reached(Step::Installed);
                Ok(())
            }
            Err(Left::Nothing(Errno::EXIST)) => Err(changed("something appeared in the place", path)),
            Err(left) => Err(unmoved(
                "install",
                (volume.staging(), from),
                &self.staged,
                path,
                left,
            )),
        }
    }

    fn replace(
        &self,
        volume: &Volume,
        slot: &Slot,
        target: &FileId,
        path: &RelPath,
        steps: &dyn Steps,
    ) -> Result<Option<Sha256>> {
        let (name, place) = (slot.as_str(), (&self.parent, self.name.as_slice()));
        still_there(place, target, path).map_err(|error| match error.code() {
            Code::NotFound => changed("the file went away", path),
            _ => error,
        })?;
        steps.reached(Step::TargetSeen);
        match exchange(volume, name, place.0, place.1) {
            Ok(()) => steps.reached(Step::Installed),
            Err(errno) if lacks_flags(errno) => {
                return self.replace_by_link(volume, name, target, path, steps);
            }
            Err(errno) => return Err(self.not_replaced(volume, name, path, Left::Nothing(errno))),
        }
        let out = self
            .taken_out(volume, name, target)
            .map_err(|error| as_unproven("examine the pre-image of", path, error))?;
        let Some(before) = out else {
            undo_exchange(volume, name, place, path, &self.staged)?;
            steps.reached(Step::ExchangedBack);
            return Err(changed("another process changed the file", path));
        };
        steps.reached(Step::PreImageVerified);
        keep_pre_image(volume, name)?;
        steps.reached(Step::PreImageKept);
        Ok(before)
    }

    fn not_replaced(&self, volume: &Volume, name: &str, path: &RelPath, left: Left) -> Error {
        match left {
            Left::Nothing(Errno::NOENT) => changed("the file went away", path),
            Left::Nothing(Errno::STALE) => changed("another process changed the file", path),
            left => {
                let from = (volume.staging(), name.as_bytes());
                unmoved("install", from, &self.staged, path, left)
            }
        }
    }

    /// Replaces where the filesystem has no exchange. The content is looked at again afterwards: what another process
    /// wrote into the file until then has to be seen.
    fn replace_by_link(
        &self,
        volume: &Volume,
        name: &str,
        target: &FileId,
        path: &RelPath,
        steps: &dyn Steps,
    ) -> Result<Option<Sha256>> {
        let place = (&self.parent, self.name.as_slice());
        let before = links::take_place(volume, name, place, (target, self.expected))
            .map_err(|left| self.not_replaced(volume, name, path, left))?;
        steps.reached(Step::Installed);
        let after = kept_digest(volume.trash(), name, self.expected)
            .map_err(|error| as_unproven("examine the pre-image of", path, error))?;
        if before == after {
            steps.reached(Step::PreImageVerified);
            steps.reached(Step::PreImageKept);
            return Ok(before);
        }
        if matches!(self.expected, Expected::Sha256(_)) {
            links::give_place_back(volume, name, place, path, &self.staged)?;
            steps.reached(Step::ExchangedBack);
            return Err(changed("another process changed the file", path));
        }
        Ok(after)
    }

    /// Looks at what the exchange took out: `None` if it is not what was read, else its digest.
    fn taken_out(&self, volume: &Volume, name: &str, target: &FileId) -> Result<Option<Option<Sha256>>> {
        if file_id_at(volume.staging(), name.as_bytes())?.as_ref() != Some(target) {
            return Ok(None);
        }
        let digest = kept_digest(volume.staging(), name, self.expected)?;
        Ok(match (self.expected, digest) {
            (Expected::Sha256(wanted), found) if found != Some(wanted) => None,
            (_, found) => Some(found),
        })
    }
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

fn pre_image(
    volume: &Volume,
    place: &Place,
    expected: Expected,
    gone: &dyn Fn() -> bool,
) -> Result<Option<PreImage>> {
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
        Err(error) => return Err(error),
    };
    if expected == Expected::Absent {
        return failed("exists", "there is a file, but none was expected".into());
    }
    let sha256 = expected_content(&file, &stat, expected, path, gone)?;
    let id = file_id(&file)?;
    let others = super::read::links(&stat).saturating_sub(1);
    Ok(Some(PreImage {
        before: Before {
            id,
            sha256,
            stated: expected.stated(),
            other_names: (others > 0).then_some(others),
        },
        stat,
        file,
    }))
}

/// Digests a file if it is small enough for that, and holds it against what is expected.
///
/// # Errors
/// `precondition_failed` with reason `sha256_mismatch`; `too_large`, reason `digest_too_large`, where content is
/// expected of more than is digested at all; `draining` where the caller is gone; `io_failed`.
pub(super) fn expected_content(
    file: &std::fs::File,
    stat: &Stat,
    expected: Expected,
    path: &RelPath,
    gone: &dyn Fn() -> bool,
) -> Result<Option<Sha256>> {
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let most = expected.digests();
    let found = if size > most {
        None
    } else {
        digest_within(file, most, gone).map_err(|e| Error::io("read", path.to_string(), e))?
    };
    let Some(found) = found else {
        if gone() {
            return Err(Refusal::new(Code::Draining, "the caller went away").into());
        }
        return match expected {
            Expected::Sha256(_) => {
                let why = format!("a content was expected of a file of more than {DIGEST_MOST} bytes");
                Err(Refusal::new(Code::TooLarge, why)
                    .reason("digest_too_large")
                    .name(path.to_string())
                    .into())
            }
            Expected::Any | Expected::Absent => Ok(None),
        };
    };
    match expected {
        Expected::Sha256(wanted) if wanted != found => {
            let why = format!("the content's sha256 is {found}, expected was {wanted}");
            Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("sha256_mismatch")
                .name(path.to_string())
                .into())
        }
        Expected::Any | Expected::Absent | Expected::Sha256(_) => Ok(Some(found)),
    }
}

fn create_staged(volume: &Volume, slot: &Slot) -> Result<std::fs::File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(volume.staging(), slot.as_str(), flags, mode) {
        Ok(file) => Ok(file.into()),
        Err(errno) => Err(not_staged(slot, errno)),
    }
}

/// Names why something could not be staged.
pub(super) fn not_staged(slot: &Slot, errno: Errno) -> Error {
    if errno == Errno::EXIST {
        return Refusal::new(Code::UnknownState, "this execution was staged before")
            .reason("staged_twice")
            .name(slot.as_str())
            .into();
    }
    Error::io("stage", slot.as_str(), errno)
}

fn fill(
    volume: &Volume,
    bytes: &[u8],
    path: &RelPath,
    like: Option<(&std::fs::File, &Stat)>,
    staged: &std::fs::File,
) -> Result<()> {
    let shown = path.to_string();
    // By place, as the journal does: a test that makes writes fail aims at what goes to a file, and at nothing else.
    staged
        .write_all_at(bytes, 0)
        .map_err(|e| Error::io("write", &shown, e))?;
    if let Some((file, stat)) = like {
        return attributes::keep(file.as_fd(), stat, staged.as_fd(), &shown);
    }
    attributes::as_the_volume(volume, staged.as_fd(), &shown)?;
    attributes::chmod(staged.as_fd(), 0o644, &shown)
}
