//! Looking again: whether a tree still holds, byte for byte, what a manifest lists.

use crate::error::{Error, Result};
use crate::files::digest_of;
use crate::files::read::FileKind;
use crate::root::{Root, failed};
use crate::tarball::pack::Above;
use rustix::fs::OFlags;
use rustix::io::Errno;
use semel_core::manifest::{Entry, FileMode, Manifest};
use semel_core::{Code, Refusal, RelPath};

/// So few entries are not worth a second thread.
const FEW: usize = 256;
/// The most threads: more wait for the same disk.
const MOST_THREADS: usize = 8;

/// Checks that every entry of a manifest is there with its mode, size, content or target. What else is there does not
/// matter.
///
/// # Errors
/// `tree_mismatch`, naming the first entry in their order that is not what it was; `io_failed` where one cannot be read.
pub fn verify(manifest: &Manifest, root: &Root) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
    let share = manifest.entries.len().div_ceil(threads).max(FEW);
    std::thread::scope(|scope| {
        let mut shares = manifest.entries.chunks(share);
        let mine = shares.next().unwrap_or_default();
        let others: Vec<_> = shares
            .map(|share| scope.spawn(move || each(share, root)))
            .collect();
        let mut all = vec![each(mine, root)];
        for other in others {
            let lost = || Refusal::new(Code::Internal, "a thread that looks at a tree ended").into();
            all.push(other.join().unwrap_or_else(|_| Err(lost())));
        }
        all.into_iter().collect()
    })
}

fn each(entries: &[Entry], root: &Root) -> Result<()> {
    let mut above = Above::new(root);
    entries.iter().try_for_each(|entry| one(entry, root, &mut above))
}

fn one(entry: &Entry, root: &Root, above: &mut Above<'_>) -> Result<()> {
    let path = entry.path();
    let (dir, name) = above.of(path).map_err(|error| match error {
        Error::Refused(_) => differs(path, "a directory above it is not what it was"),
        other => other,
    })?;
    match entry {
        Entry::Symlink { target, .. } => match rustix::fs::readlinkat(dir, name, Vec::new()) {
            Ok(found) if found.as_bytes() == target.as_bytes() => Ok(()),
            Ok(_) => Err(differs(path, "the link leads elsewhere")),
            Err(Errno::NOENT | Errno::INVAL) => Err(differs(path, "the link is gone")),
            Err(e) => Err(Error::io("read", path.to_string(), e)),
        },
        Entry::File {
            mode, size, sha256, ..
        } => {
            let file = match root.step(dir, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
                Ok(file) => file,
                Err(Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::NXIO) => {
                    return Err(differs(path, "the file is gone, or something else has its name"));
                }
                Err(errno) => return Err(failed(errno, path)),
            };
            let stat = rustix::fs::fstat(&file).map_err(|e| Error::io("examine", path.to_string(), e))?;
            if FileKind::of(&stat) != FileKind::File {
                return Err(differs(path, "it is no file any more"));
            }
            if FileMode::of(stat.st_mode) != *mode {
                return Err(differs(path, "its executable bit is not what it was"));
            }
            let same = u64::try_from(stat.st_size) == Ok(*size)
                && digest_of(&file.into()).map_err(|e| Error::io("read", path.to_string(), e))? == *sha256;
            if same {
                Ok(())
            } else {
                Err(differs(path, "its content is not what it was"))
            }
        }
    }
}

fn differs(path: &RelPath, why: &str) -> Error {
    Refusal::new(Code::TreeMismatch, format!("{path}: {why}"))
        .name(path.to_string())
        .into()
}
