//! `tools/list`: what a token may call, in one fixed order.

use super::fixture::Fixture;
use crate::engine::gateway::tool::{Kind, Tool};
use crate::http::answer_schema;
use semel_core::mcp::{Error, rpc};
use semel_core::volume::Lease;
use serde_json::{Map, Value, json};

/// Answers `tools/list`: all in one page.
///
/// # Errors
/// `-32602` for a cursor: none was given out.
pub(super) fn answer(
    lease: &Lease,
    fixture: Fixture,
    theirs: Vec<(String, Value)>,
    params: &Map<String, Value>,
) -> Result<Value, Error> {
    if params.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
        return Err(Error::new(rpc::INVALID_PARAMS, "the cursor is none of ours"));
    }
    let granted = Tool::callable().filter(|tool| lease.tools.allow(tool.name()));
    let theirs = theirs.into_iter().filter(|(name, _)| lease.tools.allow(name));
    let tools: Vec<Value> = granted
        .map(described)
        .chain(theirs.map(|(_, tool)| tool))
        .chain(fixture.described())
        .collect();
    Ok(json!({"tools": tools}))
}

/// Gives what a token for all tools is answered.
pub(crate) fn document() -> Value {
    let tools: Vec<Value> = Tool::callable().map(described).collect();
    json!({"tools": tools})
}

/// Describes a tool.
fn described(tool: Tool) -> Value {
    json!({
        "name": tool.name(),
        "title": title(tool),
        "description": tool.description(),
        "inputSchema": tool.plain_schema(),
        "outputSchema": output(tool),
        "annotations": annotations(tool),
    })
}

/// Gives the name for people: `write_file` is "Write file".
fn title(tool: Tool) -> String {
    let mut words = tool.name().replace('_', " ");
    words[..1].make_ascii_uppercase();
    words
}

/// Says what a client may take a tool for. All four are said: where one is missing, clients assume the worst, or ask.
///
/// `idempotentHint` is about a repeat without a key; with one every tool may be repeated.
fn annotations(tool: Tool) -> Value {
    let reads = matches!(tool.kind(), Kind::Read | Kind::Journal);
    let same_again = match tool {
        Tool::WriteFile | Tool::CreateDirectory | Tool::SetMode => true,
        Tool::EditFile
        | Tool::ApplyPatch
        | Tool::DeleteFile
        | Tool::DeleteDirectory
        | Tool::MoveFile
        | Tool::RunCommand
        | Tool::Undo => false,
        Tool::ReadFile
        | Tool::ListDirectory
        | Tool::GetFileInfo
        | Tool::SearchFiles
        | Tool::Grep
        | Tool::GetReceipt => true,
    };
    json!({
        "title": title(tool),
        "readOnlyHint": reads,
        "destructiveHint": !reads && tool != Tool::CreateDirectory,
        "idempotentHint": same_again,
        "openWorldHint": tool == Tool::RunCommand,
    })
}

/// Gives the schema of `structuredContent`: the answer, or what was refused.
fn output(tool: Tool) -> Value {
    let mut schema = answer_schema(tool);
    let answered = schema["required"].take();
    if let Value::Object(members) = &mut schema {
        members.remove("required");
    }
    schema["properties"]["error"] = json!({
        "type": "object",
        "description": "In place of all else: why the call was refused",
        "required": ["type", "message", "retry", "next"],
        "properties": {
            "type": {"type": "string"},
            "reason": {"type": "string"},
            "message": {"type": "string"},
            "names": {"type": "array", "items": {"type": "string"}},
            "retry": {"type": "string"},
            "next": {"type": "string"},
        },
    });
    schema["anyOf"] = json!([{"required": answered}, {"required": ["error"]}]);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_all_four_hints_and_has_both_schemas() {
        for tool in Tool::callable() {
            let told = described(tool);
            for hint in [
                "readOnlyHint",
                "destructiveHint",
                "idempotentHint",
                "openWorldHint",
            ] {
                assert!(told["annotations"][hint].is_boolean(), "{}: {hint}", tool.name());
            }
            for schema in ["inputSchema", "outputSchema"] {
                assert_eq!(told[schema]["type"], "object", "{}: {schema}", tool.name());
            }
            assert_eq!(told["outputSchema"]["anyOf"][1], json!({"required": ["error"]}));
        }
        assert_eq!(title(Tool::GetFileInfo), "Get file info");
    }
}
