//! Digests that are computed beside the reading and writing, by threads of their own, in constant memory.
//!
//! Whoever reads fills batches and gives them away; each worker sees every batch in turn, and the last one gives its
//! memory back. What the bytes mean is the reader's business: a batch says which of them are the content of which file.

use crate::error::{Error, Result};
use crate::tarball::BLOCK;
use semel_core::digest::Hasher;
use semel_core::git_tree::{BlobHasher, ObjectFormat, ObjectId};
use semel_core::{Code, Refusal, Sha256};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// How many bytes of a stream a batch holds; a multiple of the block.
pub(super) const ROOM: usize = 1 << 20;

/// How many batches there are: enough that nobody waits for a worker that has a large file.
const BATCHES: usize = 6;

/// The most threads that compute ids of blobs: SHA-1 with its search for collisions costs several times the rest.
const MOST_FOR_BLOBS: usize = 4;

/// Names the bytes of a batch that belong to one file.
pub(super) struct Part {
    /// The whole length of the file, if these are its first bytes.
    pub(super) begins: Option<u64>,
    /// Where they are in the batch.
    pub(super) at: Range<usize>,
}

/// Holds the next bytes of an archive, and what of them is the content of files.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) parts: Vec<Part>,
}

/// Is a batch that goes back where it came from when the last worker is done with it.
struct Lent {
    batch: Batch,
    home: Sender<Batch>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Nobody waits for it any more where the reader is gone.
        self.home.send(std::mem::take(&mut self.batch)).ok();
    }
}

/// Is what was found out about a stream.
#[derive(Debug)]
pub(super) struct Digests {
    /// Of all bytes.
    pub(super) archive: Sha256,
    /// Of each file's content, in the order in which the files began.
    pub(super) contents: Vec<Sha256>,
    /// The ids of the same contents as blobs; empty unless they were asked for.
    pub(super) blobs: Vec<ObjectId>,
}

/// Gives batches out and takes them back filled.
pub(super) struct Feed {
    home: Sender<Batch>,
    free: Receiver<Batch>,
    workers: Vec<SyncSender<Arc<Lent>>>,
}

impl Feed {
    /// Gives an empty batch, as soon as one is free.
    pub(super) fn batch(&self) -> Result<Batch> {
        let mut batch = self.free.recv().map_err(|_| lost())?;
        batch.bytes.clear();
        batch.parts.clear();
        Ok(batch)
    }

    /// Takes a filled batch; the batches are one stream, in the order in which they are given.
    pub(super) fn give(&self, batch: Batch) {
        let home = self.home.clone();
        let lent = Arc::new(Lent { batch, home });
        for worker in &self.workers {
            // A worker that is gone is noticed when it is joined.
            worker.send(Arc::clone(&lent)).ok();
        }
    }
}

/// Lets something read, and digests what it gives away meanwhile; blobs only where a format is given.
///
/// # Errors
/// Those of `read`; `tree_mismatch`, naming the file by `name`, for a known attack on SHA-1; `io_failed` where no thread is
/// to be had.
pub(super) fn beside<T>(
    blobs: Option<ObjectFormat>,
    read: impl FnOnce(&Feed) -> Result<T>,
    name: impl FnOnce(&T, usize) -> String,
) -> Result<(T, Digests)> {
    let (home, free) = channel();
    std::thread::scope(|scope| {
        let (to_sums, of_sums) = sync_channel(BATCHES);
        let sums = start(scope, move || sums(&of_sums))?;
        let mut feed = Feed {
            home,
            free,
            workers: vec![to_sums],
        };
        let mut hashing = Vec::new();
        if let Some(format) = blobs {
            let all = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_FOR_BLOBS));
            for one in 0..all {
                let (to_blobs, of_blobs) = sync_channel(BATCHES);
                let share = Share { one, all };
                hashing.push(start(scope, move || blob_ids(&of_blobs, format, share))?);
                feed.workers.push(to_blobs);
            }
        }
        for _ in 0..BATCHES {
            let bytes = Vec::with_capacity(ROOM + BLOCK);
            let parts = Vec::new();
            feed.home.send(Batch { bytes, parts }).map_err(|_| lost())?;
        }
        let done = read(&feed);
        drop(feed);
        let sums = sums.join();
        let hashed: Vec<_> = hashing.into_iter().map(ScopedJoinHandle::join).collect();
        let done = done?;
        let (archive, contents) = sums.map_err(|_| lost())?;
        let mut shares = Vec::new();
        for share in hashed {
            match share.map_err(|_| lost())? {
                Ok(ids) => shares.push(ids.into_iter()),
                Err((file, refusal)) => return Err(refusal.name(name(&done, file)).into()),
            }
        }
        // Dealt out one by one, they are collected one by one.
        let mut blobs = Vec::with_capacity(contents.len());
        loop {
            let before = blobs.len();
            blobs.extend(shares.iter_mut().map_while(Iterator::next));
            if blobs.len() == before {
                break;
            }
        }
        Ok((
            done,
            Digests {
                archive,
                contents,
                blobs,
            },
        ))
    })
}

fn start<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> Result<ScopedJoinHandle<'s, T>> {
    let builder = Builder::new().name("semel-digest".to_owned());
    builder
        .spawn_scoped(scope, work)
        .map_err(|e| Error::io("start", "a thread", e))
}

fn lost() -> Error {
    Refusal::new(Code::Internal, "a thread that digests ended before its time").into()
}

fn sums(batches: &Receiver<Arc<Lent>>) -> (Sha256, Vec<Sha256>) {
    let (mut archive, mut contents, mut open) = (Hasher::new(), Vec::new(), None::<Hasher>);
    for lent in batches {
        archive.update(&lent.batch.bytes);
        for part in &lent.batch.parts {
            if part.begins.is_some() {
                contents.extend(open.replace(Hasher::new()).map(Hasher::finish));
            }
            if let Some(open) = &mut open {
                open.update(&lent.batch.bytes[part.at.clone()]);
            }
        }
    }
    contents.extend(open.map(Hasher::finish));
    (archive.finish(), contents)
}

type Blobs = std::result::Result<Vec<ObjectId>, (usize, Refusal)>;

/// Says which files are one worker's: every so many-th.
#[derive(Clone, Copy)]
struct Share {
    one: usize,
    all: usize,
}

fn blob_ids(batches: &Receiver<Arc<Lent>>, format: ObjectFormat, share: Share) -> Blobs {
    let (mut ids, mut open, mut failed, mut begun) = (Vec::new(), None::<BlobHasher>, None, 0_usize);
    let mut finish = |hasher: Option<BlobHasher>| match hasher.map(BlobHasher::finish) {
        None => {}
        Some(Ok(id)) => ids.push(id),
        Some(Err(refusal)) => {
            failed.get_or_insert((ids.len() * share.all + share.one, refusal));
        }
    };
    // Read to the end in any case: the reader waits for its batches.
    for lent in batches {
        for part in &lent.batch.parts {
            if let Some(size) = part.begins {
                finish(open.take());
                open = (begun % share.all == share.one).then(|| BlobHasher::new(format, size));
                begun += 1;
            }
            if let Some(open) = &mut open {
                open.update(&lent.batch.bytes[part.at.clone()]);
            }
        }
    }
    finish(open);
    match failed {
        None => Ok(ids),
        Some(failed) => Err(failed),
    }
}
