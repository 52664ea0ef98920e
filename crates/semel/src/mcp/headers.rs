//! The headers that say again what a message says; on a line there are none.

use super::call;
use crate::engine::gateway::tool::{KEY_ARGUMENT, KEY_MIRROR, Kind, Tool};
use semel_core::mcp::{Error, Request, mirror};
use serde_json::Value;

/// Gives the values of a header by its name.
pub(crate) type Headers<'a> = &'a dyn Fn(&str) -> Vec<Vec<u8>>;

/// Holds the headers of a request of the newest revision against its body.
///
/// # Errors
/// `-32020` where one is missing, cannot be read, or says something else.
pub(crate) fn check_headers(request: &Request, headers: Headers<'_>) -> Result<(), Error> {
    let method = Value::String(request.method.clone());
    mirror::check("Mcp-Method", &headers("mcp-method"), Some(&method))?;
    if let Some(named) = named_by(&request.method) {
        mirror::check("Mcp-Name", &headers("mcp-name"), request.params.get(named))?;
    }
    if request.method != call::METHOD {
        return Ok(());
    }
    if keyed(request) {
        let name = format!("Mcp-Param-{KEY_MIRROR}");
        let arguments = request.params.get("arguments");
        let key = arguments.and_then(|arguments| arguments.get(KEY_ARGUMENT));
        mirror::check(&name, &headers(&name.to_ascii_lowercase()), key)?;
    }
    Ok(())
}

/// Writes the headers of a request of the newest revision, for whoever forwards one that came on a line.
pub(super) fn write_headers(request: &Request) -> Vec<(String, String)> {
    let mut headers = vec![("mcp-method".to_owned(), mirror::encode(&request.method))];
    let mut put = |name: String, value: Option<&Value>| {
        let spelt = value.and_then(mirror::spelt);
        headers.extend(spelt.map(|value| (name, mirror::encode(&value))));
    };
    if let Some(named) = named_by(&request.method) {
        put("mcp-name".to_owned(), request.params.get(named));
    }
    if request.method == call::METHOD && keyed(request) {
        let key = request.params.get("arguments");
        let key = key.and_then(|arguments| arguments.get(KEY_ARGUMENT));
        put(format!("mcp-param-{}", KEY_MIRROR.to_ascii_lowercase()), key);
    }
    headers
}

/// Says whether a call is of a tool whose key stands among its arguments.
fn keyed(request: &Request) -> bool {
    let tool = request.params.get("name").and_then(Value::as_str);
    tool.and_then(|name| Tool::parse(name).ok())
        .is_some_and(|tool| tool.kind() == Kind::Mutation)
}

/// Says which parameter `Mcp-Name` says again.
fn named_by(method: &str) -> Option<&'static str> {
    match method {
        call::METHOD | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/cancel" | "tasks/update" => Some("taskId"),
        _ => None,
    }
}
