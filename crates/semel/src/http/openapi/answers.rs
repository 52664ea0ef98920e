//! What the tools that change something, and the receipts of them, are answered with.

use super::shapes;
use serde_json::{Value, json};

/// Says what became of one path.
fn changed() -> Value {
    let digest = json!({"type": ["string", "null"], "pattern": "^[0-9a-f]{64}$"});
    let text = json!({"type": "string"});
    json!({
        "path": {"type": "string", "description": "The path that was acted on, after links inside the root were followed"},
        "path_b64": text,
        "action": {"enum": ["created", "replaced", "removed", "moved", "restored", "mode_set", "none"]},
        "destination": text,
        "destination_b64": text,
        "sha256_before": digest,
        "sha256_after": digest,
        "size_bytes": {"type": ["integer", "null"]},
        "hard_link_broken": {"type": "integer"},
        "mode_before": text,
        "mode_after": text,
    })
}

/// Says what a tool did to files.
pub(super) fn effect() -> Value {
    let mut properties = changed();
    properties["overwritten"] = json!({"type": ["string", "null"], "description": "Of a move: the SHA-256 of the file that stood at the destination"});
    properties["changed"] = json!({
        "type": "array",
        "description": "Of a patch: what became of each path",
        "items": {"type": "object", "required": ["path", "action"], "properties": changed()},
    });
    properties["replacements"] =
        json!({"type": "integer", "description": "Of an edit: how many places it replaced"});
    properties["notes"] = json!({"type": "array", "items": {"type": "string"}, "description": "Of a patch: where it was not applied exactly as it says"});
    properties["possible_duplicate_of"] = json!({"type": "string", "description": "The execution of the very same call under another key, not long before"});
    properties["execution_id"] = shapes::uuid();
    properties["idempotency_key"] = shapes::key();
    properties["generation"] = shapes::generation();
    properties["replayed"] = json!({"type": "boolean"});
    json!({
        "type": "object",
        "required": ["execution_id", "idempotency_key", "replayed", "generation"],
        "properties": properties,
    })
}

/// Says what came of a command.
pub(super) fn command() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let mut properties = json!({
        "cwd": text,
        "cwd_b64": text,
        "end": {"enum": ["exited", "signalled", "timed_out", "bounded", "asked", "unseen"], "description": "bounded: it met a limit; unseen: a person settled the call"},
        "bound": {"enum": ["processes", "memory", "machine_memory", "file_size", "disk_full"], "description": "The limit that it met"},
        "exit_code": {"type": ["integer", "null"]},
        "signal": {"type": ["integer", "null"]},
        "timed_out": {"type": "boolean"},
        "asked_by": {"enum": ["request", "signal"]},
        "took_ms": number,
        "tree_ended": {"enum": ["proved", "unproved"]},
        "confinement": {"enum": ["none", "partial", "full"]},
        "confinement_missing": {"type": "array", "items": text},
        "user": {"enum": ["root", "caller", "own", null], "description": "As whom it ran"},
        "execution_id": shapes::uuid(),
        "idempotency_key": shapes::key(),
        "generation": shapes::generation(),
        "possible_duplicate_of": text,
        "replayed": {"type": "boolean"},
    });
    for name in ["stdout", "stderr"] {
        properties[name] =
            json!({"type": ["string", "null"], "description": "All that was kept, or its beginning"});
        properties[format!("{name}_b64")] = json!({"type": "string", "contentEncoding": "base64", "description": "In its place, where it is not UTF-8"});
        properties[format!("{name}_omitted_bytes")] =
            json!({"type": "integer", "description": "How much is left out before the tail"});
        properties[format!("{name}_tail")] = text.clone();
        properties[format!("{name}_tail_b64")] = text.clone();
        properties[format!("{name}_gone")] =
            json!({"const": true, "description": "What was kept went with its volume"});
        properties[format!("{name}_total_bytes")] = number.clone();
        properties[format!("{name}_kept_bytes")] = number.clone();
        properties[format!("{name}_sha256")] = json!({"type": "string", "description": "Of what was kept"});
    }
    json!({
        "type": "object",
        "required": ["cwd", "end", "execution_id", "idempotency_key", "replayed", "generation"],
        "properties": properties,
    })
}

/// Says what came of a key.
pub(super) fn receipt() -> Value {
    let text = json!({"type": ["string", "null"]});
    let time = json!({"type": "string", "format": "date-time"});
    json!({
        "type": "object",
        "required": ["state", "tool", "path", "idempotency_key", "generation"],
        "properties": {
            "state": {"enum": ["done", "refused", "running", "unknown", "asked"]},
            "tool": {"type": "string"},
            "path": {"type": "string"},
            "path_b64": {"type": "string", "contentEncoding": "base64"},
            "idempotency_key": shapes::key(),
            "execution_id": shapes::uuid(),
            "generation": shapes::generation(),
            "began_at": time,
            "ended_at": time,
            "result": {"type": "object", "description": "Where it is done: what the call was answered with"},
            "refusal": {"type": "object", "description": "Where it was refused", "required": ["code", "why"]},
            "why": {"type": "string", "description": "Where it is unknown"},
            "taken_back": text,
            "recovered": {"type": ["string", "null"], "description": "What showed, after a kill, what had come of it"},
            "resolved": {"type": ["object", "null"], "description": "Where a person settled it"},
            "possible_duplicate_of": text,
            "executed": {"const": false, "description": "Where a person is asked first"},
            "approval_id": shapes::uuid(),
            "approval": {"type": "string"},
            "ends_at": time,
        },
    })
}
