//! What the tools that read are answered with.

use crate::engine::gateway::tool::Tool;
use serde_json::{Value, json};

/// Gives the schema of the answer of a tool that reads.
pub(super) fn answer(tool: Tool) -> Value {
    let (required, own): (&[&str], Value) = match tool {
        Tool::ReadFile => (&["sha256", "size_bytes", "content", "encoding"], file()),
        Tool::GetFileInfo => (
            &["type", "size_bytes", "mode", "links", "sha256", "modified_at"],
            info(),
        ),
        Tool::ListDirectory => (&["entries", "truncated", "skipped"], list()),
        Tool::SearchFiles => (&["matches", "truncated", "skipped"], found()),
        Tool::Grep => (&["searched_files", "truncated", "skipped"], lines()),
        _ => (&[], json!({})),
    };
    let mut properties = json!({
        "path": {"type": "string", "description": "The path after links inside the root were followed"},
        "path_b64": {"type": "string"},
        "generation": {"type": "string"},
    });
    if let (Value::Object(properties), Value::Object(own)) = (&mut properties, own) {
        properties.extend(own);
    }
    let required: Vec<&str> = ["path", "generation"].iter().chain(required).copied().collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn digest() -> Value {
    json!({
        "type": ["string", "null"],
        "pattern": "^[0-9a-f]{64}$",
        "description": "Of the whole file; null for a large one unless digest asks for it",
    })
}

fn number(meaning: &str) -> Value {
    json!({"type": ["integer", "null"], "description": meaning})
}

fn kind() -> Value {
    json!({"enum": ["file", "directory", "symlink", "special"]})
}

fn file() -> Value {
    json!({
        "sha256": digest(),
        "size_bytes": {"type": "integer", "description": "Of the whole file"},
        "total_lines": number("Of the whole file; null where it was not looked through"),
        "first_line": number("The first line given; null for none"),
        "last_line": number("The last line given; null for none"),
        "next_offset": number("The line that comes next; null at the end"),
        "byte_offset": {"type": "integer"},
        "bytes": {"type": "integer"},
        "next_byte_offset": number("The byte that comes next; null at the end"),
        "truncated": {"type": "boolean", "description": "Of a part: whether it ends before what was asked for"},
        "changed_meanwhile": {"const": true, "description": "Another process kept writing into the file while it was read"},
        "content": {"type": "string"},
        "encoding": {"enum": ["utf-8", "base64"]},
    })
}

fn info() -> Value {
    json!({
        "type": kind(),
        "size_bytes": {"type": "integer"},
        "mode": {"type": "string"},
        "links": {"type": "integer"},
        "sha256": digest(),
        "undigested": {"enum": ["too_large", "unreadable"], "description": "Why a file has no SHA-256 here"},
        "modified_at": {"type": "string", "format": "date-time"},
        "link_target": {"type": "string"},
        "link_target_b64": {"type": "string"},
    })
}

/// What every search says of how far it came.
fn walked() -> Value {
    json!({
        "truncated": {"type": "boolean", "description": "Whether there may be more"},
        "truncated_by": {"enum": ["results", "entries", "time"]},
        "next_after": {"type": ["string", "null"], "description": "Sent as after, the next call goes on behind it"},
        "skipped": {
            "type": "object",
            "description": "How many were passed by, and why",
            "additionalProperties": {"type": "integer"},
        },
    })
}

fn entries(name: &str, meaning: &str) -> Value {
    json!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["type", "size_bytes"],
            "properties": {
                name: {"type": "string", "description": meaning},
                (format!("{name}_b64")): {"type": "string", "description": "The same, where it is not UTF-8"},
                "type": kind(),
                "size_bytes": {"type": ["integer", "null"], "description": "Of a file"},
            },
        },
    })
}

fn list() -> Value {
    let mut properties = walked();
    properties["entries"] = entries("name", "The path below the directory");
    properties
}

fn found() -> Value {
    let mut properties = walked();
    properties["matches"] = entries("path", "The path beneath the root");
    properties
}

fn lines() -> Value {
    let line = json!({
        "line": {"type": "integer"},
        "text": {"type": "string", "description": "The line, without its line feed"},
        "text_b64": {"type": "string", "description": "The same, where it is not UTF-8"},
        "cut": {"const": true, "description": "It is not the whole line"},
        "text_from_byte": {"type": "integer", "description": "Where it begins in the line"},
    });
    let around =
        json!({"type": "array", "items": {"type": "object", "required": ["line"], "properties": line}});
    let mut hit = line;
    for name in ["path", "path_b64"] {
        hit[name] = json!({"type": "string"});
    }
    hit["column"] =
        json!({"type": "integer", "description": "Where the first match begins, in bytes from 1"});
    hit["before"] = around.clone();
    hit["after"] = around;
    let mut properties = walked();
    properties["matches"] = json!({
        "type": "array",
        "items": {"type": "object", "required": ["path", "line", "column"], "properties": hit},
    });
    properties["files"] = json!({
        "type": "array",
        "description": "With files_only, in place of matches",
        "items": {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}, "path_b64": {"type": "string"}}},
    });
    // Narrower patterns go on where grep ended; it has no pages.
    if let Value::Object(properties) = &mut properties {
        properties.remove("next_after");
    }
    properties["searched_files"] = json!({"type": "integer"});
    properties
}
