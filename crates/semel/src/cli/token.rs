//! `semel token`: give out a narrower token.

use super::Context;
use super::answer::Answer;
use super::call::{self, Access};
use clap::Args as ClapArgs;
use semel_core::{Code, Refusal};
use serde_json::{Map, Value, json};

/// Give out a token for a part of a job: for no more tools than the own one, and no longer than its generation.
///
/// The own token comes from --token-file, --token-stdin, or the variable SEMEL_TOKEN that a job's processes have.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The tools that it is for, such as read_file,grep [default: those of the own token]
    #[arg(long, value_name = "TOOLS", value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// A name for who gets it: its keys are apart from those of the own token
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let mut asked = Map::new();
    if let Some(tools) = args.tools {
        asked.insert("tools".to_owned(), json!(tools));
    }
    if let Some(name) = args.name {
        asked.insert("name".to_owned(), json!(name));
    }
    if asked.is_empty() {
        return Err(Refusal::new(Code::Usage, "give --tools, --name, or both"));
    }
    let body = Value::Object(asked).to_string().into_bytes();
    let answer = call::send(&args.access, context, "/v1/tokens", Vec::new(), body)?;
    let token = answer["token"].as_str().unwrap_or_default().to_owned();
    Ok(Answer::new(token, answer))
}
