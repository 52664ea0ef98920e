//! `run_command`: begun once, watched by nobody's thread, and given its receipt whoever asked for it still waits or not.
//!
//! The shim of the host needs no daemon. What is held here while a command runs is a task that waits for one
//! descriptor; the next life of the daemon waits for the same command again.

use super::answer::{Answer, Failure, Replayed};
use super::arguments::Run;
use super::call::{Asked, micros};
use super::crash::CrashPoint;
use super::mutate::{Displaced, Step, in_flight, stopped};
use super::mutation::Mutation;
use super::running::Place;
use super::{Flight, Gateway, InFlight};
use crate::engine::surroundings::Surroundings;
use crate::engine::{host, store};
use crate::limits;
use crate::telemetry::Phase;
use semel_core::call::{CallState, Done, Intent, Outcome, Receipt, Recovered};
use semel_core::command::Ran;
use semel_core::effect::Effect;
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal};
use semel_host::exec::{self, Around, Observation, Spec, Status};
use semel_host::sandbox::Network;
use semel_host::volume::Volume as Disk;
use semel_host::{Error, clock};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How often is looked where there is nothing to wait for.
const LOOK: Duration = Duration::from_millis(50);
/// How often a look may fail before the daemon ends, to look anew.
const LOOKS: u32 = 200;

/// Is a command that can be started, with its place among those that run.
pub(super) struct Command {
    spec: Spec,
    place: Place,
}

impl Command {
    /// Gives what its intent records.
    pub(super) fn effect(&self) -> Effect {
        Effect::Run {
            cwd: self.spec.cwd.clone(),
        }
    }
}

/// Says who wants the receipt of a command.
enum Wanted {
    /// The call that began it, in this life of the daemon.
    Call { since: Instant, waited_us: u64 },
    /// Recovery: an earlier life began it.
    Recovery,
}

/// Is a command that runs, with all that it keeps.
struct Watched {
    disk: Arc<Disk>,
    intent: Intent,
    wanted: Wanted,
    shim: Option<OwnedFd>,
    _flight: InFlight,
    _place: Place,
}

impl Gateway {
    /// Makes a command ready; it is refused here as far as that can be told before its intent.
    ///
    /// # Errors
    /// `path_escapes_root`, `not_found` for the working directory; `bad_input`; `too_many`; `unknown_state`,
    /// `io_failed`.
    pub(super) fn command(
        &self,
        mutation: &Mutation<'_>,
        execution: &ExecutionId,
        run: &Run,
    ) -> Result<Command, Error> {
        // Once more, now that the key is held: the same key in the other scope is none to the journal.
        let known = self.known(mutation.asked, &mutation.scope, &mutation.key);
        if known.map_err(store)?.is_some() {
            return Err(in_flight("the key was used meanwhile").into());
        }
        let config = &self.engine.config;
        let around = match Surroundings::told(&mutation.disk)? {
            Some(told) => told,
            None => self.surroundings()?.clone(),
        };
        let spec = Spec {
            what: run.what.clone(),
            cwd: mutation.request.path.clone(),
            env: run.env.clone(),
            timeout: run.timeout,
            grace: limits::GRACE,
            cap_bytes: limits::OUTPUT,
            around: Around {
                require: around.require(config),
                bounds: config.bounds(around.limits),
                path: around.path,
                env: BTreeMap::new(),
                hide: config.hidden(),
                read_only: around.read_only,
                network: Network::Host,
            },
        };
        spec.check(&mutation.disk)?;
        let place = self.commands.take(execution, &mutation.asked.lease.generation)?;
        Ok(Command { spec, place })
    }

    /// Gives what commands find around them where their volume says nothing.
    ///
    /// # Errors
    /// `not_found` for a tool that is not there; `sandbox_unavailable`.
    pub(crate) fn surroundings(&self) -> Result<&Surroundings, Refusal> {
        if let Some(around) = self.around.get() {
            return Ok(around);
        }
        let around = Surroundings::configured(&self.engine.config)?;
        Ok(self.around.get_or_init(|| around))
    }

    /// Starts a command whose intent is recorded; from here on it needs no caller.
    pub(super) async fn launch(
        self: &Arc<Self>,
        mutation: &Mutation<'_>,
        intent: Intent,
        command: Command,
        flight: InFlight,
    ) -> Step {
        self.hooks.reached(CrashPoint::Begun);
        let (disk, execution) = (&mutation.disk, intent.execution_id.clone());
        let attached = match exec::start(disk, &execution, &command.spec, &self.hooks) {
            Ok(attached) => Some(attached),
            // Whatever was heard, the claim decides.
            Err(error) if error.poisons() => match exec::claim_never_begun(disk, &execution) {
                Ok(Observation::NeverBegan) => return self.not_begun(mutation, &intent, host(error)).await,
                Ok(_) => exec::attach(disk, &execution).ok().flatten(),
                Err(_) => {
                    self.poison(&host(error));
                    return Step::Answer(Err(stopped().into()));
                }
            },
            Err(error) => return self.not_begun(mutation, &intent, host(error)).await,
        };
        let asked = mutation.asked;
        self.watch(Watched {
            disk: disk.clone(),
            intent,
            wanted: Wanted::Call {
                since: asked.since,
                waited_us: asked.waited_us(),
            },
            shim: attached.as_ref().and_then(held),
            _flight: flight,
            _place: command.place,
        });
        Step::Attend(execution)
    }

    async fn not_begun(&self, mutation: &Mutation<'_>, intent: &Intent, refusal: Refusal) -> Step {
        let settled = self
            .fell_short(mutation, intent, 0, refusal, Displaced::Refuse)
            .await;
        Step::Answer(settled.unwrap_or_else(|| Err(stopped().into())))
    }

    /// Watches the commands that outlived an earlier life of the daemon.
    ///
    /// # Errors
    /// `unknown_state`, `io_failed`, `store_unavailable`: the daemon does not start.
    pub(crate) fn attach(self: &Arc<Self>, running: Vec<Intent>) -> Result<(), Refusal> {
        for intent in running {
            let volume = crate::engine::volume::find(&self.engine, &intent.generation)?;
            let disk = self.engine.volumes.look(&volume.job, &volume.generation);
            let disk = Arc::new(disk.map_err(host)?);
            let attached = exec::attach(&disk, &intent.execution_id).map_err(host)?;
            self.watch(Watched {
                disk,
                wanted: Wanted::Recovery,
                shim: attached.as_ref().and_then(held),
                _flight: self.takes_off(&intent.execution_id),
                _place: self.commands.keep(&intent.execution_id, &intent.generation),
                intent,
            });
        }
        Ok(())
    }

    fn watch(self: &Arc<Self>, mut watched: Watched) {
        let gateway = self.clone();
        let shim = watched.shim.take();
        let watching = async move {
            if let Some(shim) = shim.and_then(waited_for) {
                drop(shim.readable().await);
            }
            let (mut watched, mut failed) = (watched, 0);
            loop {
                let looked = gateway.blocking(move |gateway| (gateway.look_after(&watched), watched));
                let left = match looked.await {
                    Ok((Looked::Settled, _)) => return,
                    Ok((Looked::Runs, back)) => back,
                    Ok((Looked::Failed(refusal), back)) => {
                        failed += 1;
                        if failed == LOOKS {
                            return gateway.poison(&refusal);
                        }
                        back
                    }
                    Err(refusal) => return gateway.poison(&refusal),
                };
                watched = left;
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(watching)),
            Err(error) => self.poison(&Refusal::new(Code::Internal, error.to_string())),
        }
    }

    /// Looks whether a command has ended, and records what came of it.
    fn look_after(&self, watched: &Watched) -> Looked {
        let intent = &watched.intent;
        let seen = match exec::claim_never_begun(&watched.disk, &intent.execution_id) {
            Ok(Observation::Running) => return Looked::Runs,
            Ok(seen) => seen,
            Err(error) if error.code() == Code::UnknownState => {
                self.unknown(intent, &host(error));
                return Looked::Settled;
            }
            Err(error) => return Looked::Failed(host(error)),
        };
        self.hooks.reached(CrashPoint::ExecEnded);
        match seen {
            Observation::Ended(status) => match came_of(intent, *status) {
                Came::Answer(outcome) => self.receipted(watched, outcome),
                Came::Nothing(why) => self.freed(intent, why),
            },
            Observation::NeverBegan | Observation::NotBegun => {
                self.freed(intent, "no shim began the command".to_owned());
            }
            Observation::Lost | Observation::Running => {
                let why = "whoever ran the command is gone, and left no status";
                // Whoever is told of it is told the execution beside it.
                self.unknown(intent, &Refusal::new(Code::OutcomeUnknown, why));
            }
        }
        Looked::Settled
    }

    fn receipted(&self, watched: &Watched, outcome: Outcome) {
        match &outcome {
            Outcome::Done(_) => self.counters.executed.add(),
            Outcome::Refused { .. } => self.counters.refused.add(),
        }
        let (recovered, took_us, waited_us) = match watched.wanted {
            Wanted::Call { since, waited_us } => (None, Some(micros(since.elapsed())), Some(waited_us)),
            Wanted::Recovery => {
                let evidence =
                    "the command outlived the daemon that began it, and left its status".to_owned();
                (Some(Recovered { evidence }), None, None)
            }
        };
        let receipt = Receipt {
            at: clock::now(),
            outcome,
            recovered,
            resolved: None,
            possible_duplicate_of: self.recent.ran(&watched.intent),
            took_us,
            waited_us,
        };
        // A failure has poisoned the daemon, and whoever waits is told so.
        drop(self.finish_here(&watched.intent, receipt));
    }

    fn freed(&self, intent: &Intent, why: String) {
        let freed = self
            .engine
            .journal
            .free(intent.execution_id.clone(), why, clock::now());
        if let Err(error) = freed {
            self.poison(&store(error));
        }
    }

    /// Waits for the end of a command that this very call began, and answers from its receipt.
    pub(super) async fn attend(self: &Arc<Self>, asked: &Arc<Asked>, execution: ExecutionId) -> Answer {
        asked.waiting(self.flown(asked, &execution)).await;
        let asked = asked.clone();
        self.blocking(move |gateway| gateway.attended(&asked, execution))
            .await?
    }

    fn attended(&self, asked: &Asked, execution: ExecutionId) -> Answer {
        let failure = |refusal: Refusal| {
            Err(Failure {
                refusal,
                execution_id: Some(execution.clone()),
                replayed: Replayed::No,
            })
        };
        match self.engine.journal.execution(execution.clone()) {
            Err(error) => failure(store(error)),
            Ok(None) => {
                failure(Refusal::new(Code::IoFailed, "the command never began").name(execution.as_str()))
            }
            Ok(Some(CallState::Unknown { why, .. })) => {
                failure(Refusal::new(Code::OutcomeUnknown, why).name(execution.as_str()))
            }
            Ok(Some(CallState::Finished { intent, receipt })) => match &receipt.outcome {
                Outcome::Done(done) => Ok(self.success(&intent, &receipt, done, Replayed::No)),
                Outcome::Refused { refusal } => failure(refusal.clone()),
            },
            Ok(Some(CallState::Running { .. })) if self.poisoned().is_some() => failure(stopped()),
            Ok(Some(CallState::Running { .. })) => {
                let refusal = in_flight("the command is still running").name(execution.as_str());
                self.refuse(asked, refusal, Some(execution.clone()))
            }
        }
    }

    /// Waits until an execution ended here, as long as the caller wants to; says whether it did. Nobody is kept waiting
    /// for a command by a daemon that ends: it goes on without it.
    pub(super) async fn flown(&self, asked: &Asked, execution: &ExecutionId) -> Flown {
        let left = asked.patience();
        let Some(mut flight) = self.flight(execution) else {
            // Between the receipt and this look it ended; or another life of the daemon left it running.
            let soon = if asked.runs_a_command() {
                LOOK
            } else {
                Duration::from_millis(2)
            };
            tokio::time::sleep(soon.min(left)).await;
            return if left.is_zero() { Flown::Late } else { Flown::Ended };
        };
        // The sender is dropped when the execution ends, which is as good as being told.
        let ended = flight.wait_for(|now| *now == Flight::Ended);
        let mut phase = self.phase();
        let over = phase.wait_for(|phase| matches!(phase, Phase::Draining | Phase::Poisoned));
        tokio::select! {
            ended = tokio::time::timeout(left, ended) => match ended {
                Ok(_) => Flown::Ended,
                Err(_) => Flown::Late,
            },
            _ = over, if asked.runs_a_command() => Flown::Late,
        }
    }
}

/// Says whether an execution ended while a caller waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flown {
    /// It did.
    Ended,
    /// It still runs.
    Late,
}

/// Is what a look at a command found.
enum Looked {
    Settled,
    Runs,
    Failed(Refusal),
}

/// Is what came of a command that has its status.
pub(super) enum Came {
    /// The answer to its call.
    Answer(Outcome),
    /// It never began, and the same call may be sent again.
    Nothing(String),
}

/// Says what came of a command, by its status.
pub(super) fn came_of(intent: &Intent, status: Status) -> Came {
    let ended = match status.outcome {
        exec::Outcome::Ended(ended) => ended,
        exec::Outcome::NotBegun { refusal } if refusal.code == Code::IoFailed => {
            return Came::Nothing(refusal.to_string());
        }
        exec::Outcome::NotBegun { refusal } => return Came::Answer(Outcome::Refused { refusal }),
    };
    Came::Answer(Outcome::Done(Done {
        command: Some(Box::new(Ran {
            ended,
            tree_ended: status.tree_ended,
            level: status.level,
            took_ms: status.took_ms,
            stdout: status.stdout,
            stderr: status.stderr,
        })),
        ..intent.done()
    }))
}

/// Makes a descriptor one that a task waits for.
fn waited_for(fd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    #[expect(
        unsafe_code,
        reason = "tokio asks for it wherever a descriptor is not one of its own kinds"
    )]
    // SAFETY: an `OwnedFd` is open, and stays the same one, as long as it lives; nobody else has this one.
    unsafe {
        AsyncFd::register_with_interest(fd, Interest::READABLE).ok()
    }
}

fn held(attached: &exec::Attached) -> Option<OwnedFd> {
    attached.ended()?.try_clone_to_owned().ok()
}
