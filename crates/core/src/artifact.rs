//! Artifacts that locks name: how their bytes are digested, what is kept of their members, which fit a machine.
//!
//! An artifact is a wheel, a tarball, a crate or an archive of Yarn's cache. Its members are the only things from
//! which installed files may come. This module does *not* read archives and does *not* keep them: the host does.

mod tags;

pub use tags::{Libc, Tags, WheelName, file_name};

use crate::code::{Code, Refusal};
use crate::digest::{Sha256, to_hex};
use crate::install::Fact;
use crate::lockset;
use crate::lockset::Algorithm;
use crate::path::RelPath;
use sha2::Digest as _;
use std::collections::BTreeMap;

/// Names an artifact as a lock does: by a digest of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Locked {
    /// How it is digested.
    pub algorithm: Algorithm,
    /// The digest that its bytes must have.
    pub digest: Vec<u8>,
}

impl Locked {
    /// Takes the digest of an artifact of a lock.
    #[must_use]
    pub fn of(artifact: &lockset::Artifact) -> Self {
        Self {
            algorithm: artifact.algorithm,
            digest: artifact.digest.clone(),
        }
    }

    /// Gives the digest, where it is a SHA-256.
    #[must_use]
    pub fn sha256(&self) -> Option<Sha256> {
        match self.algorithm {
            Algorithm::Sha256 => Some(Sha256::from_bytes(self.digest.as_slice().try_into().ok()?)),
            Algorithm::Sha1 | Algorithm::Sha384 | Algorithm::Sha512 => None,
        }
    }

    /// Gives the digest as lower-case hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        to_hex(&self.digest)
    }
}

impl core::fmt::Display for Locked {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex())
    }
}

/// Digests a stream piece by piece, in the way that a lock asks for.
pub struct Digester(Kind);

enum Kind {
    Sha1(Box<sha1_checked::Sha1>),
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
}

impl Digester {
    /// Starts with nothing.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha1 => Kind::Sha1(Box::default()),
            Algorithm::Sha256 => Kind::Sha256(sha2::Sha256::new()),
            Algorithm::Sha384 => Kind::Sha384(sha2::Sha384::new()),
            Algorithm::Sha512 => Kind::Sha512(sha2::Sha512::new()),
        })
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Kind::Sha1(state) => sha1_checked::Digest::update(state.as_mut(), bytes),
            Kind::Sha256(state) => state.update(bytes),
            Kind::Sha384(state) => state.update(bytes),
            Kind::Sha512(state) => state.update(bytes),
        }
    }

    /// Gives the digest of all pieces; `None` for bytes that were made to collide under SHA-1.
    #[must_use]
    pub fn finish(self) -> Option<Vec<u8>> {
        Some(match self.0 {
            Kind::Sha1(state) => {
                let result = state.try_finalize();
                if result.has_collision() {
                    return None;
                }
                result.hash().to_vec()
            }
            Kind::Sha256(state) => state.finalize().to_vec(),
            Kind::Sha384(state) => state.finalize().to_vec(),
            Kind::Sha512(state) => state.finalize().to_vec(),
        })
    }
}

/// Says how an artifact is packed, and so where its members belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Packing {
    /// A wheel: a zip whose members have their place in an environment.
    Wheel,
    /// A tarball of npm: gzip and tar, beneath one directory of any name.
    Npm,
    /// A crate: gzip and tar, beneath `name-version`.
    Crate,
    /// An archive of Yarn's own cache: a zip, beneath `node_modules/<name>`.
    YarnCache,
    /// Anything else: its bytes are bound, and its members are not looked at.
    Opaque,
}

/// Holds an artifact that was verified, with a digest of each of its members.
#[derive(Clone, Debug)]
pub struct Held {
    /// The digest by which the lock names it.
    pub locked: Locked,
    /// The digest by which it is stored.
    pub sha256: Sha256,
    /// Its file name.
    pub file: String,
    /// How it is packed.
    pub packing: Packing,
    /// Every file and link in it, by its path without what [`Packing`] says it lies beneath.
    pub members: BTreeMap<RelPath, Fact>,
    /// The content of the members that [`wants_member`] asks for.
    pub texts: BTreeMap<RelPath, Vec<u8>>,
}

/// Finds artifacts by the digest that a lock names them by.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    held: BTreeMap<Locked, Held>,
}

impl Supply {
    /// Adds an artifact.
    pub fn add(&mut self, held: Held) {
        self.held.insert(held.locked.clone(), held);
    }

    /// Gives every artifact.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// Gives the first artifact that one of these allows.
    #[must_use]
    pub fn of(&self, artifacts: &[lockset::Artifact]) -> Option<&Held> {
        artifacts
            .iter()
            .find_map(|artifact| self.held.get(&Locked::of(artifact)))
    }
}

/// The longest member whose content is kept.
const LONGEST_TEXT: u64 = 4 << 20;

/// Says how many bytes of a member are needed to bind what is installed from it; `head` is how it begins.
#[must_use]
pub fn wants_member(packing: Packing, path: &RelPath, head: &[u8]) -> Option<u64> {
    let (parent, name) = path.split_last()?;
    match packing {
        Packing::Wheel => {
            let info = parent.as_bytes().ends_with(b".dist-info");
            let listed = info && matches!(name, b"entry_points.txt" | b"WHEEL");
            let script = parent.as_bytes().ends_with(b".data/scripts") && head.starts_with(b"#!python");
            (listed || script).then_some(LONGEST_TEXT)
        }
        Packing::Npm | Packing::YarnCache => {
            let manifest = parent.is_root() && name == b"package.json";
            // Package managers take the carriage return out of the first line of a command.
            let line = head.split(|b| *b == b'\n').next().unwrap_or(head);
            let command = head.starts_with(b"#!") && line.ends_with(b"\r");
            (manifest || command).then_some(LONGEST_TEXT)
        }
        Packing::Crate | Packing::Opaque => None,
    }
}

/// Places a member: takes away what the members of such an artifact lie beneath; `None` for what is no member.
///
/// # Errors
/// `record_mismatch` for a name that leads out of the artifact, or that no place can have.
pub fn place_member(packing: Packing, name: &[u8]) -> Result<Option<RelPath>, Refusal> {
    let below = |levels: usize| {
        let mut rest = name;
        for _ in 0..levels {
            let at = rest.iter().position(|b| *b == b'/')?;
            rest = &rest[at + 1..];
        }
        Some(rest)
    };
    let rest = match packing {
        Packing::Wheel | Packing::Opaque => Some(name),
        Packing::Npm | Packing::Crate => below(1),
        Packing::YarnCache => match name.strip_prefix(b"node_modules/") {
            Some(inner) if inner.starts_with(b"@") => below(3),
            _ => below(2),
        },
    };
    let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
        return Ok(None);
    };
    let odd = || {
        Refusal::new(
            Code::RecordMismatch,
            "an artifact has a member that no file can be made from",
        )
        .name(crate::path::shown(name))
    };
    if rest.split(|b| *b == b'/').any(|part| part == b"..") || rest.contains(&b'\\') {
        return Err(odd());
    }
    let path = RelPath::parse(rest).map_err(|_| odd())?;
    Ok((!path.is_root()).then_some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_in_every_way_that_a_lock_asks_for() {
        for (algorithm, wanted) in [
            (Algorithm::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                Algorithm::Sha256,
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                Algorithm::Sha384,
                "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
            ),
            (
                Algorithm::Sha512,
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ] {
            let mut digester = Digester::new(algorithm);
            digester.update(b"a");
            digester.update(b"bc");
            let digest = digester.finish().unwrap();
            assert_eq!(digest.len(), algorithm.bytes());
            assert_eq!(to_hex(&digest), wanted);
        }
    }

    #[test]
    fn members_lie_beneath_what_their_packing_says() {
        let at = |packing, name: &str| {
            place_member(packing, name.as_bytes())
                .unwrap()
                .map(|path| path.to_string())
        };
        assert_eq!(at(Packing::Wheel, "a/b.py").as_deref(), Some("a/b.py"));
        assert_eq!(at(Packing::Npm, "package/lib/a.js").as_deref(), Some("lib/a.js"));
        assert_eq!(at(Packing::Npm, "package"), None);
        assert_eq!(at(Packing::Npm, "package/"), None);
        assert_eq!(
            at(Packing::Crate, "ryu-1.0.0/src/lib.rs").as_deref(),
            Some("src/lib.rs")
        );
        assert_eq!(
            at(Packing::YarnCache, "node_modules/ms/index.js").as_deref(),
            Some("index.js")
        );
        assert_eq!(
            at(Packing::YarnCache, "node_modules/@a/b/c.js").as_deref(),
            Some("c.js")
        );
        for bad in ["package/../../x", "package/a\\b", "package//etc/../../x"] {
            let refusal = place_member(Packing::Npm, bad.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, Code::RecordMismatch, "{bad}");
        }
        assert!(place_member(Packing::Wheel, b"/etc/passwd").is_err());
    }
}
