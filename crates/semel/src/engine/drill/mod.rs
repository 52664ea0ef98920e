//! The drill: the three incidents that Semel exists to prevent, naive and guarded side by side.
//!
//! The naive side does the damage with real tools; the guarded side does the same against this very program. All of
//! it lies in one fresh temporary directory with a state root of its own. Every sentence of the account is made from
//! what was seen. It decides nothing about guards: it only asks them.

mod gateway;
mod probe_replay;
mod python;
mod reused_volume;
mod table;
mod transient_lock;
mod whole_command;
mod worker;
mod workspace;
mod worktree;

pub(crate) use semel_host::scratch::Keep;
pub(crate) use table::{Report, Tally};

use super::job::interrupt;
use crate::engine::trial::Told;
use crate::engine::trial::stage::Stage;
use semel_core::Refusal;
use semel_host::scratch::Scratch;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use table::{Account, Guarded, Naive, Played, Row};

/// Names an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// A retry certified the previous volume's lockfile.
    ReusedVolume,
    /// A readiness probe replayed a one-shot delete.
    ProbeReplay,
    /// A restoration failed on a transient index lock.
    TransientLock,
}

impl Incident {
    /// Lists all incidents.
    pub(crate) const ALL: [Self; 3] = [Self::ReusedVolume, Self::ProbeReplay, Self::TransientLock];

    /// Gives its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ReusedVolume => "reused-volume",
            Self::ProbeReplay => "probe-replay",
            Self::TransientLock => "transient-lock",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::ReusedVolume => "a retry certified the previous volume's lockfile",
            Self::ProbeReplay => "a readiness probe replayed a one-shot delete",
            Self::TransientLock => "a restoration failed on a transient index lock",
        }
    }
}

/// Says how long the locks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// As short as shows the same thing.
    Short,
    /// As long as they were held then.
    Long,
}

/// Says what is to be drilled.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Which incidents, in order.
    pub(crate) incidents: Vec<Incident>,
    /// Whether the directory stays.
    pub(crate) keep: Keep,
    /// How long locks are held.
    pub(crate) length: Length,
    /// Where programs are looked for.
    pub(crate) path: Vec<PathBuf>,
}

/// Plays the incidents; `begin` hears the name of each before it is played.
///
/// # Errors
/// `io_failed` where no directory for the drill is to be had, or it could not be removed. Whatever else goes wrong is
/// a step that was not shown.
pub(crate) fn run(wanted: Wanted, begin: &mut dyn FnMut(&'static str)) -> Result<Report, Refusal> {
    let refusal = semel_host::Error::into_refusal;
    // A signal ends what runs; what is left of the drill is then not shown.
    let interrupt = interrupt::watch()?;
    let stage = Stage {
        scratch: Scratch::create("semel-drill", wanted.keep).map_err(refusal)?,
        path: wanted.path,
        cancel: interrupt.cancel().clone(),
        numbers: AtomicU32::new(0),
    };
    let mut accounts = Vec::new();
    for incident in wanted.incidents {
        begin(incident.name());
        let mut tools = Vec::new();
        let played = match incident {
            Incident::ReusedVolume => reused_volume::play(&stage, &mut tools),
            Incident::ProbeReplay => probe_replay::play(&stage, &mut tools),
            Incident::TransientLock => transient_lock::play(&stage, wanted.length, &mut tools),
        };
        accounts.push(Account {
            name: incident.name(),
            title: incident.title(),
            tools,
            played: played.map_or_else(Played::Skipped, Played::Rows),
        });
    }
    let kept = stage.scratch.close().map_err(refusal)?;
    Ok(Report {
        accounts,
        kept,
        interrupted: interrupt.status(),
    })
}

/// Plays one step: the naive side first, then the guarded one.
fn step(
    name: &'static str,
    done: impl Into<String>,
    naive: impl FnOnce() -> Told<Naive>,
    expected: impl Into<String>,
    guarded: impl FnOnce() -> Told<Guarded>,
) -> Row {
    Row {
        name,
        done: done.into(),
        naive: naive(),
        expected: expected.into(),
        guarded: guarded(),
    }
}
