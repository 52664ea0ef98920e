//! `semel doctor`: say what this machine can keep of our promises.

use super::Context;
use super::answer::Answer;
use crate::engine::doctor::{self, Grade};
use clap::Args as ClapArgs;
use semel_core::Refusal;
use serde_json::json;

/// Say what this machine can keep of our promises.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let findings = doctor::look(&config)?;
    let lines = findings.iter().map(|finding| {
        let mark = match finding.grade {
            Grade::Ok => "ok     ",
            Grade::Less => "less   ",
            Grade::Missing => "MISSING",
        };
        format!("{mark} {:<12} {}", finding.name, finding.found)
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let json = json!({"schema": "semel.doctor/v1", "state": config.state, "findings": findings});
    Ok(Answer::new(text, json))
}
