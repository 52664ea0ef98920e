//! `semel generate`: print what is made from the binary's own tables.

use super::Context;
use super::answer::Answer;
use crate::engine::gateway::crash::CrashPoint;
use crate::{http, limits, mcp};
use clap::Subcommand;
use semel_core::{Code, Refusal};
use serde_json::json;

/// Print completions, man pages, the OpenAPI document, and the tables that the documentation is made from.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The man page of semel, or of one of its commands
    Man {
        /// The command, such as volume
        command: Option<String>,
    },
    /// The OpenAPI document of the app listener
    Openapi,
    /// The tools as the Model Context Protocol lists them
    McpTools,
    /// The table of all bounds
    Limits,
    /// The table of all refusals
    Errors,
    /// The points at which the daemon can be killed for a test
    CrashPoints,
    /// The routes of the app listener
    Routes,
}

/// Runs the command.
pub(crate) fn run(args: Args, _context: &Context) -> Result<Answer, Refusal> {
    match args.what {
        What::Completions { shell } => {
            let mut bytes = Vec::new();
            clap_complete::generate(shell, &mut super::command(), "semel", &mut bytes);
            printed("completions", bytes)
        }
        What::Man { command } => man(command.as_deref()),
        What::Openapi => {
            let document = http::openapi();
            let text = serde_json::to_string_pretty(&document)
                .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
            Ok(Answer::new(text, document))
        }
        What::McpTools => {
            let tools = mcp::tools();
            let text = serde_json::to_string_pretty(&tools)
                .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
            Ok(Answer::new(text, tools))
        }
        What::Limits => Ok(limits_table()),
        What::Errors => Ok(errors_table()),
        What::CrashPoints => {
            let names: Vec<&str> = CrashPoint::all().into_iter().map(CrashPoint::name).collect();
            let json = json!({"schema": "semel.crash-points/v1", "points": names});
            Ok(Answer::new(names.join("\n"), json))
        }
        What::Routes => {
            let routes: Vec<String> = http::ROUTES
                .iter()
                .map(|(method, path)| format!("{method} {path}"))
                .collect();
            let json = json!({"schema": "semel.routes/v1", "routes": routes});
            Ok(Answer::new(routes.join("\n"), json))
        }
    }
}

fn printed(what: &str, bytes: Vec<u8>) -> Result<Answer, Refusal> {
    let text = String::from_utf8(bytes).map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
    let text = text.trim_end().to_owned();
    Ok(Answer::new(
        text.clone(),
        json!({"schema": format!("semel.{what}/v1"), "text": text}),
    ))
}

fn man(command: Option<&str>) -> Result<Answer, Refusal> {
    let mut whole = super::command();
    whole.build();
    let page = match command {
        None => whole,
        Some(name) => whole
            .get_subcommands()
            .find(|command| command.get_name() == name && !command.is_hide_set())
            .cloned()
            .ok_or_else(|| Refusal::new(Code::Usage, "there is no such command").name(name))?,
    };
    let mut bytes = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut bytes)
        .map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
    printed("man", bytes)
}

fn limits_table() -> Answer {
    let mut text = String::from(
        "# Limits\n\nMade by `semel generate limits`; every bound stands in one table of the binary.\n\n| bound | value | beyond it |\n|---|---|---|\n",
    );
    for limit in limits::ALL {
        text.push_str(&format!(
            "| `{}` | {} | {} |\n",
            limit.name, limit.value, limit.beyond
        ));
    }
    let all: Vec<_> = limits::ALL
        .iter()
        .map(|limit| json!({"name": limit.name, "value": limit.value, "beyond": limit.beyond}))
        .collect();
    Answer::new(
        text.trim_end(),
        json!({"schema": "semel.limits/v1", "limits": all}),
    )
}

fn errors_table() -> Answer {
    let mut text = String::from(
        "# Errors\n\nMade by `semel generate errors`; one page each in this directory.\n\n| exit | code | HTTP | MCP | retry | meaning |\n|---|---|---|---|---|---|\n",
    );
    let word = |code: &Code| json!(code.retry()).as_str().unwrap_or_default().to_owned();
    for code in Code::ALL {
        text.push_str(&format!(
            "| {} | [`{code}`]({code}.md) | {} | {} | {} | {} |\n",
            code.exit(),
            code.http(),
            code.rpc(),
            word(code),
            code.meaning()
        ));
    }
    let all: Vec<_> = Code::ALL
        .iter()
        .map(|code| {
            json!({"code": code, "exit": code.exit(), "http": code.http(), "mcp": code.rpc(),
                "retry": code.retry(), "meaning": code.meaning(), "next": code.next()})
        })
        .collect();
    Answer::new(
        text.trim_end(),
        json!({"schema": "semel.errors/v1", "errors": all}),
    )
}
