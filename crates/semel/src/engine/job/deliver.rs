//! Delivery: a new branch, or a patch, whose tree is exactly the certified one.

use super::draft;
use super::run::Asked;
use crate::engine::proposal::{self, BaseTree, Proposal};
use crate::engine::{Engine, host, volume};
use crate::limits;
use semel_core::manifest::Entry;
use semel_core::pipeline::{Run, Stage};
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::git::{Delivery, Git, Import, Pins, Repository, Sealed, deliver_branch, make_patch};
use semel_host::process::Cancel;
use std::collections::BTreeMap;

/// Delivers the certified tree as the job asks; delivering it again finds its own work.
///
/// # Errors
/// `tree_mismatch`; `lock_timeout`, reason `worktrees_busy`; `precondition_failed` where the branch, and the one that bears the number of the attempt, is at
/// another commit; `bad_input`, `git_failed`.
pub(crate) fn deliver(
    engine: &Engine,
    asked: &Asked,
    run: &Run,
    proposal: &Sha256,
    cancel: &Cancel,
) -> Result<String, Refusal> {
    let job = &asked.job;
    if job.output.branch.is_none() && job.output.patch.is_none() {
        return Ok("nothing".to_owned());
    }
    let proposal = proposal::find(engine, proposal)?;
    let generation = run
        .stages
        .iter()
        .rev()
        .find_map(|stage| match stage {
            Stage::AgentEnded { generation } => Some(generation),
            Stage::Drafted { .. }
            | Stage::Sealed { .. }
            | Stage::Certified { .. }
            | Stage::Delivered { .. } => None,
        })
        .ok_or_else(|| Refusal::new(Code::Internal, "a sealed run without a draft"))?;
    let known = volume::find(engine, generation)?;
    let disk = engine.volumes.look(&known.job, generation).map_err(host)?;
    let chosen: Vec<RelPath> = proposal
        .manifest
        .entries
        .iter()
        .map(|entry| entry.path().clone())
        .collect();
    let git = Git::find(&engine.config.path).map_err(host)?;
    let place = draft::repository(&job.repository, &asked.beside)?;
    let repository = Repository::open(&git, &place, cancel).map_err(host)?;
    let commit = repository.parse_id(&run.new.base).map_err(host)?;
    let base = BaseTree::of(repository, commit)?;
    let repository = &base.repository;
    let pointers = sealed_pointers(&base, &proposal)?;
    let sealed = Sealed {
        dir: disk.tree().handle(),
        chosen: &chosen,
        pointers: &pointers,
        certified: proposal.tree,
    };
    match (&job.output.branch, &job.output.patch) {
        (Some(branch), _) => {
            let mut import = Import {
                base: base.commit,
                branch: branch.clone(),
                message: format!("{}\n\nCertified-Tree: {}\n", job.job, proposal.tree),
                at: run.new.at,
            };
            // One delivery or change of worktrees at a time in a repository.
            let pins = Pins::of(&engine.config.state);
            let _lock = pins
                .lock(repository.common_dir(), limits::LOCK_WAIT, cancel)
                .map_err(host)?;
            let delivered = match deliver_branch(repository, &sealed, &import) {
                // Somebody may look at the branch of an earlier attempt: it is never moved.
                Err(error) if taken(&error) => {
                    import.branch = format!("{branch}-attempt-{}", known.attempt);
                    deliver_branch(repository, &sealed, &import)
                }
                other => other,
            };
            let (Delivery::Created(commit) | Delivery::AlreadyThere(commit)) = delivered.map_err(host)?;
            Ok(format!("branch {} {commit}", import.branch))
        }
        (None, Some(patch)) => {
            let place = asked.beside.join(patch);
            let scratch = disk.path().join("work").join("objects");
            let patch = make_patch(repository, &sealed, &base.commit, &scratch, &place).map_err(host)?;
            Ok(format!("patch {} {}", place.display(), patch.sha256))
        }
        (None, None) => Ok("nothing".to_owned()),
    }
}

/// Gives the pointers of the base that were sealed; the draft may hold their contents.
fn sealed_pointers(base: &BaseTree, proposal: &Proposal) -> Result<BTreeMap<RelPath, Vec<u8>>, Refusal> {
    let pointers = base.pointers()?;
    let sealed = |entry: &Entry| {
        let text = &pointers.get(entry.path())?.text;
        let same = matches!(entry, Entry::File { sha256, .. } if *sha256 == Sha256::of(text));
        same.then(|| (entry.path().clone(), text.clone()))
    };
    Ok(proposal.manifest.entries.iter().filter_map(sealed).collect())
}

fn taken(error: &semel_host::Error) -> bool {
    matches!(error, semel_host::Error::Refused(refusal) if refusal.reason.as_deref() == Some("branch_exists"))
}
