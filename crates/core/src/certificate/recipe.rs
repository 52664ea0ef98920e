//! The recipe: everything that was asked for, as against what came of it.

use super::Sha256;
use crate::canonical;
use crate::code::Refusal;
use crate::installer::Installer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Holds how an attempt is certified; a gate pins its digest, so `--test true` is another recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The installers that the job uses.
    pub installers: BTreeSet<Installer>,
    /// The install commands, in order, each as its arguments.
    pub install: Vec<Vec<String>>,
    /// The test command, as its arguments.
    pub test: Vec<String>,
    /// The flags of certification itself, such as `build_backend=unbound`.
    pub flags: BTreeSet<String>,
    /// The environment variables that reach the tests, by name, or as `NAME=value` where the value is fixed.
    pub environment: BTreeSet<String>,
    /// The declared inputs and writable tool-cache paths.
    pub inputs: BTreeSet<String>,
    /// The fewest tests that must have run and held.
    pub expected_tests: u64,
    /// The deadline of the attempt, in seconds.
    pub timeout_s: u64,
}

impl Recipe {
    /// Gives the digest that a certificate states and a policy pins.
    ///
    /// # Shape
    /// SHA-256 over the domain `semel.recipe.v1`, a zero byte, and the RFC 8785 form.
    ///
    /// # Errors
    /// `internal` where it does not serialise, which no value of this type does.
    pub fn digest(&self) -> Result<Sha256, Refusal> {
        let mut bytes = b"semel.recipe.v1\0".to_vec();
        bytes.extend_from_slice(&canonical::canonical_of(self)?);
        Ok(Sha256::of(&bytes))
    }
}
