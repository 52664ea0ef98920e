//! `semel volume`: open, end, list and free volumes by hand.

use super::Context;
use super::answer::{Answer, count, counts};
use crate::engine::daemon::admin::{How, opened_json};
use crate::engine::job::draft::{self, Keep};
use crate::engine::job::interrupt;
use crate::engine::look;
use crate::engine::proposal::Base;
use crate::engine::volume::{self, Source, Wanted};
use crate::wire::{self, Absent, Link};
use clap::{Subcommand, ValueEnum};
use semel_core::backend::{self, Backend};
use semel_core::ids::{Generation, JobId};
use semel_core::volume::{Durability, Owner, Role, Volume};
use semel_core::{Code, Refusal};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Open, end, list and free volumes by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Open a volume of a new generation, and print its token
    Open(Open),
    /// End a volume: its token is over, whatever it asks
    End(End),
    /// List volumes
    List {
        /// Only of this job
        #[arg(long)]
        job: Option<JobId>,
        /// Destroyed ones, too
        #[arg(long)]
        all: bool,
    },
    /// Show one volume
    Show {
        /// The generation
        generation: Generation,
    },
    /// Copy what an ended volume holds into a new directory; the volume stays as it is
    Salvage {
        /// The generation
        generation: Generation,
        /// The directory; there must be nothing of that name
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
    /// Free the files of an ended volume
    Destroy {
        /// The generation
        generation: Generation,
    },
}

#[derive(clap::Args, Debug)]
struct Open {
    /// The job
    job: JobId,
    /// What the volume is for
    #[arg(long, value_enum, default_value_t = RoleName::Draft)]
    role: RoleName,
    /// What its calls survive
    #[arg(long, value_enum, default_value_t = DurabilityName::Process)]
    durability: DurabilityName,
    /// What it lies on; what is chosen is said, with the reason
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    /// Put this generation of the job aside for the new one, whatever it holds; it is freed behind your back
    #[arg(long, value_name = "GENERATION")]
    recycle: Option<Generation>,
    /// Copy this directory into it, without what belongs to git
    #[arg(long, value_name = "DIR", conflicts_with = "git")]
    from: Option<PathBuf>,
    /// Put this commit into it, given by its full object id, in a private repository
    #[arg(long, value_name = "ID", requires = "repository")]
    git: Option<String>,
    /// The repository of the commit; only read
    #[arg(long, value_name = "DIR")]
    repository: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct End {
    /// The generation
    generation: Generation,
    /// It did not end by itself: keep it for salvage
    #[arg(long)]
    dirty: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    Draft,
    Cert,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityName {
    Process,
    Power,
    PowerBestEffort,
}

/// Names what a volume lies on.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum BackendName {
    /// The best that is to be had
    #[default]
    Auto,
    /// A plain directory
    Dir,
    /// A layer of its own over a sealed tree; needs the right to mount
    Overlay,
    /// Memory, with a hard quota; ends with the boot; needs the right to mount
    Tmpfs,
}

impl From<BackendName> for backend::Wanted {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Auto => Self::Auto,
            BackendName::Dir => Self::Dir,
            BackendName::Overlay => Self::Overlay,
            BackendName::Tmpfs => Self::Tmpfs,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    match args.command {
        Command::Open(args) => open(args, context),
        Command::End(args) => end(&args, context),
        Command::List { job, all } => list(job, all.into(), context),
        Command::Show { generation } => show(&generation, context),
        Command::Salvage { generation, to } => salvage(&generation, &to, context),
        Command::Destroy { generation } => destroy(&generation, context),
    }
}

fn open(args: Open, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let link = Link::new(Arc::new(config.clone()), Absent::Start);
    let interrupt = interrupt::watch()?;
    let engine = wire::command(config)?;
    let absolute = |place: Option<PathBuf>| {
        place
            .map(std::path::absolute)
            .transpose()
            .map_err(|e| Refusal::new(Code::BadInput, e.to_string()))
    };
    let (from, repository) = (absolute(args.from)?, absolute(args.repository)?);
    // Before a generation is opened, which would be left behind.
    if let Some(place) = from.as_ref().filter(|place| !place.is_dir()) {
        let why = "there is no such directory";
        return Err(Refusal::new(Code::NotFound, why).name(place.display().to_string()));
    }
    let durability = match args.durability {
        DurabilityName::Process => Durability::Process,
        DurabilityName::Power => Durability::Power,
        DurabilityName::PowerBestEffort => Durability::PowerBestEffort,
    };
    if let Some(generation) = &args.recycle {
        volume::recycle(&engine, &args.job, generation)?;
    }
    let opened = match (args.git, repository) {
        (Some(commit), Some(place)) => {
            let base = Base {
                repository: draft::repository("", &place)?,
                commit,
            };
            let keep = Keep {
                durability,
                owner: Owner::Operator,
                confinement: None,
                backend: args.backend.into(),
            };
            draft::open(&engine, &args.job, &base, keep, interrupt.cancel())?.opened
        }
        _ => volume::open(
            &engine,
            Wanted {
                job: args.job,
                role: match args.role {
                    RoleName::Draft => Role::Draft,
                    RoleName::Cert => Role::Cert,
                },
                owner: Owner::Operator,
                durability,
                confinement: None,
                backend: args.backend.into(),
                source: from.map_or(Source::Empty, Source::Dir),
            },
        )?,
    };
    let reached = link.reached()?;
    let text = format!(
        "generation {}\nattempt    {}\nbackend    {}: {}\ntoken      {}\nsocket     {}\n\nexport SEMEL_URL={}\nexport SEMEL_MCP_URL={}/mcp\nexport SEMEL_SOCKET={}\nexport SEMEL_TOKEN={}",
        opened.volume.generation,
        opened.volume.attempt,
        opened.choice.backend,
        opened.choice.why,
        opened.token,
        reached.socket.display(),
        reached.url,
        reached.url,
        shell_quoted(&reached.socket),
        opened.token,
    );
    Ok(Answer::new(text, opened_json(&opened, Some(&reached))))
}

/// Writes a path as one word of a shell.
fn shell_quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

fn end(args: &End, context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let how = if args.dirty { How::Dirty } else { How::Clean };
    let ended = volume::end_by_hand(&engine, &args.generation, how.end())?;
    Ok(Answer::new(
        line(&ended),
        json!({"schema": "semel.volume/v1", "volume": ended}),
    ))
}

/// Says which volumes are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Present,
    All,
}

impl From<bool> for Which {
    fn from(all: bool) -> Self {
        if all { Self::All } else { Self::Present }
    }
}

fn list(job: Option<JobId>, which: Which, context: &Context) -> Result<Answer, Refusal> {
    let volumes = look::volumes(context.config()?, job)?;
    let shown: Vec<&Volume> = volumes
        .iter()
        .filter(|volume| which == Which::All || volume.state != semel_core::volume::VolumeState::Destroyed)
        .collect();
    let text: Vec<String> = shown.iter().map(|volume| line(volume)).collect();
    Ok(Answer::new(
        text.join("\n"),
        json!({"schema": "semel.volumes/v1", "volumes": shown}),
    ))
}

fn show(generation: &Generation, context: &Context) -> Result<Answer, Refusal> {
    let found = look::volume(context.config()?, generation)?;
    let value = json!({"schema": "semel.volume/v1", "volume": found});
    Ok(Answer::new(facts(&found), value))
}

/// Shows all that a person asks of one volume, a line each; the rest is in the JSON.
fn facts(volume: &Volume) -> String {
    let state = match &volume.dirty {
        Some(why) => format!("{} ({why})", word(volume.state)),
        None => word(volume.state),
    };
    let mut lines = vec![
        ("generation", volume.generation.to_string()),
        ("job", volume.job.to_string()),
        ("attempt", format!("{} of the job", volume.attempt)),
        ("role", word(volume.role)),
        ("state", state),
        ("lies on", volume.backend.unwrap_or(Backend::Dir).to_string()),
        ("owner", word(volume.owner)),
        ("durability", word(volume.durability)),
        ("opened", volume.opened_at.to_string()),
    ];
    lines.extend(volume.ended_at.map(|at| ("ended", at.to_string())));
    lines.extend(volume.proposal.map(|digest| ("proposal", digest.to_string())));
    let lines = lines.iter().map(|(name, value)| format!("{name:<11} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Gives the word by which a value stands in JSON.
fn word(value: impl serde::Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}

fn salvage(generation: &Generation, to: &Path, context: &Context) -> Result<Answer, Refusal> {
    let to = std::path::absolute(to).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
    let (volume, salvaged) = volume::salvage(&wire::command(context.config()?)?, generation, &to)?;
    let mut text = format!(
        "{}, {} and {} of {} in {}",
        count(salvaged.files, "file"),
        count(salvaged.links, "link"),
        counts(salvaged.directories, "directory", "directories"),
        volume.generation,
        to.display()
    );
    for left in &salvaged.left_out {
        text.push_str(&format!("\nleft out {} ({})", left.path, left.why));
    }
    if salvaged.more_left_out > 0 {
        text.push_str(&format!("\nleft out {} more", salvaged.more_left_out));
    }
    let left = salvaged
        .left_out
        .iter()
        .map(|left| json!({"path": left.path, "why": left.why}));
    let json = json!({
        "schema": "semel.volume.salvaged/v1",
        "generation": volume.generation,
        "job": volume.job,
        "state": volume.state,
        "dirty": volume.dirty,
        "to": to.display().to_string(),
        "files": salvaged.files,
        "links": salvaged.links,
        "directories": salvaged.directories,
        "size_bytes": salvaged.bytes,
        "whole": salvaged.is_whole(),
        "left_out": left.collect::<Vec<_>>(),
        "more_left_out": salvaged.more_left_out,
    });
    let answer = Answer::new(text, json);
    Ok(Answer {
        exit: if salvaged.is_whole() {
            answer.exit
        } else {
            Code::UnknownState.exit()
        },
        ..answer
    })
}

fn destroy(generation: &Generation, context: &Context) -> Result<Answer, Refusal> {
    let (volume, kept) = volume::destroy(&wire::command(context.config()?)?, generation)?;
    if !kept.is_empty() {
        return Err(volume::partly("the named entries stay").names(kept));
    }
    Ok(Answer::new(
        line(&volume),
        json!({"schema": "semel.volume/v1", "volume": volume}),
    ))
}

fn line(volume: &Volume) -> String {
    let dirty = volume
        .dirty
        .as_deref()
        .map(|why| format!(" ({why})"))
        .unwrap_or_default();
    format!(
        "{} {} attempt {} {} {}{dirty} on {} since {}",
        volume.generation,
        volume.job,
        volume.attempt,
        word(volume.role),
        word(volume.state),
        volume.backend.unwrap_or(Backend::Dir),
        volume.ended_at.unwrap_or(volume.opened_at),
    )
}
