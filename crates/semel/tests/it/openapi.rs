//! The daemon held against its OpenAPI document by somebody else's tools; it needs Python, and once a package registry.
//!
//! `scripts/schemathesis.sh` asks for more than this share of it.

use crate::harness::skipped;
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
