//! An effect that is ready: looked at or staged, with every handle it needs; nothing outside of `staging/` shows it.
//!
//! One shape for all kinds of effects: the caller journals what `effect` says, then carries out, then syncs. Which
//! kind does what is said in the files beside this one.

use crate::error::{Error, Result};
use crate::files::directory::{EmptyRemoval, StagedDirectory};
use crate::files::mode::ModeSetting;
use crate::files::relocate::Relocation;
use crate::files::remove::Removal;
use crate::files::together::{Handle, Together};
use crate::files::write::StagedFile;
use crate::files::{Durability, Step, Steps, syncable};
use crate::root::{GitInternals, Place};
use crate::volume::Volume;
use semel_core::Sha256;
use semel_core::effect::{Effect, Slot};
use semel_core::ids::FileId;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

/// States what every effect needs to be told beside its paths.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Under which name content is staged and the pre-image kept.
    pub slot: &'a Slot,
    /// What has to survive.
    pub durability: Durability,
    /// Whether a policy rule allows what belongs to git.
    pub git: GitInternals,
    /// Whether the caller is gone: then nothing long is begun for it any more.
    pub gone: &'a dyn Fn() -> bool,
}

/// Holds an effect that nothing shows yet.
#[derive(Debug)]
pub struct Prepared {
    /// What the intent records: by it, recovery tells whether the effect happened.
    pub effect: Effect,
    /// Under which name content is staged and the pre-image kept.
    pub slot: Slot,
    pub(super) act: Act,
    pub(super) syncs: Syncs,
}

/// Says how an effect is carried out.
#[derive(Debug)]
pub(super) enum Act {
    Install(StagedFile),
    MakeDirectory(StagedDirectory),
    Remove(Removal),
    RemoveEmpty(EmptyRemoval),
    Move(Relocation),
    SetMode(ModeSetting),
}

const STAGING: &str = "staging";
const TRASH: &str = "trash";

/// Holds handles opened before the effect, through which it is made durable; none where that is not asked for.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// Before the effect: what was staged, and `staging/`.
    pub(super) before: Vec<Handle>,
    /// After it: every directory that lost or won a name, or the file itself.
    pub(super) after: Vec<Handle>,
    /// Where the syncs of the volume are shared.
    together: Option<Arc<Together>>,
}

impl Syncs {
    /// Makes an empty list.
    pub(super) fn of(volume: &Volume, durability: Durability) -> Self {
        Self {
            together: (durability != Durability::Process).then(|| volume.together()),
            ..Self::default()
        }
    }

    /// Makes everything durable that was done in the directories after the effects.
    ///
    /// # Errors
    /// [`Error::Unproven`].
    pub(super) fn sync_after(&self) -> Result<()> {
        match &self.together {
            Some(together) => together.sync(&self.after),
            None => Ok(()),
        }
    }

    /// Opens handles on the directories that an effect changes.
    pub(super) fn open(volume: &Volume, places: &[&Place], durability: Durability) -> Result<Self> {
        let mut syncs = Self::of(volume, durability);
        if syncs.together.is_none() {
            return Ok(syncs);
        }
        for place in places {
            let parent = syncable(place.parent.as_fd())?;
            syncs.after.push((Arc::new(parent), "the parent directory"));
        }
        syncs.after.push((volume.staging_to_sync(), STAGING));
        syncs.after.push((volume.trash_to_sync(), TRASH));
        Ok(syncs)
    }

    /// Adds what is staged, to be durable before it takes its name.
    pub(super) fn staged(&mut self, volume: &Volume, staged: BorrowedFd<'_>) -> Result<()> {
        if self.after.is_empty() {
            return Ok(());
        }
        let staged = staged
            .try_clone_to_owned()
            .map_err(|e| Error::io("hold", "what is staged", e))?;
        self.before.push((Arc::new(staged), "what is staged"));
        self.before.push((volume.staging_to_sync(), STAGING));
        Ok(())
    }
}

impl Prepared {
    /// Gives what the effect is about: what loses its name, its place or its permissions by it.
    #[must_use]
    pub const fn about(&self) -> Option<&FileId> {
        match &self.effect {
            Effect::Install { before, .. } => match before {
                Some(before) => Some(&before.id),
                None => None,
            },
            Effect::Remove { before, .. } => Some(&before.id),
            Effect::Move { what, .. } | Effect::Restore { what, .. } => Some(&what.id),
            Effect::RemoveEmpty { id, .. } | Effect::SetMode { id, .. } => Some(id),
            Effect::Run { .. } | Effect::Forward { .. } => None,
        }
    }

    /// Says whether the effect changes a directory of ours; every other one that it has a handle on, it does.
    fn changes(&self, shown: &str) -> bool {
        match &self.effect {
            Effect::Install { before: None, .. } => shown != TRASH,
            Effect::Remove { .. } | Effect::Restore { .. } => shown != STAGING,
            // Where the filesystem lacks a flag, a move has second names in ours for a moment: one that is still there
            // after a power cut tells nothing that the two names in the tree do not.
            Effect::RemoveEmpty { .. } | Effect::Move { .. } => shown != STAGING && shown != TRASH,
            Effect::Install { before: Some(_), .. } | Effect::SetMode { .. } => true,
            Effect::Run { .. } | Effect::Forward { .. } => false,
        }
    }

    /// Carries the effect out, and gives the digest of the pre-image as it came out, where there is one.
    ///
    /// The precondition is decided on what came out: if it is another thing than was looked at, or has other content
    /// where content was expected, the effect is undone.
    ///
    /// # Errors
    /// `precondition_failed` (reason `changed_meanwhile`) or `not_found` with nothing changed; `outcome_unknown` where
    /// something outside changed the path at the same time, with both sides kept; [`Error::Unproven`] where the process
    /// has to end; `io_failed` where nothing began.
    ///
    /// # Durability
    /// None before [`sync_effects`]; what was staged is durable if [`sync_staged`] came before.
    pub fn carry_out(&self, volume: &Volume, steps: &dyn Steps) -> Result<Option<Sha256>> {
        match &self.act {
            Act::Install(staged) => staged.install(volume, self, steps),
            Act::MakeDirectory(staged) => staged.install(volume, self, steps).map(|()| None),
            Act::Remove(removal) => removal.carry_out(volume, self, steps),
            Act::RemoveEmpty(removal) => removal.carry_out(self, steps).map(|()| None),
            Act::Move(relocation) => relocation.carry_out(volume, self, steps).map(|()| None),
            Act::SetMode(setting) => setting.carry_out(self, steps).map(|()| None),
        }
    }
}

/// Makes what is staged durable; may run beside the commit of the intent. Does nothing where that was not asked for.
///
/// # Errors
/// [`Error::Unproven`] where a sync fails: the process has to end.
pub fn sync_staged(effects: &[Prepared], steps: &dyn Steps) -> Result<()> {
    if sync_all(effects, |syncs| &syncs.before, |_, _| true)? == Synced::Something {
        steps.reached(Step::StagedSynced);
    }
    Ok(())
}

/// Makes effects durable that were carried out. Does nothing where that was not asked for.
///
/// # Errors
/// [`Error::Unproven`] where a sync fails: the process has to end.
///
/// # Durability
/// When this returns, new names, lost names and kept pre-images survive a power cut.
pub fn sync_effects(effects: &[Prepared], steps: &dyn Steps) -> Result<()> {
    let changed = |effect: &'_ Prepared, shown: &str| effect.changes(shown);
    if sync_all(effects, |syncs| &syncs.after, changed)? == Synced::Something {
        steps.reached(Step::EffectsSynced);
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synced {
    Nothing,
    Something,
}

/// Syncs side by side, and together with other calls: the barriers of a call wait for the disk, not for each other.
fn sync_all(
    effects: &[Prepared],
    which: impl Fn(&Syncs) -> &Vec<Handle>,
    needed: impl Fn(&Prepared, &str) -> bool,
) -> Result<Synced> {
    let mut handles = Vec::new();
    for effect in effects {
        handles.extend(
            which(&effect.syncs)
                .iter()
                .filter(|(_, shown)| needed(effect, shown)),
        );
    }
    let together = effects.iter().find_map(|effect| effect.syncs.together.as_ref());
    match together {
        Some(together) if !handles.is_empty() => together.sync(handles).map(|()| Synced::Something),
        Some(_) | None => Ok(Synced::Nothing),
    }
}
