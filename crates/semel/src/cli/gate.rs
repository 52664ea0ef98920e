//! `semel gate`: check that a certificate covers exactly the tree to be merged.

use super::Context;
use super::answer::{Answer, err};
use crate::engine::gate::{self, Ask, PolicySource};
use crate::engine::signing;
use crate::wire;
use clap::Args as ClapArgs;
use semel_core::gate::{Target, Verdict};
use semel_core::{Refusal, RelPath};
use serde_json::json;
use std::path::PathBuf;

/// Check that a certificate covers exactly the tree to be merged.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The certificate, a .dsse.json file
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// The repository that holds the candidate
    #[arg(long, value_name = "DIR", default_value = ".")]
    repository: PathBuf,
    /// The candidate commit, by its full object id
    #[arg(long, value_name = "ID")]
    commit: String,
    /// The base commit, by its full object id: what the certificate must have been compared with, and where the policy
    /// comes from unless --policy is given
    #[arg(long, value_name = "ID")]
    base: Option<String>,
    /// Where the policy lies in the base commit
    #[arg(long, value_name = "PATH", default_value = ".semel/gate.toml")]
    policy_path: String,
    /// Take the policy from this file of the host, which lies in no worktree
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The install record that the certificate names
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Record that the certificate is used for this merge; any other use of it is refused from then on
    #[arg(long, requires = "target")]
    consume: bool,
    /// The ref that is merged into, such as refs/heads/main
    #[arg(long, value_name = "REF", requires = "consume")]
    target: Option<String>,
    /// Print a table in Markdown
    #[arg(long)]
    markdown: bool,
    /// In GitHub Actions: also write the step's summary and outputs, and annotations to stderr
    #[arg(long)]
    github: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let policy = match (args.policy, &args.base) {
        (Some(file), _) => PolicySource::File(file),
        (None, Some(_)) => PolicySource::Base {
            path: RelPath::parse(args.policy_path.as_bytes())?,
        },
        (None, None) => return Err(gate::no_policy()),
    };
    let target = args.target.as_deref().map(Target::parse).transpose()?;
    let ask = Ask {
        certificate: args.certificate,
        repository: args.repository,
        commit: args.commit,
        base: args.base,
        policy,
        record: args.record,
        trusted: signing::trusted(&config)?,
        revoked: config.revoked_keys.clone(),
    };
    let judged = gate::judge(&ask, &config.path)?;
    let verdict = match target.filter(|_| args.consume) {
        Some(target) => judged.consume(&wire::command(config)?, &target)?,
        None => judged.verdict(),
    };
    if args.github {
        gate::tell_github(&verdict, &crate::config::github())?;
        err(verdict.to_annotations().trim_end());
    }
    Ok(answer(&verdict, args.markdown))
}

fn answer(verdict: &Verdict, markdown: bool) -> Answer {
    let json = json!({ "schema": "semel.gate/v1", "verdict": verdict });
    let text = if markdown {
        verdict.to_markdown()
    } else {
        lines(verdict)
    };
    let answer = Answer::new(text.trim_end(), json);
    match verdict.refusal() {
        None => answer,
        Some(refusal) => answer.refused(refusal),
    }
}

/// Shows what a certificate says, which may be anybody's, on one line.
fn plain(text: &str) -> String {
    semel_core::path::shown(text.as_bytes())
}

fn lines(verdict: &Verdict) -> String {
    let head = if verdict.pass {
        "pass: the certificate covers"
    } else {
        "refused: the certificate does not cover"
    };
    let mut text = format!("{head} tree {} of commit {}\n", verdict.tree, verdict.commit);
    for check in &verdict.checks {
        let mark = if check.ok { "ok     " } else { "REFUSED" };
        text.push_str(&format!("  {mark} {}", check.label()));
        if !check.ok {
            let (expected, actual) = (plain(&check.expected), plain(&check.actual));
            text.push_str(&format!(": expected {expected}, got {actual}"));
        }
        if let Some(why) = &check.why {
            text.push_str(&format!(" ({})", plain(why)));
        }
        text.push('\n');
    }
    text
}
