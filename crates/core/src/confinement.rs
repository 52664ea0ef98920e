//! How well a process was confined: the words that status, journal and certificate use.
//!
//! It does not confine anything, and does not decide which level is enough: policy does.

use crate::bounds::Bounds;
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

/// Says as whom a process ran, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum User {
    /// As root without any capability: what root owns and the sandbox shows is its own.
    Root,
    /// As the user who runs Semel, who is not root.
    Caller,
    /// As a user of its own, who owns nothing but what it is to write.
    Own,
}

impl User {
    /// Gives the word that travels on every wire.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Caller => "caller",
            Self::Own => "own",
        }
    }
}

/// Says how well a process was confined, and what was missing.
///
/// # Shape
/// `{"confinement":"partial","missing":["mount namespace: Operation not permitted"],"user":"caller","bounds":{…}}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The level reached.
    pub confinement: Confinement,
    /// What could not be had, each with its reason; empty exactly where the level is `full`.
    pub missing: Vec<String>,
    /// As whom it ran; not said where nothing ran in a sandbox, nor in older certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// What bounded it; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

impl Level {
    /// Makes the level of a process that nothing confined.
    #[must_use]
    pub fn none(why: impl Into<String>) -> Self {
        Self {
            confinement: Confinement::None,
            missing: vec![why.into()],
            user: None,
            bounds: None,
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
        Self {
            confinement,
            missing,
            user: None,
            bounds: None,
        }
    }

    /// Adds as whom it ran, and what bounded it.
    #[must_use]
    pub fn of(mut self, user: User, bounds: Bounds) -> Self {
        self.user = Some(user);
        self.bounds = Some(bounds);
        self
    }

    /// Combines the levels of two processes of one attempt: the weaker one, with all that was missing and the wider bounds.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.confinement = self.confinement.min(other.confinement);
        for what in other.missing {
            if !self.missing.contains(&what) {
                self.missing.push(what);
            }
        }
        // What is said of both holds for both; what one does not say is not said.
        self.user = self.user.zip(other.user).map(|(one, two)| one.min(two));
        self.bounds = self.bounds.zip(other.bounds).map(|(one, two)| one.wider(two));
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
        let level = level.of(User::Own, bounds(7));
        let text = serde_json::to_string(&level).unwrap();
        let more =
            r#""user":"own","bounds":{"processes":7,"open_files":64,"memory_bytes":1,"file_bytes":2}}"#;
        assert_eq!(
            text,
            format!(r#"{{"confinement":"partial","missing":["x"],{more}"#)
        );
        assert_eq!(serde_json::from_str::<Level>(&text).unwrap(), level);
    }

    fn bounds(processes: u64) -> Bounds {
        Bounds {
            processes,
            open_files: 64,
            memory_bytes: 1,
            file_bytes: 2,
        }
    }

    #[test]
    fn users_and_bounds_are_those_of_the_weaker() {
        let full = || Level::lacking(Vec::new());
        let one = full().of(User::Own, bounds(10));
        let two = full().of(User::Root, bounds(20));
        let both = one.clone().and(two);
        assert_eq!((both.user, both.bounds), (Some(User::Root), Some(bounds(20))));
        let unsaid = one.and(full());
        assert_eq!((unsaid.user, unsaid.bounds), (None, None));
    }
}
