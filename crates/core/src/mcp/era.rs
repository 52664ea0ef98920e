//! The revisions of the protocol that are spoken here, and which one a request speaks.
//!
//! A request is judged by itself: what an earlier one said, on this connection or another, decides nothing.

use super::rpc::{self, Error};
use serde_json::{Map, Value, json};

/// The member of `_meta` that names the revision.
pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` that lists what the client can do.
pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The member of `_meta` that names the client.
pub const CLIENT: &str = "io.modelcontextprotocol/clientInfo";
/// The member of `_meta` that names the server.
pub const SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// Is a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Era {
    /// With a handshake.
    V2025_06_18,
    /// With a handshake.
    V2025_11_25,
    /// Without: every request says all.
    V2026_07_28,
}

impl Era {
    /// Lists them, the newest first.
    pub const ALL: [Era; 3] = [Era::V2026_07_28, Era::V2025_11_25, Era::V2025_06_18];
    /// The newest with a handshake.
    pub const NEWEST_LEGACY: Era = Era::V2025_11_25;

    /// Gives its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Finds the one of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|era| era.name() == name)
    }

    /// Says whether it has no handshake: every request says all.
    #[must_use]
    pub const fn is_modern(self) -> bool {
        match self {
            Self::V2025_06_18 | Self::V2025_11_25 => false,
            Self::V2026_07_28 => true,
        }
    }
}

/// Says what came beside a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared<'a> {
    /// There is nothing beside it: it came on a line.
    Nowhere,
    /// The header `MCP-Protocol-Version`, where there is one.
    Header(Option<&'a str>),
}

/// Says which revision a request speaks.
///
/// # Errors
/// `-32602` where a request of the newest kind lacks what it has to say of itself; `-32020` where header and body
/// disagree; `-32022` for a revision that is not spoken here.
///
/// # Source
/// Revision 2026-07-28, "Versioning and Compatibility" and "Streamable HTTP", sections on the version header.
pub fn of(method: &str, params: &Map<String, Value>, declared: Declared<'_>) -> Result<Era, Error> {
    let meta = params.get("_meta").and_then(Value::as_object);
    let said = meta.and_then(|meta| meta.get(VERSION));
    let header = match declared {
        Declared::Nowhere => None,
        Declared::Header(header) => header,
    };
    let Some(said) = said else {
        return match (header.map(|name| (name, Era::parse(name))), method) {
            // A handshake names its revision itself.
            (None, _) => Ok(Era::V2025_06_18),
            (Some((_, Some(era))), _) if !era.is_modern() => Ok(era),
            (Some((_, Some(_))), _) => Err(lacking(VERSION)),
            (Some(_), "initialize") => Ok(Era::V2025_06_18),
            (Some((name, None)), _) => Err(unsupported(name)),
        };
    };
    let Some(said) = said.as_str() else {
        return Err(lacking(VERSION));
    };
    match declared {
        Declared::Header(Some(header)) if header != said => {
            let why = format!("MCP-Protocol-Version says {header:?}, and the body {said:?}");
            return Err(Error::new(rpc::HEADER_MISMATCH, why));
        }
        Declared::Header(None) if Era::parse(said).is_none_or(Era::is_modern) => {
            let why = "the header MCP-Protocol-Version is missing";
            return Err(Error::new(rpc::HEADER_MISMATCH, why));
        }
        Declared::Header(_) | Declared::Nowhere => {}
    }
    let era = Era::parse(said).ok_or_else(|| unsupported(said))?;
    let declares = meta.and_then(|meta| meta.get(CAPABILITIES));
    if era.is_modern() && !declares.is_some_and(Value::is_object) {
        return Err(lacking(CAPABILITIES));
    }
    Ok(era)
}

fn lacking(name: &str) -> Error {
    Error::new(rpc::INVALID_PARAMS, format!("params._meta has no {name:?}"))
}

fn unsupported(requested: &str) -> Error {
    let supported: Vec<&str> = Era::ALL.into_iter().map(Era::name).collect();
    let requested: String = requested.chars().take(80).collect();
    Error::new(rpc::UNSUPPORTED_VERSION, "the protocol version is not supported")
        .data(json!({"supported": supported, "requested": requested}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(members: Value) -> Map<String, Value> {
        let mut params = Map::new();
        params.insert("_meta".to_owned(), members);
        params
    }

    #[test]
    fn each_request_says_its_own_revision() {
        let whole = meta(json!({VERSION: "2026-07-28", CAPABILITIES: {}}));
        let bare = meta(json!({VERSION: "2026-07-28"}));
        let odd = meta(json!({VERSION: 7, CAPABILITIES: {}}));
        let old = meta(json!({VERSION: "2025-11-25"}));
        let new = meta(json!({VERSION: "2030-01-01", CAPABILITIES: {}}));
        let none = Map::new();
        let line = Declared::Nowhere;
        let head = |name| Declared::Header(Some(name));
        let cases = [
            (&whole, head("2026-07-28"), Ok(Era::V2026_07_28)),
            (&whole, line, Ok(Era::V2026_07_28)),
            (&whole, Declared::Header(None), Err(rpc::HEADER_MISMATCH)),
            (&whole, head("2025-11-25"), Err(rpc::HEADER_MISMATCH)),
            (&bare, head("2026-07-28"), Err(rpc::INVALID_PARAMS)),
            (&odd, head("2026-07-28"), Err(rpc::INVALID_PARAMS)),
            (&none, head("2026-07-28"), Err(rpc::INVALID_PARAMS)),
            (&new, head("2030-01-01"), Err(rpc::UNSUPPORTED_VERSION)),
            (&new, line, Err(rpc::UNSUPPORTED_VERSION)),
            (&new, head("2026-07-28"), Err(rpc::HEADER_MISMATCH)),
            (&none, head("1999-01-01"), Err(rpc::UNSUPPORTED_VERSION)),
            (&none, head("2025-11-25"), Ok(Era::V2025_11_25)),
            (&none, head("2025-06-18"), Ok(Era::V2025_06_18)),
            (&none, Declared::Header(None), Ok(Era::V2025_06_18)),
            (&none, line, Ok(Era::V2025_06_18)),
            (&old, head("2025-11-25"), Ok(Era::V2025_11_25)),
            (&old, line, Ok(Era::V2025_11_25)),
        ];
        for (params, declared, wanted) in cases {
            let era = of("tools/list", params, declared).map_err(|error| error.code);
            assert_eq!(era, wanted, "{params:?} {declared:?}");
        }
        // A handshake may name what it likes in its header: what it asks for stands in its body.
        assert_eq!(of("initialize", &none, head("1999-01-01")), Ok(Era::V2025_06_18));
        assert!(of("initialize", &none, head("2026-07-28")).is_err());
    }

    #[test]
    fn an_unsupported_revision_is_told_what_is_spoken() {
        let params = meta(json!({VERSION: "v999", CAPABILITIES: {}}));
        let error = of("server/discover", &params, Declared::Header(Some("v999"))).unwrap_err();
        let wanted = json!({"supported": ["2026-07-28", "2025-11-25", "2025-06-18"], "requested": "v999"});
        assert_eq!(error.data, Some(wanted));
    }
}
