//! The OpenAPI document of the app listener, made from the tables of tools, routes and refusals.

mod reads;

use crate::engine::gateway::tool::{Kind, Tool};
use semel_core::Code;
use serde_json::{Map, Value, json};

/// Gives the whole document, OpenAPI 3.1.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for tool in Tool::callable() {
        paths.insert(
            format!("/v1/tools/{}", tool.name()),
            json!({"post": tool_operation(tool)}),
        );
    }
    paths.insert(
        "/v1/receipts/{key}".to_owned(),
        json!({"get": receipt_operation()}),
    );
    paths.insert("/v1/tokens".to_owned(), json!({"post": token_operation()}));
    paths.insert(
        "/v1/executions/{execution_id}/output/{stream}".to_owned(),
        json!({"get": output_operation()}),
    );
    paths.insert(
        "/v1/openapi.json".to_owned(),
        json!({"get": {
            "operationId": "openapi",
            "summary": "Gives this document.",
            "security": [],
            "responses": {"200": {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}},
        }}),
    );
    for (method, path, id, summary, answers) in ADMIN {
        let parameters: Vec<Value> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        let mut operation = json!({
            "operationId": id,
            "summary": summary,
            "tags": ["admin"],
            "security": [{"operator": []}],
            "parameters": parameters,
            "responses": responses(&["200"], answers),
        });
        if *method == "post" && *id != "admin_shutdown" {
            let schema = if *id == "admin_approve" {
                decision()
            } else {
                json!({"type": "object"})
            };
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        paths.insert((*path).to_owned(), json!({(*method): operation}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Semel",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Tool calls whose retries are safe.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": "http://127.0.0.1"}],
        "security": [{"job": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "job": {"type": "http", "scheme": "bearer", "description": "The token of an open volume; it ends with its generation."},
                "operator": {"type": "http", "scheme": "bearer", "description": "The operator's token, over the Unix socket alone."},
            },
            "schemas": {"Problem": problem(), "ApprovalRequired": waiting(), "Effect": effect(), "Command": command(), "Receipt": {"type": "object"}},
        },
    })
}

type Admin = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [Code],
);

const ADMIN: &[Admin] = &[
    (
        "post",
        "/v1/admin/journal",
        "admin_journal",
        "Carries out one verb of the journal for a command.",
        &[Code::BadInput, Code::Unauthorized],
    ),
    (
        "get",
        "/v1/admin/status",
        "admin_status",
        "Says how the daemon is.",
        &[Code::Unauthorized],
    ),
    (
        "post",
        "/v1/admin/listen",
        "admin_listen",
        "Makes sure that plain HTTP clients on this machine reach the app listener, and says where.",
        &[Code::BadInput, Code::Unauthorized, Code::IoFailed],
    ),
    (
        "post",
        "/v1/admin/shutdown",
        "admin_shutdown",
        "Ends the daemon once what is under way is done.",
        &[Code::Unauthorized],
    ),
    (
        "post",
        "/v1/admin/volumes",
        "admin_open_volume",
        "Opens a volume for a person.",
        &[Code::BadInput, Code::Unauthorized, Code::VolumeBusy],
    ),
    (
        "post",
        "/v1/admin/volumes/{generation}/end",
        "admin_end_volume",
        "Ends a volume for a person.",
        &[
            Code::BadInput,
            Code::Unauthorized,
            Code::NotFound,
            Code::VolumeBusy,
        ],
    ),
    (
        "get",
        "/v1/admin/approvals",
        "admin_approvals",
        "Lists the calls that wait for a person: what each would do, by digests and sizes, never contents.",
        &[Code::Unauthorized],
    ),
    (
        "post",
        "/v1/admin/executions/{id}/undo",
        "admin_undo",
        "Puts back what an execution removed or replaced, as a new execution.",
        &[
            Code::BadInput,
            Code::Unauthorized,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::UndoExpired,
            Code::ReplayConflict,
        ],
    ),
    (
        "post",
        "/v1/admin/executions/{id}/resolve",
        "admin_resolve",
        "Settles a call whose outcome is unknown, by a person's word.",
        &[
            Code::BadInput,
            Code::Unauthorized,
            Code::NotFound,
            Code::PreconditionFailed,
        ],
    ),
    (
        "post",
        "/v1/admin/executions/{id}/end",
        "admin_end_execution",
        "Asks that a command be ended: by SIGTERM and, after a while, SIGKILL; or by SIGKILL at once.",
        &[
            Code::BadInput,
            Code::Unauthorized,
            Code::NotFound,
            Code::PreconditionFailed,
        ],
    ),
    (
        "post",
        "/v1/admin/approvals/{id}",
        "admin_approve",
        "Decides a call that waits for a person; the first decision stands. The call is not run by this.",
        &[
            Code::BadInput,
            Code::Unauthorized,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::ApprovalExpired,
            Code::ReplayConflict,
            Code::SandboxUnavailable,
        ],
    ),
];

const EVERY_CALL: &[Code] = &[
    Code::Unauthorized,
    Code::ReplayConflict,
    Code::TooLarge,
    Code::EmptyBodyNotReplayable,
    Code::BadInput,
    Code::PathEscapesRoot,
    Code::Denied,
    Code::ApprovalRequired,
    Code::ApprovalExpired,
    Code::SandboxUnavailable,
    Code::PreconditionFailed,
    Code::NotFound,
    Code::MethodNotAllowed,
    Code::IoFailed,
    Code::TooMany,
    Code::StoreUnavailable,
    Code::Internal,
];

const MUTATIONS: &[Code] = &[
    Code::MissingIdempotencyKey,
    Code::InvalidIdempotencyKey,
    Code::IdempotencyKeyMismatch,
    Code::CallInFlight,
    Code::OutcomeUnknown,
    Code::Draining,
    Code::DirtyVolume,
];

fn tool_operation(tool: Tool) -> Value {
    let mut codes = EVERY_CALL.to_vec();
    let mut parameters = vec![header(
        "X-Request-Id",
        "An id of this request; answered as it came.",
        false,
    )];
    let answer = match tool.kind() {
        Kind::Mutation if tool == Tool::RunCommand => {
            mutation(&mut codes, &mut parameters);
            json!({"$ref": "#/components/schemas/Command"})
        }
        Kind::Mutation | Kind::Person => {
            mutation(&mut codes, &mut parameters);
            json!({"$ref": "#/components/schemas/Effect"})
        }
        Kind::Read => reads::answer(tool),
        Kind::Journal => json!({"$ref": "#/components/schemas/Receipt"}),
    };
    let mut schema = tool.schema();
    if tool.kind() != Kind::Journal {
        schema["properties"]["idempotency_key"] =
            json!({"type": "string", "description": "The idempotency key, where it is not sent as a header"});
    }
    let mut responses = responses(&[], &codes);
    responses["200"] = json!({
        "description": "What the call did, or did before.",
        "headers": {
            "Idempotency-Replayed": {"description": "true where the answer comes from a receipt.", "schema": {"const": "true"}},
            "Preference-Applied": {"description": "wait=N, where Prefer asked for it: what was taken.", "schema": {"type": "string"}},
            "X-Request-Id": {"schema": {"type": "string"}},
        },
        "content": {"application/json": {"schema": answer}},
    });
    json!({
        "operationId": tool.name(),
        "summary": tool.summary(),
        "tags": ["tools"],
        "parameters": parameters,
        "requestBody": {"required": true, "content": {"application/json": {"schema": schema}}},
        "responses": responses,
    })
}

fn mutation(codes: &mut Vec<Code>, parameters: &mut Vec<Value>) {
    codes.extend_from_slice(MUTATIONS);
    parameters.push(header(
        "Idempotency-Key",
        "1 to 255 visible ASCII characters, quoted or bare; one new value for each intended effect. May come as the argument idempotency_key instead.",
        false,
    ));
    parameters.push(header(
        "Prefer",
        "wait=N: wait at most N seconds for the same call that runs already; wait=0 answers call_in_flight at once.",
        false,
    ));
}

fn receipt_operation() -> Value {
    let mut responses = responses(
        &[],
        &[
            Code::Unauthorized,
            Code::NotFound,
            Code::InvalidIdempotencyKey,
            Code::TooMany,
        ],
    );
    responses["200"] = json!({
        "description": "What is known of the key.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}}},
    });
    json!({
        "operationId": "receipt",
        "summary": "Says what came of a key; an ended token may still ask.",
        "tags": ["tools"],
        "parameters": [{"name": "key", "in": "path", "required": true, "schema": {"type": "string"}}],
        "responses": responses,
    })
}

fn token_operation() -> Value {
    let mut responses = responses(
        &[],
        &[
            Code::BadInput,
            Code::EmptyBodyNotReplayable,
            Code::Unauthorized,
            Code::Denied,
            Code::NotFound,
            Code::ReplayConflict,
            Code::TooMany,
            Code::TooLarge,
            Code::Draining,
            Code::IoFailed,
        ],
    );
    responses["200"] = json!({
        "description": "The token; nobody keeps it but the caller.",
        "content": {"application/json": {"schema": {
            "type": "object",
            "required": ["token", "principal", "tools", "generation"],
            "properties": {
                "token": {"type": "string"},
                "principal": {"type": "string"},
                "tools": {"type": ["array", "null"], "items": {"type": "string"}, "description": "null: every tool"},
                "job": {"type": "string"},
                "generation": {"type": "string"},
            },
        }}},
    });
    let names: Vec<&str> = Tool::callable().map(Tool::name).collect();
    json!({
        "operationId": "issue_token",
        "summary": "Gives out a token for no more than the caller's own, retired with the generation.",
        "tags": ["tools"],
        "requestBody": {"required": true, "content": {"application/json": {"schema": {
            "type": "object",
            "additionalProperties": false,
            "minProperties": 1,
            "properties": {
                "tools": {"type": "array", "items": {"enum": names}},
                "name": {"type": "string", "pattern": "^[A-Za-z0-9._:@-]+$", "description": "Makes a principal of its own: its keys are apart from its parent's"},
            },
        }}}},
        "responses": responses,
    })
}

fn output_operation() -> Value {
    let mut responses = responses(
        &[],
        &[
            Code::Unauthorized,
            Code::ReplayConflict,
            Code::NotFound,
            Code::BadInput,
            Code::TooMany,
        ],
    );
    responses["200"] = json!({
        "description": "A piece of the stream; once running is false, an empty piece is the end.",
        "content": {"application/json": {"schema": {
            "type": "object",
            "required": ["offset", "next_offset", "running"],
            "properties": {
                "offset": {"type": "integer"},
                "data": {"type": "string"},
                "data_b64": {"type": "string", "contentEncoding": "base64", "description": "In place of data, where it is not UTF-8"},
                "next_offset": {"type": "integer", "description": "Where the next piece begins"},
                "running": {"type": "boolean"},
            },
        }}},
    });
    json!({
        "operationId": "output",
        "summary": "Reads what a command wrote, also while it runs.",
        "tags": ["tools"],
        "parameters": [
            {"name": "execution_id", "in": "path", "required": true, "schema": {"type": "string"}},
            {"name": "stream", "in": "path", "required": true, "schema": {"enum": ["stdout", "stderr"]}},
            {"name": "offset", "in": "query", "required": false, "schema": {"type": "integer", "minimum": 0, "default": 0}},
        ],
        "responses": responses,
    })
}

fn header(name: &str, meaning: &str, required: impl Into<Value>) -> Value {
    json!({"name": name, "in": "header", "required": required.into(), "description": meaning, "schema": {"type": "string"}})
}

/// Gives the responses of some refusals, one entry a status.
fn responses(plain: &[&str], codes: &[Code]) -> Value {
    let mut all = Map::new();
    for status in plain {
        all.insert(
            (*status).to_owned(),
            json!({"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}}),
        );
    }
    for code in codes {
        let named: Vec<&str> = codes
            .iter()
            .filter(|c| c.http() == code.http())
            .map(|c| c.wire())
            .collect();
        let response = match code {
            Code::ApprovalRequired => json!({
                "description": "Nothing was done: a person has to decide first. The same call is sent again with its key.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ApprovalRequired"}}},
            }),
            _ => json!({
                "description": format!("Refused: {}.", named.join(", ")),
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }),
        };
        all.insert(code.http().to_string(), response);
    }
    Value::Object(all)
}

fn problem() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.wire()).collect();
    json!({
        "type": "object",
        "description": "Problem details (RFC 9457).",
        "required": ["type", "title", "status", "detail", "code", "why", "names", "retry", "next", "exit", "replayed"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "instance": {"type": "string", "format": "uri"},
            "code": {"enum": codes},
            "reason": {"type": "string"},
            "why": {"type": "string"},
            "names": {"type": "array", "items": {"type": "string"}},
            "retry": {"enum": ["never", "new_generation", "operator", "same_key", "later", "later_same_key", "new_call"]},
            "next": {"type": "string"},
            "exit": {"type": "integer"},
            "execution_id": {"type": "string"},
            "replayed": {"type": "boolean"},
        },
    })
}

/// Says that a call waits for a person.
fn waiting() -> Value {
    let mut schema = problem();
    schema["description"] = json!("Nothing was done: a person has to decide first.");
    schema["properties"]["status"] = json!({"const": Code::ApprovalRequired});
    schema["properties"]["executed"] = json!({"const": false});
    schema["properties"]["approval_id"] = json!({"type": "string", "format": "uuid"});
    for name in ["executed", "approval_id"] {
        if let Some(required) = schema["required"].as_array_mut() {
            required.push(json!(name));
        }
    }
    schema
}

/// Is what a person decides.
fn decision() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["decision"],
        "properties": {
            "decision": {"enum": ["approve", "deny"]},
            "by": {"type": "string", "minLength": 1, "maxLength": 200, "default": "operator", "description": "Who decides, by their own word"},
            "note": {"type": "string", "maxLength": 2000, "default": "", "description": "Why"},
        },
    })
}

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

fn effect() -> Value {
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
    for name in ["execution_id", "idempotency_key", "generation"] {
        properties[name] = json!({"type": "string"});
    }
    properties["replayed"] = json!({"type": "boolean"});
    json!({
        "type": "object",
        "required": ["execution_id", "idempotency_key", "replayed", "generation"],
        "properties": properties,
    })
}

fn command() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let mut properties = json!({
        "cwd": text,
        "cwd_b64": text,
        "end": {"enum": ["exited", "signalled", "timed_out", "asked", "unseen"], "description": "unseen: a person settled the call"},
        "exit_code": {"type": ["integer", "null"]},
        "signal": {"type": ["integer", "null"]},
        "timed_out": {"type": "boolean"},
        "asked_by": {"enum": ["request", "signal"]},
        "took_ms": number,
        "tree_ended": {"enum": ["proved", "unproved"]},
        "confinement": {"enum": ["none", "partial", "full"]},
        "confinement_missing": {"type": "array", "items": text},
        "execution_id": text,
        "idempotency_key": text,
        "generation": text,
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
