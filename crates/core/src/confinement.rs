//! How well a process was confined: the words that status, journal and certificate use.
//!
//! It does not confine anything, and does not decide which level is enough: policy does.

use serde::{Deserialize, Serialize};

/// Says how well a process was confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confinement {
    /// Nothing confined it.
    None,
    /// A part of the sandbox could not be had.
    Partial,
    /// Every part of the sandbox stood before the program began.
    Full,
}

impl Confinement {
    /// Gives the word that travels on every wire.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Partial => "partial",
            Self::Full => "full",
        }
    }
}

impl core::fmt::Display for Confinement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.wire())
    }
}

/// Says how well a process was confined, and what was missing.
///
/// # Shape
/// `{"confinement":"partial","missing":["mount namespace: Operation not permitted"]}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The level reached.
    pub confinement: Confinement,
    /// What could not be had, each with its reason; empty exactly where the level is `full`.
    pub missing: Vec<String>,
}

impl Level {
    /// Makes the level of a process that nothing confined.
    #[must_use]
    pub fn none(why: impl Into<String>) -> Self {
        Self {
            confinement: Confinement::None,
            missing: vec![why.into()],
        }
    }

    /// Makes the level of a process that lacked the given parts; with none lacking it is `full`.
    #[must_use]
    pub fn lacking(missing: Vec<String>) -> Self {
        let confinement = if missing.is_empty() {
            Confinement::Full
        } else {
            Confinement::Partial
        };
        Self { confinement, missing }
    }

    /// Combines the levels of two processes of one attempt: the weaker one, with all that was missing.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.confinement = self.confinement.min(other.confinement);
        for what in other.missing {
            if !self.missing.contains(&what) {
                self.missing.push(what);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weaker_level_wins_and_keeps_all_reasons() {
        let full = Level::lacking(Vec::new());
        let partial = Level::lacking(vec!["own /proc".into()]);
        let none = Level::none("not asked for");
        assert_eq!(full.clone().and(full.clone()), full);
        assert_eq!(full.and(partial.clone()).confinement, Confinement::Partial);
        let both = partial.clone().and(none).and(partial);
        assert_eq!(both.confinement, Confinement::None);
        assert_eq!(both.missing, ["own /proc", "not asked for"]);
    }

    #[test]
    fn its_shape_on_the_wire() {
        let level = Level::lacking(vec!["x".into()]);
        let text = serde_json::to_string(&level).unwrap();
        assert_eq!(text, r#"{"confinement":"partial","missing":["x"]}"#);
        assert_eq!(serde_json::from_str::<Level>(&text).unwrap(), level);
    }
}
