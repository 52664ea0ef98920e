//! `semel certify`: certify a proposal in a fresh generation.

use super::Context;
use super::answer::Answer;
use super::run::say;
use super::volume::BackendName;
use crate::engine::certify::{self, Ask, Certified};
use crate::engine::job::draft::{self, Keep};
use crate::engine::job::interrupt;
use crate::engine::job::interrupt::Interrupt;
use crate::engine::job::say::{Point, Say};
use crate::engine::proposal::{self, Base};
use crate::engine::{Engine, volume};
use crate::wire;
use clap::Args as ClapArgs;
use semel_core::backend;
use semel_core::ids::JobId;
use semel_core::installer::{Installs, ProjectInstall, Stated};
use semel_core::job::{Certify, Confine, Job, RetryOn, Span};
use semel_core::volume::{Durability, End, Owner};
use semel_core::{Code, Refusal, Sha256};
use serde_json::json;
use std::path::PathBuf;

/// Certify a proposal in a fresh generation.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The job in which the attempts are numbered; each of its volumes has a number, a draft too
    #[arg(long, value_name = "ID", required_unless_present = "from")]
    job: Option<JobId>,
    /// The proposal, by its SHA-256
    #[arg(
        long,
        value_name = "SHA256",
        required_unless_present = "git",
        conflicts_with = "git"
    )]
    proposal: Option<Sha256>,
    /// Seal this commit first, given by its full object id
    #[arg(long, value_name = "ID", requires = "repository")]
    git: Option<String>,
    /// The repository of the commit, or of the base
    #[arg(long, value_name = "DIR")]
    repository: Option<PathBuf>,
    /// The base commit, by its full object id: whose ignore rules count, and with which the tests are compared;
    /// without it nothing is compared, and the certificate says so
    #[arg(long, value_name = "ID", requires = "repository")]
    base: Option<String>,
    /// Take job and recipe, but not the repository, from this job file; the flags below change it
    #[arg(long, value_name = "JOB.toml")]
    from: Option<PathBuf>,
    /// An installer that the project uses (uv, pip, poetry, npm, pnpm, yarn or cargo), or a command of your own with its
    /// arguments, such as 'pdm sync --prod', split at white space; may be given again, with one command at most. No
    /// artifact is compared with what a command installs: see docs/installs.md
    #[arg(long, value_name = "NAME|COMMAND", value_parser = stated)]
    install: Vec<Stated>,
    /// Arguments of the one installer, split at white space, such as "--group test"
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    install_args: Option<String>,
    /// Build the project's own package with a backend that no lock binds, named as weak in the certificate; the tree's code
    /// then runs in the fetch stage, with the network and the credentials of [fetch]
    #[arg(long)]
    unbound_backend: bool,
    /// The test command, split at white space; what is neither pytest nor cargo takes the place of its
    /// JUnit report as {report}
    #[arg(long, value_name = "COMMAND", required_unless_present = "from")]
    test: Option<String>,
    /// How long each of fetch, install and test may take, such as 15m
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// How many attempts this command makes at most, each in a generation of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    attempts: Option<u32>,
    /// Also try again when tests fail
    #[arg(long)]
    retry_tests: bool,
    /// What the generations lie on
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    /// Refuse to run with less than full confinement
    #[arg(long)]
    require_sandbox: bool,
    /// Kill the process at this point, for a test
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
}

fn stated(text: &str) -> Result<Stated, String> {
    Stated::parse(text).map_err(|refusal| refusal.why)
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let from = match &args.from {
        Some(file) => Some(crate::engine::job::run::read(
            file,
            crate::engine::job::run::Again::Show,
            &config.state,
        )?),
        None => None,
    };
    let crash = args.crash_at.as_deref().map(Point::parse).transpose()?;
    let (job, certify, confine) = recipe(&args, from.as_ref().map(|asked| &asked.job))?;
    let interrupt = interrupt::watch()?;
    let engine = wire::command(config.clone())?;
    certify::can_begin(&engine, &certify)?;
    let _held = crate::engine::job::run::hold(&engine, &job)?;
    let (proposal, mut base) = sealed(&args, &engine, &job, &interrupt)?;
    // The commit that is certified is not compared with itself: who names no base has no comparison.
    let mut against = self::base(&args)?;
    if let (None, Some(asked)) = (&base, &from) {
        base = Some(Base {
            repository: draft::repository(&asked.job.repository, &asked.beside)?,
            commit: asked.job.base.clone(),
        });
        against.clone_from(&base);
    }
    let ask = Ask {
        job,
        proposal,
        certify,
        confine,
        limits: from.as_ref().map(|asked| asked.job.limits).unwrap_or_default(),
        base,
        against,
        backend: args.backend.into(),
        run: None,
    };
    let line = |line: &str| say(context, line);
    let result = certify::certify(&engine, &ask, Say::new(&line, crash), interrupt.cancel());
    if let (Err(_), Some(status)) = (&result, interrupt.status()) {
        let json = json!({"schema": "semel.certify/v1", "status": "cancelled"});
        return Ok(Answer {
            exit: status,
            ..Answer::new("cancelled; the generation is kept, dirty", json)
        });
    }
    let certified = result?;
    Ok(answer(
        &ask,
        &certified,
        &certify::paths(&config.state, &certified.generation),
    ))
}

/// Takes the proposal that was named, or seals the commit; and says from where it began.
fn sealed(
    args: &Args,
    engine: &Engine,
    job: &JobId,
    interrupt: &Interrupt,
) -> Result<(Sha256, Option<Base>), Refusal> {
    let base = base(args)?;
    match (&args.git, args.proposal) {
        (Some(commit), _) => {
            let from = Base {
                repository: repository(args)?,
                commit: commit.clone(),
            };
            let keep = Keep {
                durability: Durability::Process,
                owner: Owner::Process,
                confinement: None,
                backend: backend::Wanted::Dir,
            };
            let draft = draft::open(engine, job, &from, keep, interrupt.cancel())?;
            let generation = draft.opened.volume.generation.clone();
            volume::end(engine, &generation, End::Clean)?;
            let digest = proposal::seal(engine, &generation, interrupt.cancel())?.digest();
            Ok((digest, base.or(Some(from))))
        }
        (None, Some(digest)) => Ok((digest, base)),
        (None, None) => Err(Refusal::new(Code::Usage, "give --proposal or --git")),
    }
}

fn answer(ask: &Ask, certified: &Certified, paths: &certify::Paths) -> Answer {
    let json = json!({
        "schema": "semel.certify/v1",
        "status": "certified",
        "job": ask.job,
        "generation": certified.generation,
        "proposal": ask.proposal,
        "tree": certified.tree,
        "recipe": certified.recipe,
        "counts": certified.counts,
        "weak": certified.weak,
        "certificate": certified.certificate,
        "envelope": paths.envelope,
        "sigstore_bundle": paths.bundle,
        "ssh_signature": paths.ssh,
        "install_record": paths.record,
    });
    let text = format!(
        "certified   {}\ntree        {}\ngeneration  {}\nrecipe      {}",
        paths.envelope.display(),
        certified.tree,
        certified.generation,
        certified.recipe
    );
    Answer::new(text, json)
}

fn repository(args: &Args) -> Result<PathBuf, Refusal> {
    let stated = args
        .repository
        .as_deref()
        .ok_or_else(|| Refusal::new(Code::Usage, "give --repository"))?;
    let here = std::path::absolute(stated).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
    draft::repository("", &here)
}

fn base(args: &Args) -> Result<Option<Base>, Refusal> {
    match &args.base {
        Some(commit) => Ok(Some(Base {
            repository: repository(args)?,
            commit: commit.clone(),
        })),
        None => Ok(None),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Gives job, recipe and confinement: from the job file, changed by the flags.
fn recipe(args: &Args, from: Option<&Job>) -> Result<(JobId, Certify, Confine), Refusal> {
    let job = args.job.clone().or_else(|| from.map(|job| job.job.clone()));
    let job = job.ok_or_else(|| Refusal::new(Code::Usage, "give --job or --from"))?;
    let mut certify = match from {
        Some(job) => job.certify.clone(),
        None => Certify::of(Vec::new()),
    };
    if let Some(test) = &args.test {
        certify.test = words(test);
    }
    if certify.test.is_empty() {
        return Err(Refusal::new(Code::Usage, "the test command is empty"));
    }
    if !args.install.is_empty() {
        certify.install = Installs::gather(args.install.iter().cloned())?;
    }
    if let Some(text) = &args.install_args {
        let [only] = certify.install.known[..] else {
            return Err(Refusal::new(
                Code::Usage,
                "--install-args needs exactly one installer",
            ));
        };
        certify.install_args.insert(only, words(text));
    }
    if args.unbound_backend {
        certify.project = ProjectInstall::UnboundBackend;
    }
    certify.timeout = args.timeout.or(certify.timeout);
    certify.attempts = args.attempts.unwrap_or(certify.attempts);
    if args.retry_tests {
        certify.retry = vec![RetryOn::TestsFailed];
    }
    let confine = match (args.require_sandbox, from) {
        (true, _) => Confine::Require,
        (false, Some(job)) => job.confinement,
        (false, None) => Confine::BestEffort,
    };
    Ok((job, certify, confine))
}
