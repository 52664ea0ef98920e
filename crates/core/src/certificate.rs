//! The certificate: this tree, these locks, this record, this result, signed.
//!
//! An in-toto Statement v1 in a DSSE envelope. It does *not* decide whether a tree may be merged (that is the
//! gate's), does *not* make keys (seeds come in as arguments), and does *not* read a clock.

use crate::canonical;
use crate::code::{Code, Refusal};
use crate::confinement::Level;
use crate::digest::Sha256;
use crate::git_tree::ObjectId;
use crate::ids::{AttemptId, Generation, JobId, UnixMs};
use crate::installer::Toolchain;
use crate::path::RelPath;
use crate::report::Counts;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

mod envelope;
mod keys;
mod recipe;
mod ssh;
mod time;

pub use envelope::{
    Opened, PAYLOAD_TYPE, SSHSIG_NAMESPACE, open, pre_authentication, seal, sign, to_sigstore_bundle,
    to_ssh_signature, verify,
};
pub use keys::{KeyId, PublicKey, SigningKey};
pub use recipe::Recipe;

/// The type of every statement.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// The type of the predicate that a certificate makes.
pub const PREDICATE_TYPE: &str = "https://semel.dev/attestation/certification/v1";
/// The version of the predicate's fields.
pub const PREDICATE_VERSION: u16 = 1;

/// Says what a certificate is about and what it says of it.
///
/// # Shape
/// `{"_type":…,"subject":[{"name":"proposal","digest":{"gitTree":…,"sha256":…}},{"name":"lock:uv.lock",…},
/// {"name":"install-record",…}],"predicateType":…,"predicate":{…}}`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What it is about.
    pub subjects: Subjects,
    /// What it says.
    pub predicate: Predicate,
}

/// Names, by digest, everything that a certificate binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    /// The git tree id of the sealed tree.
    pub tree: ObjectId,
    /// The digest of the proposal's tarball.
    pub proposal: Sha256,
    /// Every lockfile of the tree.
    pub locks: BTreeMap<RelPath, Sha256>,
    /// The install record; absent where the attempt ended before there was one.
    pub record: Option<Sha256>,
}

/// Holds what a certificate says of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicate {
    /// The version of these fields: [`PREDICATE_VERSION`].
    pub version: u16,
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The generation that the attempt ran in.
    pub generation: Generation,
    /// All earlier attempts on this proposal, of whatever job, oldest first.
    pub earlier: Vec<Earlier>,
    /// All attempts on this proposal, of whatever job, that were still at work when this one was signed, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<Open>,
    /// The digest of the [`Recipe`].
    pub recipe: Sha256,
    /// Every tool that took part.
    pub toolchain: Vec<Toolchain>,
    /// How far the attempt was confined.
    pub confinement: Level,
    /// The test report; absent where the attempt ended before there was one.
    pub report: Option<Report>,
    /// The test command, as its arguments: what a job leaves out of a suite stands here by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub test_command: Vec<String>,
    /// The base that it was compared with; absent where it was compared with none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseCommit>,
    /// The paths changed against the base that can change what the tests say; without a base, all such paths.
    pub test_surface: Vec<RelPath>,
    /// The last certificate of the base's tree, where one is known; fewer tests than it counted are part of the test
    /// surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_tests: Option<BaseTests>,
    /// What is bound less than fully.
    pub weak: Vec<Weak>,
    /// The versions of what made this, by name.
    pub versions: BTreeMap<String, String>,
    /// How the attempt ended.
    pub verdict: Outcome,
    /// When it was signed.
    #[serde(with = "time")]
    pub issued_at: UnixMs,
}

/// Says how the attempt of a certificate ended.
///
/// # Shape
/// `"pass"` or `{"refused":{"code":…,"why":…}}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything held and every test passed.
    Pass,
    /// The attempt was refused; signed as such, and never taken by the gate.
    Refused(Refusal),
}

/// Holds the verdict of an earlier attempt on the same proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Earlier {
    /// Its number.
    pub attempt: AttemptId,
    /// Its generation.
    pub generation: Generation,
    /// How it ended.
    pub verdict: EarlierVerdict,
}

/// Names an attempt on the same proposal that had not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Its number.
    pub attempt: AttemptId,
    /// Its generation.
    pub generation: Generation,
}

/// Names how an earlier attempt ended.
///
/// # Shape
/// `pass` or the wire name of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EarlierVerdict {
    /// It passed.
    Pass,
    /// It was refused.
    Refused(Code),
}

impl TryFrom<String> for EarlierVerdict {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        match text.as_str() {
            "pass" => Ok(Self::Pass),
            name => Code::from_wire(name).map(Self::Refused).ok_or_else(|| {
                Refusal::new(Code::BadInput, "neither pass nor the name of a refusal").name(name)
            }),
        }
    }
}

impl From<EarlierVerdict> for String {
    fn from(verdict: EarlierVerdict) -> String {
        match verdict {
            EarlierVerdict::Pass => "pass".to_owned(),
            EarlierVerdict::Refused(code) => code.wire().to_owned(),
        }
    }
}

/// Holds what the tests said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The format of the report, such as `junit`.
    pub format: String,
    /// The digest of the report as written.
    pub sha256: Sha256,
    /// What was counted in it.
    pub counts: Counts,
}

/// Names the commit that a proposal was, or is to be, compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseCommit {
    /// Its id.
    pub commit: ObjectId,
    /// Its tree, which alone decides what differs from it.
    pub tree: ObjectId,
}

/// Holds what the last certificate of the base's tree counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseTests {
    /// The digest of its envelope.
    pub certificate: Sha256,
    /// What it counted.
    pub counts: Counts,
    /// The generation that it is of.
    pub generation: Generation,
}

impl Predicate {
    /// Gives how many tests fewer passed than in the base's last certificate; `None` where that cannot be told.
    #[must_use]
    pub fn fewer_tests(&self) -> Option<u64> {
        let (base, report) = (self.base_tests.as_ref()?, self.report.as_ref()?);
        Some(base.counts.passed.saturating_sub(report.counts.passed))
    }
}

/// Says why counts are no pass; `None` where they are one.
#[must_use]
pub fn not_a_pass(counts: &Counts) -> Option<&'static str> {
    if counts.failed > 0 {
        Some("tests failed")
    } else if counts.passed == 0 {
        Some("no test ran")
    } else {
        None
    }
}

/// The name of the weak binding of what a command of the job installed.
pub const UNBOUND_INSTALL: &str = "unbound_install";

/// Names something that is bound less than fully.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weak {
    /// A stable name, such as `cut_not_visible` or `build_backend_unbound`; a policy allows it by this name.
    pub name: String,
    /// What it concerns and why, in one clause.
    pub about: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<WireSubject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: Predicate,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSubject {
    name: String,
    digest: WireDigest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDigest {
    #[serde(rename = "gitTree", default, skip_serializing_if = "Option::is_none")]
    git_tree: Option<ObjectId>,
    sha256: Sha256,
}

const PROPOSAL: &str = "proposal";
const RECORD: &str = "install-record";
const LOCK: &str = "lock:";

impl Subjects {
    fn to_wire(&self) -> Vec<WireSubject> {
        let plain = |name: String, sha256| WireSubject {
            name,
            digest: WireDigest {
                git_tree: None,
                sha256,
            },
        };
        let mut all = vec![WireSubject {
            name: PROPOSAL.to_owned(),
            digest: WireDigest {
                git_tree: Some(self.tree),
                sha256: self.proposal,
            },
        }];
        let locks = self.locks.iter();
        all.extend(locks.map(|(path, sha256)| plain(format!("{LOCK}{}", path.to_wire()), *sha256)));
        all.extend(self.record.map(|sha256| plain(RECORD.to_owned(), sha256)));
        all
    }

    fn from_wire(wire: Vec<WireSubject>) -> Result<Self, Refusal> {
        let (mut main, mut record, mut locks) = (None, None, BTreeMap::new());
        for subject in wire {
            let WireDigest { git_tree, sha256 } = subject.digest;
            let fresh = match (subject.name.as_str(), subject.name.strip_prefix(LOCK), git_tree) {
                (PROPOSAL, _, Some(tree)) => main.replace((tree, sha256)).is_none(),
                (RECORD, _, None) => record.replace(sha256).is_none(),
                (_, Some(path), None) => locks
                    .insert(RelPath::try_from(path.to_owned())?, sha256)
                    .is_none(),
                _ => false,
            };
            if !fresh {
                return Err(malformed("a subject that is unknown or stands twice").name(subject.name));
            }
        }
        let (tree, proposal) = main.ok_or_else(|| malformed("no proposal among the subjects"))?;
        Ok(Self {
            tree,
            proposal,
            locks,
            record,
        })
    }
}

impl Statement {
    /// Gives the bytes that are signed: the RFC 8785 form of the statement.
    ///
    /// # Errors
    /// `internal` where the statement holds what does not read back as itself.
    pub fn to_payload(&self) -> Result<Vec<u8>, Refusal> {
        let payload = canonical::canonical_of(&Wire {
            kind: STATEMENT_TYPE.to_owned(),
            subject: self.subjects.to_wire(),
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: self.predicate.clone(),
        })?;
        match Self::from_payload(&payload) {
            Ok(back) if back == *self => Ok(payload),
            Ok(_) => Err(Refusal::new(
                Code::Internal,
                "the statement does not read back as itself",
            )),
            Err(refusal) => Err(Refusal::new(
                Code::Internal,
                format!("the statement does not read back: {refusal}"),
            )),
        }
    }

    /// Reads the bytes that were signed.
    ///
    /// # Errors
    /// `gate_refused` with reason `statement_type`, `predicate_type`, `predicate_version` or `predicate_malformed`.
    pub fn from_payload(payload: &[u8]) -> Result<Self, Refusal> {
        let value = canonical::parse_strict(payload, canonical::Limits::DEFAULT)
            .map_err(|refusal| malformed(refusal.to_string()))?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        for (key, want, reason) in [
            ("_type", STATEMENT_TYPE, "statement_type"),
            ("predicateType", PREDICATE_TYPE, "predicate_type"),
        ] {
            if text(key) != want {
                let got: String = text(key).chars().take(120).collect();
                let why = format!("{key} is not {want}");
                return Err(Refusal::new(Code::GateRefused, why).reason(reason).name(got));
            }
        }
        let version = value.pointer("/predicate/version").and_then(Value::as_u64);
        if version != Some(u64::from(PREDICATE_VERSION)) {
            let why = format!("the predicate is not of version {PREDICATE_VERSION}");
            return Err(Refusal::new(Code::GateRefused, why).reason("predicate_version"));
        }
        let wire: Wire = serde_json::from_value(value).map_err(|error| malformed(error.to_string()))?;
        Ok(Self {
            subjects: Subjects::from_wire(wire.subject)?,
            predicate: wire.predicate,
        })
    }

    /// Says why the other attempts cannot be; `None` where each is of another generation.
    ///
    /// Their numbers say nothing here: they may be of other jobs, which count for themselves.
    #[must_use]
    pub fn history_is_wrong(&self) -> Option<&'static str> {
        let mut seen = BTreeSet::from([&self.predicate.generation]);
        let earlier = self.predicate.earlier.iter().map(|earlier| &earlier.generation);
        let open = self.predicate.open.iter().map(|open| &open.generation);
        let twice = earlier.chain(open).any(|generation| !seen.insert(generation));
        twice.then_some("two attempts are of one generation")
    }

    /// Refuses a pass that nothing stands behind, and a history that cannot be.
    ///
    /// # Errors
    /// `evidence_foreign` for a pass without a report of tests that ran and held; `unknown_state` for a pass
    /// without a lock or an install record, and for earlier attempts that are not earlier.
    pub fn check(&self) -> Result<(), Refusal> {
        let predicate = &self.predicate;
        if let Some(why) = self.history_is_wrong() {
            return Err(Refusal::new(Code::UnknownState, why));
        }
        if predicate.verdict != Outcome::Pass {
            return Ok(());
        }
        let report = predicate.report.as_ref();
        match report.map(|report| not_a_pass(&report.counts)) {
            None => {
                return Err(Refusal::new(
                    Code::EvidenceForeign,
                    "a pass without a test report",
                ));
            }
            Some(Some(why)) => return Err(Refusal::new(Code::EvidenceForeign, format!("a pass, but {why}"))),
            Some(None) => {}
        }
        if self.subjects.locks.is_empty() || self.subjects.record.is_none() {
            let why = "a pass without a lockfile or without an install record";
            return Err(Refusal::new(Code::UnknownState, why));
        }
        Ok(())
    }
}

fn malformed(why: impl Into<String>) -> Refusal {
    Refusal::new(Code::GateRefused, why).reason("predicate_malformed")
}

#[cfg(test)]
pub(crate) mod tests;
