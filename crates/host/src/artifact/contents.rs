//! What is in an artifact: a digest of each member, and the few texts that binding needs.

use super::{CHUNK, Fault, MOST_BYTES, MOST_MEMBERS, wants_member};
use crate::error::Result;
use semel_core::artifact::{Packing, place_member};
use semel_core::digest::Hasher;
use semel_core::install::Fact;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Holds a digest of each member of an artifact.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Every file and link, by its place.
    pub members: BTreeMap<RelPath, Fact>,
    /// The content of the members that [`wants_member`] asks for.
    pub texts: BTreeMap<RelPath, Vec<u8>>,
    packing: Packing,
    unpack: Option<PathBuf>,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Contents {
    pub(super) fn new(packing: Packing) -> Self {
        Self {
            members: BTreeMap::new(),
            texts: BTreeMap::new(),
            packing,
            unpack: None,
            bytes: 0,
            buffer: vec![0; CHUNK],
        }
    }

    pub(super) fn unpacking(packing: Packing, to: &Path) -> Self {
        Self {
            unpack: Some(to.to_path_buf()),
            ..Self::new(packing)
        }
    }

    /// Says where a member belongs; `None` for what is no member.
    pub(super) fn place(&self, name: &[u8]) -> std::result::Result<Option<RelPath>, Fault> {
        if self.members.len() >= MOST_MEMBERS {
            return Err(Fault::Large(
                "an artifact has more members than any package needs",
            ));
        }
        Ok(place_member(self.packing, name)?)
    }

    /// Takes a file; gives how many bytes it had.
    pub(super) fn file(
        &mut self,
        path: RelPath,
        mode: u32,
        mut from: impl Read,
    ) -> std::result::Result<u64, Fault> {
        let mut out = self.create(&path, mode)?;
        let mut hasher = Hasher::new();
        let (mut size, mut wanted, mut text) = (0_u64, None, Vec::new());
        loop {
            let count = match from.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            let piece = &self.buffer[..count];
            if size == 0 {
                wanted = wants_member(self.packing, &path, piece);
            }
            size += count as u64;
            self.bytes += count as u64;
            if self.bytes > MOST_BYTES {
                return Err(Fault::Large(
                    "the members of an artifact are larger than any package needs",
                ));
            }
            hasher.update(piece);
            if let Some(file) = &mut out {
                file.write_all(piece)?;
            }
            if let Some(most) = wanted {
                if size > most {
                    return Err(Fault::Large("a member whose text is needed is too long"));
                }
                text.extend_from_slice(piece);
            }
        }
        // Of an empty file, too, the text is known.
        if wanted.is_some() || wants_member(self.packing, &path, &[]).is_some() {
            self.texts.insert(path.clone(), text);
        } else {
            self.texts.remove(&path);
        }
        let fact = Fact::File {
            mode,
            size,
            sha256: hasher.finish(),
        };
        self.members.insert(path, fact);
        Ok(size)
    }

    /// Takes a link.
    pub(super) fn link(&mut self, path: RelPath, target: Vec<u8>) -> std::result::Result<(), Fault> {
        if self.unpack.is_some() {
            return Err(Fault::Odd("it has a link among its members"));
        }
        self.members.insert(path, Fact::Symlink { target });
        Ok(())
    }

    /// Takes a second name of an earlier member.
    pub(super) fn hard_link(&mut self, path: RelPath, of: &RelPath) -> std::result::Result<(), Fault> {
        // Package managers of Node leave these out.
        if self.packing == Packing::Npm {
            return Ok(());
        }
        let fact = self.members.get(of).cloned();
        match (fact, &self.unpack) {
            (Some(fact @ Fact::File { .. }), None) => {
                self.members.insert(path, fact);
                Ok(())
            }
            _ => Err(Fault::Odd(
                "it has a hard link among its members that leads to none of them",
            )),
        }
    }

    fn create(&self, path: &RelPath, mode: u32) -> std::result::Result<Option<std::fs::File>, Fault> {
        let Some(base) = &self.unpack else {
            return Ok(None);
        };
        if self.members.contains_key(path) {
            let why = "an artifact has a member twice";
            return Err(Refusal::new(Code::RecordMismatch, why)
                .name(shown(path.as_bytes()))
                .into());
        }
        let whole = base.join(OsStr::from_bytes(path.as_bytes()));
        if let Some(parent) = whole.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        Ok(Some(options.open(whole)?))
    }
}

/// Does the same with each of some things, on as many threads as there are processors; the results keep the order.
///
/// # Errors
/// The first error in the order of the things.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    things: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    const MOST_THREADS: usize = 8;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(MOST_THREADS).min(things.len());
    if threads < 2 {
        return things.iter().map(work).collect();
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<R>)>> = Mutex::new(Vec::with_capacity(things.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(thing) = things.get(at) else { return };
                    let result = work(thing);
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((at, result));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
