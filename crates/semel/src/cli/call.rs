//! `semel call`: call one tool in an open volume.

use super::answer::{Answer, err};
use super::{Context, Progress};
use crate::client::{self, Ask, Place};
use crate::config;
use crate::engine::gateway::tool::{Kind, Tool};
use crate::engine::look::{mint_key, read_input};
use crate::limits;
use crate::wire::{Absent, Link};
use semel_core::{Code, Refusal};
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Call one tool in an open volume.
///
/// The arguments of every tool are in docs/tools.md: semel call read_file -a path=src/main.rs -a limit=20
///
/// The token comes from --token-file, --token-stdin, or the variable SEMEL_TOKEN that a job's processes have.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The tool, such as write_file
    tool: String,
    /// The arguments: JSON, @FILE, or - for standard input; needed unless -a gives them, since no tool is called with none
    arguments: Option<String>,
    /// One argument, such as path=src/main.rs; again for another, or for one more of a list
    #[arg(short, long, value_name = "NAME=VALUE", conflicts_with = "arguments")]
    arg: Vec<String>,
    /// The idempotency key; a new one is made, and printed, for a tool that has an effect
    #[arg(short, long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Seconds to wait for the same call that runs already
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

/// Says where the daemon is, and with which token it is asked.
#[derive(clap::Args, Debug)]
pub(super) struct Access {
    /// File that holds the volume's token
    #[arg(long, value_name = "FILE", conflicts_with = "token_stdin")]
    token_file: Option<PathBuf>,
    /// Read the volume's token from standard input
    #[arg(long)]
    token_stdin: bool,
    /// The daemon's URL [env: SEMEL_URL] [default: its own socket]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

fn stdin() -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(limits::BODY as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Refusal::new(Code::IoFailed, format!("cannot read standard input: {e}")))?;
    Ok(bytes)
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let tool = Tool::parse(&args.tool)?;
    if args.access.token_stdin && args.arguments.as_deref() == Some("-") {
        return Err(Refusal::new(
            Code::Usage,
            "standard input cannot be both token and arguments",
        ));
    }
    let body = match args.arguments.as_deref() {
        None if args.arg.is_empty() => {
            let why =
                "no arguments: give them as JSON, @FILE or -, or each by -a NAME=VALUE, such as -a path=.";
            return Err(Refusal::new(Code::Usage, why));
        }
        None => tool.spelt(&args.arg)?.to_string().into_bytes(),
        Some("-") => stdin()?,
        Some(text) => match text.strip_prefix('@') {
            Some(file) => read_input(Path::new(file), limits::BODY as u64)?,
            None => text.as_bytes().to_vec(),
        },
    };
    let mut headers = Vec::new();
    let key = match (&args.key, tool.kind()) {
        (Some(key), _) => Some(key.clone()),
        (None, Kind::Mutation | Kind::Person) => {
            let key = mint_key()?;
            if context.progress == Progress::Lines {
                err(&format!("key: {key}"));
            }
            Some(key)
        }
        (None, Kind::Read | Kind::Journal) => None,
    };
    if let Some(key) = key {
        let quoted = key.replace('\\', "\\\\").replace('"', "\\\"");
        headers.push(("idempotency-key", format!("\"{quoted}\"")));
    }
    if let Some(seconds) = args.wait {
        headers.push(("prefer", format!("wait={seconds}")));
    }
    let path = format!("/v1/tools/{}", tool.name());
    let answer = send(&args.access, context, &path, headers, body)?;
    Ok(Answer::new(pretty(&answer), answer))
}

/// Sends a request as a job.
///
/// # Errors
/// `unauthorized` where no token is given; `daemon_unreachable`; the daemon's refusal.
pub(super) fn send(
    access: &Access,
    context: &Context,
    path: &str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
) -> Result<Value, Refusal> {
    let (env_url, env_token) = config::job_access();
    let place = access.url.clone().or(env_url).map(Place::of_url).transpose()?;
    let token = match (&access.token_file, access.token_stdin, env_token) {
        (Some(file), _, _) => text(read_input(file, 4096)?)?,
        (None, true, _) => text(stdin()?)?,
        (None, false, Some(token)) => token,
        (None, false, None) => {
            let why = "no token: give --token-file or --token-stdin, or set SEMEL_TOKEN";
            return Err(Refusal::new(Code::Unauthorized, why));
        }
    };
    let ask = Ask {
        method: "POST",
        path: path.to_owned(),
        token: &token,
        headers,
        body,
        within: None,
        until: None,
    };
    match place {
        Some(place) => client::ask(&place, &ask).map_err(client::Unanswered::into_refusal)?,
        None => Link::new(Arc::new(context.config()?), Absent::Start).job(&ask),
    }
}

fn text(bytes: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(bytes)
        .map(|text| text.trim().to_owned())
        .map_err(|_| Refusal::new(Code::Unauthorized, "the token is not text"))
}

fn pretty(answer: &Value) -> String {
    serde_json::to_string_pretty(answer).unwrap_or_else(|_| answer.to_string())
}
