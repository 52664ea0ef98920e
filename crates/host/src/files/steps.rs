//! The steps of a mutation, by name, and who is told of them.
//!
//! A crash test ends the process at each of them; in ordinary life nobody listens.

/// Names what has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The new content is in `staging/`, with its attributes.
    Staged,
    /// The new content and `staging/` are durable.
    StagedSynced,
    /// What is to be changed was found in its place once more; it is taken next.
    TargetSeen,
    /// The new content is in its place; in a replacement, the pre-image is in `staging/`.
    Installed,
    /// The pre-image was found to be another one; the exchange is undone.
    ExchangedBack,
    /// The pre-image was found to be the expected one.
    PreImageVerified,
    /// The pre-image is in `trash/`.
    PreImageKept,
    /// The target is in `trash/`, or an empty directory is gone.
    Removed,
    /// The target was found to be another one; it is back in its place.
    PutBack,
    /// What was to be moved has its new name.
    Moved,
    /// The permissions are set.
    ModeSet,
    /// The effects of the call are durable.
    EffectsSynced,
}

impl Step {
    /// Lists every step, in the order in which they come.
    pub const ALL: &'static [Step] = &[
        Step::Staged,
        Step::StagedSynced,
        Step::TargetSeen,
        Step::Installed,
        Step::ExchangedBack,
        Step::PreImageVerified,
        Step::PreImageKept,
        Step::Removed,
        Step::PutBack,
        Step::Moved,
        Step::ModeSet,
        Step::EffectsSynced,
    ];

    /// Gives the name by which a crash test asks for the step.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::StagedSynced => "staged_synced",
            Self::TargetSeen => "target_seen",
            Self::Installed => "installed",
            Self::ExchangedBack => "exchanged_back",
            Self::PreImageVerified => "pre_image_verified",
            Self::PreImageKept => "pre_image_kept",
            Self::Removed => "removed",
            Self::PutBack => "put_back",
            Self::Moved => "moved",
            Self::ModeSet => "mode_set",
            Self::EffectsSynced => "effects_synced",
        }
    }
}

/// Is told of every step right after it was done.
pub trait Steps: Send + Sync {
    /// Hears that a step was done.
    fn reached(&self, step: Step);
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSteps;

impl Steps for NoSteps {
    fn reached(&self, _step: Step) {}
}

impl<F: Fn(Step) + Send + Sync> Steps for F {
    fn reached(&self, step: Step) {
        self(step);
    }
}
