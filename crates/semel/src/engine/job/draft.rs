//! A draft: a volume that holds the base commit in a private repository, for an agent to work in.

use crate::engine::proposal::{BASE, Base};
use crate::engine::restore::executable;
use crate::engine::volume::{self, Opened, Source, Wanted};
use crate::engine::{Engine, host, store};
use semel_core::confinement::Confinement;
use semel_core::ids::JobId;
use semel_core::record::Restoration;
use semel_core::volume::{Durability, End, Owner, Role};
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::git::{self, Git};
use semel_host::process::Cancel;
use semel_host::volume::write_record;
use std::path::{Path, PathBuf};

/// Is a draft that is open.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Its volume.
    pub(crate) opened: Opened,
    /// Directories of git objects that it borrows; shown read-only to the agent.
    pub(crate) alternates: Vec<PathBuf>,
}

/// Opens a draft at a base commit.
///
/// The job's repository is only ever read.
///
/// # Errors
/// `bad_input` where the base is no full id of a commit; `object_missing`; `volume_busy` where the job has an open draft
/// already; `git_failed`. A draft that could not be prepared is ended dirty.
pub(crate) fn open(
    engine: &Engine,
    job: &JobId,
    base: &Base,
    durability: Durability,
    owner: Owner,
    confinement: Option<Confinement>,
    cancel: &Cancel,
) -> Result<Draft, Refusal> {
    let git = Git::find(&engine.config.path).map_err(host)?;
    let opened = volume::open(
        engine,
        Wanted {
            job: job.clone(),
            role: Role::Draft,
            owner,
            durability,
            confinement,
            source: Source::Empty,
        },
    )?;
    match prepare(engine, &git, base, &opened, cancel) {
        Ok(alternates) => Ok(Draft { opened, alternates }),
        Err(refusal) => {
            let end = End::Dirty {
                reason: "ended_dirty".to_owned(),
            };
            // The first refusal is the one to tell; what cannot be ended here, recovery ends.
            drop(volume::end(engine, &opened.volume.generation, end));
            Err(refusal)
        }
    }
}

fn prepare(
    engine: &Engine,
    git: &Git,
    base: &Base,
    opened: &Opened,
    cancel: &Cancel,
) -> Result<Vec<PathBuf>, Refusal> {
    let tree = opened.disk.tree_path();
    let draft = git::prepare_draft(git, &base.repository, &base.commit, &tree, cancel).map_err(host)?;
    let restored = Restoration {
        job: Some(opened.volume.job.clone()),
        tree: draft.tree.to_string(),
        code: None,
        collisions: draft.counts.collisions,
        adoptions: draft.counts.adopted,
        waited_ms: draft.counts.waited_ms,
        git: Some(executable(git)),
        at: clock::now(),
    };
    engine.journal.restored(restored).map_err(store)?;
    let text = serde_json::to_vec(base)
        .map_err(|e| Refusal::new(Code::Internal, format!("the base cannot be written: {e}")))?;
    write_record(&opened.disk, BASE, &text).map_err(host)?;
    Ok(draft.alternates)
}

/// Gives the absolute place of a job's repository, which may be relative to the job file.
///
/// # Errors
/// `not_found` where there is none.
pub(crate) fn repository(stated: &str, beside: &Path) -> Result<PathBuf, Refusal> {
    let place = beside.join(stated);
    place.canonicalize().map_err(|e| {
        Refusal::new(Code::NotFound, format!("the repository: {e}")).name(place.display().to_string())
    })
}
