//! The declared caches: directories beneath the tree that the tests may write.

use semel_core::job::Certify;
use semel_core::manifest::{Entry, Manifest};
use semel_core::{Code, Refusal, RelPath};

/// How many entries are named at most.
const NAMED: usize = 20;

/// Refuses a cache in which something sealed lies: the tests could write beside it, and read what they wrote.
///
/// A file that only keeps a directory in git may lie there; so may a report, which is refused as not fresh.
///
/// # Errors
/// `bad_input`, naming what lies there.
pub(super) fn hold_nothing_sealed(certify: &Certify, manifest: &Manifest) -> Result<(), Refusal> {
    let cached = |path: &RelPath| {
        let mut caches = certify.caches.iter();
        caches.any(|cache| cache.is_root() || path == cache || path.is_below(cache))
    };
    let held = manifest.entries.iter().filter(|entry| {
        let path = entry.path();
        cached(path) && certify.report.as_ref() != Some(path) && !keeps_a_directory(entry)
    });
    let held: Vec<String> = held.take(NAMED).map(|entry| entry.path().to_string()).collect();
    if held.is_empty() {
        return Ok(());
    }
    let why = "these entries of the tree lie in a directory that the job declares as a cache";
    Err(Refusal::new(Code::BadInput, why)
        .reason("sealed_cache")
        .names(held))
}

fn keeps_a_directory(entry: &Entry) -> bool {
    let name = entry.path().split_last().map(|(_, name)| name.to_vec());
    let keeps = [&b".gitkeep"[..], b".keep", b".gitignore"].map(<[u8]>::to_vec);
    matches!(entry, Entry::File { .. }) && name.is_some_and(|name| keeps.contains(&name))
}
