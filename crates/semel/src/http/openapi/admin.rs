//! The operations of `/v1/admin/`, which only the operator may ask for.

use super::{responses, shapes};
use semel_core::Code;
use serde_json::{Value, json};

/// Is one operation, in one place.
pub(super) struct Operation {
    method: &'static str,
    /// Where it is asked for.
    pub(super) path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// What it is sent; `None` where the path says all.
    body: Option<fn() -> Value>,
    answer: fn() -> Value,
    refusals: &'static [Code],
}

/// How every one of them may be refused.
const EVERY: &[Code] = &[
    Code::Unauthorized,
    Code::MethodNotAllowed,
    Code::StoreUnavailable,
    Code::Internal,
];

/// Lists them all.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        method: "post",
        path: "/v1/admin/journal",
        id: "admin_journal",
        summary: "Carries out one verb of the journal for a command of the same version; nobody else has a use for it.",
        body: Some(verb),
        answer: || json!({}),
        refusals: &[Code::BadInput, Code::TooLarge],
    },
    Operation {
        method: "get",
        path: "/v1/admin/status",
        id: "admin_status",
        summary: "Says how the daemon is.",
        body: None,
        answer: status,
        refusals: &[],
    },
    Operation {
        method: "post",
        path: "/v1/admin/listen",
        id: "admin_listen",
        summary: "Makes sure that plain HTTP clients on this machine reach the app listener, and says where.",
        body: Some(
            || json!({"type": "object", "additionalProperties": false, "required": ["network"], "properties": {"network": {"type": "string", "enum": ["loopback"]}}}),
        ),
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "url", "socket"],
                "properties": {"schema": {"const": "semel.listening/v1"}, "url": {"type": "string", "format": "uri"}, "socket": {"type": ["string", "null"]}},
            })
        },
        refusals: &[Code::BadInput, Code::IoFailed, Code::TooLarge, Code::Draining],
    },
    Operation {
        method: "post",
        path: "/v1/admin/shutdown",
        id: "admin_shutdown",
        summary: "Ends the daemon once what is under way is done.",
        body: None,
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "draining"],
                "properties": {"schema": {"const": "semel.shutdown/v1"}, "draining": {"const": true}},
            })
        },
        refusals: &[],
    },
    Operation {
        method: "post",
        path: "/v1/admin/evict",
        id: "admin_evict",
        summary: "Frees what old calls of open volumes removed or replaced, or names them: they cannot be undone any more.",
        body: Some(|| {
            json!({
                "type": "object",
                "additionalProperties": false,
                "required": ["before", "act"],
                "properties": {
                    "before": {"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991_u64, "description": "milliseconds since 1970: calls before then"},
                    "act": {"type": "string", "enum": ["free", "dry_run"]},
                },
            })
        }),
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "calls", "busy"],
                "properties": {
                    "schema": {"const": "semel.evicted/v1"},
                    "calls": {"type": "array", "items": {"type": "string"}, "description": "the executions that cannot be undone any more, or could not be"},
                    "busy": {"type": "array", "items": {"type": "string"}, "description": "the volumes that were held up too long to be looked at"},
                },
            })
        },
        refusals: &[Code::BadInput, Code::IoFailed, Code::TooLarge],
    },
    Operation {
        method: "post",
        path: "/v1/admin/lock-waits",
        id: "admin_lock_wait",
        summary: "Tells that a restoration waits for a lock, for status and metrics; to be told again every second.",
        body: Some(lock_wait),
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "heard"],
                "properties": {"schema": {"const": "semel.lock_wait/v1"}, "heard": {"const": true}},
            })
        },
        refusals: &[Code::BadInput, Code::TooLarge, Code::TooMany],
    },
    Operation {
        method: "post",
        path: "/v1/admin/volumes",
        id: "admin_open_volume",
        summary: "Opens a volume for a person.",
        body: Some(wanted),
        answer: opened,
        refusals: &[
            Code::BadInput,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::VolumeBusy,
            Code::DurabilityUnavailable,
            Code::TooLarge,
            Code::IoFailed,
            Code::Draining,
        ],
    },
    Operation {
        method: "post",
        path: "/v1/admin/volumes/{generation}/end",
        id: "admin_end_volume",
        summary: "Ends a volume for a person.",
        body: Some(
            || json!({"type": "object", "additionalProperties": false, "required": ["end"], "properties": {"end": {"type": "string", "enum": ["clean", "dirty"]}}}),
        ),
        answer: ended,
        refusals: &[
            Code::BadInput,
            Code::NotFound,
            Code::VolumeBusy,
            Code::PreconditionFailed,
            Code::OutcomeUnknown,
            Code::TooLarge,
            Code::IoFailed,
        ],
    },
    Operation {
        method: "get",
        path: "/v1/admin/approvals",
        id: "admin_approvals",
        summary: "Lists the calls that wait for a person: what each would do, by digests and sizes, never contents.",
        body: None,
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "approvals"],
                "properties": {"schema": {"const": "semel.approvals/v1"}, "approvals": {"type": "array", "items": approval()}},
            })
        },
        refusals: &[],
    },
    Operation {
        method: "post",
        path: "/v1/admin/executions/{id}/undo",
        id: "admin_undo",
        summary: "Puts back what an execution removed or replaced, as a new execution.",
        body: None,
        answer: || json!({"$ref": "#/components/schemas/Effect"}),
        refusals: &[
            Code::BadInput,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::UndoExpired,
            Code::ReplayConflict,
            Code::CallInFlight,
            Code::OutcomeUnknown,
            Code::Denied,
            Code::PathEscapesRoot,
            Code::DirtyVolume,
            Code::TooMany,
            Code::IoFailed,
            Code::Draining,
        ],
    },
    Operation {
        method: "post",
        path: "/v1/admin/executions/{id}/resolve",
        id: "admin_resolve",
        summary: "Settles a call whose outcome is unknown, by a person's word.",
        body: Some(|| {
            let word = json!({"type": "string", "pattern": r"[^\s]"});
            json!({
                "type": "object",
                "additionalProperties": false,
                "required": ["settled", "by", "note"],
                "properties": {"settled": {"type": "string", "enum": ["happened", "never_happened"]}, "by": word, "note": word},
            })
        }),
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "execution_id", "settled", "call", "volume_state"],
                "properties": {
                    "schema": {"const": "semel.resolve/v1"},
                    "execution_id": shapes::uuid(),
                    "settled": {"enum": ["happened", "never_happened"]},
                    "call": {"type": "object"},
                    "volume_state": {"type": ["string", "null"]},
                },
            })
        },
        refusals: &[
            Code::BadInput,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::TooLarge,
            Code::IoFailed,
        ],
    },
    Operation {
        method: "post",
        path: "/v1/admin/executions/{id}/end",
        id: "admin_end_execution",
        summary: "Asks that a command be ended: by SIGTERM and, after a while, SIGKILL; or by SIGKILL at once.",
        body: Some(
            || json!({"type": "object", "additionalProperties": false, "required": ["urgency"], "properties": {"urgency": {"type": "string", "enum": ["ask", "kill"]}}}),
        ),
        answer: || {
            json!({
                "type": "object",
                "required": ["schema", "execution_id", "state"],
                "properties": {
                    "schema": {"const": "semel.execution.end/v1"},
                    "execution_id": shapes::uuid(),
                    "state": {"enum": ["asked", "never_began", "ended", "lost"]},
                },
            })
        },
        refusals: &[
            Code::BadInput,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::TooLarge,
            Code::IoFailed,
        ],
    },
    Operation {
        method: "post",
        path: "/v1/admin/approvals/{id}",
        id: "admin_approve",
        summary: "Decides a call that waits for a person; the first decision stands. The call is not run by this.",
        body: Some(decision),
        answer: approval,
        refusals: &[
            Code::BadInput,
            Code::NotFound,
            Code::PreconditionFailed,
            Code::ApprovalExpired,
            Code::ReplayConflict,
            Code::SandboxUnavailable,
            Code::TooLarge,
        ],
    },
];

impl Operation {
    /// Gives it as an item of `paths`.
    pub(super) fn item(&self) -> Value {
        let names = self.path.split('/').filter_map(|part| {
            let name = part.strip_prefix('{')?.strip_suffix('}')?;
            let shape = match name {
                "generation" => shapes::generation(),
                _ => shapes::uuid(),
            };
            Some(json!({"name": name, "in": "path", "required": true, "schema": shape}))
        });
        let mut responses = responses(&[EVERY, self.refusals].concat());
        responses["200"] = json!({
            "description": "Done.",
            "content": {"application/json": {"schema": (self.answer)()}},
        });
        if self.id == "admin_open_volume" {
            responses["200"]["links"] = json!({"end": {
                "operationId": "admin_end_volume",
                "parameters": {"generation": "$response.body#/generation"},
            }});
        }
        let mut operation = json!({
            "operationId": self.id,
            "summary": self.summary,
            "tags": ["admin"],
            "security": [{"operator": []}],
            "parameters": names.collect::<Vec<_>>(),
            "responses": responses,
        });
        if let Some(body) = self.body {
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": body()}}});
        }
        json!({(self.method): operation})
    }
}

/// Is a verb of the journal. Which there are, and with what, is between binaries of one version.
fn verb() -> Value {
    json!({"type": "object", "required": ["verb"], "properties": {"verb": {"type": "string"}}})
}

/// Is a volume that a person wants.
fn wanted() -> Value {
    let place = |format: &str| json!({"type": "string", "format": format, "description": "An absolute path of the daemon's machine"});
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["job"],
        "allOf": [
            {"not": {"required": ["from", "git"]}},
            {"not": {"required": ["git", "role"], "properties": {"role": {"const": "cert"}}}},
        ],
        "properties": {
            "job": shapes::job(),
            "role": {"type": "string", "enum": ["draft", "cert"], "default": "draft"},
            "durability": {"type": "string", "enum": ["process", "power", "power-best-effort"], "default": "process"},
            "backend": {"type": "string", "enum": ["auto", "dir", "overlay", "tmpfs"], "default": "auto", "description": "What it lies on"},
            "from": place("semel-directory"),
            "git": {
                "type": "object",
                "description": "A commit of a repository, in place of a directory; the volume is a draft",
                "additionalProperties": false,
                "required": ["repository", "commit"],
                "properties": {"repository": place("semel-repository"), "commit": {"type": "string", "pattern": "^[0-9a-f]{40}(?:[0-9a-f]{24})?$"}},
            },
        },
    })
}

fn opened() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    json!({
        "type": "object",
        "required": ["schema", "job", "role", "generation", "attempt", "fencing_token", "durability", "token", "url", "socket", "tree"],
        "properties": {
            "schema": {"const": "semel.volume.opened/v1"},
            "job": shapes::job(),
            "role": {"enum": ["draft", "cert"]},
            "generation": shapes::generation(),
            "attempt": number,
            "fencing_token": number,
            "durability": {"enum": ["process", "power", "power-best-effort"]},
            "backend": {"enum": ["dir", "overlay", "tmpfs"]},
            "backend_why": text,
            "token": {"type": "string", "description": "Given once; nobody keeps it but the caller"},
            "url": text,
            "socket": {"type": ["string", "null"]},
            "tree": text,
        },
    })
}

fn ended() -> Value {
    json!({
        "type": "object",
        "required": ["schema", "volume"],
        "properties": {
            "schema": {"const": "semel.volume/v1"},
            "volume": {
                "type": "object",
                "required": ["job", "attempt", "generation", "state"],
                "properties": {
                    "job": shapes::job(),
                    "attempt": {"type": "integer"},
                    "generation": shapes::generation(),
                    "state": {"type": "string"},
                    "dirty": {"type": ["string", "null"]},
                },
            },
        },
    })
}

fn status() -> Value {
    let number = json!({"type": "integer"});
    let part = json!({"type": "object"});
    json!({
        "type": "object",
        "required": ["schema", "daemon", "phase", "poisoned", "in_flight", "answering", "counted", "journal", "approvals_pending", "checkpoints", "orphans_ended", "commands", "limits", "lock_waits"],
        "properties": {
            "schema": {"const": "semel.daemon.status/v1"},
            "daemon": part,
            "phase": {"type": "string"},
            "poisoned": {"type": ["string", "null"], "description": "Why nothing is taken any more"},
            "in_flight": number,
            "answering": number,
            "counted": part,
            "journal": part,
            "approvals_pending": number,
            "orphans_ended": {"type": "array", "items": shapes::generation()},
            "commands": number,
            "limits": part,
            "lock_waits": {"type": "array", "items": lock_wait(), "description": "Who waits for a lock now, the longest first"},
        },
    })
}

/// Is a wait for a lock.
fn lock_wait() -> Value {
    let ms = |what: &str| json!({"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991_u64, "description": what});
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["pid", "worktree", "waited_ms", "bound_ms", "age_ms"],
        "properties": {
            "pid": {"type": "integer", "minimum": 0, "maximum": 4_294_967_295_u64, "description": "The process that waits"},
            "worktree": {"type": "string", "description": "Whose lock it is"},
            "waited_ms": ms("For how long so far"),
            "bound_ms": ms("For how long at most"),
            "age_ms": ms("How long ago the lock was changed last"),
            "owner": {"type": "string", "description": "Who holds it, as far as can be seen"},
        },
    })
}

/// Is what a person decides.
fn decision() -> Value {
    let mut by = shapes::line(1, 200);
    by["default"] = json!("operator");
    by["description"] = json!("Who decides, by their own word");
    let mut note = shapes::line(0, 2000);
    note["default"] = json!("");
    note["description"] = json!("Why");
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["decision"],
        "properties": {"decision": {"type": "string", "enum": ["approve", "deny"]}, "by": by, "note": note},
    })
}

fn approval() -> Value {
    json!({
        "type": "object",
        "required": ["approval_id", "standing", "job", "generation", "tool", "path", "would", "ends_at", "decision"],
        "properties": {
            "approval_id": shapes::uuid(),
            "standing": {"type": "string"},
            "job": shapes::job(),
            "generation": shapes::generation(),
            "tool": {"type": "string"},
            "path": {"type": "string"},
            "would": {"type": "object"},
            "ends_at": {"type": "string", "format": "date-time"},
            "decision": {"type": ["object", "null"]},
            "execution_id": {"type": ["string", "null"], "description": "Of a decision: the call that has begun under the key, if it has"},
        },
    })
}
