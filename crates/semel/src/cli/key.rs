//! `semel key`: make and show the signing key, and say whose certificates this host takes.

use super::Context;
use super::answer::Answer;
use super::run::say;
use crate::config::Config;
use crate::engine::signing;
use clap::{Args as ClapArgs, Subcommand};
use semel_core::Refusal;
use semel_core::certificate::PublicKey;
use serde_json::json;
use std::path::PathBuf;

/// Make and show the signing key; trust other keys.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a new Ed25519 key in the state root; never over an existing one
    New(New),
    /// Print the public key
    Show(Show),
    /// Trust a key on this host, for gate policies that name none; without a key, list the trusted ones
    Trust(Trust),
}

#[derive(ClapArgs, Debug)]
struct New {
    /// Take this private key, PKCS#8 or OpenSSH, instead of making one
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
struct Trust {
    /// The public key: PEM, an ssh-ed25519 line, 64 hexadecimal digits, or a file that holds one
    #[arg(value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// Trust it no longer
    #[arg(long, requires = "key")]
    remove: bool,
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
        Command::New(new) => {
            let public = match &new.from {
                Some(file) => signing::import(&config, file)?,
                None => signing::new(&config)?,
            };
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
        Command::Trust(trust) => trusting(&trust, &config, context),
    }
}

fn trusting(trust: &Trust, config: &Config, context: &Context) -> Result<Answer, Refusal> {
    if let Some(given) = &trust.key {
        let key = signing::public_key(given)?;
        // A file of another key that is damaged is in nobody's way here: this may be what mends it.
        let was = signing::trusted(config).is_ok_and(|keys| keys.contains(&key));
        if trust.remove {
            signing::distrust(config, &key)?;
        } else {
            signing::trust(config, &key)?;
        }
        let now = match (was, trust.remove) {
            (false, false) => "is trusted",
            (true, false) => "was trusted before",
            (true, true) => "is trusted no longer",
            (false, true) => "was not trusted",
        };
        say(context, &format!("{} {now}", key.ssh_fingerprint()));
    }
    let keys = signing::trusted(config)?;
    let lines: Vec<String> = keys
        .iter()
        .map(|key| format!("{} {}", key.ssh_fingerprint(), key.to_ssh()))
        .collect();
    let facts: Vec<_> = keys.iter().map(facts).collect();
    let json = json!({ "schema": "semel.trusted/v1", "keys": facts });
    Ok(Answer::new(lines.join("\n"), json))
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
