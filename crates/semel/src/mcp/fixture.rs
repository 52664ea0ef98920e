//! Tools that the official conformance suite asks for, behind a hidden flag of the daemon, for tests alone.
//!
//! They have no effect and reach nothing: what they show is that every kind of content, an error, progress, and a missing
//! capability go through the same layer as the tools of a volume.

use super::serve::{Done, Told};
use semel_core::mcp::{Error, era, rpc};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Says whether the tools of the suite are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fixture {
    /// They are not.
    Absent,
    /// They are.
    Conformance,
}

/// Is a tool of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Text,
    Image,
    Audio,
    Resource,
    Mixed,
    Failure,
    Progress,
    Capability,
    Stream,
    Silent,
    Schema,
}

const ALL: &[(Shown, &str)] = &[
    (Shown::Text, "test_simple_text"),
    (Shown::Image, "test_image_content"),
    (Shown::Audio, "test_audio_content"),
    (Shown::Resource, "test_embedded_resource"),
    (Shown::Mixed, "test_multiple_content_types"),
    (Shown::Failure, "test_error_handling"),
    (Shown::Progress, "test_tool_with_progress"),
    (Shown::Capability, "test_missing_capability"),
    (Shown::Stream, "test_streaming_elicitation"),
    (Shown::Silent, "test_logging_tool"),
    (Shown::Schema, "json_schema_2020_12_tool"),
];

/// One red pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A sound without a sample.
const SILENCE: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

impl Fixture {
    /// Finds a tool of the suite.
    pub(super) fn find(self, name: &str) -> Option<Shown> {
        match self {
            Self::Absent => None,
            Self::Conformance => ALL
                .iter()
                .find(|(_, known)| *known == name)
                .map(|(shown, _)| *shown),
        }
    }

    /// Describes the tools of the suite.
    pub(super) fn described(self) -> Vec<Value> {
        match self {
            Self::Absent => Vec::new(),
            Self::Conformance => ALL.iter().map(|(shown, name)| described(*shown, name)).collect(),
        }
    }
}

fn described(shown: Shown, name: &str) -> Value {
    let schema = match shown {
        Shown::Schema => composed(),
        _ => json!({"type": "object", "additionalProperties": false}),
    };
    json!({
        "name": name,
        "description": "A tool of the conformance suite, without effect.",
        "inputSchema": schema,
        "annotations": {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false},
    })
}

/// Answers a call of a tool of the suite.
///
/// # Errors
/// `-32021` of the one that needs a capability of the client.
pub(super) async fn answer(shown: Shown, params: &Map<String, Value>, told: &Told) -> Result<Done, Error> {
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = json!({"type": "image", "data": PIXEL, "mimeType": "image/png"});
    let resource = json!({"type": "resource", "resource": {
        "uri": "test://embedded-resource", "mimeType": "text/plain", "text": "This is an embedded resource content.",
    }});
    let content = match shown {
        Shown::Text => json!([text("This is a simple text response for testing.")]),
        Shown::Image => json!([image]),
        Shown::Audio => json!([{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]),
        Shown::Resource => json!([resource]),
        Shown::Mixed => json!([text("Multiple content types test:"), image, resource]),
        Shown::Failure => {
            let said = text("This tool intentionally returns an error for testing");
            return Ok(json!({"content": [said], "isError": true}).into());
        }
        Shown::Progress => {
            for so_far in [0_u64, 50, 100] {
                told.progress(so_far, Some(100), "on the way");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            json!([text("It went all the way.")])
        }
        Shown::Capability => {
            let declared = &params.get("_meta").and_then(|meta| meta.get(era::CAPABILITIES));
            if declared.is_none_or(|declared| declared.get("sampling").is_none()) {
                let error = Error::new(rpc::MISSING_CAPABILITY, "the client does not declare sampling");
                return Err(error.data(json!({"requiredCapabilities": {"sampling": {}}})));
            }
            json!([text("The client could be asked.")])
        }
        Shown::Stream | Shown::Silent | Shown::Schema => {
            json!([text("Nothing was asked, and nothing logged.")])
        }
    };
    Ok(json!({"content": content, "isError": false}).into())
}

fn composed() -> Value {
    let text = json!({"type": "string"});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {
            "$anchor": "addressDef", "type": "object", "properties": {"street": text, "city": text},
        }},
        "properties": {
            "name": text,
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": text,
            "email": text,
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
