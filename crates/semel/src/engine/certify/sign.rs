//! Signing: the journal hears of the verdict first, then the generation ends, then the signature stands.
//!
//! The unsigned statement is kept in `meta/` before the verdict is recorded. The signature is deterministic, so that
//! a process that was killed in between leaves no signed statement of a generation that has not ended, and whoever asks for
//! the certificate later makes the very same envelope.

use super::super::proposal::Proposal;
use super::super::{Engine, host, signing, store, volume};
use super::attempt::{self, Evidence};
use super::{Ask, others};
use crate::engine::job::say::{Point, Say};
use semel_core::certificate::{
    self, Outcome, PREDICATE_VERSION, Predicate, Recipe, SigningKey, Statement, Subjects,
};
use semel_core::confinement::Level;
use semel_core::git_tree::ObjectId;
use semel_core::ids::Generation;
use semel_core::installer::{ProjectInstall, Toolchain};
use semel_core::job::{Certify, InGit};
use semel_core::record::Judgement;
use semel_core::{Code, Refusal, Sha256};
use semel_host::git::Git;
use semel_host::volume::{read_record, write_record};
use semel_host::{clock, plain};
use std::path::{Path, PathBuf};

/// Is a recorded verdict whose signature is not yet on the disk.
#[derive(Debug)]
pub(super) struct Signed {
    /// The digest of the envelope.
    pub(super) certificate: Sha256,
    /// The digest of the recipe.
    pub(super) recipe: Sha256,
    statement: Statement,
    envelope: Vec<u8>,
    key: SigningKey,
}

impl Signed {
    /// Publishes the signature of a generation that has ended.
    ///
    /// # Errors
    /// `io_failed`.
    ///
    /// # Durability
    /// The envelope and its other forms are on the disk when this returns.
    pub(super) fn publish(&self, engine: &Engine, generation: &Generation) -> Result<(), Refusal> {
        let state = &engine.config.state;
        let paths = paths(state, generation);
        plain::private_directory(&state.join(CERTIFICATES)).map_err(host)?;
        clear(state)?;
        let bundle = certificate::to_sigstore_bundle(&self.statement, &self.key)?;
        plain::write_file(&paths.bundle, &bundle).map_err(host)?;
        let ssh = certificate::to_ssh_signature(&self.statement, &self.key)?;
        plain::write_file(&paths.ssh, ssh.as_bytes()).map_err(host)?;
        // The envelope comes last: where it stands, its other forms do.
        plain::write_file(&paths.envelope, &self.envelope).map_err(host)
    }
}

/// Is where the forms of a certificate lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    /// The DSSE envelope.
    pub(crate) envelope: PathBuf,
    /// The Sigstore bundle.
    pub(crate) bundle: PathBuf,
    /// The SSH signature of the payload.
    pub(crate) ssh: PathBuf,
    /// The install record that it names.
    pub(crate) record: PathBuf,
}

/// Where certificates lie in the state root.
const CERTIFICATES: &str = "certificates";

/// Removes what processes that were killed left of certificates that they had not finished.
///
/// # Errors
/// `io_failed`.
pub(crate) fn clear(state: &Path) -> Result<(), Refusal> {
    plain::clear_unfinished(&state.join(CERTIFICATES)).map_err(host)
}

/// Gives the places of the certificate of a generation.
pub(crate) fn paths(state: &Path, generation: &Generation) -> Paths {
    let place = |extension: &str| state.join(CERTIFICATES).join(format!("{generation}.{extension}"));
    Paths {
        envelope: place("dsse.json"),
        bundle: place("sigstore.json"),
        ssh: place("sig"),
        record: attempt::record_place(state, generation.as_str()),
    }
}

const STATEMENT: &str = "statement.json";
const LARGEST_STATEMENT: u64 = 16 << 20;

/// Signs the verdict on an attempt, and records it; a refusal is signed as such. Nothing signed is on the disk yet.
///
/// # Errors
/// `bad_config` without a usable key; `store_unavailable`; `evidence_foreign` for a pass with nothing behind it.
///
/// # Durability
/// Statement and record of the verdict are on the disk, in this order, when this returns.
pub(super) fn sign(
    engine: &Engine,
    ask: &Ask,
    proposal: &Proposal,
    opened: &volume::Opened,
    evidence: &Evidence,
    refusal: Option<&Refusal>,
    say: Say<'_>,
) -> Result<Signed, Refusal> {
    let key = signing::load_or_new(&engine.config)?;
    let recipe = recipe(&ask.certify)?;
    let statement = statement(engine, ask, proposal, opened, evidence, refusal, recipe)?;
    let payload = statement.to_payload()?;
    write_record(&opened.disk, STATEMENT, &payload).map_err(host)?;
    say.reached(Point::Stated);
    let envelope = certificate::sign(&statement, &key)?;
    let certificate = Sha256::of(&envelope);
    engine
        .journal
        .judge(Judgement {
            job: opened.volume.job.clone(),
            attempt: opened.volume.attempt,
            generation: opened.volume.generation.clone(),
            proposal: proposal.digest(),
            tree: proposal.tree.to_string(),
            refusal: refusal.cloned(),
            certificate,
            at: statement.predicate.issued_at,
        })
        .map_err(store)?;
    say.reached(Point::Judged);
    Ok(Signed {
        certificate,
        recipe,
        statement,
        envelope,
        key,
    })
}

/// Makes the envelope that was recorded, where none or another one stands: a process was killed, or a file altered.
///
/// # Errors
/// `not_found` where the generation has no verdict; `unknown_state` where statement or key are not those that were
/// recorded.
pub(crate) fn heal(engine: &Engine, generation: &Generation) -> Result<Judgement, Refusal> {
    let judgement = engine
        .journal
        .judgement(generation.clone())
        .map_err(store)?
        .ok_or_else(|| {
            Refusal::new(Code::NotFound, "the generation has no verdict").name(generation.as_str())
        })?;
    let paths = paths(&engine.config.state, generation);
    // One that was altered or cut is not the one that was recorded; the same envelope is made again.
    let stands = plain::digest_file(&paths.envelope).is_ok_and(|digest| digest == judgement.certificate);
    if stands && paths.bundle.is_file() && paths.ssh.is_file() {
        return Ok(judgement);
    }
    let unknown = |why: &str| Refusal::new(Code::UnknownState, why).name(generation.as_str());
    let disk = engine.volumes.records(&judgement.job, generation).map_err(host)?;
    let payload = read_record(&disk, STATEMENT, LARGEST_STATEMENT)
        .map_err(host)?
        .ok_or_else(|| unknown("the statement of a recorded verdict is gone"))?;
    let statement = Statement::from_payload(&payload)?;
    let key = signing::load(&engine.config)?;
    let envelope = certificate::sign(&statement, &key)?;
    if Sha256::of(&envelope) != judgement.certificate {
        return Err(unknown(
            "statement and key do not make the certificate that was recorded",
        ));
    }
    let signed = Signed {
        certificate: judgement.certificate,
        recipe: statement.predicate.recipe,
        statement,
        envelope,
        key,
    };
    signed.publish(engine, generation)?;
    Ok(judgement)
}

fn statement(
    engine: &Engine,
    ask: &Ask,
    proposal: &Proposal,
    opened: &volume::Opened,
    evidence: &Evidence,
    refusal: Option<&Refusal>,
    recipe: Sha256,
) -> Result<Statement, Refusal> {
    let tree: ObjectId = proposal.tree;
    let others = others(engine, ask, &opened.volume.generation)?;
    Ok(Statement {
        subjects: Subjects {
            tree,
            proposal: proposal.digest(),
            locks: evidence.locks.clone(),
            record: evidence.record.as_deref().map(Sha256::of),
        },
        predicate: Predicate {
            version: PREDICATE_VERSION,
            job: opened.volume.job.clone(),
            attempt: opened.volume.attempt,
            generation: opened.volume.generation.clone(),
            earlier: others.earlier,
            open: others.open,
            recipe,
            toolchain: toolchain(engine, evidence)?,
            confinement: evidence
                .level
                .clone()
                .unwrap_or_else(|| Level::none("the attempt ended before any command ran")),
            report: evidence.report.clone(),
            test_command: ask.certify.test.clone(),
            base: evidence.base,
            test_surface: evidence.surface.clone(),
            base_tests: evidence.base_tests.clone(),
            weak: evidence.weak(),
            versions: [("semel".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
            verdict: refusal.map_or(Outcome::Pass, |refusal| Outcome::Refused(refusal.clone())),
            issued_at: clock::now(),
        },
    })
}

fn toolchain(engine: &Engine, evidence: &Evidence) -> Result<Vec<Toolchain>, Refusal> {
    let git = Git::find(&engine.config.path).map_err(host)?;
    let mut tools = evidence.toolchain.clone();
    tools.push(Toolchain {
        name: "git".to_owned(),
        version: git.version().to_owned(),
        path: git.program().display().to_string(),
        sha256: git.sha256(),
    });
    tools.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    tools.dedup();
    Ok(tools)
}

/// Gives the digest of how a job certifies: another test command is another recipe.
pub(crate) fn recipe(certify: &Certify) -> Result<Sha256, Refusal> {
    let install = certify.install.known.iter().map(|installer| {
        let args = certify.install_args.get(installer).cloned().unwrap_or_default();
        std::iter::once(installer.name().to_owned()).chain(args).collect()
    });
    let command = certify.install.command.as_ref();
    // Else the words of a command could be read as an installer with arguments.
    let commanded = command.map(|_| "install=command".to_owned());
    let project = match certify.project {
        ProjectInstall::Skip => "project=skip",
        ProjectInstall::UnboundBackend => "build_backend=unbound",
    };
    let report = certify.report.iter().map(|path| format!("report={path}"));
    let in_git = match certify.git {
        InGit::None => None,
        InGit::OneCommit => Some("git=one_commit".to_owned()),
    };
    Recipe {
        installers: certify.install.known.iter().copied().collect(),
        install: install
            .chain(command.map(|command| command.words().to_vec()))
            .collect(),
        test: certify.test.clone(),
        flags: std::iter::once(project.to_owned())
            .chain(report)
            .chain(in_git)
            .chain(commanded)
            .collect(),
        environment: certify
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        inputs: certify
            .caches
            .iter()
            .map(|path| format!("cache={path}"))
            .collect(),
        expected_tests: certify.min_tests.unwrap_or(1),
        timeout_s: certify
            .timeout
            .map_or(crate::limits::CERTIFY_TIMEOUT, |span| span.get())
            .as_secs(),
    }
    .digest()
}
