//! `semel key`: make and show the signing key.

use super::Context;
use super::answer::Answer;
use crate::engine::signing;
use clap::{Args as ClapArgs, Subcommand};
use semel_core::Refusal;
use semel_core::certificate::PublicKey;
use serde_json::json;

/// Make and show the signing key.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a new Ed25519 key in the state root; never over an existing one
    New,
    /// Print the public key
    Show(Show),
}

#[derive(ClapArgs, Debug)]
struct Show {
    /// Print it as an OpenSSH line
    #[arg(long, conflicts_with = "policy")]
    ssh: bool,
    /// Print a gate policy that trusts this key, and nothing else that is not the default
    #[arg(long)]
    policy: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    match args.command {
        Command::New => {
            let public = signing::new(&config)?;
            Ok(Answer::new(public.to_pem().trim_end(), facts(&public)))
        }
        Command::Show(show) => {
            let public = signing::load(&config)?.public();
            let text = if show.ssh {
                public.to_ssh()
            } else if show.policy {
                policy(&public)
            } else {
                public.to_pem()
            };
            Ok(Answer::new(text.trim_end(), facts(&public)))
        }
    }
}

fn facts(public: &PublicKey) -> serde_json::Value {
    json!({
        "schema": "semel.key/v1",
        "key_id": public.id().as_str(),
        "ssh_fingerprint": public.ssh_fingerprint().as_str(),
        "pem": public.to_pem(),
        "ssh": public.to_ssh(),
    })
}

fn policy(public: &PublicKey) -> String {
    format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"any\"  # better: the recipe that a certificate names\n",
        public.to_ssh().trim()
    )
}
