//! The OpenAPI document of the app listener, made from the tables of tools, routes and refusals.

mod admin;
mod answers;
mod reads;
mod shapes;

use crate::engine::gateway::tool::{Kind, Tool};
use crate::limits;
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
    for operation in admin::OPERATIONS {
        paths.insert(operation.path.to_owned(), operation.item());
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
            "schemas": {"Problem": problem(), "ApprovalRequired": waiting(), "Effect": answers::effect(), "Command": answers::command(), "Receipt": answers::receipt()},
        },
    })
}

/// Gives the schema of what a tool is answered with.
pub(crate) fn answer(tool: Tool) -> Value {
    match tool.kind() {
        Kind::Mutation if tool == Tool::RunCommand => answers::command(),
        Kind::Mutation | Kind::Person => answers::effect(),
        Kind::Read => reads::answer(tool),
        Kind::Journal => answers::receipt(),
    }
}

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
    Code::QuotaExceeded,
    Code::KeyExpired,
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
        Kind::Journal => {
            codes.push(Code::KeyExpired);
            json!({"$ref": "#/components/schemas/Receipt"})
        }
    };
    let schema = tool.schema();
    let mut responses = responses(&codes);
    responses["200"] = json!({
        "description": "What the call did, or did before.",
        "headers": {
            "Idempotency-Replayed": {"description": "true where the answer comes from a receipt.", "schema": {"const": "true"}},
            "Preference-Applied": {"description": "wait=N, where Prefer asked for it: what was taken.", "schema": {"type": "string"}},
            "X-Request-Id": {"schema": {"type": "string"}},
        },
        "content": {"application/json": {"schema": answer}},
    });
    if tool.kind() == Kind::Mutation {
        responses["200"]["links"] = links(tool);
    }
    json!({
        "operationId": tool.name(),
        "summary": tool.summary(),
        "tags": ["tools"],
        "parameters": parameters,
        "requestBody": {"required": true, "content": {"application/json": {"schema": schema, "example": tool.example()}}},
        "responses": responses,
    })
}

/// Says what can be asked about a call that was answered.
fn links(tool: Tool) -> Value {
    let id = "$response.body#/execution_id";
    let mut links = json!({
        "receipt": {"operationId": "receipt", "parameters": {"key": "$response.body#/idempotency_key"}},
    });
    if tool == Tool::RunCommand {
        for stream in ["stdout", "stderr"] {
            links[stream] =
                json!({"operationId": "output", "parameters": {"execution_id": id, "stream": stream}});
        }
        links["end"] = json!({"operationId": "admin_end_execution", "parameters": {"id": id}});
    } else {
        links["undo"] = json!({"operationId": "admin_undo", "parameters": {"id": id}});
    }
    links
}

fn mutation(codes: &mut Vec<Code>, parameters: &mut Vec<Value>) {
    codes.extend_from_slice(MUTATIONS);
    parameters.push(header(
        "Idempotency-Key",
        "1 to 255 visible ASCII characters, quoted or bare; one new value for each intended effect. Clients that cannot send it send the argument idempotency_key in its place.",
        true,
    ));
    if let Some(last) = parameters.last_mut() {
        last["schema"] = shapes::key_header();
    }
    parameters.push(header(
        "Prefer",
        "wait=N: wait at most N seconds for the same call that runs already; wait=0 answers call_in_flight at once.",
        false,
    ));
}

fn receipt_operation() -> Value {
    let mut responses = responses(&[
        Code::Unauthorized,
        Code::NotFound,
        Code::InvalidIdempotencyKey,
        Code::TooMany,
    ]);
    responses["200"] = json!({
        "description": "What is known of the key.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}}},
    });
    json!({
        "operationId": "receipt",
        "summary": "Says what came of a key; an ended token may still ask.",
        "tags": ["tools"],
        "parameters": [{"name": "key", "in": "path", "required": true, "schema": shapes::key()}],
        "responses": responses,
    })
}

fn token_operation() -> Value {
    let mut responses = responses(&[
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
    ]);
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
                "tools": {"type": "array", "items": {"type": "string", "enum": names}},
                "name": {"type": "string", "pattern": "^[A-Za-z0-9._:@-]+$", "maxLength": limits::PART_NAME, "description": "Makes a principal of its own: its keys are apart from its parent's"},
            },
        }}}},
        "responses": responses,
    })
}

fn output_operation() -> Value {
    let mut responses = responses(&[
        Code::Unauthorized,
        Code::ReplayConflict,
        Code::NotFound,
        Code::BadInput,
        Code::TooMany,
    ]);
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
    let mut offset = shapes::count();
    offset["default"] = json!(0);
    json!({
        "operationId": "output",
        "summary": "Reads what a command wrote, also while it runs.",
        "tags": ["tools"],
        "parameters": [
            {"name": "execution_id", "in": "path", "required": true, "schema": shapes::uuid()},
            {"name": "stream", "in": "path", "required": true, "schema": {"type": "string", "enum": ["stdout", "stderr"]}},
            {"name": "offset", "in": "query", "required": false, "schema": offset},
        ],
        "responses": responses,
    })
}

fn header(name: &str, meaning: &str, required: impl Into<Value>) -> Value {
    json!({"name": name, "in": "header", "required": required.into(), "description": meaning, "schema": {"type": "string"}})
}

/// Gives the responses of some refusals, one entry a status.
fn responses(codes: &[Code]) -> Value {
    let mut all = Map::new();
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
