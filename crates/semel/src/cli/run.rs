//! `semel run`: carry a job from a repository to a certificate.

use super::answer::{Answer, err, refusal_json};
use super::{Context, Progress};
use crate::engine::certify;
use crate::engine::job::interrupt;
use crate::engine::job::restorations;
use crate::engine::job::run::{self, Again, Finished};
use crate::engine::job::say::{Point, Say};
use crate::wire;
use clap::Args as ClapArgs;
use semel_core::Refusal;
use semel_core::pipeline::Stage;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Carry a job from a repository to a certificate.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The job file
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// Begin a new attempt though the job has its certificate
    #[arg(long)]
    new_attempt: bool,
    /// Kill the process at this point, for a test
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let again = if args.new_attempt {
        Again::NewAttempt
    } else {
        Again::Show
    };
    let asked = run::read(&args.job, again, &config.state)?;
    // Before the engine: the threads that it starts inherit the signal mask.
    let interrupt = interrupt::watch()?;
    let engine = wire::command(config.clone())?;
    let crash = args.crash_at.as_deref().map(Point::parse).transpose()?;
    let line = |line: &str| say(context, line);
    let result = run::run(&engine, &asked, Say::new(&line, crash), interrupt.cancel());
    if let (Err(_), Some(status)) = (&result, interrupt.status()) {
        let json = json!({"schema": "semel.run/v1", "job": asked.job.job, "status": "cancelled"});
        return Ok(Answer {
            exit: status,
            ..Answer::new("cancelled; what was open is kept, dirty", json)
        });
    }
    let job = &asked.job.job;
    match result {
        Ok(finished) => {
            let mut answer = answer(&finished, &certify::paths(&config.state, &finished.generation));
            // Told beside the certificate: that they cannot be counted takes nothing from it.
            match restorations::of_run(&engine, &finished.run) {
                Ok(met) => answer.json["restorations"] = json!(met),
                Err(refusal) => say(context, &format!("restore  not counted: {refusal}")),
            }
            Ok(answer)
        }
        Err(refusal) => {
            // Told beside the refusal, and never in its place.
            let met = run::last(&engine, job).and_then(|run| restorations::of_run(&engine, &run).ok());
            let mut json = refusal_json(&refusal);
            if let Some(met) = met {
                if let Some(line) = met.line() {
                    say(context, &line);
                }
                json["restorations"] = json!(met);
            }
            Ok(Answer::new("", json).refused(refusal))
        }
    }
}

/// Tells a person, unless quiet was asked for, what is going on.
pub(super) fn say(context: &Context, line: &str) {
    if context.progress == Progress::Lines {
        err(line);
    }
}

fn answer(finished: &Finished, paths: &certify::Paths) -> Answer {
    let run = &finished.run;
    let (proposal, tree) = run
        .proposal()
        .map_or((Value::Null, Value::Null), |(proposal, tree)| {
            (proposal.to_string().into(), tree.into())
        });
    let output = run.stages.iter().rev().find_map(|stage| match stage {
        Stage::Delivered { output } => Some(output.as_str()),
        Stage::Drafted { .. } | Stage::AgentEnded { .. } | Stage::Sealed { .. } | Stage::Certified { .. } => {
            None
        }
    });
    let json = json!({
        "schema": "semel.run/v1",
        "status": "certified",
        "job": run.new.job,
        "run": run.new.run,
        "generation": finished.generation,
        "proposal": proposal,
        "tree": tree,
        "recipe": finished.recipe,
        "certificate": finished.certificate,
        "envelope": paths.envelope,
        "sigstore_bundle": paths.bundle,
        "ssh_signature": paths.ssh,
        "install_record": paths.record,
        "output": output,
        "restorations": null,
    });
    let text = format!(
        "certified   {}\ntree        {}\ngeneration  {}\nrecipe      {}\nrecord      {}\noutput      {}",
        paths.envelope.display(),
        tree.as_str().unwrap_or_default(),
        finished.generation,
        finished.recipe,
        paths.record.display(),
        output.unwrap_or("nothing"),
    );
    Answer::new(text, json)
}
