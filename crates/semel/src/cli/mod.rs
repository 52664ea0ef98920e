//! The command line: one file a command, each `Args` and `run`.
//!
//! It parses, calls the engine, and prints; it touches neither store nor host.

mod answer;
mod approvals;
mod approve;
mod backup;
mod call;
mod cancel;
mod certify;
mod check;
mod compat;
mod conformance;
mod contract;
mod doctor;
mod drill;
mod gate;
mod gc;
mod generate;
mod key;
mod log;
mod mcp;
mod receipt;
mod record;
mod resolve;
mod restore;
mod retry;
mod run;
mod seal;
mod serve;
mod status;
mod token;
mod undo;
mod unseal;
mod volume;
mod worktree;

use crate::config::{Config, Reach};
use answer::{Answer, Format};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use semel_core::{Code, Refusal};
use std::path::PathBuf;
use std::process::ExitCode;

/// Retries that are safe: fresh volumes, effects once, proven results.
#[derive(Parser, Debug)]
#[command(
    name = "semel",
    version,
    about,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    /// State root; else from the configuration file, else XDG_STATE_HOME/semel
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Configuration file; else the user's, else /etc/semel/config.toml
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object to stdout
    #[arg(long, global = true)]
    json: bool,
    /// Say nothing on stderr but refusals
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::Args),
    Serve(serve::Args),
    Call(call::Args),
    Mcp(mcp::Args),
    Token(token::Args),
    Seal(seal::Args),
    Unseal(unseal::Args),
    Volume(volume::Args),
    Contract(contract::Args),
    Record(record::Args),
    Certify(certify::Args),
    Gate(gate::Args),
    Key(key::Args),
    Restore(restore::Args),
    Retry(retry::Args),
    Worktree(worktree::Args),
    Approvals(approvals::Args),
    Approve(approve::Args),
    Log(log::Args),
    Receipt(receipt::Args),
    Undo(undo::Args),
    Resolve(resolve::Args),
    Status(status::Args),
    Cancel(cancel::Args),
    Gc(gc::Args),
    Backup(backup::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Drill(drill::Args),
    Conformance(conformance::Args),
    Generate(generate::Args),
    #[command(name = "__probe", hide = true)]
    Probe(serve::ProbeArgs),
}

/// Says whether progress is wanted on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Lines as stages begin and end.
    Lines,
    /// Nothing.
    Quiet,
}

/// Is what every command is given beside its own arguments.
#[derive(Debug)]
pub(crate) struct Context {
    state: Option<PathBuf>,
    file: Option<PathBuf>,
    /// How the answer is wanted.
    pub(crate) format: Format,
    /// Whether progress is wanted.
    pub(crate) progress: Progress,
}

impl Context {
    /// Loads the configuration; commands that need none do not call it.
    ///
    /// # Errors
    /// `bad_config`.
    pub(crate) fn config(&self) -> Result<Config, Refusal> {
        Config::load(self.state.as_deref(), self.file.as_deref())
    }

    /// Merges it for a command that works without a state root, too.
    pub(crate) fn reach(&self) -> Result<Reach, Refusal> {
        Reach::load(self.state.as_deref(), self.file.as_deref())
    }
}

/// Gives the whole command line, for completions and man pages.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments, runs the command, prints, and gives the exit status.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let format = if cli.json { Format::Json } else { Format::Human };
    let progress = if cli.quiet {
        Progress::Quiet
    } else {
        Progress::Lines
    };
    let context = Context {
        state: cli.state,
        file: cli.config,
        format,
        progress,
    };
    answer::print(dispatch(cli.command, &context), format)
}

/// Answers help and version; everything else that clap finds is `usage`, never clap's exit 2, which scripts read as
/// `missing_identity`.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match answer::read(error.print()) {
            Ok(_) => ExitCode::SUCCESS,
            Err(lost) => answer::print(Err(lost), Format::Human),
        };
    }
    let format = if std::env::args_os().any(|arg| arg == "--json") {
        Format::Json
    } else {
        Format::Human
    };
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        // A person who names no command is shown which there are.
        if format == Format::Human && error.kind() != ErrorKind::MissingSubcommand {
            drop(error.print());
        }
        return answer::print(Err(Refusal::new(Code::Usage, "a command is missing")), format);
    }
    let text = error.render().to_string();
    // What is wrong, with clap's hints; its usage lines and its pointer to --help are what `next` says.
    let what: Vec<&str> = text
        .trim_start_matches("error: ")
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    answer::print(Err(Refusal::new(Code::Usage, what.join(" "))), format)
}

fn dispatch(command: Command, context: &Context) -> Result<Answer, Refusal> {
    match command {
        Command::Run(args) => run::run(args, context),
        Command::Serve(args) => serve::run(args, context),
        Command::Call(args) => call::run(args, context),
        Command::Mcp(args) => mcp::run(args, context),
        Command::Token(args) => token::run(args, context),
        Command::Seal(args) => seal::run(args, context),
        Command::Unseal(args) => unseal::run(args, context),
        Command::Volume(args) => volume::run(args, context),
        Command::Contract(args) => contract::run(args, context),
        Command::Record(args) => record::run(args, context),
        Command::Certify(args) => certify::run(args, context),
        Command::Gate(args) => gate::run(args, context),
        Command::Key(args) => key::run(args, context),
        Command::Restore(args) => restore::run(args, context),
        Command::Retry(args) => retry::run(args, context),
        Command::Worktree(args) => worktree::run(args, context),
        Command::Approvals(args) => approvals::run(args, context),
        Command::Approve(args) => approve::run(args, context),
        Command::Log(args) => log::run(args, context),
        Command::Receipt(args) => receipt::run(args, context),
        Command::Undo(args) => undo::run(args, context),
        Command::Resolve(args) => resolve::run(args, context),
        Command::Status(args) => status::run(args, context),
        Command::Cancel(args) => cancel::run(args, context),
        Command::Gc(args) => gc::run(args, context),
        Command::Backup(args) => backup::run(args, context),
        Command::Check(args) => check::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Drill(args) => drill::run(args, context),
        Command::Conformance(args) => conformance::run(args, context),
        Command::Generate(args) => generate::run(args, context),
        Command::Probe(args) => serve::run_probe(args),
    }
}
