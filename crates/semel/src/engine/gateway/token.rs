//! Tokens that a job gives out to its parts: each for no more than the one that gives it out, and no longer than its
//! generation.

use super::Gateway;
use super::tool::Tool;
use crate::engine::store;
use crate::engine::volume::mint_token;
use semel_core::digest::Sha256;
use semel_core::ids::Principal;
use semel_core::volume::{NewToken, Tools};
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

impl Gateway {
    /// Gives out a token that is narrower than the caller's own.
    ///
    /// # Errors
    /// `unauthorized`; `empty_body_not_replayable` where it asks for nothing; `bad_input`; `not_found` for a tool that
    /// is none; `denied` where it would be for more; `replay_conflict`, reason `stale_generation`; `too_many`.
    ///
    /// # Durability
    /// When this returns, the token is recorded on the disk.
    pub(crate) fn narrower(&self, parent: &str, body: &[u8]) -> Result<Value, Refusal> {
        let lease = self.lease(Some(parent))?;
        lease.volume.live()?;
        if semel_core::canonical::is_empty_request(body) {
            let why = "a token is asked for by its tools, its name, or both";
            return Err(Refusal::new(Code::EmptyBodyNotReplayable, why));
        }
        let asked: Narrower =
            serde_json::from_slice(body).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
        let tools = match asked.tools {
            None => lease.tools.clone(),
            Some(names) => {
                for name in &names {
                    Tool::parse(name)?;
                }
                Tools::Only(names.into_iter().collect())
            }
        };
        let principal = match asked.name {
            None => lease.principal.clone(),
            Some(name) if !name.is_empty() && !name.contains('/') => {
                Principal::parse(format!("{}/{name}", lease.principal))?
            }
            Some(name) => {
                return Err(Refusal::new(Code::BadInput, "the name of a part is one word").name(name));
            }
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
