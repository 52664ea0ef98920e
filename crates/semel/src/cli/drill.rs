//! `semel drill`: replay the three incidents, naive and guarded side by side.

use super::answer::{Answer, err};
use super::{Context, Progress};
use crate::config;
use crate::engine::drill::{self, Incident, Keep, Length, Report, Tally, Wanted};
use clap::ValueEnum;
use semel_core::{Code, Refusal};
use std::io::IsTerminal;

/// Replay the three incidents, naive and guarded side by side.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// One incident alone [default: all three]
    #[arg(value_enum)]
    incident: Option<Name>,
    /// Keep the directory, and say where it is
    #[arg(long)]
    keep: bool,
    /// Hold locks as long as they were held then: 6 s and 7.5 s
    #[arg(long)]
    long: bool,
    /// Do not fail for an incident that cannot be played here for want of a tool
    #[arg(long)]
    allow_skips: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// A retry certified the previous volume's lockfile
    ReusedVolume,
    /// A readiness probe replayed a one-shot delete
    ProbeReplay,
    /// A restoration failed on a transient index lock
    TransientLock,
}

impl From<Name> for Incident {
    fn from(name: Name) -> Self {
        match name {
            Name::ReusedVolume => Self::ReusedVolume,
            Name::ProbeReplay => Self::ProbeReplay,
            Name::TransientLock => Self::TransientLock,
        }
    }
}

/// Runs the command. The account is printed whatever it says; the exit status is `drill_failed` unless all of it held.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let progress = context.progress == Progress::Lines && std::io::stderr().is_terminal();
    let mut begin = |name: &'static str| {
        if progress {
            err(&format!("drill: {name} …"));
        }
    };
    let wanted = Wanted {
        incidents: args
            .incident
            .map_or_else(|| Incident::ALL.to_vec(), |name| vec![name.into()]),
        keep: if args.keep { Keep::Yes } else { Keep::No },
        length: if args.long { Length::Long } else { Length::Short },
        path: config::search_path(),
    };
    let report = drill::run(wanted, &mut begin)?;
    let skips = if args.allow_skips {
        Skips::Allowed
    } else {
        Skips::Fail
    };
    let refusal = judge(&report, skips);
    let verdict = if refusal.is_some() { "failed" } else { "held" };
    let answer = Answer::new(report.text(), report.json(verdict));
    let mut answer = match refusal {
        Some(refusal) => answer.refused(refusal),
        None => answer,
    };
    answer.exit = report.interrupted.unwrap_or(answer.exit);
    Ok(answer)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skips {
    Allowed,
    Fail,
}

/// Refuses an account in which anything is wanting.
fn judge(report: &Report, skips: Skips) -> Option<Refusal> {
    let Tally {
        held,
        failed,
        not_shown,
        skipped,
    } = report.tally();
    let skipped_counts = if skips == Skips::Allowed { 0 } else { skipped };
    if failed + not_shown + skipped_counts == 0 {
        return None;
    }
    let why = format!(
        "{failed} guards failed, {not_shown} could not be shown, {skipped} incidents were skipped, {held} held"
    );
    Some(Refusal::new(Code::DrillFailed, why).names(report.wanting()))
}
