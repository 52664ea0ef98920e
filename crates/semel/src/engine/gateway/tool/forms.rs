//! The forms of arguments as JSON Schema.
//!
//! What no schema can say, such as how many bytes a path has, is a `format` of ours; the page of the tools names them.

use super::{Field, Form, NEW, OLD, REPLACE_ALL};
use crate::limits;
use semel_core::canonical::LARGEST_INTEGER;
use serde_json::{Value, json};

/// The alphabet, the last group padded, and no bit set that stands for nothing.
const BASE64: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";
const SHA256: &str = "^[0-9a-f]{64}$";
/// An idempotency key as it is, without the spelling of a header.
pub(crate) const KEY: &str = "^[!-~]{1,255}$";
const NO_NUL: &str = "^[^\\u0000]*$";

impl Field {
    /// Gives the schema of the argument, with what it means.
    pub(super) fn schema(&self) -> Value {
        let mut schema = self.form.schema();
        schema["description"] = json!(self.meaning);
        schema
    }
}

impl Form {
    fn schema(self) -> Value {
        match self {
            Form::Text => json!({"type": "string"}),
            Form::Word => word(),
            Form::Path => json!({"type": "string", "format": "semel-path"}),
            Form::After => json!({"type": "string", "format": "semel-after"}),
            Form::PathBase64 => {
                json!({"type": "string", "contentEncoding": "base64", "format": "semel-path-b64"})
            }
            Form::Base64 => json!({"type": "string", "contentEncoding": "base64", "pattern": BASE64}),
            Form::Expression => json!({"type": "string", "format": "semel-expression"}),
            Form::Patch => json!({"type": "string", "format": "semel-patch"}),
            Form::Key => json!({"type": "string", "pattern": KEY}),
            Form::Present => json!({"type": "string", "pattern": SHA256}),
            Form::Digest => digest(),
            Form::Digests => json!({
                "type": "object",
                "propertyNames": {"format": "semel-path"},
                "additionalProperties": digest(),
            }),
            Form::Flag => json!({"type": "boolean", "default": false}),
            Form::Mode => json!({"type": "string", "pattern": "^0?[0-7]{3}$"}),
            Form::Count { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
            Form::Choice(words) => json!({"type": "string", "enum": words}),
            Form::Patterns => patterns(0),
            Form::SomePatterns => patterns(1),
            Form::Lines => lines(),
            Form::Texts => json!({"type": "array", "minItems": 1, "items": word()}),
            Form::Variables => json!({
                "type": "object",
                "propertyNames": {"pattern": "^[^=\\u0000]+$"},
                "additionalProperties": {"type": "string", "pattern": NO_NUL},
            }),
            Form::Edits => json!({
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": [OLD.name, NEW.name],
                    "properties": {
                        (OLD.name): OLD.schema(),
                        (NEW.name): NEW.schema(),
                        (REPLACE_ALL.name): REPLACE_ALL.schema(),
                    },
                },
            }),
        }
    }
}

fn word() -> Value {
    json!({"type": "string", "format": "semel-command"})
}

fn digest() -> Value {
    json!({"type": "string", "pattern": "^(?:[0-9a-f]{64}|absent)$"})
}

fn patterns(least: usize) -> Value {
    let one = json!({"type": "string", "format": "semel-glob", "minLength": 1, "maxLength": 1024});
    let many = json!({"type": "array", "minItems": least, "maxItems": limits::PATTERNS, "items": one});
    json!({"oneOf": [one, many]})
}

fn lines() -> Value {
    let line = json!({"type": "integer", "minimum": 1, "maximum": LARGEST_INTEGER});
    json!({
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "prefixItems": [line, {"oneOf": [{"const": -1}, line]}],
    })
}
