//! The daemon held against its OpenAPI document by somebody else's tools; it needs Python, and once a package registry.
//!
//! `scripts/schemathesis.sh` asks for more than this share of it.

use crate::harness::{Home, skipped};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the script ends with where there is no Python, or no registry.
const CANNOT: i32 = 75;

#[test]
fn whatever_is_sent_is_answered_as_the_document_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = Command::new(root.join("scripts/schemathesis.sh"))
        .args(["--short", "--semel", env!("CARGO_BIN_EXE_semel")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    match out.status.code() {
        Some(CANNOT) => skipped("Schemathesis cannot be had: no Python 3.11, or no package registry"),
        code => assert_eq!(code, Some(0), "{said}"),
    }
}

/// What serde would take, and no schema has, is not taken from an operator.
#[test]
fn an_operator_is_taken_at_the_word_of_the_schema_alone() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let repository = json!({"repository": "/nowhere", "commit": "0".repeat(40)});
    let listed = json!(["/nowhere", "0".repeat(40)]);
    for (path, body) in [
        ("volumes", json!(["job", "draft", "process", null, null])),
        ("volumes", json!({"job": "job", "from": null})),
        ("volumes", json!({"job": "job", "role": {"draft": null}})),
        ("volumes", json!({"job": "job", "git": listed})),
        ("volumes", json!({"job": "job", "git": repository, "from": "/"})),
        (
            "volumes",
            json!({"job": "job", "git": repository, "role": "cert"}),
        ),
        ("listen", json!(["loopback"])),
        ("listen", json!({"network": {"loopback": null}})),
        ("listen", json!("loopback")),
    ] {
        let reply = home.admin("POST", &format!("/v1/admin/{path}"), &body);
        let told = (reply.status, reply.code());
        assert_eq!(told, (400, "bad_input"), "{path} {body}: {}", reply.body);
    }
    assert_eq!(home.open("job", "process").generation.len(), 38);
}
