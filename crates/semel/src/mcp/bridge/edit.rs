//! What the gateway says of itself, as it is at the end of a bridge: nobody there needs a key.

use crate::engine::gateway::tool::KEY_ARGUMENT;
use crate::mcp::serve::EXTENSION;
use semel_core::upstream::OWN_KEY;
use serde_json::{Value, json};

const INSTRUCTIONS: &str = "Tools for the files and commands of one volume. A call has its effect once, whatever breaks on \
     the way: send it as it is, without a key. If an answer did not arrive, send the very same call again; an answer with \
     replayed true comes from the record, and nothing was done again.";

/// Says which answer is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// That of `initialize`.
    Handshake,
    /// That of `server/discover`.
    Discovery,
    /// That of `tools/list`.
    List,
}

impl Edit {
    /// Finds it by its method.
    pub(super) fn of(method: &str) -> Option<Self> {
        match method {
            "initialize" => Some(Self::Handshake),
            "server/discover" => Some(Self::Discovery),
            "tools/list" => Some(Self::List),
            _ => None,
        }
    }

    /// Changes a result.
    pub(super) fn apply(self, result: &mut Value) {
        let of_keys = match self {
            Self::Handshake => "/capabilities/experimental",
            Self::Discovery => "/capabilities/extensions",
            Self::List => return list(result),
        };
        if let Some(of_keys) = result.pointer_mut(of_keys)
            && of_keys.get(EXTENSION).is_some()
        {
            of_keys[EXTENSION]["required"] = json!(false);
        }
        if result.get("instructions").is_some() {
            result["instructions"] = json!(INSTRUCTIONS);
        }
    }
}

/// Takes the key from the arguments: a model that sees it makes keys, and a new one for each retry.
fn list(result: &mut Value) {
    let tools = result.get_mut("tools").and_then(Value::as_array_mut);
    for tool in tools.into_iter().flatten() {
        // Of a server behind the gateway it may be an argument like any other.
        if tool.get("_meta").is_some_and(|meta| meta.get(OWN_KEY).is_some()) {
            continue;
        }
        let properties = tool.pointer_mut("/inputSchema/properties");
        if let Some(properties) = properties.and_then(Value::as_object_mut) {
            properties.remove(KEY_ARGUMENT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_of_keys() {
        let mut listed = crate::mcp::tools();
        assert!(listed.to_string().contains(KEY_ARGUMENT));
        list(&mut listed);
        let tools = listed["tools"].as_array().unwrap();
        assert_eq!(tools.len(), 15);
        for tool in tools {
            assert!(!tool["inputSchema"].to_string().contains(KEY_ARGUMENT), "{tool}");
        }
        let mut said =
            json!({"instructions": "x", "capabilities": {"experimental": {EXTENSION: {"required": true}}}});
        Edit::Handshake.apply(&mut said);
        assert_eq!(said["capabilities"]["experimental"][EXTENSION]["required"], false);
        assert!(said["instructions"].as_str().unwrap().contains("without a key"));
        // What is not there is not made.
        let mut bare = json!({});
        Edit::Discovery.apply(&mut bare);
        Edit::List.apply(&mut bare);
        assert_eq!(bare, json!({}));
    }
}
