//! `semel conformance`: count real effects in fault cases against any gateway.

use super::answer::{Answer, err};
use super::{Context, Progress};
use crate::config;
use crate::engine::conformance::{self, Chosen, Keep, Running, Skips, Wanted};
use semel_core::{Code, Refusal};
use std::io::IsTerminal;

/// Count real effects in fault cases against any gateway.
///
/// The adapter says how the target is started, spoken to and looked at. Without --target it is started for the run, on
/// a disk of its own, so that it can be killed; with --target one that runs already is tried, and never killed.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A target that runs already: http://HOST:PORT
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// How it is spoken to: semel, naive, or a TOML file (see docs/conformance.md)
    #[arg(long, value_name = "NAME|FILE", default_value = "semel")]
    adapter: String,
    /// A server of tools that speaks MCP, in place of one over HTTP: a command, in which {dir} is a directory of the run, semel for this one, or http://HOST:PORT/PATH
    #[arg(long, value_name = "COMMAND|URL", conflicts_with_all = ["target", "adapter"])]
    mcp: Option<String>,
    /// Where the files of that server lie [default: they are looked for]
    #[arg(long, value_name = "DIR", requires = "mcp")]
    files: Option<std::path::PathBuf>,
    /// How often a case is played that chance has a hand in
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Do not fail for a case that cannot be played against this target
    #[arg(long)]
    allow_skips: bool,
    /// Keep the directory, and say where it is
    #[arg(long)]
    keep: bool,
}

/// Runs the command. The table is printed whatever it says; the exit status is `drill_failed` unless the score is full.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let progress = context.progress == Progress::Lines && std::io::stderr().is_terminal();
    let mut begin = |name: &'static str| {
        if progress {
            err(&format!("conformance: {name} …"));
        }
    };
    let keep = if args.keep { Keep::Yes } else { Keep::No };
    let skips = if args.allow_skips {
        Skips::Allowed
    } else {
        Skips::Fail
    };
    if let Some(server) = args.mcp {
        let wanted = conformance::mcp::Wanted {
            server,
            files: args.files,
            rounds: args.rounds,
            keep,
            path: config::search_path(),
        };
        return Ok(told(&conformance::mcp::run(wanted, &mut begin)?, skips));
    }
    let running = match &args.target {
        None => None,
        Some(url) => Some(Running {
            host: host_of(url)?,
            state: context.config()?.state,
        }),
    };
    let wanted = Wanted {
        adapter: match args.adapter.as_str() {
            "semel" => Chosen::Semel,
            "naive" => Chosen::Naive,
            file => Chosen::File(file.into()),
        },
        running,
        rounds: args.rounds,
        keep,
        path: config::search_path(),
    };
    Ok(told(&conformance::run(wanted, &mut begin)?, skips))
}

fn told(report: &conformance::Report, skips: Skips) -> Answer {
    let answer = Answer::new(report.text(), report.json(skips));
    let mut answer = match report.refusal(skips) {
        Some(refusal) => answer.refused(refusal),
        None => answer,
    };
    answer.exit = report.interrupted.unwrap_or(answer.exit);
    answer
}

/// Takes host and port out of a URL.
fn host_of(url: &str) -> Result<String, Refusal> {
    let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let host = host.filter(|host| {
        let port = host
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        port.is_some() && !host.contains('/')
    });
    host.map(str::to_owned)
        .ok_or_else(|| Refusal::new(Code::Usage, "--target takes http://HOST:PORT").name(url))
}
