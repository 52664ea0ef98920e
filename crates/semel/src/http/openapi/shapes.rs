//! The shapes of ids and headers.

use semel_core::canonical::LARGEST_INTEGER;
use serde_json::{Value, json};

/// Is an idempotency key as it is, without the spelling of a header.
pub(super) fn key() -> Value {
    json!({"type": "string", "pattern": crate::engine::gateway::tool::KEY_PATTERN})
}

/// Is the header that carries one: a quoted string, with `\"` and `\\`, or a bare token.
pub(super) fn key_header() -> Value {
    // No `"`, `\`, `,` and `;`, and not with a colon at both ends: that would be bytes (RFC 9651).
    let bare = r"[!#-+\--9<-\[\]-~][!#-+\--:<-\[\]-~]{0,254}|:[!#-+\--:<-\[\]-~]{0,253}[!#-+\--9<-\[\]-~]";
    let quoted = r#""(?:[!#-\[\]-~]|\\["\\]){1,255}""#;
    json!({"type": "string", "pattern": format!("^(?:{quoted}|{bare})$")})
}

/// Is the id of an execution, or of a question.
pub(super) fn uuid() -> Value {
    json!({
        "type": "string",
        "format": "uuid",
        "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
    })
}

/// Is the id of a generation.
pub(super) fn generation() -> Value {
    json!({
        "type": "string",
        "pattern": "^g-[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
    })
}

/// Is a job.
pub(super) fn job() -> Value {
    json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$"})
}

/// Is how many there are of something, or where it begins.
pub(super) fn count() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": LARGEST_INTEGER})
}

/// Is one line that a person writes.
pub(super) fn line(least: usize, most: usize) -> Value {
    json!({"type": "string", "minLength": least, "maxLength": most, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"})
}
