//! Tokens that a job gives out to its parts: each for no more than the one that gives it out, and no longer than its
//! generation.

use super::Gateway;
use super::tool::Tool;
use crate::engine::daemon::admin::read;
use crate::engine::store;
use crate::engine::volume::mint_token;
use crate::limits;
use semel_core::digest::Sha256;
use semel_core::ids::Principal;
use semel_core::volume::{Lease, NewToken, Tools};
use semel_core::{Code, Refusal};
use semel_host::clock;
use serde::Deserialize;
use serde_json::{Value, json};

/// Asks for a narrower token.
///
/// # Shape
/// `{"tools":["read_file",…],"name":"reader"}`: both may be left out, not both at once. `name` makes a principal of its
/// own, whose keys are apart from its parent's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Narrower {
    tools: Option<Vec<String>>,
    name: Option<String>,
}

/// Names a part of a principal.
fn part(of: &Principal, name: &str) -> Result<Principal, Refusal> {
    if name.is_empty() || name.contains('/') || name.len() > limits::PART_NAME {
        let why = format!(
            "the name of a part is one word of at most {} characters",
            limits::PART_NAME
        );
        return Err(Refusal::new(Code::BadInput, why).name("name"));
    }
    let whole = format!("{of}/{name}");
    if whole.len() > Principal::LONGEST {
        let why = "the token is the part of a part of a part: their names are too long together";
        return Err(Refusal::new(Code::TooLarge, why).name(whole));
    }
    Principal::parse(whole)
}

impl Gateway {
    /// Finds what a token stands for that may give out others.
    ///
    /// # Errors
    /// `unauthorized`; `replay_conflict`, reason `stale_generation`; `store_unavailable`.
    pub(crate) fn gives_out(&self, parent: &str) -> Result<Lease, Refusal> {
        let lease = self.lease(Some(parent))?;
        lease.volume.live()?;
        Ok(lease)
    }

    /// Gives out a token that is narrower than the caller's own.
    ///
    /// # Errors
    /// `unauthorized`; `empty_body_not_replayable` where it asks for nothing; `bad_input`; `too_large` for a name too
    /// long; `not_found` for a tool that is none; `denied` where it would be for more; `replay_conflict`, reason `stale_generation`; `too_many`.
    ///
    /// # Durability
    /// When this returns, the token is recorded on the disk.
    pub(crate) fn narrower(&self, parent: &str, body: &[u8]) -> Result<Value, Refusal> {
        let lease = self.gives_out(parent)?;
        if semel_core::canonical::is_empty_request(body) {
            let why = "a token is asked for by its tools, its name, or both";
            return Err(Refusal::new(Code::EmptyBodyNotReplayable, why));
        }
        let asked: Narrower = read(body)?;
        let tools = match asked.tools {
            None => lease.tools.clone(),
            Some(names) => {
                for name in &names {
                    if self.upstreams.of_tool(name).is_none() {
                        Tool::parse(name)?;
                    }
                }
                Tools::Only(names.into_iter().collect())
            }
        };
        let principal = match asked.name {
            None => lease.principal.clone(),
            Some(name) => part(&lease.principal, &name)?,
        };
        let token = mint_token()?;
        let new = NewToken {
            generation: lease.volume.generation.clone(),
            parent_sha256: Sha256::of(parent.as_bytes()),
            token_sha256: Sha256::of(token.as_bytes()),
            principal,
            tools,
            at: clock::now(),
        };
        self.open_for_effects()?;
        self.engine.journal.issue_token(new.clone()).map_err(store)?;
        let tools = match &new.tools {
            Tools::All => Value::Null,
            Tools::Only(names) => json!(names),
        };
        Ok(json!({
            "schema": "semel.token/v1",
            "token": token,
            "principal": new.principal,
            "tools": tools,
            "job": lease.volume.job,
            "generation": new.generation,
        }))
    }
}
