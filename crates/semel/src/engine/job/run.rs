//! `semel run`: a job from its repository to a certificate, stage by stage.
//!
//! Each stage is recorded once it is proven; a run that was killed continues after the last one. A killed agent is
//! never continued: its draft is quarantined, and the next attempt begins in a new generation. Certifications of a
//! killed run died with it; the next attempt at the same proposal begins.

use super::draft::{self, Keep};
use super::say::{Point, Say};
use super::{agent, deliver};
use crate::engine::certify::{self, Ask};
use crate::engine::gateway::standing::Standing;
use crate::engine::proposal::{self, Base};
use crate::engine::{Engine, full, host, store, volume};
use crate::limits;
use semel_core::backend;
use semel_core::confinement::Confinement;
use semel_core::ids::{Generation, JobId, RunId};
use semel_core::job::{Confine, Job};
use semel_core::pipeline::{self, NewRun, Run, RunEnd, Stage, Step};
use semel_core::volume::{End, OUTCOME_UNKNOWN, Owner, Volume, VolumeState};
use semel_core::{Code, Refusal, Sha256};
use semel_host::clock;
use semel_host::hold::Hold;
use semel_host::plain;
use semel_host::process::Cancel;
use std::path::{Path, PathBuf};

/// Says what becomes of a job that is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Its certificate is shown again.
    Show,
    /// A new attempt begins.
    NewAttempt,
}

/// Is a job as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The job.
    pub(crate) job: Job,
    /// The digest of its file.
    pub(crate) sha256: Sha256,
    /// The directory that its paths are relative to.
    pub(crate) beside: PathBuf,
    /// What becomes of it when it is finished.
    pub(crate) again: Again,
}

/// Reads a job file.
///
/// # Errors
/// `not_found`, `bad_input`; `bad_config` where the file lies where an agent could write it.
pub(crate) fn read(file: &Path, again: Again, state: &Path) -> Result<Asked, Refusal> {
    const LARGEST: u64 = 1 << 20;
    let real = file.canonicalize().map_err(|e| {
        Refusal::new(Code::NotFound, format!("the job file: {e}")).name(file.display().to_string())
    })?;
    outside_of(
        state,
        &real,
        "a job file inside the state root could have been written by an agent",
    )?;
    let bytes = plain::read_file(&real, LARGEST).map_err(host)?;
    let text = std::str::from_utf8(&bytes).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
    let beside = real.parent().unwrap_or(Path::new("/")).to_owned();
    let job = Job::parse(text)?;
    for from in job.agent.files.values() {
        let why = "nothing of the state root, such as a key, is copied into the home of an agent";
        outside_of(state, &beside.join(from), why)?;
    }
    let why = "neither repository nor output lie in the state root";
    outside_of(state, &beside.join(&job.repository), why)?;
    if let Some(patch) = &job.output.patch {
        outside_of(state, &beside.join(patch), why)?;
    }
    Ok(Asked {
        job,
        sha256: Sha256::of(&bytes),
        beside,
        again,
    })
}

/// Refuses a path that leads into the state root, through links, too; one that is not there is judged by its parent.
fn outside_of(state: &Path, path: &Path, why: &str) -> Result<(), Refusal> {
    let resolve = |path: &Path| {
        path.canonicalize().ok().or_else(|| {
            let parent = path.parent()?.canonicalize().ok()?;
            Some(parent.join(path.file_name()?))
        })
    };
    let real = resolve(path).unwrap_or_else(|| path.to_owned());
    let root = resolve(state).unwrap_or_else(|| state.to_owned());
    if real.starts_with(&root) || path.starts_with(state) {
        return Err(Refusal::new(Code::BadConfig, why).name(real.display().to_string()));
    }
    Ok(())
}

/// Is a job that is finished.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    /// The run.
    pub(crate) run: Run,
    /// The generation that the certificate is of.
    pub(crate) generation: Generation,
    /// The digest of the certificate.
    pub(crate) certificate: Sha256,
    /// The recipe, for a policy to pin.
    pub(crate) recipe: Sha256,
}

/// Gives the place by which a process that works on a job is known to live.
pub(crate) fn hold_place(state: &Path, job: &JobId) -> PathBuf {
    state.join("run").join(format!("{job}.lock"))
}

/// Takes the right to work on a job.
///
/// # Errors
/// `volume_busy` while another process works on the job.
pub(super) fn take(engine: &Engine, job: &JobId) -> Result<Hold, Refusal> {
    // Where not even this can be made, whoever is refused hears what holds the room.
    let refused = |error| full::named(engine, host(error));
    plain::private_directory(&engine.config.state.join("run")).map_err(refused)?;
    let held = Hold::take_over(&hold_place(&engine.config.state, job), limits::HOLD_LEFT)
        .map_err(refused)?
        .ok_or_else(|| {
            Refusal::new(Code::VolumeBusy, "another process runs this job")
                .reason("living_owner")
                .name(job.as_str())
        })?;
    // What a dead holder sent, and nobody carried out yet, is refused from here on.
    let standing = Standing::new(job.clone(), held.number());
    if engine.standing.set(standing).is_err() {
        return Err(Refusal::new(Code::Internal, "a command works on one job"));
    }
    Ok(held)
}

/// Takes the right to work on a job, and ends what dead holders of it left open.
///
/// # Errors
/// `volume_busy` while another process works on the job.
pub(crate) fn hold(engine: &Engine, job: &JobId) -> Result<Hold, Refusal> {
    let held = take(engine, job)?;
    bury(engine, job)?;
    Ok(held)
}

/// Runs a job to its end.
///
/// # Errors
/// `volume_busy` while another process runs the job; `ownership_taken`; the refusal of the stage that did not hold.
pub(crate) fn run(
    engine: &Engine,
    asked: &Asked,
    say: Say<'_>,
    cancel: &Cancel,
) -> Result<Finished, Refusal> {
    let _held = hold(engine, &asked.job.job)?;
    let mut run = begin(engine, asked, say)?;
    say.reached(Point::Started);
    let working = Working {
        engine,
        asked,
        say,
        cancel,
    };
    // A run that has its end stays certified, also where a signal comes that late.
    while run.end.is_none() {
        let next = if cancel.is_cancelled() {
            Err(Refusal::new(Code::DirtyVolume, "the run was cancelled").reason("cancelled"))
        } else {
            working.step(&run)
        };
        match next {
            Ok(next) => run = next,
            Err(refusal) => {
                close(engine, &run, &refusal, cancel)?;
                return Err(refusal);
            }
        }
    }
    finished(engine, asked, run)
}

/// Finds the last run of a job; `None` where there is none, or the journal cannot be asked.
pub(crate) fn last(engine: &Engine, job: &JobId) -> Option<Run> {
    engine.journal.last_run(job.clone()).ok().flatten()
}

/// Records how a run ended, unless it can go on later: a store or a system that failed ends nothing.
fn close(engine: &Engine, run: &Run, refusal: &Refusal, cancel: &Cancel) -> Result<(), Refusal> {
    let end = match refusal.code {
        // Its agent was ended for that by us; nobody cancelled it.
        Code::QuotaExceeded => RunEnd::Refused {
            refusal: refusal.clone(),
        },
        _ if cancel.is_cancelled() => RunEnd::Cancelled,
        Code::StoreUnavailable
        | Code::DaemonUnreachable
        | Code::Draining
        | Code::IoFailed
        | Code::Internal => {
            return Ok(());
        }
        _ => RunEnd::Refused {
            refusal: refusal.clone(),
        },
    };
    engine
        .journal
        .end_run(run.new.run.clone(), end, clock::now())
        .map(drop)
        .map_err(store)
}

/// Finds the run to go on with, or begins a new one.
fn begin(engine: &Engine, asked: &Asked, say: Say<'_>) -> Result<Run, Refusal> {
    let last = engine.journal.last_run(asked.job.job.clone()).map_err(store)?;
    match last {
        Some(run) if run.end.is_none() && run.new.job_sha256 == asked.sha256 => {
            say.line(&format!(
                "resume   run {} after {}",
                run.new.run,
                stage_name(run.stages.last())
            ));
            return Ok(run);
        }
        Some(run) if run.end.is_none() => {
            say.line("the job file changed; the unfinished run of the old one is over");
            let end = RunEnd::Cancelled;
            engine
                .journal
                .end_run(run.new.run.clone(), end, clock::now())
                .map_err(store)?;
        }
        Some(run) if over(&run, asked) => return Ok(run),
        Some(_) | None => {}
    }
    certify::can_begin(engine, &asked.job.certify)?;
    let new = NewRun {
        run: RunId::mint(clock::seed().map_err(host)?),
        job: asked.job.job.clone(),
        job_sha256: asked.sha256,
        base: asked.job.base.clone(),
        at: clock::now(),
    };
    engine.journal.start_run(new).map_err(store)
}

/// Says whether a finished run is the answer: certified, of this very job file, and no new attempt is asked for.
fn over(run: &Run, asked: &Asked) -> bool {
    run.end == Some(RunEnd::Certified) && run.new.job_sha256 == asked.sha256 && asked.again == Again::Show
}

fn stage_name(stage: Option<&Stage>) -> &'static str {
    match stage {
        None => "nothing",
        Some(Stage::Drafted { .. }) => "the draft",
        Some(Stage::AgentEnded { .. }) => "the agent",
        Some(Stage::Sealed { .. }) => "the seal",
        Some(Stage::Certified { .. }) => "the certification",
        Some(Stage::Delivered { .. }) => "the delivery",
    }
}

/// Ends the volumes that a killed process left open: whoever held them is dead, since we hold the job.
fn bury(engine: &Engine, job: &JobId) -> Result<(), Refusal> {
    let open = |volume: &Volume| matches!(volume.state, VolumeState::Open | VolumeState::Opening);
    for left in engine.journal.volumes(Some(job.clone())).map_err(store)? {
        if !open(&left) || left.owner != Owner::Process {
            continue;
        }
        let end = volume::end_of_dead(engine, &left)?;
        volume::end(engine, &left.generation, end)?;
    }
    Ok(())
}

struct Working<'a> {
    engine: &'a Engine,
    asked: &'a Asked,
    say: Say<'a>,
    cancel: &'a Cancel,
}

impl Working<'_> {
    /// Does what comes next.
    fn step(&self, run: &Run) -> Result<Run, Refusal> {
        match pipeline::next(run) {
            Step::Draft => self.draft_and_agent(run),
            Step::Agent { generation } => self.after_the_agent(run, &generation),
            Step::Seal { generation } => self.seal(run, &generation),
            Step::Certify { proposal } => self.certify(run, proposal),
            Step::Deliver { proposal, .. } => self.deliver(run, proposal),
            Step::Finished => self
                .engine
                .journal
                .end_run(run.new.run.clone(), RunEnd::Certified, clock::now())
                .map_err(store),
        }
    }

    fn stage(&self, run: &Run, stage: Stage) -> Result<Run, Refusal> {
        self.engine
            .journal
            .stage_run(run.new.run.clone(), stage, clock::now())
            .map_err(store)
    }

    fn base(&self) -> Result<Base, Refusal> {
        let job = &self.asked.job;
        let repository = draft::repository(&job.repository, &self.asked.beside)?;
        Ok(Base {
            repository,
            commit: job.base.clone(),
        })
    }

    fn draft_and_agent(&self, run: &Run) -> Result<Run, Refusal> {
        let job = &self.asked.job;
        let base = self.base()?;
        // The agent is not begun unless the sandbox stands in full.
        let confinement = match job.confinement {
            Confine::Require => Some(Confinement::Full),
            Confine::BestEffort => None,
        };
        let draft = draft::open(
            self.engine,
            &job.job,
            &base,
            Keep {
                durability: job.durability,
                owner: Owner::Process,
                confinement,
                backend: backend::Wanted::Auto,
            },
            self.cancel,
        )?;
        self.say.reached(Point::DraftOpened);
        let volume = &draft.opened.volume;
        let generation = volume.generation.clone();
        self.say.line(&format!(
            "draft    attempt {} of job {} in generation {generation}, base {}, on {}: {}",
            volume.attempt, volume.job, base.commit, draft.opened.choice.backend, draft.opened.choice.why
        ));
        let run = self.stage(
            run,
            Stage::Drafted {
                generation: generation.clone(),
            },
        )?;
        self.say.reached(Point::Drafted);
        match agent::run(
            self.engine,
            job,
            &self.asked.beside,
            &draft,
            self.say,
            self.cancel,
        ) {
            Ok(()) => {
                self.say.reached(Point::AgentEnded);
                self.end_clean(&generation)?;
                self.say.reached(Point::DraftEnded);
            }
            Err(refusal) => {
                let reason = match refusal.code {
                    Code::TimedOut => "timed_out".to_owned(),
                    _ => refusal
                        .reason
                        .clone()
                        .unwrap_or_else(|| "agent_failed".to_owned()),
                };
                volume::end(self.engine, &generation, End::Dirty { reason })?;
                return Err(refusal);
            }
        }
        self.stage(&run, Stage::AgentEnded { generation })
    }

    /// Ends the draft of an agent that ended clean; a call whose outcome is unknown makes it dirty all the same, until
    /// a person settles it, and so does a command that may live on.
    fn end_clean(&self, generation: &Generation) -> Result<(), Refusal> {
        let Err(refusal) = volume::end(self.engine, generation, End::Clean) else {
            return Ok(());
        };
        let reason = match refusal.code {
            // It ended clean: the next look at the run takes the mark away.
            _ if refusal.reason.as_deref() == Some(volume::MARK_KEPT) => None,
            Code::OutcomeUnknown => Some(OUTCOME_UNKNOWN.to_owned()),
            Code::DirtyVolume => refusal.reason.clone(),
            _ => None,
        };
        if let Some(reason) = reason {
            volume::end(self.engine, generation, End::Dirty { reason })?;
        }
        Err(refusal)
    }

    /// Settles a draft whose run was killed: only the journal's word that it ended clean lets it go on.
    fn after_the_agent(&self, run: &Run, generation: &Generation) -> Result<Run, Refusal> {
        let draft = volume::find(self.engine, generation)?;
        if draft.state == VolumeState::Clean {
            // The kill may have come before the mark on the disk went.
            volume::marked(self.engine, &draft, &End::Clean)?;
            return self.stage(
                run,
                Stage::AgentEnded {
                    generation: generation.clone(),
                },
            );
        }
        let job = self.asked.job.job.clone();
        let commits = self
            .engine
            .journal
            .job_commits(job, draft.opened_at)
            .map_err(store)?;
        pipeline::may_restart_agent(commits)?;
        self.say.line(&format!(
            "the agent of generation {generation} was killed; its draft is kept, a new attempt begins"
        ));
        self.draft_and_agent(run)
    }

    fn seal(&self, run: &Run, generation: &Generation) -> Result<Run, Refusal> {
        let proposal = proposal::seal(self.engine, generation, self.cancel)?;
        let manifest = &proposal.manifest;
        self.say.line(&format!(
            "seal     {} entries, {} left out, proposal {}",
            manifest.entries.len(),
            manifest.left_out.len(),
            proposal.digest()
        ));
        self.say.reached(Point::Sealed);
        self.stage(
            run,
            Stage::Sealed {
                proposal: proposal.digest(),
                tree: proposal.tree.to_string(),
            },
        )
    }

    fn certify(&self, run: &Run, proposal: Sha256) -> Result<Run, Refusal> {
        let job = &self.asked.job;
        // A pass of this very run, recorded just before a kill, is its certificate. No clock tells, and not the
        // proposal alone: somebody may have certified it by hand, with another recipe.
        let passed = self
            .engine
            .journal
            .judgements(proposal)
            .map_err(store)?
            .into_iter()
            .rev()
            .find(|judgement| {
                judgement.refusal.is_none()
                    && judgement.job == job.job
                    && certify::is_of_run(self.engine, judgement, &run.new.run)
            });
        if let Some(judgement) = passed {
            let judgement = certify::heal(self.engine, &judgement.generation)?;
            let stage = Stage::Certified {
                generation: judgement.generation,
                certificate: judgement.certificate,
            };
            return self.stage(run, stage);
        }
        let ask = Ask {
            job: job.job.clone(),
            proposal,
            certify: job.certify.clone(),
            confine: job.confinement,
            limits: job.limits,
            base: Some(self.base()?),
            against: Some(self.base()?),
            backend: backend::Wanted::Auto,
            run: Some(run.new.run.clone()),
        };
        let certified = certify::certify(self.engine, &ask, self.say, self.cancel)?;
        let (generation, certificate) = (certified.generation, certified.certificate);
        let stage = Stage::Certified {
            generation,
            certificate,
        };
        let run = self.stage(run, stage)?;
        self.say.reached(Point::Certified);
        Ok(run)
    }

    fn deliver(&self, run: &Run, proposal: Sha256) -> Result<Run, Refusal> {
        let output = deliver::deliver(self.engine, self.asked, run, &proposal, self.cancel)?;
        self.say.line(&format!("deliver  {output}"));
        self.say.reached(Point::Delivered);
        let run = self.stage(run, Stage::Delivered { output })?;
        self.say.reached(Point::DeliveryRecorded);
        Ok(run)
    }
}

fn finished(engine: &Engine, asked: &Asked, run: Run) -> Result<Finished, Refusal> {
    let (generation, certificate) = run
        .certificate()
        .map(|(generation, certificate)| (generation.clone(), certificate))
        .ok_or_else(|| Refusal::new(Code::Internal, "a finished run without a certificate"))?;
    certify::heal(engine, &generation)?;
    let recipe = certify::recipe(&asked.job.certify)?;
    Ok(Finished {
        run,
        generation,
        certificate,
        recipe,
    })
}
