//! `semel mcp`: a server at standard input and output for agents that send no keys.

use super::answer::{Answer, err};
use super::{Context, Progress};
use crate::engine::bridge::Says;
use crate::engine::bridge::access::{self, Asked};
use crate::engine::bridge::stdio::{self, Output, Writing};
use crate::mcp::bridge::{Ended, Server};
use clap::ValueEnum;
use semel_core::ids::JobId;
use semel_core::mcp::spool::Reissue;
use semel_core::volume::Durability;
use semel_core::{Code, Refusal};
use std::path::PathBuf;
use std::sync::Arc;

/// Serve the tools of a volume at standard input and output, to agents that speak MCP and send no keys.
///
/// Every call that changes something gets a key of its own, which is kept on the disk until the answer was delivered: a
/// call is made once, whoever is killed meanwhile. Inside of a job it takes SEMEL_TOKEN and SEMEL_SOCKET or SEMEL_URL;
/// elsewhere --job opens a volume, and starts a daemon where none runs. Configuration of agents: docs/agents/.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Open a volume for this job, or go on in the one that was opened so before
    #[arg(long, value_name = "JOB", conflicts_with = "token_file")]
    job: Option<JobId>,
    /// Copy this directory into a volume that is opened, without what belongs to git
    #[arg(long, value_name = "DIR", requires = "job")]
    from: Option<PathBuf>,
    /// What the calls of a volume that is opened survive
    #[arg(long, value_enum, default_value_t = DurabilityName::Process, requires = "job")]
    durability: DurabilityName,
    /// File that holds the volume's token [env: SEMEL_TOKEN holds the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The daemon's URL [env: SEMEL_URL] [default: its own socket]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The daemon's Unix socket for agents [env: SEMEL_SOCKET]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What becomes of a call that is identical to one whose answer was never delivered
    #[arg(long, value_enum, default_value_t = ReissueName::Attach)]
    reissue: ReissueName,
    /// Where it keeps the keys of calls that are not answered [default: bridge/ in the state root]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityName {
    Process,
    Power,
    PowerBestEffort,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReissueName {
    /// It is that call: it gets its answer, and has no second effect
    Attach,
    /// It is refused, and told what came of that call
    Ask,
    /// It is another call
    Execute,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let fail = |e: std::io::Error| Refusal::new(Code::Internal, format!("no runtime: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(fail)?;
    let says: Says = match context.progress {
        Progress::Lines => Arc::new(err),
        Progress::Quiet => Arc::new(|_: &str| {}),
    };
    let asked = Asked {
        url: args.url,
        socket: args.socket,
        token_file: args.token_file,
        job: args.job,
        from: args.from,
        durability: match args.durability {
            DurabilityName::Process => Durability::Process,
            DurabilityName::Power => Durability::Power,
            DurabilityName::PowerBestEffort => Durability::PowerBestEffort,
        },
        spool: args.spool,
        reissue: match args.reissue {
            ReissueName::Attach => Reissue::Attach,
            ReissueName::Ask => Reissue::Ask,
            ReissueName::Execute => Reissue::Execute,
        },
        says,
    };
    let served = runtime.block_on(serve(asked, context));
    // Nobody waits for a thread that reads what does not come any more.
    runtime.shutdown_background();
    served.map(|()| Answer::printed())
}

async fn serve(asked: Asked, context: &Context) -> Result<(), Refusal> {
    let ended = signals()?;
    let bridge = Arc::new(access::bridge(asked, || context.config()).await?);
    let told = bridge.clone();
    let output = Output::start(std::io::stdout(), move |request, writing| match writing {
        Writing::Begins => told.writes(request),
        Writing::Whole(unsettled) => told.written(request, unsettled),
    })?;
    let input = stdio::reader(std::io::stdin())?;
    Server::new(bridge, output).serve(input, ended).await;
    Ok(())
}

/// Hears of SIGTERM, SIGINT and SIGHUP from now on.
fn signals() -> Result<Ended, Refusal> {
    use tokio::signal::unix::{SignalKind, signal};
    let fail = |e: std::io::Error| Refusal::new(Code::Internal, format!("no signals: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(fail)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(fail)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(fail)?;
    Ok(Box::pin(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }))
}
