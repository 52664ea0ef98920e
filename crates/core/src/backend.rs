//! What a volume lies on, and which backend it gets: by name, or the best that is to be had, with the reason.
//!
//! It does not try anything on a machine, and mounts nothing: what is to be had comes in as an argument.

use crate::code::{Code, Refusal};
use crate::volume::{Durability, Role};
use serde::{Deserialize, Serialize};

/// Says what a volume lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// A plain directory: everywhere, without privileges.
    Dir,
    /// A sealed tree that is only read, with a layer of its own over it: made in constant time, and every change shows.
    Overlay,
    /// A filesystem in memory, of a size that nothing in it passes; what it holds ends with the boot.
    Tmpfs,
}

impl Backend {
    /// Lists every backend.
    pub const ALL: [Self; 3] = [Self::Dir, Self::Overlay, Self::Tmpfs];

    /// Gives the word that travels on every wire.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::Overlay => "overlay",
            Self::Tmpfs => "tmpfs",
        }
    }

    /// Says whether a volume of it is a mount of its own.
    #[must_use]
    pub const fn is_mounted(self) -> bool {
        match self {
            Self::Dir => false,
            Self::Overlay | Self::Tmpfs => true,
        }
    }
}

impl core::fmt::Display for Backend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.wire())
    }
}

/// Says which backend is asked for.
///
/// # Shape
/// `"auto"`, `"dir"`, `"overlay"` or `"tmpfs"`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// The best that is to be had.
    #[default]
    Auto,
    /// This one, or none.
    Dir,
    /// This one, or none.
    Overlay,
    /// This one, or none.
    Tmpfs,
}

impl Wanted {
    /// Gives the backend that is asked for by name.
    #[must_use]
    pub const fn named(self) -> Option<Backend> {
        match self {
            Self::Auto => None,
            Self::Dir => Some(Backend::Dir),
            Self::Overlay => Some(Backend::Overlay),
            Self::Tmpfs => Some(Backend::Tmpfs),
        }
    }

    /// Gives the stricter of two words: what is named counts before what is not, and the first before the second.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match self {
            Self::Auto => other,
            Self::Dir | Self::Overlay | Self::Tmpfs => self,
        }
    }
}

/// Says whether a backend is to be had on a machine.
///
/// # Shape
/// `{"backend":"overlay","missing":"mount: Operation not permitted","weaker":[]}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The backend.
    pub backend: Backend,
    /// Why it is not to be had; `None` where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// What of it is not to be had, though it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weaker: Vec<String>,
}

/// Says what a volume will hold, as far as its backend depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A tree that is sealed, and only read.
    Sealed,
    /// Whatever is put into it.
    Open,
}

/// Is a backend that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The backend.
    pub backend: Backend,
    /// Why this one, for a person.
    pub why: String,
}

/// Chooses what a volume lies on.
///
/// # Errors
/// `precondition_failed`, reason `backend_unavailable`, where the one that is asked for is not to be had;
/// `durability_unavailable`, reason `volatile`, where it cannot keep what is asked.
pub fn choose(
    wanted: Wanted,
    role: Role,
    durability: Durability,
    content: Content,
    offers: &[Offer],
) -> Result<Choice, Refusal> {
    let missing = |backend: Backend| {
        let offer = offers.iter().find(|offer| offer.backend == backend);
        match offer {
            Some(offer) => offer.missing.clone(),
            None => Some("it was not tried".to_owned()),
        }
    };
    let choice = |backend, why: String| Choice { backend, why };
    if let Some(backend) = wanted.named() {
        if backend == Backend::Tmpfs && durability == Durability::Power {
            let why = "a filesystem in memory does not keep what it acknowledged through a power cut";
            return Err(Refusal::new(Code::DurabilityUnavailable, why)
                .reason("volatile")
                .name(backend.wire()));
        }
        return match missing(backend) {
            None => Ok(choice(backend, "it was asked for".to_owned())),
            Some(why) => Err(Refusal::new(
                Code::PreconditionFailed,
                format!("the backend {backend} is not to be had here: {why}"),
            )
            .reason("backend_unavailable")
            .name(backend.wire())),
        };
    }
    Ok(match (role, content, missing(Backend::Overlay)) {
        (Role::Cert, Content::Sealed, None) => choice(
            Backend::Overlay,
            "the sealed tree is its read-only lower layer".to_owned(),
        ),
        (Role::Cert, Content::Sealed, Some(why)) => {
            choice(Backend::Dir, format!("overlay is not to be had here: {why}"))
        }
        (Role::Draft, _, _) | (Role::Cert, Content::Open, _) => choice(
            Backend::Dir,
            "there is no sealed tree to lie over, and a directory outlives the boot".to_owned(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(missing: &[(Backend, &str)]) -> Vec<Offer> {
        let missing = |backend| missing.iter().find(|(of, _)| *of == backend);
        let offer = |backend| Offer {
            backend,
            missing: missing(backend).map(|(_, why)| (*why).to_owned()),
            weaker: Vec::new(),
        };
        Backend::ALL.map(offer).to_vec()
    }

    fn chosen(
        wanted: Wanted,
        role: Role,
        content: Content,
        offers: &[Offer],
    ) -> Result<(Backend, String), Refusal> {
        choose(wanted, role, Durability::Process, content, offers).map(|choice| (choice.backend, choice.why))
    }

    #[test]
    fn a_sealed_tree_is_a_lower_layer_where_that_can_be() {
        let all = offers(&[]);
        let (backend, why) = chosen(Wanted::Auto, Role::Cert, Content::Sealed, &all).unwrap();
        assert_eq!(backend, Backend::Overlay);
        assert!(why.contains("read-only"), "{why}");
        let none = offers(&[(Backend::Overlay, "mount: EPERM")]);
        let (backend, why) = chosen(Wanted::Auto, Role::Cert, Content::Sealed, &none).unwrap();
        assert_eq!(backend, Backend::Dir);
        assert!(why.ends_with("mount: EPERM"), "the reason is told: {why}");
        for role in [Role::Draft, Role::Cert] {
            let (backend, _) = chosen(Wanted::Auto, role, Content::Open, &all).unwrap();
            assert_eq!(backend, Backend::Dir);
        }
        // What was not tried is not to be had.
        let (backend, _) = chosen(Wanted::Auto, Role::Cert, Content::Sealed, &[]).unwrap();
        assert_eq!(backend, Backend::Dir);
    }

    #[test]
    fn what_is_named_is_given_or_refused() {
        for (wanted, backend) in [
            (Wanted::Dir, Backend::Dir),
            (Wanted::Overlay, Backend::Overlay),
            (Wanted::Tmpfs, Backend::Tmpfs),
        ] {
            let given = chosen(wanted, Role::Cert, Content::Sealed, &offers(&[])).unwrap();
            assert_eq!(given.0, backend);
            let none = offers(&[(backend, "no such device")]);
            let refused = chosen(wanted, Role::Draft, Content::Open, &none).unwrap_err();
            assert_eq!(refused.code, Code::PreconditionFailed);
            assert_eq!(refused.reason.as_deref(), Some("backend_unavailable"));
            assert_eq!(refused.names, [backend.wire()]);
        }
        let power = choose(
            Wanted::Tmpfs,
            Role::Draft,
            Durability::Power,
            Content::Open,
            &offers(&[]),
        );
        assert_eq!(power.unwrap_err().code, Code::DurabilityUnavailable);
    }

    #[test]
    fn the_word_of_a_flag_counts_before_that_of_the_file() {
        assert_eq!(Wanted::Tmpfs.or(Wanted::Dir), Wanted::Tmpfs);
        assert_eq!(Wanted::Auto.or(Wanted::Dir), Wanted::Dir);
        assert_eq!(serde_json::to_string(&Wanted::Auto).unwrap(), r#""auto""#);
    }
}
