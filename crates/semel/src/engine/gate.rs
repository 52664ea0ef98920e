//! `semel gate`: does this certificate cover exactly the tree that is to be merged?
//!
//! Pure, offline and repeatable: the verdict is `semel_core::gate`'s. Here its inputs are read, each from where it
//! may come, and a use is recorded where that was asked for. An exit code of anything else plays no part.

use super::{Engine, binding, host, store};
use semel_core::certificate::{BaseCommit, KeyId, PublicKey};
use semel_core::gate::{self, Candidate, Consumed, Policy, Target, Verdict};
use semel_core::git_tree::{Mode, ObjectId, TreeMode};
use semel_core::lockset;
use semel_core::record::Consumption;
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::git::Gathered;
use semel_host::plain;
use semel_host::process::Cancel;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Says where the policy comes from; never from the tree under test.
#[derive(Clone, Debug)]
pub(crate) enum PolicySource {
    /// A file of the host, outside of every worktree that can hold the candidate.
    File(PathBuf),
    /// A blob of the base commit.
    Base {
        /// The path of the policy in it.
        path: RelPath,
    },
}

/// Is what is to be judged.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The signed envelope.
    pub(crate) certificate: PathBuf,
    /// The repository that holds the candidate.
    pub(crate) repository: PathBuf,
    /// The candidate commit, as the caller gave it.
    pub(crate) commit: String,
    /// The base commit that it is merged onto, as the caller gave it.
    pub(crate) base: Option<String>,
    /// Where the policy comes from.
    pub(crate) policy: PolicySource,
    /// The install record, where the caller has it.
    pub(crate) record: Option<PathBuf>,
    /// The keys that the host trusts, for a policy that names none.
    pub(crate) trusted: Vec<PublicKey>,
    /// Ids of revoked keys.
    pub(crate) revoked: Vec<KeyId>,
}

/// Is a verdict with what is needed to record its use.
#[derive(Debug)]
pub(crate) struct Judged {
    verdict: Verdict,
    policy: Policy,
    repository: String,
}

const LARGEST_CERTIFICATE: u64 = 16 << 20;
const LARGEST_RECORD: u64 = 256 << 20;
const LARGEST_POLICY: u64 = 1 << 20;

/// Judges a candidate.
///
/// # Errors
/// `bad_input` for an id that is no full object id, reason `policy_base_not_an_object_id` for that of the base; for
/// a base that is the candidate itself or holds it already; `not_found` for a missing file; `bad_config` for a bad policy; those of
/// [`Gathered`]. A certificate that does not hold is no error but a verdict.
pub(crate) fn judge(ask: &Ask, programs: &[PathBuf]) -> Result<Judged, Refusal> {
    // What the caller states is checked before anything is read.
    let base = ask.base.as_deref().map(gate::policy_base).transpose()?;
    let cancel = Cancel::new().map_err(host)?;
    let commit = ObjectId::parse(&ask.commit)?;
    let likely = likely(commit, base, &ask.policy)?;
    let objects = Gathered::of(programs, &ask.repository, &likely, &cancel).map_err(host)?;
    let candidate = candidate(&objects, commit, base)?;
    let (policy, same) = policy(&objects, &ask.policy, &candidate, &ask.trusted)?;
    let envelope = plain::read_file(&ask.certificate, LARGEST_CERTIFICATE).map_err(host)?;
    let record = match &ask.record {
        Some(place) => Some(Sha256::of(
            &plain::read_file(place, LARGEST_RECORD).map_err(host)?,
        )),
        None => None,
    };
    let now = semel_host::clock::now();
    let mut verdict = gate::verdict(&policy, &envelope, record, &candidate, now, &ask.revoked);
    if let Some(path) = same {
        verdict = verdict.with_policy_in_candidate(&path);
    }
    let repository = objects.common_dir().display().to_string();
    Ok(Judged {
        verdict,
        policy,
        repository,
    })
}

/// Reads the policy, and gives where the candidate has the same bytes, if no base says that they were there before.
fn policy(
    objects: &Gathered<'_>,
    source: &PolicySource,
    candidate: &Candidate,
    trusted: &[PublicKey],
) -> Result<(Policy, Option<RelPath>), Refusal> {
    let mut same = None;
    let bytes = match (source, candidate.base) {
        (PolicySource::Base { path }, Some(BaseCommit { commit, tree })) => {
            // Another commit with the same tree, such as a squash, is the tree under test all the same.
            if commit == candidate.commit || tree == candidate.tree {
                let why = "the policy would come from the very tree under test";
                return Err(Refusal::new(Code::BadInput, why).reason("policy_base_is_candidate"));
            }
            // A merge of the candidate, or what came after one, brings its policy along.
            if objects.descends(&commit, &candidate.commit).map_err(host)? {
                let why = "the base holds the candidate already, so the policy may be the candidate's own";
                return Err(Refusal::new(Code::BadInput, why).reason("policy_base_has_candidate"));
            }
            objects.blob_at(&tree, path).map_err(host)?.1
        }
        (PolicySource::File(place), _) => {
            // Opened once: what is looked at is what is read.
            let file = plain::open_file(place).map_err(host)?;
            let held = objects.checks_out(&file, &candidate.commit, &candidate.tree);
            if let Some(why) = held.map_err(host)? {
                let why = format!("the policy may be of the tree under test: {why}");
                return Err(Refusal::new(Code::BadInput, why)
                    .reason("policy_in_worktree")
                    .name(place.display().to_string()));
            }
            let bytes = plain::read_open(file, place, LARGEST_POLICY).map_err(host)?;
            same = of_candidate(objects, candidate, &bytes, place)?;
            bytes
        }
        (PolicySource::Base { .. }, None) => {
            return Err(no_policy());
        }
    };
    let text =
        String::from_utf8(bytes).map_err(|_| Refusal::new(Code::BadConfig, "the policy is not UTF-8"))?;
    Ok((Policy::parse_trusting(&text, trusted)?, same))
}

/// Looks for a policy's bytes in the candidate: a copy of its tree may lie anywhere, with no `.git` to know it by.
///
/// That a repository holds the policy of its host is usual; that the candidate is the first to hold it is not.
///
/// # Errors
/// `bad_input`, reason `policy_of_candidate`, where the candidate has them at paths at which its base does not.
fn of_candidate(
    objects: &Gathered<'_>,
    candidate: &Candidate,
    bytes: &[u8],
    place: &std::path::Path,
) -> Result<Option<RelPath>, Refusal> {
    let paths = objects.paths_of(&candidate.tree, bytes).map_err(host)?;
    let (Some(first), Some(base)) = (paths.first(), candidate.base) else {
        return Ok(paths.into_iter().next());
    };
    if base.tree == candidate.tree || objects.descends(&base.commit, &candidate.commit).map_err(host)? {
        return Ok(Some(first.clone()));
    }
    let before = objects.paths_of(&base.tree, bytes).map_err(host)?;
    if paths.iter().any(|path| before.contains(path)) {
        return Ok(None);
    }
    let why = format!(
        "the policy has the very bytes of {first} of the candidate, and the base has no such file there"
    );
    Err(Refusal::new(Code::BadInput, why)
        .reason("policy_of_candidate")
        .name(place.display().to_string()))
}

/// Refuses a gate that was told of no policy, naming both ways.
pub(crate) fn no_policy() -> Refusal {
    let why = "no policy: give --policy with a file of this host, or --base with the commit that holds it";
    Refusal::new(Code::Usage, why)
}

/// Says what is likely to be read, so that git is asked once.
fn likely(
    commit: ObjectId,
    base: Option<ObjectId>,
    source: &PolicySource,
) -> Result<Vec<(ObjectId, Vec<RelPath>)>, Refusal> {
    let locks = lockset::binding_names();
    let locks = locks.into_iter().map(|name| RelPath::parse(name.as_bytes()));
    let mut wanted = vec![(commit, locks.collect::<Result<Vec<RelPath>, Refusal>>()?)];
    if let Some(base) = base {
        let paths = match source {
            PolicySource::Base { path } => vec![path.clone()],
            PolicySource::File(_) => Vec::new(),
        };
        wanted.push((base, paths));
    }
    Ok(wanted)
}

/// Reads the candidate: its tree, every lockfile at the root of it, and the tree of its base.
fn candidate(objects: &Gathered<'_>, commit: ObjectId, base: Option<ObjectId>) -> Result<Candidate, Refusal> {
    let tree = objects.commit(&commit).map_err(host)?.tree;
    let mut locks = BTreeMap::new();
    for entry in objects.tree(&tree).map_err(host)? {
        // A name that no path can have is no lockfile's.
        let Ok(path) = RelPath::parse(&entry.name) else {
            continue;
        };
        let file = matches!(entry.mode, TreeMode::Leaf(Mode::File | Mode::Executable));
        if file && binding::binds(&path).is_some() {
            let bytes = objects.blob(&entry.id).map_err(host)?;
            locks.insert(path, Sha256::of(&bytes));
        }
    }
    let base = match base {
        Some(commit) => Some(BaseCommit {
            commit,
            tree: objects.commit(&commit).map_err(host)?.tree,
        }),
        None => None,
    };
    Ok(Candidate {
        commit,
        tree,
        locks,
        base,
    })
}

/// Is where GitHub Actions wants to hear of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct GithubFiles {
    /// The file of the step's summary.
    pub(crate) summary: Option<PathBuf>,
    /// The file of the step's outputs.
    pub(crate) outputs: Option<PathBuf>,
}

/// Tells GitHub Actions of a verdict; outside of it there is nobody to tell.
///
/// # Errors
/// `io_failed`: a verdict that could not be told is none.
pub(crate) fn tell_github(verdict: &Verdict, files: &GithubFiles) -> Result<(), Refusal> {
    for (place, text) in [
        (&files.summary, verdict.to_markdown()),
        (&files.outputs, verdict.to_outputs()),
    ] {
        if let Some(place) = place {
            plain::append_file(place, text.as_bytes()).map_err(host)?;
        }
    }
    Ok(())
}

impl Judged {
    /// Gives the verdict; no journal was asked.
    pub(crate) fn verdict(self) -> Verdict {
        self.verdict.with_consumption(&self.policy, None)
    }

    /// Records the use of the certificate for one merge, if the verdict passes.
    ///
    /// The same merge passes again; any other is refused.
    ///
    /// # Errors
    /// `store_unavailable`, `daemon_unreachable`. A use for another target is no error but a verdict.
    pub(crate) fn consume(self, engine: &Engine, target: &Target) -> Result<Verdict, Refusal> {
        let (true, Some(generation)) = (self.verdict.pass, self.verdict.generation.clone()) else {
            return Ok(self.verdict());
        };
        let use_of = Consumption {
            generation,
            certificate: self.verdict.certificate,
            repository: self.repository,
            target: target.as_str().to_owned(),
            tree: self.verdict.tree.to_string(),
            at: semel_host::clock::now(),
        };
        let consumed: Result<Consumed, Refusal> = match engine.journal.consume(use_of) {
            Ok(consumed) => Ok(consumed),
            Err(error) if error.code() == Code::GateRefused => Err(error.into_refusal()),
            Err(error) => return Err(store(error)),
        };
        Ok(self.verdict.with_consumption(&self.policy, Some(&consumed)))
    }
}
