//! What a new volume lies on: what is asked for, what this machine has, and which of it was taken, with the reason.
//!
//! The choice is `core`'s; this finds out what it depends on, and seals the tree that an overlay lies over.

use super::proposal::{self, Proposal};
use super::volume::{Source, Wanted};
use super::{Engine, host};
use crate::limits;
use semel_core::backend::{self, Backend, Choice, Content};
use semel_core::digest::to_hex;
use semel_core::volume::Role;
use semel_core::{Code, Refusal, Sha256};
use semel_host::root::Root;
use semel_host::volume::{Lower, MemorySize, On};
use semel_host::{clock, copy, plain};
use std::path::Path;

/// Bytes that one file or directory in memory stands for, where the operator bounds bytes alone.
const BYTES_PER_FILE: u64 = 4096;

/// Chooses what a volume lies on, and makes what of it is made before the volume is.
///
/// # Errors
/// Those of [`backend::choose`]; those of copying a directory that an overlay is to lie over; `io_failed`.
pub(crate) fn lay(engine: &Engine, wanted: &Wanted) -> Result<(Choice, On), Refusal> {
    let asked = wanted.backend.or(engine.config.backend);
    let content = match &wanted.source {
        Source::Sealed(_) => Content::Sealed,
        Source::Empty | Source::Dir(_) => Content::Open,
    };
    // A machine is tried only where the answer depends on it.
    let tried = asked.named().is_some_and(Backend::is_mounted) || content == Content::Sealed;
    let offers = if tried {
        engine.volumes.offers().map_err(host)?
    } else {
        vec![backend::Offer {
            backend: Backend::Dir,
            missing: None,
            weaker: Vec::new(),
        }]
    };
    let choice = backend::choose(asked, wanted.role, wanted.durability, content, &offers)?;
    match choice.backend {
        Backend::Dir => Ok((choice, On::Dir)),
        Backend::Tmpfs => Ok((choice, On::Tmpfs(memory(engine)))),
        Backend::Overlay => over(engine, wanted, choice),
    }
}

fn over(engine: &Engine, wanted: &Wanted, choice: Choice) -> Result<(Choice, On), Refusal> {
    match &wanted.source {
        Source::Empty => {
            let lower = engine.volumes.empty_lower().map_err(host)?;
            Ok((choice, On::Overlay(lower)))
        }
        Source::Dir(from) => {
            let lower = copied(engine, from)?;
            Ok((choice, On::Overlay(lower)))
        }
        Source::Sealed(proposal) => match sealed(engine, proposal) {
            // Its programs alone write it, and run as a user of their own.
            Ok(lower) if wanted.role == Role::Cert => Ok((choice, On::Owned(lower))),
            Ok(lower) => Ok((choice, On::Overlay(lower))),
            // The attempt comes to the same refusal when it unpacks, and signs it.
            Err(refusal) => {
                let why = format!("the proposal is no sealed tree: {refusal}");
                Ok((
                    Choice {
                        backend: Backend::Dir,
                        why,
                    },
                    On::Dir,
                ))
            }
        },
    }
}

fn memory(engine: &Engine) -> MemorySize {
    let quota = engine.config.quota;
    let bytes = quota.volume_bytes.unwrap_or(limits::MEMORY_VOLUME);
    MemorySize {
        bytes,
        // What stands beside the agent's root counts, too.
        files: quota
            .volume_files
            .unwrap_or(bytes / BYTES_PER_FILE)
            .saturating_add(16),
    }
}

fn copied(engine: &Engine, from: &Path) -> Result<Lower, Refusal> {
    let name = format!("c-{}", to_hex(&clock::random::<16>().map_err(host)?));
    let mut fill = |root: &Root| copy::copy_tree(from, root.handle()).map(|_| Vec::new());
    engine.volumes.lower(&name, &mut fill).map_err(host)
}

/// Gives the tree of a proposal, sealed; unpacked once, and bound to the entries that its manifest lists.
fn sealed(engine: &Engine, proposal: &Proposal) -> Result<Lower, Refusal> {
    let digest = proposal.digest();
    // The bytes that the certificate names, each time: the tree stands for them, and does not replace them.
    let found = plain::digest_file(&proposal.archive).map_err(host)?;
    if found != digest {
        let why = format!("its bytes are those of {found}");
        return Err(Refusal::new(Code::ProposalRefused, why).reason("other_archive"));
    }
    let name = format!("p-{digest}");
    let mut fill = |root: &Root| -> semel_host::Result<Vec<u8>> {
        let manifest = proposal::unpack(proposal, root, None)?;
        Ok(seal_of(&manifest.entries)?)
    };
    let lower = engine.volumes.lower(&name, &mut fill).map_err(host)?;
    if lower.seal() == seal_of(&proposal.manifest.entries)? {
        return Ok(lower);
    }
    let why = "the archive does not hold what its manifest lists";
    Err(Refusal::new(Code::ProposalRefused, why).reason("manifest_differs"))
}

fn seal_of(entries: &Vec<semel_core::manifest::Entry>) -> Result<Vec<u8>, Refusal> {
    let text = semel_core::canonical::canonical_of(entries)?;
    Ok(Sha256::of(&text).to_string().into_bytes())
}
