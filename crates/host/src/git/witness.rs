//! The points of a restoration, by name, and who hears of them: a test that kills or pauses there, and whoever shows
//! a person what is waited for. In ordinary life nobody hears of the points.

use std::time::Duration;

/// Names a point of a restoration, right after what it is named for was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Tree and worktree are checked; nothing is written.
    Checked,
    /// The owner record stands in its private file.
    Recorded,
    /// `index.lock` is ours.
    Taken,
    /// A stale lock is about to be adopted: all looks are done.
    Adopting,
    /// It is adopted.
    Adopted,
    /// What others left is swept.
    Swept,
    /// The index has its second, private name.
    Linked,
    /// Git has restored files and private index.
    Restored,
    /// What it did is proved.
    Verified,
    /// The private index is published.
    Published,
    /// What was left of the private index is removed.
    Cleared,
    /// The lock is renamed aside.
    Aside,
    /// The lock is let go.
    Released,
}

impl Point {
    /// Lists every point, in the order in which they come.
    pub const ALL: [Self; 13] = [
        Self::Checked,
        Self::Recorded,
        Self::Taken,
        Self::Adopting,
        Self::Adopted,
        Self::Swept,
        Self::Linked,
        Self::Restored,
        Self::Verified,
        Self::Published,
        Self::Cleared,
        Self::Aside,
        Self::Released,
    ];

    /// Gives its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checked => "checked",
            Self::Recorded => "recorded",
            Self::Taken => "taken",
            Self::Adopting => "adopting",
            Self::Adopted => "adopted",
            Self::Swept => "swept",
            Self::Linked => "linked",
            Self::Restored => "restored",
            Self::Verified => "verified",
            Self::Published => "published",
            Self::Cleared => "cleared",
            Self::Aside => "aside",
            Self::Released => "released",
        }
    }
}

/// Says what is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// For how long so far.
    pub waited: Duration,
    /// For how long at most.
    pub bound: Duration,
    /// Who holds the lock, as far as can be seen; absent where nothing points at anybody.
    pub owner: Option<String>,
    /// How long ago the lock was changed last.
    pub age: Duration,
}

/// Hears what a restoration does.
pub trait Witness: Sync {
    /// Hears that a point was reached.
    fn reached(&self, _point: Point) {}

    /// Hears what is waited for, at every look but the first.
    fn waiting(&self, _waiting: &Waiting) {}
}

/// Is nobody.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Witness for Nobody {}
