//! What a repository demands of a certificate.
//!
//! The text comes from a base commit or from host configuration; reading it is the caller's, and
//! [`policy_base`] says which names of a base commit are safe.

use crate::certificate::PublicKey;
use crate::code::{Code, Refusal};
use crate::confinement::Confinement;
use crate::digest::Sha256;
use crate::git_tree::ObjectId;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what a certificate must say to be taken.
///
/// # Shape
/// ```toml
/// [gate]
/// keys = ["ssh-ed25519 AAAA…"]     # PEM, ssh-ed25519 line or hex; else those of the host
/// recipe = "<sha256>"              # or "any"; required
/// toolchain = { python = "<sha256>" }
/// confinement = "full"             # or "partial", "none"; the least that is taken
/// max_attempts = 3
/// max_age_hours = 168
/// locks = ["uv.lock"]              # must be there, besides that every lockfile must be certified
/// min_tests = 1
/// test_drop = "shown"              # or "refused": fewer tests than the base's last certificate counted
/// weak_allowed = []               # unset: any is taken, and shown
/// unbound_install = "refused"      # or "accepted": what a command of the job installed, bound to no artifact
/// consumption = "optional"         # or "required"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The trusted keys; without one, those that the host trusts.
    #[serde(default)]
    pub keys: Vec<PublicKey>,
    /// The recipe that is taken.
    pub recipe: RecipeRule,
    /// The tools that must have taken part, by name, each as its digest.
    #[serde(default)]
    pub toolchain: BTreeMap<String, Sha256>,
    /// The least confinement.
    #[serde(default = "full")]
    pub confinement: Confinement,
    /// The most attempts that a proposal may have taken, the passing one included; earlier passes do not count.
    #[serde(default = "three")]
    pub max_attempts: u32,
    /// The greatest age; unset, any age is taken.
    #[serde(default)]
    pub max_age_hours: Option<u64>,
    /// The lockfiles that must be there.
    #[serde(default)]
    pub locks: BTreeSet<RelPath>,
    /// The fewest tests that must have passed; 0 counts as 1.
    #[serde(default = "one_u64")]
    pub min_tests: u64,
    /// What becomes of a drop of the tests against the base's last certificate.
    #[serde(default)]
    pub test_drop: DropRule,
    /// The names of weak bindings that are taken; unset, any is taken and shown.
    #[serde(default)]
    pub weak_allowed: Option<BTreeSet<String>>,
    /// What becomes of an installation by a command of the job, which no artifact binds.
    #[serde(default)]
    pub unbound_install: UnboundRule,
    /// Whether a journal must be asked.
    #[serde(default)]
    pub consumption: ConsumptionRule,
}

/// Says whether a gate without a journal may pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsumptionRule {
    /// It may; the verdict says that it was not checked.
    #[default]
    Optional,
    /// It may not.
    Required,
}

/// Says what becomes of fewer tests than the base's last certificate counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropRule {
    /// They are named, for a reviewer.
    #[default]
    Shown,
    /// They are refused, and so is a certificate that cannot be compared.
    Refused,
}

/// Says what becomes of an installation of which no artifact binds the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnboundRule {
    /// It is refused.
    #[default]
    Refused,
    /// It is taken, and shown.
    Accepted,
}

/// Says which recipe is taken.
///
/// # Shape
/// A SHA-256, or `any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum RecipeRule {
    /// Any recipe; said on purpose.
    Any,
    /// One recipe, by its digest.
    Only(Sha256),
}

impl TryFrom<String> for RecipeRule {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        match text.as_str() {
            "any" => Ok(Self::Any),
            digest => Sha256::parse(digest).map(Self::Only),
        }
    }
}

impl core::fmt::Display for RecipeRule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Only(digest) => write!(f, "{digest}"),
        }
    }
}

const fn full() -> Confinement {
    Confinement::Full
}

/// A retry after a kill or a broken fetch is what the product is for; more of them are for a person to look at.
const fn three() -> u32 {
    3
}

const fn one_u64() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gate: Policy,
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// `bad_config` naming the line; with reason `no_trusted_keys` where no key is trusted.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        Self::parse_trusting(text, &[])
    }

    /// Reads a policy; where it names no key, those of the host are trusted.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_trusting(text: &str, host: &[PublicKey]) -> Result<Self, Refusal> {
        let mut file: File = toml::from_str(text)
            .map_err(|error| crate::code::toml_refusal(Code::BadConfig, "the gate policy", text, &error))?;
        if file.gate.keys.is_empty() {
            file.gate.keys = host.to_vec();
        }
        if file.gate.keys.is_empty() {
            let why = "the gate policy trusts no key, so nothing could pass";
            return Err(Refusal::new(Code::BadConfig, why)
                .reason("no_trusted_keys")
                .name("gate.keys"));
        }
        Ok(file.gate)
    }
}

/// Takes the commit that a policy is read from: only a full object id, which nobody under test can move.
///
/// # Errors
/// `bad_input` with reason `policy_base_not_an_object_id` for a branch, a tag, `HEAD` or an abbreviation.
pub fn policy_base(text: &str) -> Result<ObjectId, Refusal> {
    ObjectId::parse(text).map_err(|refusal| Refusal {
        why: "the policy's base is a commit by its full object id, never a ref or an abbreviation".to_owned(),
        reason: Some("policy_base_not_an_object_id".to_owned()),
        ..refusal
    })
}
